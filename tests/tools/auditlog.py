"""Reads the audit log of a kube-apiserver: who asked for what, and what was answered."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

READING = frozenset({"get", "list", "watch"})

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/healthz*", "/livez*", "/readyz*"]
- level: Metadata
"""


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    api_group: str = ""


class _Answer(msgspec.Struct, frozen=True):
    code: int = 0


class AuditEvent(msgspec.Struct, frozen=True, rename="camel"):
    """One answer of the API server."""

    verb: str
    stage: str
    user: _User
    user_agent: str = ""
    object_ref: _Object = _Object()
    response_status: _Answer = _Answer()

    @property
    def is_write(self) -> bool:
        return self.verb not in READING

    @property
    def is_accepted(self) -> bool:
        return self.response_status.code < 300

    @property
    def resource(self) -> str:
        """The resource, and its subresource if any, as RBAC writes them."""
        ref = self.object_ref
        return f"{ref.resource}/{ref.subresource}" if ref.subresource else ref.resource

    def __str__(self) -> str:
        ref = self.object_ref
        who, where = self.user.username, f"{ref.namespace}/{ref.name}"
        return f"{who}: {self.verb} {self.resource} {where}: {self.response_status.code}"


_event = msgspec.json.Decoder(AuditEvent)


class AuditLog:
    """The file that a kube-apiserver appends to. An answer is in it before its client has it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def end(self) -> int:
        """Return where the next event will be written."""
        return self.file.stat().st_size

    def read(self, since: int = 0) -> tuple[list[AuditEvent], int]:
        """Return the events written since then, and where the next one begins. since: where one began."""
        with self.file.open("rb") as log:
            log.seek(since)
            whole, newline, _ = log.read().rpartition(b"\n")  # the last line may not be complete yet
        return [_event.decode(line) for line in whole.splitlines()], since + len(whole) + len(newline)

    def events(self, since: int = 0) -> list[AuditEvent]:
        """Return the events written since then. since: a former `end()`."""
        return self.read(since)[0]

    def writes(self, user: str, since: int = 0) -> list[AuditEvent]:
        """Return the requests of a user that write, accepted or not."""
        return [event for event in self.events(since) if event.is_write and event.user.username == user]


def accepted(events: Iterable[AuditEvent]) -> list[AuditEvent]:
    """Return the requests that were not refused."""
    return [event for event in events if event.is_accepted]


def writes_of(user: str, events: Iterable[AuditEvent]) -> list[AuditEvent]:
    """Return the requests of a user that wrote, and were not refused."""
    return [event for event in accepted(events) if event.is_write and event.user.username == user]
