"""Rows of a list: those that the bus has are without their value, and are never written so."""

from typing import Any

import pytest

from pvbus.core.errors import InvariantError
from pvbus.core.kernel.keys import okey
from pvbus.core.kernel.objectrows import Emission, rows_of
from pvbus.core.kernel.records import INJECTABLES, OBJECTS, Coverage
from pvbus.core.variants.ingest.published import WRITTEN
from pvbus.core.variants.ingest.view import KindView, identity_of
from tests.unit.core.variants.informing import SITE

TOPICS = (OBJECTS,)


def site(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": name, "resourceVersion": "7", "labels": labels}}


def view_after(*objects: dict[str, Any]) -> tuple[KindView, list[Emission]]:
    """Return a view of a bus that has the rows of these objects, and what it writes."""
    rows = [row for obj in objects for row in rows_of(SITE, obj, TOPICS)]
    known = {OBJECTS: {row.key: row.digest for row in rows}, INJECTABLES: {}}
    written: list[Emission] = []
    view = KindView(
        SITE, written.append, partitions=1, topics=TOPICS, known=known, markers={}, content=frozenset()
    )
    return view, written


def test_only_rows_that_the_bus_lacks_have_a_value_and_are_written() -> None:
    view, written = view_after(site("same"), site("changed", env="dev"), site("gone"))
    listed = [site("same"), site("changed", env="prod"), site("new")]
    rows = [view.listed_rows(obj) for obj in listed]
    assert [row.value == WRITTEN for (row,) in rows] == [True, False, False]
    view.replace(("v1",), Coverage(), map(identity_of, listed), rows)
    objects = [row for row in written if row.partition is None]
    keys = [okey(*SITE, "default", name) for name in ("changed", "new", "gone")]
    assert [row.key for row in objects] == keys
    assert [row.value for row in objects] == [rows[1][0].value, rows[2][0].value, None]


def test_a_row_that_was_written_meanwhile_is_not_overwritten_with_nothing() -> None:
    """A list that interrupts a watch makes its rows whole; if it did not, the process would end here."""
    view, written = view_after(site("a"))
    rows = [view.listed_rows(site("a"))]
    view.apply(site("a", env="prod"), deleted=False)
    with pytest.raises(InvariantError, match="another row was written during a list"):
        view.replace(("v1",), Coverage(), [identity_of(site("a"))], rows)
    assert all(row.value != WRITTEN for row in written)
