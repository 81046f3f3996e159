"""The data folder under attack: links, loose modes, other owners, damage, and a clock that was set back."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from pvbus.adapters import certificates as making
from pvbus.adapters.files import write_private
from pvbus.cli.datafolder import DataPaths, held
from pvbus.controlplane.apiserver import certificates
from pvbus.controlplane.apiserver.datafolder import DataFolder
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import injectable_row, rows_of
from pvbus.core.kernel.records import OBJECTS
from tests.e2e.cli.command import environment

SENTINEL = "s3ntinel"


@pytest.fixture(autouse=True)
def loose_umask() -> Iterator[None]:
    """The worst one: what depends on it shows."""
    former = os.umask(0)
    yield
    os.umask(former)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_mode & 0o777 for path in folder.rglob("*")}


def test_what_is_written_is_private(tmp_path: Path) -> None:
    """Token, keys, locks, port and prefix, whatever the umask."""
    paths = DataPaths(tmp_path / "data")
    paths.make()
    folder = DataFolder(paths.root)
    with held(paths):
        folder.open()
        folder.certificates("")
        folder.keep_port(1234)
        folder.write_kubeconfigs("https://127.0.0.1:1", authority=b"ca")
        paths.bus_prefix()
        folder.close()
    found = modes(tmp_path)
    assert {"data/kubeconfig", "data/lock", "data/apiserver/token", "data/apiserver/pki/server.key"} <= set(
        found
    )
    assert {name: mode for name, mode in found.items() if mode & 0o077} == {}


@pytest.mark.parametrize("name", ["kubeconfig", "bus-prefix", "apiserver/token", "apiserver/port", ".probe"])
def test_a_planted_link_is_replaced_and_not_followed(tmp_path: Path, name: str) -> None:
    """Nothing is written where it leads; nor through one that has the name of a file in the making."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    victim.chmod(0o644)
    location = tmp_path / "data" / name
    location.parent.mkdir(parents=True)
    location.symlink_to(victim)
    location.with_name(f".{location.name}.{os.getpid()}.new").symlink_to(victim)
    write_private(location, b"ours")
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("mine", 0o644)
    assert (location.is_symlink(), location.read_text()) == (False, "ours")
    assert os.listdir(location.parent) == [location.name]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/nonexistent/x")])
def test_a_lock_that_is_no_file_is_an_error_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Of both processes; a pipe is not waited for."""
    paths = DataPaths(tmp_path)
    (tmp_path / "apiserver").mkdir()
    for lock, enter in (
        (paths.lock, held(paths).__enter__),
        (tmp_path / "apiserver" / "lock", DataFolder(tmp_path).open),
    ):
        make(lock)
        if lock.is_fifo():
            continue  # a lock can be had on a pipe, too
        with pytest.raises(PermanentError, match="cannot be used"):
            enter()


@pytest.mark.parametrize(
    ("root", "words"),
    [
        (Path("/proc/nothing"), "nothing can be written to the data folder"),
        (Path("/etc/passwd"), "is a file: choose"),
        (Path("/etc/passwd/below"), "nothing can be written to the data folder"),
    ],
)
def test_a_folder_that_cannot_be(root: Path, words: str) -> None:
    """Read-only, a file, below a file: what and what to do."""
    with pytest.raises(PermanentError, match=words) as refused:
        DataPaths(root).make()
    assert "--data" in str(refused.value)


def test_two_owners(tmp_path: Path) -> None:
    """The second one is refused with the process that has it; when that is gone, it gets the folder."""
    command = (
        "import sys, time; from pathlib import Path; from pvbus.cli.datafolder import DataPaths, held\n"
        "with held(DataPaths(Path(sys.argv[1]))):\n  print('held', flush=True)\n  time.sleep(60)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", command, str(tmp_path)], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    with pytest.raises(PermanentError, match=rf"in use by another pvbus \(process {owner.pid}\)"):
        held(DataPaths(tmp_path)).__enter__()
    owner.kill()
    owner.wait()
    owner.stdout.close()
    with held(DataPaths(tmp_path)):
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_a_clock_that_was_set_back_gets_certificates_of_its_time(tmp_path: Path) -> None:
    """Those made later are not valid yet: no client would take them."""
    certificates.ensure(tmp_path)
    first = (tmp_path / "server.crt").read_bytes()
    certificates.ensure(tmp_path)
    assert (tmp_path / "server.crt").read_bytes() == first
    made = x509.load_pem_x509_certificate(first)
    assert made.not_valid_before_utc < datetime.now(UTC) - timedelta(hours=2), "a jump while the server runs"
    now = datetime.now(UTC) - timedelta(days=30)

    class Past(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return now

    with pytest.MonkeyPatch.context() as patch:
        for module in (certificates, making):
            patch.setattr(module, "datetime", Past)
        certificates.ensure(tmp_path)
    made = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    assert made.not_valid_before_utc <= now <= made.not_valid_after_utc


@pytest.mark.parametrize("content", [b"\xff", b"99999999", b"-1", b""])
def test_a_damaged_port_is_none(tmp_path: Path, content: bytes) -> None:
    """A free one is taken."""
    folder = DataFolder(tmp_path)
    folder.port_file.parent.mkdir()
    folder.port_file.write_bytes(content)
    assert folder.kept_port() == 0


def test_no_content_of_a_secret_becomes_a_row() -> None:
    """Neither as an object, with what kubectl noted of it, nor as content that somebody asked for."""
    kind = Kind("", "Secret")
    last = f'{{"stringData": {{"password": "{SENTINEL}"}}}}'
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": last, "mine": "x"}
    obj = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "a", "namespace": "default", "annotations": annotations},
        "data": {"password": SENTINEL},
        "stringData": {"password": SENTINEL},
    }
    rows = [*rows_of(kind, obj, (OBJECTS,)), injectable_row(kind, "default", "a", obj)]
    assert len(rows) == 2
    values = [row.value or b"" for row in rows]
    assert b'"mine":"x"' in values[0]
    assert not any(SENTINEL.encode() in value for value in values)
