"""The reader of YAML from outside: Go's answers, limits, and errors in words."""

import json
from typing import Any

import pytest

from pvbus.core.yaml import reader
from pvbus.core.yaml.reader import Limits, TooLargeError, YamlError
from pvbus.core.yaml.scalars import KPT, KUBECTL
from pvbus.core.yaml.writer import Style, block
from tests.tools.yamlanswers import go_answers

SMALL = Limits(bytes_max=1000, depth_max=5, nodes_max=50, documents_max=3, aliased_max=40)


def read(text: str | bytes, limits: Limits = reader.FILES) -> Any:
    return reader.document(text, limits).value


@pytest.mark.parametrize("group", ["c10", "scalars", "keys", "documents"])
def test_what_go_reads_is_read(group: str) -> None:
    """Every recorded text has Go's value to the type, or is refused as Go refuses it."""
    wrong = []
    for answer in go_answers(group):
        try:
            found = reader.document(answer.text)
        except YamlError as exc:
            if not answer.is_refused:
                wrong.append((answer.text, str(exc)))
            continue
        same = json.dumps(found.value, sort_keys=True) == json.dumps(answer.value, sort_keys=True)
        if answer.is_refused or not same or bool(found.doubled) != answer.is_doubled:
            wrong.append((answer.text, repr(found)))
    assert wrong == []


def test_there_are_enough_answers() -> None:
    assert len(go_answers("c10")) == 12
    assert len(go_answers("scalars")) > 200


@pytest.mark.parametrize(
    ("text", "kubectl", "kpt"),
    [
        ("yes", True, "yes"),
        ("off", False, "off"),
        ("y", True, "y"),
        ("1.0", 1, 1.0),
        ("18446744073709551615", 1.8446744073709552e19, 18446744073709551615),
        ("0o+17", "0o+17", 15),
        ("0777", 511, 511),
        ("22:22", "22:22", "22:22"),
    ],
)
def test_kpt_reads_some_scalars_otherwise(text: str, kubectl: Any, kpt: Any) -> None:
    for dialect, value in ((KUBECTL, kubectl), (KPT, kpt)):
        found = reader.document(f"v: {text}", reader.FILES, dialect).value["v"]
        assert (type(found), found) == (type(value), value)


def test_keys_of_edited_files_are_what_is_written() -> None:
    text = "{yes: 1, 0777: 2, 1.0: 3}"
    assert reader.document(text, reader.FILES, KPT).value == {"yes": 1, "0777": 2, "1.0": 3}


@pytest.mark.parametrize("own_first", [True, False])
def test_an_own_key_wins_over_a_merged_one_for_kpt(own_first: bool) -> None:
    """For Go's second version the later one wins, whichever it is."""
    parts = ["l: 2", "<<: *a"] if own_first else ["<<: *a", "l: 2"]
    text = f"a: &a {{k: 1, l: 1}}\nv: {{{', '.join(parts)}}}"
    assert reader.document(text, reader.FILES, KPT).value["v"] == {"k": 1, "l": 2}
    assert read(text)["v"] == {"k": 1, "l": 1 if own_first else 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a" * 1001, "it has more than 1000 bytes"),
        ("[" * 6, "line 1: nested too deeply, more than 5 levels deep"),
        ("a: &a [[[[1]]]]\nb: [*a]", "line 2: nested too deeply"),
        ("a: &a {b: {c: {d: 1}}}\nb: {c: {<<: {d: *a}}}", "line 2: nested too deeply"),
        ("[" + "1," * 50 + "]", "it has more than 50 values"),
        (
            "a: &a [1,2,3,4,5]\nb: [" + "*a," * 8 + "]",
            "excessive aliasing: its aliases stand for more than 40",
        ),
        ("a: &a {b: 1}\nc: {" + "<<: *a," * 30 + "}", "more than 50 values"),
        ("--- 1\n" * 4, "it has more than 3 documents"),
        ("".join(f"%TAG !a{n}! x\n" for n in range(33)) + "---\n1", "more than 32 %TAG directives"),
    ],
)
def test_each_limit_is_named(text: str, words: str) -> None:
    with pytest.raises(YamlError, match=words):
        list(reader.documents(text, SMALL))


@pytest.mark.parametrize("text", ["x" * 1001, "[" + "1," * 50 + "]", "a: &a [1]\nb: [" + "*a," * 40 + "]"])
def test_what_is_too_large_says_so_by_its_class(text: str) -> None:
    with pytest.raises(TooLargeError):
        read(text, SMALL)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: .inf", "line 2: .inf is not a number of JSON"),
        ("a: &a\n  - *a", "line 2: the value of &a contains itself"),
        ("a: 1\nb: *a", "line 2: there is no anchor &a before this alias"),
        ("a: 1\n? [a]\n: 1", "line 2: a key must be a text"),
        ("a: 1\n~: 1", "line 2: the key ~ is null: write it in quotes"),
        ("a: 1\nb: {<<: 1}", "line 2: the value of `<<` must be a mapping"),
        ("a: 1\nb: !!int x", "line 2: `x` is no !!int"),
        ("a: 1\n\tb: 2", "line 2: found a tab"),
        (
            "a: 1\nb: {q: Does it work?}",
            "line 2: kubectl does not read a . here: write 'Does it work.' in quotes",
        ),
        ("[1,\n http://a/?b=1]", "line 2: kubectl does not read a ."),
        ("a: 1\nb: {q?: 1}", "line 2: kubectl does not read a ."),
        ("a: [[b ?c]]", "line 1: kubectl does not read a ."),
        ("a: 1\n---\nb: 1", "line 2: a second document begins"),
        (b"a: \xff", r"it is not UTF-8 text \(at byte 3\)"),
        ("a: \ud800", "half a surrogate pair"),
        (b"\xff\xfea", "it is not UTF-16 text"),
        (b"a: \x00", "unacceptable character"),
    ],
)
def test_errors_say_what_and_where(text: str | bytes, words: str) -> None:
    with pytest.raises(YamlError, match=words):
        read(text)


@pytest.mark.parametrize("text", ["{q: 'a?'}", '["a?", b]', "q: a?", "q:\n- a?b\n- ?c"])
def test_a_question_mark_is_read_where_kubectl_reads_it(text: str) -> None:
    read(text)


def test_lines_count_from_where_the_text_stands() -> None:
    with pytest.raises(YamlError, match="line 11: `x` is no !!int"):
        reader.document("a: 1\nb: !!int x", line=10)
    assert [part.line for part in reader.documents("a: 1\n---\nb: 1\n", line=10)] == [10, 11]


def test_utf_16_is_read_as_go_reads_it() -> None:
    assert read("a: é".encode("utf-16")) == {"a": "é"}


def test_values_do_not_share_parts() -> None:
    value = read("a: &a {k: [1]}\nb: *a\nc: {<<: *a}")
    value["b"]["k"].append(2)
    assert value == {"a": {"k": [1]}, "b": {"k": [1, 2]}, "c": {"k": [1]}}


def test_duplicate_fields_have_their_paths() -> None:
    text = "a: 1\nb:\n- c: {d: 1, d: 2}\n- 2\na: 2"
    assert reader.document(text).doubled == ("b[0].c.d", "a")


@pytest.mark.parametrize(
    "hostile",
    ["1:" * 100_000 + "1", "1" * 200_000, "0x" + "f" * 200_000, "1." + "1" * 200_000, "1_" * 100_000],
)
def test_a_long_number_is_a_text_or_a_float(hostile: str) -> None:
    """Nothing converts its digits one by one: base 60 was quadratic, and a float of it overflowed."""
    found = read(f"v: {hostile}.5" if ":" in hostile else f"v: {hostile}")["v"]
    assert isinstance(found, str | float)


def test_what_a_tool_would_not_read_as_text_is_written_in_quotes() -> None:
    """The text of any scalar comes back as that text, as a key and as an item."""
    texts = [answer.text[3:-1] for answer in go_answers("c10", "scalars") if len(answer.text) < 200]
    for text in texts:
        written = "\n".join(block({text: [text]}, "", Style()))
        for dialect in (KUBECTL, KPT):
            assert reader.document(written, reader.FILES, dialect).value == {text: [text]}
