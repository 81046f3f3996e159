"""Answers of an API server become the project's error classes, by one table."""

import json

import pytest

from pvbus.adapters.kubernetes.errors import error_of
from pvbus.core.errors import AlreadyExistsError, ConflictError, PermanentError, RejectedError, TransientError
from pvbus.ports.cluster import GoneError

STALE = "the object has been modified; please apply your changes to the latest version and try again"


@pytest.mark.parametrize(
    ("code", "reason", "message", "method", "expected", "why"),
    [
        (409, "AlreadyExists", "x exists", "POST", AlreadyExistsError, "the name is taken"),
        (409, "Conflict", STALE, "PUT", ConflictError, "our view was stale"),
        (404, "NotFound", "x not found", "PUT", ConflictError, "what we update vanished"),
        (404, "NotFound", "x not found", "PATCH", ConflictError, "what we patch vanished"),
        (404, "NotFound", "namespace not found", "POST", PermanentError, "its namespace is missing"),
        (410, "Expired", "too old", "GET", GoneError, "list again"),
        (401, "Unauthorized", "no", "GET", RejectedError, "a token may be renewed"),
        (429, "TooManyRequests", "slow", "PUT", TransientError, "later"),
        (403, "Forbidden", "no", "PUT", PermanentError, "rights do not come by themselves"),
        (422, "Invalid", "spec.x", "POST", PermanentError, "the same body stays invalid"),
        (500, "InternalError", f"wrapped: {STALE}", "PUT", ConflictError, "Porch wraps conflicts in 500"),
        (500, "InternalError", "workspaceNames must be unique; x", "POST", ConflictError, "decide again"),
        (500, "InternalError", "package must be Draft: cannot update a package revision with lifecycle value",
         "PUT", PermanentError, "a business rule of Porch"),
        (500, "InternalError", "etcd leader changed", "PUT", TransientError, "the server's trouble"),
        (501, "NotImplemented", "upgrade", "POST", PermanentError, "asking again does not build it"),
        (503, "ServiceUnavailable", "starting", "GET", TransientError, "later"),
    ],
)  # fmt: skip
def test_error_classes(
    code: int, reason: str, message: str, method: str, expected: type[Exception], why: str
) -> None:
    """Each row: an answer is of this class, for this reason."""
    body = json.dumps({"kind": "Status", "reason": reason, "message": message}).encode()
    assert type(error_of(code, body, method=method)) is expected, why


def test_a_package_that_exists_is_no_reason_to_wait() -> None:
    """Porch's sentence contains "already exists", which otherwise means that somebody was faster."""
    message = (
        '`clone` cannot create a new revision for package "app" that already exists in repo "edge"; '
        "make subsequent revisions using `copy`"
    )
    body = json.dumps({"kind": "Status", "reason": "InternalError", "message": message}).encode()
    error = error_of(500, body, method="POST")
    assert isinstance(error, PermanentError)
    assert error.reason == "PackageExists"


def test_retry_after_is_kept() -> None:
    """429 carries how long to wait."""
    error = error_of(429, b"{}", method="GET", retry_after="7")
    assert isinstance(error, TransientError)
    assert error.retry_after_seconds == 7


def test_a_body_that_is_no_status_is_quoted() -> None:
    """A proxy's HTML page still gives an error with its text."""
    assert "bad gateway" in str(error_of(502, b"<html>bad gateway</html>", method="GET"))
