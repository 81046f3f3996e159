"""Until when kube-apiserver can know the package store, as the doctor sees it."""

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pvbus.cli.doctor.cluster import authority_of
from pvbus.install.monitoring import EXPIRY_DAYS_MIN
from tests.tools.authority import VALID_DAYS, Authority

NOW = datetime.now(UTC)


def spec(**more: Any) -> dict[str, Any]:
    return {"spec": {"service": {"name": "a", "namespace": "b"}, **more}}


@pytest.mark.parametrize(
    ("days", "state"),
    [
        (0, "ok"),
        (VALID_DAYS - EXPIRY_DAYS_MIN - 1, "ok"),
        (VALID_DAYS - EXPIRY_DAYS_MIN + 1, "wrong"),
        (99, "wrong"),
    ],
)
def test_an_authority_that_expires_soon_is_wrong(tmp_path: Path, days: int, state: str) -> None:
    bundle = base64.b64encode(Authority(tmp_path, "ca").certificate.read_bytes()).decode()
    found = authority_of(spec(caBundle=bundle), NOW + timedelta(days=days))
    assert found is not None
    assert (found.state, bool(found.action)) == (state, state == "wrong")


def test_no_authority_is_wrong_unless_nobody_looks() -> None:
    found = authority_of(spec(), NOW)
    assert found is not None
    assert found.state == "wrong"
    assert authority_of(spec(insecureSkipTLSVerify=True), NOW) is None
    assert authority_of({}, NOW) is None
    assert authority_of({"spec": {}}, NOW) is None  # served by kube-apiserver itself
