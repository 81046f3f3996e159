"""The text of a file's bytes: nothing is lost on the way to a client and back."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pvbus.core.errors import PermanentError
from pvbus.core.variants.inject.rebasing import rebase
from pvbus.core.yaml import editor
from pvbus.core.yaml.rawtext import bytes_of, no_text, text_of


@given(st.binary() | st.text().map(str.encode))
@example(b"\xef\xbb\xbfa: \xfc\r\n\0")
@example("\U0010ff80\U0010ffff\ufffd".encode())
@example("\U0010ffc3".encode()[:3] + "ü".encode() + b"\xfc")
def test_any_bytes_come_back_from_their_text(data: bytes) -> None:
    """Also through JSON, as UTF-8 and with escapes; and only UTF-8 is plain text."""
    text = text_of(data)
    assert bytes_of(text) == data
    assert bytes_of(json.loads(json.dumps(text))) == data
    assert bytes_of(text.encode().decode()) == data
    if not no_text(text):
        assert text.encode() == data


def test_half_a_surrogate_pair_is_a_question_mark() -> None:
    assert bytes_of("a\ud800\udcfc") == b"a??"


def test_a_byte_that_is_not_utf8_is_named_with_its_line() -> None:
    text = text_of("a: ü\nb: ".encode() + b"\xfc\n")
    assert no_text(text) == "line 2: the byte 0xFC is not UTF-8: save the file as UTF-8"
    with pytest.raises(editor.YamlError, match="line 2: the byte 0xFC"):
        editor.parse(text)


def test_what_another_server_shows_of_bytes_is_not_written_by_a_rebase() -> None:
    """Porch's server shows U+FFFD for each byte: what they were cannot be known."""
    kptfile = {"Kptfile": "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: a\n"}
    lock = {"git": {"repo": "r", "directory": "d", "ref": "d/v2", "commit": "c"}}
    with pytest.raises(PermanentError, match=r"logo\.png is no text"):
        rebase("draft", kptfile, kptfile, {**kptfile, "logo.png": "\x89PNG\ufffd"}, lock, deployment=False)
