"""What a person may name as a manifest: everything but plain text of a sensible size is refused in words."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pvbus.adapters import manifests
from pvbus.adapters.kubernetes.connection import Connection
from pvbus.adapters.manifests import read_manifests
from pvbus.core.errors import UsageError
from pvbus.runtime.process.buses import open_bus
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.settings import ServiceConfig

CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 999))
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
OBJECT = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"


def text(content: str | bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "is a named pipe, not a file"),
        (bound_socket, "is a socket, not a file|cannot be read"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device, not a file"),
        (lambda path: path.symlink_to("/nonexistent"), "no such file"),
        (lambda path: path.symlink_to(path), "cannot be read"),
        (lambda path: None, "no such file"),
        (os.mkdir, "holds no .yaml"),
        (text(b"\xff\xfea\x00"), r"is not UTF-8 text \(at byte 0\)"),
        (text(b"a: \xe4"), r"is not UTF-8 text \(at byte 3\)"),
        (text("a: [" * 3000), "nested too deeply, more than 128 levels"),
        (text("a: " + "[" * 400 + "]" * 400), "nested too deeply, more than 128 levels"),
        (text(CHAIN), "nested too deeply, more than 128"),
        (text("a: &a [*a]"), "the value of &a contains itself"),
        (text(LAUGHS), "its aliases stand for more than"),
        (text("&a [x]: 1"), "not valid YAML: line 1: a key must be a text"),
        (text("a: !!python/object/apply:os.system [id]"), "has no apiVersion"),
        (text("a: .inf"), "not a number of JSON"),
        (text("null: a"), "the key null is null: write it in quotes"),
        (text("just text"), "is no object"),
        (text("apiVersion: v1\nkind: A\nmetadata: {name: a, labels: [a]}"),
         "metadata.labels is no mapping"),
        (text("apiVersion: v1\nkind: List\nitems: 3\n"), "has no metadata.name"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    """By its name, with what it is; alone and within a folder, and in a moment."""
    began = time.monotonic()
    path = tmp_path / "a.yaml"
    make(path)
    with pytest.raises(UsageError, match=words) as refused:
        read_manifests([path])
    assert str(path) in str(refused.value)
    if path.is_dir() or not os.path.lexists(path):
        return
    with pytest.raises(UsageError, match=words):
        read_manifests([tmp_path])
    assert time.monotonic() - began < 5


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    """100 MB are refused before anybody parses them."""
    path = tmp_path / "a.yaml"
    with path.open("wb") as stream:
        stream.truncate(100 << 20)
    began = time.monotonic()
    with pytest.raises(UsageError, match="has more than 32 MB: split it"):
        read_manifests([path])
    assert time.monotonic() - began < 2


def test_a_name_that_is_none(tmp_path: Path) -> None:
    """A zero byte cannot be in a name."""
    with pytest.raises(UsageError, match="cannot be read"):
        read_manifests([tmp_path / "a\0b"])


def test_aliases_and_keys_become_plain_json(tmp_path: Path) -> None:
    """As an API server gets them: nothing is shared, every key is text, bytes are decoded."""
    path = tmp_path / "a.yaml"
    path.write_text(OBJECT + "data: &d {2: two, yes: x, 1e3: x, b: !!binary aGk=}\nagain: *d\n")
    (found,) = read_manifests([path])
    assert found.object["data"] == {"2": "two", "true": "x", "1000": "x", "b": "hi"}
    assert found.object["again"] == found.object["data"]
    assert found.object["again"] is not found.object["data"]


def test_a_folder_may_hold_folders_of_such_names(tmp_path: Path) -> None:
    """Only files are read, in order, and those of other kinds are left alone."""
    (tmp_path / "b.yaml").mkdir()
    (tmp_path / "b.yaml" / "c.yaml").write_text(OBJECT)
    (tmp_path / "a.json").write_text('{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "j"}}')
    os.mkfifo(tmp_path / "pipe")
    assert [found.object["metadata"]["name"] for found in read_manifests([tmp_path])] == ["j", "a"]


def test_limits_are_what_the_message_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file of exactly the limit is read."""
    path = tmp_path / "a.yaml"
    path.write_text(OBJECT.ljust(1 << 20, "\n"))
    monkeypatch.setattr(manifests.read_text, "__kwdefaults__", {"bytes_max": 1 << 20})
    assert len(read_manifests([path])) == 1
    path.write_text(OBJECT.ljust((1 << 20) + 1, "\n"))
    with pytest.raises(UsageError, match="has more than 1 MB"):
        read_manifests([path])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "is a named pipe, not a file"),
        (os.mkdir, "is a folder, not a file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device, not a file"),
    ],
)
async def test_settings_kubeconfig_and_bus_are_files(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    """None of them is waited for, or read for ever."""
    path = tmp_path / "x"
    make(path)
    with pytest.raises(UsageError, match=words):
        load_config(ServiceConfig, {"PVBUS_CONFIG": str(path)})
    with pytest.raises(UsageError, match=words):
        await Connection.load(path)
    with pytest.raises(UsageError, match=words):
        await open_bus(ServiceConfig(bus=f"sqlite:{path}"))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a: [", b"[1]", b"3", b"{}"])
async def test_a_kubeconfig_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    """Whatever is in the file."""
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UsageError, match=f"no usable kubeconfig at {tmp_path}/x"):
        await Connection.load(tmp_path / "x")
