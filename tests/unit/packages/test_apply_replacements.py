"""apply-replacements v0.1.1 with kustomize api v0.10.1."""

import pytest

from pvbus.controlplane.packages.functions.apply_replacements import _Match, apply_replacements, parse_path
from pvbus.controlplane.packages.functions.item import Value
from pvbus.core.errors import PermanentError
from tests.unit.packages.support import config, items, text

SOURCE = """
    apiVersion: v1
    kind: ConfigMap
    metadata:
      name: source
    data:
      plain: value
      quoted: "5" # c
      number: 5
      parts: a-b-c
      empty: ""
      map: {x: 1}
      block: |
        two
        lines
    """
TARGET = "apiVersion: x.org/v1\nkind: Thing\nmetadata:\n  name: target\n"


def replacements(source: str, targets: str) -> Value:
    return config(
        "apiVersion: fn.kpt.dev/v1alpha1\nkind: ApplyReplacements\nreplacements:\n"
        f"- source: {{kind: ConfigMap, name: source, {source}}}\n  targets: [{targets}]\n"
    )


def replaced(body: str, source: str, target: str) -> str:
    configuration = replacements(source, f"{{select: {{kind: Thing}}, {target}}}")
    _, changed = apply_replacements(items(SOURCE, TARGET + body), configuration).items
    assert changed.text.startswith(TARGET)
    return changed.text.removeprefix(TARGET)


@pytest.mark.parametrize(
    ("reason", "body", "source", "target", "expected"),
    [
        ("a value", "a: x\n", "fieldPath: data.plain", "fieldPaths: [a]", "a: value\n"),
        (
            "type, quotes and comment are the source's",
            "replicas: 3 # d\n",
            "fieldPath: data.quoted",
            "fieldPaths: [replicas]",
            'replicas: "5" # c\n',
        ),
        (
            "a source without comment leaves the target's",
            "a: 'x' # d\n",
            "fieldPath: data.number",
            "fieldPaths: [a]",
            "a: 5 # d\n",
        ),
        ("missing is skipped", "a: x\n", "fieldPath: data.plain", "fieldPaths: [b.c, a]", "a: value\n"),
        (
            "missing is created down to the leaf",
            "a: x\n",
            "fieldPath: data.quoted",
            "fieldPaths: ['b.[k=v].c'], options: {create: true}",
            'a: x\nb:\n- k: v\n  c: "5" # c\n',
        ),
        (
            "a key with dots",
            "a:\n  b.c/d: x\n  b: {c: y}\n",
            "fieldPath: data.plain",
            "fieldPaths: ['a.[b.c/d]']",
            "a:\n  b.c/d: value\n  b: {c: y}\n",
        ),
        ("an escaped dot", "a.b: x\n", "fieldPath: data.plain", r"fieldPaths: ['a\.b']", "a.b: value\n"),
        (
            "the first element of that key and value",
            "a:\n- {k: n, v: x}\n- {k: m.n/o:1, v: x}\n- {k: m.n/o:1, v: x}\n",
            "fieldPath: data.plain",
            "fieldPaths: ['a.[k=m.n/o:1].v']",
            "a:\n- {k: n, v: x}\n- {k: m.n/o:1, v: value}\n- {k: m.n/o:1, v: x}\n",
        ),
        (
            "a scalar element",
            "a: [x, y]\n",
            "fieldPath: data.plain",
            "fieldPaths: ['a.[=y]']",
            "a: [x, value]\n",
        ),
        ("an index", "a: [x, y]\n", "fieldPath: data.plain", "fieldPaths: [a.0]", "a: [value, y]\n"),
        ("the last element", "a: [x, y]\n", "fieldPath: data.plain", "fieldPaths: [a.-]", "a: [x, value]\n"),
        (
            "a map replaces a scalar",
            "a: x # d\nb: y\n",
            "fieldPath: data.map",
            "fieldPaths: [b]",
            "a: x # d\nb:\n  x: 1\n",
        ),
        (
            "a part of the source",
            "a: x\n",
            "fieldPath: data.parts, options: {delimiter: '-', index: 1}",
            "fieldPaths: [a]",
            "a: b\n",
        ),
        (
            "a part of the target",
            "a: x.y.z\n",
            "fieldPath: data.plain",
            "fieldPaths: [a], options: {delimiter: '.', index: 1}",
            "a: x.value.z\n",
        ),
        (
            "a negative index goes in front",
            "a: x\n",
            "fieldPath: data.plain",
            "fieldPaths: [a], options: {delimiter: '.', index: -1}",
            "a: value.x\n",
        ),
        (
            "an index beyond the end is appended",
            "a: x\n",
            "fieldPath: data.plain",
            "fieldPaths: [a], options: {delimiter: '.', index: 7}",
            "a: x.value\n",
        ),
    ],
    ids=lambda value: value if ":" not in value and "\n" not in value else "",
)
def test_what_is_written(reason: str, body: str, source: str, target: str, expected: str) -> None:
    assert replaced(body, source, target) == expected, reason


def test_a_text_of_several_lines_arrives_whole() -> None:
    configuration = replacements("fieldPath: data.block", "{select: {kind: Thing}, fieldPaths: [a]}")
    _, changed = apply_replacements(items(SOURCE, TARGET + "a: x\n"), configuration).items
    assert changed.value["a"] == "two\nlines\n"


def test_each_replacement_sees_the_one_before() -> None:
    configuration = config("""
        apiVersion: fn.kpt.dev/v1alpha1
        kind: ApplyReplacements
        replacements:
        - source: {name: source, fieldPath: data.plain}
          targets: [{select: {name: target}, fieldPaths: [a]}]
        - source: {name: target, fieldPath: a}
          targets: [{select: {name: target}, fieldPaths: [b]}]
        """)
    _, changed = apply_replacements(items(SOURCE, TARGET + "a: x\nb: y\n"), configuration).items
    assert (changed.value["a"], changed.value["b"]) == ("value", "value")


@pytest.mark.parametrize(
    ("target", "written"),
    [
        ("{select: {kind: Thing, name: target}}", True),
        ("{select: {kind: Thin}}", False),
        ("{select: {kind: Thing, name: 'tar.*'}}", False),
        ("{select: {group: x.org, version: v1}}", True),
        ("{select: {group: y.org}}", False),
        ("{select: {kind: Thing, namespace: default}}", True),
        ("{select: {kind: Thing, namespace: other}}", False),
        ("{select: {kind: Thing, labelSelector: 'l=1,!m'}}", True),
        ("{select: {kind: Thing, labelSelector: 'l in (2,3)'}}", False),
        ("{select: {kind: Thing, annotationSelector: 'n'}}", False),
        ("{select: {kind: Thing}, reject: [{name: target}]}", False),
        ("{select: {kind: Thing}, reject: [{name: other}, {}]}", True),
    ],
)
def test_which_objects_are_targets(target: str, written: bool) -> None:
    """Names and kinds are compared whole; nothing selected is no error."""
    body = "  labels: {l: '1'}\n"
    configuration = replacements("fieldPath: data.plain", target)
    _, changed = apply_replacements(items(SOURCE, TARGET + body), configuration).items
    assert changed.name == ("value" if written else "target")


def test_the_namespace_of_a_cluster_scoped_kind_is_not_compared() -> None:
    configuration = replacements("fieldPath: data.plain", "{select: {kind: ClusterRole, namespace: other}}")
    role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: target\n"
    _, changed = apply_replacements(items(SOURCE, role), configuration).items
    assert changed.name == "value"


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("fieldPath: data.none", "fieldPaths: [a]", "is missing or empty"),
        ("fieldPath: data.empty", "fieldPaths: [a]", "is missing or empty"),
        ("version: v2", "fieldPaths: [a]", "nothing selected by"),
        ("fieldPath: data.parts, options: {delimiter: '-', index: 3}", "fieldPaths: [a]", "out of bounds"),
        ("fieldPath: data.parts, options: {delimiter: '-', index: -1}", "fieldPaths: [a]", "out of bounds"),
        ("fieldPath: data.map, options: {delimiter: '-'}", "fieldPaths: [a]", "needs a scalar"),
        ("fieldPath: data.plain", "fieldPaths: [l], options: {delimiter: '-'}", "needs a scalar"),
        ("fieldPath: data.plain", "fieldPaths: ['l.*']", "not an element of a list"),
        ("fieldPath: data.plain", "fieldPaths: ['a.b']", "does not fit"),
    ],
)
def test_what_cannot_be_replaced_fails(source: str, target: str, message: str) -> None:
    with pytest.raises(PermanentError) as caught:
        replaced("a: x\nl: [1]\n", source, target)
    assert message in str(caught.value)


def test_two_sources_are_refused_by_name() -> None:
    configuration = config("""
        apiVersion: fn.kpt.dev/v1alpha1
        kind: ApplyReplacements
        replacements: [{source: {kind: ConfigMap}, targets: []}]
        """)
    second = text(SOURCE).replace("name: source", "name: second")
    with pytest.raises(
        PermanentError, match=r"multiple matches for selector kind ConfigMap: .*source.*second"
    ):
        apply_replacements(items(SOURCE, second), configuration)


def test_another_configuration_kind_is_refused() -> None:
    with pytest.raises(PermanentError, match="ApplyReplacements"):
        apply_replacements((), {"apiVersion": "v1", "kind": "ConfigMap"})


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("a.b", ("a", "b")),
        (r"a\.b.c", ("a.b", "c")),
        ("a.[x.y/z].b", ("a", "x.y/z", "b")),
        ("a.[k=v.w:1].b", ("a", _Match("k", "v.w:1"), "b")),
        ("[=v]", (_Match("", "v"),)),
        ("a.0.-", ("a", "0", "-")),
    ],
)
def test_field_paths_are_split_brackets_first(path: str, parts: tuple[object, ...]) -> None:
    assert parse_path(path) == parts
