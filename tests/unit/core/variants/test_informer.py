"""The informer's decisions, without a shell: which rows follow under which markers, when reads go wrong."""

from collections.abc import Callable

import msgspec
import pytest

from pvbus.core.errors import InvariantError
from pvbus.core.kernel.keys import sync_key
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import REVISION, SET
from pvbus.core.kernel.records import INJECTABLES, OBJECTS, SETS, SyncMarker
from pvbus.core.variants.ingest import events
from pvbus.core.variants.ingest.published import agreed, unwanted, withdrawal
from pvbus.core.variants.ingest.states import TRANSITIONS, Watching
from tests.unit.core.variants.informing import FORBIDDEN, GONE, SILENT, SITE, TRANSIENT, Informed, ListedWorld

# ---------------------------------------------------------------- lists and markers


def test_a_first_list_is_written_between_its_markers() -> None:
    informed = Informed(ListedWorld("a", "b"))
    informed.run(1)
    assert informed.story() == ["syncing", "+a=test", "+b=test", "ok"]


def test_a_list_without_news_writes_nothing() -> None:
    informed = Informed(ListedWorld("a"))
    informed.run(1)
    informed.story()
    informed.start()
    informed.run(1)
    assert informed.emitted == []


def test_after_410_the_difference_is_written_tombstones_last() -> None:
    informed = Informed(ListedWorld("a", "b"))
    informed.run(1)
    informed.story()
    informed.world.is_flowing = False
    informed.world.remove("a")
    informed.world.put("c")
    informed.world.faults["watch"] = [GONE]
    informed.world.is_flowing = True
    informed.run(3)
    assert informed.story() == ["syncing", "+c=test", "-a", "ok"]


@pytest.mark.parametrize("fault", [TRANSIENT, FORBIDDEN], ids=["503", "403"])
def test_a_list_that_fails_removes_nothing(fault: events.Fault) -> None:
    informed = Informed(ListedWorld("a"))
    informed.run(1)
    informed.story()
    informed.start()
    informed.world.faults["list"] = [fault] * 4
    informed.run(3)
    assert informed.story() in ([], ["unavailable"])
    informed.run(200)
    assert informed.story() in ([], ["syncing", "ok"])


@pytest.mark.parametrize("is_served", [False, True], ids=["unknown", "403"])
def test_a_kind_that_is_not_served_is_unavailable_and_never_empty(is_served: bool) -> None:
    informed = Informed(ListedWorld("a"))
    informed.run(1)
    informed.story()
    informed.start()
    informed.world.is_served = is_served
    informed.world.faults["list"] = [FORBIDDEN] * is_served
    informed.run(50)
    assert informed.story() == ["unavailable"]
    informed.world.is_served = True
    informed.feed(events.Probed())
    informed.run(1)
    assert informed.story() == ["syncing", "ok"]


def test_a_definition_that_is_sent_before_it_is_served_is_looked_for_again_soon() -> None:
    informed = Informed(ListedWorld("a"))
    informed.world.is_served = False
    informed.run(1)
    informed.feed(events.Probed())
    informed.run(0.5)
    informed.world.is_served = True
    informed.run(2)
    assert informed.story() == ["unavailable", "syncing", "+a=test", "ok"]


def test_a_probe_that_comes_while_discovery_is_asked_is_not_lost() -> None:
    informed = Informed(ListedWorld("a"))
    informed.world.is_served = False
    informed.tick()
    informed.feed(events.Probed())
    informed.perform("resolve")
    informed.world.is_served = True
    informed.run(0.1)
    assert informed.story()[-2:] == ["+a=test", "ok"]


def test_a_short_interruption_is_no_reason_for_doubt_and_a_long_one_is() -> None:
    informed = Informed(ListedWorld("a"))
    informed.run(1)
    informed.story()
    informed.world.faults["watch"] = [TRANSIENT] * 5
    informed.run(20)
    informed.world.put("b")
    informed.run(1)
    assert informed.story() == ["+b=test"]
    informed.world.faults["watch"] = [TRANSIENT] * 500
    informed.world.faults["list"] = [TRANSIENT] * 500
    informed.run(45)
    assert informed.story() == ["syncing"]
    informed.world.put("c")
    informed.world.faults["watch"] = []
    informed.world.faults["list"] = []
    informed.run(60)
    assert informed.story() == ["syncing", "+c=test", "ok"]


def test_silence_alone_is_no_doubt() -> None:
    informed = Informed(ListedWorld("a"))
    informed.run(1)
    informed.story()
    for _ in range(10):
        informed.run(90)
        informed.world.faults["watch"] = [SILENT]
    assert informed.story() == []


def test_a_list_with_new_versions_and_nothing_else_is_written() -> None:
    informed = Informed(ListedWorld("a"))
    informed.run(20)
    informed.story()
    informed.world.versions = ("v2", "v1")
    informed.feed(events.Probed())
    informed.run(1)
    assert informed.story() == ["syncing", "ok"]
    assert informed.markers[OBJECTS].versions == ("v2", "v1")
    assert informed.markers[OBJECTS].epoch == 2


def test_a_relist_that_finds_a_difference_has_an_epoch_of_its_own() -> None:
    """Else markers of two lists, one per partition, would agree though neither list is complete."""
    informed = Informed(ListedWorld())
    epochs = []
    for name in ("a", "b", "c"):
        informed.world.put(name)
        informed.start()
        informed.run(5)
        epochs.append(informed.markers[OBJECTS].epoch)
    assert epochs == sorted(set(epochs))


# ---------------------------------------------------------------- check requests


def relabel(world: ListedWorld) -> None:
    world.put("a", "prod")


def remove(world: ListedWorld) -> None:
    world.remove("a")


def flap(world: ListedWorld) -> None:
    """Change the object and change it back: its row stays equal, its version does not."""
    world.put("a", "prod")
    world.put("a", "test")


SITUATIONS = [
    (None, (), ["!n"], 1, "a whole kind without a difference: one list, no marker"),
    (None, ("default/a",), ["!n"], 0, "an object as it was seen: one GET"),
    (None, ("default/z",), ["!n"], 1, "an object that nobody saw: a list says that it is not there"),
    (relabel, (), ["syncing", "+a=prod", "ok", "!n"], 1, "the watch is behind: the list's news come first"),
    (relabel, ("default/a",), ["syncing", "+a=prod", "ok", "!n"], 1, "a GET shows that the watch is behind"),
    (relabel, ("default/b",), ["!n"], 0, "what differs was not asked about"),
    (remove, (), ["syncing", "-a", "ok", "!n"], 1, "a deletion that the watch does not show yet"),
    (remove, ("default/a",), ["syncing", "-a", "ok", "!n"], 1, "the same, found by name"),
    (flap, ("default/a",), ["!n"], 1, "an equal row of another version: older events are still to come"),
]


@pytest.mark.parametrize(("change", "names", "expected", "lists", "why"), SITUATIONS)
def test_an_answer_follows_what_its_read_found(
    change: Callable[[ListedWorld], None] | None,
    names: tuple[str, ...],
    expected: list[str],
    lists: int,
    why: str,
) -> None:
    """Each row: what is written for one check, and by how many lists; afterwards nothing older arrives."""
    informed = Informed(ListedWorld("a", "b"))
    informed.run(20)
    informed.story()
    before = informed.counts["list"]
    if change is not None:
        informed.world.is_flowing = False
        change(informed.world)
    informed.ask("default/s", "n", *names)
    informed.run(1)
    assert informed.story() == expected, why
    assert informed.counts["list"] - before == lists, why
    informed.world.is_flowing = True
    informed.run(20)
    late = ["+a=prod"] if change is relabel and names == ("default/b",) else []
    assert informed.story() == late, why


@pytest.mark.parametrize(("fault", "names"), [("list", ()), ("read", ("default/a",))])
def test_a_read_that_fails_answers_nothing_and_is_repeated_after_a_minute(
    fault: str, names: tuple[str, ...]
) -> None:
    """Meanwhile the watch continues from its position."""
    informed = Informed(ListedWorld("a"))
    informed.run(20)
    informed.story()
    informed.world.faults[fault] = [TRANSIENT]
    informed.ask("default/s", "n", *names)
    informed.run(5)
    informed.world.put("b")
    informed.run(50)
    assert informed.story() == ["+b=test"]
    informed.run(12)
    assert informed.story() == ["!n"]


def test_what_may_be_listed_but_not_read_is_listed() -> None:
    informed = Informed(ListedWorld("a"))
    informed.run(20)
    informed.story()
    informed.world.faults["read"] = [FORBIDDEN]
    informed.ask("default/s", "n", "default/a")
    informed.run(1)
    assert (informed.story(), informed.counts["list"]) == (["!n"], 2)


def test_a_kind_that_ceases_to_be_served_is_not_answered_until_it_is_served() -> None:
    informed = Informed(ListedWorld("a"))
    informed.run(20)
    informed.story()
    informed.world.faults["list"] = [FORBIDDEN] * 5
    informed.ask("default/s", "n")
    informed.run(25)
    assert informed.story() == ["unavailable"]
    informed.run(61)
    assert informed.story() == ["syncing", "ok", "!n"]


@pytest.mark.parametrize(
    ("kind", "fault", "remedy"),
    [
        (SITE, FORBIDDEN, "label pvbus.dev/observed=true: `pvbus doctor` prints the commands"),
        (REVISION, FORBIDDEN, "bind the ClusterRole of ingest: `pvbus doctor` prints the command"),
        (SITE, events.Fault(reason="permanent", message="405 MethodNotAllowed"), "405 MethodNotAllowed"),
    ],
    ids=["selected", "in the role", "no right helps"],
)
def test_a_missing_right_is_marked_with_what_grants_it(kind: Kind, fault: events.Fault, remedy: str) -> None:
    """Sets and variants quote the marker; a kind in the role of ingest needs another remedy than the rest."""
    informed = Informed(ListedWorld("a"), kind=kind)
    informed.world.faults["list"] = [fault] * 5
    informed.run(1)
    rows = [emission.value for emission in informed.emitted if emission.key == sync_key(*kind)]
    message = msgspec.json.decode(rows[-1] or b"", type=SyncMarker).message
    assert message.startswith(fault.message)
    assert message.endswith(remedy)


def test_an_api_server_that_starts_and_refuses_is_asked_again_soon() -> None:
    """It answers 403 until it has read the roles: a kind that was listed is back after a second."""
    informed = Informed(ListedWorld("a"))
    informed.run(20)
    informed.story()
    informed.world.faults["watch"] = [FORBIDDEN]
    informed.run(0.1)
    assert informed.story() == ["unavailable"]
    informed.run(1)
    assert informed.story() == ["syncing", "ok"]


@pytest.mark.parametrize("was_listed", [True, False])
def test_a_kind_that_stays_refused_is_asked_ever_less_often(was_listed: bool) -> None:
    """The waits double from one second after a list, up to a minute; without one they are a minute each."""
    informed = Informed(ListedWorld("a"))
    informed.rng = 0.0  # no jitter
    if was_listed:
        informed.run(20)
    informed.world.faults["list"] = informed.world.faults["watch"] = [FORBIDDEN] * 9
    waits: list[int] = []
    while len(waits) < 8:
        informed.run(0.5)
        waits.append(round(informed.informer.wake_at - informed.now + 0.5))
        informed.tick()
    assert waits == ([1, 2, 4, 8, 16, 32, 60, 60] if was_listed else [60] * 8)


def test_a_request_that_comes_or_goes_while_it_is_read_is_not_answered_by_that_read() -> None:
    informed = Informed(ListedWorld("a"))
    informed.tick()
    informed.perform("resolve")
    early = informed.ask("default/early", "n1")  # the first list is under way
    informed.perform("list")
    assert "!n1" not in informed.story()
    informed.tick()  # the list for it begins
    informed.ask("default/early", "n2")
    gone = informed.ask("default/gone", "n3")
    informed.perform("list")
    assert informed.story() == []  # n1 was replaced: nobody waits for it
    informed.withdraw(gone)
    informed.run(15)
    assert informed.story() == ["!n2"]
    assert early in informed.asked


def test_an_answer_that_could_not_be_written_is_given_again_after_a_minute() -> None:
    informed = Informed(ListedWorld("a"))
    informed.run(20)
    key = informed.ask("default/s", "n")
    informed.run(1)
    informed.story()
    informed.feed(events.CheckAsked(key=key, request=informed.asked[key][0], is_repeated=True))
    informed.run(59)
    assert informed.story() == []
    informed.run(2)
    assert informed.story() == ["!n"]


# ---------------------------------------------------------------- content


def test_content_is_written_of_what_was_requested_found_or_not() -> None:
    informed = Informed(ListedWorld("a", "b"), content=["a", "z", ""])
    informed.run(1)
    assert informed.story(INJECTABLES) == ["+", "+a", "?z", "ok"]
    informed.world.put("z", spec={"late": True})
    informed.world.remove("a")
    informed.run(1)
    assert informed.story(INJECTABLES) == ["+z", "?a"]


def test_more_content_is_read_without_a_list_and_less_is_withdrawn() -> None:
    informed = Informed(ListedWorld("a", "b"), content=["a"])
    informed.run(1)
    informed.story()
    assert informed.request_content("a", "b")
    informed.run(1)
    assert informed.story(INJECTABLES) == ["+b"]
    assert informed.request_content("b")
    assert informed.story(INJECTABLES) == ["-a"]
    assert informed.counts["list"] == 1
    assert not informed.request_content()  # metadata will do: another watch


def test_what_a_slow_read_brings_does_not_undo_what_the_watch_showed() -> None:
    informed = Informed(ListedWorld("a", "b"), content=["a"])
    informed.run(1)
    informed.story()
    informed.request_content("a", "b")
    older = informed.world.objects["b"]
    informed.world.put("b", spec={"v": 2})
    informed.perform("watch")
    newer = [emission.value for emission in informed.emitted if emission.topic == INJECTABLES]
    informed.finish("content", events.ObjectRead(purpose="content", name=("default", "b"), object=older))
    assert [e.value for e in informed.emitted if e.topic == INJECTABLES] == newer


def test_content_that_is_being_read_when_the_kind_goes_is_not_complete() -> None:
    """The list that follows writes it."""
    informed = Informed(ListedWorld("a", "b"), content=["a"])
    informed.run(1)
    informed.story()
    informed.request_content("a", "b")
    informed.finish("watch", events.WatchEnded(fault=FORBIDDEN))
    assert informed.story(INJECTABLES) == ["unavailable"]
    assert "content" not in informed.running
    informed.run(100)
    assert informed.story(INJECTABLES) == ["+b", "ok"]


# ---------------------------------------------------------------- aggregated APIs


def test_what_an_aggregated_list_leaves_out_is_read_before_it_is_gone() -> None:
    informed = Informed(ListedWorld("a", "b", aggregated=True))
    informed.run(1)
    assert informed.story() == ["syncing", "+a=test", "+b=test", "ok"]
    informed.world.left_out = {"a"}
    informed.world.remove("b")
    informed.start()
    informed.run(10)
    assert informed.story() == ["syncing", "-b", "ok"]


@pytest.mark.parametrize("has_bookmark", [True, False])
def test_a_deletion_between_two_watches_is_found_by_the_replay(has_bookmark: bool) -> None:
    informed = Informed(ListedWorld("a", "b", aggregated=True))
    informed.world.has_bookmark = has_bookmark
    informed.run(20)
    informed.story()
    informed.finish("watch", events.WatchEnded())
    while "list" not in informed.running:
        informed.tick() if not informed.running else informed.perform("resolve")
    listed = informed._listed()
    informed.world.remove("a", is_sent=False)
    informed.finish("list", listed)
    informed.run(7)  # without a bookmark: five seconds of silence end the replay
    assert informed.story() == ["-a"]


def test_a_deletion_that_was_never_sent_is_found_by_the_next_list() -> None:
    informed = Informed(ListedWorld("a", "b", aggregated=True))
    informed.run(20)
    informed.story()
    informed.world.remove("a", is_sent=False)
    informed.run(500)
    assert informed.story() == []
    informed.run(120)
    assert informed.story() == ["syncing", "-a", "ok"]


@pytest.mark.parametrize("others", [(), ("default/whole",)], ids=["alone", "with a whole kind"])
def test_what_is_asked_about_is_read_by_name_though_a_list_leaves_it_out(others: tuple[str, ...]) -> None:
    informed = Informed(ListedWorld("a", aggregated=True))
    informed.world.left_out = {"a"}
    for skey in others:
        informed.ask(skey, "w")
    informed.ask("default/s", "n", "default/a")
    informed.run(0.01)
    assert [word for word in informed.story() if word != "!w"] == ["syncing", "+a=test", "ok", "!n"]


# ---------------------------------------------------------------- which kinds may be believed


def test_partitions_that_differ_are_syncing_at_the_highest_epoch() -> None:
    ok, later = SyncMarker(state="ok", epoch=4, versions=("v1",)), SyncMarker(state="syncing", epoch=7)
    assert agreed({}, 2) is None
    assert agreed({0: ok}, 2) == SyncMarker(state="syncing", epoch=4)
    assert agreed({0: ok, 1: ok}, 2) == ok
    assert agreed({0: ok, 1: later}, 2) == later
    unlike = SyncMarker(state="ok", epoch=4, versions=("v2",))
    assert agreed({0: ok, 1: unlike}, 2) == SyncMarker(state="syncing", epoch=4)


def test_markers_that_no_watch_upholds_are_withdrawn() -> None:
    ok, unwatched = SyncMarker(state="ok", epoch=4), SyncMarker(state="unwatched", epoch=5)
    other = Kind("", "ConfigMap")
    markers = [(OBJECTS, SITE, ok), (SETS, SET, ok), (OBJECTS, SET, ok), (OBJECTS, other, unwatched)]
    assert unwanted(markers, {SET: (SETS,)}) == {SITE: [OBJECTS], SET: [OBJECTS]}


def test_a_withdrawal_begins_with_its_markers() -> None:
    rows = list(withdrawal(OBJECTS, SITE, SyncMarker(state="ok", epoch=4), ["k1", "k2"], 2))
    assert [row.partition for row in rows] == [0, 1, None, None]
    assert [row.value for row in rows] == [b'{"state":"unwatched","epoch":5}'] * 2 + [None] * 2


def test_a_state_that_may_not_follow_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    informed = Informed(ListedWorld("a"))
    informed.run(1)
    monkeypatch.setitem(TRANSITIONS, Watching, {})
    with pytest.raises(InvariantError):
        informed.feed(events.WatchEnded(fault=GONE))
