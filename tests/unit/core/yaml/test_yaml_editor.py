"""Reading and editing YAML: layouts, comments, styles and limits."""

from typing import Any

import pytest

from pvbus.core.yaml import editor
from pvbus.core.yaml.editor import Document, YamlError, append, assign, delete, insert, join, parse, values
from pvbus.core.yaml.positions import Positions

FUNCTION = {"name": "x", "image": "y/z", "configMap": {"a": "b"}}


def one(text: str) -> Document:
    (document,) = parse(text)
    return document


def test_scalars_are_read_as_the_go_tools_read_them() -> None:
    """`yes`, dates and clock times are strings; octal, hexadecimal and underscores make integers."""
    text = "[yes, on, 2024-01-01, 12:30:00, 017, 0o17, 1_000, 0x1F, 1e3, .5, ~, True, 08, '1']"
    assert values(text) == [
        ["yes", "on", "2024-01-01", "12:30:00", 15, 15, 1000, 31, 1000.0, 0.5, None, True, 8.0, "1"]
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("# head\n---\n---\na: 1\n", [None, {"a": 1}]),
        ("a: 1\n...\n# x\n---\nb: 1\n...\n", [{"a": 1}, {"b": 1}]),
        ("%YAML 1.2\n---\na: 1\n...\n%YAML 1.2\n---\nb: 1\n", [{"a": 1}, {"b": 1}]),
        ("---\na: |\n  x\n  ---\n---\n# tail\n", [{"a": "x\n---\n"}, None]),
        ("", [None]),
        ("# only a comment\n", [None]),
    ],
)
def test_documents_are_cut_where_yaml_cuts_them(text: str, expected: list[object]) -> None:
    """Pieces join to the text, and each has its own value."""
    documents = parse(text)
    assert join(documents) == text
    assert [document.value for document in documents] == expected


def test_an_edit_of_one_document_leaves_the_others() -> None:
    """Only the edited document has another text."""
    text = "# one\na: 1 # x\n---\nb:   2\n---\nc: [ 3 ]\n"
    first, second, third = parse(text)
    assert join((first, assign(second, ("b",), 3), third)) == text.replace("b:   2", "b:   3")


@pytest.mark.parametrize(
    ("text", "path", "value", "expected"),
    [
        ("a: 'x' # kept\nb: \"y\"\n", ("a",), "z", "a: 'z' # kept\nb: \"y\"\n"),
        ("a: x\n", ("a",), "yes", 'a: "yes"\n'),
        ("a: x\n", ("a",), [1e-7, 2.5, 1e300], "a:\n- 1.0e-07\n- 2.5\n- 1.0e+300\n"),
        ("a: x # kept\nb: y\n", ("a",), {"c": "d"}, "a: # kept\n  c: d\nb: y\n"),
        ("a: # kept\n- x: 1\nb: y\n", ("a",), "s", "a: s # kept\nb: y\n"),
        ("a: | # kept\n  t\n\nb: y\n", ("a",), "s", "a: s # kept\n\nb: y\n"),
        ("a: s\nb: y\n", ("a",), "t\nu\n", "a: |\n  t\n  u\nb: y\n"),
        ("a: {}\nb: y\n", ("a", "c"), ["d"], "a:\n  c:\n  - d\nb: y\n"),
        ("a: {b: 1} # kept\n", ("a", "c"), "d", "a: {b: 1, c: d} # kept\n"),
        ("a:\n  x: 1 # x\n\n# about c\nc: 3\n", ("a", "q"), 2, "a:\n  x: 1 # x\n  q: 2\n\n# about c\nc: 3\n"),
        ("a:\n    x: 1", ("b", "q"), "r", "a:\n    x: 1\nb:\n    q: r"),
        ("l:\n  - 1\n", ("m",), [{"a": [2]}], "l:\n  - 1\nm:\n  - a:\n      - 2\n"),
        ("l:\n- 1\n", ("m",), [{"a": [2]}], "l:\n- 1\nm:\n- a:\n  - 2\n"),
        ("a:\r\n  x: 1\r\n", ("b", "c"), "d", "a:\r\n  x: 1\r\nb:\r\n  c: d\r\n"),
        ("# only\n", ("a",), "b", "# only\na: b\n"),
        ("\ufeffa: é😀\nb: 1\n", ("b",), 2, "\ufeffa: é😀\nb: 2\n"),
        ("- # why\n  c: d\n- e\n", (0, "c"), "x", "- # why\n  c: x\n- e\n"),
    ],
)
def test_a_value_is_set_in_its_place(text: str, path: editor.Path, value: object, expected: str) -> None:
    """Quotes, comments, indentation, line ends and the style of lists stay those of the file."""
    assert assign(one(text), path, value).text == expected


def test_a_mapping_replaces_a_mapping_key_by_key() -> None:
    """Fields that stay equal keep their text; those that are not wanted go; new ones come last."""
    text = "spec:\n  keep: 'x' # why\n  change: 1 # two\n  gone: 1\nz: 1\n"
    after = assign(one(text), ("spec",), {"new": [1], "change": 2, "keep": "x"})
    assert after.text == "spec:\n  keep: 'x' # why\n  change: 2 # two\n  new:\n  - 1\nz: 1\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1 # one\nb:\n  c: x # kept\n  d: 'y'\n", "a: 2 # one\nb:\n  c: x # kept\n  d: 'z'\n"),
        ("a: 1\nb: {c: x, d: y}\n", "a: 2\nb: {c: x, d: z}\n"),
        ("a: 1\nb:\n  c: x\n  d: |\n    y\n", "a: 2\nb:\n  c: x\n  d: z\n"),
    ],
    ids=["block", "flow", "lines"],
)
def test_several_scalars_change_in_their_places(text: str, expected: str) -> None:
    edited = assign(one(text), (), {"a": 2, "b": {"c": "x", "d": "z"}})
    assert edited.text == expected
    assert edited.value == one(expected).value


@pytest.mark.parametrize(
    ("text", "index", "expected"),
    [
        (
            "a:\n  # about b\n  - b\n",
            0,
            "a:\n  - name: x\n    image: y/z\n    configMap:\n      a: b\n  # about b\n  - b\n",
        ),
        (
            "a:\n- b\n# about c\n- c\n",
            1,
            "a:\n- b\n- name: x\n  image: y/z\n  configMap:\n    a: b\n# about c\n- c\n",
        ),
        ("a: [] # c\n", 0, "a: # c\n- name: x\n  image: y/z\n  configMap:\n    a: b\n"),
        ("a: [b]\n", 1, "a: [b, {name: x, image: y/z, configMap: {a: b}}]\n"),
        ("b: 1\n", 0, "b: 1\na:\n- name: x\n  image: y/z\n  configMap:\n    a: b\n"),
    ],
)
def test_an_element_is_inserted_before_its_successors_comment(text: str, index: int, expected: str) -> None:
    """A comment stays with the element below it."""
    assert insert(one(text), ("a",), index, FUNCTION).text == expected


def test_an_element_is_appended_behind_the_last_line_of_the_list() -> None:
    """Blank lines and comments behind the list stay behind it."""
    assert (
        append(one("a:\n- b\n\n# about c\nc: 1\n"), ("a",), "x").text == "a:\n- b\n- x\n\n# about c\nc: 1\n"
    )


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("a: 1 # one\n# two\nb: 2 # gone\n\nc: 3\n", ("b",), "a: 1 # one\n# two\n\nc: 3\n"),
        ("m:\n- c: d\n  # about e\n  e: f\n", ("m", 0, "c"), "m:\n- # about e\n  e: f\n"),
        ("m:\n- c: d\n", ("m", 0), "m: []\n"),
        ("m:\n  c: d\nn: 1\n", ("m", "c"), "m: {}\nn: 1\n"),
        ("m: {c: d, e: f}\n", ("m", "c"), "m: {e: f}\n"),
        ("m: 1\n", ("x", "y"), "m: 1\n"),
    ],
)
def test_a_key_or_element_is_deleted_with_its_lines(text: str, path: editor.Path, expected: str) -> None:
    """Comments above it stay, an emptied collection stays as {} or [], a missing path is no error."""
    assert delete(one(text), path).text == expected


def test_json_stays_json() -> None:
    """A document that is JSON is written as JSON, indented as it was."""
    text = '{\n  "a": {\n    "b": 1\n  }\n}\n'
    assert assign(one(text), ("a", "c"), ["yes"]).text == (
        '{\n  "a": {\n    "b": 1,\n    "c": [\n      "yes"\n    ]\n  }\n}\n'
    )
    assert assign(one('{"a":1}'), ("b",), 2).text == '{"a":1,"b":2}'


def test_an_edit_through_an_alias_changes_that_place_only() -> None:
    """The document is rewritten without the alias, and its comments stay beside their fields."""
    text = "# head\n---\na: &x\n  b: 1 # b\n# above c\nc: *x # c\nd: 1\n# tail\n"
    after = assign(one(text), ("c", "e"), 2)
    assert after.value == {"a": {"b": 1}, "c": {"b": 1, "e": 2}, "d": 1}
    assert after.text == ("# head\n---\na:\n  b: 1 # b\n# above c\nc: # c\n  b: 1\n  e: 2\nd: 1\n# tail\n")


def test_setting_the_same_value_gives_the_same_document() -> None:
    """An edit without a change returns its input; true is not 1."""
    document = one("a: {b: true}\n")
    assert assign(document, ("a",), {"b": True}) is document
    assert assign(document, ("a", "b"), 1).text == "a: {b: 1}\n"


def test_a_scalar_in_the_way_is_an_error() -> None:
    """Data is never overwritten to make room for a deeper path."""
    with pytest.raises(YamlError, match="cannot be set"):
        assign(one("a: text\n"), ("a", "b"), 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n---\nb: [\n", "line 4: did not find expected node content"),
        ("a:\n\tb: 1\n", "line 2: found character that cannot start any token"),
        ("a: *x\n", "line 1: there is no anchor &x before this alias"),
        ("a: &a [*a]\n", "contains itself"),
        ("[" * 100_000, "nested too deeply"),
        ("- " * 100_000 + "a", "nested too deeply"),
        ("a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
            f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdef", "bcdefg", strict=True)
        ), "excessive aliasing"),
        ("a: \x00\n", "control characters are not allowed"),
        ("? [a]\n: 1\n", "a key must be a text, not a list or a mapping"),
    ],
    ids=["broken", "tab", "alias", "recursion", "flow", "block", "bomb", "control", "key"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_a_sentence(text: str, message: str) -> None:
    """No package text ends the process: errors name the line of the whole file where there is one."""
    with pytest.raises(YamlError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("a: 1\nb: 2\n", ("a",), "a: 1 # c\nb: 2\n"),
        ("a:\n  b: 1\n", ("a",), "a: # c\n  b: 1\n"),
        ("a:\n- x\n- k: '1'\n", ("a", 1, "k"), "a:\n- x\n- k: '1' # c\n"),
        ("a: 1", ("a",), "a: 1 # c\n"),
        ("\ufeffa: 1\n", ("a",), "\ufeffa: 1 # c\n"),
        ("a: 1 # d\n", ("a",), "a: 1 # d\n"),
        ("a: |\n  x\n", ("a",), "a: |\n  x\n"),
        ("a: {b: 1}\n", ("a", "b"), "a: {b: 1} # c\n"),
        ("a: 'x\n  y'\n", ("a",), "a: 'x\n  y'\n"),
        ("a: 1\n", ("b",), "a: 1\n"),
    ],
    ids=[
        "scalar",
        "mapping",
        "element",
        "no newline",
        "mark",
        "comment",
        "block",
        "flow",
        "folded",
        "nothing",
    ],
)
def test_a_comment_is_put_where_there_is_room_for_it(
    text: str, path: tuple[str | int, ...], expected: str
) -> None:
    """The value stays what it is; a comment that is there, or a text of several lines, keeps it out."""
    document = editor.with_comment(one(text), path, "# c")
    assert document.text == expected
    assert values(document.text) == values(text)


def test_several_edits_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noted(text: str) -> Any:
        read.append(text)
        return construct(text)

    construct = editor._construct
    monkeypatch.setattr(editor, "_constructed", noted)
    document = one("a: 1 # one\nb: [x]\nc:\n  d: 2\n")
    read.clear()

    def change(first: editor.Document) -> editor.Document:
        second = editor.assign(first, ("a",), 5)
        third = editor.append(second, ("b",), "z")
        return editor.assign(third, ("c", "e"), 3)

    assert editor.edited(document, change).text == "a: 5 # one\nb: [x, z]\nc:\n  d: 2\n  e: 3\n"
    assert len(read) == 1


def test_an_edit_that_gives_another_value_is_found_among_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is read at the end: then each edit is made again, and the one that failed rewrites it."""
    replace = Positions.replace

    def wrong(self: Positions, path: editor.Path, value: Any) -> str:
        return replace(self, path, 7 if value == 5 else value)

    monkeypatch.setattr(Positions, "replace", wrong)
    document = one("a: 1 # one\nb: 2\n")
    after = editor.edited(document, lambda d: editor.assign(editor.assign(d, ("a",), 5), ("b",), 3))
    assert after.text == "a: 5 # one\nb: 3\n"
    assert after.value == {"a": 5, "b": 3}
