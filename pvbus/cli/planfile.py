"""The file of `pvbus plan --out`: a plan that `pvbus apply` carries out as it is.

It is one JSON document with a seal over its text, and has all that a later run needs to tell three things
apart: an object that is as the plan found it, one that is on its way through the states that the plan
announces, and one that has moved. Its objects are named by digests of what they mean, so it holds no Secret
and stays small.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pvbus import __version__
from pvbus.adapters.files import check_seal, open_plain, sealed, write_private
from pvbus.adapters.manifests import Manifest, kind_of
from pvbus.cli.live import CRD, FILES, REVISION, Export
from pvbus.cli.plandocument import Document
from pvbus.cli.progress import SET
from pvbus.core.api.variants import PackageVariantSetSpec
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.keys import REQUIRE_PLAN
from pvbus.core.kernel.objects import timestamp
from pvbus.core.variants.unroll.signedplans import StatedSet, Statement, spec_digest, statement_text
from pvbus.ports.cluster import Kind, Object
from pvbus.runtime.preview.changes import ObjectName, replaced
from pvbus.runtime.preview.meaning import ABSENT, digest_of_object
from pvbus.runtime.preview.run import Preview

API = "pvbus.dev/v1"
KIND = "Plan"
FORMAT = 1
FILE_BYTES_MAX = 1 << 30
DOCUMENT_KEYS = ("actions", "variants", "held", "troubles", "notes")
"""The parts of the plan's document that a screen shows; the rest is whole objects and packages."""


class PlannedObject(msgspec.Struct, rename="camel", array_like=True):
    """An object that the plan read or that it changes.

    group: the group of its kind
    kind: its kind
    namespace: its namespace, "" for none
    name: its name
    uid: its uid when the plan was made, "" if it did not exist
    commit: of a package revision: the commit in git that it had, "" if the plan changes its files
    states: digests: as the plan found it, and after each change; one digest if the plan only read it
    settled: the index of the state that the user's changes begin from
    """

    group: str
    kind: str
    namespace: str
    name: str
    uid: str
    commit: str
    states: list[str]
    settled: int = 0

    @property
    def key(self) -> ObjectName:
        return ObjectName(Kind(self.group, self.kind), self.namespace, self.name)

    def __str__(self) -> str:
        return name_of_key(self.key)


class GivenManifest(msgspec.Struct, rename="camel"):
    """A manifest that the plan was made from.

    location: its file and document
    object: its content
    digest: of its content
    generation: of the object once it is written, 0 if it does not exist
    """

    location: str
    object: dict[str, Any]
    digest: str
    generation: int = 0


class PlanFile(msgspec.Struct, rename="camel", kw_only=True):
    """A plan.

    format: the version of this format
    made_at: when it was made
    made_with: the version of pvbus
    summary: what it writes, in words
    manifests: the user's changes
    deletions: the objects to delete, as [group, kind, namespace, name]
    kinds: the kinds that were read, as [group, kind]
    namespaces: the namespaces whose objects are inputs of the plan
    objects: what it read and what it changes
    gates: what still has to happen before its drafts are published
    cost: how much it is to carry it out
    document: what a screen shows of it
    statement: what is signed of it, "" if it changes no set that exists
    seal: a hash of the text
    """

    api_version: str = API
    kind: str = KIND
    format: int = FORMAT
    made_at: str
    made_with: str
    summary: str
    manifests: list[GivenManifest]
    deletions: list[tuple[str, str, str, str]]
    kinds: list[tuple[str, str]]
    namespaces: list[str]
    objects: list[PlannedObject]
    gates: list[dict[str, Any]]
    cost: dict[str, Any]
    document: dict[str, Any]
    statement: str = ""
    seal: str = ""

    @property
    def deleted(self) -> list[ObjectName]:
        return [ObjectName(Kind(group, kind), *rest) for group, kind, *rest in self.deletions]

    @property
    def changed(self) -> list[PlannedObject]:
        """The objects that the plan changes."""
        return [planned for planned in self.objects if len(planned.states) > 1]

    @property
    def checksum(self) -> str:
        return self.seal[:12]


class _Head(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    format: int = 0


_decoder = msgspec.json.Decoder(PlanFile)
_head = msgspec.json.Decoder(_Head)


class PlanInputs(NamedTuple):
    """What a plan was made from.

    export: the objects that were read
    manifests: the user's changes, as files have them
    objects: the same, as an API server would store them
    deletions: the objects to delete
    """

    export: Export
    manifests: Sequence[Manifest]
    objects: Sequence[Object]
    deletions: Sequence[ObjectName]


# ------------------------------------------------------------ making


def plan_file(
    inputs: PlanInputs,
    result: Preview,
    document: Document,
    *,
    gates: list[dict[str, Any]],
    cost: dict[str, Any],
    summary: str,
) -> PlanFile:
    """Return the file of a plan, whose preview noted the states."""
    objects = _planned(inputs.export.items, result)
    present = {key_of_object(obj): obj for obj in inputs.export.items}
    namespaces = sorted(
        {action["namespace"] for action in document["actions"]}
        | {obj["metadata"].get("namespace") or "default" for obj in inputs.objects}
        | {name.namespace for name in inputs.deletions}
        | {planned.namespace for planned in objects if len(planned.states) > 1}
    )
    return PlanFile(
        made_at=timestamp(time.time()),
        made_with=__version__,
        summary=summary,
        manifests=[
            GivenManifest(manifest.location, obj, digest_of_object(obj), _generation(obj, present))
            for manifest, obj in zip(inputs.manifests, inputs.objects, strict=True)
        ],
        deletions=[(*name.kind, name.namespace, name.name) for name in inputs.deletions],
        kinds=_kinds(inputs.export),
        namespaces=namespaces,
        objects=[planned for planned in objects if planned.namespace in {*namespaces, ""}],
        gates=gates,
        cost=cost,
        document=_shown(document),
    )


def _generation(obj: Object, present: Mapping[ObjectName, Object]) -> int:
    meta = obj["metadata"]
    live = present.get(ObjectName(kind_of(obj), meta.get("namespace") or "default", meta["name"]))
    return int(replaced(obj, live)["metadata"]["generation"]) if live is not None else 0


def _kinds(export: Export) -> list[tuple[str, str]]:
    """Return the kinds of which every object was read; of definitions single ones are."""
    served = {(resource.group, resource.kind) for resource in export.resources}
    kinds = {kind_of(obj) for obj in export.items} - {CRD}
    return sorted(served | {(kind.group, kind.kind) for kind in kinds})


def _planned(items: Iterable[Object], result: Preview) -> list[PlannedObject]:
    found: dict[ObjectName, PlannedObject] = {}
    for obj in items:
        key = key_of_object(obj)
        states = [digest_of_object(obj)]
        found[key] = PlannedObject(*key.kind, *key[1:], uid_of(obj), commit_of(obj), states)
    for key, digests in result.states.items():
        planned = found.setdefault(key, PlannedObject(*key.kind, *key[1:], "", "", [ABSENT]))
        first = digests[0] == planned.states[0]
        planned.states += digests[first:]
        planned.settled = max(result.settled.get(key, 0) - first, 0)
    for planned in found.values():
        if planned.key.kind == FILES and len(planned.states) > 1:
            revision = found.get(ObjectName(REVISION, planned.namespace, planned.name))
            if revision is not None:
                revision.commit = ""
    return [found[key] for key in sorted(found) if found[key].states != [ABSENT]]


def _shown(document: Document) -> Document:
    """Return what a screen shows, without the objects in full."""
    actions = [{k: v for k, v in action.items() if k != "object"} for action in document["actions"]]
    shown = {key: document[key] for key in DOCUMENT_KEYS if key in document}
    return {**shown, "actions": actions, "conditions": {}, "packages": {}, "objects": []}


def key_of_object(obj: Object) -> ObjectName:
    meta = obj["metadata"]
    return ObjectName(kind_of(obj), meta.get("namespace", ""), meta["name"])


def uid_of(obj: Object) -> str:
    """Return the uid of an object; files have none of their own."""
    return "" if kind_of(obj) == FILES else str(obj["metadata"].get("uid", ""))


def commit_of(obj: Object) -> str:
    """Return the commit of a package revision, "" for any other object."""
    if kind_of(obj) != REVISION:
        return ""
    lock = (obj.get("status") or {}).get("selfLock") or {}
    return str((lock.get("git") or {}).get("commit") or "")


def name_of_key(key: ObjectName) -> str:
    """Return an object's kind and name, for messages."""
    return f"{key.kind.kind} {key.namespace}/{key.name}" if key.namespace else f"{key.kind.kind} {key.name}"


# ------------------------------------------------------------ reading and writing


def text_of(plan: PlanFile) -> bytes:
    """Return the content of a plan's file, with its seal."""
    unsealed = msgspec.structs.replace(plan, seal="")
    return sealed(b"\n".join(_lines(msgspec.json.encode(unsealed, order="deterministic"))))


def stated(plan: PlanFile) -> PlanFile:
    """Return a plan with the statement of it that is signed."""
    bare = msgspec.structs.replace(plan, statement="", seal="")
    found = {planned.key: planned for planned in plan.objects}
    sets = {}
    for given in plan.manifests:
        if kind_of(given.object) != SET:
            continue
        meta = given.object["metadata"]
        key = ObjectName(SET, meta.get("namespace") or "default", meta["name"])
        if (planned := found.get(key)) is None or not planned.uid:
            continue  # it has no uid yet: it waits for a second plan
        sets[f"{key.namespace}/{key.name}"] = StatedSet(
            uid=planned.uid,
            generation=given.generation,
            spec=spec_digest(msgspec.convert(given.object["spec"], PackageVariantSetSpec)),
            requires=str((meta.get("annotations") or {}).get(REQUIRE_PLAN, "")),
        )
    if not sets:
        return bare
    digest = hashlib.sha256(msgspec.json.encode(bare, order="deterministic")).hexdigest()
    return msgspec.structs.replace(bare, statement=statement_text(Statement(plan=digest, sets=sets)))


def _lines(document: bytes) -> Iterator[bytes]:
    """Yield a line for each field, so that the seal is a line of its own."""
    fields = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    yield b"{"
    names = list(fields)
    for name in names:
        comma = b"," if name != names[-1] else b""
        yield b'"%s": %s%s' % (name.encode(), bytes(fields[name]), comma)
    yield b"}\n"


def write_plan(path: Path, plan: PlanFile) -> PlanFile:
    """Write a plan atomically, readable by its owner only; return it with its seal. Raises PermanentError."""
    content = text_of(stated(plan))
    try:
        write_private(path, content)
    except OSError as exc:
        raise PermanentError(f"{path} cannot be written: {exc.strerror}", reason="Output") from exc
    return _decoder.decode(content)


def read_plan(path: Path) -> PlanFile:
    """Read a plan. Raises UsageError: it is none, damaged, edited, or of another version."""
    with open_plain(path) as stream:
        content = stream.read(FILE_BYTES_MAX + 1)
    again = "make it again: pvbus plan ... --out FILE"
    try:
        head = _head.decode(content)
    except msgspec.MsgspecError as exc:
        if f'"apiVersion": "{API}"'.encode() in content[:200]:
            raise UsageError(f"{path}: this plan is damaged or only half written ({exc}): {again}") from exc
        raise UsageError(f"{path}: is no plan; {MANIFESTS}") from exc
    if (head.api_version, head.kind) != (API, KIND):
        raise UsageError(f"{path}: is no plan; {MANIFESTS}")
    if head.format != FORMAT:
        raise UsageError(f"{path}: has format {head.format}, and this pvbus reads {FORMAT}: {again}")
    try:
        check_seal(content)
        plan = _decoder.decode(content)
        if not plan.seal:
            raise ValueError("its seal is missing")
    except (ValueError, msgspec.MsgspecError) as exc:
        raise UsageError(f"{path}: this plan was changed after it was made ({exc}): {again}") from exc
    return plan


MANIFESTS = "pvbus plan -f MANIFESTS --out FILE makes one, and kubectl apply -f FILE writes manifests at once"
