"""The Deployments that run packages, as ingest mirrors them: their health is known without reading them."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.core.kernel.keys import okey
from pvbus.core.kernel.packagekinds import DEPLOYMENT
from pvbus.core.platform.packaging.conditions import Answer
from pvbus.core.platform.packaging.statuses import Runtime

SILENT = "its Deployment does not say whether it is available"


class _Availability(NamedTuple):
    """What a Deployment says. owner: okey of the revision that it runs."""

    owner: str
    health: Answer
    message: str


class Deployments:
    """What each says, by its okey.

    is_listed: whether ingest has all of them, so that nobody needs to look whether one has changed
    """

    def __init__(self) -> None:
        self.is_listed = False
        self._seen: dict[str, _Availability] = {}

    def observe(self, key: str, obj: Mapping[str, Any] | None) -> str:
        """Apply a Deployment's row, None for one that is gone; return the okey of its revision if that says
        something else now, else ""."""
        before, after = self._seen.pop(key, None), None
        if obj is not None:
            owner = obj["metadata"]["ownerReferences"][0]
            group = owner["apiVersion"].partition("/")[0]
            after = _Availability(okey(group, owner["kind"], "", owner["name"]), *health_of(obj))
            self._seen[key] = after
        known = after or before
        return known.owner if known is not None and before != after else ""

    def current(self, runtime: Runtime | None, revision: str, namespace: str) -> Runtime | None:
        """Return the state of a revision's runtime now. runtime: the one at the last comparison"""
        seen = self._seen.get(okey(*DEPLOYMENT, namespace, revision))
        if runtime is None or not runtime.is_started or seen is None:
            return runtime
        return runtime._replace(health=seen.health, message=seen.message)


def health_of(deployment: Mapping[str, Any]) -> tuple[Answer, str]:
    """Return whether a Deployment is available, and in its own words why it is not."""
    conditions = {each.get("type"): each for each in _conditions_of(deployment)}
    available = conditions.get("Available")
    if available is None:
        return "Unknown", SILENT
    answer: Any = available.get("status", "Unknown")
    reasons = [available]
    if answer != "True":
        for type_, trouble in (("Progressing", "False"), ("ReplicaFailure", "True")):
            reason = conditions.get(type_, {})
            reasons += [reason] if reason.get("status") == trouble else []
    return answer, "; ".join(str(each["message"]) for each in reasons if each.get("message"))


def _conditions_of(deployment: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (deployment.get("status") or {}).get("conditions") or ()
