"""What tasks make of a package's files: exact edits, everything else byte for byte."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvbus.controlplane.packages import content
from pvbus.controlplane.packages.layout import KPTFILE
from pvbus.core.variants.merge import copies
from pvbus.core.yaml import editor

KPT = """\
# about it
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: blue  # the name
info:
  readinessGates:
  - conditionType: old  # first
  - conditionType: keep  # second
status:
  conditions:
  - type: Rendered
    status: "False"
    reason: RenderFailed
    message: no
  - type: keep
    status: "True"
"""
LOCK = {"type": "git", "git": {"repo": "r", "directory": "d", "ref": "d/v1", "commit": "c"}}


def kptfile(*edits: Any, text: str = KPT) -> str:
    return copies.edit_kptfile({KPTFILE: text}, *edits)[KPTFILE]


def value(text: str) -> Any:
    return editor.values(text)[0]


def test_a_name_is_replaced_where_it_stands() -> None:
    assert kptfile(copies.named("green")) == KPT.replace("name: blue  #", "name: green  #")


def test_the_upstream_and_its_lock_are_added_once() -> None:
    once = kptfile(copies.derived_from(LOCK))
    assert once.startswith(KPT)
    assert value(once)["upstreamLock"] == LOCK
    assert value(once)["upstream"]["git"] == {"repo": "r", "directory": "d", "ref": "d/v1"}
    assert kptfile(copies.derived_from(LOCK), text=once) == once


def test_an_update_strategy_that_is_there_stays() -> None:
    text = KPT + "upstream:\n  type: git\n  git:\n    repo: x\n  updateStrategy: fast-forward\n"
    assert (
        value(kptfile(copies.derived_from(LOCK), text=text))["upstream"]["updateStrategy"] == "fast-forward"
    )


def test_gates_become_exactly_the_given_ones_and_those_that_stay_keep_their_comment() -> None:
    edited = kptfile(content.with_gates([{"conditionType": "new"}, {"conditionType": "keep"}]))
    assert [gate["conditionType"] for gate in value(edited)["info"]["readinessGates"]] == ["keep", "new"]
    assert "- conditionType: keep  # second\n" in edited


def test_only_rendering_changes_the_condition_of_rendering() -> None:
    rendered = value(KPT)["status"]["conditions"][0]
    wanted = [{"type": "Rendered", "status": "True"}, {"type": "new", "status": "True"}]
    edited = value(kptfile(content.with_conditions(wanted, [rendered])))["status"]["conditions"]
    assert edited == [rendered, {"type": "new", "status": "True"}]
    without = value(kptfile(content.with_conditions(wanted, [])))["status"]["conditions"]
    assert without == [{"type": "new", "status": "True"}]


def test_what_is_as_it_should_be_is_not_touched() -> None:
    gates, conditions = value(KPT)["info"]["readinessGates"], value(KPT)["status"]["conditions"]
    edits = (content.with_gates(gates), content.with_conditions(conditions, conditions[:1]))
    assert kptfile(*edits) == KPT


@pytest.mark.parametrize(("exact", "labels"), [(True, {"b": "2"}), (False, {"a": "1", "b": "2"})])
def test_labels_are_replaced_or_added(exact: bool, labels: dict[str, str]) -> None:
    text = kptfile(content.with_metadata("labels", {"a": "1"}, exact=True))
    edited = kptfile(content.with_metadata("labels", {"b": "2"}, exact=exact), text=text)
    assert value(edited)["metadata"]["labels"] == labels


def test_no_labels_at_all_leave_no_empty_map() -> None:
    text = kptfile(content.with_metadata("labels", {"a": "1"}, exact=True))
    assert (
        "labels" not in value(kptfile(content.with_metadata("labels", {}, exact=True), text=text))["metadata"]
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n- b\n", "a: [b\n"])
def test_a_kptfile_that_is_no_object_is_an_error(text: str) -> None:
    with pytest.raises(editor.YamlError):
        kptfile(copies.named("x"), text=text)


def test_every_context_goes_and_one_is_made_beside_each_kptfile() -> None:
    old = content.initial_files("old", {})[copies.CONTEXT_FILE]
    texts = {
        KPTFILE: KPT,
        "package-context.yaml": old,
        "more/elsewhere.yaml": old + "---\nkind: Other\n",
        "sub/Kptfile": KPT.replace("blue", "sub"),
        "plain.yaml": "kind: Plain # stays\n",
    }
    made = content.with_package_context(texts, "site/blue")
    assert value(made["package-context.yaml"])["data"] == {"name": "blue", "package-path": "site/blue"}
    assert value(made["sub/package-context.yaml"])["data"] == {"name": "sub", "package-path": "site/blue"}
    assert editor.values(made["more/elsewhere.yaml"]) == [{"kind": "Other"}]
    assert made["plain.yaml"] == texts["plain.yaml"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "kind: A\napiVersion: g/v1\nmetadata:\n  name: n\n",
            "kind: A\napiVersion: g/v1\nmetadata: # kpt-merge: /n\n  name: n\n  annotations:\n"
            "    internal.kpt.dev/upstream-identifier: g|A|default|n\n",
        ),
        ("kind: A\nmetadata:\n  name: n\n", "kind: A\nmetadata:\n  name: n\n"),
        ("not: [yaml\n", "not: [yaml\n"),
        ("", ""),
    ],
)
def test_origins_are_recorded_in_objects_only(before: str, after: str) -> None:
    assert copies.with_origins({"a.yaml": before, "a.json": before, "a.txt": before}) == {
        "a.yaml": after,
        "a.json": before,
        "a.txt": before,
    }


def test_an_origin_of_an_earlier_clone_stays() -> None:
    once = copies.with_origins({"a.yaml": "kind: A\napiVersion: g/v1\nmetadata:\n  name: n\n"})
    renamed = {"a.yaml": once["a.yaml"].replace("name: n\n", "name: m\n")}
    assert copies.with_origins(renamed) == renamed


NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True)


@given(
    name=NAMES,
    namespace=st.none() | NAMES,
    group=st.sampled_from(["", "apps/", "example.com/"]),
    annotations=st.dictionaries(NAMES, st.text(max_size=20), max_size=3),
    comment=st.sampled_from(["", "  # here"]),
)
def test_recording_origins_changes_one_annotation_and_is_done_once(
    name: str, namespace: str | None, group: str, annotations: dict[str, str], comment: str
) -> None:
    obj: dict[str, Any] = {"apiVersion": f"{group}v1", "kind": "Thing", "metadata": {"name": name}}
    if namespace:
        obj["metadata"]["namespace"] = namespace
    document = editor.parse(f"apiVersion: {group}v1\nkind: Thing{comment}\nmetadata:\n  name: {name}\n")[0]
    for path, item in (("namespace", namespace), ("annotations", annotations)):
        if item:
            document = editor.assign(document, ("metadata", path), item)
    if annotations:
        obj["metadata"]["annotations"] = annotations
    marked = copies.with_origins({"a.yaml": document.text})
    after = value(marked["a.yaml"])
    identifier = after["metadata"]["annotations"].pop(copies.UPSTREAM_IDENTIFIER)
    assert identifier == f"{group.rstrip('/')}|Thing|{namespace or 'default'}|{name}"
    if not annotations:
        del after["metadata"]["annotations"]
    assert after == obj
    assert f"metadata: # kpt-merge: {namespace or ''}/{name}\n" in marked["a.yaml"]
    assert f"kind: Thing{comment}\n" in marked["a.yaml"]
    assert copies.with_origins(marked) == marked
