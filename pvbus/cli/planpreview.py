"""Makes a plan: lets the services decide on files, on an export or on a copy of a live system.

The evaluation is a preview (`pvbus.runtime.preview.run`): the services themselves, over objects in memory.

A plan leaves proposed what promotion keeps as planned, by the orders of rollouts and by quarantines. The
orders are on the bus; where that is not read, as of a cluster, a plan shows those proposals as taken back.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from pvbus.adapters.memory.objects import split_api_version
from pvbus.cli.functions import functions_of
from pvbus.cli.live import Export, LiveReader, connect_live
from pvbus.cli.plandocument import (
    Document,
    document_of,
    export_lacks,
    files_lack,
    lacking_upstreams,
    missing_files,
    missing_kinds,
    package_diffs,
    unpreviewable,
    unread,
)
from pvbus.cli.planfile import PlanInputs
from pvbus.cli.plangit import GitReader, git_reader, secrets_of, unread_repositories
from pvbus.cli.planinput import PlanInput, admitted, deletions
from pvbus.cli.reading import open_existing_bus, read_rows
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.core.api.quarantines import Quarantine
from pvbus.core.api.variants import PackageVariant
from pvbus.core.errors import PermanentError, PvbusError, UsageError
from pvbus.core.kernel.keys import Key, TargetKey
from pvbus.core.kernel.objectrows import QUARANTINE
from pvbus.core.kernel.promotionrows import ApprovalRow
from pvbus.core.kernel.records import APPROVALS
from pvbus.core.promotion.promote.verdicts import frozen_by, outlived_by
from pvbus.core.promotion.protocol.quarantines import Content, Quarantines, set_of
from pvbus.core.promotion.protocol.selection import upstream_of
from pvbus.core.variants.unroll.removal import RemovalLimits
from pvbus.ports.cluster import Object
from pvbus.runtime.preview.changes import Changes
from pvbus.runtime.preview.returning import Frozen, nothing_frozen
from pvbus.runtime.preview.run import Only, Preview, World, preview
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.settings import ApiServerConfig, UnrollConfig

if TYPE_CHECKING:
    from pvbus.adapters.kubernetes.cluster import HttpCluster

Orders = Mapping[str, Mapping[str, ApprovalRow]]
"""By NAMESPACE/NAME of a PackageVariant and policy, the order that keeps a revision proposed."""
_order = msgspec.json.Decoder(ApprovalRow)
_quarantines = list[Quarantine]


async def read_frozen(cluster: "HttpCluster", data: str | None) -> Frozen:
    """Return what tells which proposals stay. data: the folder of the bus, None if that is not known."""
    return frozen_of(await _read_orders(data) if data else {}, await _read_quarantines(cluster))


def frozen_of(orders: Orders, quarantines: Sequence[Object]) -> Frozen:
    """Return what tells which proposals stay, as promote does. Upstreams are compared by name alone."""
    lasting: dict[str, Quarantines] = {}
    for each in msgspec.convert(list(quarantines), _quarantines):
        namespace = each.metadata.namespace
        lasting.setdefault(namespace, Quarantines(namespace)).put(each.metadata.name, each)

    def frozen(variant: PackageVariant, proposal: Object) -> str:
        meta, name = variant.metadata, proposal["metadata"]["name"]
        content = Content(set_of(variant), upstream_of(variant), None)
        known = lasting.get(meta.namespace)
        if known is not None and (refused := known.refusal(content, meta.name)):
            return outlived_by(refused)
        for policy, row in orders.get(str(Key(meta.namespace, meta.name)), {}).items():
            if (row.uid, row.revision) == (meta.uid, name):
                return frozen_by(Key(meta.namespace, policy), row.attempt)
        return ""

    return frozen


def orders_of(rows: Mapping[str, bytes]) -> Orders:
    """Return the orders that keep something proposed. rows: of `pvbus.approvals`."""
    found: dict[str, dict[str, ApprovalRow]] = {}
    for text, value in rows.items():
        row, key = _order.decode(value), TargetKey.parse(text)
        if row.keeps_proposed:
            found.setdefault(key.vkey, {})[key.set_name] = row
    return found


async def _read_orders(data: str) -> Orders:
    try:
        async with open_existing_bus(data, None) as bus:
            return orders_of(await read_rows(bus, APPROVALS))
    except (PvbusError, UsageError):
        return {}  # a bus without promotion: `rollouts_after` says what is not known of a policy


async def _read_quarantines(cluster: "HttpCluster") -> list[Object]:
    try:
        resource = await cluster.resource(QUARANTINE)
        return (await cluster.list(resource)).items if resource is not None else []
    except PermanentError:  # rights on these kinds are promotion's, which may be others'
        return []


if TYPE_CHECKING:
    from pvbus.adapters.kubernetes.cluster import HttpCluster

ROUNDS_MAX = 5  # each round reads what the previous one lacked; the second reads injected objects

Progress = Callable[[str], None]


class Settings(NamedTuple):
    """The settings that a plan takes from the environment, as the services do."""

    limits: RemovalLimits
    functions: FunctionRegistry


def settings() -> Settings:
    """Read the settings. Raises UsageError."""
    return Settings(load_config(UnrollConfig).limits, functions_of(load_config(ApiServerConfig)))


def quiet(_: str) -> None:
    """Ignore progress."""


class Request(NamedTuple):
    """What to plan.

    given: the manifests and exports
    how: the settings
    only: the controller to run, None for all
    delete: the objects to plan without, as KIND/NAMESPACE/NAME
    with_diffs: whether to add the diffs of package files
    progress: is called with words now and then
    has_states: whether to note the states of each object, for a file of the plan
    frozen: tells what rollouts keep proposed as planned
    is_whole: whether the document has objects, packages and all conditions
    """

    given: PlanInput
    how: Settings
    only: Only | None = None
    delete: Sequence[str] = ()
    with_diffs: bool = False
    progress: Progress = quiet
    has_states: bool = False
    frozen: Frozen = nothing_frozen
    is_whole: bool = True


class Plan(NamedTuple):
    """A plan.

    document: what is shown
    result: the preview that it is made from
    inputs: what it was made from, None if that is only files
    """

    document: Document
    result: Preview
    inputs: PlanInputs | None = None


def plan_of_files(request: Request) -> Plan:
    """Plan without a live system: the manifests are the whole cluster, or changes to exports."""
    objects, errors = admitted(request.given.manifests)
    if errors:
        return _refused(objects, errors)
    if request.given.exports:
        export = merged(request.given.exports)
        isolated = [obj for obj in export.items if obj["kind"] == QUARANTINE.kind]
        request = request._replace(frozen=frozen_of({}, isolated))
        return _planned(
            request, export, objects, _previewed(request, export, objects), unread(export, objects)
        )
    changes = Changes(delete=deletions(request.delete, objects)) if request.delete else None

    def run(world: World) -> Preview:
        return preview(
            world,
            only=request.only,
            limits=request.how.limits,
            changes=changes,
            progress=request.progress,
        )

    if request.only is None and lacking_upstreams(objects):
        with git_reader(request.progress) as git:
            result = _previewed_with_git(git, objects, request.how, run)
        document = document_of(result, with_diffs=request.with_diffs, is_whole=request.is_whole)
        _add_errors(document, files_lack(result, git.outcomes))
        return Plan(document, result)
    result = run(World(objects))
    document = document_of(result, is_whole=request.is_whole)
    if request.with_diffs:
        render_packages(document, request.how.functions)
        document["diffs"] = package_diffs(result.writes, document["packages"])
    if request.only is None:  # a plan of a single controller need not be complete
        _add_errors(document, files_lack(result, {}))
    return Plan(document, result)


def _refused(objects: Sequence[Object], errors: Sequence[str]) -> Plan:
    result = Preview([], list(objects))
    return Plan({**document_of(result), "errors": errors}, result)


def _planned(
    request: Request, export: Export, objects: Sequence[Object], result: Preview, errors: Sequence[str] = ()
) -> Plan:
    """Return the plan of changes to what was read of a live system."""
    document = document_of(result, with_diffs=request.with_diffs, is_whole=request.is_whole)
    _add_errors(document, [*errors, *export_lacks(export, result)])
    document["notes"] += unpreviewable(objects)
    names = deletions(request.delete, [*export.items, *objects])
    return Plan(document, result, PlanInputs(export, request.given.manifests, objects, names))


def _previewed_with_git(
    git: GitReader, objects: Sequence[Object], how: Settings, run: Callable[[World], Preview]
) -> Preview:
    """Add the package revisions that the git of the Repositories has, and the files that are requested.

    What the manifests name is then complete, so the package server is that of `pvbus up`.
    """
    git.read_repositories(unread_repositories(objects), secrets_of(objects))
    files = git.read_packages(lacking_upstreams(objects).keys())
    items = [*objects, *git.revisions, *files]
    for _ in range(ROUNDS_MAX):
        result = run(World(items, server="pvbus", functions=how.functions))
        more = git.read_files(result.without_files)
        if not more:
            break
        items += more
    return result


def merged(exports: Sequence[Export]) -> Export:
    """Merge several exports of one live system.

    Raises UsageError if they hold different versions of an object, or are of two kinds of systems.
    """
    first = exports[0]
    found: dict[tuple[str, str, str, str], Object] = {}
    for export in exports:
        if export.server != first.server:
            raise UsageError(
                "the exports come from two systems, with the package servers "
                f"{first.server} and {export.server}: plan each by itself"
            )
        for item in export.items:
            meta = item["metadata"]
            group, _ = split_api_version(item["apiVersion"])
            key = (group, item["kind"], meta.get("namespace", ""), meta["name"])
            if found.setdefault(key, item) != item:
                raise UsageError(
                    f"the exports hold different versions of {item['kind']} {key[2]}/{key[3]}: take them "
                    "again at one time, or plan each by itself"
                )
    namespaces = [export.namespace for export in exports]
    return Export(
        exported_at=first.exported_at,
        server=first.server,
        namespace=",".join(dict.fromkeys(namespaces)) if all(namespaces) else "",
        resources=list(dict.fromkeys(r for export in exports for r in export.resources)),
        absent=list(dict.fromkeys(k for export in exports for k in export.absent)),
        without_files=[name for export in exports for name in export.without_files],
        items=list(found.values()),
    )


async def read_live(
    data: str | None,
    kubeconfig: str | None,
    namespace: str,
    changes: Sequence[Object],
    progress: Progress,
    *,
    every_package: bool,
) -> Export:
    """Read the objects that a plan or an export needs."""
    async with connect_live(data, kubeconfig) as cluster:
        reader = LiveReader(cluster, namespace, progress)
        return await reader.read(changes, every_package=every_package)


def plan_of_live(request: Request, data: str | None, kubeconfig: str | None) -> Plan:
    """Plan against a live system, which is only read."""

    async def connect_and_plan() -> Plan:
        async with connect_live(data, kubeconfig) as cluster:
            return await plan_on(cluster, request, data)

    return asyncio.run(connect_and_plan())


async def plan_on(cluster: "HttpCluster", request: Request, data: str | None) -> Plan:
    """Plan against the system of this API server, which is only read.

    data: the folder of its bus, None if that is not known
    """
    request = request._replace(frozen=await read_frozen(cluster, data))
    objects, errors = admitted(request.given.manifests)
    if errors:
        return _refused(objects, errors)
    reader = LiveReader(cluster, "", request.progress)
    export = await reader.read(objects, every_package=False)
    for _ in range(ROUNDS_MAX):
        # In a thread: the preview has an event loop of its own, with virtual time.
        result = await asyncio.to_thread(_previewed, request, export, objects)
        if not missing_kinds(export, result) and not missing_files(export, result):
            break
        for kind in missing_kinds(export, result):
            await reader.read_kind(kind)
        await reader.read_files(missing_files(export, result))
    return _planned(request, export, objects, result)


def _previewed(request: Request, export: Export, objects: Sequence[Object]) -> Preview:
    server: Literal["pvbus", "porch"] = "pvbus" if export.server == "pvbus" else "porch"
    world = World(export.items, export.resources, server, request.how.functions, request.frozen)
    return preview(
        world,
        only=request.only,
        limits=request.how.limits,
        changes=Changes(objects, deletions(request.delete, [*export.items, *objects])),
        progress=request.progress,
        has_states=request.has_states,
    )


def _add_errors(document: Document, errors: Sequence[str]) -> None:
    if errors:
        document["errors"] = [*document.get("errors", ()), *errors]
        document["troubles"] = [*errors, *document["troubles"]]


PACKAGE_KINDS = ("PackageRevision", "PackageRevisionResources")


def render_packages(document: Document, functions: FunctionRegistry) -> None:
    """Run the pipelines of the drafts that the plan would write, and report those that cannot run."""
    from pvbus.controlplane.packages.render import render as run_pipeline

    written = [f"{a['namespace']}/{a['name']}" for a in document["actions"] if a["kind"] in PACKAGE_KINDS]
    for key in dict.fromkeys(written):
        if key not in document["packages"]:
            continue
        result = run_pipeline(document["packages"][key], registry=functions)
        document["packages"][key] = dict(result.resources)
        if not result.rendered:
            _add_errors(document, [f"PackageRevision/{key}: {result.step}: {result.message}"])
