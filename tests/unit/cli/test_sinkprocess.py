"""The settings of the sink: every problem is named at the start, all at once."""

from pathlib import Path

import pytest

from pvbus.cli.sinkprocess import receiver_of
from pvbus.core.errors import UsageError
from pvbus.runtime.process.settings import SinkConfig
from tests.tools.certificate import make_certificate


@pytest.mark.parametrize(
    "url",
    [
        "receiver.example/events",
        "ftp://a/b",
        "https://",
        "https://a:b/c",
        "https://a/b#c",
        "https://a:0/",
        "http://[::1/",
        "https://a/b c",
        "https://a/\n",
    ],
)
def test_an_address_that_is_none(url: str) -> None:
    """With an example of one."""
    with pytest.raises(UsageError, match=r"is not an http or https URL, for example https://"):
        receiver_of(SinkConfig(sink_url=url))


def test_a_missing_address_and_a_login() -> None:
    """Logs would show the latter, and the message does not."""
    with pytest.raises(UsageError, match="PVBUS_SINK_URL is not set"):
        receiver_of(SinkConfig())
    with pytest.raises(UsageError, match="has a login") as raised:
        receiver_of(SinkConfig(sink_url="https://user:secret@a/b"))
    assert "secret" not in str(raised.value)


def test_a_token_needs_encryption(tmp_path: Path) -> None:
    """A receiver on this machine takes one without."""
    token = tmp_path / "token"
    token.write_text("abc\n")
    for url in ("https://a/", "http://localhost:8080/", "http://127.0.0.1/", "http://[::1]:80/"):
        receiver_of(SinkConfig(sink_url=url, sink_token_file=str(token)))
    with pytest.raises(UsageError, match="PVBUS_SINK_TOKEN_FILE needs an https URL"):
        receiver_of(SinkConfig(sink_url="http://a/", sink_token_file=str(token)))


@pytest.mark.parametrize("text", ["", " \n", "two words", "line\nline", "\N{EM DASH}", "a\tb"])
def test_files_without_a_token(tmp_path: Path, text: str) -> None:
    """A header cannot carry them."""
    token = tmp_path / "token"
    token.write_text(text)
    with pytest.raises(UsageError, match="must have one token of printable ASCII"):
        receiver_of(SinkConfig(sink_url="https://a/", sink_token_file=str(token)))


def test_certificates(tmp_path: Path) -> None:
    """A file that is no PEM, one that is missing, and one that plain HTTP has no use for."""
    _, authority = make_certificate(tmp_path)
    receiver_of(SinkConfig(sink_url="https://a/", sink_ca_file=str(authority)))
    (tmp_path / "junk").write_text("junk")
    for name, words in (("junk", "it has no PEM certificates"), ("missing", "No such file")):
        with pytest.raises(UsageError, match=words):
            receiver_of(SinkConfig(sink_url="https://a/", sink_ca_file=str(tmp_path / name)))
    with pytest.raises(UsageError, match="PVBUS_SINK_CA_FILE needs an https URL"):
        receiver_of(SinkConfig(sink_url="http://a/", sink_ca_file=str(authority)))
