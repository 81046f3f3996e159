"""Certificates of our servers: what is wrong with a file is said in words, and a renewed one is used."""

import asyncio
import os
import shutil
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from pvbus.adapters.servingtls import BYTES_MAX, ServingFiles, ServingTls, read_serving
from pvbus.core.errors import UsageError
from tests.tools.certificate import make_pair
from tests.unit.adapters.http_servers import issue

DAY = timedelta(days=1)


def pair(folder: Path, password: bytes | None = None) -> ServingFiles:
    folder.mkdir()
    return ServingFiles(*make_pair(folder, password))


def test_a_pair_is_read_with_its_end(tmp_path: Path) -> None:
    files = pair(tmp_path / "a")
    serving = read_serving(files)
    assert serving.content == (files.certificate.read_bytes(), files.key.read_bytes())
    assert datetime.now(UTC) < serving.not_after < datetime.now(UTC) + 2 * DAY


def test_of_a_chain_the_first_certificate_is_the_servers_own(tmp_path: Path) -> None:
    authority = issue("authority")
    own = issue("own", authority)
    files = ServingFiles(*own.write(tmp_path, "own"))
    files.certificate.write_text(own.certificate_pem + authority.certificate_pem)
    assert read_serving(files).not_after == own.certificate.not_valid_after_utc
    files.certificate.write_text(authority.certificate_pem + own.certificate_pem)
    with pytest.raises(UsageError, match="is not the key of the certificate"):
        read_serving(files)


def missing(files: ServingFiles) -> None:
    files.key.unlink()


def folder(files: ServingFiles) -> None:
    files.certificate.unlink()
    files.certificate.mkdir()


def pipe(files: ServingFiles) -> None:
    files.certificate.unlink()
    os.mkfifo(files.certificate)


def swapped(files: ServingFiles) -> None:
    certificate, key = files.certificate.read_bytes(), files.key.read_bytes()
    files.certificate.write_bytes(key)
    files.key.write_bytes(certificate)


def garbage(files: ServingFiles) -> None:
    files.certificate.write_bytes(os.urandom(500))


def cut(files: ServingFiles) -> None:
    files.key.write_bytes(files.key.read_bytes()[:100])


def huge(files: ServingFiles) -> None:
    files.certificate.write_bytes(b"x" * (BYTES_MAX + 1))


def empty(files: ServingFiles) -> None:
    files.certificate.write_bytes(b"")


def of_another(files: ServingFiles) -> None:
    shutil.copy(pair(files.key.parent / "other").key, files.key)


def encrypted(files: ServingFiles) -> None:
    make_pair(files.key.parent, b"a password")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (missing, r"key\.pem: no such file"),
        (folder, r"certificate\.pem: is a folder, not a file"),
        (pipe, r"certificate\.pem: is a named pipe"),
        (swapped, r"certificate\.pem: has no certificate in PEM"),
        (garbage, r"certificate\.pem: has no certificate in PEM"),
        (empty, r"certificate\.pem: has no certificate in PEM"),
        (cut, r"key\.pem: has no private key in PEM"),
        (huge, r"certificate\.pem: has more than 1000000 bytes"),
        (of_another, r"key\.pem: is not the key of the certificate in .*certificate\.pem"),
        (encrypted, r"key\.pem: is encrypted: give a key without a password"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, spoil: Callable[[ServingFiles], None], words: str) -> None:
    """With the file; nothing waits, and nobody is asked for a password."""
    files = pair(tmp_path / "a")
    spoil(files)
    with pytest.raises(UsageError, match=words):
        ServingTls(files)


@pytest.mark.parametrize(
    ("days", "words"), [(2, r"expired at 20\d\d-.* UTC: renew it"), (-2, r"is valid from .*check the clock")]
)
def test_a_certificate_of_another_time_is_refused(tmp_path: Path, days: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_serving(pair(tmp_path / "a"), now=datetime.now(UTC) + days * DAY)


async def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(tmp_path: Path) -> None:
    """New connections get it, also of a client that names no host; nothing is restarted."""
    first, second = pair(tmp_path / "first"), pair(tmp_path / "second")
    files = ServingFiles(tmp_path / "certificate", tmp_path / "key")
    clock = [0.0]

    def use(source: ServingFiles) -> int:
        for origin, target in zip(source, files, strict=True):
            shutil.copy(origin, target.with_suffix(".new"))
            target.with_suffix(".new").replace(target)
        clock[0] += 60
        return x509.load_pem_x509_certificate(source.certificate.read_bytes()).serial_number

    certificate = use(first)
    tls = ServingTls(files, monotonic=lambda: clock[0])
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", ssl=tls.context)

    async def shown(host: str | None) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return x509.load_der_x509_certificate(der).serial_number

    async with server:
        assert await shown("fleet.example") == certificate
        two = use(second)
        assert [await shown("fleet.example"), await shown("127.0.0.1")] == [two, two]
        use(ServingFiles(first.certificate, second.key))
        assert await shown("fleet.example") == two
        files.key.unlink()
        clock[0] += 60
        assert await shown("127.0.0.1") == two
        use(first)
        assert await shown("127.0.0.1") == certificate
