"""The service rollout over rows by hand: candidates in, orders and status out. One policy, a clock."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from pvbus.core.api.rollouts import RolloutPolicyStatus
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Create, Get, Outcome, Put, Update
from pvbus.core.kernel.keys import sync_key
from pvbus.core.kernel.objectrows import STOP
from pvbus.core.kernel.promotionrows import CandidateRow
from pvbus.core.kernel.records import APPROVALS, CANDIDATES, POLICIES, ROLLOUTS, SyncMarker
from pvbus.core.promotion.rollout.controller import POLICY_KIND, RolloutController
from tests.kit.deciding import Partition

KEY = "default/web"
NOW = 1_000_000.0
POLICY: dict[str, Any] = {
    "apiVersion": "promotion.pvbus.dev/v1alpha1",
    "kind": "RolloutPolicy",
    "metadata": {"name": "web", "namespace": "default", "uid": "uid-p", "generation": 1},
    "spec": {
        "revisions": {"all": True},
        "approval": "Always",
        "settle": "0s",
        "waves": [{"count": 1}, {"percent": 100}],
    },
}


class Bench(Partition):
    """Both ends of the service. puts: of all steps. quarantines: those that the API server has, by name.
    is_lasting: whether a new one lasts; without, a person ends it at once. refusal: why the API server takes
    none."""

    def __init__(self, targets: int = 3, **spec: Any) -> None:
        super().__init__()
        self.policy: dict[str, Any] | None = json.loads(json.dumps(POLICY))
        assert self.policy is not None
        self.policy["spec"].update(spec)
        self.now = NOW
        self.puts: list[Put] = []
        self.statuses: list[RolloutPolicyStatus] = []
        self.candidates: dict[str, CandidateRow] = {}
        self.before_write: Callable[[], None] = lambda: None
        self.answer: Callable[[Any], Any] = lambda effect: None
        self.again_after: float | None = None
        self.quarantines: dict[str, dict[str, Any]] = {}
        self.is_lasting, self.refusal = False, ""
        self.is_listed = True
        self.restart()
        for number in range(targets):
            self.candidate(
                f"t{number}",
                revision="v2",
                digest=f"d{number}",
                is_proposed=True,
                published="v1",
                published_digest=f"old{number}",
            )

    def restart(self) -> "Bench":
        """Forget everything that is not on the bus."""
        self.controller = RolloutController(keeps_specs=False)
        self.open(self.controller)
        self.observe()
        for target in self.candidates:
            self.write(CANDIDATES, f"{KEY}|{target}", self.candidates[target])
        return self

    def observe(self) -> None:
        """Let the service see the policy as it is."""
        marker = SyncMarker(state="ok" if self.is_listed else "syncing", epoch=1)
        self.write(POLICIES, sync_key(*POLICY_KIND.rsplit("/", 1)), marker)
        self.write(POLICIES, sync_key(*STOP), SyncMarker(state="ok", epoch=1))
        self.write(POLICIES, KEY, msgspec.json.encode(self.policy) if self.policy is not None else None)

    def candidate(self, target: str, **fields: Any) -> "Bench":
        former = self.candidates.get(target, CandidateRow(uid=f"uid-{target}"))
        self.candidates[target] = msgspec.structs.replace(former, **fields)
        self.write(CANDIDATES, f"{KEY}|{target}", self.candidates[target])
        return self

    def forget(self, target: str) -> "Bench":
        del self.candidates[target]
        self.write(CANDIDATES, f"{KEY}|{target}", None)
        return self

    def publish(self, *targets: str, good: bool | None = True) -> "Bench":
        for target in targets:
            row = self.candidates[target]
            self.candidate(
                target,
                published=row.revision,
                published_digest=row.digest,
                revision="",
                digest="",
                is_proposed=False,
                is_good=good,
            )
        return self

    def annotate(self, **values: str) -> "Bench":
        assert self.policy is not None
        noted = {f"promotion.pvbus.dev/{name.replace('_', '-')}": value for name, value in values.items()}
        self.policy["metadata"].setdefault("annotations", {}).update(noted)
        self.observe()
        return self

    def edit(self, **spec: Any) -> "Bench":
        assert self.policy is not None
        self.policy["spec"].update(spec)
        self.policy["metadata"]["generation"] += 1
        self.observe()
        return self

    def once(self) -> Outcome:
        """Run one reconciliation, as far as it goes, and commit it."""
        try:
            outcome = self.decide(self.controller, KEY, self.now, self._perform)
        except PermanentError:
            return Outcome(result="permanent", again_after=60)  # as the shell does
        self.puts += outcome.puts
        return outcome

    def _perform(self, effect: Any) -> Any:
        if isinstance(effect, Get | Create) and effect.kind.kind == "Quarantine":
            return self._quarantine(effect)
        if not isinstance(effect, Update):
            return self.answer(effect)
        self.before_write()
        assert effect.subresource == "status"
        assert self.policy is not None
        self.policy["status"] = effect.object["status"]
        self.statuses.append(msgspec.convert(effect.object["status"], RolloutPolicyStatus))
        return self.policy

    def _quarantine(self, effect: Get | Create) -> dict[str, Any] | None:
        if isinstance(effect, Get):
            return self.quarantines.get(effect.name)
        if self.refusal:
            raise PermanentError(self.refusal)
        body: dict[str, Any] = json.loads(json.dumps(effect.object))
        body["spec"] |= {} if self.is_lasting else {"released": {"reason": "test"}}
        self.quarantines[body["metadata"]["name"]] = body
        return body

    def cover(self, target: str, name: str = "web-1-1-uid-p") -> "Bench":
        """Let promote report what the quarantine of this name covers of a target, "" for nothing."""
        is_open = bool(self.candidates[target].revision)
        reason = "Quarantined" if is_open and name else ""
        runs = "" if is_open else name
        return self.candidate(target, reason=reason, is_proposed=is_open and not name, runs=runs)

    def go(self, seconds: float = 2.0) -> "Bench":
        """Let time pass, in steps as the service wants them, until nothing is left to do by then."""
        end = self.now + seconds
        for _ in range(200):
            outcome = self.once()
            self.again_after = outcome.again_after
            wait = 0.0 if outcome.puts else outcome.again_after
            if wait is None or self.now + wait > end:
                self.now = end
                return self
            self.now += wait
        raise AssertionError("it never comes to rest")

    @property
    def status(self) -> RolloutPolicyStatus:
        assert self.policy is not None
        return msgspec.convert(self.policy["status"], RolloutPolicyStatus)

    def condition(self, type_: str) -> Any:
        return next(each for each in self.status.conditions if each.type == type_)

    @property
    def orders(self) -> dict[str, str]:
        """The orders on the bus: target -> `order revision attempt uid`."""
        found = {}
        for (topic, key), value in self.rows.items():
            if topic == APPROVALS:
                row = json.loads(value)
                target = key.partition("/")[2].partition("|")[0]
                found[target] = f"{row['order']} {row['revision']} {row['attempt']} {row['uid']}"
        return dict(sorted(found.items()))

    @property
    def ordered(self) -> dict[str, str]:
        """The orders to release: without the notes to promote of what stays proposed."""
        return {target: order for target, order in self.orders.items() if not order.startswith("freeze ")}

    @property
    def targets(self) -> dict[str, str]:
        """The states of the targets, as they are on the bus."""
        rows = {key: json.loads(value) for (topic, key), value in self.rows.items() if topic == ROLLOUTS}
        return {
            key.partition("|")[2]: row.get("state", "planned")
            for key, row in sorted(rows.items())
            if "|" in key
        }
