"""`pvbus packages compare`: what pvbus would decide, beside what is installed."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from pvbus.adapters.manifests import kind_of, read_manifests
from pvbus.cli.fleet import api_server
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.packages.comparison import (
    BESIDE,
    Comparison,
    Unsupported,
    comparisons,
    unsupported_beside,
)
from pvbus.cli.packages.input import input_options
from pvbus.cli.packages.published import PublishedFiles
from pvbus.cli.platforms import platform_option, platforms_of
from pvbus.core.errors import PROGRAM_MISSING, PvbusError, UsageError
from pvbus.core.kernel.effects import Effect, Execute, Get, Observe, Pull
from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey, okey
from pvbus.core.kernel.packagekinds import CARVEL_PACKAGE, IMAGE_CONFIG, MIRRORED, RUNTIME_CONFIG
from pvbus.core.kernel.packagerows import LockRow
from pvbus.core.platform.establish.applying import RefusedError
from pvbus.core.platform.establish.carvel import unsupported
from pvbus.core.platform.establish.fetching import fetch_content
from pvbus.core.platform.establish.runtime import RUN, RuntimeIdentity, runtime_of
from pvbus.core.platform.establish.runtimeconfigs import RuntimeConfigs
from pvbus.core.platform.establish.templating import NOT_SUPPORTED, setting_of
from pvbus.core.platform.packaging.carvelobjects import GLOBAL_NAMESPACE
from pvbus.core.platform.packaging.imageconfigs import SECRET, ImageConfigs
from pvbus.core.platform.packaging.reading import install_of, okey_of
from pvbus.core.platform.resolve.plans import Settings, shown
from pvbus.ports.cluster import Cluster, Object
from pvbus.ports.sources import Sources
from pvbus.runtime.preview.locking import DecidedLock, Perform, decide_lock, drive
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.settings import ServicesConfig
from pvbus.runtime.process.sources import secrets_of, sources_of
from pvbus.runtime.reconcile.effects import perform as perform_on
from pvbus.runtime.reconcile.programs import execute


@click.command(
    short_help="Compare what pvbus would decide with what is installed.",
    epilog="""\b
Examples:
  pvbus packages compare --kubeconfig ~/.kube/config --platform crossplane=2.0.2
  pvbus packages compare --installer others
  pvbus packages compare -f exported/ -o json
""",
)
@click.option(
    "--installer",
    type=click.Choice(["pvbus", "others"]),
    default="pvbus",
    show_default=True,
    help="With others, Crossplane and kapp-controller go on installing: what only they do is no difference.",
)
@platform_option
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@input_options
def compare(
    installer: str,
    platforms: tuple[str, ...],
    output: str,
    files: tuple[Path, ...],
    kubeconfig: str | None,
    data: str,
) -> None:
    """Compare what Crossplane and kapp-controller have installed with what pvbus would decide.

    Nothing is written. The service resolve decides on Providers, Configurations, Functions, Packages and
    PackageInstalls as it would after its first start; what is installed is in their statuses, active
    revisions and the Lock. Packages are read from their sources, with the pull secrets of the cluster. With
    -f, manifests of meta.pkg.crossplane.io that have the annotations of `pvbus resolve` stand in for their
    sources.

    \b
    An install is:
      equal         pvbus decides what is installed
      other         another version, or another content of the version, and why
      missing       not there: pvbus would create it
      refused       refused, with the reason
      undecided     waits for a source or a person
      unsupported   equal, and its package needs what only Crossplane or kapp-controller does

    Exit codes: 0 everything is equal, 1 something differs, 2 bad usage.
    """
    config = load_config(ServicesConfig)
    named = platforms_of(platforms)
    settings = config.resolving
    settings = settings._replace(
        platforms=tuple(sorted({**dict(settings.platforms), **named}.items())),
        is_verified_beside=installer == "others",
    )
    if files and kubeconfig:
        raise UsageError("-f excludes --kubeconfig: read from files or from an API server")
    compared = asyncio.run(_compare(files, kubeconfig, data, config, settings, installer))
    if output == "text":
        _show(compared)
    else:
        emit(document_of(compared), output)
    sys.exit(0 if compared.is_equal else 1)


class Compared(NamedTuple):
    """All comparisons, and what the installer pvbus does not do."""

    installs: Sequence[Comparison]
    unsupported: Sequence[Unsupported]

    @property
    def is_equal(self) -> bool:
        return not self.unsupported and all(each.verdict == "equal" for each in self.installs)


async def _compare(
    files: tuple[Path, ...],
    kubeconfig: str | None,
    data: str,
    config: ServicesConfig,
    settings: Settings,
    installer: str,
) -> Compared:
    async with _input(files, kubeconfig, data, config) as (objects, perform):
        decided = await decide_lock(
            [each for each in objects if kind_of(each) in MIRRORED],
            perform,
            settings=settings,
            namespace=config.package_namespace,
        )
        gaps: list[Unsupported] = []
        if installer == "pvbus":
            gaps = [each async for each in _gaps(objects, decided, perform, config.package_namespace)]
            gaps += unsupported_beside(objects)
    return Compared(comparisons(objects, decided.rows, gaps), gaps)


# ---------------------------------------------------------------- what is read


@asynccontextmanager
async def _input(
    files: tuple[Path, ...], kubeconfig: str | None, data: str, config: ServicesConfig
) -> AsyncIterator[tuple[list[Object], Perform]]:
    """Yield the objects, and what answers the effects of decisions."""
    if files:
        objects = [each.object for each in read_manifests(files)]
        sources: Sources = sources_of(config, None, local_folders=("/",))
        try:
            yield objects, _performer(objects, None, sources)
        finally:
            await sources.close()
        return
    async with api_server(data, kubeconfig) as cluster:
        objects = await _list_objects(cluster)
        sources = sources_of(config, secrets_of(cluster), local_folders=("/",))
        try:
            yield objects, _performer(objects, cluster, sources)
        finally:
            await sources.close()


async def _list_objects(cluster: Cluster) -> list[Object]:
    objects: list[Object] = []
    for kind in (*MIRRORED, *BESIDE):
        resource = await cluster.resource(kind)
        if resource is not None:
            items = (await cluster.list(resource)).items
            objects += ({**each, "apiVersion": resource.api_version, "kind": kind.kind} for each in items)
    return objects


def _performer(objects: Sequence[Object], cluster: Cluster | None, sources: Sources) -> Perform:
    """Return what answers effects; one that would write anything is an error of ours."""
    published = PublishedFiles(objects)
    there = {okey_of(each): each for each in objects}

    async def perform(effect: Effect) -> Any:
        if isinstance(effect, Observe | Pull) and effect.source in published:
            return published.read(effect)
        if isinstance(effect, Observe):
            return await sources.observe(effect.source, effect.tags, effect.secrets)
        if isinstance(effect, Pull):
            return await sources.pull(effect.source, effect.digest, effect.secrets)
        if isinstance(effect, Execute):
            return await execute(effect)
        assert isinstance(effect, Get), effect
        if cluster is not None:
            return await perform_on(cluster, effect)
        if effect.kind == SECRET:
            return {}  # files have none: sources are read without
        return there.get(okey(effect.kind.group, effect.kind.kind, effect.namespace, effect.name))

    return perform


# ---------------------------------------------------------------- what is not supported


async def _gaps(
    objects: Sequence[Object], decided: DecidedLock, perform: Perform, namespace: str
) -> AsyncIterator[Unsupported]:
    """Yield what of each install that gets a version the service establish refuses, or leaves out."""
    packages = {okey_of(each): each for each in objects if kind_of(each) == CARVEL_PACKAGE}
    configs, images = RuntimeConfigs(), ImageConfigs(namespace)
    for obj in objects:
        if kind_of(obj) == RUNTIME_CONFIG:
            configs.observe(obj["metadata"]["name"], obj)
        elif kind_of(obj) == IMAGE_CONFIG:
            images.observe(okey_of(obj), obj)
    for obj in objects:
        install = install_of(obj) if okey_of(obj) in decided.rows else None
        if not isinstance(install, Install):
            continue
        row = decided.rows[install.okey]
        if row.status == "locked" and install.family == "crossplane":
            address = images.access(row.package, install.secrets).address
            chosen = images.runtime(install.runtime_config, address, row.version, row.digest)
            for text in _crossplane_gaps(install, row, decided, partial(configs.spec_of, chosen), namespace):
                yield _unsupported(install, text)
        elif row.status == "locked":
            package = _package_of(packages, install, row)
            for text in await _carvel_gaps(obj, package, perform):
                yield _unsupported(install, text)


_FIELD = re.compile(r"(?:the annotation )?((?:[\w-]+[./])+[\w./-]+|runtimeConfigRef|kbld)\b")


def _unsupported(install: Install, text: str) -> Unsupported:
    """Return a gap. text: the field, then the rest of a sentence; else it is of all packages of its kind."""
    match = _FIELD.match(text)
    return Unsupported(shown(install.okey), match[1] if match else "kind", text)


def _crossplane_gaps(
    install: Install,
    row: LockRow,
    decided: DecidedLock,
    config_of: Callable[[], Mapping[str, Any]],
    namespace: str,
) -> Sequence[str]:
    content = decided.contents.get(f"{row.package}|{row.digest}")
    meta: Mapping[str, Any] = content.meta if content else {}
    name = ObjectKey.parse(install.okey).name
    try:
        config = config_of() if meta.get("kind") in RUN else {}
    except RefusedError as refusal:
        return [f"runtimeConfigRef: {refusal.message}"]
    gap = runtime_of(install, meta, (), RuntimeIdentity(name, "", name, namespace), row.package, config).gap
    return [gap] if gap else []


def _package_of(packages: Mapping[str, Object], install: Install, row: LockRow) -> Object | None:
    name = f"{row.package}.{row.version}"
    keys = (okey(*CARVEL_PACKAGE, each, name) for each in (install.target, GLOBAL_NAMESPACE))
    return next((packages[key] for key in keys if key in packages), None)


async def _carvel_gaps(obj: Object, package: Object | None, perform: Perform) -> list[str]:
    """Return what the install and the content of its package need, in words."""
    if refused := unsupported(obj):
        return [refused]
    if package is None:
        return []
    try:
        content = await drive(fetch_content(package, setting_of(obj, "")), perform)
    except RefusedError as refusal:
        is_named = refusal.reason in (NOT_SUPPORTED, PROGRAM_MISSING)
        return [refusal.message] if is_named else [f"its content: {refusal.message}"]
    except PvbusError as error:
        return [f"its content cannot be read: {error}"]
    return list(content.gaps)


# ---------------------------------------------------------------- what is printed


def _show(compared: Compared) -> None:
    if compared.installs:
        columns(("INSTALL", "PACKAGE", "INSTALLED", "PVBUS", "VERDICT", "WHY"), map(_row, compared.installs))
    else:
        click.echo("there are no installs", err=True)
    for each in compared.unsupported:
        click.echo(f"not supported: {each.object}: {each.message}")
    click.echo(_sum(compared))


def _row(each: Comparison) -> tuple[str, ...]:
    versions = (each.installed or "-", each.decided or "-")
    return (shown(each.okey), each.package, *versions, each.verdict, each.why)


def _sum(compared: Compared) -> str:
    counts: dict[str, int] = {}
    for each in compared.installs:
        counts[each.verdict] = counts.get(each.verdict, 0) + 1
    return ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items())) or "0 installs"


def document_of(compared: Compared) -> dict[str, Any]:
    """Return the comparisons as plain values."""
    return {
        "isEqual": compared.is_equal,
        "installs": [
            {
                "kind": (key := ObjectKey.parse(each.okey)).kind,
                "namespace": key.namespace,
                "name": key.name,
                "package": each.package,
                "installed": each.installed,
                "decided": each.decided,
                "verdict": each.verdict,
                "why": each.why,
            }
            for each in compared.installs
        ],
        "unsupported": [each._asdict() for each in compared.unsupported],
    }
