"""Kubernetes' error messages: metav1.Status bodies, and the errors that are common to all kinds.

Source of the texts: k8s.io/apimachinery/pkg/api/errors and pkg/util/validation/field.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.nodes import PROBLEMS_MAX, SHOWN_MAX, FieldError


class Subject(NamedTuple):
    """The object of an error.

    group: the API group
    resource: the plural
    kind: the kind
    name: the name, "" for a collection
    """

    group: str
    resource: str
    kind: str
    name: str = ""

    @property
    def qualified(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource

    def details(self, **more: Any) -> dict[str, Any]:
        parts = {"name": self.name[:SHOWN_MAX], "group": self.group, "kind": self.resource, **more}
        return {key: value for key, value in parts.items() if value}


def body(error: StatusError) -> dict[str, Any]:
    """Return the metav1.Status of an error."""
    details = dict(error.details or {})
    if error.causes:
        details["causes"] = [
            {key: value for key, value in (("reason", r), ("message", m), ("field", f)) if value}
            for f, r, m in error.causes
        ]
    if error.retry_after_seconds is not None:
        details["retryAfterSeconds"] = error.retry_after_seconds
    status: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
    }
    if error.reason:
        status["reason"] = error.reason
    if details or error.details is not None:
        status["details"] = details
    status["code"] = error.code
    return status


def success(subject: Subject, uid: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": subject.details(uid=uid),
    }


def not_found(subject: Subject) -> StatusError:
    text = f'{subject.qualified} "{subject.name}" not found'
    return StatusError(404, "NotFound", text, details=subject.details())


def no_such_path() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def already_exists(subject: Subject, *, is_terminating: bool = False) -> StatusError:
    text = f'{subject.qualified} "{subject.name}" already exists'
    if is_terminating:
        text = f"object is being deleted: {text}"
    return StatusError(409, "AlreadyExists", text, details=subject.details())


def conflict(subject: Subject, why: str) -> StatusError:
    text = f'Operation cannot be fulfilled on {subject.qualified} "{subject.name}": {why}'
    return StatusError(409, "Conflict", text, details=subject.details())


def stale(subject: Subject) -> StatusError:
    return conflict(
        subject,
        "the object has been modified; please apply your changes to the latest version and try again",
    )


def forbidden(subject: Subject, why: str, *, causes: tuple[tuple[str, str, str], ...] = ()) -> StatusError:
    text = f'{subject.qualified} "{subject.name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", text, causes=causes, details=subject.details())


def invalid(subject: Subject, problems: Sequence[FieldError]) -> StatusError:
    """Return 422 with the problems in order, without duplicates, up to a maximum number."""
    unique = list(dict.fromkeys(problems))
    more = len(unique) - PROBLEMS_MAX
    del unique[PROBLEMS_MAX:]
    texts = [f"{path}: {message}" if path else message for path, _, message in unique]
    if more > 0:
        texts.append("and more")
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    kind = f"{subject.kind}.{subject.group}" if subject.group else subject.kind
    details = subject.details()
    details["kind"] = subject.kind
    return StatusError(
        422,
        "Invalid",
        f'{kind} "{subject.name[:SHOWN_MAX]}" is invalid: {listed}',
        causes=tuple(unique),
        details=details,
    )


def invalid_option(kind: str, *problems: FieldError) -> StatusError:
    """Refuse (422) options of a request. kind: the kind of the options, such as ListOptions."""
    return invalid(Subject("meta.k8s.io", "", kind), problems)


def bad_request(text: str) -> StatusError:
    return StatusError(400, "BadRequest", text)


def not_allowed() -> StatusError:
    text = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", text, details={})


def unsupported_media_type(text: str) -> StatusError:
    return StatusError(415, "UnsupportedMediaType", text)


def too_large(limit: int) -> StatusError:
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit} bytes")


def expired(text: str) -> StatusError:
    return StatusError(410, "Expired", text)


def invalid_value(path: str, value: Any, message: str) -> FieldError:
    text = f'"{value[:SHOWN_MAX]}"' if isinstance(value, str) else str(value)
    return FieldError(path, "FieldValueInvalid", f"Invalid value: {text}: {message}")
