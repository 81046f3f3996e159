"""The notes of changes: what survives a process, and how long a change may still come."""

import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pvbus.controlplane.packages.journal import LATE_PUSH_SECONDS, Journal, Note

NOTE = Note("c0ffee", {"labels": {"a": "1"}}, "Proposed", "7")


def test_a_note_outlives_the_process_until_it_is_dropped(tmp_path: Path) -> None:
    Journal(tmp_path).write("edge.app.ws", NOTE)
    again = Journal(tmp_path)
    assert (again.names(), again.read("edge.app.ws")) == (["edge.app.ws"], NOTE)
    again.drop("edge.app.ws")
    assert (again.names(), again.read("edge.app.ws")) == ([], None)
    assert Journal(tmp_path).names() == []


def test_a_damaged_note_is_none_and_is_set_aside(tmp_path: Path) -> None:
    """It has metadata that may be nowhere else: a person is told, once."""
    Journal(tmp_path).write("edge.app.ws", NOTE)
    (tmp_path / "edge.app.ws.json").write_bytes(b'["c0ff')
    with capture_logs() as logs:
        assert Journal(tmp_path).read("edge.app.ws") is None
    assert [entry["log_level"] for entry in logs] == ["error"]
    assert logs[0]["file"] == str(tmp_path / "edge.app.ws.damaged")
    assert (tmp_path / "edge.app.ws.damaged").read_bytes() == b'["c0ff'
    assert Journal(tmp_path).names() == []


def test_what_a_note_has_not_is_gone_after_the_change() -> None:
    before = {"name": "n", "uid": "u", "labels": {"b": "2"}, "annotations": {"c": "3"}, "finalizers": ["f"]}
    assert NOTE.applied_to(before) == {"name": "n", "uid": "u", "labels": {"a": "1"}}


def test_an_interrupted_change_is_unknown_until_the_remote_was_read_and_may_come_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    Journal(tmp_path).write("before", NOTE)
    notes = Journal(tmp_path)
    notes.write("lost", NOTE)
    notes.write("fine", NOTE)
    notes.interrupt("lost")
    notes.interrupt("without a note")
    assert notes.interrupted() == ["before", "lost"]
    assert [notes.is_unknown(name) for name in ("before", "lost", "fine")] == [True, True, False]
    notes.remote_read()
    assert notes.interrupted() == ["before", "lost"]
    assert not any(notes.is_unknown(name) for name in ("before", "lost"))
    now += LATE_PUSH_SECONDS
    notes.remote_read()
    assert notes.names() == ["before", "fine", "lost"]
    now += 1
    notes.remote_read()
    assert (notes.names(), notes.interrupted()) == (["fine"], [])
