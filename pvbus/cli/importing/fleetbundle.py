"""Imports a GitRepo or a Bundle of Rancher's Fleet: its clusters as targets of a set.

Of several targets that match a cluster Fleet takes the first. The targets of a set must not overlap, so each
excludes what those before it select.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pvbus.cli.importing.converted import (
    Converted,
    NoCounterpartError,
    Note,
    Wanted,
    fields,
    items,
    namespace_pipeline,
    repository_of,
    revision_of,
    text_of,
    variant_set,
)
from pvbus.cli.importing.selections import Selection, conjunction, disjoint, without
from pvbus.cli.importing.texts import quoted
from pvbus.core.errors import UsageError

API = "fleet.cattle.io/v1alpha1"
SELECTING = ("name", "clusterSelector", "clusterName", "clusterGroup", "clusterGroupSelector")
CARRIED = (*SELECTING, "doNotDeploy", "namespace", "defaultNamespace")
DEPLOYING = ("correctDrift", "deleteNamespace", "forceSyncGeneration", "keepResources", "serviceAccount")
GROUPS = "has no counterpart unless the ClusterGroup is in the same file: put it there, or select by labels"
ORDER = "write a RolloutPolicy: its order, waves and budgets say in which order variants are published"
REMAINING = {
    "dependsOn": "has no counterpart: pvbus packages, or a gate of the package, can wait for another one",
    "paused": "hold the set by `pvbus hold` before you apply it",
    "rolloutStrategy": ORDER,
    "helm": "has no counterpart: render the chart into the package; what differs goes to its packageContext",
    "kustomize": "has no counterpart: put it into the package or its pipeline",
    "yaml": "has no counterpart: put it into the package or its pipeline",
}
"""What to do about fields of a Bundle or of one of its targets."""

Groups = Mapping[str, Mapping[str, Any]]
"""The selectors of ClusterGroups by name."""


def import_bundle(source: Mapping[str, Any], groups: Groups, wanted: Wanted) -> Converted:
    """Make sets of a GitRepo, one for each path, or of a Bundle. Raises UsageError if none can be made."""
    spec = fields(source.get("spec"), "spec")
    notes: list[Note] = []
    selections = list(_selections(spec, groups, notes))
    if not selections:
        raise UsageError("\n".join(["no target can be imported", *map(str, notes)]))
    made = []
    for name, upstream in _upstreams(source, spec, wanted, notes):
        targets = [_target(chosen, values, upstream, spec, wanted) for chosen, values in selections]
        made.append(variant_set(source, name, upstream, targets))
    notes += _remaining(spec, "spec")
    return Converted(tuple(made), tuple(dict.fromkeys(notes)))


def _upstreams(
    source: Mapping[str, Any], spec: Mapping[str, Any], wanted: Wanted, notes: list[Note]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a set's name and its upstream for each package. Raises UsageError."""
    metadata = fields(source.get("metadata"), "metadata")
    name = text_of(metadata.get("name"), "metadata.name")
    repository = repository_of(_address(spec, metadata), "spec.repo", wanted, notes)
    reference = text_of(spec.get("revision") or spec.get("branch"), "spec.revision")
    revision = revision_of(reference, "spec.revision", wanted)
    packages = [wanted.upstream_package] if wanted.upstream_package else list(_packages(spec, notes))
    if not packages:
        raise UsageError("spec.paths: names no package: name it by --upstream-package")
    for package in packages:
        of_several = f"{name}-{package.replace('/', '-')}"
        upstream = {"repo": repository, "package": package, "revision": revision}
        yield name if len(packages) == 1 else of_several, upstream


def _address(spec: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """Return the address of a GitRepo's repository; of a Bundle the name of the GitRepo that made it."""
    labels = fields(metadata.get("labels"), "metadata.labels")
    return text_of(spec.get("repo") or labels.get("fleet.cattle.io/repo-name"), "spec.repo")


def _packages(spec: Mapping[str, Any], notes: list[Note]) -> Iterator[str]:
    for number, value in enumerate(items(spec.get("paths"), "spec.paths")):
        path = text_of(value, f"spec.paths[{number}]").strip("./")
        if not path or any(sign in path for sign in "*?["):
            notes.append(
                Note(f"spec.paths[{number}]", "left out: names no single package: write its folders out")
            )
        else:
            yield path


def _selections(
    spec: Mapping[str, Any], groups: Groups, notes: list[Note]
) -> Iterator[tuple[Selection, Mapping[str, Any]]]:
    """Yield the clusters of each target, none twice, with the target. Raises UsageError."""
    before: list[Selection] = []
    allowed = list(_restrictions(spec, groups))
    for number, value in enumerate(items(spec.get("targets"), "spec.targets")):
        field = f"spec.targets[{number}]"
        target = fields(value, field)
        try:
            selection = _selection(target, field, groups)
            pieces = without(selection, before)
        except NoCounterpartError as exc:
            notes.append(Note(field, f"left out, and all targets after it, as it comes first: {exc}"))
            return
        before.append(selection)
        if target.get("doNotDeploy") is True:
            continue
        notes += _remaining({key: target[key] for key in target if key not in CARRIED}, field, is_all=True)
        for piece in pieces:
            yield from ((both, target) for limit in allowed if (both := conjunction(piece, limit)))


def _restrictions(spec: Mapping[str, Any], groups: Groups) -> Iterable[Selection]:
    """Return what the targets are restricted to, without overlaps. Raises UsageError."""
    field = "spec.targetRestrictions"
    restrictions = items(spec.get("targetRestrictions"), field)
    if not restrictions:
        return [Selection()]
    try:
        return disjoint(
            [
                _selection(fields(value, f"{field}[{number}]"), f"{field}[{number}]", groups)
                for number, value in enumerate(restrictions)
            ]
        )
    except NoCounterpartError as exc:
        raise UsageError(f"{field}: {exc}") from exc


def _selection(target: Mapping[str, Any], field: str, groups: Groups) -> Selection:
    """Return the clusters of a target: all that it gives must hold together, as in Fleet."""
    selection = Selection(name=text_of(target.get("clusterName"), f"{field}.clusterName"))
    if "clusterGroupSelector" in target:
        raise NoCounterpartError(f"clusterGroupSelector {GROUPS}")
    selectors = [fields(target.get("clusterSelector"), f"{field}.clusterSelector")]
    if group := text_of(target.get("clusterGroup"), f"{field}.clusterGroup"):
        if group not in groups:
            raise NoCounterpartError(f"clusterGroup {group} {GROUPS}")
        selectors.append(groups[group])
    if not any(key in target for key in SELECTING[1:]):
        raise NoCounterpartError("it names no clusters, and Fleet deploys to none")
    for selector in selectors:
        selection = selection.restricted(selector, f"{field}.clusterSelector")
    return selection


def _target(
    selection: Selection,
    target: Mapping[str, Any],
    upstream: Mapping[str, Any],
    spec: Mapping[str, Any],
    wanted: Wanted,
) -> dict[str, Any]:
    package = quoted("-" + str(upstream["package"]).replace("/", "-"))
    template: dict[str, Any] = {
        "downstream": {"repo": wanted.repository, "packageExpr": f"target.name + {package}"}
    }
    for values in (target, spec):
        namespace = values.get("namespace") or values.get("defaultNamespace") or values.get("targetNamespace")
        if namespace:
            template["pipeline"] = namespace_pipeline({"configMap": {"namespace": str(namespace)}})
            break
    return {
        "objectSelector": {"apiVersion": API, "kind": "Cluster", **selection.selector()},
        "template": template,
    }


def _remaining(values: Mapping[str, Any], field: str, *, is_all: bool = False) -> Iterator[Note]:
    """Yield a note for each field that says more. is_all: also for those that pvbus does not know."""
    for key in values:
        if key in REMAINING or is_all:
            yield Note(f"{field}.{key}", REMAINING.get(key, "has no counterpart"))
    deploying = [key for key in DEPLOYING if key in values]
    if deploying and not is_all:
        message = "stays with Fleet, which deploys the packages: " + ", ".join(deploying)
        yield Note(field, message)
