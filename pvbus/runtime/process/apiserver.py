"""Whether the API server answers a process, for /readyz, the metrics and the log.

The process is not ready before the first answer, and once nothing was answered for UNANSWERED_SECONDS_MAX
since a request failed: one lost request does not matter. It asks by itself (GET /version) at its start, while
requests fail, and when it has had no answer for QUIET_SECONDS_MAX; so an idle service notices, too, and is
ready again as soon as the API server is back. Services without rights make no requests, and need no answer.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.kernel.rights import ALL_RIGHTS
from pvbus.ports.clock import Clock
from pvbus.telemetry.logs import get_logger

UNANSWERED_SECONDS_MAX = 10.0
"""Four probes fit in: this is no lost packet, and no connection that a load balancer ended."""

PROBE_SECONDS = 2.0
QUIET_SECONDS_MAX = 30.0
"""One small request per process in this time is nothing for a server, and an alert is not later by it."""


class ApiServerHealth:
    """Reports a lasting loss of the API server. `run` runs until cancelled."""

    def __init__(self, cluster: HttpCluster, clock: Clock, services: Iterable[str]) -> None:
        self._cluster = cluster
        self._reach = cluster.reach
        self._clock = clock
        self._is_needed = any(ALL_RIGHTS[name] for name in services)
        self._is_lost = False
        self._log = get_logger("host")

    @property
    def problem(self) -> str:
        """Return why the process is not ready: which server, since when, what to check; "" if it is."""
        if not self._is_needed:
            return ""
        reach = self._reach
        if self._is_lasting:
            since = datetime.fromtimestamp(self._clock.now() - reach.failing_seconds, UTC)
            return f"no request to {reach.server} succeeds since {since:%Y-%m-%dT%H:%M:%SZ}: {reach.error}"
        if not reach.has_answered:
            return f"{reach.server} has not answered yet" + (f": {reach.error}" if reach.error else "")
        return ""

    @property
    def failing_seconds(self) -> float:
        """Return for how long every request has failed, 0 if the last one was answered."""
        return self._reach.failing_seconds

    @property
    def _is_lasting(self) -> bool:
        return self._reach.failing_seconds >= UNANSWERED_SECONDS_MAX

    async def run(self) -> None:
        while self._is_needed:
            if self._reach.failing_seconds or self._reach.quiet_seconds > QUIET_SECONDS_MAX:
                await self._cluster.probe()
            self._note()
            await self._clock.sleep(PROBE_SECONDS)

    def _note(self) -> None:
        """Log when the loss begins to last, and when it ends."""
        if self._is_lasting and not self._is_lost:
            self._log.error(
                "requests to the API server fail", server=self._reach.server, error=self._reach.error
            )
        elif self._is_lost and not self._is_lasting:
            self._log.info("the API server answers again", server=self._reach.server)
        self._is_lost = self._is_lasting
