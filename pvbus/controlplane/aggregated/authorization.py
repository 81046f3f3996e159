"""Asks kube-apiserver whether a user may do something: its rights are the cluster's, in one place.

Source: Kubernetes 1.36, staging/src/k8s.io/apiserver/plugin/pkg/authorizer/webhook/webhook.go and
pkg/server/options/authorization.go.
"""

import asyncio
import json
from typing import Any, NamedTuple

from pvbus.adapters.kubernetes.access import Creates
from pvbus.controlplane.aggregated.authentication import unavailable
from pvbus.controlplane.aggregated.caching import Recent
from pvbus.controlplane.apiserver.identity import ADMINS_GROUP, Attributes, User, denial
from pvbus.core.errors import PvbusError
from pvbus.ports.cluster import Resource
from pvbus.telemetry.structured import structlog

REMEMBERED_SECONDS = 10.0
"""How long an answer holds, yes or no, as in Kubernetes: a role that changes is heeded after so long."""

REVIEW_SECONDS = 10.0
"""How long a review may take, as in Kubernetes."""

_REVIEW = Resource("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", False)
_log = structlog.get_logger(__name__)


class Decision(NamedTuple):
    """The answer of kube-apiserver to an access review.

    allowed: whether the user may
    reason: why, in kube-apiserver's words
    """

    allowed: bool
    reason: str


class DelegatedAuthorizer:
    """Implements `identity.Authorizer`."""

    def __init__(self, cluster: Creates) -> None:
        self._cluster = cluster
        self._decisions: Recent[Decision] = Recent(REMEMBERED_SECONDS)

    async def authorize(self, user: User, attributes: Attributes) -> None:
        """Return if the user may. Raises StatusError: 403; 503 if kube-apiserver cannot be asked."""
        if ADMINS_GROUP in user.groups:
            return
        spec = spec_of(user, attributes)
        key = json.dumps(spec, sort_keys=True)
        decision = self._decisions.get(key)
        if decision is None:
            decision = await self._ask(spec)
            self._decisions.put(key, decision)
        if not decision.allowed:
            raise denial(user, attributes, decision.reason)

    async def _ask(self, spec: dict[str, Any]) -> Decision:
        review = {"apiVersion": _REVIEW.api_version, "kind": _REVIEW.kind, "metadata": {}, "spec": spec}
        try:
            async with asyncio.timeout(REVIEW_SECONDS):
                answer = await self._cluster.create(_REVIEW, review)
        except (PvbusError, TimeoutError) as exc:
            why = str(exc) or f"no answer within {REVIEW_SECONDS:.0f} s"
            _log.warning("permissions cannot be checked", error=why)
            text = f"the rights of this request cannot be asked for at kube-apiserver: {why}"
            raise unavailable(text) from exc
        found = answer.get("status") or {}
        if error := found.get("evaluationError"):
            _log.info("a role could not be evaluated", error=error)
        allowed = found.get("allowed") is True and not found.get("denied")
        return Decision(allowed, str(found.get("reason") or ""))


def spec_of(user: User, attributes: Attributes) -> dict[str, Any]:
    """Return the spec of the SubjectAccessReview for a request."""
    spec: dict[str, Any] = {"user": user.name, "groups": list(user.groups)}
    if user.uid:
        spec["uid"] = user.uid
    if user.extra:
        spec["extra"] = {key: list(values) for key, values in user.extra.items()}
    if attributes.path:
        spec["nonResourceAttributes"] = {"path": attributes.path, "verb": attributes.verb}
    else:
        fields = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
        given = {field: getattr(attributes, field) for field in fields}
        spec["resourceAttributes"] = {field: value for field, value in given.items() if value}
    return spec
