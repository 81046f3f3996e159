"""Reads the objects that `pvbus packages` works on, from an API server or from files."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from pvbus.adapters.manifests import read_manifests
from pvbus.cli.fleet import api_server, kubeconfig_option
from pvbus.cli.objectnames import INSTALL, Scope, named
from pvbus.cli.reading import data_option
from pvbus.core.errors import UsageError
from pvbus.core.kernel.keys import ObjectKey, okey
from pvbus.core.platform.packaging.builtin import BUILTIN_OFFERS
from pvbus.core.platform.packaging.carvelfacts import Facts
from pvbus.core.platform.packaging.carvelobjects import ReadObjects, facts_of
from pvbus.core.platform.packaging.reading import Problem
from pvbus.core.platform.solver.model import OfferNeed, flattened
from pvbus.ports.cluster import Cluster, Kind, Object
from pvbus.telemetry.terminal import one_line

PACKAGE = Kind("data.packaging.carvel.dev", "Package")
DEFINITION = Kind("apiextensions.k8s.io", "CustomResourceDefinition")


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of where the objects are."""
    for option in (
        data_option,
        kubeconfig_option,
        click.option(
            "-f",
            "--file",
            "files",
            multiple=True,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Read files or folders of manifests in place of an API server.",
        ),
    ):
        command = option(command)
    return command


def read_facts(files: tuple[Path, ...], kubeconfig: str | None, data: str) -> ReadObjects:
    """Read installs, packages and served APIs. What cannot be read is left out, and told."""
    if files and kubeconfig:
        raise UsageError("-f excludes --kubeconfig: read from files or from an API server")
    if files:
        return _facts([each.object for each in read_manifests(files)], BUILTIN_OFFERS)
    return asyncio.run(_live(kubeconfig, data))


async def _live(kubeconfig: str | None, data: str) -> ReadObjects:
    async with api_server(data, kubeconfig) as cluster:
        return await live_facts(cluster)


async def live_facts(cluster: Cluster) -> ReadObjects:
    """Read the objects of an API server, and ask it for each API that a package needs."""
    objects: list[Object] = []
    for kind in (INSTALL, PACKAGE, DEFINITION):
        resource = await cluster.resource(kind)
        if resource is None:
            continue
        for each in (await cluster.list(resource)).items:
            objects.append({"apiVersion": resource.api_version, "kind": kind.kind, **each})
    read = _facts(objects, ())
    facts = read.facts
    served = set(facts.offers)
    for offer in sorted(_needed(facts) - served):
        version, _, kind_name = offer.removeprefix("API ").partition(" ")
        group, _, name = version.rpartition("/")
        if name in await cluster.versions(Kind(group, kind_name)):
            served.add(offer)
    return read._replace(facts=facts._replace(offers=frozenset(served)))


def _facts(objects: Iterable[Object], offers: Iterable[str]) -> ReadObjects:
    """Read objects. One that cannot be read, and is no install, is told on standard error."""
    read = facts_of(objects, frozenset(offers))
    for each in read.problems:
        if not is_install(each):
            key = ObjectKey.parse(each.okey)
            name = f"{key.namespace}/{key.name}" if key.namespace else key.name
            click.echo(one_line(f"{key.kind} {name} cannot be read: {each.message}"), err=True)
    return read


def is_install(problem: Problem) -> bool:
    """Say whether it is an install that cannot be read."""
    return problem.okey.startswith(f"{INSTALL}|")


def _needed(facts: Facts) -> set[str]:
    return {
        leaf.offer
        for package in facts.packages
        for requirement in package.candidate.requirements
        for leaf in flattened(requirement.need)
        if isinstance(leaf, OfferNeed)
    }


def install_named(words: Sequence[str], scope: Scope) -> tuple[str, str]:
    """Return the okey of the PackageInstall that a command line names, and its name. Raises UsageError."""
    key = named(words, (INSTALL,), scope).key
    return okey(INSTALL.group, INSTALL.kind, *key), str(key)
