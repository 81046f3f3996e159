"""`pvbus install`: puts the services on a cluster, or prints what that takes."""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import click

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.reading import names_of
from pvbus.core.errors import PermanentError, UsageError
from pvbus.install.applying import Result, apply_all, read_installed_setting
from pvbus.install.manifests import COMPONENTS, OVERLAYS, WITH_PORCH, objects
from pvbus.install.objects import NAMESPACE, Object, Options
from pvbus.runtime.process.configuration import variable_of
from pvbus.runtime.process.settings import split_names
from pvbus.runtime.yamltext import yaml_stream

_NO_BUS = (
    "say where the services find each other: --bus kafka://HOST:PORT[,HOST:PORT...][/PREFIX], as pods have "
    "no file in common"
)
_NO_RIGHT = (
    "the rights to install are missing: an administrator can apply the output of `pvbus install --dry-run` "
    "with the same options; it makes roles, so it takes cluster-admin, or the verbs escalate and bind"
)


def _address(context: click.Context, parameter: click.Parameter, text: str) -> str:
    """Return an address without a fragment. Raises UsageError for what a browser could not open."""
    if text and not (text.startswith(("https://", "http://")) and "#" not in text):
        raise UsageError(f'--runbooks "{text}" is no address: https://HOST/PATH/alerts.html, without a #')
    return text


@click.command(
    short_help="Install the services on a cluster, or upgrade them.",
    epilog="""\b
Examples:
  pvbus install --bus kafka://kafka.kafka:9092 --image registry.example.dev/pvbus:0.1.0
  pvbus install --add monitoring --add autoscaling       the bus stays as it is installed
  pvbus install --bus kafka://kafka.kafka:9092 --dry-run | kubectl diff -f -
  pvbus install --overlay standalone --bus kafka://kafka.kafka:9092/blue -o json
  pvbus install --bus kafka://kafka.kafka:9092 --namespaces edge,core
""",
)
@click.option("--overlay", type=click.Choice(OVERLAYS), default=WITH_PORCH, show_default=True,
              help="with-porch leaves Porch's kinds and server alone; standalone brings ours.")  # fmt: skip
@click.option("-n", "--namespace", default=NAMESPACE, show_default=True, help="Namespace of the services.")
@click.option(
    "--image", default=Options().image, show_default=True, help="As the nodes of the cluster get it."
)
@click.option("--bus", envvar="PVBUS_BUS", help="kafka://HOST:PORT[,HOST:PORT...][/PREFIX]; if it is not "
              "given, that of the present installation [PVBUS_BUS].")  # fmt: skip
@click.option("--namespaces", metavar="NAME,...", envvar="PVBUS_NAMESPACES", callback=names_of,
              help="Work in these namespaces alone, with Roles in them instead of ClusterRoles; if it is not "
              "given, as the present installation; \"\" for all [PVBUS_NAMESPACES].")  # fmt: skip
@click.option("--add", "components", multiple=True, type=click.Choice(COMPONENTS),
              help="monitoring: for prometheus-operator and Grafana. autoscaling: for KEDA. promotion: "
              "the services promote, rollout and release, which propose drafts, and approve them "
              "by RolloutPolicies. platform: resolve and establish, which install packages with what "
              "they need.")  # fmt: skip
@click.option(
    "--runbooks",
    default="",
    metavar="URL",
    callback=_address,
    help="Address of the page docs/alerts, where you serve it: each alert gets a link to its heading.",
)
@click.option("--kubeconfig", help="The cluster's kubeconfig [default: $KUBECONFIG, else ~/.kube/config].")
@click.option("--context", help="Context in the kubeconfig; the current one if not given.")
@click.option("--dry-run", is_flag=True, help="Print the objects as YAML, and ask no cluster.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
def install(
    overlay: str,
    namespace: str,
    image: str,
    bus: str | None,
    namespaces: tuple[str, ...] | None,
    components: tuple[str, ...],
    runbooks: str,
    kubeconfig: str | None,
    context: str | None,
    dry_run: bool,
    output: str,
) -> int:
    """Install the five services on a cluster, each with the least rights that it works with.

    The same command installs, upgrades and repairs: it applies every object on the server, and says what
    became of each. What it applied earlier and no longer has is removed, but never a definition. Settings of
    your own belong into the ConfigMap pvbus-settings, which it does not touch.

    Exit codes: 0 done, 1 an object failed, 2 bad usage.
    """
    options = Options(
        namespace=namespace, image=image, bus=bus or "", namespaces=namespaces or (), runbooks=runbooks
    )
    chosen = tuple(dict.fromkeys(components))
    if dry_run:
        click.echo(yaml_stream(_made(overlay, options, chosen)), nl=False)
        return 0
    is_limited = namespaces is not None
    results = asyncio.run(_install(overlay, options, chosen, kubeconfig, context, is_limited=is_limited))
    _show(results, output)
    if output == "text":
        _advise(results, overlay, namespace)
    return 1 if any(result.action == "failed" for result in results) else 0


def _made(overlay: str, options: Options, components: tuple[str, ...]) -> list[Object]:
    if not options.bus:
        raise UsageError(_NO_BUS)
    return list(objects(overlay, options, components))


async def _install(
    overlay: str,
    options: Options,
    components: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
    *,
    is_limited: bool,
) -> list[Result]:
    """Install, and return what was done about each object.

    is_limited: whether the namespaces are given; if not, they stay as they are installed
    """
    cluster = await HttpCluster.connect(Path(kubeconfig) if kubeconfig else None, context, strict=True)
    try:
        if not options.bus:
            bus = await read_installed_setting(cluster, options.namespace, variable_of("bus"))
            options = options._replace(bus=bus)
        if not is_limited:
            with contextlib.suppress(PermanentError):  # without the right to look; applying it will say so
                text = await read_installed_setting(cluster, options.namespace, variable_of("namespaces"))
                options = options._replace(namespaces=split_names(text))
        return await apply_all(cluster, _made(overlay, options, components), options.namespace)
    finally:
        await cluster.close()


def _show(results: list[Result], output: str) -> None:
    if output != "text":
        emit([result._asdict() for result in results], output)
        return
    rows = [
        (result.action, result.kind, "/".join(filter(None, result[1:3])), result.message)
        for result in results
    ]
    columns(("DONE", "KIND", "NAME", ""), rows)


def _advise(results: list[Result], overlay: str, namespace: str) -> None:
    """Say how it went as a whole, and what to do next."""
    counts = Counter(result.action for result in results)
    click.echo(", ".join(f"{count} {action}" for action, count in sorted(counts.items())))
    if any(result.reason == "Forbidden" for result in results):
        click.echo(f"error: {_NO_RIGHT}", err=True)
    if counts["failed"]:
        return
    account = f"system:serviceaccount:{namespace}:pvbus-{{service}}"
    click.echo(
        f"next: kubectl -n {namespace} get pods; pvbus doctor --namespace {namespace} --as '{account}'"
    )
