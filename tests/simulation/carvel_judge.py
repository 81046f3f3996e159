"""Judges what the services write for Carvel's installs, and what is there at rest; see `CarvelJudge`."""

from collections.abc import Iterable

from pvbus.ports.cluster import Object
from tests.simulation.packages_judge import ADOPTED, Judge, annotation, group_of, key_of

INSTALL_GROUP = "packaging.carvel.dev"
OWNER = "kapp-controller.carvel.dev/owner"
INSTALLED_BY = "pvbus.dev/installed-by"


def is_install(obj: Object) -> bool:
    return group_of(obj) == INSTALL_GROUP


def holder_of(obj: Object) -> str:
    """Return the okey of the install that an object of a package names, "" for none."""
    text = annotation(obj, INSTALLED_BY)
    return f"{INSTALL_GROUP}/PackageInstall|{text.replace('/', '|')}" if text else ""


class CarvelJudge(Judge):
    """Notes what must never be of PackageInstalls and of the objects of their packages."""

    def wrote(self, verb: str, before: Object | None, after: Object, subresource: str = "") -> None:
        self.counts[f"{verb} {after['kind']}"] += 1
        if subresource == "status":
            return
        if is_install(after):
            self._wrote_package_install(verb, before, after)
        elif after["kind"] == "Package":
            self._wrong(after, f"is a user's, and a service sent {verb}")
        else:
            self._wrote_packaged(verb, before, after)

    def _wrote_package_install(self, verb: str, before: Object | None, after: Object) -> None:
        if before is None or verb == "delete":
            if not annotation(after, OWNER):
                self._wrong(after, f"is a user's, and a service sent {verb}")
        elif before.get("spec") != after.get("spec") and not annotation(before, OWNER):
            self._wrong(after, "is a user's, and a service changed its spec")

    def _wrote_packaged(self, verb: str, before: Object | None, after: Object) -> None:
        """Judge a write of an object of a package."""
        if verb == "delete":
            if not holder_of(after):
                self._wrong(after, "is somebody else's, and was deleted")
            elif annotation(after, ADOPTED):
                self._wrong(after, "was there before its package, and was deleted")
            return
        former = holder_of(before) if before is not None else ""
        taker = holder_of(after)
        if former and taker and former != taker:
            self._wrong(after, f"was taken from {former} by {taker}")
        if before is not None and not former:
            self.counts["objects adopted"] += 1
            if not annotation(after, ADOPTED):
                self._wrong(after, "was adopted without a note of it")
        if former and not taker and not annotation(before or {"metadata": {}}, ADOPTED):
            self._wrong(after, "was given up, and was not there before its package")

    def at_rest(self, objects: Iterable[Object]) -> list[str]:
        known = list(objects)
        problems = list(self.problems)
        installs = {key_of(each) for each in known if is_install(each)}
        held: dict[str, str] = {}
        for okey, done in self.established.items():
            if not self._is_kept(okey):
                continue
            for revision in done.revisions:
                for key in revision.objects if revision.state == "established" else ():
                    if key in held:
                        problems.append(f"{key} belongs to {held[key]} and {okey} by the rows")
                    held[key] = okey
        for obj in known:
            holder, key = holder_of(obj), key_of(obj)
            if not holder:
                continue
            if holder not in installs:
                problems.append(f"{key} belongs to {holder}, which is gone")
            elif holder not in self.established:
                problems.append(f"{key} belongs to {holder}, of which establish has no row")
            elif not any(key in each.objects for each in self.established[holder].revisions):
                problems.append(f"{key} belongs to {holder}, whose row does not have it")
        problems += self._missing(known)
        return problems

    def _is_kept(self, okey: str) -> bool:
        """Whether the objects of an install are put right: also of one that is refused another version."""
        row = self.lock.get(okey)
        is_decided = row is not None and row.status in ("locked", "refused", "broken")
        return is_decided and self.established[okey].is_healthy

    def _missing(self, objects: Iterable[Object]) -> Iterable[str]:
        """Yield the objects that healthy installs lack."""
        found = {key_of(each): holder_of(each) for each in objects}
        for okey, done in self.established.items():
            if not self._is_kept(okey):
                continue
            for revision in done.revisions:
                for key in revision.objects:
                    if found.get(key) != okey:
                        yield f"{okey} is healthy, and {key} belongs to {found.get(key, 'nobody')}"
