"""The expected result: the PackageVariants of a converged system, computed naively.

No indexes, no increments, no time: every set looks at every object. Removals count as confirmed and
done. State that the final inputs do not determine is an input of its own: the names assigned earlier,
and the existing PackageVariants. Templates are evaluated by `pvbus.core.variants.template`, which has its
own tests; everything around it is implemented a second time here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from pvbus.core.api.packages import PackageRevision, Repository
from pvbus.core.api.variants import (
    CONFIG_GROUP,
    PORCH_GROUP,
    Downstream,
    LabelSelectorRequirement,
    ObjectMeta,
    PackageVariant,
    PackageVariantSet,
    PackageVariantSpec,
    Target,
)
from pvbus.core.kernel.keys import HOLD, SET_UID_LABEL, Key, colliding_variant_name, variant_name
from pvbus.core.kernel.records import Root, TargetRow
from pvbus.core.variants.template import (
    CompiledTemplate,
    RenderError,
    TargetInputs,
    TemplateCache,
    compile_targets,
    render_row,
)
from pvbus.core.variants.unroll.validation import validate_set

SET_KIND = "PackageVariantSet"
Names = Mapping[str, Mapping[str, Downstream]]
"""skey -> name of the PackageVariant -> its downstream, as stored by the sets."""


class Thing(NamedTuple):
    """A selectable object. kind: `<group>/<Kind>`."""

    kind: str
    namespace: str
    name: str
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}

    def root(self) -> Root:
        return Root(
            name=self.name, namespace=self.namespace, labels=self.labels, annotations=self.annotations
        )


class Expected(NamedTuple):
    """A PackageVariant that must exist. owner: uid of its set, "" if it belongs to none."""

    spec: PackageVariantSpec
    owner: str


class _Plan:
    """One set's PackageVariants by name; a spec of None reserves the name and keeps the existing object.

    complete: everything could be evaluated, so unwanted children may be removed.
    """

    def __init__(self, obj: PackageVariantSet) -> None:
        self.obj = obj
        self.wishes: dict[str, PackageVariantSpec | None] = {}
        self.complete = True


def expected_variants(
    sets: Iterable[PackageVariantSet],
    objects: Iterable[Thing],
    repositories: Iterable[Repository],
    revisions: Iterable[PackageRevision],
    *,
    remembered_names: Names | None = None,
    existing_children: Iterable[PackageVariant] = (),
    unknown_kinds: Iterable[str] = (),
) -> dict[str, Expected]:
    """Return every PackageVariant by vkey.

    objects: all but Repositories and PackageRevisions, which can be selected as well.
    unknown_kinds: `<group>/<Kind>` that the cluster does not serve.
    """
    repositories, revisions = list(repositories), list(revisions)
    world = _FleetView(
        [*objects, *map(_thing, repositories), *map(_thing, revisions)],
        revisions,
        frozenset(unknown_kinds),
        TemplateCache(),
    )
    living_sets = [obj for obj in sets if not obj.metadata.deletion_timestamp]
    uids = {obj.metadata.uid for obj in living_sets}
    existing = {
        Key(child.metadata.namespace, child.metadata.name): child
        for child in existing_children
        if not child.metadata.deletion_timestamp and _owner(child, uids) is not None
    }
    plans = [_plan(obj, world, (remembered_names or {}).get(_skey(obj), {}), existing) for obj in living_sets]
    return _settled(plans, existing, uids)


class _FleetView(NamedTuple):
    things: Sequence[Thing]
    revisions: Sequence[PackageRevision]
    unknown_kinds: frozenset[str]
    templates: TemplateCache

    def upstream(self, obj: PackageVariantSet) -> Thing | None:
        """Return the first revision, by name, that matches the given revision number and workspace."""
        wanted = obj.spec.upstream
        assert wanted is not None
        found = [
            revision
            for revision in self.revisions
            if revision.metadata.namespace == obj.metadata.namespace
            and (revision.spec.repository, revision.spec.package_name) == (wanted.repo, wanted.package)
            and wanted.revision in (0, revision.spec.revision)
            and wanted.workspace_name in ("", revision.spec.workspace_name)
        ]
        return _thing(min(found, key=lambda revision: revision.metadata.name)) if found else None

    def repository(self, namespace: str, name: str) -> Root | None:
        kind = f"{CONFIG_GROUP}/Repository"
        return next((t.root() for t in self.things if t[:3] == (kind, namespace, name)), None)


def _plan(
    obj: PackageVariantSet,
    world: _FleetView,
    remembered: Mapping[str, Downstream],
    existing: Mapping[Key, PackageVariant],
) -> _Plan:
    plan = _Plan(obj)
    plan.complete = False
    stopped = obj.metadata.annotations.get(HOLD) == "true" or bool(validate_set(obj.spec))
    upstream = None if stopped else world.upstream(obj)
    selected = [_selected(target, obj.metadata.namespace, world) for target in obj.spec.targets]
    if upstream is None or None in selected:
        return plan
    compiled = compile_targets(obj.spec)
    plan.complete = True
    wanting: dict[Downstream, list[TargetRow]] = {}
    for number, things in enumerate(selected):
        for row in _rows(obj, number, things or (), upstream.root()):
            placed = _placed(row, compiled.targets[number], world, obj.metadata.namespace)
            if placed is None:
                plan.complete = False
            else:
                wanting.setdefault(placed.downstream, []).append(placed)
    single = {downstream: rows[0] for downstream, rows in wanting.items() if len(rows) == 1}
    names = _names(obj, single, remembered, existing)
    for downstream, row in single.items():
        plan.wishes[names[downstream]] = _rendered(row, world.templates)
    plan.complete &= len(single) == len(wanting) and None not in plan.wishes.values()
    return plan


def _selected(
    target: Target, namespace: str, world: _FleetView
) -> Sequence[Thing] | Sequence[Downstream] | None:
    """Return a target's objects by name, or its listed downstreams; None for a kind that is not served."""
    chosen: Any = target.repository_selector or target.object_selector
    if target.repository_selector is not None:
        kind, name = f"{CONFIG_GROUP}/Repository", None
    elif target.object_selector is not None:
        group = target.object_selector.api_version.rpartition("/")[0]
        kind, name = f"{group}/{target.object_selector.kind}", target.object_selector.name
    else:
        return [
            Downstream(repo=repository.name, package=package)
            for repository in target.repositories or ()
            for package in repository.package_names or ("",)
        ]
    if kind in world.unknown_kinds:
        return None
    return sorted(
        (
            thing
            for thing in world.things
            if thing.kind == kind
            and thing.namespace in (namespace, "")
            and name in (None, thing.name)
            and all(thing.labels.get(key) == value for key, value in chosen.match_labels.items())
            and all(_holds(requirement, thing.labels) for requirement in chosen.match_expressions)
        ),
        key=lambda thing: (thing.namespace, thing.name),
    )


def _holds(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    return {
        "In": value is not None and value in requirement.values,
        "NotIn": value is None or value not in requirement.values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[requirement.operator]


def _rows(
    obj: PackageVariantSet, number: int, things: Sequence[Thing] | Sequence[Downstream], upstream: Root
) -> Iterable[TargetRow]:
    """Yield render's input for each object of a target, before its downstream is known."""
    assert obj.spec.upstream is not None
    for thing in things:
        listed = isinstance(thing, Downstream)
        repo = thing.repo if isinstance(thing, Downstream) else thing.name
        package = (thing.package if isinstance(thing, Downstream) else "") or obj.spec.upstream.package
        target = Root(repo=repo, package=package) if isinstance(thing, Downstream) else thing.root()
        yield TargetRow(
            state="present",
            set_name=obj.metadata.name,
            set_uid=obj.metadata.uid,
            target=number,
            upstream=obj.spec.upstream,
            template=obj.spec.targets[number].template,
            repo_default=repo,
            package_default=package,
            list_target=listed,
            roots={"upstream": upstream, "target": target},
        )


def _placed(
    row: TargetRow, template: CompiledTemplate | None, world: _FleetView, namespace: str
) -> TargetRow | None:
    """Return the row with its downstream and that one's Repository; None if that fails."""
    identity = Downstream(repo=row.repo_default, package=row.package_default)
    if template is None:
        return replace(row, downstream=identity)
    inputs = TargetInputs(
        repo_default=row.repo_default,
        package_default=row.package_default,
        upstream=row.roots["upstream"],
        target=row.roots["target"],
        list_target=row.list_target,
    )
    try:
        identity = template.identity(inputs, lambda name: world.repository(namespace, name))
    except RenderError:
        return None
    found = world.repository(namespace, identity.repo)
    assert found is not None, "a template's Repository was looked up"
    return replace(row, downstream=identity, roots={**row.roots, "repository": found})


def _rendered(row: TargetRow, templates: TemplateCache) -> PackageVariantSpec | None:
    try:
        return render_row(row, templates)
    except RenderError:
        return None


def _names(
    obj: PackageVariantSet,
    wanting: Mapping[Downstream, object],
    remembered: Mapping[str, Downstream],
    existing: Mapping[Key, PackageVariant],
) -> dict[Downstream, str]:
    """Name every downstream: as stored, else as it exists, else in the order of the targets."""
    names = {downstream: name for name, downstream in remembered.items()}
    taken = dict(remembered)
    for key, child in sorted(existing.items()):
        if key.namespace == obj.metadata.namespace and _is_child(obj, child):
            downstream = taken.setdefault(key.name, child.spec.downstream or Downstream())
            names.setdefault(downstream, key.name)
    for downstream in wanting:
        if downstream not in names:
            identity = (obj.metadata.name, downstream.repo, downstream.package)
            name = variant_name(*identity)
            names[downstream] = name if name not in taken else colliding_variant_name(*identity)
            taken[names[downstream]] = downstream
    return names


def _settled(
    plans: list[_Plan], existing: Mapping[Key, PackageVariant], uids: set[str]
) -> dict[str, Expected]:
    """Resolve conflicts: a name goes to the set whose child has it, else to the oldest set.

    A set that loses a name keeps nothing for it; its other removals proceed.
    """
    plans = sorted(plans, key=lambda p: (p.obj.metadata.creation_timestamp or "", p.obj.metadata.uid))
    settled = {
        key: Expected(child.spec, _owner(child, uids) or "")
        for key, child in existing.items()
        if not any(_may_go(plan, key, child) for plan in plans)
    }
    holders = {key: expected.owner for key, expected in settled.items()}
    for plan in plans:
        uid = plan.obj.metadata.uid
        for name, spec in plan.wishes.items():
            key = Key(plan.obj.metadata.namespace, name)
            mine = holders.setdefault(key, uid) == uid
            if mine and spec is not None and not _held(existing.get(key)):
                settled[key] = Expected(spec, uid)
    return {str(key): settled[key] for key in sorted(settled)}


def _held(child: PackageVariant | None) -> bool:
    return child is not None and child.metadata.annotations.get(HOLD) == "true"


def _may_go(plan: _Plan, key: Key, child: PackageVariant) -> bool:
    """Return whether a fully evaluated set may remove this child of its own."""
    mine = key.namespace == plan.obj.metadata.namespace and _is_child(plan.obj, child)
    return plan.complete and mine and not _held(child) and key.name not in plan.wishes


def _is_child(obj: PackageVariantSet, child: PackageVariant) -> bool:
    uid = obj.metadata.uid
    return child.metadata.labels.get(SET_UID_LABEL) == uid and any(
        owner.uid == uid for owner in child.metadata.owner_references
    )


def _owner(child: PackageVariant, uids: set[str]) -> str | None:
    """Return the uid of the controlling set, "" for a user's object, None if that set is gone."""
    owner = next((o for o in child.metadata.owner_references if o.controller), None)
    if owner is None or owner.kind != SET_KIND:
        return ""
    return owner.uid if owner.uid in uids else None


def _thing(obj: Repository | PackageRevision) -> Thing:
    group = CONFIG_GROUP if isinstance(obj, Repository) else PORCH_GROUP
    meta: ObjectMeta = obj.metadata
    return Thing(f"{group}/{obj.kind}", meta.namespace, meta.name, meta.labels, meta.annotations)


def _skey(obj: PackageVariantSet) -> str:
    return f"{obj.metadata.namespace}/{obj.metadata.name}"
