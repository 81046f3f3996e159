"""Reads a set's variants and their package revisions, and works on many of them at once."""

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
import msgspec

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.datafolder import DataPaths
from pvbus.cli.live import FILES, REVISION
from pvbus.cli.objectnames import Scope, named, namespace_option, object_argument, typed
from pvbus.cli.progress import SET, VARIANT
from pvbus.cli.reading import data_option
from pvbus.core.api.variants import PackageVariant
from pvbus.core.errors import ConflictError, PermanentError, TransientError, UsageError
from pvbus.core.kernel.backoff import Backoff
from pvbus.core.kernel.holds import is_held
from pvbus.core.kernel.keys import SET_UID_LABEL, Key
from pvbus.core.kernel.objects import owner_name
from pvbus.core.variants.revisions.owning import belongs_to, is_terminating
from pvbus.ports.cluster import Cluster, Kind, Object, Resource
from pvbus.runtime.backoff import uniform
from pvbus.telemetry.terminal import unfiltered

PARALLEL_MAX = 8  # an approval pushes to git: more at once would only wait for each other there
TRY_SECONDS_MAX = 15.0  # how long conflicts and refusals for a while are tried again, for each object
TRY_PAUSE_SECONDS = (0.1, 2.0)
LINE_SECONDS = 2.0  # between two lines of progress where there is no terminal

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int, str], AbstractContextManager[Callable[[int], None]]]
"""Shows how many of a number of items are done, by what it yields."""

kubeconfig_option = click.option(
    "--kubeconfig", help="The API server's kubeconfig; by default the data folder's."
)


class Target(NamedTuple):
    """A variant, or a set."""

    kind: Kind
    key: Key

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.key}"

    @property
    def arguments(self) -> str:
        """The arguments of a command about it."""
        return f"--set {self.key}" if self.kind == SET else str(self.key)


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments that name a variant or a set, and the options of the API server."""
    for option in (
        data_option,
        kubeconfig_option,
        namespace_option,
        click.option(
            "--set", "set_name", metavar="[NAMESPACE/]SET", help="A whole set, in place of one variant."
        ),
        object_argument("[KIND] NAME", (VARIANT, SET), required=False),
    ):
        command = option(command)
    return command


def target_of(words: Sequence[str], set_name: str | None, scope: Scope) -> Target:
    """Return the variant or set that the arguments name. Raises UsageError."""
    if bool(words) == bool(set_name):
        raise UsageError(
            "name one variant (NAMESPACE/VARIANT) or one set (--set NAMESPACE/SET, or pvs/NAMESPACE/SET)"
        )
    kinds = (SET,) if set_name else (VARIANT, SET)
    target = named((set_name,) if set_name else words, kinds, scope)
    return Target(target.kind or kinds[0], target.key)


async def annotate(cluster: Cluster, kind: Kind, obj: Object, annotations: Mapping[str, str | None]) -> None:
    """Set annotations of an object; None removes one. Raises ConflictError if it was recreated meanwhile."""
    meta = obj["metadata"]
    patch = {"metadata": {"uid": meta["uid"], "annotations": annotations}}
    await cluster.patch(await require_served(cluster, kind), meta["namespace"], meta["name"], patch)


@asynccontextmanager
async def api_server(data: str, kubeconfig: str | None) -> AsyncIterator[Cluster]:
    """Connect to the API server that the options name. Raises UsageError, TransientError."""
    path = Path(kubeconfig) if kubeconfig else DataPaths(Path(data)).kubeconfig
    if not path.exists():
        raise UsageError(f"there is no {path}: name the API server's kubeconfig with --kubeconfig")
    cluster = await HttpCluster.connect(path)
    try:
        yield cluster
    except TransientError as exc:
        raise TransientError(f"the API server of {path} does not answer: {exc}") from exc
    finally:
        await cluster.close()


async def run_connected(
    data: str, kubeconfig: str | None, work: Callable[[Cluster], Awaitable[Result]]
) -> Result:
    async with api_server(data, kubeconfig) as cluster:
        return await work(cluster)


async def require_served(cluster: Cluster, kind: Kind) -> Resource:
    resource = await cluster.resource(kind)
    if resource is None:
        raise PermanentError(f"the API server does not serve {kind.kind} ({kind.group}): check --kubeconfig")
    return resource


async def files_of(cluster: Cluster, namespace: str, name: str) -> Object:
    """Read the files of a package revision. Raises PermanentError if they are gone."""
    found = await cluster.get(await require_served(cluster, FILES), namespace, name)
    if found is None:
        raise PermanentError(f"the files of PackageRevision {namespace}/{name} are gone: try again")
    return found


async def existing(cluster: Cluster, kind: Kind, key: Key) -> Object:
    """Read an object. Raises PermanentError if it does not exist."""
    found = await cluster.get(await require_served(cluster, kind), *key)
    if found is None:
        hint = await _other_kind(cluster, kind, key) or "check namespace and name"
        raise PermanentError(f"there is no {kind.kind} {key}: {hint}")
    return found


async def _other_kind(cluster: Cluster, kind: Kind, key: Key) -> str:
    """Return what to type where a set has the name that was taken for a variant's, "" where none has."""
    resource = await cluster.resource(SET) if kind == VARIANT else None
    if resource is None or await cluster.get(resource, *key) is None:
        return ""
    return f"a {SET.kind} has this name; for that one write {typed(SET, key)}"


def on_hold(obj: Object) -> bool:
    return is_held(obj["metadata"].get("annotations"))


def key_of(obj: Object) -> Key:
    return Key(obj["metadata"]["namespace"], obj["metadata"]["name"])


async def set_of(cluster: Cluster, variant: Object) -> Object | None:
    """Read the set that made a variant, None if none did or it is gone."""
    name = owner_name(variant, SET.kind)
    if not name:
        return None
    return await cluster.get(await require_served(cluster, SET), key_of(variant).namespace, name)


# ------------------------------------------------------------ a set's variants


class Member(NamedTuple):
    """A package revision of a variant."""

    variant: PackageVariant
    revision: Object

    @property
    def key(self) -> Key:
        return Key(self.variant.metadata.namespace, self.variant.metadata.name)

    @property
    def name(self) -> str:
        return str(self.revision["metadata"]["name"])


async def variants_of(cluster: Cluster, owner: Object) -> list[Object]:
    """List the variants of a set, by name."""
    meta = owner["metadata"]
    selector = f"{SET_UID_LABEL}={meta['uid']}"
    listing = await cluster.list(
        await require_served(cluster, VARIANT), meta["namespace"], label_selector=selector
    )
    return sorted(listing.items, key=lambda obj: str(obj["metadata"]["name"]))


def selector_at(variant: Object, end: str) -> str:
    """Return the field selector of the revisions at an end of a variant."""
    package = (variant.get("spec") or {}).get(end) or {}
    return f"spec.repository={package.get('repo', '')},spec.packageName={package.get('package', '')}"


async def members_of(
    cluster: Cluster, namespace: str, variants: Sequence[Object], field_selector: str = ""
) -> list[Member]:
    """List the revisions of these variants of a namespace, except those that are being deleted."""
    resource = await require_served(cluster, REVISION)
    by_owner: dict[str, list[Object]] = {}
    for obj in (await cluster.list(resource, namespace, field_selector=field_selector)).items:
        for reference in obj["metadata"].get("ownerReferences") or ():
            full = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
            by_owner.setdefault(reference.get("uid", ""), []).append(full)
    decoded = [msgspec.convert(variant, PackageVariant) for variant in variants]
    return [
        Member(variant, revision)
        for variant in decoded
        for revision in by_owner.get(variant.metadata.uid, ())
        if belongs_to(revision, variant) and not is_terminating(revision)
    ]


async def current(cluster: Cluster, member: Member) -> Member | None:
    """Read a variant and its revision again; None if one of them is gone."""
    variant = await cluster.get(await require_served(cluster, VARIANT), *member.key)
    revision = await cluster.get(await require_served(cluster, REVISION), member.key.namespace, member.name)
    if variant is None or revision is None:
        return None
    return Member(msgspec.convert(variant, PackageVariant), revision)


# ------------------------------------------------------------ many at once


@contextmanager
def counter(total: int, words: str) -> Iterator[Callable[[int], None]]:
    """Show on standard error how many are done: as a bar on a terminal, elsewhere as a line now and then."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=unfiltered(sys.stderr), highlight=False)
    if console.is_terminal:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(words, total=total)
            yield lambda done: progress.update(task, completed=done)
        return
    said_at = time.monotonic()

    def line(done: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= LINE_SECONDS and done < total:
            said_at = time.monotonic()
            click.echo(f"{words}: {done} of {total}", err=True)

    yield line


@contextmanager
def silent(total: int, words: str) -> Iterator[Callable[[int], None]]:
    """Show nothing: for a process whose terminal belongs to somebody else."""
    yield lambda done: None


async def work_off(
    items: Sequence[Item],
    work: Callable[[Item], Awaitable[Result]],
    words: str,
    progress: Progress = counter,
) -> tuple[list[Result], bool]:
    """Work on items, some at a time; return the results, and whether a person has interrupted it.

    An interruption starts nothing new and waits for what has begun.
    """
    left = deque(items)
    results: list[Result] = []
    with progress(len(items), words) as count:

        async def worker() -> None:
            while left:
                results.append(await work(left.popleft()))
                count(len(results))

        workers = [asyncio.create_task(worker()) for _ in range(min(PARALLEL_MAX, len(items)))]
        if not workers:
            return results, False
        interrupted = False
        try:
            await asyncio.wait(workers)
        except asyncio.CancelledError:
            interrupted = True
            left.clear()
            await asyncio.wait(workers)
    for each in workers:
        each.result()
    return results, interrupted


async def persist(attempt: Callable[[], Awaitable[Result]]) -> Result:
    """Try again after conflicts and refusals for a while. Raises the last error after TRY_SECONDS_MAX."""
    backoff = Backoff(*TRY_PAUSE_SECONDS, uniform)
    deadline = time.monotonic() + TRY_SECONDS_MAX
    while True:
        try:
            return await attempt()
        except (ConflictError, TransientError) as exc:
            pause = backoff.next_seconds(exc)
            if time.monotonic() + pause > deadline:
                raise
        await asyncio.sleep(pause)
