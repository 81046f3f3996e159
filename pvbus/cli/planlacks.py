"""What a plan is not given and cannot do without, and how to get it."""

from collections.abc import Sequence

from pvbus.cli.live import Export
from pvbus.core.keys import CONFIRM_DELETION
from pvbus.ports.cluster import Kind, Object
from pvbus.runtime.preview.run import Preview

USERS = ("PackageVariant", "PackageVariantSet")


def unpreviewable(changes: Sequence[Object]) -> list[str]:
    """Say what of the changes a plan cannot follow."""
    return [
        f"PackageVariantSet {obj['metadata'].get('namespace', 'default')}/{obj['metadata']['name']}: a "
        "confirmation cannot be previewed, as its token belongs to the live system; the removals that it "
        "confirms are shown as held"
        for obj in changes
        if obj["kind"] == "PackageVariantSet"
        and CONFIRM_DELETION in (obj["metadata"].get("annotations") or {})
    ]


def missing_kinds(export: Export, result: Preview) -> list[Kind]:
    """Return the kinds that the services asked for and that were not read."""
    return sorted(result.unserved - set(export.absent))


def missing_files(export: Export, result: Preview) -> list[tuple[str, str]]:
    """Return the PackageRevisions whose files the services asked for and that were not read."""
    return sorted(name for name in result.without_files if "/".join(name) not in export.without_files)


def export_lacks(export: Export, result: Preview) -> list[str]:
    """Say what an export does not hold that the plan needs."""
    again = "take another one with the changes: pvbus export -f CHANGES"
    return [
        f"the export says nothing about {kind.kind} ({kind.group or 'core'}), but the changes need it: "
        f"{again}"
        for kind in missing_kinds(export, result)
    ] + [
        f"the export has no files of PackageRevision {namespace}/{name}: {again}"
        for namespace, name in missing_files(export, result)
    ]


def files_lack(result: Preview) -> list[str]:
    """Name the upstream revisions that the files do not hold: without them nothing follows."""
    there: dict[tuple[str, str, str], list[Object]] = {}
    for obj in result.objects:
        if obj["kind"] == "PackageRevision":
            spec = obj.get("spec") or {}
            package = (obj["metadata"]["namespace"], spec.get("repository", ""), spec.get("packageName", ""))
            there.setdefault(package, []).append(spec)
    found: dict[str, list[str]] = {}
    for obj in result.objects:
        upstream = (obj.get("spec") or {}).get("upstream") if obj["kind"] in USERS else None
        if not upstream or not upstream.get("repo") or not upstream.get("package"):
            continue
        package = (obj["metadata"]["namespace"], upstream["repo"], upstream["package"])
        if not any(_is_upstream(spec, upstream) for spec in there.get(package, ())):
            found.setdefault(_wanted(upstream), []).append(
                f"{obj['kind']} {obj['metadata']['namespace']}/{obj['metadata']['name']}"
            )
    hint = "add it to the files, or export it from the live system: pvbus export -o live.json"
    lines = [
        f"{wanted} is not in the files; {users[0]}{_others(users)} follows it: {hint}"
        for wanted, users in found.items()
    ]
    lines += [
        f"the PackageRevisionResources of PackageRevision {namespace}/{name} are not in the files: {hint}"
        for namespace, name in sorted(result.without_files)
    ]
    return lines


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
