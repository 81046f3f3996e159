"""Writes the new names of objects into the fields that refer to them.

Source: kustomize api v0.20.1, filters/nameref, resmap/reswrangler.go and the field list namereference.go.
The kind in a reference is only looked at in `roleRef`, as there.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pvbus.controlplane.packages.functions.fieldspecs import FieldSpec, parse_path
from pvbus.controlplane.packages.functions.item import Item, text_of
from pvbus.controlplane.packages.functions.selecting import CLUSTER_SCOPED
from pvbus.controlplane.packages.functions.yamltext import Path
from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import get, replaced

_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_PODS = {
    "Pod": "spec",
    "PodTemplate": "template/spec",
    **dict.fromkeys(("Deployment", "ReplicaSet", "DaemonSet", "StatefulSet", "Job"), "spec/template/spec"),
    "CronJob": "spec/jobTemplate/spec/template/spec",
}
_RUNNING = {
    **{kind: path for kind, path in _PODS.items() if kind not in ("PodTemplate", "ReplicaSet")},
    "ReplicationController": "spec/template/spec",
}
_NGINX = "metadata/annotations/nginx.ingress.kubernetes.io\\/"


class Rename(NamedTuple):
    """An object before and after it was renamed; the same item if it was not."""

    before: Item
    after: Item


class _Reference(NamedTuple):
    """Objects of a kind, and a field that names one of them."""

    target: FieldSpec
    field: FieldSpec

    @property
    def is_role(self) -> bool:
        return self.field.path == ("roleRef", "name")


def _to(kind: str, *fields: FieldSpec, version: str = "v1", group: str = "") -> Iterator[_Reference]:
    return (_Reference(FieldSpec((), kind, group, version), field) for field in fields)


def _field(path: str, kind: str, group: str = "", version: str = "") -> FieldSpec:
    return FieldSpec(parse_path(path), kind, group, version)


def _in_pods(pods: dict[str, str], *paths: str) -> tuple[FieldSpec, ...]:
    return tuple(_field(f"{root}/{path}", kind) for kind, root in pods.items() for path in paths)


def _from_pods(volume: str, reference: str) -> tuple[str, ...]:
    """Return the fields of a pod that name a ConfigMap or a Secret."""
    lists = ("containers", "initContainers")
    return (
        f"volumes/{volume}",
        f"volumes/projected/sources/{reference}/name",
        *(f"{each}/env/valueFrom/{reference}KeyRef/name" for each in lists),
        *(f"{each}/envFrom/{reference}Ref/name" for each in lists),
    )


_NAMED_IN_ROLES = (_field("rules/resourceNames", "Role"), _field("rules/resourceNames", "ClusterRole"))
_SCALED = _field("spec/scaleTargetRef/name", "HorizontalPodAutoscaler")
_REFERENCES = (
    *(
        _Reference(FieldSpec((), kind), _SCALED)
        for kind in ("Deployment", "ReplicationController", "ReplicaSet", "StatefulSet")
    ),
    *_to(
        "ConfigMap",
        *_in_pods(_PODS, *_from_pods("configMap/name", "configMap")),
        _field("spec/configSource/configMap", "Node"),
        *_NAMED_IN_ROLES,
        _field(f"{_NGINX}fastcgi-params-configmap", "Ingress"),
    ),
    *_to(
        "Secret",
        *_in_pods(_PODS, *_from_pods("secret/secretName", "secret"), "imagePullSecrets/name"),
        _field("spec/tls/secretName", "Ingress"),
        _field("metadata/annotations/ingress.kubernetes.io\\/auth-secret", "Ingress"),
        _field(f"{_NGINX}auth-secret", "Ingress"),
        _field(f"{_NGINX}auth-tls-secret", "Ingress"),
        _field("imagePullSecrets/name", "ServiceAccount"),
        *(
            _field(f"parameters/{each}", "StorageClass")
            for each in ("secretName", "adminSecretName", "userSecretName", "secretRef")
        ),
        *_NAMED_IN_ROLES,
        _field(
            "spec/template/spec/containers/env/valueFrom/secretKeyRef/name",
            "Service",
            "serving.knative.dev",
            "v1",
        ),
        _field("spec/azureFile/secretName", "PersistentVolume"),
    ),
    *_to(
        "Service",
        _field("spec/serviceName", "StatefulSet", "apps"),
        _field("spec/rules/http/paths/backend/serviceName", "Ingress"),
        _field("spec/backend/serviceName", "Ingress"),
        _field("spec/rules/http/paths/backend/service/name", "Ingress"),
        _field("spec/defaultBackend/service/name", "Ingress"),
        _field("spec/service/name", "APIService", "apiregistration.k8s.io"),
        _field("webhooks/clientConfig/service", "ValidatingWebhookConfiguration", _ADMISSION),
        _field("webhooks/clientConfig/service", "MutatingWebhookConfiguration", _ADMISSION),
    ),
    *_to("Role", _field("roleRef/name", "RoleBinding", _RBAC), version="", group=_RBAC),
    *_to(
        "ClusterRole",
        _field("roleRef/name", "RoleBinding", _RBAC),
        _field("roleRef/name", "ClusterRoleBinding", _RBAC),
        version="",
        group=_RBAC,
    ),
    *_to(
        "ServiceAccount",
        _field("subjects", "RoleBinding", _RBAC),
        _field("subjects", "ClusterRoleBinding", _RBAC),
        *_in_pods(_RUNNING, "serviceAccountName"),
    ),
    *_to("PersistentVolumeClaim", *_in_pods(_RUNNING, "volumes/persistentVolumeClaim/claimName")),
    *_to(
        "PersistentVolume",
        _field("spec/volumeName", "PersistentVolumeClaim"),
        _field("rules/resourceNames", "ClusterRole"),
    ),
    *_to(
        "StorageClass",
        _field("spec/storageClassName", "PersistentVolume"),
        _field("spec/storageClassName", "PersistentVolumeClaim"),
        _field("spec/volumeClaimTemplates/spec/storageClassName", "StatefulSet"),
        group="storage.k8s.io",
    ),
    *_to("PriorityClass", *_in_pods(_RUNNING, "priorityClassName"), group="scheduling.k8s.io"),
    *_to(
        "ValidatingAdmissionPolicy",
        _field("spec/policyName", "ValidatingAdmissionPolicyBinding", _ADMISSION),
        version="",
        group=_ADMISSION,
    ),
)


def follow(renames: Sequence[Rename]) -> list[Item]:
    """Return the objects with new names in every reference. Raises: PermanentError if one is ambiguous."""
    moved: dict[str, list[Rename]] = {}
    for rename in renames:
        if rename.before.name != rename.after.name:
            moved.setdefault(rename.before.name, []).append(rename)
    return [_updated(rename, moved) for rename in renames] if moved else [each.after for each in renames]


def _updated(rename: Rename, moved: dict[str, list[Rename]]) -> Item:
    """Return one object with its references updated.

    Of each field that refers by name, the renamed objects with that former name are candidates; kind,
    namespace and role decide which fit. A field keeps the first name that was found for it.
    """
    referrer = rename.after
    texts: dict[Path, str] = {}
    added: dict[Path, str] = {}
    for reference in _REFERENCES:
        if not reference.field.matches(referrer):
            continue
        for path in _names(referrer, reference.field):
            old = text_of(get(referrer.value, path))
            wanted = [each for each in moved.get(old, ()) if _fits(each, reference, rename, path)]
            if path in texts or not wanted:
                continue
            target = _chosen(wanted, rename, reference.field)
            if target is None:
                continue
            texts[path] = target.name
            namespace = (*path[:-1], "namespace")
            if _is_object(reference.field) and target.namespace:
                (added if get(referrer.value, namespace) is None else texts)[namespace] = target.namespace
    item = referrer.with_texts(texts)
    value = item.value
    for path, text in added.items():
        value = replaced(value, path, text)
    return item.with_value(value)


def _is_object(field: FieldSpec) -> bool:
    """Return whether the field is an object with name and namespace, not a name."""
    return field.path[-1] in ("subjects", "service")


def _names(item: Item, field: FieldSpec) -> Iterator[Path]:
    """Yield the paths of the names in a field.

    The field may be a string, a list of strings, or objects with a `name`.
    """
    for path in field.find(item.value):
        value = get(item.value, path)
        listed = [(*path, index) for index in range(len(value))] if isinstance(value, list) else [path]
        for each in listed:
            element: Any = get(item.value, each)
            if not isinstance(element, dict):
                yield each
            elif "name" in element:
                yield (*each, "name")
            else:
                raise PermanentError(
                    f"{item}: `{'/'.join(field.path)}` has no name", reason="InvalidResource"
                )


def _fits(candidate: Rename, reference: _Reference, referrer: Rename, path: Path) -> bool:
    """Return whether a renamed object can be the one that a reference names."""
    target = candidate.before
    if not reference.target.matches(target) or not _in_reach(target, referrer.after):
        return False
    if reference.is_role:
        role = referrer.after.value["roleRef"]
        if "apiGroup" in role and "kind" in role:
            named = FieldSpec((), text_of(role["kind"]), text_of(role["apiGroup"]))
            return named.matches(target)
    if _is_object(reference.field):
        namespace = get(referrer.after.value, (*path[:-1], "namespace"))
        return namespace is None or (text_of(namespace) or "default") == _namespace(target)
    return True


def _in_reach(target: Item, referrer: Item) -> bool:
    """Return whether an object's namespace lets it be named by another."""
    if _is_cluster_scoped(referrer) or _is_cluster_scoped(target):
        return True
    if _namespace(target) == _namespace(referrer):
        return True
    subjects: Any = referrer.value.get("subjects") if referrer.kind == "RoleBinding" else None
    return target.kind == "ServiceAccount" and any(
        get(each, ("kind",)) == "ServiceAccount" and get(each, ("namespace",)) == target.namespace
        for each in (subjects if isinstance(subjects, list) else ())
    )


def _is_cluster_scoped(item: Item) -> bool:
    return (item.group, item.kind) in CLUSTER_SCOPED


def _namespace(item: Item) -> str:
    return item.namespace or "default"


def _chosen(candidates: Sequence[Rename], referrer: Rename, field: FieldSpec) -> Item | None:
    """Return the object that a reference means, None if that is not known.

    Of several candidates, a referrer that kept its own name means none; another one means the first.
    """
    found = [candidate.after for candidate in candidates]
    if len(found) > 1 and referrer.before.name == referrer.after.name:
        return None
    if _is_object(field) and len({item.namespace for item in found}) > 1:
        raise PermanentError(
            f"found multiple possible referrals for `{'.'.join(field.path)}` of {referrer.after}: "
            f"{', '.join(map(str, found))}: name the namespace there",
            reason="InvalidResource",
        )
    return found[0]
