"""`pvbus doctor`: looks at cluster and bus, and says of each thing whether it is well.

The bus is well if it is reachable, and its topics are as this release declares them.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.doctor.cluster import (
    check_definitions,
    check_marks,
    check_namespaces,
    check_packages,
    check_rivals,
    check_server,
    check_workers,
    reach,
    read_installed_services,
)
from pvbus.cli.doctor.findings import Finding
from pvbus.cli.doctor.rights import Account, check_rights, read_selected_kinds
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.reading import bus_option, names_of, open_existing_bus, read_rows
from pvbus.core.errors import PermanentError, PvbusError
from pvbus.core.kernel.keys import CHECK_PREFIX
from pvbus.core.kernel.records import WATCHES, WatchRequest
from pvbus.core.kernel.topics import ALL_SERVICES, topic_specs
from pvbus.install.applying import read_installed_setting
from pvbus.install.objects import NAMESPACE
from pvbus.ports.bus import Bus, TopicState
from pvbus.ports.cluster import Kind, Resource
from pvbus.runtime.process.configuration import variable_of
from pvbus.runtime.process.settings import split_names

AREA = "bus"


async def check_bus(url: str) -> tuple[list[Finding], set[Kind]]:
    """Return the findings, and the kinds that the services observe.

    url: the address of the bus, "" if none is known
    """
    if not url:
        action = "give --bus kafka://HOST:PORT[,HOST:PORT...][/PREFIX]"
        return [Finding(AREA, "bus", "unknown", "no bus is known", action)], set()
    try:
        async with open_existing_bus("", url) as bus:
            states = await bus.check_topics(topic_specs())
            observed = await _read_observed_kinds(bus, states)
    except PvbusError as exc:
        action = "run this where the bus can be reached, as in a pod; see address, TLS, login and ACLs"
        return [Finding(AREA, url, "wrong", str(exc), action)], set()
    return [Finding(AREA, url, "ok", "it answers"), *_topics(states)], observed


def _topics(states: list[TopicState]) -> Iterator[Finding]:
    """Yield the topics that are not as declared, or one line for all."""
    wrong = [state for state in states if state.problems or not state.is_there]
    for state in wrong:
        if state.is_there:
            message, action = state.problems[0], "; ".join(state.problems[1:]) or "pvbus topics --check"
        else:
            message, action = "is missing", "pvbus topics --create"
        yield Finding(AREA, state.name, "wrong", message, action)
    if not wrong:
        yield Finding(AREA, "topics", "ok", f"all {len(states)} are as declared")


async def _read_observed_kinds(bus: Bus, states: list[TopicState]) -> set[Kind]:
    """Return the kinds that are requested of ingest: selected by sets, or injected into packages.

    None if the topic may not be read: not every service may, in whose pod this may run.
    """
    if not any(state.name == WATCHES and state.is_there for state in states):
        return set()
    try:
        rows = await read_rows(bus, WATCHES)
    except PermanentError:
        return set()
    kinds = set()
    for key, value in rows.items():
        if not key.startswith(CHECK_PREFIX):
            try:
                request = msgspec.json.decode(value, type=WatchRequest)
            except msgspec.MsgspecError:
                continue
            kinds.add(Kind(request.group, request.kind))
    return kinds


ACCOUNTS = f"system:serviceaccount:{NAMESPACE}:pvbus-{{service}}"


@click.command(
    short_help="Find out what keeps the services from working.",
    epilog=f"""\b
Examples:
  pvbus doctor --as '{ACCOUNTS}'
  pvbus doctor --kubeconfig ~/.kube/config --bus kafka://kafka:9092 -o json
  kubectl -n {NAMESPACE} exec deploy/pvbus-ingest -- pvbus doctor --service ingest
""",
)
@click.option("--as", "user", default="", metavar="USER", help="Ask for the rights of this user instead of "
              "your own; {service} stands for the service.")  # fmt: skip
@click.option("--service", "services", multiple=True, type=click.Choice(ALL_SERVICES),
              help="Whose rights; those of all that are installed if not given.")  # fmt: skip
@click.option(
    "-n", "--namespace", default=NAMESPACE, show_default=True, help="Namespace of the installation."
)
@click.option("--namespaces", metavar="NAME,...", callback=names_of, help="That the services are limited to; "
              "if it is not given, as the installation has them.")  # fmt: skip
@click.option(
    "--kubeconfig", help="The cluster's kubeconfig [default: the pod's account, $KUBECONFIG, ~/.kube/config]."
)
@click.option("--context", help="Context in the kubeconfig; the current one if not given.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@bus_option
def doctor(
    user: str,
    services: tuple[str, ...],
    namespace: str,
    namespaces: tuple[str, ...] | None,
    kubeconfig: str | None,
    context: str | None,
    output: str,
    bus: str | None,
) -> int:
    """Look at the cluster and the bus, and name what is wrong and what to do about it.

    Looked at are the API server and its clock, the rights of each service also on the kinds that sets select
    and packages inject, the definitions, Porch's API and its controllers, the workers of the installation,
    and the bus with its topics. Nothing is changed. The bus is that of the installation, if none is given.

    Exit codes: 0 nothing is wrong, 1 something is, 2 bad usage.
    """
    path = Path(kubeconfig) if kubeconfig else None
    whose = Account(user, namespace, namespaces)
    findings = asyncio.run(_look(path, context, services, whose, bus or ""))
    _show(findings, output)
    return 1 if any(finding.state == "wrong" for finding in findings) else 0


async def _look(
    kubeconfig: Path | None,
    context: str | None,
    services: Sequence[str],
    whose: Account,
    bus: str,
) -> list[Finding]:
    cluster = await HttpCluster.connect(kubeconfig, context)
    try:
        if (unreachable := await reach(cluster)) is not None:
            return [unreachable, *(await check_bus(bus))[0]]
        namespace = whose.installation
        bus = bus or await _setting_of(cluster, namespace, "bus")
        if whose.namespaces is None:
            names = split_names(await _setting_of(cluster, namespace, "namespaces"))
            whose = whose._replace(namespaces=names)
        on_bus, requested = await check_bus(bus)
        observed = await _read_observed_resources(cluster, requested, whose.namespaces or ())
        return [
            *await check_server(cluster),
            *[finding async for finding in check_definitions(cluster)],
            *[finding async for finding in check_packages(cluster)],
            *[finding async for finding in check_rivals(cluster)],
            *[finding async for finding in check_marks(cluster)],
            *[finding async for finding in check_namespaces(cluster, whose.namespaces or ())],
            *await check_rights(
                cluster, services or await read_installed_services(cluster, namespace), observed, whose
            ),
            *[finding async for finding in check_workers(cluster, namespace)],
            *on_bus,
        ]
    finally:
        await cluster.close()


async def _setting_of(cluster: HttpCluster, namespace: str, setting: str) -> str:
    try:
        return await read_installed_setting(cluster, namespace, variable_of(setting))
    except PermanentError:
        return ""


async def _read_observed_resources(
    cluster: HttpCluster, requested: set[Kind], namespaces: tuple[str, ...]
) -> list[Resource]:
    """Return the resources that ingest has to observe, as far as they are served and we may see the sets."""
    for namespace in namespaces or (None,):
        with contextlib.suppress(PermanentError):  # without the right to list sets: what the bus says counts
            requested = requested | await read_selected_kinds(cluster, namespace)
    found = [await cluster.resource(kind) for kind in sorted(requested)]
    return [resource for resource in found if resource is not None]


def _show(findings: list[Finding], output: str) -> None:
    if output != "text":
        emit([finding._asdict() for finding in findings], output)
        return
    rows = [(each.state, each.area, each.subject, each.message) for each in findings]
    columns(("STATE", "AREA", "WHAT", "FOUND"), rows)
    actions = [each for each in findings if each.action]
    if actions:
        click.echo("\nwhat to do:")
    for each in actions:
        click.echo(f"  {each.area}, {each.subject}: {each.action}")
