"""Changes that a user makes: what is there before, what is changed, and what the services must do of it.

Each case lives in a namespace of its own, with a git repository `edge` of its own for its packages.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pvbus.core.variants.following import FOLLOW
from pvbus.ports.cluster import Kind, Object
from tests.e2e.plan.world import PlannedWorld

CONFIG = "config.porch.kpt.dev/v1alpha1"
VARIANT = Kind("config.porch.kpt.dev", "PackageVariant")
SET = Kind("config.porch.kpt.dev", "PackageVariantSet")
REPOSITORY = Kind("config.porch.kpt.dev", "Repository")
REVISION = Kind("porch.kpt.dev", "PackageRevision")
FILES = Kind("porch.kpt.dev", "PackageRevisionResources")
CLUSTER = Kind("example.org", "Cluster")
SITE = Kind("example.org", "Site")

UPGRADE = "an upgrade of what was changed locally"

Prepare = Callable[[PlannedWorld, str], Awaitable[None]]
Name = tuple[Kind, str]


class Case(NamedTuple):
    """before: objects; prepare: done once they have settled; put, delete: the change. writes: how many
    writes of each verb and kind the plan must announce. says: words that its troubles must have."""

    name: str
    before: Sequence[Object]
    put: Sequence[Object] = ()
    delete: Sequence[Name] = ()
    writes: Mapping[str, int] = MappingProxyType({})
    says: str = ""
    held: int = 0
    prepare: Prepare | None = None
    collected: int = 0


def thing(kind: Kind, name: str, *, version: str = "", **fields: Any) -> Object:
    labels = fields.pop("labels", {})
    annotations = fields.pop("annotations", {})
    metadata: Object = {"name": name}
    if labels:
        metadata["labels"] = labels
    if annotations:
        metadata["annotations"] = annotations
    api = f"{kind.group}/{version or 'v1'}"
    return {"apiVersion": api, "kind": kind.kind, "metadata": metadata, **fields}


def cluster(number: int, **labels: str) -> Object:
    return thing(CLUSTER, f"c{number}", labels={"stage": "prod", "zone": "a", **labels})


def clusters(count: int) -> list[Object]:
    return [cluster(number) for number in range(1, count + 1)]


def site(name: str, region: str) -> Object:
    return thing(SITE, name, spec={"region": region})


def upstream(package: str = "web", workspace: str = "v1") -> Object:
    return {"repo": "blue", "package": package, "workspaceName": workspace}


TARGETS = "target.name + '-web'"


def template(**fields: Any) -> Object:
    downstream = {"repo": "edge", "packageExpr": fields.pop("package_expr", TARGETS)}
    return {"downstream": downstream, **fields}


def variant_set(name: str = "web", *, targets: Any = None, package: str = "web", **fields: Any) -> Object:
    """A set that selects Clusters of stage `prod`."""
    workspace = fields.pop("workspace", "v1")
    meta = {key: fields.pop(key) for key in ("annotations", "labels") if key in fields}
    stage = fields.pop("stage", "prod")
    if targets is None:
        selector = {"apiVersion": "example.org/v1", "kind": "Cluster", "matchLabels": {"stage": stage}}
        targets = [{"objectSelector": selector, "template": template(**fields)}]
    spec = {"upstream": upstream(package, workspace), "targets": targets}
    return thing(SET, name, version="v1alpha2", spec=spec, **meta)


def variant(name: str = "own", *, package: str = "own", **spec: Any) -> Object:
    meta = {key: spec.pop(key) for key in ("annotations", "labels") if key in spec}
    up = spec.pop("upstream", upstream())
    body = {"upstream": up, "downstream": {"repo": "edge", "package": package}, **spec}
    return thing(VARIANT, name, version="v1alpha1", spec=body, **meta)


def repository(name: str, **labels: str) -> Object:
    """A repository whose git folder the test fills in."""
    return thing(REPOSITORY, name, version="v1alpha1", labels=labels, spec={})


def context(**data: str) -> Object:
    return {"data": data}


def labels_step(name: str, **values: str) -> Object:
    return {
        "mutators": [
            {
                "name": name,
                "image": "ghcr.io/kptdev/krm-functions-catalog/set-labels:v0.2",
                "configMap": values,
            }
        ]
    }


def approving(*packages: str) -> Prepare:
    async def approve(world: PlannedWorld, namespace: str) -> None:
        for package in packages:
            await world.approve(f"edge.{package}.packagevariant-1", namespace)

    return approve


def editing(package: str, old: str, new: str) -> Prepare:
    """Change a text in all files of a package's first draft, as a person does."""
    return saving(f"edge.{package}.packagevariant-1", old, new)


def saving(name: str, old: str, new: str) -> Prepare:
    async def edit(world: PlannedWorld, namespace: str) -> None:
        resource = await world.resource(FILES)
        files = await world.cluster.get(resource, namespace, name)
        assert files is not None
        texts = files["spec"]["resources"]
        files["spec"]["resources"] = {path: text.replace(old, new) for path, text in texts.items()}
        await world.cluster.update(resource, files)

    return edit


def drafting(workspace: str) -> Prepare:
    """Begin a draft of the blueprint, whose git all cases share."""
    task = {"type": "edit", "edit": {"sourceRef": {"name": "blue.web.v1"}}}
    spec = {"repository": "blue", "packageName": "web", "workspaceName": workspace, "tasks": [task]}

    async def draft(world: PlannedWorld, namespace: str) -> None:
        obj = {**thing(REVISION, "", version="v1alpha1", spec=spec), "metadata": {"namespace": namespace}}
        await world.cluster.create(await world.resource(REVISION), obj)

    return draft


def publishing(package: str, workspace: str, old: str, new: str) -> Prepare:
    """Publish a revision of a package beside its variant, with a text changed, as a person does."""
    name = f"edge.{package}.{workspace}"
    task = {"type": "edit", "edit": {"sourceRef": {"name": f"edge.{package}.packagevariant-1"}}}
    spec = {"repository": "edge", "packageName": package, "workspaceName": workspace, "tasks": [task]}

    async def publish(world: PlannedWorld, namespace: str) -> None:
        obj = {**thing(REVISION, "", version="v1alpha1", spec=spec), "metadata": {"namespace": namespace}}
        await world.cluster.create(await world.resource(REVISION), obj)
        await saving(name, old, new)(world, namespace)
        await world.approve(name, namespace)

    return publish


def removing(*names: Name) -> Prepare:
    async def remove(world: PlannedWorld, namespace: str) -> None:
        for kind, name in names:
            await world.delete(kind, namespace, name)

    return remove


def both(*steps: Prepare) -> Prepare:
    async def run(world: PlannedWorld, namespace: str) -> None:
        for step in steps:
            await step(world, namespace)
            await world.settle()

    return run


def of_set(name: str, **spec: Any) -> Object:
    """A PackageVariant as the set `web` makes it for a cluster, changed by hand."""
    return variant(f"web-edge-{name}-web", package=f"{name}-web", **spec)


MADE = {"create PackageRevision": 1, "updateResources PackageRevisionResources": 1}
NEW = {"create PackageVariant": 1, **MADE}
GONE = {"delete PackageVariant": 1, "delete PackageRevision": 1, "update PackageVariant": 1}


def times(count: int, writes: dict[str, int]) -> dict[str, int]:
    return {key: count * value for key, value in writes.items()}


SELECT_REPOSITORIES = [
    {
        "repositorySelector": {"matchLabels": {"tier": "edge"}},
        "template": {"downstream": {"package": "web"}},
    }
]
LISTED = [{"repositories": [{"name": "edge", "packageNames": ["one", "two"]}]}]
TWO_TARGETS = [
    {"repositories": [{"name": "edge", "packageNames": ["one"]}]},
    {"repositories": [{"name": "edge", "packageNames": ["two"]}]},
]
FAILING_PART = [
    {
        "repositories": [{"name": "edge", "packageNames": ["one"]}],
        "template": {"pipeline": {"mutators": [{"name": "absent", "image": "example.org/absent:v1"}]}},
    },
    {"repositories": [{"name": "edge", "packageNames": ["two"]}]},
]
NAMED: dict[str, Any] = {
    "packageContext": {"dataExprs": [{"key": "zone", "valueExpr": "target.labels['zone']"}]}
}
INJECTORS: dict[str, Any] = {"injectors": [{"kind": "Site", "nameExpr": "'north'"}]}
INJECTED: dict[str, Any] = {"injectors": [{"kind": "Site", "name": "north"}]}
HOLD = {"pvbus.dev/hold": "true"}
ADOPT = {"adoptionPolicy": "adoptExisting"}

CASES = [
    # sets
    Case("create a set", clusters(3), [variant_set()], writes=times(3, NEW)),
    Case("create a set that lists packages", [], [variant_set(targets=LISTED)], writes=times(2, NEW)),
    Case(
        "create a set that selects repositories",
        [repository("edge", tier="edge")],
        [variant_set(targets=SELECT_REPOSITORIES)],
        writes=NEW,
    ),
    Case(
        "labels in the template",
        [*clusters(2), variant_set()],
        [variant_set(labelExprs=[{"key": "zone", "valueExpr": "target.labels['zone']"}])],
        writes={"update PackageVariant": 2},
    ),
    Case(
        "annotations in the template",
        [*clusters(2), variant_set()],
        [variant_set(annotationExprs=[{"key": "stage", "valueExpr": "target.labels['stage']"}])],
        writes={"update PackageVariant": 2},
    ),
    Case(
        "package context in the template",
        [*clusters(2), variant_set()],
        [variant_set(packageContext=context(region="north"))],
        writes={"update PackageVariant": 2, "updateResources PackageRevisionResources": 2},
    ),
    Case(
        "package context taken away",
        [*clusters(1), variant_set(packageContext=context(region="north", size="l"))],
        [variant_set(packageContext={"data": {"size": "l"}, "removeKeys": ["region"]})],
        writes={"update PackageVariant": 1, "updateResources PackageRevisionResources": 1},
    ),
    Case(
        "functions in the template",
        [*clusters(2), variant_set()],
        [variant_set(pipeline=labels_step("stage", tier="one"))],
        writes={"update PackageVariant": 2, "updateResources PackageRevisionResources": 2},
    ),
    Case(
        "a function taken away",
        [*clusters(1), variant_set(pipeline=labels_step("stage", tier="one"))],
        [variant_set()],
        writes={"update PackageVariant": 1, "updateResources PackageRevisionResources": 1},
    ),
    Case(
        "injectors in the template",
        [*clusters(2), site("north", "n"), variant_set(package="inject")],
        [variant_set(package="inject", **INJECTORS)],
        writes={"update PackageVariant": 2, "updateResources PackageRevisionResources": 2},
    ),
    Case(
        "deletion policy",
        [*clusters(1), variant_set()],
        [variant_set(deletionPolicy="orphan")],
        writes={"update PackageVariant": 1},
    ),
    Case(
        "a target entry dropped",
        [variant_set(targets=TWO_TARGETS)],
        [variant_set(targets=TWO_TARGETS[:1])],
        writes=GONE,
    ),
    Case(
        "a selector that finds nothing",
        [*clusters(12), variant_set()],
        [variant_set(stage="prodd")],
        says="DeletionHeld",
        held=12,
    ),
    Case(
        "a set deleted",
        [*clusters(2), variant_set()],
        delete=[(SET, "web")],
        writes={"delete PackageRevision": 2, "update PackageVariant": 2},
        collected=2,
    ),
    Case(
        "other packages for the targets",
        [*clusters(2), variant_set()],
        [variant_set(package_expr="target.name + '-app'")],
        writes=times(2, {key: NEW.get(key, 0) + GONE.get(key, 0) for key in {*NEW, *GONE}}),
    ),
    Case(
        "an expression that fails",
        [*clusters(2), variant_set()],
        [variant_set(package_expr="target.labels['missing']")],
        says="packageExpr",
    ),
    Case(
        "an expression that is none",
        [*clusters(2), variant_set()],
        [variant_set(labelExprs=[{"key": "a", "valueExpr": "target.name +"}])],
        says="labelExprs",
    ),
    Case("a set without targets", [*clusters(1), variant_set()], [variant_set(targets=[])], says="targets"),
    Case(
        "an upstream that is not there",
        [*clusters(1), variant_set()],
        [variant_set(package="nothing")],
        says="nothing",
    ),
    Case(
        "another upstream below drafts",
        [*clusters(2), variant_set()],
        [variant_set(workspace="v2")],
        writes={"update PackageVariant": 2, "updateResources PackageRevisionResources": 2},
    ),
    Case(
        "another upstream below published packages",
        [*clusters(1), variant_set()],
        [variant_set(workspace="v2")],
        writes={"update PackageVariant": 1, **MADE},  # rendered with the first save
        prepare=approving("c1-web"),
    ),
    Case(
        UPGRADE,
        [*clusters(1), variant_set()],
        [variant_set(workspace="v2")],
        writes={"update PackageVariant": 1, **MADE},  # rendered with the first save
        prepare=both(editing("c1-web", "replicas: 1 ", "replicas: 7 "), approving("c1-web")),
    ),
    # targets
    Case("one cluster more", [*clusters(2), variant_set()], [cluster(3)], writes=NEW),
    Case("one cluster less", [*clusters(4), variant_set()], delete=[(CLUSTER, "c2")], writes=GONE),
    Case("a cluster leaves", [*clusters(4), variant_set()], [cluster(2, stage="dev")], writes=GONE),
    Case(
        "a label that the template reads",
        [*clusters(2), variant_set(labelExprs=[{"key": "zone", "valueExpr": "target.labels['zone']"}])],
        [cluster(1, zone="b")],
        writes={"update PackageVariant": 1},
    ),
    Case("a label that nobody reads", [*clusters(2), variant_set()], [cluster(1, colour="red")]),
    Case(
        "a label mistyped on all clusters",
        [*clusters(12), variant_set()],
        [cluster(number, stage="prodd") for number in range(1, 13)],
        says="DeletionHeld",
        held=12,
    ),
    Case(
        "a cluster comes back",
        [*clusters(3), variant_set()],
        [cluster(2)],
        writes=NEW,
        prepare=removing((CLUSTER, "c2")),
    ),
    Case(
        "a published package is left",
        [*clusters(2), variant_set()],
        delete=[(CLUSTER, "c1")],
        writes={"delete PackageVariant": 1, "update PackageRevision": 2, "update PackageVariant": 1},
        prepare=approving("c1-web"),
    ),
    # repositories
    Case(
        "a repository is selected",
        [variant_set(targets=SELECT_REPOSITORIES)],
        [repository("edge", tier="edge")],
        writes=NEW,
    ),
    Case(
        "a repository leaves",
        [repository("edge", tier="edge"), variant_set(targets=SELECT_REPOSITORIES)],
        [repository("edge", tier="core")],
        writes=GONE,
    ),
    # variants
    Case("create a variant", [], [variant()], writes={"update PackageVariant": 1, **MADE}),
    Case(
        "edit a variant",
        [variant()],
        [variant(packageContext=context(region="south"))],
        writes={"updateResources PackageRevisionResources": 1},
    ),
    Case(
        "edit a variant with a published package",
        [variant()],
        [variant(packageContext=context(region="south"))],
        writes=MADE,
        prepare=approving("own"),
    ),
    Case(
        "saves of a draft upstream from now on",
        [variant(upstream=upstream(workspace="trial"))],
        [variant(upstream=upstream(workspace="trial"), annotations={FOLLOW: "saves"})],
        writes=MADE,
        prepare=both(
            drafting("trial"), approving("own"), saving("blue.web.trial", "replicas: 1 ", "replicas: 3 ")
        ),
    ),
    Case(
        "a published upstream in place of a draft",
        [variant(upstream=upstream(workspace="draft"))],
        [variant()],
        writes=MADE,
        prepare=both(
            drafting("draft"), approving("own"), saving("blue.web.draft", "replicas: 1 ", "replicas: 4 ")
        ),
    ),
    Case(
        "another downstream",
        [variant()],
        [variant(package="other")],
        writes={"delete PackageRevision": 1, **MADE},
    ),
    Case(
        "delete a variant",
        [variant()],
        delete=[(VARIANT, "own")],
        writes={"delete PackageRevision": 1, "update PackageVariant": 1},
    ),
    Case(
        "delete a variant with a published package",
        [variant()],
        delete=[(VARIANT, "own")],
        writes={"update PackageRevision": 2, "update PackageVariant": 1},
        prepare=approving("own"),
    ),
    Case(
        "delete a variant that orphans",
        [variant(deletionPolicy="orphan")],
        delete=[(VARIANT, "own")],
        writes={"update PackageRevision": 1, "update PackageVariant": 1},
    ),
    Case(
        "adopt a draft",
        [variant(deletionPolicy="orphan")],
        [variant("heir", **ADOPT)],
        writes={"update PackageVariant": 1, "update PackageRevision": 1},
        prepare=removing((VARIANT, "own")),
    ),
    Case(
        "a package of somebody else",
        [variant()],
        [variant("second")],
        writes={"update PackageVariant": 1},
        says="belongs to PackageVariant own",
    ),
    Case(
        "a variant of a set edited by hand",
        [*clusters(1), variant_set()],
        [of_set("c1", packageContext=context(region="south"))],
        writes={"update PackageVariant": 1},
    ),
    Case(
        "a variant of a set deleted by hand",
        [*clusters(1), variant_set()],
        delete=[(VARIANT, "web-edge-c1-web")],
        writes={"create PackageVariant": 1, "update PackageVariant": 1, "delete PackageRevision": 1, **MADE},
    ),
    Case(
        "a variant of a person has the name",
        [*clusters(1), of_set("c1")],
        [variant_set()],
        says="web-edge-c1-web",
    ),
    Case(
        "two sets for one name",
        [*clusters(1), variant_set()],
        [variant_set("web-edge", targets=[{"repositories": [{"name": "c1", "packageNames": ["web"]}]}])],
        says="web-edge-c1-web",
    ),
    Case(
        "two targets for one downstream",
        [*clusters(2), variant_set()],
        [variant_set(package_expr="'same'")],
        says="same",
    ),
    Case(
        "hold a set and edit it",
        [*clusters(2), variant_set()],
        [variant_set(annotations=HOLD, labelExprs=[{"key": "zone", "valueExpr": "target.labels['zone']"}])],
        says="pvbus.dev/hold",
    ),
    Case(
        "hold a variant and edit it",
        [variant()],
        [variant(annotations=HOLD, packageContext=context(region="south"))],
        says="pvbus.dev/hold",
    ),
    Case(
        "lift the hold of a set",
        [*clusters(2), variant_set(annotations=HOLD)],
        [variant_set()],
        writes=times(2, NEW),
    ),
    Case(
        "a pipeline that fails",
        [],
        [variant(upstream=upstream("broken"))],
        writes={"update PackageVariant": 1, **MADE},
        says="no-such-function",
    ),
    Case(
        "a function name with a dot",
        [variant()],
        [variant(pipeline=labels_step("a.b", tier="one"))],
        says="must not contain",
    ),
    Case(
        "an injected object changes",
        [site("north", "n"), variant(upstream=upstream("inject"), **INJECTED)],
        [site("north", "far")],
        writes={"updateResources PackageRevisionResources": 1},
    ),
    Case(
        "an injected object goes",
        [site("north", "n"), variant(upstream=upstream("inject"), **INJECTED)],
        delete=[(SITE, "north")],
        writes={"updateResources PackageRevisionResources": 1},
    ),
    Case(
        "an injected object comes",
        [variant(upstream=upstream("inject"), **INJECTED)],
        [site("north", "n")],
        writes={"updateResources PackageRevisionResources": 1},
    ),
    Case("nothing", [*clusters(2), variant_set()]),
    # what people and others did between
    Case(
        "an upgrade of drafts of which a person edited one",
        [*clusters(2), variant_set()],
        [variant_set(workspace="v2")],
        writes={
            "update PackageVariant": 2,
            "updateResources PackageRevisionResources": 2,
            "update PackageRevision": 1,  # it says what is in conflict
        },
        prepare=editing("c1-web", "replicas: 1 ", "replicas: 7 "),
    ),
    Case(
        "an edit of a variant beside which a person published",
        [variant()],
        [variant(packageContext=context(region="south"))],
        writes=MADE,
        prepare=both(approving("own"), publishing("own", "by-hand", "replicas: 1 ", "replicas: 5 ")),
    ),
    Case(
        "an upgrade of packages beside which a person published",
        [*clusters(2), variant_set()],
        [variant_set(workspace="v2")],
        writes={"update PackageVariant": 2, **times(2, MADE)},
        prepare=both(
            approving("c1-web", "c2-web"), publishing("c1-web", "by-hand", "name: app", "name: app-by-hand")
        ),
    ),
    Case(
        "a cluster renamed",
        [*clusters(3), variant_set()],
        [cluster(9)],
        delete=[(CLUSTER, "c2")],
        writes={key: NEW.get(key, 0) + GONE.get(key, 0) for key in {*NEW, *GONE}},
    ),
    Case(
        "a set renamed, whose heir adopts",
        [*clusters(2), variant_set(deletionPolicy="orphan")],
        [variant_set("heir", **ADOPT)],
        delete=[(SET, "web")],
        writes={
            "create PackageVariant": 2,
            "update PackageVariant": 2,
            "update PackageRevision": 4,
        },
        collected=2,
    ),
    Case(
        "an upgrade of a set with a variant on hold",
        [*clusters(2), variant_set()],
        [of_set("c1", annotations=HOLD), variant_set(workspace="v2")],
        writes={"update PackageVariant": 1, "updateResources PackageRevisionResources": 1},
        says="pvbus.dev/hold",
    ),
    Case(
        "a cluster less, whose variant is on hold",
        [*clusters(4), variant_set()],
        [of_set("c2", annotations=HOLD)],
        delete=[(CLUSTER, "c2")],
        says="pvbus.dev/hold",
    ),
    Case(
        "a pipeline that fails for one of two packages",
        [],
        [variant_set(targets=FAILING_PART)],
        writes=times(2, NEW),
        says="absent",
    ),
    Case(
        "a label that the package context has",
        [*clusters(2), variant_set(**NAMED)],
        [cluster(1, zone="b")],
        writes={"update PackageVariant": 1, "updateResources PackageRevisionResources": 1},
    ),
    Case(
        "an injected object of two published packages changes",
        [*clusters(2), site("north", "n"), variant_set(package="inject", **INJECTORS)],
        [site("north", "far")],
        writes=times(2, MADE),
        prepare=approving("c1-web", "c2-web"),
    ),
    Case(
        "a cluster that lacks a label of the template",
        [*clusters(2), variant_set(package_expr="target.labels['zone'] + '-' + target.name")],
        [thing(CLUSTER, "c3", labels={"stage": "prod"})],
        says="zone",
    ),
]
