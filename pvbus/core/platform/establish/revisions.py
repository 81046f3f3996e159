"""The revisions' objects of Crossplane's family: made, numbered, switched, and removed.

A revision's object is made inactive. It is switched on when it controls all of its objects, after the former
one was switched off, so that never two are active. desiredState and the note of what establish wrote are in
one request; what a user changes meanwhile stays until the lock has taken it into account.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any, Literal

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Create, Delete, Effect, Get, KindRef, List, Update
from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey, okey
from pvbus.core.kernel.objects import annotation
from pvbus.core.kernel.packagerows import DIGEST, PARENT_LABEL, SCOPE, WROTE, LockedRevision, ScopedKey
from pvbus.core.platform.establish.families import CROSSPLANE, kind_of_key
from pvbus.core.platform.establish.manifests import described
from pvbus.core.platform.establish.objects import Object, contains, group_of
from pvbus.core.platform.establish.owners import Owner, controller_of, owns, references_of, taken

GROUP = CROSSPLANE.group
State = Literal["Active", "Inactive"]

_COPIED = ("ignoreCrossplaneConstraints", "skipDependencyResolution", "commonLabels", "runtimeConfigRef")
"""What a revision has as its install has it. Source: Crossplane, apis/pkg/v1, PackageRevisionSpec."""


def kind_of_revisions(install: Install) -> KindRef:
    kind = kind_of_key(ObjectKey.parse(install.okey))
    return kind._replace(kind=f"{kind.kind}Revision")


def stray_of(revision: Object) -> str:
    """Return the key of the install that owns a revision without its label, "" for any other revision."""
    labels = (revision.get("metadata") or {}).get("labels") or {}
    return "" if labels.get(PARENT_LABEL) else parent_of(revision)


def parent_of(revision: Object) -> str:
    """Return the key of the install that controls a revision, "" without one."""
    owner = controller_of(revision) or {}
    if group_of(str(owner.get("apiVersion", ""))) != GROUP or owner.get("kind") not in CROSSPLANE.versions:
        return ""
    return str(ScopedKey(SCOPE, okey(GROUP, str(owner["kind"]), "", str(owner.get("name")))))


def list_revisions(
    install: Install, parent: Owner, strays: Iterable[str] = ()
) -> Generator[Effect, Any, dict[str, Object]]:
    """Return the objects of an install's revisions by name: those with its label and its owner reference.

    strays: names of revisions that may have lost the label by hand.
    """
    name = parent.name if len(parent.name) <= 63 else ""
    selector = f"{PARENT_LABEL}={name}" if name else ""
    found: list[Object] = yield List(kind_of_revisions(install), "", selector)
    owned = {each["metadata"]["name"]: each for each in found if owns(parent, each)}
    for stray in strays:
        live: Object | None = yield Get(kind_of_revisions(install), "", stray)
        if live is not None and owns(parent, live):
            owned[stray] = live
    return owned


def ensure_revision(
    install: Install, obj: Object, locked: LockedRevision, live: Object | None
) -> Generator[Effect, Any, Object]:
    """Return the object of a revision; make it, or bring it up to date but for its desiredState.

    Raises PermanentError if an object of this name belongs to somebody else.
    """
    kind, parent = kind_of_revisions(install), Owner.of(obj)
    if live is None:
        live = yield Get(kind, "", locked.name)
    if live is None:
        created: Object = yield Create(kind, _new(kind, parent, install, obj, locked))
        return created
    if not owns(parent, live) and references_of(live):
        raise PermanentError(
            f"{kind.kind} {locked.name} belongs to {references_of(live)[0].get('name')}",
            reason="ObjectConflict",
        )
    wanted = _new(kind, parent, install, obj, locked)
    meta = dict(live["metadata"])
    meta["labels"] = {**(meta.get("labels") or {}), **wanted["metadata"]["labels"]}
    meta["annotations"] = {
        **(meta.get("annotations") or {}),
        DIGEST: locked.digest,
    }
    meta["ownerReferences"] = taken(references_of(live), parent)
    fields = {name: value for name, value in wanted["spec"].items() if name != "desiredState"}
    if meta == live["metadata"] and contains(live.get("spec"), fields):
        return live
    stored: Object = yield Update(
        kind, {**live, "metadata": meta, "spec": {**(live.get("spec") or {}), **fields}}
    )
    return stored


def _new(kind: KindRef, parent: Owner, install: Install, obj: Object, locked: LockedRevision) -> Object:
    given = obj.get("spec") or {}
    tag = "" if not locked.version or locked.version.startswith("sha256:") else f":{locked.version}"
    image = f"{locked.source or install.package}{tag}"
    spec: dict[str, Any] = {
        "desiredState": "Inactive",
        "image": f"{image}@{locked.digest}" if locked.digest else image,
        "revision": locked.revision,
        **{name: given[name] for name in _COPIED if given.get(name) not in (None, "", [], {})},
    }
    if install.secrets:
        spec["packagePullSecrets"] = [{"name": each.rpartition("/")[2]} for each in install.secrets]
    if install.pull_policy != "IfNotPresent":
        spec["packagePullPolicy"] = install.pull_policy
    meta = {
        "name": locked.name,
        "labels": {PARENT_LABEL: parent.name} if len(parent.name) <= 63 else {},
        "annotations": {DIGEST: locked.digest, WROTE: "Inactive"},
        "ownerReferences": [parent.reference(is_controller=True)],
    }
    return {"apiVersion": f"{kind.group}/{kind.version}", "kind": kind.kind, "metadata": meta, "spec": spec}


def desired_state(revision: Object) -> str:
    return str((revision.get("spec") or {}).get("desiredState") or "Inactive")


def is_users(revision: Object, locked: LockedRevision | None) -> bool:
    """Return whether a user has changed the desiredState, and the lock has not taken that into account.

    Without the note of what establish wrote the lock cannot tell that, and takes nothing for a user's.
    """
    generation, wrote = int(revision["metadata"].get("generation") or 0), annotation(revision, WROTE)
    is_changed = bool(wrote) and wrote != desired_state(revision)
    return is_changed and (locked is None or generation > locked.asked)


def switch(
    kind: KindRef,
    revision: Object,
    locked: LockedRevision | None,
    state: State,
    manifest: Mapping[str, Any] = {},
    lists: Mapping[str, Any] = {},
) -> Generator[Effect, Any, Object]:
    """Give a revision this desiredState unless a user has just given it another one; return its object.

    manifest: of its package, whose labels and annotations it gets in the same write
    lists: fields of its spec that come from its package
    """
    is_same = desired_state(revision) == state
    meta = described(revision["metadata"], manifest)
    is_shown = annotation(revision, WROTE) == state and meta == revision["metadata"]
    is_shown &= contains(revision.get("spec"), lists)
    if (is_same and is_shown) or (not is_same and is_users(revision, locked)):
        return revision
    annotations: Mapping[str, Any] = {**(meta.get("annotations") or {}), WROTE: state}
    changed = {
        **revision,
        "metadata": {**meta, "annotations": annotations},
        "spec": {**(revision.get("spec") or {}), **lists, "desiredState": state},
    }
    stored: Object = yield Update(kind, changed)
    return stored


def remove(kind: KindRef, revision: Object) -> Generator[Effect, Any, None]:
    """Delete a revision. The API server deletes the objects that only it owns."""
    meta = revision["metadata"]
    if not meta.get("deletionTimestamp"):
        yield Delete(kind, "", meta["name"], meta.get("uid", ""), meta.get("resourceVersion", ""))
