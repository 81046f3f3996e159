"""Protects installs that were created for others from edits.

`pvbus.core.platform.establish.installs` reports those that happened nevertheless.
"""

import re
from collections.abc import Mapping
from typing import Any

from pvbus.core.platform.packaging.reading import OWNER

WRITERS = re.compile(
    r"system:apiserver|pvbus-admin"
    r"|system:serviceaccount:pvbus-system:pvbus-establish"
    r"|system:serviceaccount:kapp-controller:kapp-controller-sa"
    r"|system:serviceaccount:kube-system:(generic-garbage-collector|namespace-controller)"
)
"""Who may change such an install on the embedded API server: establish and kapp-controller, in the namespaces
that their installations have by default, and Kubernetes' own controllers. Another namespace must not count:
whoever may make accounts in one could take the name. The holder of the server's own token may do everything:
services that are started by hand, or by compose, have it.
"""


def edit_problem(old: Mapping[str, Any] | None, new: Mapping[str, Any], user: str) -> str:
    """Return why a write of a PackageInstall is refused, "" if it is not. old: None for a new object.

    Who removes the annotation takes the install over, in a write of its own: then it is a user's.
    """
    if WRITERS.fullmatch(user):
        return ""
    before, after = _owner(old or {}), _owner(new)
    if after and after != before:
        return f"the annotation {OWNER} is set by pvbus only: remove it"
    if old is not None and before and old.get("spec") != new.get("spec"):
        return (
            f"it was created for {before}, and only pvbus changes its spec: change what {before} says of its "
            f"dependencies, or remove the annotation {OWNER} first, to take it over"
        )
    return ""


def _owner(obj: Mapping[str, Any]) -> str:
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(OWNER, ""))
