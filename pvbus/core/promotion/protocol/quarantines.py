"""What a Quarantine covers, and the table of all of them. Pure.

A quarantine lasts until a person releases or deletes it: neither a newer revision nor the end of the policy
that wrote it ends it. It covers a package of the sets that it names

- whose upstream revision has the name of a quarantined one, whatever is in it now;
- whose upstream revision has the same files under another name;
- whose upstream revision is another one of the same package, and its files cannot be read to compare them;
- whose own content has a quarantined digest;
- which is approved as a member of a train, with all upstream revisions of a quarantined combination.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

import msgspec

from pvbus.core.api.quarantines import Quarantine, QuarantinedUpstream, QuarantineSpec
from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.keys import Key, ObjectKey
from pvbus.core.kernel.markers import SyncView, is_marker, marker_kind
from pvbus.core.kernel.messages import cut
from pvbus.core.kernel.objectrows import QUARANTINE
from pvbus.core.kernel.objects import set_among
from pvbus.core.promotion.protocol.proposals import Refusal

QUARANTINED = "Quarantined"
UNKNOWN = "QuarantinesUnknown"
MESSAGE_CHARACTERS_MAX = 1_500
_KIND = str(QUARANTINE)
_quarantine = msgspec.json.Decoder(Quarantine)


class Content(NamedTuple):
    """What a package revision is made of.

    set_name: the set of its variant, "" without one; None for a revision without a variant, as what it is for
        is not known: a quarantine of any sets covers it
    source: the upstream revision, `REPOSITORY/PACKAGE@REVISION`, "" if that is not known
    files: the digest of the upstream's files, "" if they cannot be read, None if they are not compared
    digest: of its own files, "" if they cannot be read
    combination: the upstream revisions of the train that it is approved with
    """

    set_name: str | None
    source: str = ""
    files: str | None = ""
    digest: str = ""
    combination: tuple[str, ...] = ()


def covers(spec: QuarantineSpec, content: Content) -> bool:
    """Tell whether a quarantine keeps a package revision from going out."""
    if spec.released is not None or not _is_of_set(spec, content.set_name):
        return False
    if any(set(each.upstreams) <= {*content.combination} for each in spec.combinations if each.upstreams):
        return True
    return content.digest in spec.contents or any(_is_of(each, content) for each in spec.upstreams)


def _is_of_set(spec: QuarantineSpec, set_name: str | None) -> bool:
    return not spec.sets or set_name is None or set_name in spec.sets


def _is_of(upstream: QuarantinedUpstream, content: Content) -> bool:
    if content.source == upstream.revision:
        return True
    if not upstream.files or content.files is None:
        return False
    is_same_package = package_of(content.source) == package_of(upstream.revision)
    return content.files == upstream.files or (not content.files and is_same_package)


def package_of(source: str) -> str:
    """Return the package of an upstream revision, `REPOSITORY/PACKAGE`."""
    return source.rpartition("@")[0]


def set_of(variant: PackageVariant) -> str:
    """Return the name of a variant's set, "" without one."""
    return set_among(variant.metadata.owner_references)


def source_of(variant: PackageVariant, directory: str, ref: str) -> str:
    """Return the upstream revision that a package revision is made of, `REPOSITORY/PACKAGE@REVISION`.

    directory, ref: of its upstreamLock. Without a ref it is the one that the variant follows now.
    """
    upstream = variant.spec.upstream
    if upstream is None:
        return ""
    tail, directory = ref.rpartition("/")[2], directory.strip("/")
    is_same = not directory or f"/{directory}".endswith(f"/{upstream.package}")
    package = upstream.package if is_same else directory
    followed = upstream.workspace_name or f"v{upstream.revision}"
    return f"{upstream.repo}/{package}@{tail or followed}"


def sources_at(directory: str, ref: str, names: Iterable[str]) -> list[str]:
    """Return which upstream revisions of these names an upstreamLock may mean. It has no Repository's name,
    so packages of one path in several repositories all count.

    directory, ref: of the lock
    """
    tail, path = ref.rpartition("/")[2], f"/{directory.strip('/')}"
    return [
        name
        for name in names
        if name.rpartition("@")[2] == tail and path.endswith(f"/{package_of(name).partition('/')[2]}")
    ]


def source_of_object(variant: PackageVariant, revision: Mapping[str, Any]) -> str:
    """Return the upstream revision that a PackageRevision is made of. See `source_of`."""
    git = ((revision.get("status") or {}).get("upstreamLock") or {}).get("git") or {}
    return source_of(variant, git.get("directory") or "", git.get("ref") or "")


def refusal_of(
    namespace: str, covering: Iterable[Quarantine], variant: str, set_name: str | None
) -> Refusal | None:
    """Return why a revision goes nowhere, None if nothing covers it. set_name: as in `Content`."""
    follower = f"packagevariantset {set_name}" if set_name else f"packagevariant {variant}"
    words = [_words(namespace, each, follower if set_name is not None else "") for each in covering]
    return Refusal(QUARANTINED, cut("; ".join(words), MESSAGE_CHARACTERS_MAX)) if words else None


def _words(namespace: str, quarantine: Quarantine, follower: str) -> str:
    """Say what keeps a revision, and each way on. follower: whose spec names the upstream
    revision, "" for nobody's."""
    name, spec = quarantine.metadata.name, quarantine.spec
    why = f" ({spec.message or spec.reason})" if spec.message or spec.reason else ""
    good = dict.fromkeys(each.good for each in spec.upstreams if each.good)
    pin = "".join(
        f", go back to the last good revision {each}{_pin(namespace, each, follower)}" for each in good
    )
    is_named = spec.upstreams or spec.combinations
    next_one = "follow another upstream revision" if is_named else "change its content"
    return (
        f"quarantine {name} covers it{why}: {next_one}{pin}, "
        f"or end it: pvbus rollout release {Key(namespace, name)} --reason TEXT"
    )


def _pin(namespace: str, source: str, follower: str) -> str:
    """Return ": " and the command by which targets follow an upstream revision, as for a change of their
    configuration that cannot wait; "" without a follower."""
    if not follower:
        return ""
    where, _, name = source.rpartition("@")
    repo, _, package = where.partition("/")
    number = name.removeprefix("v")
    is_number = name.startswith("v") and number.isdecimal()
    revision = {"revision": int(number)} if is_number else {"workspaceName": name, "revision": None}
    upstream = {"repo": repo, "package": package, "workspaceName": None, **revision}
    patch = json.dumps({"spec": {"upstream": upstream}}, separators=(",", ":"))
    return f": kubectl patch -n {namespace} {follower} --type merge -p '{patch}'"


def is_quarantine(key: str) -> bool:
    """Tell whether a key of `pvbus.policies` is that of a Quarantine."""
    return key.startswith(f"{_KIND}|")


class Quarantines:
    """The quarantines of a namespace that nobody has released, and what they say of a package revision.

    Promote and release have them from the bus, commands from the API server.
    """

    def __init__(self, namespace: str, read: Iterable[Quarantine] = ()) -> None:
        """read: all of the namespace, the released ones, too."""
        self.namespace = namespace
        self._lasting: dict[str, Quarantine] = {}
        for quarantine in read:
            self.put(quarantine.metadata.name, quarantine)

    def put(self, name: str, read: Quarantine | None) -> bool:
        """Take over a quarantine, None for one that is gone; return whether what is covered changed."""
        before = self._lasting.pop(name, None)
        if read is not None and read.spec.released is None:
            self._lasting[name] = read
        after = self._lasting.get(name)
        return (before and before.spec) != (after and after.spec)

    def __bool__(self) -> bool:
        return bool(self._lasting)

    def of_set(self, set_name: str | None) -> Iterator[tuple[str, QuarantineSpec]]:
        """Yield name and spec of those that concern a set, by name. set_name: as in `Content`."""
        for name, quarantine in sorted(self._lasting.items()):
            if _is_of_set(quarantine.spec, set_name):
                yield name, quarantine.spec

    def upstreams(self) -> Iterator[str]:
        """Yield the names of the quarantined upstream revisions."""
        for quarantine in self._lasting.values():
            yield from (upstream.revision for upstream in quarantine.spec.upstreams)

    def compare_contents(self, set_name: str | None) -> bool:
        """Tell whether any covers packages of a set by their own content."""
        return any(spec.contents for _, spec in self.of_set(set_name))

    def compare_files(self, set_name: str) -> bool:
        """Tell whether any covers packages of a set by the files of their upstream revision."""
        return any(upstream.files for _, spec in self.of_set(set_name) for upstream in spec.upstreams)

    def covering(self, content: Content) -> list[Quarantine]:
        """Return what covers a package revision, by name."""
        return [each for _, each in sorted(self._lasting.items()) if covers(each.spec, content)]

    def refusal(self, content: Content, variant: str) -> Refusal | None:
        """Return why a revision of a variant goes nowhere, None if nothing covers it."""
        return refusal_of(self.namespace, self.covering(content), variant, content.set_name)

    def combinations(self, set_name: str, packages: Set[str]) -> Iterator[tuple[str, ...]]:
        """Yield the quarantined combinations of a set that concern packages, after the quarantine's name."""
        for name, spec in self.of_set(set_name):
            for combination in spec.combinations:
                if packages & {package_of(upstream) for upstream in combination.upstreams}:
                    yield name, *combination.upstreams


class QuarantineView:
    """All Quarantines of the cluster, and whether each namespace's are known."""

    def __init__(self, partitions: int) -> None:
        """partitions: how many partitions the topic has."""
        self._sync = SyncView(partitions)
        self._namespaces: dict[str, Quarantines] = {}

    def load(self, partition: int, key: str, value: bytes | None) -> Iterable[str] | None:
        """Apply a record of `pvbus.policies`; return the namespaces that it concerns, None for all."""
        if is_marker(key):
            is_ours = marker_kind(key) == _KIND
            return None if is_ours and self._sync.load(partition, key, value) else ()
        if not is_quarantine(key):
            return ()
        name = ObjectKey.parse(key)
        quarantines = self._namespaces.setdefault(name.namespace, Quarantines(name.namespace))
        is_changed = quarantines.put(name.name, _quarantine.decode(value) if value is not None else None)
        return (name.namespace,) if is_changed else ()

    def of(self, namespace: str) -> Quarantines:
        """Return those of a namespace that are known so far, see `unlisted`."""
        return self._namespaces.get(namespace) or Quarantines(namespace)

    def is_away(self) -> bool:
        """Tell whether the kind will not be listed soon."""
        marker = self._sync.marker(_KIND)
        return marker is not None and marker.state == "unavailable"

    def is_served(self) -> bool:
        """Tell whether the kind may have objects: one that is not installed has none."""
        return not self.is_away() or bool(self._sync.hidden(_KIND))

    def unlisted(self, namespace: str) -> str:
        """Return why a missing quarantine may exist, in words, "" if it does not."""
        if self._sync.ok(_KIND, namespace):
            return ""
        if not self.is_served():
            return "the kind Quarantine, which the API server does not serve: apply its definition"
        marker = self._sync.marker(_KIND)
        why = marker.message if marker is not None and self.is_away() else ""
        why = why or self._sync.problem(_KIND, namespace)
        return "the list of Quarantines" + (f" ({why}): pvbus doctor says what is missing" if why else "")
