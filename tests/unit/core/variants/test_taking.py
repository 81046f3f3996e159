"""A side's value of a conflict is found in its file and put into the merge's, whatever a merge can report."""

from typing import Any

import pytest

from pvbus.core.kernel.conflicts import ABSENT, Conflict
from pvbus.core.variants.merge import MergeError
from pvbus.core.variants.merge.objects import merge
from pvbus.core.variants.merge.taking import chosen, value_of, with_value
from pvbus.core.yaml import editor

HEAD = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n"
OTHER = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n"


def deployment(image: str = "", replicas: int = 0, port: str = "", arguments: str = "") -> str:
    lines = HEAD + "spec:\n"
    lines += f"  replicas: {replicas} # how many\n" if replicas else "  paused: false\n"
    if image or port or arguments:
        lines += "  template:\n    spec:\n      containers:\n      - name: side\n      - name: web\n"
        lines += f"        image: {image}\n" if image else ""
        lines += f"        args: {arguments}\n" if arguments else ""
        lines += f"        ports:\n        - containerPort: 80\n          name: {port}\n" if port else ""
    return lines


def service(name: str, value: str) -> str:
    return f'{OTHER}  annotations:\n    {name}: "{value}"\n'


ONE = HEAD + "spec:\n  template:\n    spec:\n      containers:\n      - name: side\n"
TWO = [f"{OTHER}---\n{deployment(image)}" for image in ("a:1", "a:2")]
CASES: dict[str, tuple[str, str | None, str | None]] = {
    "a scalar": (deployment(replicas=1), deployment(replicas=2), deployment(replicas=3)),
    "deleted upstream": (deployment(replicas=1), deployment(replicas=2), deployment()),
    "deleted locally": (deployment(replicas=1), deployment(), deployment(replicas=3)),
    "an element's field": (deployment("a:1"), deployment("a:2"), deployment("a:3")),
    "an element in an element": (deployment(port="a"), deployment(port="b"), deployment(port="c")),
    "a list as a whole": (
        deployment(arguments="[a]"),
        deployment(arguments="[b]"),
        deployment(arguments="[]"),
    ),
    "an element that upstream deletes": (deployment("a:1"), deployment("a:2"), ONE),
    "an element that is deleted locally": (deployment("a:1"), ONE, deployment("a:2")),
    "a name with a point": (service("a.b/c", "1"), service("a.b/c", "2"), service("a.b/c", "3")),
    "a name that begins another": (
        f"{OTHER}spec:\n  x: {{y: 1}}\n  xy: 1\n",
        f"{OTHER}spec:\n  x: {{y: 1}}\n  xy: 2\n",
        f"{OTHER}spec:\n  x: {{y: 1}}\n  xy: 3\n",
    ),
    "a point and a deletion": (service("a.b/c", "1"), service("a.b/c", "2"), service("x", "y")),
    "an object that upstream deletes": (TWO[0], TWO[1], OTHER),
    "an object that is deleted locally": (TWO[0], OTHER, TWO[1]),
    "a file that upstream deletes": (deployment("a:1"), deployment("a:2"), None),
}


@pytest.mark.parametrize(("old", "local", "new"), CASES.values(), ids=CASES)
def test_each_side_can_be_taken(old: str, local: str | None, new: str | None) -> None:
    """Taking a side makes the place that side's, twice is as once, and the other side brings it back."""
    merged = merge("f.yaml", old, local, new)
    (conflict,) = merged.conflicts
    sides = {"local": package(local), "upstream": package(new)}
    other = "local" if conflict.taken == "upstream" else "upstream"
    wanted = value_of(conflict, sides[other])
    assert editor.same(wanted, conflict.local if other == "local" else conflict.new)
    assert editor.same(value_of(conflict, package(merged.text)), value_of(conflict, sides[conflict.taken]))
    taken = with_value(conflict, package(merged.text), wanted)
    found = value_of(conflict, taken)
    assert found is wanted if wanted is ABSENT else editor.same(found, wanted)
    assert with_value(conflict, taken, wanted) == taken
    back = with_value(conflict, taken, value_of(conflict, sides[conflict.taken]))
    assert values(back.get("f.yaml")) == values(merged.text)


def package(text: str | None) -> dict[str, str]:
    return {} if text is None else {"f.yaml": text}


def values(text: str | None) -> list[Any]:
    return sorted(editor.values(text or ""), key=str)


def test_what_is_beside_the_field_stays_byte_for_byte() -> None:
    merged = merge("f.yaml", deployment(replicas=1), deployment(replicas=2), deployment(replicas=3))
    assert with_value(merged.conflicts[0], package(merged.text), 2) == package(deployment(replicas=2))


def test_whole_files_need_be_no_yaml() -> None:
    conflict = Conflict(file="README.md", old="a", local="b", new="c", taken="local")
    assert value_of(conflict, {"README.md": "{b"}) == "{b"
    assert with_value(conflict, {"README.md": "b"}, "{c") == {"README.md": "{c"}
    assert with_value(conflict, {"README.md": "b", "a": "a"}, ABSENT) == {"a": "a"}


def test_a_kptfiles_name_is_not_compared() -> None:
    conflict = Conflict(file="Kptfile", object="Kptfile here", field="pipeline.mutators[name=place].image")
    text = "kind: Kptfile\nmetadata:\n  name: web\npipeline:\n  mutators:\n  - name: place\n    image: a:1\n"
    assert value_of(conflict, {"Kptfile": text}) == "a:1"


@pytest.mark.parametrize(
    ("field", "where", "words"),
    [
        ("spec.replicsa", "", '"spec.replicsa" is not in conflict; there are: spec.replicas in a.yaml;'),
        ("spec.replicas", "", "in conflict in 2 places, name the file or object: a.yaml (A); b.yaml (B)"),
        ("spec.replicas", "c.yaml", '"spec.replicas" in c.yaml is not in conflict'),
    ],
)
def test_a_name_that_is_none_is_explained(field: str, where: str, words: str) -> None:
    conflicts = [Conflict(file=f"{one}.yaml", object=one.upper(), field="spec.replicas") for one in "ab"]
    with pytest.raises(MergeError) as caught:
        chosen(conflicts, field, where)
    assert words in str(caught.value)
    assert chosen(conflicts, "spec.replicas", "B") is conflicts[1]
    assert chosen(conflicts, "spec.replicas", "a.yaml") is conflicts[0]


def test_a_place_that_is_gone_is_no_place() -> None:
    conflict = Conflict(
        file="f.yaml", object="Deployment web", field="spec.template.spec.containers[name=web].image"
    )
    with pytest.raises(MergeError, match=r"has no place in f\.yaml any more"):
        with_value(conflict, package(HEAD), "a:1")
    with pytest.raises(MergeError, match="has no Deployment web any more"):
        with_value(conflict, package(OTHER), "a:1")
