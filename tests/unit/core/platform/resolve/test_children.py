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
        ({"version": "v1.0.0", "digest": "sha256:a"}, True, {"package": f"{SOURCE}:v1.0.0"}),
        ({"digest": "sha256:a"}, True, {"package": f"{SOURCE}@sha256:a"}),
        ({}, True, {}),
        ({"template": {"package": "former"}}, True, {"package": "former"}),
    ],
    ids=["made", "moved", "moved to a digest", "there, and not known yet", "there, and waiting"],
)
def test_an_install_follows_its_version_once_that_is_known(
    row: dict[str, Any], is_there: bool, expected: dict[str, Any]
) -> None:
    """What is there is left as it is until then: its lock may have been lost."""
    locked = LockRow(status="waiting", package=SOURCE, **row)
    assert template_of(locked, OWNER, None, is_there=is_there) == expected
