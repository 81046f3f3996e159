"""The package store as a service of its own: `pvbus run packages` and `python -m services.packages`.

Its state is in git and in the cluster, so any number of these processes may serve the same API.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.functions import functions_of, isolation_problem, store_options
from pvbus.controlplane.aggregated.apiservice import follow_authority, publish_command
from pvbus.controlplane.aggregated.server import AggregatedServer
from pvbus.controlplane.aggregated.serving import Serving, from_files, self_signed
from pvbus.controlplane.aggregated.state import AggregatedState
from pvbus.controlplane.apiserver.kinds import ALL_VERBS
from pvbus.controlplane.packages import programs
from pvbus.controlplane.packages.render import RegistryRender
from pvbus.core.errors import InvariantError, UsageError
from pvbus.core.kernel.rights import PACKAGES
from pvbus.runtime.backoff import uniform
from pvbus.runtime.process.apiserver import ApiServerHealth
from pvbus.runtime.process.begin import configure_process
from pvbus.runtime.process.health import Endpoints
from pvbus.runtime.process.rights import AGENT, MissingRights
from pvbus.runtime.process.settings import PackagesConfig, host_names, split_names
from pvbus.runtime.process.signals import stop_on_signals
from pvbus.telemetry import metrics
from pvbus.telemetry.loopwatch import loop_problem
from pvbus.telemetry.structured import structlog
from pvbus.telemetry.terminal import printable

REPLICA_SECONDS = 25.0
"""The time from a signal to the end by force: within the grace period of the pods, and long enough for pushes
that have begun."""

_NOT_SERVING = "it does not serve yet"


class PackagesHealth(Endpoints):
    """The endpoints of the package store.

    server: the server while it listens, else None
    """

    def __init__(
        self, state: AggregatedState, loss: ApiServerHealth, rights: MissingRights, config: PackagesConfig
    ) -> None:
        super().__init__(
            loss,
            rights,
            host=config.health_host,
            port=config.health_port,
            names=host_names(config.health_names),
        )
        self._state = state
        self._loss = loss
        self.server: AggregatedServer | None = None

    def problem(self) -> str:
        """Return why requests may fail, "" if nothing is known."""
        if self._loss.problem:
            return f"API server: {self._loss.problem}"
        return loop_problem() or (_NOT_SERVING if self.server is None else self._state.problem())

    def readiness(self) -> tuple[list[str], bool]:
        problem = self._state.problem() or (_NOT_SERVING if self.server is None else "")
        lacking, has_rights = self.lacks(PACKAGES)
        return [f"{PACKAGES}: {printable(problem) or 'ready'}", *lacking], has_rights and not problem

    async def measure(self) -> None:
        if self.server is not None and self.server.serving is not None:
            metrics.CERTIFICATE_EXPIRY.set(self.server.serving.not_after.timestamp())


class PackagesHost(NamedTuple):
    """The package store, serving.

    port: the port of the API
    health_url: the address of /metrics, /healthz and /readyz
    background: tasks that run until the end of the block
    """

    port: int
    health_url: str
    background: Sequence["asyncio.Task[None]"]

    async def run(self, stop: asyncio.Event) -> None:
        """Wait until `stop` is set. Raises the error of a background task that ends before."""
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({stopped, *self.background}, return_when=asyncio.FIRST_COMPLETED)
            for task in self.background:
                if task.done():
                    await task
                    raise InvariantError(f"the task {task.get_name()} has ended")
        finally:
            stopped.cancel()


@asynccontextmanager
async def packages_hosted(config: PackagesConfig) -> AsyncIterator[PackagesHost]:
    """Serve until the block ends. Raises UsageError, PermanentError: certificate, port."""
    read = _certificate(config)
    kubeconfig = Path(config.kubeconfig) if config.kubeconfig else None
    connected = await HttpCluster.connect(kubeconfig, config.context or None)
    cluster = connected.named(AGENT + PACKAGES)
    loss = ApiServerHealth(cluster, SystemClock(), [PACKAGES])
    rights = MissingRights({PACKAGES: cluster}, SystemClock(), split_names(config.namespaces))
    background = [
        asyncio.create_task(loss.run(), name="reach of the API server"),
        asyncio.create_task(rights.run(), name="missing rights"),
    ]
    try:
        state = _state(config, cluster)
        async with PackagesHealth(state, loss, rights, config) as health:
            server = AggregatedServer(cluster, state, problem=health.problem, on_answer=_count)
            await state.start()
            try:
                port = await server.listen(config.serving_host, config.serving_port, read)
                health.server = server
                if config.serving_write_authority:
                    following = follow_authority(cluster, lambda: server.serving, config.serving_name)
                    background.append(asyncio.create_task(following, name="authority in the APIService"))
                yield PackagesHost(port, health.url, background)
            finally:
                await server.stop()
                await state.stop()
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await connected.close()


def _count(verb: str, code: int) -> None:
    known = verb if verb in ALL_VERBS else "other"  # a client may send any method
    metrics.PACKAGE_REQUESTS.labels(known, str(code)).inc()


def _state(config: PackagesConfig, cluster: HttpCluster) -> AggregatedState:
    registry = functions_of(config)
    options = store_options(config, registry)
    folder = _folder(config)
    return AggregatedState(cluster, folder, render=RegistryRender(registry), jitter=uniform, options=options)


def _folder(config: PackagesConfig) -> Path:
    folder = Path(config.packages_data).absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _certificate(config: PackagesConfig) -> Callable[[], Serving]:
    """Return what reads the serving certificate. Raises UsageError: only one of the two files is given."""
    certificate, key = config.serving_certificate_file, config.serving_key_file
    if bool(certificate) != bool(key):
        raise UsageError(
            "PVBUS_SERVING_CERTIFICATE_FILE and PVBUS_SERVING_KEY_FILE belong together: set both, or none"
        )
    if certificate:
        if config.serving_write_authority:
            raise UsageError(
                "PVBUS_SERVING_WRITE_AUTHORITY is for a certificate that is made at the start: with "
                "PVBUS_SERVING_CERTIFICATE_FILE, set it to false and write the authority into the APIService"
            )
        return partial(from_files, Path(certificate), Path(key))
    return partial(self_signed, _folder(config) / "pki", [config.serving_name])


async def serve_packages(config: PackagesConfig) -> None:
    """Serve until a signal ends it, for `python -m services.packages` and `pvbus run packages`."""
    configure_process(config)
    log = structlog.get_logger("host")
    stop = asyncio.Event()
    with stop_on_signals(stop, seconds=REPLICA_SECONDS, last=programs.kill_all) as begun:
        if problem := isolation_problem(config):
            log.warning("programs are not isolated", problem=problem)
        async with packages_hosted(config) as host:
            begun()
            log.info("started", services=[PACKAGES], port=host.port, health=host.health_url)
            if not (config.serving_write_authority or config.serving_certificate_file):
                authority = _certificate(config)().authority
                log.warning(
                    "kube-apiserver must trust the authority of the serving certificate",
                    command=publish_command(authority),
                )
            await host.run(stop)
    log.info("stopped", services=[PACKAGES])
