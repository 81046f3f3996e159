"""Reads the input of `plan`: exports, manifests, deletions; checks objects as an API server would."""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pvbus.adapters.manifests import SUFFIXES, Manifest, read_manifests
from pvbus.adapters.memory.objects import split_api_version
from pvbus.cli.live import EXPORT_API, EXPORT_KIND, Export
from pvbus.controlplane.apiserver.structural import Schema, compile_schema
from pvbus.core.api.crds import crds
from pvbus.core.api.variants import PORCH_GROUP
from pvbus.core.errors import UsageError
from pvbus.ports.cluster import Kind, Object
from pvbus.runtime.preview.changes import ObjectName

_HEAD_BYTES = 200
_export = msgspec.json.Decoder(Export)


class PlanInput(NamedTuple):
    """The input of a plan.

    exports: the files that are exports of live systems
    manifests: all other objects, in order
    """

    exports: tuple[Export, ...]
    manifests: tuple[Manifest, ...]


def read_input(paths: Iterable[Path]) -> PlanInput:
    """Read files and folders. Raises UsageError that names the file and the document."""
    exports, manifests = [], []
    for path in paths:
        files = [path]
        if path.is_dir():
            files = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES) or [path]
        for file in files:
            export = _read_export(file)
            if export is not None:
                exports.append(export)
            else:
                manifests += read_manifests([file])
    return PlanInput(tuple(exports), tuple(manifests))


def _read_export(file: Path) -> Export | None:
    """Read an export; None for any other file."""
    try:
        with file.open("rb") as opened:
            head = opened.read(_HEAD_BYTES)
            if f'"apiVersion":"{EXPORT_API}","kind":"{EXPORT_KIND}"'.encode() not in head:
                return None
            return _export.decode(head + opened.read())
    except OSError:
        return None  # `read_manifests` reports this error better
    except msgspec.MsgspecError as exc:
        raise UsageError(
            f"{file}: this export is damaged or of another version of pvbus ({exc}): export again"
        ) from exc


def admitted(manifests: Iterable[Manifest]) -> tuple[list[Object], list[str]]:
    """Return the objects as an API server would store them, and its errors.

    PackageVariants, sets and Repositories are defaulted, pruned and validated by our own
    CustomResourceDefinitions; of other kinds only the parts that the services read are checked.
    """
    objects: list[Object] = []
    errors: list[str] = []
    seen: dict[tuple[str, str, str, str], str] = {}
    for manifest in manifests:
        obj = _without_nulls(manifest.object)
        meta = obj["metadata"]
        name = f"{obj['kind']} {meta['name']}"
        problems = list(_shape_problems(obj))
        schema = _schemas().get((obj["apiVersion"], obj["kind"]))
        if schema is not None and not problems:
            obj, _ = schema.pruned(schema.defaulted(obj))
            problems += [f"{error.path}: {error.message}" for error in schema.validate(obj)]
        group, _ = split_api_version(obj["apiVersion"])
        identity = (group, obj["kind"], str(meta.get("namespace") or "default"), meta["name"])
        if identity in seen:
            problems.append(f"is given a second time (first in {seen[identity]}): remove one of the two")
        seen.setdefault(identity, manifest.location)
        errors += [f"{manifest.location}: {name}: {problem}" for problem in problems]
        objects.append(obj)
    return objects, errors


def _without_nulls(obj: Object) -> Object:
    """Return an object without null fields, as a server stores it; a PackageRevision gets a spec."""
    metadata = {key: value for key, value in obj["metadata"].items() if value is not None}
    found = {key: value for key, value in {**obj, "metadata": metadata}.items() if value is not None}
    return {"spec": {}, **found} if obj["kind"] == "PackageRevision" else found


@lru_cache(maxsize=1)
def _schemas() -> dict[tuple[str, str], Schema]:
    found: dict[tuple[str, str], Schema] = {}
    for crd in crds():
        spec = crd["spec"]
        for version in spec["versions"]:
            kind = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
            found[kind] = compile_schema(version["schema"]["openAPIV3Schema"])
    return found


_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:]{0,251}[A-Za-z0-9])?")  # names of roles have colons
_API = re.compile(r"([a-z0-9][-a-z0-9.]*/)?[a-z0-9]+")
_TEXTS = "must map texts to texts"


def _shape_problems(obj: Object) -> Iterable[str]:
    """Yield errors that any API server reports, in common fields and in those that the services read."""
    meta = obj["metadata"]
    if not obj["kind"].isalnum():
        yield "kind: must be letters and digits"
    if not _API.fullmatch(obj["apiVersion"]):
        yield "apiVersion: must be GROUP/VERSION, or v1"
    for field in ("name", "namespace"):
        if isinstance(meta.get(field), str) and not _NAME.fullmatch(meta[field] or "x"):
            yield f"metadata.{field}: must be letters, digits, '-', '.' and ':', at most 253"
    if not meta["name"]:
        yield "metadata.name: must not be empty"
    for field in ("namespace", "uid", "creationTimestamp", "deletionTimestamp", "resourceVersion"):
        if not isinstance(meta.get(field) or "", str):
            yield f"metadata.{field}: must be a text"
    if not isinstance(meta.get("generation") or 0, int):
        yield "metadata.generation: must be a number"
    for field in ("labels", "annotations"):
        if not _is_texts(meta.get(field, {})):
            yield f"metadata.{field}: {_TEXTS}; quote values such as true and 1"
    if not _is_list_of(meta.get("finalizers", []), str):
        yield "metadata.finalizers: must be a list of texts"
    owners = meta.get("ownerReferences", [])
    if not _is_list_of(owners, dict):
        yield "metadata.ownerReferences: must be a list of objects"
    elif any(
        not isinstance(owner.get(key) or "", str) for owner in owners for key in ("uid", "kind", "name")
    ):
        yield "metadata.ownerReferences: kind, name and uid must be texts"
    for field in ("spec", "status"):
        if obj["kind"] != "ConfigMap" and field in obj and not isinstance(obj[field], dict):
            yield f"{field}: must be an object"
            return
    group, _ = split_api_version(obj["apiVersion"])
    if group == PORCH_GROUP:
        yield from _package_problems(obj)
    if obj["kind"] == "CustomResourceDefinition":
        yield from _definition_problems(obj.get("spec") or {})


def _package_problems(obj: Object) -> Iterable[str]:
    spec = obj.get("spec") or {}
    for field in ("repository", "packageName", "workspaceName"):
        if not isinstance(spec.get(field) or "", str):
            yield f"spec.{field}: must be a text"
    if not isinstance(spec.get("revision") or 0, int):
        yield "spec.revision: must be a number"
    if not isinstance(spec.get("lifecycle") or "", str):
        yield "spec.lifecycle: must be a text"
    if obj["kind"] == "PackageRevisionResources" and not _is_texts(
        {} if spec.get("resources") is None else spec["resources"]
    ):
        yield "spec.resources: must map file paths to texts"
    if not _is_list_of([] if spec.get("tasks") is None else spec["tasks"], dict):
        yield "spec.tasks: must be a list of objects"
    if obj["kind"] == "PackageRevision":
        from pvbus.core.api.packages import PackageRevision

        try:
            msgspec.convert(obj, PackageRevision)
        except msgspec.ValidationError as exc:
            yield f"{exc}"


def _definition_problems(spec: dict[str, Any]) -> Iterable[str]:
    names = spec.get("names")
    if not isinstance(spec.get("group"), str):
        yield "spec.group: must be a text"
    if not (isinstance(names, dict) and isinstance(names.get("kind"), str)):
        yield "spec.names.kind: must be a text"
    versions = spec.get("versions") or []
    if not _is_list_of(versions, dict) or not all(isinstance(v.get("name"), str) for v in versions):
        yield "spec.versions: must be a list of objects with a name"


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(key, str) and isinstance(item, str) for key, item in value.items()
    )


def _is_list_of(value: Any, type_: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, type_) for item in value)


def deletions(names: Iterable[str], objects: Sequence[Object]) -> list[ObjectName]:
    """Find the objects that `--delete KIND/NAMESPACE/NAME` means. Raises UsageError for those not found."""
    found, problems = [], []
    for name in names:
        parts = name.split("/")
        if len(parts) not in (2, 3) or not all(parts):
            problems.append(f'"{name}" is no KIND/NAMESPACE/NAME (or KIND/NAME where there is no namespace)')
            continue
        word, namespace, own = parts[0], parts[1] if len(parts) == 3 else "", parts[-1]
        matches = [obj for obj in objects if _is_meant(obj, word, namespace, own)]
        if len(matches) == 1:
            obj = matches[0]
            group, _ = split_api_version(obj["apiVersion"])
            meta = obj["metadata"]
            found.append(ObjectName(Kind(group, obj["kind"]), meta.get("namespace", ""), meta["name"]))
        elif matches:
            kinds = sorted(
                f"{o['kind']}.{split_api_version(o['apiVersion'])[0]}/{namespace}/{own}" for o in matches
            )
            problems.append(f'"{name}" could be any of {", ".join(kinds)}')
        else:
            near = [o for o in objects if o["metadata"]["name"] == own]
            hint = "; of this name there is " + ", ".join(_said(o) for o in near[:3]) if near else ""
            problems.append(f"there is no {name} in the live system or the files{hint}")
    if problems:
        raise UsageError("--delete: " + "\n  ".join(problems))
    return found


def _is_meant(obj: Object, word: str, namespace: str, name: str) -> bool:
    group, _ = split_api_version(obj["apiVersion"])
    kind = obj["kind"].lower()
    words = {kind, f"{kind}s", f"{kind}.{group}", f"{kind}s.{group}"}
    meta = obj["metadata"]
    own = meta.get("namespace", "")
    return (
        word.lower() in words
        and meta["name"] == name
        and (own == namespace or (own == "default" and not namespace))
    )


def _said(obj: Object) -> str:
    return "/".join(
        filter(None, (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]))
    )


def write_export(export: Export) -> str:
    """Return the text of an export's file: JSON, one line per object, so that a diff shows the changes."""
    fields = msgspec.to_builtins(export)
    items = fields.pop("items")
    fields.pop("apiVersion", None)
    fields.pop("kind", None)
    head = f'{{"apiVersion":"{EXPORT_API}","kind":"{EXPORT_KIND}",'
    rest = ",\n".join(f"{json.dumps(key)}:{json.dumps(value)}" for key, value in fields.items())
    ordered = sorted(
        items, key=lambda o: (o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"])
    )
    lines = ",\n".join(json.dumps(item, ensure_ascii=False, sort_keys=True) for item in ordered)
    return f'{head}\n{rest},\n"items":[\n{lines}\n]}}\n'
