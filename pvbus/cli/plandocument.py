"""The document of `pvbus plan`: every write with its differences and its reason, and all problems.

It also lists inputs that the plan lacks, and how to get them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pvbus.adapters.memory.objects import source_of, split_api_version
from pvbus.adapters.memory.writes import Write
from pvbus.cli.differences import differences, unified
from pvbus.cli.live import Export
from pvbus.cli.plangit import Package, namespace_of
from pvbus.cli.plangroups import belongings, variant_of
from pvbus.controlplane.packages.layout import CAUSE
from pvbus.core.api.variants import CONFIG_GROUP, PORCH_GROUP
from pvbus.core.kernel.keys import (
    CONFIRM_DELETION,
    EDITED_BY,
    FINALIZER,
    KEPT_FOR,
    RETURNED,
    SET_UID_LABEL,
    ObjectKey,
)
from pvbus.core.kernel.objectrows import SET, VARIANT
from pvbus.core.kernel.objects import annotations_of, owner_name
from pvbus.core.promotion.protocol.proposals import UPSTREAM_CHANGED, conflicts_of
from pvbus.ports.cluster import Kind, Object
from pvbus.runtime.preview.run import Preview, PreviewChild

Document = dict[str, Any]
UNSHOWN = ("resourceVersion", "generation", "uid", "creationTimestamp", "managedFields")
_TOKEN = re.compile(rf", or kubectl annotate [^;]* {re.escape(CONFIRM_DELETION)}=\S+ --overwrite")
"""The second way to confirm that a set's condition names, beside `pvbus confirm`."""
TROUBLE = (("Stalled", "True"), ("DeletionHeld", "True"), ("Ready", "False"))


def document_of(result: Preview, *, with_diffs: bool = False, is_whole: bool = True) -> Document:
    """Return the document of `-o json`; conformance defines the keys that every plan has.

    is_whole: whether it has objects, packages and all conditions; a screen shows none of them, and those of a
        fleet take more memory than all the rest
    """
    children = {f"{child.skey.partition('/')[0]}/{child.name}": child for child in result.children}
    variants, owners = belongings(result)
    conditions, packages, objects, conflicts = {}, {}, [], {}
    for obj in result.objects:
        key, kind = name_of(obj), obj["kind"]
        if kind == "PackageRevision" and (left := conflicts_of(obj)):
            conflicts[key] = msgspec.to_builtins(left)
        shown = without_token(obj) if kind == "PackageVariantSet" else obj
        if is_whole:
            objects.append(shown)
        if kind == "PackageRevisionResources":
            if is_whole:
                packages[key.partition("/")[2]] = _files(obj)
        elif (found := _conditions(shown)) and (is_whole or _has_trouble(kind, found)):
            conditions[key] = found
    document: Document = {
        "actions": [
            _action(
                write,
                children,
                variant_of(write, owners),
                is_pending=number < result.pending,
                has_object=is_whole,
            )
            for number, write in enumerate(_changes(result))
        ],
        "variants": variants,
        "objects": objects,
        "conditions": conditions,
        "packages": packages,
        "held": [_held(child) for child in result.children if child.state == "held"],
    }
    _add_conflicts(document, conflicts)
    if result.frozen:
        document["frozen"] = dict(result.frozen)
    document["troubles"] = troubles(document)
    document["notes"] = [
        *_frozen_notes(result.frozen),
        *(
            f"PackageRevision {name} is an upgrade: the package server merges three ways, and the plan shows "
            "the files of the local revision"
            for name in sorted(result.unmerged)
        ),
    ]
    if result.defects:
        document["errors"] = list(result.defects)
    if with_diffs:
        document["diffs"] = package_diffs(_changes(result), packages)
    return document


def _changes(result: Preview) -> Iterator[Write]:
    return (write for write in result.writes if write.subresource != "status")


def _has_trouble(kind: str, conditions: Sequence[Object]) -> bool:
    return kind != "PackageRevision" and any((c["type"], c["status"]) in TROUBLE for c in conditions)


def _frozen_notes(frozen: Mapping[str, str]) -> Iterator[str]:
    """Yield a note for each reason for which proposals stay, with how many they are."""
    for why, count in sorted(Counter(frozen.values()).items()):
        example = min(name for name, each in frozen.items() if each == why)
        yield f"{count} proposed, such as that of {example}: {why}"


def _add_conflicts(document: Document, conflicts: dict[str, Any]) -> None:
    """Add to the first action on a package revision the conflicts that its upgrade leaves for a person."""
    for action in document["actions"]:
        if left := conflicts.pop(f"{action['kind']}/{action['namespace']}/{action['name']}", None):
            action["conflicts"] = left


def without_token(obj: Object) -> Object:
    """Return a set whose conditions do not offer the token of the preview: it confirms nothing anywhere."""
    conditions = [
        {**each, "message": _TOKEN.sub("", each["message"])} if isinstance(each.get("message"), str) else each
        for each in _conditions(obj)
    ]
    if conditions == _conditions(obj):
        return obj
    return {**obj, "status": {**obj["status"], "conditions": conditions}}


def _conditions(obj: Object) -> list[Object]:
    """Return the valid conditions of an object: a file may hold any value there."""
    status = obj.get("status")
    found = status.get("conditions") if isinstance(status, dict) else None
    if not isinstance(found, list):
        return []
    return [one for one in found if isinstance(one, dict) and "type" in one and "status" in one]


def name_of(obj: Object) -> str:
    """Return `Kind/namespace/name`."""
    meta = obj["metadata"]
    return f"{obj['kind']}/{meta.get('namespace', '')}/{meta['name']}"


def _action(
    write: Write,
    children: Mapping[str, PreviewChild],
    variant: str,
    *,
    is_pending: bool,
    has_object: bool,
) -> Document:
    action: Document = {
        "verb": write.verb,
        "kind": write.kind,
        "namespace": write.namespace,
        "name": write.name,
    }
    if has_object and write.object is not None:
        action["object"] = write.object
    if write.verb == "update" and write.before is not None and write.object is not None:
        action["differences"] = differences(_compared(write.before), _compared(write.object))
    if write.verb == "updateResources" and write.before is not None and write.object is not None:
        before, after = (_files(obj) for obj in (write.before, write.object))
        action["files"] = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    if variant:
        action["variant"] = variant
    if write.by:
        action["by"] = write.by
    if is_pending:
        action["pending"] = True
    action["reason"] = reason_of(write, children.get(f"{write.namespace}/{write.name}"))
    return action


def _held(child: PreviewChild) -> Document:
    namespace, _, set_name = child.skey.partition("/")
    return {"kind": "PackageVariant", "namespace": namespace, "name": child.name, "set": set_name}


# ------------------------------------------------------------ reasons


def reason_of(write: Write, child: PreviewChild | None) -> str:
    """Return the reason for a write, in a sentence."""
    if write.by:
        owners = (write.before or {})["metadata"].get("ownerReferences") or ()
        names = ", ".join(f"{owner.get('kind')} {owner.get('name')}" for owner in owners)
        return f"its owner is deleted: {names}"
    if write.kind == "PackageVariant":
        return _variant_reason(write, child)
    if write.verb == "updateResources":
        return _files_reason(write)
    return _revision_reason(write)


def _files_reason(write: Write) -> str:
    """Return the reason for new files.

    For an upgrade of an open draft, inject notes the reason on the revision.
    """
    said = ((write.object or {}).get("metadata", {}).get("annotations") or {}).get(CAUSE, "")
    cause = str(said).partition(": ")[2].partition("; ")[0].partition(", ")[0]
    if cause.startswith("upgrade to "):
        return f"{cause} of an open draft"
    return "the package context, functions and injections of its PackageVariant"


def _variant_reason(write: Write, child: PreviewChild | None) -> str:
    set_name = _set_of(write.object or write.before or {})
    if write.verb == "delete":
        return f"no target of PackageVariantSet {set_name} wants it any more" if set_name else "deleted"
    if write.verb == "create":
        where = f"PackageVariantSet {set_name}"
        if child is not None and child.okey:
            key = ObjectKey.parse(child.okey)
            return f"{key.kind} {key.namespace}/{key.name} is a target of {where}"
        return f"a target of {where}"
    before, after = ((obj or {}).get("metadata", {}) for obj in (write.before, write.object))
    gone, here = (FINALIZER in (meta.get("finalizers") or ()) for meta in (before, after))
    if gone != here:
        return "the finalizer that guards its packages" if here else "its packages are gone or released"
    return f"PackageVariantSet {set_name} renders it so" if set_name else "its own packages"


def _set_of(obj: Object) -> str:
    labels = (obj.get("metadata") or {}).get("labels") or {}
    return owner_name(obj, SET.kind) or str(labels.get(SET_UID_LABEL, ""))


def _revision_reason(write: Write) -> str:
    before_owner, after_owner = (owner_name(obj or {}, VARIANT.kind) for obj in (write.before, write.object))
    owner = after_owner or before_owner
    of = f"PackageVariant {owner}" if owner else "its PackageVariant"
    if write.verb == "delete":
        return f"a draft that {of} has no more use for"
    spec = (write.object or {}).get("spec") or {}
    if write.verb == "create":
        task = _task(spec)
        source = source_of(task)
        match task.get("type"):
            case "clone":
                return f"a new package of {of}, cloned from {source}"
            case "upgrade":
                upgrade = task["upgrade"]
                old, new = (upgrade[ref].get("name") for ref in ("oldUpstreamRef", "newUpstreamRef"))
                return f"upgrade draft of {of} from {old} to {new}"
        return f"{of} changes the published {source}"
    before = (write.before or {}).get("spec") or {}
    if before.get("lifecycle") != spec.get("lifecycle"):
        if why := annotations_of(write.object or {}).get(RETURNED, ""):
            return f"promotion takes the proposal of {of} back, and proposes it again when it is ready: {why}"
        return f"{of}: {before.get('lifecycle')} becomes {spec.get('lifecycle')}"
    mark_before, mark = (annotations_of(obj or {}).get(KEPT_FOR, "") for obj in (write.before, write.object))
    if mark and not mark_before:
        editors = annotations_of(write.object or {}).get(EDITED_BY, "somebody")
        return f"kept without an owner, as {editors} edited it: {of} goes"
    if before_owner != after_owner:
        return f"adopted by {of}" if after_owner else f"released by {of}"
    return of


def _task(spec: Object) -> Object:
    tasks: Sequence[Object] = spec.get("tasks") or ()
    return next(iter(tasks), {})


# ------------------------------------------------------------ problems


def troubles(document: Document) -> list[str]:
    """Return errors and conditions such as Stalled, as messages: `--check` fails for them."""
    found = list(document.get("errors", ()))
    frozen = {f"{VARIANT.kind}/{name}" for name in document.get("frozen", ())}
    for key, conditions in document["conditions"].items():
        if key.startswith("PackageRevision/"):
            continue
        for condition in conditions:
            is_kept = key in frozen and condition.get("reason") == UPSTREAM_CHANGED
            if (condition["type"], condition["status"]) in TROUBLE and not is_kept:
                text = condition.get("message") or condition.get("reason", "")
                found.append(f"{key}: {condition['type']}={condition['status']}: {text}")
    return found


# ------------------------------------------------------------ differences


def _compared(obj: Object) -> Object:
    """Return the part of an object to compare: no status, no server metadata."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in UNSHOWN}
    rest = {
        key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata", "status")
    }
    return {**rest, "metadata": metadata}


def _files(obj: Object | None) -> Mapping[str, str]:
    spec = (obj or {}).get("spec")
    files = spec.get("resources") if isinstance(spec, dict) else None
    return files if isinstance(files, dict) else {}  # a refused object may be anything


def package_diffs(writes: Iterable[Write], packages: Mapping[str, Mapping[str, str]]) -> Document:
    """Return, by `namespace/name` of each package revision that is written, the diff of its files.

    A new draft is compared with the source of its task, an existing one with its previous files.
    """
    before: dict[str, Mapping[str, str]] = {}
    for write in writes:
        key = f"{write.namespace}/{write.name}"
        if write.kind == "PackageRevision" and write.verb == "create":
            task = _task((write.object or {})["spec"])
            before.setdefault(key, packages.get(f"{write.namespace}/{source_of(task)}", {}))
        elif write.verb == "updateResources":
            before.setdefault(key, _files(write.before))
    return {key: unified(files, packages[key]) for key, files in sorted(before.items()) if key in packages}


USERS = ("PackageVariant", "PackageVariantSet")


def unpreviewable(changes: Sequence[Object]) -> list[str]:
    """Return a note for each change that a plan cannot preview."""
    return [
        f"PackageVariantSet {obj['metadata'].get('namespace', 'default')}/{obj['metadata']['name']}: a "
        "confirmation cannot be previewed, as its token belongs to the live system; the removals that it "
        "confirms are shown as held"
        for obj in changes
        if obj["kind"] == "PackageVariantSet" and CONFIRM_DELETION in annotations_of(obj)
    ]


def missing_kinds(export: Export, result: Preview) -> list[Kind]:
    """Return the kinds that the services requested and that were not read."""
    return sorted(result.unserved - set(export.absent))


def missing_files(export: Export, result: Preview) -> list[tuple[str, str]]:
    """Return the PackageRevisions whose files the services requested and that were not read."""
    return sorted(name for name in result.without_files if "/".join(name) not in export.without_files)


def export_lacks(export: Export, result: Preview) -> list[str]:
    """Return an error for each kind or package that the plan needs and the export lacks."""
    again = "take another one with the changes: pvbus export -f CHANGES"
    return [
        f"the export says nothing about {kind.kind} ({kind.group or 'core'}), but the changes need it: "
        f"{again}"
        for kind in missing_kinds(export, result)
    ] + [
        f"the export has no files of PackageRevision {namespace}/{name}: {again}"
        for namespace, name in missing_files(export, result)
    ]


def unread(export: Export, changes: Sequence[Object]) -> list[str]:
    """Return an error for each namespace of the changes that the export does not have: there, whatever a
    change replaces would be planned as new."""
    namespaces = dict.fromkeys(filter(None, map(_namespace, changes))) if export.namespace else {}
    return [
        f"the changes have objects in namespace {namespace}, and the export has only {export.namespace}: add "
        f"an export of it with -f (pvbus export -n {namespace}), or take one without -n"
        for namespace in namespaces
        if namespace not in export.namespace.split(",")
    ]


def _namespace(obj: Object) -> str:
    """Return the namespace of an object that names one, or that has one for certain."""
    group, _ = split_api_version(obj["apiVersion"])
    return str(
        obj["metadata"].get("namespace") or ("default" if group in (CONFIG_GROUP, PORCH_GROUP) else "")
    )


def lacking_upstreams(objects: Sequence[Object]) -> dict[Package, list[tuple[str, str]]]:
    """Return the packages of which sets and variants follow a revision that is not among the objects.

    The values are the revision that is wanted, in words, and `Kind namespace/name` of who follows it.
    """
    there: dict[Package, list[Object]] = {}
    for obj in objects:
        if obj["kind"] == "PackageRevision":
            spec = obj.get("spec") or {}
            package = (namespace_of(obj), spec.get("repository", ""), spec.get("packageName", ""))
            there.setdefault(package, []).append(spec)
    found: dict[Package, list[tuple[str, str]]] = {}
    for obj in objects:
        upstream = (obj.get("spec") or {}).get("upstream") if obj["kind"] in USERS else None
        if not upstream or not upstream.get("repo") or not upstream.get("package"):
            continue
        package = (namespace_of(obj), upstream["repo"], upstream["package"])
        if not any(_is_upstream(spec, upstream) for spec in there.get(package, ())):
            user = f"{obj['kind']} {namespace_of(obj)}/{obj['metadata']['name']}"
            found.setdefault(package, []).append((_wanted(upstream), user))
    return found


def files_lack(result: Preview, git: Mapping[tuple[str, str], str]) -> list[str]:
    """Return an error for each upstream revision that the files lack: without it there are no variants.

    git: the Repositories whose git was read, by namespace and name, with why it cannot be read, else ""
    """
    repositories = {
        (namespace_of(obj), obj["metadata"]["name"]) for obj in result.objects if obj["kind"] == "Repository"
    }
    lines = []
    for (namespace, repository, _), pairs in lacking_upstreams(result.objects).items():
        key, name = (namespace, repository), f"Repository {namespace}/{repository}"
        found: dict[str, list[str]] = {}
        for wanted, user in pairs:
            found.setdefault(wanted, []).append(user)
        where, hint = "is not in the files", HINT
        if problem := git.get(key):
            where = f"is not in the files, and the git of {name} cannot be read ({problem})"
        elif key in git:
            where, hint = (
                f"is neither in the files nor in the git of {name}",
                "publish it, or correct its name",
            )
        elif key not in repositories:
            hint = f"add {name} to them, whose git is then read, and its packages with it; or {HINT}"
        lines += [
            f"{wanted} {where}; {users[0]}{_others(users)} follows it: {hint}"
            for wanted, users in found.items()
        ]
    lines += [
        f"the PackageRevisionResources of PackageRevision {namespace}/{name} are not in the files: {HINT}"
        for namespace, name in sorted(result.without_files)
    ]
    return lines


HINT = "add it to the files, or export it from the live system: pvbus export -o live.json"


def _wanted(upstream: Object) -> str:
    parts = [f"package {upstream['package']} in repository {upstream['repo']}"]
    if (upstream.get("revision") or 0) > 0:
        parts.append(f"revision {upstream['revision']}")
    if upstream.get("workspaceName"):
        parts.append(f"workspace {upstream['workspaceName']}")
    return f"the PackageRevision of {', '.join(parts)}"


def _is_upstream(spec: Object, upstream: Object) -> bool:
    workspace, revision = upstream.get("workspaceName"), upstream.get("revision") or 0
    if not workspace and revision <= 0:
        workspace = "main"
    return (not workspace or spec.get("workspaceName") == workspace) and (
        revision <= 0 or spec.get("revision") == revision
    )


def _others(users: Sequence[str]) -> str:
    return f" (and {len(users) - 1} more)" if len(users) > 1 else ""
