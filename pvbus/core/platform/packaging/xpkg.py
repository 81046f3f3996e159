"""Reads the content of a Crossplane package: its own manifest, and the objects that it brings.

An image of Crossplane's has one file `package.yaml` of several documents. A folder of git has the files
that this is made of: `crossplane.yaml`, and one or more objects per file. `resolve`, `establish` and
`pvbus packages pull` read both here, so that they agree about the objects of a package.
Source: crossplane specs, xpkg.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.api.variants import CONFIG_GROUP
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import ObjectKey, okey
from pvbus.core.kernel.objects import mapping, text
from pvbus.core.kernel.packagekinds import CARVEL_INSTALL, CARVEL_PACKAGE, CROSSPLANE_GROUP
from pvbus.core.kernel.packagerows import ContentRow
from pvbus.core.platform.packaging.archives import FOLDER_FILE, XPKG_FILE, invalid
from pvbus.core.platform.packaging.fields import Fields
from pvbus.core.platform.packaging.needs import meta_requirements
from pvbus.core.platform.solver.model import Candidate, api
from pvbus.core.yaml.reader import PACKAGES, YamlError, values

META_GROUP = "meta.pkg.crossplane.io"
META_VERSIONS = ("v1", "v1beta1", "v1alpha1")
META_KINDS = ("Configuration", "Function", "Provider")
EXAMPLES = "examples"
"""Crossplane's command leaves this folder out when it builds a package, and so do we."""

_DEFINITIONS = ("apiextensions.k8s.io", "CustomResourceDefinition")
_COMPOSITES = ("apiextensions.crossplane.io", "CompositeResourceDefinition")
_INSTALL_GROUPS = frozenset(
    {CROSSPLANE_GROUP, CARVEL_INSTALL.group, CARVEL_PACKAGE.group, "kappctrl.k14s.io"}
)
_DEFINED_GROUPS = _INSTALL_GROUPS | {CONFIG_GROUP, PROMOTION_GROUP}
_RUNTIME_KINDS = frozenset(
    {
        *(("", kind) for kind in ("Secret", "Service", "ServiceAccount")),
        ("apps", "Deployment"),
        *(("rbac.authorization.k8s.io", kind) for kind in ("ClusterRole", "ClusterRoleBinding")),
    }
)
"""Kinds that establish may write in every namespace to run packages. A package that brought one would borrow
these rights: it could run anything as any account, or take a role of the cluster over."""


class Packaged(NamedTuple):
    """What the files of a package say.

    meta: the package's own manifest
    objects: okey -> each other object, in the order of paths and documents
    """

    meta: Mapping[str, Any]
    objects: Mapping[str, dict[str, Any]]


def packaged(files: Mapping[str, bytes]) -> Packaged:
    """Read a package's content. files: path -> bytes, as in `Content`.

    Raises PermanentError (InvalidContent), with a sentence without a subject.
    """
    documents = list(_documents(files))
    metas = [each for each in documents if _is_meta(each)]
    if len(metas) != 1:
        raise invalid(f"has {len(metas)} manifests of {META_GROUP}, must have exactly one")
    return Packaged(metas[0], _by_okey(each for each in documents if each is not metas[0]))


def package_meta(files: Mapping[str, bytes]) -> ContentRow:
    """Return what the resolver needs of a package's content. What is wrong is its defect."""
    try:
        meta, objects = packaged(files)
        fields = Fields(is_strict=False)
        meta_requirements(fields, fields.mapping(meta, "", "spec"))
        offers = tuple(dict.fromkeys(offer for each in objects.values() for offer in _offers(each)))
    except PermanentError as exc:
        return ContentRow(defect=str(exc))
    defect = "; ".join(map(str, fields.problems))
    return ContentRow(meta=meta, objects=tuple(objects), provides=offers, defect=defect)


def candidate_of(version: str, digest: str, content: ContentRow) -> Candidate:
    """Return what the resolver has to know of a version of Crossplane's family with this content."""
    fields = Fields(is_strict=False)
    requirements = meta_requirements(fields, fields.mapping(content.meta, "", "spec"))
    defect = content.defect or "; ".join(map(str, fields.problems))
    if defect:
        return Candidate(version=version, digest=digest, provides=content.provides, defect=defect)
    return Candidate(version=version, digest=digest, requirements=requirements, provides=content.provides)


def _is_meta(obj: Mapping[str, Any]) -> bool:
    group, _, version = str(obj.get("apiVersion")).partition("/")
    return group == META_GROUP and version in META_VERSIONS and obj.get("kind") in META_KINDS


def _documents(files: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    """Yield every object of a package, in the order of paths and documents."""
    if XPKG_FILE in files:
        paths = [XPKG_FILE]
    elif FOLDER_FILE in files:
        paths = sorted(filter(_is_part, files))
    else:
        raise invalid(f"has neither {XPKG_FILE} nor {FOLDER_FILE}")
    for path in paths:
        for number, value in enumerate(_values(path, files[path]), start=1):
            yield _object(f"{path}, document {number}", value)


def _is_part(path: str) -> bool:
    """Whether a file of a folder is of its package: hidden files are of tools, for example `.github`."""
    folders = path.split("/")
    is_hidden = any(each.startswith(".") for each in folders)
    return path.endswith((".yaml", ".yml")) and folders[0] != EXAMPLES and not is_hidden


def _values(path: str, data: bytes) -> list[Any]:
    try:
        return values(data, PACKAGES)
    except YamlError as exc:
        raise invalid(f"{path}: {exc}") from exc


def _object(location: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(f"{location}: is not an object")
    for field in ("apiVersion", "kind"):
        if not isinstance(value.get(field), str) or not value[field] or "|" in value[field]:
            raise invalid(f"{location}: has no {field}")
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name or "|" in name:
        raise invalid(f"{location}: {value['kind']} has no metadata.name")
    return value


def _by_okey(objects: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for obj in objects:
        group = obj["apiVersion"].rpartition("/")[0]
        namespace = obj["metadata"].get("namespace") or ""
        if not isinstance(namespace, str) or "|" in namespace:
            raise invalid(f"{obj['kind']} {obj['metadata']['name']}: metadata.namespace is no name")
        key = okey(group, obj["kind"], namespace, obj["metadata"]["name"])
        if key in found:
            raise invalid(f"has {obj['kind']} {obj['metadata']['name']} twice")
        if problem := _forbidden(obj, ObjectKey.parse(key)):
            raise invalid(f"brings {obj['kind']} {obj['metadata']['name']}, {problem}")
        found[key] = obj
    return found


def _forbidden(obj: Mapping[str, Any], key: ObjectKey) -> str:
    """Return why a package must not bring an object, "" if it may: it is written with establish's rights."""
    if key.group in _INSTALL_GROUPS:
        return "which decides what else is installed, and how: only people write those"
    if (key.group, key.kind) in _RUNTIME_KINDS:
        return "which pvbus writes only to run packages, as their manifests ask for it"
    if (key.group, key.kind) in (_DEFINITIONS, _COMPOSITES):
        group = text(mapping(obj.get("spec")).get("group"))
        if group in _DEFINED_GROUPS or key.name.partition(".")[2] in _DEFINED_GROUPS:
            return "a definition that pvbus itself rests on"
    return ""


def _offers(obj: Mapping[str, Any]) -> Iterator[str]:
    """Yield the API kinds that an object defines: those of served versions."""
    identity = (obj["apiVersion"].rpartition("/")[0], obj["kind"])
    if identity not in (_DEFINITIONS, _COMPOSITES):
        return
    fields = Fields(is_strict=False)
    spec = fields.mapping(obj, "", "spec")
    names = [fields.mapping(spec, "spec", "names")]
    if identity == _COMPOSITES:
        names.append(fields.mapping(spec, "spec", "claimNames"))
    group = fields.text(spec, "spec", "group", required=True)
    kinds = [fields.text(each, "spec.names", "kind", required=True) for each in names if each]
    for path, version in fields.items(spec, "spec", "versions"):
        name = fields.text(version, path, "name", required=True)
        if fields.flag(version, path, "served"):
            yield from (api(f"{group}/{name}", kind) for kind in kinds)
    if fields.problems:
        raise invalid(f"{obj['kind']} {obj['metadata']['name']}: {fields.problems[0]}")
