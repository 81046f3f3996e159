"""Selectors of objects by identity, labels and annotations, and expressions of packages."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Protocol

import msgspec
import re2  # type: ignore[import-untyped]  # it has no types

from pvbus.controlplane.packages.functions.item import Item, config_fault
from pvbus.core.api.selectors import Requirements, matches
from pvbus.core.api.selectortext import parse_label_selector

_KINDS = {
    "": (
        "Binding ConfigMap Endpoints Event LimitRange PersistentVolumeClaim Pod PodTemplate "
        "ReplicationController ResourceQuota Secret Service ServiceAccount"
    ),
    "apps": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "authorization.k8s.io": "LocalSubjectAccessReview",
    "autoscaling": "HorizontalPodAutoscaler",
    "batch": "CronJob Job",
    "coordination.k8s.io": "Lease",
    "discovery.k8s.io": "EndpointSlice",
    "events.k8s.io": "Event",
    "extensions": "DaemonSet Deployment Ingress NetworkPolicy ReplicaSet",
    "networking.k8s.io": "Ingress NetworkPolicy",
    "policy": "PodDisruptionBudget",
    "rbac.authorization.k8s.io": "Role RoleBinding",
    "storage.k8s.io": "CSIStorageCapacity",
}

_CLUSTER_KINDS = {
    "": "ComponentStatus Namespace Node PersistentVolume",
    "admissionregistration.k8s.io": (
        "MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding "
        "ValidatingWebhookConfiguration"
    ),
    "apiextensions.k8s.io": "CustomResourceDefinition",
    "apiregistration.k8s.io": "APIService",
    "authentication.k8s.io": "SelfSubjectReview TokenReview",
    "authorization.k8s.io": "SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
    "certificates.k8s.io": "CertificateSigningRequest",
    "flowcontrol.apiserver.k8s.io": "FlowSchema PriorityLevelConfiguration",
    "networking.k8s.io": "IngressClass",
    "node.k8s.io": "RuntimeClass",
    "policy": "PodSecurityPolicy",
    "rbac.authorization.k8s.io": "ClusterRole ClusterRoleBinding",
    "scheduling.k8s.io": "PriorityClass",
    "storage.k8s.io": "CSIDriver CSINode StorageClass VolumeAttachment",
}


def _pairs(table: dict[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((group, kind) for group, kinds in table.items() for kind in kinds.split())


NAMESPACED = _pairs(_KINDS)
CLUSTER_SCOPED = _pairs(_CLUSTER_KINDS)


class Expression(Protocol):
    """A compiled expression of RE2: linear time on any input."""

    def search(self, text: str) -> Any: ...

    def sub(self, replacement: Callable[[Any], str], text: str) -> str: ...


def expression(text: str, where: str) -> Expression:
    """Compile a package's expression. Raises: PermanentError if it is not one."""
    options = re2.Options()
    options.log_errors = False
    try:
        compiled: Expression = re2.compile(text, options)
    except re2.error as exc:
        reason = exc.args[0].decode(errors="replace") if isinstance(exc.args[0], bytes) else exc.args[0]
        raise config_fault(f"{where} is not an expression: {reason}") from exc
    return compiled


def any_of(texts: Iterable[str]) -> Expression:
    """Return the expression of the first of these texts that is at a place. Raises: PermanentError."""
    return expression("|".join(map(re2.escape, texts)), "the list of values")


SELECTOR_CHARACTERS_MAX = 10_000
"""Length of a selector: one of a thousand terms still fits."""


@lru_cache(maxsize=64)
def parse_selector(text: str) -> Requirements:
    """Parse a selector of a package. Raises: PermanentError."""
    if len(text) > SELECTOR_CHARACTERS_MAX:
        raise config_fault(
            f"a selector has {len(text)} characters, at most {SELECTOR_CHARACTERS_MAX} are allowed"
        )
    try:
        return parse_label_selector(text)
    except ValueError as exc:
        raise config_fault(f"cannot read the selector {text[:200]!r}: {exc}") from exc


class ObjectSelector(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=False):
    """Selects objects; an empty field matches any. Names and kinds are compared whole, not as patterns."""

    group: str = ""
    version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    label_selector: str = ""
    annotation_selector: str = ""

    @classmethod
    def parse(cls, value: Any) -> "ObjectSelector":
        try:
            return msgspec.convert(value or {}, cls)
        except msgspec.ValidationError as exc:
            raise config_fault(f"selector: {exc}") from exc

    @property
    def is_empty(self) -> bool:
        return self == ObjectSelector()

    def matches(self, item: Item) -> bool:
        wanted = (self.group, self.version, self.kind, self.name)
        present = (item.group, item.version, item.kind, item.name)
        return (
            all(want in ("", have) for want, have in zip(wanted, present, strict=True))
            and self._in_namespace(item)
            and matches(parse_selector(self.label_selector), item.labels)
            and matches(parse_selector(self.annotation_selector), item.annotations)
        )

    def _in_namespace(self, item: Item) -> bool:
        if not self.namespace or (item.group, item.kind) in CLUSTER_SCOPED:
            return True
        return self.namespace == (item.namespace or "default")

    def __str__(self) -> str:
        given = msgspec.to_builtins(self)
        return ", ".join(f"{key} {value}" for key, value in given.items() if value) or "anything"
