"""`pvbus packages delete`: lists what goes and what stays, and deletes it."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from pvbus.cli.fleet import api_server, require_served
from pvbus.cli.objectnames import INSTALL, Scope, namespace_option, object_argument
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.packages.input import (
    input_options,
    install_named,
    is_install,
    live_facts,
    read_facts,
)
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import ObjectKey, namespaced_name
from pvbus.core.platform.packaging.carvelobjects import ReadObjects
from pvbus.core.platform.resolve.removal import Going, RemovalPlan, Staying, removal_plan
from pvbus.ports.cluster import Cluster, Resource

POLL_SECONDS = 0.5
"""The time between two looks whether an install is gone. Uninstalling takes seconds, and a look is one small
read."""


@click.command(
    short_help="Delete an install, with what belongs to it if asked.",
    epilog="""\b
Examples:
  pvbus packages delete demo/pkg-demo                      only this one; shows what it means
  pvbus packages delete demo/pkg-demo --dependencies --yes
  pvbus packages delete demo/certs --dependants            shows what would go
  pvbus packages delete demo/certs --dependants -f packages/
""",
)
@object_argument("[KIND] NAME", (INSTALL,))
@namespace_option
@click.option("--dependants", is_flag=True, help="Delete what needs it as well, installs of users among it.")
@click.option(
    "--dependencies", is_flag=True, help="Delete what was created for it, if nothing else holds that."
)
@click.option("-y", "--yes", is_flag=True, help="Delete more than the install itself, or harm others.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    help="Seconds in which each install must be gone before what it needs is deleted.",
)
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@input_options
def delete(
    words: tuple[str, ...],
    namespace: str | None,
    dependants: bool,
    dependencies: bool,
    yes: bool,
    wait_seconds: float,
    output: str,
    files: tuple[Path, ...],
    kubeconfig: str | None,
    data: str,
) -> None:
    """Delete a PackageInstall. What goes and what stays is listed first, with the reasons.

    If more goes than the install itself, or another install fails without it, nothing is deleted without
    --yes. What needs others is deleted before what it needs. With -f nothing is deleted: it is a preview.

    Exit codes: 0 deleted, or shown with -f; 1 nothing was deleted, or not all; 2 bad usage.
    """
    okey, name = install_named(words, Scope(namespace, data, kubeconfig))
    if files:
        read = read_facts(files, kubeconfig, data)
        plan = _planned(read, okey, name, dependants=dependants, dependencies=dependencies)
        _show(plan, output, deleted=None)
        return
    code = asyncio.run(
        _delete(okey, name, dependants, dependencies, yes, wait_seconds, output, kubeconfig, data)
    )
    sys.exit(code)


def _planned(read: ReadObjects, okey: str, name: str, *, dependants: bool, dependencies: bool) -> RemovalPlan:
    """Return what the deletion means. What an install that cannot be read needs is not known, and stays.

    Raises PermanentError without such an install, and if more is to go than is known.
    """
    unread = {each.okey: each for each in read.problems if is_install(each)}
    beside = [each for each in unread if _namespace(each) == _namespace(okey)]
    if beside and (dependants or dependencies):
        raise PermanentError(
            f"{', '.join(map(namespaced_name, beside))} cannot be read, so what it needs is not known: "
            f"{unread[beside[0]].message}; correct that, or delete {name} alone"
        )
    if okey in unread:
        problem = unread[okey]
        uid = problem.bare.uid if problem.bare else ""
        why = f"you delete it; it cannot be read: {problem.message}"
        return RemovalPlan((Going(okey, "-", "", "asked", why, uid),), ())
    if okey not in read.facts.installs:
        raise PermanentError(f"there is no PackageInstall {name}: check namespace and name")
    plan = removal_plan(read.facts, okey, dependants=dependants, dependencies=dependencies)
    why = "it cannot be read, so whether it needs what goes is not known"
    return plan._replace(stays=(*plan.stays, *(Staying(each, "-", "", why) for each in beside)))


def _namespace(okey: str) -> str:
    return ObjectKey.parse(okey).namespace


async def _delete(
    okey: str,
    name: str,
    dependants: bool,
    dependencies: bool,
    yes: bool,
    wait_seconds: float,
    output: str,
    kubeconfig: str | None,
    data: str,
) -> int:
    async with api_server(data, kubeconfig) as cluster:
        plan = _planned(
            await live_facts(cluster), okey, name, dependants=dependants, dependencies=dependencies
        )
        if plan.is_more and not yes:
            _show(plan, output, deleted=())
            click.echo("nothing was deleted: add --yes to delete all that is listed", err=True)
            return 1
        deleted = await delete_in_order(
            cluster, [each for each in plan.goes if each.cause != "policy"], wait_seconds
        )
        _show(plan, output, deleted=deleted)
        return 0


async def delete_in_order(cluster: Cluster, goes: Sequence[Going], wait_seconds: float) -> tuple[str, ...]:
    """Delete installs in this order, each after the one before is gone. Raises PermanentError."""
    resource = await require_served(cluster, INSTALL)
    deleted: list[str] = []
    for index, each in enumerate(goes):
        key = ObjectKey.parse(each.okey)
        await cluster.delete(resource, key.namespace, key.name, uid=each.uid)
        deleted.append(each.okey)
        if index < len(goes) - 1 and not await _is_gone(cluster, resource, key, wait_seconds):
            rest = ", ".join(namespaced_name(one.okey) for one in goes[index + 1 :])
            raise PermanentError(
                f"{namespaced_name(each.okey)} is still there after {wait_seconds:g} s, so what it may need "
                f"was not deleted: {rest}; see its status, and run the command again"
            )
    return tuple(deleted)


async def _is_gone(cluster: Cluster, resource: Resource, key: ObjectKey, wait_seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    while await cluster.get(resource, key.namespace, key.name) is not None:
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


def _show(plan: RemovalPlan, output: str, *, deleted: Sequence[str] | None) -> None:
    """Print a plan.

    deleted: what was deleted, None if nothing is to be
    """
    if output != "text":
        emit(document_of(plan, deleted or ()), output)
        return
    rows = [
        ("goes", namespaced_name(one.okey), one.package, one.version or "-", one.why) for one in plan.goes
    ]
    rows += [
        ("stays", namespaced_name(one.okey), one.package, one.version or "-", one.why) for one in plan.stays
    ]
    columns(("", "INSTALL", "PACKAGE", "VERSION", "WHY"), rows)
    if deleted:
        click.echo(f"deleted: {', '.join(map(namespaced_name, deleted))}")


def document_of(plan: RemovalPlan, deleted: Sequence[str]) -> dict[str, Any]:
    """Return a plan as plain values."""
    return {
        "goes": [
            {
                "install": namespaced_name(each.okey),
                "package": each.package,
                "version": each.version,
                "cause": each.cause,
                "why": each.why,
            }
            for each in plan.goes
        ],
        "stays": [
            {
                "install": namespaced_name(each.okey),
                "package": each.package,
                "version": each.version,
                "fails": each.is_harmed,
                "why": each.why,
            }
            for each in plan.stays
        ],
        "deleted": [namespaced_name(each) for each in deleted],
    }
