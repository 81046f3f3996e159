"""The spec of an install that exists for others."""

from typing import Any

import pytest

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.packagerows import LockRow
from pvbus.core.platform.resolve.children import template_of

SOURCE = "xpkg.example.org/acme/network"
OWNER = Install(
    okey="pkg.crossplane.io/Configuration||cluster",
    family="crossplane",
    uid="u",
    generation=1,
    package="xpkg.example.org/acme/cluster",
    secrets=("crossplane-system/login",),
)


@pytest.mark.parametrize(
    ("row", "is_there", "expected"),
    [
        (
            {"version": "v1.0.0", "digest": "sha256:a"},
            False,
            {"package": f"{SOURCE}:v1.0.0", "packagePullSecrets": [{"name": "login"}]},
        ),
        (
            {"version": "v1.0.0", "digest": "sha256:a"},
            True,
            {"package": f"{SOURCE}:v1.0.0", "packagePullSecrets": [{"name": "login"}]},
        ),
        (
            {"digest": "sha256:a", "template": {"revisionHistoryLimit": 3, "packagePullSecrets": []}},
            True,
            {
                "package": f"{SOURCE}@sha256:a",
                "packagePullSecrets": [{"name": "login"}],
                "revisionHistoryLimit": 1,
            },
        ),
        ({}, True, {}),
        ({"template": {"package": "former"}}, True, {"package": "former"}),
    ],
    ids=[
        "made",
        "moved",
        "moved to a digest, and the owner has changed",
        "there, and not known yet",
        "there, and waiting",
    ],
)
def test_an_install_follows_its_version_once_that_is_known(
    row: dict[str, Any], is_there: bool, expected: dict[str, Any]
) -> None:
    """What is there is left as it is until then: its lock may have been lost."""
    locked = LockRow(status="waiting", package=SOURCE, **row)
    assert template_of(locked, OWNER, None, is_there=is_there) == expected


def test_what_is_not_known_of_an_owner_changes_nothing() -> None:
    """An owner that cannot be read may say the same as before; one that is created passes on what it got."""
    template = {"package": "x", "packagePullSecrets": [{"name": "login"}]}
    row = LockRow(status="locked", package=SOURCE, version="v1", digest="sha256:a", template=template)
    unread = LockRow(status="broken", package="acme/cluster")
    expected = {**template, "package": f"{SOURCE}:v1"}
    assert template_of(row, None, unread, is_there=True) == expected
    created = LockRow(status="locked", template={"package": "y", "packagePullPolicy": "Always"})
    assert template_of(row, None, created, is_there=True) == {
        "package": f"{SOURCE}:v1",
        "packagePullSecrets": [],
        "packagePullPolicy": "Always",
    }
