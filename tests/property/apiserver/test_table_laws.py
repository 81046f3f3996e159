"""A table's order and its index of packages are what sorting and searching all objects would give."""

from typing import Any, Literal

import hypothesis.strategies as st
from hypothesis import given

from pvbus.controlplane.apiserver.entries import Change, Entry, ObjectKey
from pvbus.controlplane.apiserver.store import Table
from pvbus.ports.cluster import Kind

KIND = Kind("porch.kpt.dev", "PackageRevision")
KEYS = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"))
PACKAGES = st.sampled_from(["one", "two", "", None, 3])
STEPS = st.lists(st.tuples(KEYS, PACKAGES, st.sampled_from(["put", "delete", "look"])), max_size=30)


def entry(key: ObjectKey, package: object, rv: int) -> Entry:
    obj: dict[str, Any] = {"metadata": {"namespace": key[0], "name": key[1], "uid": "u"}}
    if package is not None:
        obj["spec"] = {"packageName": package}
    return Entry.encode(obj, rv)


def kind_of_change(table: Table, key: ObjectKey, step: str) -> Literal["ADDED", "MODIFIED", "DELETED"]:
    if step == "delete":
        return "DELETED"
    return "MODIFIED" if key in table.entries else "ADDED"


@given(STEPS, st.none() | st.sampled_from("abc"), st.none() | KEYS)
def test_order_and_packages_follow_every_change(
    steps: list[tuple[ObjectKey, object, str]], namespace: str | None, after: ObjectKey | None
) -> None:
    """The tables built at first use, at any moment, stay right."""
    table, packages = Table(0), dict[ObjectKey, object]()
    for rv, (key, package, step) in enumerate(steps, 1):
        if step == "look":
            table.keys()
            table.of_package("one", None, after=None)
        elif step == "put" or key in table.entries:
            change = Change(
                KIND, kind_of_change(table, key, step), entry(key, package, rv), table.entries.get(key)
            )
            table.apply(change)
            packages[key] = package
            if step == "delete":
                del packages[key]
        shown = [
            key for key in sorted(packages) if namespace in (None, key[0]) and (after is None or key > after)
        ]
        if namespace is None or after is None or after[0] == namespace:
            assert list(table.keys(namespace, after=after)) == shown
        for name in ("one", "two"):
            found = list(table.of_package(name, namespace, after=after))
            assert found == [key for key in shown if packages[key] == name]
