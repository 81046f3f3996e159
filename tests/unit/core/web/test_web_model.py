"""The fleet in memory: what rows of the topics are shown as, in any order, and what changes give."""

import random
import shlex
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvbus.cli.status import document_of, lines_of
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.records import LATEST, POLICIES, SETS, UNROLL, VARIANTS, ChildState, Hold
from pvbus.core.web import document, versioned
from pvbus.core.web.model import TOPICS, Model
from tests.tools.bustables import Row
from tests.tools.fleetrows import (
    REVISION,
    SET,
    VARIANT,
    child,
    event,
    fleet,
    lifecycle,
    markers,
    obj,
    ready,
    retained_draft,
    rollout,
    rollup,
    task,
    unready,
    variant,
)

NOW = 1_767_225_600.0
NAME, SKEY = "default/web-1", "default/web"
MINE = [variant(NAME, {"region": "asia"}), child(SKEY, "web-1"), ready(NAME)]


def loaded(rows: Iterable[Row], model: Model | None = None) -> Model:
    model = model or Model(1)
    for topic, key, row in (each for each in rows if each[0] in TOPICS):
        model.load(topic, 0, key, row if isinstance(row, bytes) else encode_row(row))
    model.publish()
    return model


def whole(model: Model) -> dict[str, Any]:
    return document.whole(model, NOW)


def changes(model: Model, since: int) -> dict[str, Any] | None:
    return document.changes(model, since, NOW)


def plain(document: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the variants of a document by name, with the texts that their numbers stand for."""
    texts, labels = document["texts"], document["labels"]
    return {row[0]: (*(texts[number] for number in row[1:5]), labels[row[5]]) for row in document["variants"]}


def sets_of(document: dict[str, Any]) -> dict[str, Any]:
    texts = document["texts"]
    return {name: (texts[state], texts[reason], hold) for name, state, reason, hold, *_ in document["sets"]}


def warnings_of(document: dict[str, Any]) -> dict[str, str]:
    """Return the warnings of variants and sets by name."""
    return {row[0]: document["texts"][row[-2]] for row in (*document["variants"], *document["sets"])}


@pytest.mark.parametrize(
    ("rows", "state", "reason"),
    [
        (MINE, "ready", "Reconciled"),
        ([variant(NAME)], "working", "NotReported"),
        ([child(SKEY, "web-1")], "working", "NotReported"),
        ([variant(NAME, generation=2), ready(NAME)], "working", "NotReported"),
        ([variant(NAME), unready(NAME, "Reconciling")], "working", "Reconciling"),
        ([variant(NAME), event(VARIANT, NAME, "Ready", "Unknown", "Withdrawn")], "working", "NotReported"),
        (
            [variant(NAME), unready(NAME, "NoMatch"), event(VARIANT, NAME, "Stalled", "True", "NoMatch")],
            "stalled",
            "NoMatch",
        ),
        ([*MINE, event(VARIANT, NAME, "Stalled", "False", "Valid")], "ready", "Reconciled"),
        ([*MINE, event(VARIANT, NAME, "OnHold", "True", "Annotation")], "on hold", "Reconciled"),
        ([*MINE, child(SKEY, "web-1", ChildState.HELD)], "removal held", "DeletionHeld"),
        ([*MINE, child(SKEY, "web-1", ChildState.WAITING)], "removing", "Reconciled"),
        ([*MINE, child(SKEY, "web-1", ChildState.CONFIRMED)], "removing", "Reconciled"),
        ([*MINE, child(SKEY, "web-1", ChildState.ORDERED)], "removing", "Reconciled"),
        ([*MINE, child(SKEY, "web-1", ChildState.GONE)], "ready", "Reconciled"),
        ([*MINE, variant(NAME, deleting=True)], "removing", "Reconciled"),
    ],
)
def test_the_state_of_a_variant(rows: list[Row], state: str, reason: str) -> None:
    """Each mix of rows has one state, and a reason that is about the current generation."""
    found = plain(whole(loaded(rows)))[NAME]
    assert (found[1], found[3]) == (state, reason)


def test_a_variant_is_there_while_its_object_or_the_wish_for_it_is() -> None:
    """Conditions alone do not make a row; without object and wish it goes, and what it was is forgotten."""
    model = loaded([ready(NAME)])
    assert plain(whole(model)) == {}
    assert plain(whole(loaded(MINE[:2], model)))[NAME][1] == "ready"
    gone: list[Row] = [(VARIANTS, NAME, None), (UNROLL, f"{SKEY}|web-1", None)]
    before = model.version
    assert plain(whole(loaded(gone, model))) == {}
    news = changes(model, before)
    assert news is not None
    assert news["gone"] == [NAME]
    loaded([(LATEST, f"{VARIANT}|{NAME}|Ready", None)], model)
    assert plain(whole(loaded(MINE[:1], model)))[NAME][1] == "working"


def test_labels_and_sets() -> None:
    """A variant has its labels but the uid of its set, and the set whose row wants it."""
    labels = {"region": "asia", "config.porch.kpt.dev/packagevariantset": "some-uid"}
    model = loaded([variant(NAME, labels), child(SKEY, "web-1")])
    assert plain(whole(model))[NAME][0] == SKEY
    assert plain(whole(model))[NAME][4] == {"region": "asia"}
    loaded([child("default/other", "web-1"), child(SKEY, "web-1", ChildState.GONE)], model)
    assert plain(whole(model))[NAME][0] == "default/other"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], ""),
        (["Draft"], "Draft"),
        (["Published", "Draft"], "Draft"),
        (["Published", "Proposed"], "Proposed"),
        (["Published", "DeletionProposed"], "DeletionProposed"),
        (["Published", "Published"], "Published"),
        (["Published", "Deleted"], "Published"),
    ],
)
def test_the_lifecycle_of_a_variant(words: list[str], shown: str) -> None:
    """An open revision counts more than a published one; one that is deleted does not count."""
    rows = [lifecycle(NAME, f"edge.web.v{n}", word) for n, word in enumerate(words)]
    assert plain(whole(loaded([*MINE, *rows])))[NAME][2] == shown


def test_a_revision_changes_its_lifecycle() -> None:
    """Draft, Proposed, Published, Deleted: each replaces the one before."""
    model = loaded(MINE)
    for word, shown in (("Draft", "Draft"), ("Published", "Published"), ("Deleted", "")):
        assert plain(whole(loaded([lifecycle(NAME, "edge.web.v1", word)], model)))[NAME][2] == shown
    loaded([lifecycle(NAME, "edge.web.v1", "Draft")], model)
    tombstone: Row = (LATEST, f"{REVISION}|default/edge.web.v1|Published", None)
    assert plain(whole(loaded([tombstone], model)))[NAME][2] == ""


@pytest.mark.parametrize(
    ("kind", "name", "topic", "type_"),
    [(SET, SKEY, SETS, "ExpressionDisputed"), (VARIANT, NAME, VARIANTS, "FieldsDropped")],
)
def test_a_warning_shows_beside_the_state_until_it_is_false_or_gone(
    kind: str, name: str, topic: str, type_: str
) -> None:
    """It changes no state, comes with the changes of a version, and alone makes no row."""

    def warn(status: str) -> Row:
        return event(kind, name, type_, status, "Any")

    model = loaded([warn("True")])
    assert warnings_of(whole(model)) == {}
    before = model.version
    loaded([obj(topic, name), ready(name, kind=kind)], model)
    news = changes(model, before)
    assert news is not None
    assert warnings_of(news) == {name: type_}
    assert [row[1 if kind == SET else 2] for row in (*news["variants"], *news["sets"])] == [
        news["texts"].index("ready")
    ]
    for gone in (warn("False"), (LATEST, f"{kind}|{name}|{type_}", None)):
        assert warnings_of(whole(loaded([gone], model))) == {name: ""}
        assert warnings_of(whole(loaded([warn("True")], model))) == {name: type_}


def test_the_state_of_a_set() -> None:
    """A set that holds removals says so with their number and token; without its object it is not there."""
    hold = Hold(id="h", token="2-abc", count=2)
    model = loaded([obj(SETS, SKEY), ready(SKEY, kind=SET)])
    assert sets_of(whole(model)) == {SKEY: ("ready", "Reconciled", None)}
    loaded([rollup(SKEY, hold)], model)
    assert sets_of(whole(model)) == {SKEY: ("removal held", "DeletionHeld", [2, "2-abc"])}
    loaded([rollup(SKEY), event(SET, SKEY, "OnHold", "True", "Annotation")], model)
    assert sets_of(whole(model))[SKEY][0] == "on hold"
    before = model.version
    news = changes(loaded([(SETS, SKEY, None)], model), before)
    assert news is not None
    assert (news["sets"], news["setsGone"]) == ([], [SKEY])


def test_held_removals_by_set() -> None:
    """Held variants are listed while the hold is still being written, and a hold before its variants."""
    model = loaded([obj(SETS, SKEY), child(SKEY, "b", ChildState.HELD), child(SKEY, "a", ChildState.HELD)])
    assert model.held() == {SKEY: ["default/a", "default/b"]}
    hold = rollup("default/other", Hold(id="h"))
    assert loaded([obj(SETS, "default/other"), hold], model).held() == {
        "default/other": [],
        SKEY: ["default/a", "default/b"],
    }


def test_what_may_be_missing() -> None:
    """Until every list is complete, and where a namespace is refused, the page is told."""
    assert [each.kind for each in loaded(MINE).incomplete()] == [SET, VARIANT]
    assert list(loaded(markers()).incomplete()) == []
    (missing, _) = loaded(markers("unavailable", "not served")).incomplete()
    assert missing == (SET, "not served")


def test_the_same_rows_again_change_nothing() -> None:
    """A repeated record has no version of its own, so that no page hears of it."""
    rows = list(fleet(60))
    model = loaded(rows)
    assert model.version == 1
    assert loaded(rows, model).version == 1


def test_changes_are_those_since_a_version() -> None:
    """Only what changed is sent; a version that the model does not reach is answered with None."""
    model = loaded(fleet(60))
    old = "default/web-edge-africa-africa-00000"
    loaded([unready(old, "NoMatch"), unready(NAME, "NoMatch"), variant(NAME)], model)
    news = changes(model, 1)
    assert news is not None
    assert sorted(plain(news)) == [NAME, old]
    assert changes(model, model.version + 1) is None


def test_of_too_many_removals_the_whole_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that are gone a bounded number is known; an older version gets None, a newer one its names."""
    monkeypatch.setattr(versioned, "GONE_MAX", 2)
    model = loaded(variant(f"default/{n}") for n in range(4))
    for n in range(4):
        loaded([(VARIANTS, f"default/{n}", None)], model)
    assert changes(model, 1) is None
    news = changes(model, model.version - 2)
    assert news is not None
    assert sorted(news["gone"]) == ["default/2", "default/3"]


def test_a_record_that_cannot_be_read_raises_and_changes_nothing() -> None:
    """The reader reports it and goes on."""
    model = loaded(MINE)
    for topic, key, value in ((VARIANTS, NAME, b"{"), (UNROLL, "no bar", b"{}"), (LATEST, "a|b", b"{}")):
        with pytest.raises(ValueError):  # noqa: PT011 - which one is the decoder's matter
            model.load(topic, 0, key, value)
    assert not model.publish()


_names = st.sampled_from([f"v{n}" for n in range(4)])
_states = st.sampled_from(ChildState)
_types = st.sampled_from(["Ready", "Stalled", "OnHold", "Other"])
_statuses = st.sampled_from(["True", "False", "Unknown"])
_words = st.sampled_from(["Draft", "Proposed", "Published", "Deleted"])
_rows = st.one_of(
    st.builds(lambda n, g: variant(f"default/{n}", generation=g), _names, st.integers(1, 2)),
    st.builds(lambda n: (VARIANTS, f"default/{n}", None), _names),
    st.builds(lambda s, n, c: child(f"default/{s}", n, c), st.sampled_from("ab"), _names, _states),
    st.builds(lambda n, g: ready(f"default/{n}", generation=g), _names, st.integers(1, 2)),
    st.builds(lambda n, t, s: event(VARIANT, f"default/{n}", t, s, "R"), _names, _types, _statuses),
    st.builds(lambda n, v, w: lifecycle(f"default/{n}", f"r.{v}", w), _names, st.integers(1, 3), _words),
)


@given(st.lists(st.lists(_rows, max_size=6), max_size=8), st.data())
def test_a_page_that_follows_or_reconnects_ends_like_one_that_loads(
    batches: list[list[Row]], data: st.DataObject
) -> None:
    """Changes since any earlier version, applied to what the page had then, give the whole of now."""
    model = Model(1)
    pages = [(0, plain(whole(model)))]
    for batch in batches:
        loaded(batch, model)
        version, page = data.draw(st.sampled_from(pages))
        news = changes(model, version)
        assert news is not None
        page = {name: row for name, row in page.items() if name not in news["gone"]} | plain(news)
        assert page == plain(whole(model))
        pages.append((model.version, page))


@given(st.lists(_rows, max_size=20), st.randoms(use_true_random=False))
def test_the_order_of_the_topics_does_not_matter(rows: list[Row], order: random.Random) -> None:
    """Rows of different keys in another order, as partitions give them, show the same fleet."""
    last = {(topic, key): row for topic, key, row in rows}
    one = [(topic, key, row) for (topic, key), row in last.items()]
    if len({key.partition("|")[2] for topic, key, _ in one if topic == UNROLL}) < sum(
        topic == UNROLL for topic, _, _ in one
    ):
        return  # two sets want one variant: the last to say so has it
    other = list(one)
    order.shuffle(other)
    assert plain(whole(loaded(one))) == plain(whole(loaded(other)))


def test_a_rollout_is_shown_with_what_a_person_can_do() -> None:
    """It is whole in each answer, says what it waits for, and its commands fit its phase."""
    counts = {"total": 9, "proven": 4, "waiting": 5}
    model = loaded([rollout(SKEY, "Stopped", 2, counts, message="too many")])
    before = model.version
    (found,) = whole(model)["rollouts"]
    assert (found["name"], found["phase"], found["wave"], found["waves"]) == (SKEY, "Stopped", 2, 3)
    assert found["orders"] == [f"pvbus rollout {verb} {SKEY}" for verb in ("resume", "abort", "roll-back")]
    assert found["waits"] == [f"a person, as it stopped: pvbus rollout resume, abort or roll-back {SKEY}"]
    news = changes(loaded([rollout(SKEY, "Completed", 3, counts), rollout("a/b", "", 0, {})], model), before)
    assert news is not None
    assert [(each["name"], each["phase"], each["orders"]) for each in news["rollouts"]] == [
        ("a/b", "", []),
        (SKEY, "Completed", []),
    ]
    news = changes(loaded([(POLICIES, "a/b", None)], model), before)
    assert news is not None
    assert (news["rolloutsGone"], [each["name"] for each in news["rollouts"]]) == (["a/b"], [SKEY])


DRAFT = "edge.web.packagevariant-2"
QUESTION = "Is the site licensed?"
TASK: Row = task(NAME, DRAFT, "Licensed", QUESTION, owner="ann", ticket="N-1", due="2026-01-02")


def tasks_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tasks of a document by name, with the texts that their numbers stand for."""
    texts = document["texts"]
    found = {}
    for name, revision, type_, owner_of_it, *shared, at, since, note, blocks, command in document["tasks"]:
        state, question, owner, ticket, due = (texts[number] for number in shared)
        found[name] = {
            "revision": revision,
            "type": texts[type_],
            "variant": owner_of_it,
            "state": state,
            "question": question,
            "owner": owner,
            "ticket": ticket,
            "due": (due, at),
            "since": texts[since],
            "note": texts[note],
            "blocks": [texts[gate] for gate in blocks],
            "command": command,
        }
    return found


def test_an_open_task_is_shown_with_what_answers_it() -> None:
    """It is in the whole and in the changes, with its due time as a number, which is the end of the day."""
    model = loaded(MINE)
    before = model.version
    news = changes(loaded([TASK], model), before)
    assert news is not None
    assert tasks_of(news) == tasks_of(whole(model))
    assert tasks_of(news) == {
        f"default/{DRAFT}|Licensed": {
            "revision": f"default/{DRAFT}",
            "type": "Licensed",
            "variant": NAME,
            "state": "open",
            "question": QUESTION,
            "owner": "ann",
            "ticket": "N-1",
            "due": ("2026-01-02", 1_767_398_399.0),
            "since": "2026-01-01T08:00:00Z",
            "note": "",
            "blocks": ["Licensed"],
            "command": f"pvbus task answer default/{DRAFT} Licensed --status True",
        }
    }
    assert loaded([TASK], model).version == before + 1, "the same again is no change"


@pytest.mark.parametrize(
    "after",
    [
        task(NAME, DRAFT, "Licensed", QUESTION, state="answered", status="True"),
        task(NAME, DRAFT, "Licensed", QUESTION, state="lapsed"),
        event(REVISION, f"default/{DRAFT}", "Licensed", "Unknown", "Asked", variant="web-1"),
        event(REVISION, f"default/{DRAFT}", "Licensed", "Unknown", "Deleted", variant="web-1", last=True),
        (LATEST, f"{REVISION}|default/{DRAFT}|Licensed", None),
    ],
    ids=["answered", "published", "no task any more", "deleted", "tombstone"],
)
def test_a_task_leaves_the_page_when_it_asks_nobody_any_more(after: Row) -> None:
    """By its own event alone, whatever was heard of its revision; a page that follows hears it by name."""
    model = loaded([*MINE, TASK, task(NAME, "other", "Licensed", "?", state="proposed")])
    before = model.version
    news = changes(loaded([after], model), before)
    assert news is not None
    assert (news["tasksGone"], news["tasks"]) == ([f"default/{DRAFT}|Licensed"], [])
    assert [each["state"] for each in tasks_of(whole(model)).values()] == ["proposed"]


def test_a_task_says_why_its_answer_is_void_and_not_its_question_twice() -> None:
    void = task(NAME, DRAFT, "Licensed", QUESTION, reason="InputsChanged", message="it was True")
    asked = task(NAME, "other", "Licensed", QUESTION, message="ann is asked: Is the site licensed?")
    found = tasks_of(whole(loaded([void, asked])))
    assert [each["note"] for each in found.values()] == ["it was True", ""]


def test_a_type_that_is_shell_code_is_one_argument_of_the_command() -> None:
    """A person copies it: a package must not have anything else run."""
    (found,) = tasks_of(whole(loaded([task(NAME, DRAFT, "$(reboot) '; rm", QUESTION)]))).values()
    assert shlex.split(found["command"])[3:5] == [f"default/{DRAFT}", "$(reboot) '; rm"]
    assert "$(reboot) '; rm" not in found["command"]


@pytest.mark.parametrize("due", ["", "soon", "2026-13-01"])
def test_a_due_time_of_another_form_is_none(due: str) -> None:
    """Another release may write what this one cannot read: the task is shown, and is not overdue."""
    (found,) = tasks_of(whole(loaded([task(NAME, DRAFT, "A", QUESTION, due=due)]))).values()
    assert found["due"] == (due, None)


def test_a_draft_that_stayed_is_shown_until_a_variant_has_it_again() -> None:
    model = loaded(MINE)
    before = model.version
    news = changes(loaded([retained_draft("default/gone", DRAFT, "ann")], model), before)
    assert news is not None
    name = f"default/{DRAFT}"
    row = [name, "default/gone", "edited by ann; PackageVariant gone has left it"]
    assert (news["retained"], whole(model)["retained"]) == ([row], [row])
    before = model.version
    news = changes(loaded([(LATEST, f"{REVISION}|{name}|Kept", None)], model), before)
    assert news is not None
    assert (news["retainedGone"], news["retained"], whole(model)["retained"]) == ([name], [], [])


_tasks = st.builds(
    lambda r, t, s, o: task(NAME, f"r{r}", t, QUESTION, state=s, owner=o),
    st.integers(1, 3),
    st.sampled_from("AB"),
    st.sampled_from(["open", "proposed", "answered", "lapsed"]),
    st.sampled_from(["ann", "bob"]),
)
_ends = st.builds(
    lambda r, t: (LATEST, f"{REVISION}|default/r{r}|{t}", None), st.integers(1, 3), st.sampled_from("AB")
)


@given(st.lists(st.lists(_tasks | _ends, max_size=5), max_size=8), st.data())
def test_a_page_that_reconnects_has_the_tasks_of_one_that_loads(
    batches: list[list[Row]], data: st.DataObject
) -> None:
    """Changes since any earlier version, applied to what the page had then, give the whole of now."""
    model = Model(1)
    pages = [(0, tasks_of(whole(model)))]
    for batch in batches:
        loaded(batch, model)
        version, page = data.draw(st.sampled_from(pages))
        news = changes(model, version)
        assert news is not None
        page = {name: row for name, row in page.items() if name not in news["tasksGone"]} | tasks_of(news)
        assert page == tasks_of(whole(model))
        pages.append((model.version, page))


def test_a_state_is_so_since_its_last_condition_has_changed() -> None:
    """In any order of the events; a warning begins no state, and a time that nobody can read is none."""
    times = {"Ready": "2026-01-01T08:00:00Z", "Stalled": "2026-01-01T09:00:00Z", "OnHold": "yesterday"}
    events = [event(VARIANT, NAME, type_, "False", "R", since=time) for type_, time in times.items()]
    events.append(event(VARIANT, NAME, "FieldsDropped", "True", "R", since="2026-01-01T10:00:00Z"))
    for order in (events, events[::-1]):
        model = loaded([variant(NAME), *order])
        assert [row[-1] for row in whole(model)["variants"]] == [1767258000]


def test_a_stop_of_all_rollouts_shows_until_its_last_entry_is_lifted() -> None:
    """A page that reconnects has it, too, and `pvbus status` says it first."""
    entries = [
        {"name": "1", "by": "ann", "reason": "payments are down"},
        {"name": "2", "reason": "bad release"},
    ]
    obj = {"metadata": {"namespace": "default", "name": "fleet"}, "spec": {"entries": entries}}
    key = "stop|default|fleet"
    model = loaded([(POLICIES, key, msgspec.json.encode(obj))])
    why = "ann: payments are down; somebody: bad release"
    each = (("1", "ann: payments are down"), ("2", "somebody: bad release"))
    assert whole(model)["stops"] == [["default/fleet", why, each]]
    shown = {**document_of(model, 0.0), "incomplete": []}
    assert next(iter(lines_of(shown))) == f"ALL ROLLOUTS ARE STOPPED (default/fleet) by {why}"
    assert shown["needs"][0]["what"] == "1 stop holds all rollouts"
    before = model.version
    lifted = {"entries": [{**each, "lifted": {"reason": "over"}} for each in entries]}
    loaded([(POLICIES, key, msgspec.json.encode({**obj, "spec": lifted}))], model)
    news = changes(model, before)
    assert news is not None
    assert (news["stopsGone"], whole(model)["stops"]) == (["default/fleet"], [])
    assert document_of(model, 0.0)["needs"] == []


def test_a_quarantine_shows_until_a_person_ends_it() -> None:
    """A page that reconnects has it, too."""
    spec = {"upstreams": [{"revision": "blueprints/web@v6"}], "contents": ["a", "b"], "message": "it crashed"}
    obj = {"metadata": {"namespace": "default", "name": "q"}, "spec": spec}
    key = "promotion.pvbus.dev/Quarantine|default|q"
    model = loaded([(POLICIES, key, msgspec.json.encode(obj))])
    covers = "blueprints/web@v6, 2 contents in every set"
    assert whole(model)["quarantines"] == [["default/q", covers, "it crashed"]]
    before = model.version
    loaded(
        [(POLICIES, key, msgspec.json.encode({**obj, "spec": {**spec, "released": {"by": "ann"}}}))], model
    )
    news = changes(model, before)
    assert news is not None
    assert (news["quarantinesGone"], whole(model)["quarantines"]) == (["default/q"], [])
    assert model.rollouts.get(key) is None
