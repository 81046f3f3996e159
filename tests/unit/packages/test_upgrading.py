"""Upgrades of real packages, and the bytes and reports around a merge."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pvbus.controlplane.packages import content, upgrading
from pvbus.controlplane.packages.filesets import File, Files
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.render import render
from pvbus.core.kernel.conflicts import CONFLICTS_BYTES_MAX, Conflict, annotation
from pvbus.core.kernel.keys import TASK_HISTORY
from pvbus.core.variants.merge import copies
from pvbus.core.yaml import editor
from tests.unit.packages.support import CATALOG, package

REGISTRY = FunctionRegistry()


def lock(revision: int) -> dict[str, Any]:
    git = {"repo": "r", "directory": "d", "ref": f"d/v{revision}", "commit": f"c{revision}"}
    return {"type": "git", "git": git}


def as_files(texts: Mapping[str, str]) -> dict[str, File]:
    return {path: File(text.encode()) for path, text in texts.items()}


def cloned(texts: Mapping[str, str]) -> dict[str, str]:
    """Clone a package into a deployment repository, and render it."""
    edited = copies.edit_kptfile(texts, copies.named("edge01"), copies.derived_from(lock(1)))
    made = content.with_package_context(copies.with_origins(edited), "edge01")
    return dict(render(made, registry=REGISTRY).resources)


def upgraded(old: Files, local: Files, new: Files) -> upgrading.Upgraded:
    prepared = [upgrading.Upstream(files, upgrading.with_origins(files)) for files in (old, new)]
    return upgrading.upgraded(prepared[0], local, prepared[1], lock(2), "resource-merge", deployment=True)


def texts(files: Files) -> dict[str, str]:
    return {path: file.data.decode() for path, file in files.items()}


def noted(path: str, text: str) -> str:
    """Give every object of a file an annotation, as a new upstream revision would."""
    if not path.endswith(".yaml"):
        return text
    documents = (
        editor.assign(document, ("metadata", "annotations", "example.com/new"), "yes")
        if document.value
        else document
        for document in editor.parse(text)
    )
    return editor.join(tuple(documents))


FOLDERS = sorted(path.parent for path in CATALOG.glob("**/Kptfile")) if CATALOG.is_dir() else []


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(CATALOG)))
def test_a_nephio_package_takes_upstreams_change_and_keeps_the_rendered_one(folder: Path) -> None:
    """Every line of the local package stays, every object has upstream's annotation, nothing conflicts."""
    old = package(folder)
    local = cloned(old)
    new = {path: noted(path, text) for path, text in old.items()} | {"new.txt": "new\n"}
    merged = upgraded(as_files(old), as_files(local), as_files(new))
    assert not merged.conflicts
    after = texts(merged.files)
    assert after.keys() == local.keys() | {"new.txt"}
    for path, text in local.items():
        if path.endswith(("Kptfile", copies.CONTEXT_FILE)):
            continue
        lines = after[path].splitlines()
        assert [
            line for line in text.splitlines() if line not in lines and "annotations: {}" not in line
        ] == []
        for before, value in zip(editor.values(text), editor.values(after[path]), strict=True):
            if path.endswith(".yaml"):
                assert value["metadata"]["annotations"].pop("example.com/new") == "yes"
                value["metadata"]["annotations"] = value["metadata"]["annotations"] or None
                before["metadata"]["annotations"] = before["metadata"].get("annotations") or None
                assert editor.same(value, before)
    again = upgraded(as_files(new), merged.files, as_files(new))
    assert texts(again.files) == after


def test_an_upgrade_to_the_same_upstream_changes_the_lock_only() -> None:
    old = {"Kptfile": "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: a\n", "a.yaml": "a: 1 # x\n"}
    local = cloned(old)
    merged = upgraded(as_files(old), as_files(local), as_files(old))
    after = texts(merged.files)
    assert after.pop("Kptfile") == local.pop("Kptfile").replace("d/v1", "d/v2").replace("c1", "c2")
    assert after == local


def answered(texts: Mapping[str, str], by: str) -> dict[str, str]:
    path = ("metadata", "annotations", TASK_HISTORY)
    return copies.edit_kptfile(texts, lambda kptfile: editor.assign(kptfile, path, by))


@pytest.mark.parametrize("strategy", ["resource-merge", "fast-forward"])
def test_answers_are_neither_a_change_nor_a_conflict_of_an_upgrade(strategy: str) -> None:
    """Upstream was answered for itself, by others, in both of its revisions."""
    old = {"Kptfile": "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: a\n"}
    new = {**old, "extra.txt": "new"}
    upstreams = [copies.upstream_texts(answered(texts, by)) for texts, by in ((old, "[1]"), (new, "[2]"))]
    merged = copies.upgraded(
        upstreams[0], answered(old, "[3]"), upstreams[1], lock(2), strategy, deployment=False
    )
    assert merged.conflicts == ()
    assert TASK_HISTORY not in merged.texts["Kptfile"]
    assert merged.texts["extra.txt"] == "new"
    rejoined = copies.rejoined(*(answered(old, by) for by in ("[1]", "[2]", "[3]")))
    assert rejoined.conflicts == ()


def test_files_keep_bytes_modes_and_links() -> None:
    kptfile = File(b"apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: a\n")
    link, binary, script = File(b"a", 0o120000), File(b"\xff\x00"), File(b"#!/bin/sh\n", 0o100755)
    old: Files = {"Kptfile": kptfile, "gone": link}
    new: Files = {"Kptfile": kptfile, "link": link, "binary": binary, "script": script}
    local: Files = {**old, "own": link}
    files = upgraded(old, local, new).files
    assert files.keys() == {"Kptfile", "link", "binary", "script", "own"}
    assert (files["link"], files["binary"], files["script"]) == (link, binary, script)


LINK, OTHER, PLAIN = File(b"a", 0o120000), File(b"b", 0o120000), File(b"x")
RUN, NEWER = File(b"x", 0o100755), File(b"y")
KPTFILE = File(b"apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: a\n")


@pytest.mark.parametrize(
    ("old", "local", "new", "merged", "conflicts"),
    [
        pytest.param(PLAIN, PLAIN, RUN, RUN, False, id="upstream makes a file executable"),
        pytest.param(PLAIN, RUN, NEWER, File(b"y", 0o100755), False, id="the local mode stays"),
        pytest.param(RUN, RUN, PLAIN, PLAIN, False, id="upstream makes it plain again"),
        pytest.param(PLAIN, PLAIN, LINK, LINK, False, id="upstream makes a file a link"),
        pytest.param(LINK, LINK, PLAIN, PLAIN, False, id="upstream makes a link a file"),
        pytest.param(PLAIN, NEWER, LINK, NEWER, True, id="a changed file, a link upstream"),
        pytest.param(LINK, OTHER, PLAIN, OTHER, True, id="a changed link, a file upstream"),
        pytest.param(LINK, OTHER, None, OTHER, True, id="a changed link that upstream deletes"),
        pytest.param(LINK, None, OTHER, None, True, id="a deleted link that upstream changes"),
        pytest.param(LINK, LINK, None, None, False, id="upstream deletes a link"),
    ],
)
@pytest.mark.parametrize("path", ["x", "x.yaml"])
def test_links_and_modes_are_merged_as_content_is(
    path: str, old: File | None, local: File | None, new: File | None, merged: File | None, conflicts: bool
) -> None:
    """What both sides changed is a conflict that names the file; it has no value that is a link's target."""
    sides = [{"Kptfile": KPTFILE} | ({path: file} if file is not None else {}) for file in (old, local, new)]
    made = upgraded(*sides)
    assert made.files.get(path) == merged
    assert made.conflicts == ((Conflict(file=path, taken="local"),) if conflicts else ())


@pytest.mark.parametrize(
    ("old", "local", "new", "saved", "merged"),
    [
        pytest.param(PLAIN, PLAIN, RUN, PLAIN, RUN, id="upstream makes a file executable"),
        pytest.param(
            PLAIN, RUN, NEWER, File(b"y", 0o100755), File(b"y", 0o100755), id="the local mode stays"
        ),
        pytest.param(None, None, RUN, PLAIN, RUN, id="a new executable file"),
        pytest.param(None, None, LINK, None, LINK, id="a new link"),
        pytest.param(PLAIN, PLAIN, LINK, None, LINK, id="upstream makes a file a link"),
        pytest.param(PLAIN, NEWER, LINK, NEWER, NEWER, id="a changed file, a link upstream"),
        pytest.param(LINK, LINK, OTHER, LINK, OTHER, id="upstream changes a link"),
        pytest.param(LINK, LINK, None, LINK, None, id="upstream deletes a link"),
        pytest.param(LINK, OTHER, None, OTHER, OTHER, id="a changed link that upstream deletes"),
        pytest.param(LINK, LINK, PLAIN, PLAIN, PLAIN, id="upstream makes a link a file"),
    ],
)
def test_modes_and_links_of_upstream_come_to_what_a_client_merged(
    old: File | None, local: File | None, new: File | None, saved: File | None, merged: File | None
) -> None:
    """saved: the file with the client's text, or the local link."""
    sides = [{"x": file} if file is not None else {} for file in (old, local, new, saved)]
    assert upgrading.with_modes(*sides) == ({"x": merged} if merged is not None else {})


def test_a_copy_merge_keeps_own_links() -> None:
    prepared = [upgrading.Upstream(files, upgrading.with_origins(files)) for files in ({"Kptfile": KPTFILE},)]
    local = {"Kptfile": KPTFILE, "own": LINK}
    made = upgrading.upgraded(prepared[0], local, prepared[0], lock(2), "copy-merge", deployment=False)
    assert made.files["own"] == LINK


def test_the_report_of_conflicts_is_bounded_json() -> None:
    conflicts = [
        Conflict(file="a.yaml", object="A a", field="x", old={1: "x"}, local="\udcff", new="y" * 2000),
        *(Conflict(file=f"{number}.txt", local="z" * 900, taken="local") for number in range(100)),
    ]
    text = annotation(conflicts)
    assert len(text) < CONFLICTS_BYTES_MAX + 100
    first, second, *_, last = json.loads(text)
    assert first == {
        "file": "a.yaml",
        "object": "A a",
        "field": "x",
        "old": {"1": "x"},
        "local": "?",
        "new": "y" * 1000 + "...",
    }
    assert (second["taken"], second["local"]) == ("local", "z" * 900)
    assert last == {"file": f"and {len(conflicts) - len(msgspec.json.decode(text)) + 1} more"}
