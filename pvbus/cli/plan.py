"""`pvbus plan`: previews the writes that would be made, held or refused, from files or a live system.

The evaluation is a preview (`pvbus.runtime.preview.run`): the services themselves, over objects in memory.
With `-o json` stdout is one document and nothing else; logs and progress go to stderr.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import click

from pvbus.adapters.memory.objects import split_api_version
from pvbus.cli.functions import functions_of
from pvbus.cli.live import Export, LiveReader, connect_live
from pvbus.cli.plandocument import (
    Document,
    document_of,
    export_lacks,
    files_lack,
    missing_files,
    missing_kinds,
    package_diffs,
    unpreviewable,
    unread,
)
from pvbus.cli.planinput import PlanInput, admitted, deletions, read_input
from pvbus.cli.plantext import plan_lines
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.core.errors import UsageError
from pvbus.core.variants.unroll.removal import RemovalLimits
from pvbus.ports.cluster import Object
from pvbus.runtime.preview.run import Changes, Only, Preview, World, preview
from pvbus.runtime.process.settings import ApiServerConfig, UnrollConfig, load_config
from pvbus.telemetry.logs import configure

FAILED, CHANGED = 1, 3
PROGRESS_SECONDS = (2.0, 2.0)  # until the first message, and between two: short plans print none
LIVE_ROUNDS_MAX = 5  # each round reads what the previous one lacked; the second reads injected objects

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


def plan_of_files(
    given: PlanInput,
    how: Settings,
    *,
    only: Only | None = None,
    delete: Sequence[str] = (),
    with_diffs: bool = False,
    progress: Progress = quiet,
) -> Document:
    """Plan without a live system: the manifests are the whole cluster, or changes to exports."""
    objects, errors = admitted(given.manifests)
    if errors:
        return {**document_of(Preview([], objects)), "errors": errors}
    if given.exports:
        export = merged(given.exports)
        result = _previewed(export, objects, how, only, delete, progress)
        document = document_of(result, with_diffs=with_diffs)
        _add_errors(document, [*unread(export, objects), *export_lacks(export, result)])
        document["notes"] += unpreviewable(objects)
        return document
    changes = Changes(delete=deletions(delete, objects)) if delete else None
    result = preview(World(objects), only=only, limits=how.limits, changes=changes, progress=progress)
    document = document_of(result)
    if with_diffs:
        render_packages(document, how.functions)
        document["diffs"] = package_diffs(result.writes, document["packages"])
    if only is None:  # a plan of a single controller need not be complete
        _add_errors(document, files_lack(result))
    return document


def merged(exports: Sequence[Export]) -> Export:
    """Merge several exports of one live system.

    Raises UsageError if they hold different versions of an object, or are of two kinds of systems.
    """
    first = exports[0]
    found: dict[tuple[str, str, str, str], Object] = {}
    for export in exports:
        if export.server != first.server:
            raise UsageError(
                "the exports are of two systems, with the package servers "
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


def plan_of_live(
    data: str | None,
    kubeconfig: str | None,
    given: PlanInput,
    how: Settings,
    *,
    only: Only | None = None,
    delete: Sequence[str] = (),
    with_diffs: bool = False,
    progress: Progress = quiet,
) -> Document:
    """Plan against a live system, which is only read."""
    objects, errors = admitted(given.manifests)
    if errors:
        return {**document_of(Preview([], objects)), "errors": errors}

    async def plan_live() -> tuple[Export, Preview]:
        async with connect_live(data, kubeconfig) as cluster:
            reader = LiveReader(cluster, "", progress)
            export = await reader.read(objects, every_package=False)
            for _ in range(LIVE_ROUNDS_MAX):
                # In a thread: the preview has an event loop of its own, with virtual time.
                result = await asyncio.to_thread(_previewed, export, objects, how, only, delete, progress)
                if not missing_kinds(export, result) and not missing_files(export, result):
                    break
                for kind in missing_kinds(export, result):
                    await reader.read_kind(kind)
                await reader.read_files(missing_files(export, result))
            return export, result

    export, result = asyncio.run(plan_live())
    document = document_of(result, with_diffs=with_diffs)
    _add_errors(document, export_lacks(export, result))
    document["notes"] += unpreviewable(objects)
    return document


def _previewed(
    export: Export,
    objects: Sequence[Object],
    how: Settings,
    only: Only | None,
    delete: Sequence[str],
    progress: Progress,
) -> Preview:
    server: Literal["pvbus", "porch"] = "pvbus" if export.server == "pvbus" else "porch"
    world = World(export.items, export.resources, server, how.functions)
    changes = Changes(objects, deletions(delete, [*export.items, *objects]))
    return preview(world, only=only, limits=how.limits, changes=changes, progress=progress)


def _add_errors(document: Document, errors: Sequence[str]) -> None:
    if errors:
        document["errors"] = [*document.get("errors", ()), *errors]
        document["troubles"] = [*errors, *document["troubles"]]


# ------------------------------------------------------------ the command


@click.command(
    short_help="Preview every write of some manifests.",
    epilog="""\b
Examples:
  pvbus plan -f manifests/                         what a folder of manifests would lead to, alone
  pvbus plan --data .pvbus -f changes.yaml         what changes would lead to in `pvbus up`
  pvbus plan --kubeconfig ~/.kube/config           what the services have still to do in a cluster
  pvbus plan --data .pvbus --delete cluster/default/edge-1
  pvbus export --data .pvbus -o live.json          for CI, where no cluster can be reached:
  pvbus plan -f live.json -f changes.yaml --check

\b
Exit codes: 0 done; 1 something failed or is missing; 2 bad usage.
With --check: 0 nothing to do; 1 failed, stalled or held; 3 there are changes.
""",
)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Manifests or exports: a file or a folder. With a live system or an export they are changes: each "
    "object replaces the one of its kind, namespace and name. Repeatable.",
)
@click.option("--data", help="Plan against the live `pvbus up` of this data folder.")
@click.option("--kubeconfig", help="Plan against this cluster. It is only read.")
@click.option(
    "--delete",
    "deleted",
    multiple=True,
    metavar="KIND/NAMESPACE/NAME",
    help="Plan as if this object were deleted. Repeatable.",
)
@click.option("--only", type=click.Choice(["sets", "variants"]), help="Run one controller, once.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--check", is_flag=True, help="Tell by the exit code whether there is anything to do.")
@click.option(
    "--render",
    is_flag=True,
    help="Also show the diff of package files, after their pipelines (built-in functions).",
)
def plan(
    files: tuple[Path, ...],
    data: str | None,
    kubeconfig: str | None,
    deleted: tuple[str, ...],
    only: Only | None,
    output: str,
    check: bool,
    render: bool,
) -> None:
    """Preview every write that the services would make, with field differences and reasons.

    With --data or --kubeconfig it reads what is there, applies the files to a copy in memory, and lets
    the services decide on it: nothing is ever written to the live system. Without, the files are the whole
    cluster: give target objects, Repositories and PackageRevisions (with PackageRevisionResources) along
    with the sets, or take them from a live system with `pvbus export`.
    """
    is_live = bool(data or kubeconfig)
    if not files and not is_live:
        raise UsageError(
            "nothing to plan: give manifests (-f FILE), a live system (--data DIR or --kubeconfig FILE), "
            "or both"
        )
    if data and kubeconfig:
        raise UsageError("--data and --kubeconfig are two live systems: give one of them")
    configure("error")
    given = read_input(files)
    if is_live and given.exports:
        raise UsageError("an export stands for a live system: give either it, or --data or --kubeconfig")
    how = settings()
    say = progress_printer()
    if is_live:
        document = plan_of_live(
            data, kubeconfig, given, how, only=only, delete=deleted, with_diffs=render, progress=say
        )
    else:
        document = plan_of_files(given, how, only=only, delete=deleted, with_diffs=render, progress=say)
    if output == "json":
        json.dump(document, sys.stdout, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        _print_text(document)
    sys.exit(exit_code(document, check=check))


def exit_code(document: Document, *, check: bool) -> int:
    """Return the exit code of the command."""
    if document.get("errors"):
        return FAILED
    if not check:
        return 0
    if document["troubles"] or document["held"]:
        return FAILED
    return CHANGED if document["actions"] else 0


def progress_printer() -> Progress:
    """Return a function that prints progress to stderr if the work takes long."""
    first, between = PROGRESS_SECONDS
    due = time.monotonic() + first

    def say(words: str) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + between
            print(f"plan: {words} ...", file=sys.stderr, flush=True)

    return say


def _print_text(document: Document) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for line in plan_lines(document):
        console.print(line)


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
