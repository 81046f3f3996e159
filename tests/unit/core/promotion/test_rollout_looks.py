"""The service rollout looks at evidence on the API server and in Prometheus: what counts, and for whom."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvbus.core.errors import FORBIDDEN, PermanentError, TransientError
from pvbus.core.kernel.effects import Get, List, Query, Range, Sample
from pvbus.core.kernel.keys import IS_LATER
from pvbus.core.kernel.promotionrows import EvidenceSource, SeenCondition
from pvbus.core.promotion.rollout.sightings import LOOK_SECONDS, LOOKED_MAX
from pvbus.core.variants.revisions.content import content_digest
from tests.unit.core.promotion.rolling import Bench

NEW, OLD, LATER = "a" * 40, "b" * 40, "c" * 40
FILES = {"cm.yaml": "version: 2\n"}
DIGEST = content_digest(FILES)
OBJECT = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Application",
    "namespace": "'argocd'",
    "name": "target.name",
    "binding": "Commit",
    "revision": "object.status.revision",
    "good": "object.status.health == 'Healthy'",
    "bad": "object.status.health == 'Degraded'",
}
ANYWHERE = {**OBJECT, "namespace": ""}
WEAK = {**OBJECT, "binding": "Weak", "revision": ""}


def application(revision: str = NEW, health: str = "Healthy", namespace: str = "argocd") -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace, "name": "app"},
        "status": {"revision": revision, "health": health},
    }


class Hub(Bench):
    """A rollout with an API server that has objects by name. at: what the package is at other commits."""

    def __init__(self, targets: int = 2, *, wanted: Any = None, **spec: Any) -> None:
        self.objects: dict[str, list[dict[str, Any]]] = {}
        self.error: Exception | None = None
        self.at: dict[str, dict[str, Any]] = {}
        self.looks: list[str] = []
        self.value: float | None = None
        super().__init__(targets, evidence={"object": OBJECT} if wanted is None else wanted, **spec)
        self.answer = self._answer
        for target in self.candidates:
            self.candidate(target, digest=DIGEST, evidence=self._source(target))

    def _source(self, target: str, **fields: Any) -> EvidenceSource:
        return EvidenceSource(
            **{"commit": NEW, "namespace": "argocd", "name": target, "query": "up", **fields}
        )

    def source(self, target: str, **fields: Any) -> "Hub":
        self.candidate(target, evidence=self._source(target, **fields))
        return self

    def _answer(self, effect: Any) -> Any:
        if isinstance(effect, Get) and effect.kind.kind == "PackageRevisionResources":
            return self.at.get(effect.name)
        self.looks.append(getattr(effect, "name", "query"))
        if self.error is not None:
            raise self.error
        if isinstance(effect, Query):
            times = [effect.start + n * effect.step_seconds for n in range(241)]
            values = [Sample(time, self.value or 0.0) for time in times]
            return Range(() if self.value is None else (tuple(values),))
        if isinstance(effect, List):
            name = effect.field_selector.partition("=")[2]
            return [
                {**each, "metadata": {**each["metadata"], "name": name}}
                for each in self.objects.get(name, [])
            ]
        return next(iter(self.objects.get(effect.name, [])), None)

    def shows(self, target: str, *objects: dict[str, Any]) -> "Hub":
        self.objects[target] = list(objects)
        return self

    def began(self, *targets: str) -> "Hub":
        """Publish targets of the first wave; their objects show the old revision, and bad health."""
        self.go()
        for target in targets or ("t0",):
            self.objects.setdefault(target, [application(OLD, "Degraded")])
            self.publish(target)
        self.go()
        return self

    def watch(self, seconds: float) -> "Hub":
        """Let time pass that has many looks."""
        for _ in range(10):
            self.go(seconds / 10)
        return self

    def why(self, target: str = "t0") -> str:
        (words,) = (
            row.get("evidence", "") for key, row in self.stored().items() if key.endswith(f"|{target}")
        )
        return str(words)

    def stored(self) -> dict[str, Any]:
        return {key: json.loads(value) for (topic, key), value in self.rows.items() if "rollouts" in topic}


def test_a_clock_that_is_set_back_delays_no_look() -> None:
    hub = Hub().began()
    hub.now -= 86_400
    hub.shows("t0", application())
    hub.watch(4 * LOOK_SECONDS)
    assert hub.targets["t0"] == "proven"


def test_a_target_is_proven_when_its_own_object_has_the_revision_and_is_good() -> None:
    """Ready says that the package is published; stale health of the old revision counts for nothing."""
    hub = Hub().began()
    hub.go(120)
    assert hub.targets == {"t0": "approved", "t1": "planned"}
    assert hub.why().startswith("EvidenceStale: Application argocd/app: it is at commit bbbbbbbbbbbb")
    going = hub.condition("Progressing")
    assert (going.status, going.reason) == ("True", "EvidenceStale")
    assert "t0: EvidenceStale: Application argocd/app" in going.message
    hub.shows("t0", application(health="Progressing")).go(LOOK_SECONDS)
    assert hub.why().startswith("EvidencePending")
    hub.shows("t0", application()).go(LOOK_SECONDS)
    assert hub.targets == {"t0": "proven", "t1": "ordered"}
    assert hub.why() == ""


def test_bad_evidence_counts_when_it_is_seen_twice() -> None:
    hub = Hub().began().shows("t0", application(health="Degraded"))
    hub.go(LOOK_SECONDS)
    assert hub.targets["t0"] == "approved"
    assert "it counts when it is seen twice" in hub.why()
    looks = len(hub.looks)
    hub.source("t0", query="other").go(1)
    assert len(hub.looks) > looks, "what promote says is looked at at once"
    assert hub.targets["t0"] == "approved", "two looks within a second are one"
    hub.shows("t0", application(health="Progressing")).go(LOOK_SECONDS)
    hub.shows("t0", application(health="Degraded")).go(LOOK_SECONDS)
    assert hub.targets["t0"] == "approved", "it flaps"
    hub.go(LOOK_SECONDS)
    assert hub.targets["t0"] == "failed"
    assert hub.status.phase == "Stopped"


def test_an_object_that_goes_opens_its_wave_again_and_stops_it_in_the_end() -> None:
    hub = Hub(waves=[{"count": 1, "hold": "1h"}, {"percent": 100}]).shows("t0", application()).began()
    assert hub.status.phase == "Holding"
    hub.shows("t0").go(40)
    assert (hub.status.phase, hub.targets["t0"]) == ("Rolling", "approved")
    assert hub.why() == "EvidenceMissing: Application argocd/t0 does not exist"
    hub.watch(1900)
    assert (hub.status.phase, hub.targets["t0"]) == ("Stopped", "silent")
    assert hub.condition("Progressing").reason == "NoEvidence"


QUERY = {"query": {"expression": "'up'", "max": 1, "window": "5m"}}


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"object": OBJECT}, TransientError("hub is away")),
        ({"object": OBJECT}, PermanentError("no", reason=FORBIDDEN)),
        (QUERY, TransientError("Prometheus is away")),
        (QUERY, PermanentError("it refuses the query")),
    ],
)
def test_a_hub_that_is_away_stops_and_never_rolls_back(wanted: Any, error: Exception) -> None:
    hub = Hub(wanted=wanted, budgets={"onFailure": "RollBack"}).began()
    hub.error = error
    hub.go(LOOK_SECONDS)
    assert hub.why().startswith("EvidenceUnread: ")
    grants = "an administrator must grant the account of the service rollout `get` and `list` on it"
    assert (grants in hub.why()) == (isinstance(error, PermanentError) and error.reason == FORBIDDEN)
    hub.watch(1900)
    assert (hub.status.phase, hub.condition("Progressing").reason) == ("Stopped", "NoEvidence")


def test_clusters_that_are_offline_are_within_the_budget() -> None:
    hub = Hub(4, waves=[{"count": 2}, {"percent": 100}], budgets={"maxFailing": 1})
    hub.shows("t0", application()).began("t0", "t1").shows("t1").watch(1900)
    assert hub.targets == {"t0": "proven", "t1": "silent", "t2": "ordered", "t3": "ordered"}


@pytest.mark.parametrize(
    ("is_later", "files", "is_proven"),
    [
        ("true", FILES, True),
        ("false", FILES, False),
        ("true", {"cm.yaml": "version: 3\n"}, False),
        (None, FILES, False),
    ],
)
def test_a_later_commit_with_the_same_package_proves(
    is_later: str | None, files: Any, is_proven: bool
) -> None:
    """In a shared repository HEAD moves on; an earlier commit, or another package, proves nothing."""
    hub = Hub()
    noted = {IS_LATER: is_later} if is_later is not None else {}
    hub.at[f"v2@{LATER}"] = {"metadata": {"annotations": noted}, "spec": {"resources": files}}
    hub.shows("t0", application(LATER)).began().go(120)
    assert (hub.targets["t0"] == "proven") == is_proven
    assert is_proven or hub.why().startswith("EvidenceStale")


def test_a_server_that_does_not_know_the_commit_proves_nothing() -> None:
    hub = Hub().shows("t0", application(LATER)).began()
    hub.go(120)
    assert "does not say whether the package there is the same" in hub.why()


def test_one_name_in_two_namespaces_is_ambiguous() -> None:
    hub = Hub(wanted={"object": ANYWHERE})
    hub.source("t0", namespace="")
    hub.shows("t0", application(), application(namespace="other")).began().go(60)
    assert hub.why() == "EvidenceAmbiguous: Application t0 exists in several namespaces (argocd, other)"
    hub.shows("t0", application(namespace="other")).go(LOOK_SECONDS)
    assert hub.targets["t0"] == "proven"


def test_an_object_of_two_targets_is_evidence_of_none() -> None:
    hub = Hub()
    hub.source("t1", name="t0").shows("t0", application()).began().go(60)
    assert hub.why().startswith("EvidenceShared: Application argocd/t0 is the evidence of 2 targets")
    hub.source("t1", name="t1").go(LOOK_SECONDS)
    assert hub.targets["t0"] == "proven"


def test_what_cannot_be_named_is_not_known() -> None:
    hub = Hub().shows("t0", application())
    hub.source("t0", name="", problem="spec.evidence.object.name gives an empty text").began()
    assert hub.why() == "EvidenceInvalid: spec.evidence.object.name gives an empty text"
    hub.candidate("t0", evidence=None).go(LOOK_SECONDS)
    assert hub.why().startswith("EvidenceMissing")
    assert hub.targets["t0"] == "approved"


def test_evidence_of_the_revision_before_proves_nothing_after_the_next_one() -> None:
    """A look is of one revision: a newer one that is published meanwhile needs one of its own."""
    hub = Hub().shows("t0", application()).began()
    assert hub.targets["t0"] == "proven"
    hub.candidate("t0", published="v3", published_digest="other")
    hub.source("t0", commit=LATER).go(60)
    assert hub.targets["t0"] == "gone"


def test_weak_evidence_is_a_status_that_changes_after_the_order() -> None:
    hub = Hub(wanted={"object": WEAK}).shows("t0", application("1")).shows("t1", application("1"))
    hub.began()
    assert (
        hub.why()
        == "EvidenceStale: Application argocd/app: its status has not changed since before the approval"
    )
    hub.restart().go(60)
    assert hub.targets["t0"] == "approved", "the status from before is in the row"
    hub.shows("t0", application("2")).go(LOOK_SECONDS + 1)
    assert hub.targets == {"t0": "proven", "t1": "ordered"}


def test_nothing_is_ordered_on_weak_evidence_that_cannot_be_read() -> None:
    hub = Hub(wanted={"object": WEAK})
    hub.error = PermanentError("no matches for kind")
    hub.go(60)
    assert hub.orders == {}
    assert "t0: EvidenceUnread: no matches for kind" in hub.condition("Progressing").message
    hub.error = None
    hub.shows("t0", application("1")).go(LOOK_SECONDS)
    assert list(hub.orders) == ["t0"]


def test_a_condition_of_the_variant_proves_its_target() -> None:
    def synced(status: str, *, is_bound: bool) -> SeenCondition:
        return SeenCondition(type="Synced", status=status, is_bound=is_bound, words="Synced", digest=status)

    hub = Hub(wanted={}, conditions=["Ready", "Synced"])
    hub.began()
    assert hub.why() == "EvidenceMissing: the PackageVariant has no conditions Synced"
    hub.source("t0", conditions=(synced("True", is_bound=False),)).go(LOOK_SECONDS)
    assert hub.why().startswith("EvidenceStale")
    hub.source("t0", conditions=(synced("True", is_bound=True),)).go(1)
    assert hub.targets["t0"] == "proven", "it is looked at as soon as promote says so"


def test_a_metric_counts_from_the_publication_on() -> None:
    hub = Hub(wanted={"query": {"expression": "'up'", "max": 1, "window": "5m"}})
    hub.value = 5.0
    hub.began().go(50)
    assert (hub.targets["t0"], hub.why().partition(":")[0]) == ("approved", "EvidencePending")
    hub.value = 0.5
    hub.go(200)
    assert hub.targets["t0"] == "approved", "the window began before the publication"
    hub.go(60)
    assert hub.targets["t0"] == "proven"
    hub.value = 5.0
    hub.go(80)
    assert hub.targets["t0"] == "failed"


def test_a_metric_without_values_is_not_known() -> None:
    hub = Hub(wanted={"query": {"expression": "'up'", "max": 1, "window": "1m"}}).began()
    hub.go(120)
    assert hub.why() == "EvidenceMissing: the query gives no value"


def test_ready_that_fails_is_bad_whatever_the_object_says() -> None:
    hub = Hub().shows("t0", application())
    hub.go()
    hub.publish("t0", good=False).go()
    assert hub.targets["t0"] == "failed"


def test_a_restart_looks_at_each_proven_target_before_it_goes_on() -> None:
    """Nothing is in memory after a restart: what was proven is not taken for unproven, nor for proven."""
    hub = Hub(waves=[{"count": 1, "hold": "1h"}, {"percent": 100}]).shows("t0", application()).began()
    assert hub.status.phase == "Holding"
    puts = len(hub.puts)
    hub.restart().go(1)
    assert (hub.status.phase, hub.targets["t0"], len(hub.puts)) == ("Holding", "proven", puts)
    hub.shows("t0", application(health="Degraded")).restart().go(1)
    assert (hub.status.phase, hub.targets["t0"]) == ("Rolling", "approved")


def test_a_restart_looks_at_every_target_before_it_goes_on() -> None:
    """More targets than one look has: until all are looked at again, none is taken for unproven."""
    count = LOOKED_MAX + 10
    hub = Hub(count, waves=[{"percent": 99, "hold": "1h"}, {"percent": 100}])
    hub.go()
    for target in list(hub.orders):
        hub.shows(target, application()).publish(target)
    hub.go(10)
    assert hub.status.phase == "Holding"
    puts = len(hub.puts)
    hub.restart().go(10)
    assert (hub.status.phase, len(hub.puts)) == ("Holding", puts)


def test_a_canary_that_runs_the_revision_counts_by_the_evidence_of_now() -> None:
    """A joiner's attempt begins when the canary is good now, and not by what was once seen of it."""
    hub = Hub(1, canaries=["t0"]).shows("t0", application()).began()
    assert hub.status.phase == "Completed"
    hub.shows("t0", application(health="Degraded"))
    hub.candidate("t0", is_current=True)
    hub.go(5)
    hub.looks.clear()
    hub.go(3600)
    assert hub.looks == [], "nothing is to be planned"
    hub.candidate("t1", revision="v2", digest=DIGEST, is_proposed=True)
    hub.source("t1").go(120)
    going = hub.condition("Progressing")
    assert (hub.status.attempt, going.reason) == (1, "CanaryNotReady")
    assert "canary t0: it runs v2 already, which is not shown to be good now" in going.message
    hub.shows("t0", application()).go(60)
    assert (hub.status.attempt, hub.targets["t1"]) == (2, "ordered")


def test_a_thousand_targets_are_looked_at_in_turns() -> None:
    """A look is bounded, and begins with whom nobody has looked at."""
    count = 2 * LOOKED_MAX + 50
    hub = Hub(count, waves=[{"percent": 100}])
    hub.go()
    for number in range(count):
        hub.shows(f"t{number}", application()).publish(f"t{number}")
    looked = []
    for _ in range(20):
        hub.looks.clear()
        hub.once()
        hub.now += 0.5
        looked.append(len(hub.looks))
    assert [number for number in looked if number][:3] == [LOOKED_MAX, LOOKED_MAX, 50]
    assert hub.status.phase == "Completed"


STATUSES = st.tuples(
    st.sampled_from([NEW, OLD, LATER, "HEAD"]), st.sampled_from(["Healthy", "Degraded", "?"])
)


@given(st.lists(st.tuples(STATUSES, st.booleans(), st.integers(0, 40)), max_size=12))
def test_no_history_proves_another_revision(history: list[tuple[tuple[str, str], bool, int]]) -> None:
    """Whenever a target turns proven, its object has just shown the published commit and good health, and
    whenever it fails, the same commit and bad health."""
    hub = Hub(1, waves=[{"count": 1, "hold": "1h"}, {"percent": 100}], budgets={"maxFailing": 1}).began()
    before, shown = hub.targets["t0"], [(OLD, "Degraded")]
    for status, restarts, seconds in history:
        hub.shows("t0", application(*status))
        shown.append(status)
        if restarts:
            hub.restart()
        hub.go(seconds)
        after = hub.targets["t0"]
        if after != before and after in ("proven", "failed"):
            assert shown[-1] == (NEW, "Healthy" if after == "proven" else "Degraded")
        before = after
