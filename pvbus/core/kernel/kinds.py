"""The type of a kind, for the core, the ports and the shells, and what is known of Kubernetes' own kinds."""

from typing import NamedTuple


class Kind(NamedTuple):
    """A group and kind; the version is not part of a kind's identity."""

    group: str
    kind: str

    def __str__(self) -> str:
        return f"{self.group}/{self.kind}"


KINDS_WITHOUT_SPEC = {
    "": ("Binding", "Endpoints", "Event", "PodTemplate", "Secret", "ServiceAccount"),
    "admissionregistration.k8s.io": ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
    "apps": ("ControllerRevision",),
    "discovery.k8s.io": ("EndpointSlice",),
    "events.k8s.io": ("Event",),
    "node.k8s.io": ("RuntimeClass",),
    "rbac.authorization.k8s.io": ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
    "scheduling.k8s.io": ("PriorityClass",),
    "storage.k8s.io": ("CSIStorageCapacity", "StorageClass", "VolumeAttributesClass"),
}
"""By group, the kinds of Kubernetes whose schema has no `spec`. That of another kind shows in its objects."""
