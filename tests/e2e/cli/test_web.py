"""The page's address: of `pvbus up`, on the first day and later, and of `pvbus run web`."""

import http.cookiejar
import json
import re
import signal
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pvbus.cli.main import run
from tests.e2e.cli.command import pvbus, running
from tests.tools.bustables import write_tables
from tests.tools.certificate import make_pair
from tests.tools.fleetrows import fleet


def fleet_of(url: str) -> dict[str, Any]:
    """Sign in as a browser does, and return the fleet once the bus is read."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    opener.open(url, timeout=30).close()
    base = url.partition("/?")[0]
    while True:
        with opener.open(f"{base}/api/events", timeout=30) as events:
            line = next(line for line in events if line.startswith(b"data: "))
        if json.loads(line.removeprefix(b"data: "))["status"]["restored"] == 1.0:
            break
    with opener.open(f"{base}/api/fleet", timeout=30) as answer:
        document: dict[str, Any] = json.loads(answer.read())
    return document


def test_the_address_of_a_folder_stays(tmp_path: Path) -> None:
    """After kill -9, too. While another program has the port, it is another one with the same token."""

    def address() -> str:
        with running("up", cwd=tmp_path) as up:
            url = up.wait_for("web page: ").partition("web page: ")[2]
            up.wait_for("ready")  # the bus has its topics
            assert fleet_of(url)["variants"] == []
            up.end(signal.SIGKILL)
        return url

    first = address()
    assert (tmp_path / ".pvbus" / "web.json").stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", first)
    assert address() == first
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(re.findall(r":(\d+)/", first)[0])))
        other.listen()
        elsewhere = address()
    assert elsewhere != first
    assert elsewhere.partition("token=")[2] == first.partition("token=")[2]


def test_no_page_where_none_is_wanted(tmp_path: Path) -> None:
    """A script that waits for the end needs none, and --no-web has none."""
    done = pvbus("up", "--once", cwd=tmp_path)
    assert done.code == 0
    assert "web page" not in done.out
    with running("up", "--no-web", cwd=tmp_path) as up:
        up.wait_for("sets 0/0 ready")
        assert "web page" not in up.output
    assert not (tmp_path / ".pvbus" / "web.json").exists()


def test_a_process_of_its_own(tmp_path: Path) -> None:
    """`run web` reads the bus of others and ends at SIGTERM; its token can be in a file."""
    write_tables(tmp_path / "bus.db", fleet(20))
    (tmp_path / "token").write_text("a-token-of-the-test-0123456789\n")
    bus = ("--bus", f"sqlite:{tmp_path}/bus.db")
    with running("run", "web", *bus, cwd=tmp_path, PVBUS_WEB_TOKEN_FILE="token") as server:
        url = server.wait_for("web page: ").partition("web page: ")[2]
        assert url.endswith("/?token=a-token-of-the-test-0123456789")
        assert len(fleet_of(url)["variants"]) == 20
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url.partition("?")[0], timeout=10)
        assert server.end() == 0


def test_a_page_with_a_certificate(tmp_path: Path) -> None:
    """`run web` serves TLS to a client that trusts it, and says so in the address."""
    write_tables(tmp_path / "bus.db", fleet(2))
    certificate, key = make_pair(tmp_path)
    files = {"PVBUS_WEB_CERTIFICATE_FILE": str(certificate), "PVBUS_WEB_KEY_FILE": str(key)}
    with running("run", "web", "--bus", f"sqlite:{tmp_path}/bus.db", cwd=tmp_path, **files) as server:
        url = server.wait_for("web page: ").partition("web page: ")[2]
        assert url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(certificate))
        with urllib.request.urlopen(url, timeout=10, context=context) as answer:
            assert "; Secure;" in answer.headers["Set-Cookie"] + ";"
        assert server.end() == 0


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["web", "render"], {}, "web runs alone"),
        (["web"], {"PVBUS_WEB_MODE": "write"}, "PVBUS_WEB_MODE"),
        (["web", "--health-port", "1"], {}, "omit --health-port"),
        (["web"], {}, "no bus at"),
        (["web"], {"PVBUS_WEB_PORT": "99999"}, "PVBUS_WEB_PORT"),
        (["web"], {"PVBUS_WEB_PROT": "1"}, "did you mean PVBUS_WEB_PORT?"),
        (["web"], {"PVBUS_WEB_TOKEN_FILE": "none"}, "PVBUS_WEB_TOKEN_FILE: cannot read none"),
        (["web"], {"PVBUS_WEB_TOKEN_FILE": "short"}, "at least 16 printable ASCII characters"),
        (["web", "--bus", "sqlite:bus.db"], {"PVBUS_WEB_HOST": "0.0.0.0"}, "PVBUS_WEB_NAMES"),
        (["web", "--bus", "sqlite:bus.db"], {"PVBUS_WEB_KEY_FILE": "key"}, "belong together: set both"),
        (
            ["web", "--bus", "sqlite:bus.db"],
            {"PVBUS_WEB_CERTIFICATE_FILE": "short", "PVBUS_WEB_KEY_FILE": "short"},
            "PVBUS_WEB_CERTIFICATE_FILE, PVBUS_WEB_KEY_FILE: short: has no certificate in PEM",
        ),
        (["web", "--bus", "nonsense"], {}, "invalid bus URL"),
    ],
)
def test_mistakes_are_said(
    tmp_path: Path,
    arguments: list[str],
    variables: dict[str, str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each with what to do, and exit code 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("abc")
    write_tables(tmp_path / "bus.db", [])
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run(["run", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """A port that a setting names is not replaced by another one."""
    write_tables(tmp_path / "bus.db", [])
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        done = pvbus("run", "web", "--bus", "sqlite:bus.db", cwd=tmp_path, PVBUS_WEB_PORT=port)
    assert done.code == 1
    assert f"cannot bind port {port} on 127.0.0.1 for the web page" in done.err
    assert "PVBUS_WEB_PORT" in done.err
