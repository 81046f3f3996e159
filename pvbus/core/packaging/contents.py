"""Reads the content of a package: its own manifest, and the objects that it brings.

An image of Crossplane's has one file `package.yaml` of several documents. A folder of git has the files
that this is made of: `crossplane.yaml`, and one or more objects per file.
Source: crossplane specs, xpkg.md.
"""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from pvbus.core.keys import okey
from pvbus.core.packaging.fields import Fields
from pvbus.core.packaging.needs import meta_requirements
from pvbus.core.packaging.rows import ContentRow
from pvbus.core.resolve.model import Candidate, api
from pvbus.core.yaml.editor import YamlError, values

META_GROUP = "meta.pkg.crossplane.io"
META_VERSIONS = ("v1", "v1beta1", "v1alpha1")
META_KINDS = ("Configuration", "Function", "Provider")
IMAGE_FILE = "package.yaml"
FOLDER_FILE = "crossplane.yaml"
EXAMPLES = "examples/"
"""Crossplane's command leaves this folder out when it builds a package, and so do we."""

_DEFINITIONS = ("apiextensions.k8s.io", "CustomResourceDefinition")
_COMPOSITES = ("apiextensions.crossplane.io", "CompositeResourceDefinition")


def package_meta(files: Mapping[str, bytes]) -> ContentRow:
    """Read a package's content. files: path -> bytes, as in `Content`. What is wrong is its defect."""
    try:
        documents = list(_documents(files))
        metas = [each for each in documents if is_meta(each)]
        if len(metas) != 1:
            raise _ContentError(f"has {len(metas)} manifests of {META_GROUP}, must have exactly one")
        (meta,) = metas
        fields = Fields(is_strict=False)
        meta_requirements(fields, fields.mapping(meta, "", "spec"))
        objects = [each for each in documents if each is not meta]
        okeys = _okeys(objects)
        offers = tuple(dict.fromkeys(offer for each in objects for offer in _offers(each)))
    except (_ContentError, YamlError) as exc:
        return ContentRow(defect=str(exc))
    defect = "; ".join(map(str, fields.problems))
    return ContentRow(meta=meta, objects=okeys, provides=offers, defect=defect)


def candidate_of(version: str, digest: str, content: ContentRow) -> Candidate:
    """Return what the resolver has to know of a version of Crossplane's family with this content."""
    fields = Fields(is_strict=False)
    requirements = meta_requirements(fields, fields.mapping(content.meta, "", "spec"))
    defect = content.defect or "; ".join(map(str, fields.problems))
    if defect:
        return Candidate(version=version, digest=digest, provides=content.provides, defect=defect)
    return Candidate(version=version, digest=digest, requirements=requirements, provides=content.provides)


def is_meta(obj: Mapping[str, Any]) -> bool:
    """Return whether an object is a package's own manifest."""
    group, _, version = str(obj.get("apiVersion")).partition("/")
    return group == META_GROUP and version in META_VERSIONS and obj.get("kind") in META_KINDS


class _ContentError(Exception):
    """What makes a package's content unusable, as a sentence without a subject."""


def _documents(files: Mapping[str, bytes]) -> Iterator[Mapping[str, Any]]:
    """Yield every object of a package, in the order of paths and documents."""
    if IMAGE_FILE in files:
        paths = [IMAGE_FILE]
    elif FOLDER_FILE in files:
        paths = sorted(
            path for path in files if path.endswith((".yaml", ".yml")) and not path.startswith(EXAMPLES)
        )
    else:
        raise _ContentError(f"has neither {IMAGE_FILE} nor {FOLDER_FILE}")
    for path in paths:
        for number, value in enumerate(_values(path, files[path]), start=1):
            yield _object(f"{path}, document {number}", value)


def _values(path: str, data: bytes) -> list[Any]:
    try:
        return values(data.decode("utf-8"))
    except UnicodeDecodeError as exc:
        raise _ContentError(f"{path}: is not UTF-8") from exc
    except YamlError as exc:
        raise _ContentError(f"{path}: {exc}") from exc


def _object(location: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _ContentError(f"{location}: is not an object")
    for field in ("apiVersion", "kind"):
        if not isinstance(value.get(field), str) or not value[field] or "|" in value[field]:
            raise _ContentError(f"{location}: has no {field}")
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name or "|" in name:
        raise _ContentError(f"{location}: {value['kind']} has no metadata.name")
    _check_json(location, value)
    return value


def _check_json(location: str, value: Any) -> None:
    """Refuse what YAML can say and JSON cannot: no API server takes it."""
    rest = [value]
    while rest:
        each = rest.pop()
        if isinstance(each, Mapping):
            if not all(isinstance(key, str) for key in each):
                raise _ContentError(f"{location}: has a key that is not a text")
            rest += each.values()
        elif isinstance(each, list):
            rest += each
        elif isinstance(each, float) and not isfinite(each):
            raise _ContentError(f"{location}: has a number that is not finite")


def _okeys(objects: list[Mapping[str, Any]]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for obj in objects:
        group = obj["apiVersion"].rpartition("/")[0]
        namespace = obj["metadata"].get("namespace") or ""
        if not isinstance(namespace, str) or "|" in namespace:
            raise _ContentError(f"{obj['kind']} {obj['metadata']['name']}: metadata.namespace is no name")
        key = okey(group, obj["kind"], namespace, obj["metadata"]["name"])
        if key in found:
            raise _ContentError(f"has {obj['kind']} {obj['metadata']['name']} twice")
        found[key] = None
    return tuple(found)


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
        raise _ContentError(f"{obj['kind']} {obj['metadata']['name']}: {fields.problems[0]}")
