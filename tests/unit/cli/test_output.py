"""What commands print: nothing that a terminal would obey, and nothing that a person has to look up."""

import io
import json
import logging

import pytest
import yaml

from pvbus.cli.output import columns, emit
from pvbus.core.yaml.reader import values
from pvbus.runtime.yamltext import yaml_stream
from pvbus.telemetry import logs
from pvbus.telemetry.terminal import PrintableStream, one_line, printable
from tests.tools.yamlanswers import go_answers

HOSTILE = "a\x1b[2J\x9b31m\x07\r\u202eevil\x00\u2028\ud800b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – text\tand\nlines", "plain – text\tand\nlines"),
        ("\x1b]0;title\x07", "\\u001b]0;title\\u0007"),
        ("\x9b2J", "\\u009b2J"),
        ("over\rwritten", "over\\u000dwritten"),
        ("web\u202egpj", "web\\u202egpj"),
        ("half \ud83d", "half \\ud83d"),
        ("日本 🚀", "日本 🚀"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text: str, shown: str) -> None:
    """Control characters, C1 ones too, directions and halves; all else stays."""
    assert printable(text) == shown


def test_json_and_yaml_are_read_back_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    """What makes output harmless on its way to a terminal changes no value that a program reads."""
    text = HOSTILE.replace("\ud800", "")
    document = {"name": text, "plain": "a: b"}
    for form, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        emit(document, form)
        assert load(printable(capsys.readouterr().out)) == document


def test_yaml_has_no_aliases(capsys: pytest.CaptureFixture[str]) -> None:
    """A value that is there twice is written twice."""
    shared = {"labels": {"a": "b"}, "list": [1, 2]}
    emit({"first": shared, "second": shared, "third": [shared, shared]}, "yaml")
    out = capsys.readouterr().out
    assert "&" not in out
    assert "*" not in out
    assert yaml.safe_load(out)["third"] == [shared, shared]


def test_a_cell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A message cannot begin a line of its own in a table."""
    columns(("NAME", "WHY"), [("a", "first\nb   forged\x1b[31m")])
    assert capsys.readouterr().out.splitlines() == ["NAME   WHY", "a      first\\nb   forged\\u001b[31m"]
    assert one_line("a\tb") == "a b"


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("raw", [io.BytesIO(), Terminal()])
def test_a_filtered_stream(raw: io.BytesIO) -> None:
    """Everything goes through the filter; of our own escapes colours pass to a terminal."""
    stream = PrintableStream(io.TextIOWrapper(raw, "utf-8"))
    print("\x1b[31mred\x1b[0m \x1b[8mhidden\x1b]0;t\x07", file=stream)
    shown = raw.getvalue().decode()
    red = "\x1b[31mred\x1b[0m" if raw.isatty() else "\\u001b[31mred\\u001b[0m"
    assert shown == f"{red} \\u001b[8mhidden\\u001b]0;t\\u0007\n"


@pytest.mark.parametrize("form", ["console", "json"])
def test_logs_are_harmless(capsys: pytest.CaptureFixture[str], form: logs.LogFormat) -> None:
    """Events, values and traces alike."""
    logging.getLogger().handlers[
        :
    ] = []  # pytest's own would report halves of characters, which its workers cannot send
    logs.configure("info", form)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logs.get_logger("x").exception("failed", name=HOSTILE)
    logging.getLogger("library").warning("said %s", HOSTILE)
    shown = capsys.readouterr().err
    assert "evil" in shown
    for character in "\x9b\x07\r\u202e\x00\u2028":
        assert character not in shown
    assert "\x1b[2J" not in shown


def test_what_kubectl_would_read_as_a_number_is_written_in_quotes() -> None:
    """Each text that Go reads otherwise comes back as the text that it was, as a key and as a value."""
    texts = [answer.text[3:-1] for answer in go_answers("c10", "scalars") if len(answer.text) < 200]
    documents = [{"key": {text: text}} for text in texts]
    assert values(yaml_stream(documents)) == documents
