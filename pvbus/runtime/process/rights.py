"""The rights that the services of a process lack, for /readyz, the metrics and the log.

A request that is answered with 403 causes a look one or two intervals later, because an API server that
starts refuses everybody until it has read the roles. A look asks for access reviews of what was refused, and
of everything that the service may do by `pvbus.core.kernel.rights`. So one refusal shows all missing rights.
A refusal with another reason, such as a policy for one object, shows none. A missing right is looked at again
in each interval until it is granted.

A service may write in the name of an account. What is refused to that account is a missing right of the
account, and is logged as such, once as long as it is refused.

A service that has none of its rights cannot work at all, and is not ready. With some of them it does a part
of its work. Kinds that sets select or packages inject do not count for that: their conditions show the
refusal to the person who named them.
"""

from collections.abc import Mapping

from pvbus.adapters.kubernetes.access import IMPERSONATE, is_allowed
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.errors import PvbusError
from pvbus.core.kernel.rights import OBSERVED_LABEL, Request, Right, requests_of, rights_of
from pvbus.ports.clock import Clock
from pvbus.telemetry import metrics
from pvbus.telemetry.logs import get_logger

LOOK_SECONDS = 10.0
FORGET_SECONDS = 200.0
"""The time after which a refused request counts as no longer wanted. Ingest asks for a kind each minute while
a set or a package wants it: after three minutes, nobody does."""
AGENT = "pvbus-"
"""The beginning of a service's name in the User-Agent, and of that of its ClusterRole."""


class MissingRights:
    """Looks for missing rights. `run` runs until cancelled."""

    def __init__(
        self,
        clusters: Mapping[str, HttpCluster],
        clock: Clock,
        namespaces: tuple[str, ...] = (),
    ) -> None:
        """Know of no missing right until `run` has looked.

        clusters: the cluster of each service, as the service's user; they share their refusals
        namespaces: the namespaces that the services are limited to; () if they are not
        """
        self._clusters = clusters
        self._clock = clock
        self._namespaces = namespaces
        self._own = {name: self._requests_of(name) for name in clusters}
        self._missing: dict[str, frozenset[Request]] = {name: frozenset() for name in self._own}
        self._refused_at: dict[str, dict[Request, float]] = {name: {} for name in self._own}
        self._accounts_refused_at: dict[tuple[str, str, Request], float] = {}
        self._log = get_logger("host")

    def _requests_of(self, service: str) -> frozenset[Request]:
        rights = rights_of(service, namespaced=bool(self._namespaces))
        rights = tuple(right for right in rights if right.is_needed)
        return frozenset(request for right in rights for request in requests_of(right, self._namespaces))

    def _in_namespaces(self, request: Request) -> list[Request]:
        """Return a refused request once for each namespace, as it may be refused in all of them."""
        return [request._replace(namespace=name) for name in self._namespaces or ("",)]

    def lines(self, service: str) -> list[str]:
        """Return a line for each resource on which a service lacks rights, with what grants them."""
        missing = self._missing[service]
        lines = ["not ready: it has none of its rights"] if self.is_useless(service) else []
        for group, resource, namespace in sorted({request[1:] for request in missing}):
            requests = sorted(r for r in missing if r[1:] == (group, resource, namespace))
            title = Right(group, resource, (), "").title + (f" in {namespace}" if namespace else "")
            verbs = ", ".join(request.verb for request in requests)
            remedies = dict.fromkeys(self._remedy(service, request) for request in requests)
            lines.append(f"may not {verbs} {title}; {'; '.join(remedies)}")
        return lines

    def is_useless(self, service: str) -> bool:
        """Return whether a service has none of its rights."""
        own = self._own[service]
        return bool(own) and own <= self._missing[service]

    async def run(self) -> None:
        refused: set[tuple[str, Request]] = set()
        of_accounts: set[tuple[str, str, Request]] = set()
        while True:
            now = self._clock.monotonic()
            for service in self._own:
                ours = [request for agent, request in refused if agent == AGENT + service]
                new = {each for request in ours for each in self._in_namespaces(request)}
                self._refused_at[service].update(dict.fromkeys(new, now))
                if new or self._missing[service]:
                    await self._look(service, self._asked(service, new, now))
            self._log_accounts(of_accounts, now)
            shared = [cluster.refusals for cluster in self._clusters.values()]
            refused = {each for refusals in shared for each in refusals.take()}
            of_accounts = {each for refusals in shared for each in refusals.take_of_accounts()}
            await self._clock.sleep(LOOK_SECONDS)

    def _log_accounts(self, refused: set[tuple[str, str, Request]], now: float) -> None:
        """Log what accounts lack, unless the service lacks the right to act in their name."""
        refused_at = self._accounts_refused_at
        for agent, account, request in sorted(refused):
            service = agent.removeprefix(AGENT)
            namespace = request.namespace if self._namespaces else ""
            if IMPERSONATE._replace(namespace=namespace) in self._missing.get(service, ()):
                continue
            if now - refused_at.get((agent, account, request), -FORGET_SECONDS) >= FORGET_SECONDS:
                may_not = f"{_title(request)} as {account}"
                remedy = "bind a Role or a ClusterRole that grants it to this account"
                self._log.error("an account lacks a right", service=service, may_not=may_not, remedy=remedy)
            refused_at[agent, account, request] = now
        for key in [key for key, at in refused_at.items() if now - at >= FORGET_SECONDS]:
            del refused_at[key]

    def _asked(self, service: str, new: set[Request], now: float) -> set[Request]:
        """Return the requests to review.

        After a refusal these are all of the role, and always the missing ones that were refused lately.
        """
        own, refused_at = self._own[service], self._refused_at[service]
        recent = {r for r in self._missing[service] if now - refused_at.get(r, now) <= FORGET_SECONDS}
        return recent | (self._missing[service] & own) | new | (own if new else set())

    async def _look(self, service: str, requests: set[Request]) -> None:
        try:
            cluster = self._clusters[service]
            missing = frozenset([r for r in sorted(requests) if not await is_allowed(cluster, r)])
        except PvbusError as exc:
            self._log.warning("permissions cannot be checked", error=str(exc))
            return
        before, self._missing[service] = self._missing[service], missing
        metrics.MISSING_RIGHTS.labels(service).set(len(missing))
        for request in sorted(missing - before):
            what = {"service": service, "may_not": _title(request), "remedy": self._remedy(service, request)}
            self._log.error("a right is missing", **what)
        for request in sorted((before & requests) - missing):
            self._log.info("a right was granted", service=service, may=_title(request))

    def _remedy(self, service: str, request: Request) -> str:
        if request.namespace:
            what = f"Role {AGENT}{service}" if request in self._own[service] else f"Role to {AGENT}{service}"
            return f"bind the {what} in {request.namespace}: `pvbus doctor` prints the command"
        if request in self._own[service]:
            return f"bind the ClusterRole {AGENT}{service}: `pvbus doctor` prints the command"
        if service != "ingest":
            return f"bind a ClusterRole that grants it to the account {AGENT}{service}"
        return f"grant it by the label {OBSERVED_LABEL}=true: `pvbus doctor` prints the commands"


def _title(request: Request) -> str:
    where = f" in {request.namespace}" if request.namespace else ""
    return f"{request.verb} {Right(request.group, request.resource, (), '').title}{where}"
