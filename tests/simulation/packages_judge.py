"""Judges each write of the services of packages, and each row of the lock; see `Judge`.

It uses nothing of the services but their rows: what an object says of its owners is read here once more.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pvbus.core.kernel.packagerows import OBJECT_OWNED, EstablishedRow, LockedRevision, LockRow
from pvbus.ports.cluster import Object

PKG = "pkg.crossplane.io"
INSTALL_KINDS = ("Configuration", "Function", "Package", "Provider")
OWNER = "pvbus.dev/owner"
ADOPTED = "pvbus.dev/adopted"
WROTE = "pvbus.dev/wrote-desired-state"
PAGE = "PackageLock"


class Reference(NamedTuple):
    """A revision that an object names as its owner."""

    kind: str
    name: str


def group_of(obj: Object) -> str:
    return str(obj["apiVersion"]).rpartition("/")[0]


def key_of(obj: Object) -> str:
    meta = obj["metadata"]
    return f"{group_of(obj)}/{obj['kind']}|{meta.get('namespace', '')}|{meta['name']}"


def annotation(obj: Object, name: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(name, ""))


def is_install(obj: Object) -> bool:
    return group_of(obj) == PKG and obj["kind"] in INSTALL_KINDS


def is_revision(obj: Object) -> bool:
    return group_of(obj) == PKG and str(obj["kind"]).endswith("Revision")


def owners_of(obj: Object | None) -> Sequence[Object]:
    return list((obj["metadata"].get("ownerReferences") if obj is not None else None) or ())


def controllers_of(obj: Object | None) -> list[Object]:
    return [each for each in owners_of(obj) if each.get("controller")]


def ours(reference: Object) -> Reference | None:
    """Return the revision that a reference names, None if it names something else."""
    is_ours = str(reference["apiVersion"]).startswith(f"{PKG}/") and reference["kind"].endswith("Revision")
    return Reference(reference["kind"], reference["name"]) if is_ours else None


def install_of(revision: Object) -> str:
    """Return the key of the install that a revision belongs to, "" if it has no controller."""
    kind = revision["kind"].removesuffix("Revision")
    return next((f"{PKG}/{kind}||{each['name']}" for each in controllers_of(revision)), "")


def actives(row: LockRow) -> list[LockedRevision]:
    return [each for each in row.revisions if each.is_active]


class Judge:
    """Notes what must never be.

    ordered: the installs for which the lock ever had a revision as the active one. brought: the objects that
    such a revision has. The lock and the rows of establish are as they were written last.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self.lock: dict[str, LockRow] = {}
        self.established: dict[str, EstablishedRow] = {}
        self.ordered: dict[Reference, set[str]] = {}
        self.brought: dict[Reference, set[str]] = {}

    # ------------------------------------------------------------ rows

    def locked(self, okey: str, row: LockRow | None) -> None:
        """Judge a row of the lock. okey: of its install."""
        if row is None:
            self.lock.pop(okey, None)
            return
        self.lock[okey] = row
        self.counts[f"rows {row.status}"] += 1
        found = actives(row)
        if len(found) > 1:
            self.problems.append(f"the lock has {len(found)} active revisions of {okey}")
        for name in ("name", "digest", "revision"):
            values = [getattr(each, name) for each in row.revisions]
            if len(set(values)) < len(values):
                self.problems.append(f"the lock has two revisions of {okey} with the same {name}")
        if not okey.startswith(f"{PKG}/"):
            return
        kind = f"{okey.partition('|')[0].rpartition('/')[2]}Revision"
        for each in row.revisions:
            reference = Reference(kind, each.name)
            self.brought.setdefault(reference, set()).update(each.objects)
            if each.is_active and row.status != "removed":
                self.ordered.setdefault(reference, set()).add(okey)

    # ------------------------------------------------------------ writes

    def wrote(self, verb: str, before: Object | None, after: Object, subresource: str = "") -> None:
        """Judge a write of a service. before: None if the object is new; after: as it was, for a deletion."""
        self.counts[f"{verb} {after['kind']}"] += 1
        if subresource == "status":
            return
        if len(controllers_of(after)) > 1:
            self._wrong(after, f"has {len(controllers_of(after))} controllers")
        if is_install(after):
            self._wrote_install(verb, before, after)
        elif after["kind"] == PAGE:
            pass  # it is ours alone, whatever a person makes of it
        elif is_revision(after):
            self._wrote_revision(verb, before, after)
        elif verb == "delete":
            self._deleted(after)
        else:
            self._wrote_object(before, after)

    def _wrong(self, obj: Object, text: str) -> None:
        self.problems.append(f"{key_of(obj)} {text}")

    def _wrote_install(self, verb: str, before: Object | None, after: Object) -> None:
        if before is None or verb == "delete":
            if not annotation(after, OWNER):
                self._wrong(after, f"is a user's, and a service sent {verb}")
        elif before.get("spec") != after.get("spec") and not annotation(before, OWNER):
            self._wrong(after, "is a user's, and a service changed its spec")

    def _wrote_revision(self, verb: str, before: Object | None, after: Object) -> None:
        if before is not None and not self._is_of_install(before):
            self._wrong(after, f"is no install's, and a service sent {verb}")
        if before is None and annotation(after, WROTE) != "Inactive":
            self._wrong(after, "was made active")

    @staticmethod
    def _is_of_install(obj: Object) -> bool:
        return any(str(each["apiVersion"]).startswith(f"{PKG}/") for each in owners_of(obj))

    def _deleted(self, obj: Object) -> None:
        found = [ours(each) for each in owners_of(obj)]
        if not found or None in found:
            self._wrong(obj, "is somebody else's, and was deleted")
        elif annotation(obj, ADOPTED):
            self._wrong(obj, "was there before its package, and was deleted")

    def _wrote_object(self, before: Object | None, after: Object) -> None:
        """Judge a write of an object of a package, or of its runtime."""
        former = next((ours(each) for each in controllers_of(before)), None)
        if before is not None and controllers_of(before) and former is None:
            self._wrong(after, "is controlled by somebody else, and was changed")
        taker = next((ours(each) for each in controllers_of(after)), None)
        if before is not None and not any(map(ours, owners_of(before))) and taker is None:
            self._wrong(after, "is somebody else's, and was changed")
        if taker is None or taker == former:
            return
        if taker not in self.ordered:
            self._wrong(after, f"was given to {taker.name}, which the lock never had as active")
        elif former is not None and not self._is_same_install(former, taker):
            self._wrong(after, f"was taken from {former.name} by {taker.name} of another install")
        if before is not None and not owners_of(before):
            self.counts["objects adopted"] += 1
            if not annotation(after, ADOPTED):
                self._wrong(after, "was adopted without a note of it")
        if former is not None:
            self.counts["objects handed over"] += 1

    def _is_same_install(self, one: Reference, other: Reference) -> bool:
        return bool(self._installs(one) & self._installs(other))

    def _installs(self, reference: Reference) -> set[str]:
        return self.ordered.get(reference, set())

    # ------------------------------------------------------------ at rest

    def at_rest(self, objects: Iterable[Object]) -> list[str]:
        """Return what is wrong while nothing happens: the cluster, the lock and the report must agree."""
        known = list(objects)
        problems = list(self.problems)
        wanted = self._owned_by_rows(problems)
        found: dict[str, str] = {}
        uids = {each["metadata"]["uid"] for each in known}
        for obj in known:
            for each in owners_of(obj):
                if each["uid"] not in uids:
                    problems.append(f"{key_of(obj)} has an owner that is gone: {each['name']}")
            reference = next((ours(each) for each in controllers_of(obj)), None)
            if reference is not None and not is_runtime(obj, reference.name):
                found[key_of(obj)] = reference.name
        paused = self._left_alone(known)
        for key in sorted({*wanted, *found} - paused):
            if wanted.get(key) != found.get(key):
                problems.append(
                    f"{key} is controlled by {found.get(key)}, and by the rows it is {wanted.get(key)}"
                )
        problems += self._revisions(known)
        return problems

    def _left_alone(self, known: Sequence[Object]) -> set[str]:
        """Return the objects of installs that are paused, wait for others, or are not theirs by the lock.

        What was established of them stays as it is, and nobody puts right what is changed in it.
        """
        paused = {key_of(each) for each in known if is_install(each) and is_paused(each)}
        resting = {
            Reference(each["kind"], each["metadata"]["name"])
            for each in known
            if is_revision(each) and install_of(each) in paused
        }
        left = {key_of(each) for each in known if any(ours(one) in resting for one in controllers_of(each))}
        for key, row in self.lock.items():
            done = self.established.get(key)
            is_kept = row.status == "locked" or (
                row.status in ("refused", "broken") and row.reason != OBJECT_OWNED
            )
            if key in paused or not is_kept or done is None or not done.is_healthy:
                left |= {each for revision in row.revisions for each in revision.objects}
                left |= {each for entry in (done.revisions if done else ()) for each in entry.objects}
        return left

    def _owned_by_rows(self, problems: list[str]) -> dict[str, str]:
        """Return who has each object by the rows: those of active revisions that are established."""
        wanted: dict[str, str] = {}
        for okey, row in self.lock.items():
            done = self.established.get(okey)
            states = {each.name: each for each in (done.revisions if done is not None else ())}
            for each in actives(row):
                state = states.get(each.name)
                if state is None or state.state != "established":
                    continue
                for key in each.objects:
                    if key in wanted:
                        problems.append(f"{key} belongs to {wanted[key]} and {each.name} by the rows")
                    wanted[key] = each.name
                if set(state.objects) != set(each.objects):
                    problems.append(f"{okey}: the lock and the report have other objects")
        return wanted

    def _revisions(self, objects: Iterable[Object]) -> Iterable[str]:
        """Yield what differs between the revisions of the lock and their objects."""
        installs = {key_of(each): each for each in objects if is_install(each)}
        found: dict[str, dict[str, str]] = {}
        for obj in objects:
            parent = install_of(obj) if is_revision(obj) else ""
            if parent:
                found.setdefault(parent, {})[obj["metadata"]["name"]] = str(obj["spec"].get("desiredState"))
        for okey in sorted({*installs, *found}):
            row = self.lock.get(okey)
            if row is None:
                yield f"{okey} has no row in the lock"
                continue
            if row.status != "locked" or is_paused(installs.get(okey)):
                continue
            done = self.established.get(okey)
            if done is None or not done.is_healthy:
                continue  # what was established before stays
            states = {each.name: "Active" if each.is_active else "Inactive" for each in row.revisions}
            if states != found.get(okey, {}):
                yield f"{okey}: the lock has {states}, the cluster {found.get(okey)}"
            spec = (installs.get(okey) or {}).get("spec") or {}
            limit = int(spec.get("revisionHistoryLimit", 1))
            if limit and len(row.revisions) - len(actives(row)) > limit:
                yield f"{okey} keeps more than {limit} revisions"


def is_runtime(obj: Object, revision: str) -> bool:
    """Tell whether an object runs a package, and is not one of its objects."""
    package, name = revision.rpartition("-")[0], obj["metadata"]["name"]
    if obj["kind"] in ("Service", "Secret"):
        return name in (package, f"{package}-tls-server", f"{package}-tls-client")
    return revision in name and obj["kind"] in (
        "ClusterRole",
        "ClusterRoleBinding",
        "Deployment",
        "ServiceAccount",
    )


def is_paused(obj: Mapping[str, object] | None) -> bool:
    return obj is not None and annotation(dict(obj), "crossplane.io/paused") == "true"
