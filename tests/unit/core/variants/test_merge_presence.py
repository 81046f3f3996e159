"""What a merge does where a side lacks a sub-package, a file or an object, and how a person settles that."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest

from pvbus.core.kernel.conflicts import ABSENT, Conflict, annotation, reported
from pvbus.core.variants.merge import MergeError, packages
from pvbus.core.variants.merge.output import made_again, put_back
from pvbus.core.variants.merge.packages import PackageMerge
from pvbus.core.variants.merge.resolving import unresolved
from pvbus.core.variants.merge.taking import chosen, value_of, with_value

Texts = Mapping[str, str]
KPTFILE = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: app\n"
OTHER = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: other\n"


def config(value: int) -> str:
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\ndata:\n  a: {value}\n"


def sub(value: int) -> Texts:
    return {"sub/Kptfile": KPTFILE, "sub/c.yaml": config(value)}


def file(value: int) -> Texts:
    return {"README.md": f"{value}\n"}


def yaml_file(value: int) -> Texts:
    return {"c.yaml": config(value)}


def in_a_file(value: int) -> Texts:
    return {"c.yaml": f"{OTHER}---\n{config(value)}"}


KINDS = {
    "sub-package": (sub, {}, "sub/"),
    "file": (file, {}, "README.md"),
    "file of objects": (yaml_file, {}, "c.yaml"),
    "object": (in_a_file, {"c.yaml": OTHER}, "c.yaml"),
}
VALUES = (None, 1, 2, 3)
"""None: a side has it not. Old is None or 1, so that 1 is unchanged; 2 and 3 are changes."""
ROWS = [row for row in product((None, 1), VALUES, VALUES) if any(row)]


def merge(old: Texts, local: Texts, new: Texts) -> PackageMerge:
    root = {"Kptfile": KPTFILE}
    return packages.merge({**root, **old}, {**root, **local}, {**root, **new})


def expected(old: int | None, local: int | None, new: int | None) -> int | None:
    """kpt's table: a local deletion stays; upstream's applies to what is unchanged."""
    if local is None:
        return new if old is None else None
    if new is None:
        return None if local == old else local
    return local if new == old else new


def is_conflict(old: int | None, local: int | None, new: int | None) -> bool:
    """Both sides have changed it, and not to the same."""
    return old not in (local, new) and local != new


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("old", "local", "new"), ROWS)
def test_every_combination_of_presence_and_change(
    kind: str, old: int | None, local: int | None, new: int | None
) -> None:
    """The result is kpt's, and where one side's change is not in it, a conflict has all three values."""
    make, without, name = KINDS[kind]
    sides = [without if value is None else make(value) for value in (old, local, new)]
    is_new_on_both = old is None and None not in (local, new) and local != new
    if kind == "sub-package" and is_new_on_both:
        with pytest.raises(MergeError, match="sub: the sub-package was added both locally and upstream"):
            merge(*sides)
        return
    merged = merge(*sides)
    if kind == "file" and is_conflict(old, local, new):  # a file that is no list of objects stays local
        wanted = local
    else:
        wanted = expected(old, local, new)
    texts = {path: text for path, text in merged.texts.items() if path != "Kptfile"}
    assert texts == (without if wanted is None else make(wanted))
    assert len(merged.conflicts) == is_conflict(old, local, new)
    assert all(conflict.field or conflict.file == name for conflict in merged.conflicts)
    assert unresolved(merged.conflicts, merged.texts) == merged.conflicts
    for conflict in merged.conflicts:
        if conflict.field:
            continue
        values = (conflict.old, conflict.local, conflict.new)
        assert [value is ABSENT for value in values] == [value is None for value in (old, local, new)]
        assert reported(annotation(merged.conflicts)) == merged.conflicts
        sides_of = {"local": sides[1], "upstream": sides[2]}
        for side, texts_of in sides_of.items():
            taken = with_value(conflict, merged.texts, value_of(conflict, texts_of))
            taken.pop("Kptfile")
            assert taken.keys() == texts_of.keys()
            assert bool(unresolved((conflict,), taken)) is (side == conflict.taken)


NESTED = {"sub/in/Kptfile": KPTFILE, "sub/in/x.yaml": config(1)}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param({**sub(1), **NESTED}, {**sub(1), **NESTED, "sub/in/x.yaml": config(2)}, id="changed"),
        pytest.param(sub(1), {**sub(1), **NESTED}, id="added"),
        pytest.param({**sub(1), **NESTED}, sub(1), id="deleted"),
    ],
)
def test_a_change_in_a_package_below_a_deleted_one_belongs_to_its_conflict(old: Texts, new: Texts) -> None:
    merged = merge(old, {}, new)
    assert merged.texts == {"Kptfile": KPTFILE}
    (conflict,) = merged.conflicts
    assert with_value(conflict, merged.texts, conflict.new) == {"Kptfile": KPTFILE, **new}


def test_what_tools_change_in_a_deleted_sub_package_is_no_conflict() -> None:
    new = {**sub(1), "sub/Kptfile": KPTFILE + "upstream:\n  type: git\n", "sub/package-context.yaml": OTHER}
    assert merge(sub(1), {}, new).conflicts == ()


def test_to_delete_a_sub_package_leaves_the_packages_in_it() -> None:
    """Each has a conflict of its own, or is local."""
    merged = merge({**sub(1), **NESTED}, {**sub(2), **NESTED, "sub/in/x.yaml": config(3)}, {})
    assert [conflict.file for conflict in merged.conflicts] == ["sub/", "sub/in/"]
    left = with_value(merged.conflicts[0], merged.texts, ABSENT)
    assert left.keys() == {"Kptfile", *NESTED}
    assert unresolved(merged.conflicts, left) == merged.conflicts[1:]


@pytest.mark.parametrize("name", ["sub/", "sub"])
def test_a_sub_package_is_named_with_or_without_its_slash(name: str) -> None:
    conflicts = merge(sub(1), {}, sub(2)).conflicts
    assert chosen(conflicts, name) is conflicts[0]


def test_a_conflict_without_values_stays_until_it_is_settled() -> None:
    """One of a link: no text shows whether a person has changed it."""
    for conflict in (Conflict(file="link", taken="local"), Conflict(file="sub/", taken="local")):
        for texts in ({}, {"link": "x", **sub(1)}):
            assert unresolved((conflict,), texts) == (conflict,)


def rendered(texts: Texts, changes: Mapping[str, str]) -> dict[str, str]:
    return {path: changes.get(path, text) for path, text in texts.items()}


@pytest.mark.parametrize(
    ("edits", "count"),
    [({}, 1), ({"sub/c.yaml": config(3)}, 0), ({"sub/own.txt": "own"}, 1), ({"sub/Kptfile": "x"}, 0)],
)
def test_what_only_the_pipeline_changed_in_a_sub_package_is_no_local_change(
    edits: dict[str, Any], count: int
) -> None:
    """The pipeline makes 1 into 2; a person edits the result. An own file stays one when old values are put
    back, so that a second merge reports the conflict with it."""
    output = {"sub/c.yaml": config(2)}
    local = {"Kptfile": KPTFILE, **rendered(sub(1), output), **edits}
    conflicts = merge(sub(1), local, {}).conflicts
    without = put_back(conflicts, local)
    assert without == {**local, **sub(1)}
    made = made_again(conflicts, rendered(without, output))
    assert len(made) == count
    left = merge(sub(1), put_back(made, local), {}).conflicts
    assert bool(left) is bool(edits)
