"""Lists of the fleet: what is selected, pages that together are the whole, counts, and changes."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvbus.core.api.selectortext import parse_label_selector
from pvbus.core.api.variants import Downstream
from pvbus.core.errors import UsageError
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.records import OBJECTS, SETS, UNROLL, VARIANTS, ChildRow, ChildState
from pvbus.core.variants.attention import ATTENTION
from pvbus.core.web import listing
from pvbus.core.web.listing import Listed, Query, Watcher, counts_of, entries_of, page_of
from pvbus.core.web.model import TOPICS, Model
from tests.tools.bustables import Row
from tests.tools.fleetrows import (
    VARIANT,
    child,
    conflict,
    event,
    fleet,
    in_conflict,
    obj,
    ready,
    site,
    variant,
)

SKEY = "default/web"


def load(model: Model, rows: Iterable[Row]) -> Model:
    for topic, key, row in rows:
        if topic in TOPICS:
            model.load(topic, 0, key, row if isinstance(row, bytes) or row is None else encode_row(row))
    model.publish()
    return model


def loaded(*rows: Row) -> Model:
    return load(Model(1), rows)


def names(model: Model, **fields: Any) -> list[str]:
    selector = fields.pop("selector", "")
    requirements = parse_label_selector(selector)
    query = Query(fields.pop("kind", Listed.VARIANTS), selector=selector, requirements=requirements, **fields)
    return [entry["name"] for entry in page_of(entries_of(model, query), query).entries]


def labelled(name: str, own: Mapping[str, str], package: Mapping[str, str] | None) -> Row:
    namespace, _, short = name.partition("/")
    meta = {"name": short, "namespace": namespace, "generation": 1, "labels": dict(own)}
    return VARIANTS, name, msgspec.json.encode({"metadata": meta, "spec": {"labels": package}})


SITE = "example.org/Site|default|web-1"
LAYERS = [
    obj(SETS, SKEY, {"of": "set", "team": "edge"}),
    site("web-1", {"of": "target", "region": "asia"}),
    labelled("default/web-1", {"of": "variant", "stage": "canary"}, {"of": "package"}),
    child(SKEY, "web-1"),
]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]])
@pytest.mark.parametrize("selector", ["region=asia", "stage=canary", "team=edge", "of=package", "region!=x"])
def test_a_selector_sees_package_variant_target_and_set(order: list[int], selector: str) -> None:
    """Each may have a label, the package first, in whatever order the bus has them."""
    model = loaded(*(LAYERS[n] for n in order))
    assert names(model, selector=selector) == ["web-1"]
    assert names(model, selector=f"!{selector.partition('=')[0].rstrip('!')}") == []


def test_labels_follow_their_target() -> None:
    """A label of the target that changes or goes does so for its variant, too; another target's does not."""
    model = loaded(*LAYERS, site("web-2", {"region": "europe"}))
    before = model.version
    load(model, [site("web-1", {"region": "europe"})])
    assert names(model, selector="region=europe") == ["web-1"]
    assert [name for name, _ in model.variants.changed(before)] == ["default/web-1"]
    load(model, [(OBJECTS, SITE, None)])
    assert names(model, selector="region") == []
    load(model, [site("web-1", {"region": "asia"}), child(SKEY, "web-1", ChildState.GONE)])
    assert names(model, selector="region") == []  # it is nobody's target any more


def test_what_needs_a_person_comes_first() -> None:
    """By state means by urgency; the reason is that of what waits for a person, not that of Ready."""
    model = loaded(
        *(
            row
            for name in ("a", "b", "c", "d")
            for row in (variant(f"default/{name}"), ready(f"default/{name}"))
        ),
        event(VARIANT, "default/d", "Stalled", "True", "NoMatch"),
        event(VARIANT, "default/c", ATTENTION, "True", "UpgradeConflict"),
        child(SKEY, "b", ChildState.HELD),
    )
    query = Query(Listed.VARIANTS, sort_by="state")
    entries = page_of(entries_of(model, query), query).entries
    assert [(each["name"], each["state"]) for each in entries] == [
        ("d", "stalled"),
        ("c", "needs attention"),
        ("b", "removal held"),
        ("a", "ready"),
    ]
    assert [each["reason"] for each in entries[1:]] == ["UpgradeConflict", "DeletionHeld", "Reconciled"]
    assert names(model, states=frozenset({"stalled", "ready"})) == ["a", "d"]


def test_targets_are_of_sets_and_name_what_was_selected() -> None:
    """A target is there before its variant is; a package of a list has no object; others made no target."""
    listed = ChildRow(
        set_uid="u", state=ChildState.PRESENT, downstream=Downstream(repo="edge", package="from/list")
    )
    model = loaded(variant("default/by-hand"), child(SKEY, "web-1"), (UNROLL, f"{SKEY}|web-2", listed))
    query = Query(Listed.TARGETS)
    entries = page_of(entries_of(model, query), query).entries
    assert [(each["name"], each["object"], each["package"]) for each in entries] == [
        ("web-1", "Site.example.org default/web-1", "web-1"),
        ("web-2", "", "from/list"),
    ]


def test_a_conflict_is_listed_until_it_is_settled() -> None:
    """Each conflict of an open draft is an entry; a warning, and one of a published revision, is none."""
    model = loaded(*in_conflict("default/web-1", [conflict("spec.replicas", 2, 3), conflict("spec.x", 1, 2)]))
    query = Query(Listed.CONFLICTS)
    entries = page_of(entries_of(model, query), query).entries
    assert sorted((each["field"], *each["values"].values()) for each in entries) == [
        ("spec.replicas", 2, 3),
        ("spec.x", 1, 2),
    ]
    warning = conflict("spec.replicas", 2, 3, taken="both")
    for rows in (in_conflict("default/web-1", [warning]), in_conflict("default/web-1", [])):
        load(model, rows)
        assert names(model, kind=Listed.CONFLICTS) == []
    load(model, in_conflict("default/web-1", [conflict("spec.x", 1, 2)], lifecycle="Published"))
    assert names(model, kind=Listed.CONFLICTS) == []


def test_values_of_secrets_are_not_listed() -> None:
    """Whoever may see the bus's conflicts may still not read Secrets."""
    secret = conflict("data.password", "aHVudGVy", "MTIzNA==", object="Secret login")
    whole = conflict("", "kind: Secret\ndata: {p: aHVudGVy}", "kind: Secret", object="")
    model = loaded(*in_conflict("default/web-1", [secret, whole]))
    text = msgspec.json.encode([entry for _, entry in entries_of(model, Query(Listed.CONFLICTS))])
    assert b"hunter" not in text
    assert b"aHVudGVy" not in text
    assert b"MTIzNA" not in text


FLEET = load(Model(1), [*fleet(150), *in_conflict("default/web-edge-asia-asia-00002", [conflict("a", 1, 2)])])


@given(
    kind=st.sampled_from(list(Listed)),
    sort_by=st.sampled_from(["name", "state", "reason", "labels.region", "set"]),
    limit=st.integers(1, 60),
    states=st.frozensets(st.sampled_from([state.value for state in listing.URGENCY]), max_size=3),
)
def test_pages_together_are_the_whole_and_have_each_entry_once(
    kind: Listed, sort_by: str, limit: int, states: frozenset[str]
) -> None:
    """Whatever is asked, in whatever order and size of page."""
    query = Query(kind, states=states, sort_by=sort_by)
    whole = page_of(entries_of(FLEET, query), query, limit=listing.LIMIT_MAX)
    assert (whole.token, whole.remaining) == ("", 0)
    assert len(whole.entries) == sum(1 for _ in entries_of(FLEET, query))
    pages, token = [], ""
    for _ in range(len(whole.entries) + 1):
        page = page_of(entries_of(FLEET, query), query, limit=limit, token=token)
        pages += page.entries
        assert page.remaining == len(whole.entries) - len(pages)
        if not (token := page.token):
            break
    assert pages == whole.entries


@given(st.data())
def test_an_entry_that_stays_is_on_one_page_whatever_else_changes(data: st.DataObject) -> None:
    """Between two pages variants come and go: those that stay are listed exactly once."""
    staying = [f"stay-{n:02}" for n in range(20)]
    model = loaded(*(variant(f"default/{name}") for name in staying))
    query, token, seen = Query(Listed.VARIANTS), "", []
    for _ in range(60):
        page = page_of(entries_of(model, query), query, limit=3, token=token)
        seen += [entry["name"] for entry in page.entries]
        if not (token := page.token):
            break
        other = f"default/{data.draw(st.sampled_from(['a', 'stay-05x', 'stay-11x', 'z']))}"
        load(model, [variant(other) if data.draw(st.booleans()) else (VARIANTS, other, None)])
    assert [name for name in seen if name in staying] == staying


def test_a_token_continues_its_own_query_only() -> None:
    """A token of another kind, selector or order is refused, and so is any other text."""
    query = Query(Listed.VARIANTS)
    token = page_of(entries_of(FLEET, query), query, limit=10).token
    for other in (
        Query(Listed.TARGETS),
        Query(Listed.VARIANTS, sort_by="state"),
        query._replace(selector="a"),
    ):
        with pytest.raises(UsageError, match="continues another list"):
            page_of(entries_of(FLEET, other), other, token=token)
    for text in ("x", "e30=", "\x00", token[:-4]):
        with pytest.raises(UsageError, match="continues no list"):
            page_of(entries_of(FLEET, query), query, token=text)


def test_counts_are_those_of_the_entries() -> None:
    """By fields and labels together; the counts of a part add up to it."""
    query = Query(Listed.TARGETS)
    counts = counts_of(entries_of(FLEET, query), ("region", "state"))
    assert sum(row["count"] for row in counts) == 150
    assert counts == sorted(counts, key=lambda row: (row["region"], row["state"]))
    asia = Query(Listed.TARGETS, selector="r", requirements=parse_label_selector("region=asia"))
    assert counts_of(entries_of(FLEET, asia), ("state",)) == [
        {"state": row["state"], "count": row["count"]} for row in counts if row["region"] == "asia"
    ]


def test_what_cannot_be_asked() -> None:
    """An unknown state, and a field that is no single value, are named."""
    with pytest.raises(UsageError, match='no state "reddy"'):
        listing.check_query(Query(Listed.VARIANTS, states=frozenset({"reddy"})))
    with pytest.raises(UsageError, match="no single value"):
        listing.check_query(Query(Listed.VARIANTS), ("labels",))
    for limit in (0, listing.LIMIT_MAX + 1):
        with pytest.raises(UsageError, match="a page has"):
            page_of([], Query(Listed.VARIANTS), limit=limit)


CHANGES = st.sampled_from(
    [
        variant("default/web-1", {"stage": "canary"}),
        variant("default/web-1"),
        (VARIANTS, "default/web-1", None),
        child(SKEY, "web-1"),
        child(SKEY, "web-1", ChildState.HELD),
        child(SKEY, "web-1", ChildState.GONE),
        child(SKEY, "web-2"),
        site("web-1", {"stage": "production"}),
        site("web-1", {}),
        obj(SETS, SKEY, {"stage": "canary"}),
        obj(SETS, SKEY),
        ready("default/web-1"),
        *in_conflict("default/web-1", [conflict("a", 1, 2), conflict("b", 1, 2)]),
        *in_conflict("default/web-1", [conflict("b", 1, 2)]),
        *in_conflict("default/web-1", []),
    ]
)


@given(st.sampled_from(list(Listed)), st.sampled_from(["", "stage=canary"]), st.lists(st.lists(CHANGES)))
def test_a_list_and_its_changes_are_the_later_list(
    kind: Listed, selector: str, steps: list[list[Row]]
) -> None:
    """Who applies each change to the first list has what a new list would say."""
    query = Query(kind, selector=selector, requirements=parse_label_selector(selector))
    model = loaded()
    watcher = Watcher(model, query)
    listed: dict[str, Any] = {}

    def name_at(entry: Mapping[str, Any]) -> str:
        return f"{entry['namespace']}/{entry['name']}/{entry.get('conflict', '')}"

    for rows in steps:
        load(model, rows)
        for change in watcher.changes():
            if change.type == "DELETED":
                assert listed.pop(name_at(change.entry))
            else:
                assert (change.type == "ADDED") == (name_at(change.entry) not in listed)
                listed[name_at(change.entry)] = change.entry
        assert listed == {name_at(entry): entry for _, entry in entries_of(model, query)}
