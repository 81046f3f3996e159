"""Events of what others write: Ready of Repositories, RolloutPolicies, and variants' package revisions."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from pvbus.core.api.rollouts import TargetCounts
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.effects import Outcome
from pvbus.core.kernel.eventrows import ConditionEvent, EventCause, EventRollout, EventTask
from pvbus.core.kernel.keys import (
    CONDITION_ORDER,
    EDITED_BY,
    KEPT_FOR,
    TASK_HISTORY,
    TASKS,
    reconciled_partition,
    sync_key,
)
from pvbus.core.kernel.keys import partition as partition_of
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import POLICY, REPOSITORY, REVISION, rows_of
from pvbus.core.kernel.packagekinds import (
    CARVEL_INSTALL,
    CROSSPLANE_GROUP,
    CROSSPLANE_INSTALLS,
    CROSSPLANE_REVISIONS,
    REPORTING,
)
from pvbus.core.kernel.records import CONDITIONS, LATEST, OBJECTS
from pvbus.core.kernel.tasks import TASKS_MAX
from pvbus.core.variants.conditions.controller import ConditionsController
from pvbus.core.variants.conditions.subjects import OBSERVED, OBSERVED_BY_SCOPE, Subjects
from tests.kit.deciding import drive
from tests.simulation.parts import marker, obj

PARTITIONS = 4
DRAFT = "PackageRevision|default/edge.web.packagevariant-1"
Reported = tuple[str, str, str]
OWNER = {"apiVersion": "config.porch.kpt.dev/v1alpha1", "kind": "PackageVariant", "name": "web", "uid": "u"}


def revision(
    lifecycle: str,
    *,
    owners: Any = (OWNER,),
    number: int = 0,
    uid: str = "r1",
    gates: tuple[str, ...] = (),
    tasks: str = "",
    notes: Mapping[str, str] = {},
    deleted: str = "",
    annotations: Mapping[str, str] = {},
    conditions: tuple[tuple[str, str], ...] = (),
) -> Any:
    spec = {
        "repository": "edge",
        "packageName": "web",
        "workspaceName": "packagevariant-1",
        "revision": number,
        "lifecycle": lifecycle,
        "readinessGates": [{"conditionType": type_} for type_ in gates],
        "packageMetadata": {"annotations": {**({TASKS: tasks} if tasks else {}), **notes}},
    }
    meta: dict[str, Any] = {"uid": uid, "ownerReferences": list(owners), "resourceVersion": "7"}
    meta["annotations"] = dict(annotations)
    if deleted:
        meta["deletionTimestamp"] = deleted
    reported = [{"type": type_, "status": status, "reason": "R"} for type_, status in conditions]
    status = {"selfLock": {"git": {"commit": "c0ffee"}}, "conditions": reported}
    return obj(REVISION, "edge.web.packagevariant-1", metadata=meta, spec=spec, status=status)


def repository(status: str, *, message: str = "", time: str = "2026-02-03T04:05:06Z") -> Any:
    ready = {"type": "Ready", "status": status, "reason": "R", "message": message, "lastTransitionTime": time}
    return obj(REPOSITORY, "edge", spec={}, status={"conditions": [ready]})


def policy(wave: str, *, uid: str = "p1") -> Any:
    """A RolloutPolicy whose rollout is at a wave."""
    conditions = [
        {"type": "Accepted", "status": "True", "reason": "Valid"},
        {"type": "Progressing", "status": "True", "reason": "Approving", "message": wave},
    ]
    return obj(POLICY, "web", metadata={"uid": uid}, spec={}, status={"conditions": conditions})


def never_written(effect: object) -> None:
    raise AssertionError(f"somebody else writes these statuses: {effect}")


class Worker:
    """The controller with all partitions, on a bus that remembers what it published."""

    def __init__(self, latest: dict[str, bytes] | None = None, owned: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        self.controller = ConditionsController(source="/test", partitions=PARTITIONS)
        self.latest = latest if latest is not None else {}
        self.events: list[ConditionEvent] = []
        self.now = 1_770_000_000.0
        for number in owned:
            self.controller.open(number)
        for key, value in self.latest.items():
            number = partition_of(key.split("|")[1], PARTITIONS)
            if number in owned:
                self.controller.load(LATEST, number, key, value)

    def listed(self, state: str = "ok", epoch: int = 1) -> None:
        for kind in (REPOSITORY, REVISION, POLICY, *REPORTING):
            for number in range(PARTITIONS):
                self._run(self.controller.load(OBJECTS, number, sync_key(*kind), marker(state, epoch)))

    def see(self, kind: Any, thing: Any, *, gone: bool = False) -> None:
        for row in rows_of(kind, thing, (OBJECTS,)):
            number = partition_of(row.key, PARTITIONS)
            self._run(self.controller.load(OBJECTS, number, row.key, None if gone else row.value))

    def _run(self, keys: Any) -> None:
        todo = list(keys)
        while todo:
            key = todo.pop()
            outcome = self._outcome(key)
            for put in outcome.puts:
                number = partition_of(key.split("|")[1], PARTITIONS)
                if put.topic == CONDITIONS:
                    assert isinstance(put.row, ConditionEvent)
                    self.events.append(put.row)
                elif put.row is None:
                    self.latest.pop(put.key)
                else:
                    self.latest[put.key] = encode_row(put.row) or b""
                todo += self.controller.store(number, put)

    def _outcome(self, key: str) -> Outcome:
        return drive(
            self.controller.reconcile(reconciled_partition(key, PARTITIONS), key, self.now), never_written
        )

    def reported(self) -> list[Reported]:
        events, self.events = self.events, []
        return [(e.condition.status, e.condition.reason, e.previous) for e in events]


def test_every_step_of_a_revisions_life_is_an_event() -> None:
    """Draft, Proposed, Published, DeletionProposed, deleted; with the variant that owns it."""
    worker = Worker()
    worker.listed()
    for number, lifecycle in enumerate(("Draft", "Proposed", "Published", "DeletionProposed")):
        worker.see(REVISION, revision(lifecycle, number=number // 2))
        worker.see(REVISION, revision(lifecycle, number=number // 2))
        worker.now += 60
    times = [event.condition.last_transition_time for event in worker.events]
    assert times == ["2026-02-02T02:40:00Z"] * 2 + ["2026-02-02T02:42:00Z"] * 2
    first = worker.events[0]
    assert (first.kind, first.namespace, first.name, first.variant, first.condition.type) == (
        "PackageRevision",
        "default",
        "edge.web.packagevariant-1",
        "web",
        "Published",
    )
    assert first.cause == EventCause(generation=1, resource_version="7", commit="c0ffee")
    assert list(worker.latest) == [f"{DRAFT}|Published"]
    worker.see(REVISION, revision("DeletionProposed"), gone=True)
    assert worker.reported() == [
        ("False", "Draft", ""),
        ("False", "Proposed", "False"),
        ("True", "Published", "False"),
        ("True", "DeletionProposed", "True"),
        ("Unknown", "Deleted", "True"),
    ]
    assert worker.latest == {}


def test_a_revision_that_was_deleted_while_nobody_worked_is_told_once_the_list_is_complete() -> None:
    """A revision that is missing from the table counts as deleted only once the kind is listed."""
    before = Worker()
    before.listed()
    before.see(REVISION, revision("Draft"))
    after = Worker(before.latest)
    after.listed("syncing")
    after._run(key for number in range(PARTITIONS) for key in after.controller.keys(number))
    assert after.reported() == []
    after.listed(epoch=2)
    assert after.reported() == [("Unknown", "Deleted", "False")]


def test_a_restart_publishes_nothing_again() -> None:
    before = Worker()
    before.listed()
    before.see(REVISION, revision("Draft"))
    before.see(REPOSITORY, repository("True"))
    after = Worker(before.latest)
    after.see(REVISION, revision("Draft"))
    after.see(REPOSITORY, repository("True"))
    after.listed()
    after._run(key for number in range(PARTITIONS) for key in after.controller.keys(number))
    assert len(before.reported()) == 2
    assert after.reported() == []


@pytest.mark.parametrize(
    ("thing", "reason"),
    [
        (revision("Draft", owners=()), "nobody's"),
        (revision("Draft", owners=({**OWNER, "apiVersion": "apps/v1"},)), "of another kind of that name"),
        (revision("Published", number=-1), "the placeholder of a branch"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_revisions_have_no_events(thing: Any, reason: str) -> None:
    worker = Worker()
    worker.listed()
    worker.see(REVISION, thing)
    assert worker.reported() == []


def test_a_revision_that_is_orphaned_is_withdrawn_not_deleted() -> None:
    worker = Worker()
    worker.listed()
    worker.see(REVISION, revision("Draft"))
    worker.see(REVISION, revision("Draft", owners=()))
    assert worker.reported() == [("False", "Draft", ""), ("Unknown", "Withdrawn", "False")]
    assert worker.latest == {}


def test_what_programs_and_people_are_waited_for_is_an_event() -> None:
    """The conditions that gates and tasks name; not other ones, nor a gate on the lifecycle."""
    worker = Worker()
    worker.listed()
    asked = '{"Licensed": {"question": "Is it licensed?"}}'
    others = (("Other", "True"), ("Published", "True"))
    for tested, licensed in (("Unknown", "Unknown"), ("True", "Unknown"), ("True", "False")):
        conditions = (*others, ("Tested", tested), ("Licensed", licensed))
        gates = ("Tested", "Published", "Absent")
        worker.see(REVISION, revision("Draft", gates=gates, tasks=asked, conditions=conditions))
    assert [(e.condition.type, e.condition.status, e.previous, e.variant) for e in worker.events] == [
        ("Published", "False", "", "web"),
        ("Tested", "Unknown", "", "web"),
        ("Licensed", "Unknown", "", "web"),
        ("Tested", "True", "Unknown", "web"),
        ("Licensed", "False", "Unknown", "web"),
    ]
    worker.see(REVISION, revision("Draft", gates=("Tested",), conditions=(("Tested", "True"),)))
    last = worker.events[-1]
    assert (last.condition.type, last.condition.reason, last.last) == ("Licensed", "Withdrawn", True)
    assert sorted(worker.latest) == [f"{DRAFT}|Published", f"{DRAFT}|Tested"]
    worker.see(REVISION, revision("Draft"), gone=True)
    assert [(e.condition.type, e.condition.reason) for e in worker.events[-2:]] == [
        ("Published", "Deleted"),
        ("Tested", "Deleted"),
    ]
    assert worker.latest == {}


LICENSED = (
    '{"Licensed": {"question": "Is it licensed?", "owner": "ann", "ticket": "N-1", "due": "2030-01-02"}}'
)


def task_of(worker: Worker, type_: str = "Licensed") -> EventTask:
    """Return the question of the last event of a condition."""
    return next(e.task for e in reversed(worker.events) if e.condition.type == type_)


def test_an_event_of_a_task_says_what_is_asked_of_whom_and_what_waits_for_it() -> None:
    """Its own gate, and one that comes after it; a gate that does not, and another condition, say nothing."""
    worker = Worker()
    worker.listed()
    order = {CONDITION_ORDER: '{"Deployed": ["Tested"], "Tested": ["Licensed"], "Cooled": ["Powered"]}'}
    conditions = (("Licensed", "Unknown"), ("Cooled", "Unknown"))
    gates = ("Licensed", "Deployed", "Cooled")
    worker.see(REVISION, revision("Draft", gates=gates, tasks=LICENSED, notes=order, conditions=conditions))
    assert task_of(worker) == EventTask(
        question="Is it licensed?",
        owner="ann",
        ticket="N-1",
        due="2030-01-02",
        state="open",
        blocks=("Licensed", "Deployed"),
    )
    assert task_of(worker, "Cooled") == task_of(worker, "Published") == EventTask()
    circle = {CONDITION_ORDER: "{"}
    worker.see(REVISION, revision("Draft", gates=gates, tasks=LICENSED, notes=circle, conditions=conditions))
    assert task_of(worker).blocks == ("Licensed",), "an invalid order is none"


def test_a_question_that_changes_alone_is_an_event() -> None:
    """Another owner in the Kptfile leaves the condition as it is; the same again is no news."""
    worker = Worker()
    worker.listed()
    for text in (LICENSED, LICENSED, LICENSED.replace("ann", "bob")):
        worker.see(REVISION, revision("Draft", tasks=text, conditions=(("Licensed", "Unknown"),)))
    found = [(e.task.owner, e.previous) for e in worker.events if e.condition.type == "Licensed"]
    assert found == [("ann", ""), ("bob", "Unknown")]
    after = Worker(worker.latest)
    after.see(REVISION, revision("Draft", tasks=text, conditions=(("Licensed", "Unknown"),)))
    after.listed()
    assert after.events == []


def test_a_question_without_a_condition_is_open() -> None:
    """A blueprint asks by an annotation alone; once the revision is published, nobody is asked any more."""
    worker = Worker()
    worker.listed()
    worker.see(REVISION, revision("Draft", gates=("Licensed",), tasks=LICENSED))
    event = worker.events[-1]
    message = "ann is asked: Is it licensed? (N-1, due 2030-01-02)"
    assert (event.condition.status, event.condition.reason) == ("Unknown", "Asked")
    assert (event.condition.message, event.task.state) == (message, "open")
    worker.see(REVISION, revision("Published", number=1, gates=("Licensed",), tasks=LICENSED))
    assert (worker.events[-1].condition.reason, worker.events[-1].task) == ("Withdrawn", EventTask())


@pytest.mark.parametrize(
    ("status", "lifecycle", "state"),
    [
        ("Unknown", "Draft", "open"),
        ("Unknown", "Proposed", "proposed"),
        ("Unknown", "Published", "lapsed"),
        ("Unknown", "DeletionProposed", "lapsed"),
        ("True", "Draft", "answered"),
        ("False", "Published", "answered"),
    ],
)
def test_how_a_task_stands(status: str, lifecycle: str, state: str) -> None:
    worker = Worker()
    worker.listed()
    worker.see(REVISION, revision(lifecycle, number=1, tasks=LICENSED, conditions=(("Licensed", status),)))
    assert task_of(worker).state == state


def test_an_answer_says_who_gave_it_as_the_store_recorded_it() -> None:
    """A status that is not that of the last recorded change was not set through the store."""
    worker = Worker()
    worker.listed()
    change = '[{"type": "Licensed", "at": "2026-01-01T00:00:00Z", "by": "carol", "after": "True"}]'
    history = {TASK_HISTORY: change}
    for status in ("True", "False"):
        conditions = (("Licensed", status),)
        worker.see(REVISION, revision("Draft", tasks=LICENSED, notes=history, conditions=conditions))
    found = [(e.condition.status, e.task.answered_by, e.task.answered_at) for e in worker.events[1:]]
    assert found == [("True", "carol", "2026-01-01T00:00:00Z"), ("False", "", "")]


def test_a_revision_that_is_being_deleted_asks_nobody() -> None:
    """Nor does one that is gone; what is not a condition of the package ends at once."""
    worker = Worker()
    worker.listed()
    conditions = (("Licensed", "Unknown"),)
    both = LICENSED[:-1] + ', "Priced": {"question": "Who pays?"}}'
    worker.see(REVISION, revision("Draft", tasks=both, conditions=conditions))
    assert {e.condition.type for e in worker.events if e.task.state == "open"} == {"Licensed", "Priced"}
    going = revision("Draft", tasks=both, conditions=conditions, deleted="2026-01-01T00:00:00Z")
    worker.see(REVISION, going)
    assert task_of(worker) == task_of(worker, "Priced") == EventTask()
    assert sorted(worker.latest) == [f"{DRAFT}|Licensed", f"{DRAFT}|Published"]
    worker.see(REVISION, going, gone=True)
    assert worker.latest == {}


def test_a_question_of_the_lifecycles_type_is_not_that_of_the_lifecycle() -> None:
    """The type of the event is taken: such a task is in `pvbus task list` alone."""
    worker = Worker()
    worker.listed()
    worker.see(REVISION, revision("Draft", tasks=LICENSED.replace("Licensed", "Published")))
    assert [(e.condition.reason, e.task) for e in worker.events] == [("Draft", EventTask())]


def test_a_package_cannot_ask_without_bound() -> None:
    """Of very many questions the first are events, and of very long ones the beginning."""
    worker = Worker()
    worker.listed()
    many = {f"T{n:05}": {"question": "?" * 9_000, "owner": "o" * 9_000} for n in range(2_000)}
    worker.see(REVISION, revision("Draft", tasks=msgspec.json.encode(many).decode()))
    asking = [event.task for event in worker.events if event.task.question]
    assert len(asking) == TASKS_MAX
    assert max(len(task.question) + len(task.owner) for task in asking) == 500


def test_a_gate_that_is_there_twice_is_unknown() -> None:
    worker = Worker()
    worker.listed()
    twice = (("Tested", "True"), ("Tested", "True"))
    worker.see(REVISION, revision("Draft", gates=("Tested",), conditions=twice))
    assert worker.reported() == [("False", "Draft", ""), ("Unknown", "Duplicate", "")]


def test_an_event_of_a_rollout_has_its_attempt_wave_and_counts_as_data() -> None:
    """Counts alone are no event; a phase, an attempt or a wave is one, whatever the sentence says."""
    worker = Worker()
    worker.listed()

    def see(phase: str, attempt: int, wave: int, **targets: int) -> list[EventRollout]:
        before = len(worker.events)
        seen = policy("it goes on")
        seen["spec"] = {"waves": [{"count": 1}, {"percent": 100}]}
        seen["status"] |= {"phase": phase, "attempt": attempt, "wave": wave, "targets": targets}
        worker.see(POLICY, seen)
        return [each.rollout for each in worker.events[before:] if each.condition.type == "Progressing"]

    counts = TargetCounts(total=3, proven=1, in_flight=2)
    first = EventRollout(phase="Rolling", attempt=1, wave=1, waves=2, targets=counts)
    assert see("Rolling", 1, 1, total=3, proven=1, inFlight=2) == [first]
    assert see("Rolling", 1, 1, total=3, proven=2, inFlight=1) == []
    found = see("Rolling", 1, 2, total=3, proven=3)
    assert found == [
        EventRollout(phase="Rolling", attempt=1, wave=2, waves=2, targets=TargetCounts(total=3, proven=3))
    ]
    assert [each.attempt for each in see("Rolling", 2, 2, total=3)] == [2]
    assert [each.phase for each in see("Completed", 2, 2, total=3)] == ["Completed"]
    worker.see(POLICY, policy("it goes on"), gone=True)
    assert worker.events[-1].rollout == EventRollout()


def test_a_rollout_that_advances_is_an_event() -> None:
    """Each condition of its policy when it changes, and its end with the policy."""
    worker = Worker()
    worker.listed()
    worker.see(POLICY, policy("wave 1 of 2"))
    worker.see(POLICY, policy("wave 1 of 2"))
    worker.see(POLICY, policy("wave 2 of 2"))
    assert [(e.kind, e.name, e.condition.type, e.condition.message) for e in worker.events] == [
        ("RolloutPolicy", "web", "Accepted", ""),
        ("RolloutPolicy", "web", "Progressing", "wave 1 of 2"),
        ("RolloutPolicy", "web", "Progressing", "wave 2 of 2"),
    ]
    after = Worker(worker.latest)
    after.see(POLICY, policy("wave 2 of 2"))
    after.listed()
    assert after.reported() == []
    after.see(POLICY, policy("wave 1 of 2", uid="p2"))  # made anew under its name
    assert [(e.condition.type, e.uid, e.previous) for e in after.events] == [
        ("Accepted", "p2", ""),
        ("Progressing", "p2", ""),
    ]
    after.see(POLICY, policy("", uid="p2"), gone=True)
    assert [(e.condition.type, e.condition.reason) for e in after.events[-2:]] == [
        ("Accepted", "Withdrawn"),
        ("Progressing", "Withdrawn"),
    ]


def test_ready_of_a_repository_is_an_event_when_it_changes() -> None:
    """Porch writes the time of the condition at each of its looks: that alone is none."""
    worker = Worker()
    worker.listed()
    worker.see(REPOSITORY, obj(REPOSITORY, "edge", spec={}))
    worker.see(REPOSITORY, repository("True"))
    worker.see(REPOSITORY, repository("True", time="2026-02-03T05:05:06Z"))
    worker.see(REPOSITORY, repository("False", message="authentication failed", time="2026-02-03T06:00:00Z"))
    assert [e.condition.last_transition_time for e in worker.events] == [
        "2026-02-03T04:05:06Z",
        "2026-02-03T06:00:00Z",
    ]
    assert worker.events[-1].condition.message == "authentication failed"
    worker.see(REPOSITORY, repository("False"), gone=True)
    assert worker.reported() == [("True", "R", ""), ("False", "R", "True"), ("Unknown", "Withdrawn", "False")]


def test_the_time_of_a_repositorys_condition_alone_is_no_news_on_the_bus() -> None:
    """Otherwise each of Porch's looks would be a record, read by every worker."""
    (first,) = rows_of(REPOSITORY, repository("True"), (OBJECTS,))
    (second,) = rows_of(REPOSITORY, repository("True", time="2026-02-03T05:05:06Z"), (OBJECTS,))
    (third,) = rows_of(REPOSITORY, repository("False"), (OBJECTS,))
    assert first.digest == second.digest != third.digest


def test_only_the_worker_of_the_objects_partition_publishes() -> None:
    """Every worker reads every object, and each object's events have one writer."""
    owner = partition_of(DRAFT.partition("|")[2], PARTITIONS)
    others = tuple(number for number in range(PARTITIONS) if number != owner)
    for owned, events in (((owner,), 1), (others, 0)):
        worker = Worker(owned=owned)
        worker.listed()
        worker.see(REVISION, revision("Draft"))
        assert len(worker.reported()) == events


@pytest.mark.parametrize("lifecycle", ["Draft", "Proposed"])
def test_a_draft_that_stayed_is_published_with_its_variant_and_its_editors(lifecycle: str) -> None:
    """It has no owner any more, and so no lifecycle; the condition ends when a variant takes it up again."""
    marks = {KEPT_FOR: "fleet/web@", EDITED_BY: "ann"}
    worker = Worker()
    worker.listed()
    worker.see(REVISION, revision(lifecycle, annotations={EDITED_BY: "ann"}))
    worker.events.clear()
    worker.see(REVISION, revision(lifecycle, owners=(), annotations=marks))
    retained, ended = sorted(worker.events, key=lambda event: event.condition.type)
    assert (ended.condition.type, ended.last) == ("Published", True)
    assert (retained.condition.type, retained.condition.status, retained.variant) == ("Kept", "True", "web")
    assert retained.condition.message.startswith(
        "edited by ann; PackageVariant web of PackageVariantSet fleet has left it: applied again,"
    )
    worker.events.clear()
    worker.see(REVISION, revision(lifecycle, annotations={EDITED_BY: "ann"}))
    found = {event.condition.type: event for event in worker.events}
    assert (found["Kept"].last, found["Published"].condition.reason) == (True, lifecycle)


@pytest.mark.parametrize("lifecycle", ["Published", "DeletionProposed"])
def test_what_was_published_since_is_not_kept(lifecycle: str) -> None:
    worker = Worker()
    worker.listed()
    marks = {KEPT_FOR: "web@", EDITED_BY: "ann"}
    worker.see(REVISION, revision(lifecycle, number=1, owners=(), annotations=marks))
    assert worker.events == []


def packaged(kind: Kind, *conditions: tuple[str, str, str], uid: str = "i1", generation: int = 1) -> Any:
    """An install of a package, or a revision, as establish, Crossplane or kapp-controller reports it."""
    reported = [
        {"type": type_, "status": status, "reason": reason, "observedGeneration": generation}
        for type_, status, reason in conditions
    ]
    meta: dict[str, Any] = {"uid": uid, "resourceVersion": "9", "generation": generation}
    if kind.group == CROSSPLANE_GROUP:
        meta["namespace"] = ""
    return obj(kind, "aws", metadata=meta, spec={}, status={"conditions": reported})


@pytest.mark.parametrize("kind", [*CROSSPLANE_INSTALLS, *CROSSPLANE_REVISIONS], ids=str)
def test_what_becomes_of_a_package_of_crossplanes_family_is_told_once(kind: Kind) -> None:
    """Refused, then healthy, then gone; a status that is written again, and a restart, say nothing."""
    worker = Worker()
    worker.listed()
    refused = packaged(kind, ("Healthy", "False", "UnhealthyPackageRevision"))
    healthy = packaged(kind, ("Healthy", "True", "HealthyPackageRevision"))
    for state in (refused, refused, healthy, healthy):
        worker.see(kind, state)
    first = worker.events[0]
    assert (first.kind, first.namespace, first.name, first.uid) == (kind.kind, "", "aws", "i1")
    assert (first.cause.resource_version, first.condition.observed_generation) == ("9", 1)
    assert list(worker.latest) == [f"{kind.kind}|/aws|Healthy"]
    after = Worker(worker.latest)
    after.see(kind, healthy)
    after.listed()
    assert after.reported() == []
    worker.see(kind, healthy, gone=True)
    assert [(status, previous) for status, _, previous in worker.reported()] == [
        ("False", ""),
        ("True", "False"),
        ("Unknown", "True"),
    ]
    assert worker.latest == {}


def test_a_change_of_an_install_that_changes_no_condition_has_an_event_of_its_generation() -> None:
    """So who waits for a change of a package finds it in the events alone."""
    worker = Worker()
    worker.listed()
    provider = CROSSPLANE_INSTALLS[-1]
    for generation in (1, 2):
        worker.see(provider, packaged(provider, ("Healthy", "True", "R"), generation=generation))
    assert [event.condition.observed_generation for event in worker.events] == [1, 2]


def test_the_one_condition_of_a_carvel_install_ends_as_the_next_one_begins() -> None:
    worker = Worker()
    worker.listed()
    for type_ in ("Reconciling", "ReconcileSucceeded"):
        worker.see(CARVEL_INSTALL, packaged(CARVEL_INSTALL, (type_, "True", "")))
    assert [(e.condition.type, e.condition.status, e.last) for e in worker.events] == [
        ("Reconciling", "True", False),
        ("ReconcileSucceeded", "True", False),
        ("Reconciling", "Unknown", True),
    ]
    assert list(worker.latest) == ["PackageInstall|default/aws|ReconcileSucceeded"]


def test_both_kinds_of_package_revisions_have_their_own_events() -> None:
    """A list of Crossplane's that is not complete holds no end of a revision of Porch's, and vice versa."""
    worker = Worker()
    crossplane = Kind(CROSSPLANE_GROUP, REVISION.kind)
    worker.listed()
    for number in range(PARTITIONS):
        worker._run(worker.controller.load(OBJECTS, number, sync_key(*crossplane), marker("syncing", 2)))
    worker.see(REVISION, revision("Draft"))
    worker.see(crossplane, packaged(crossplane, ("RevisionHealthy", "True", "R")))
    worker.see(REVISION, revision("Draft"), gone=True)
    worker.see(crossplane, packaged(crossplane), gone=True)
    assert [(e.namespace, e.condition.type, e.last) for e in worker.events] == [
        ("default", "Published", False),
        ("", "RevisionHealthy", False),
        ("default", "Published", True),
    ]


def test_observed_kinds_of_one_name_differ_in_whether_their_objects_have_namespaces() -> None:
    """The complete list of one of them says nothing of the objects of another."""
    assert sorted(OBSERVED_BY_SCOPE.values()) == sorted(OBSERVED)
    subjects = Subjects(PARTITIONS)
    for kind in (REVISION, REPOSITORY):
        for number in range(PARTITIONS):
            subjects.load_marker(number, sync_key(*kind), marker("ok", 1))
    assert subjects.is_listed("PackageRevision", "default")
    assert subjects.is_listed("Repository", "default")
    assert not subjects.is_listed("PackageRevision", "")
    assert not subjects.is_listed("Repository", "")
