"""Edits of YAML give the value that was asked for and leave the rest of the text alone."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pvbus.core.yaml import editor
from pvbus.core.yaml.editor import Document
from pvbus.core.yaml.rawtext import FIRST
from pvbus.core.yaml.writer import Style, block

CATALOG = Path(__file__).parents[2] / ".." / "shared" / "data" / "nephio" / "catalog"
AWKWARD = "yes on y null ~ 1 0o17 1_000 1e3 12:30:00 2024-01-01 .inf 0x1F +1 true"  # no strings for some
AWKWARD_WORDS = [
    *AWKWARD.split(),
    *["#a", "*a", "&a", "!a", "|", ">", "%a", "@a", "`a", "-", "---", "...", "a:", "{a}", "[a]", "'", '"'],
    *["it's", "a\\b", "=", "<<", "é", "😀", "", " lead", "trail ", "- a", "a: b", "a #b", "? a", "a\tb"],
    *["\x07", "\u2028", "\x85", "\ufeff", "\r"],
    *["a\nb", "a\nb\n", "\na", "a\n\n", "  a\nb", "a \nb", "a\r\nb"],
]

words = st.sampled_from(["a", "b", "name", "spec", "x-y", "data"])
keys = words | st.sampled_from(AWKWARD_WORDS)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(-1e6, 1e6).map(lambda number: round(number, 3))  # JSON knows exponents that YAML 1.1 does not
    | st.sampled_from(AWKWARD_WORDS)
    | st.text(st.characters(exclude_categories=["Cs"], max_codepoint=FIRST - 1), max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
mappings = st.dictionaries(keys, values, min_size=1, max_size=4)

lines_scalars = (
    st.integers(0, 99) | words | st.sampled_from([text for text in AWKWARD_WORDS if "\n" not in text])
)
lines_values = st.recursive(
    lines_scalars,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3) | st.dictionaries(words, inner, min_size=1, max_size=3)
    ),
    max_leaves=10,
)
styles = st.builds(Style, st.sampled_from([2, 4]), st.booleans())


def read(text: str) -> Any:
    """Read as an independent YAML 1.1 reader does."""
    return yaml.load(text, Loader=yaml.CSafeLoader)


def paths(value: Any, prefix: editor.Path = ()) -> list[editor.Path]:
    found = [prefix]
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in pairs:
        found += paths(item, (*prefix, step))
    return found


def edited(
    data: st.DataObject, document: Document, new: st.SearchStrategy[Any]
) -> tuple[Document, Any, str, Any]:
    """Draw an edit; return the document after it, the value wanted, the edit's name and path."""
    path = data.draw(st.sampled_from(paths(document.value)))
    target = editor.get(document.value, path)
    verbs = (
        ["assign"]
        + ["delete"] * bool(path)
        + ["insert"] * isinstance(target, list)
        + ["add"] * isinstance(target, dict)
    )
    verb = data.draw(st.sampled_from(verbs))
    item = data.draw(new)
    root = {"root": deepcopy(document.value)}
    steps: tuple[Any, ...] = ("root", *path)
    parent: Any = root
    for step in steps[:-1]:
        parent = parent[step]
    if verb == "assign":
        parent[steps[-1]] = item
        return editor.assign(document, path, item), root["root"], verb, path
    if verb == "delete":
        del parent[steps[-1]]
        return editor.delete(document, path), root["root"], verb, path
    if verb == "insert":
        index = data.draw(st.integers(0, len(target)))
        parent[steps[-1]].insert(index, item)
        return editor.insert(document, path, index, item), root["root"], verb, (*path, index)
    key = data.draw(words.filter(lambda word: word not in target)) if len(target) < 6 else "new-key"
    assume(key not in target)
    parent[steps[-1]][key] = item
    return editor.assign(document, (*path, key), item), root["root"], verb, (*path, key)


@pytest.mark.slow
@given(st.data(), mappings, values, st.sampled_from([None, '"', "'"]), st.sampled_from([None, False, True]))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_edit_gives_the_value_asked_for_in_any_style(
    data: st.DataObject, value: Any, new: Any, quotes: str | None, flow: bool | None
) -> None:
    """Whatever writer made the text, after an edit both readers see the edited value."""
    text = yaml.dump(value, default_style=quotes, default_flow_style=flow, allow_unicode=True, indent=3)
    (document,) = editor.parse(text)
    assume(editor.same(document.value, value))  # PyYAML leaves `0o17` without quotes
    after, wanted, _, _ = edited(data, document, st.just(new))
    assert editor.same(after.value, wanted)
    assert editor.same(editor.parse(after.text)[0].value, wanted)
    assert editor.same(read(after.text), wanted)


@pytest.mark.slow
@given(st.data(), mappings, st.lists(values, min_size=2, max_size=3), st.sampled_from([None, False, True]))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_edits_that_are_read_once_give_what_they_give_one_by_one(
    data: st.DataObject, value: Any, news: list[Any], flow: bool | None
) -> None:
    """A layout that an edit gets wrong is found at the end, and then each edit is read."""
    (document,) = editor.parse(yaml.dump(value, default_flow_style=flow, allow_unicode=True))
    assume(editor.same(document.value, value))
    one_by_one, steps = document, []
    for new in news:
        steps.append((data.draw(st.sampled_from(paths(one_by_one.value))), new))
        one_by_one = editor.assign(one_by_one, *steps[-1])

    def change(made: Document) -> Document:
        for path, new in steps:
            made = editor.assign(made, path, new)
        return made

    together = editor.edited(document, change)
    assert type(together) is Document
    assert editor.same(together.value, one_by_one.value)
    assert editor.same(read(together.text), one_by_one.value)


@given(mappings, styles)
@settings(max_examples=200, deadline=None)
def test_what_is_written_is_read_by_both_versions_of_yaml(value: Any, style: Style) -> None:
    """Our writer's text has the same value for the reader of 1.1 and for ours."""
    text = "\n".join(block(value, "", style)) + "\n"
    assert editor.same(read(text), value)
    assert editor.same(editor.values(text), [value])


def commented(value: Any, style: Style, data: st.DataObject) -> str:
    """Write a value with comment lines above, and comments behind, some of its lines."""
    lines = []
    for number, line in enumerate(block(value, "", style)):
        pad = re.match(" *", line)
        assert pad is not None
        if data.draw(st.booleans()):
            lines.append(f"{pad[0]}# above {number}")
        lines.append(f"{line}  # behind {number}" if data.draw(st.booleans()) else line)
    return "\n".join(lines) + "\n"


def span(text: str, path: editor.Path) -> tuple[int, int]:
    """Return the lines that a path takes, from its key or dash to its last leaf."""
    node: Any = yaml.compose(text, Loader=yaml.CSafeLoader)
    first = node.start_mark.line
    for step in path:
        if isinstance(node, yaml.MappingNode):
            key, node = next((key, item) for key, item in node.value if key.value == step)
            first = key.start_mark.line
        else:
            node = node.value[step]
            first = node.start_mark.line
    while isinstance(node, yaml.CollectionNode) and node.value:
        node = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
    return first, node.end_mark.line


def keeps(lines: list[str], text: str) -> bool:
    """Tell whether a text still has these lines, in their order, with others between them."""
    remaining = iter(text.split("\n"))
    return all(line in remaining for line in lines)


@pytest.mark.slow
@given(st.data(), st.dictionaries(words, lines_values, min_size=1, max_size=4), lines_values, styles)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_lines_outside_the_edit_stay_in_their_order(
    data: st.DataObject, value: Any, new: Any, style: Style
) -> None:
    """Of a commented text, no line that the edited place does not take is lost, changed or moved."""
    text = commented(value, style, data)
    (document,) = editor.parse(text)
    after, wanted, verb, path = edited(data, document, st.just(new))
    assert editor.same(read(after.text), wanted)
    parent = editor.get(document.value, path[:-1]) if path else None
    if verb in ("insert", "add"):
        # A list that begins behind another one's dash has no line of its own to insert before.
        assume(parent and "- -" not in text)
        assert keeps(text.split("\n"), after.text)
        return
    if verb == "delete" and parent is not None and len(parent) == 1:
        path = path[:-1]
    first, last = span(text, path)
    lines = text.split("\n")
    # When a key behind a dash goes, the next line moves up to the dash.
    assume(verb == "assign" or not re.match(" *- ", lines[first]) or isinstance(parent, list))
    assume("- -" not in lines[first])
    assert keeps(lines[:first] + lines[last + 1 :], after.text)


def files() -> list[Path]:
    return sorted(p for p in CATALOG.rglob("*") if p.suffix in (".yaml", ".yml") or p.name == "Kptfile")


@pytest.mark.shared
@pytest.mark.skipif(not CATALOG.is_dir(), reason="no shared folder beside the checkout")
def test_real_packages_are_edited_line_by_line() -> None:
    """In every object of the catalog, one edit of each sort leaves all other lines as they were."""
    edits = 0
    for path in files():
        text = path.read_text()
        documents = editor.parse(text)
        assert editor.join(documents) == text
        for document in documents:
            if not isinstance(document.value, dict) or len(document.text) > 20_000:
                continue
            added = editor.assign(document, ("metadata", "annotations", "pvbus.dev/test"), "yes")
            empty = editor.get(document.value, ("metadata", "annotations")) in (None, {})
            lines = document.text.split("\n")
            assert keeps([line for line in lines if not (empty and "annotations: {}" in line)], added.text)
            assert read(added.text)["metadata"]["annotations"]["pvbus.dev/test"] == "yes"
            renamed = editor.assign(document, ("metadata", "name"), "other")
            pairs = zip(lines, renamed.text.split("\n"), strict=True)
            assert [new.partition(" #")[0].strip() for old, new in pairs if old != new] == ["name: other"]
            edits += 2
    assert edits > 300
