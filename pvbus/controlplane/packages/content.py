"""The files of a new or changed package, as text: their changes by each task, and the facts of a Kptfile.

Pure. Kptfiles and resources are edited in place, so that comments and layout stay.

Source: Porch v1.5.8, pkg/task/{init,patchgen,generictaskhandler}.go; kpt v1.0.0-beta.62.1,
internal/builtins/pkg_context.go.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from pvbus.controlplane.packages import bounds
from pvbus.controlplane.packages.layout import KPTFILE
from pvbus.core.variants.merge.copies import CONTEXT_FILE, Edit, is_yaml
from pvbus.core.variants.revisions.signatures import INPUTS_CHANGED
from pvbus.core.variants.revisions.validators import Validator, is_validators, validators_of
from pvbus.core.yaml import editor
from pvbus.core.yaml.editor import Document

CONTEXT_NAME = "kptfile.kpt.dev"
LOCAL_CONFIG = "config.kubernetes.io/local-config"
RENDERED = "Rendered"
CarryPolicy = Literal["keep", "unknown", "remove"]
RENDER_IDEMPOTENT = "RenderIdempotent"
"""Condition of a PackageRevision if a second run of its pipeline would change it. It is of the store, not of
the package: its Kptfile does not have it."""


def initial_files(name: str, task: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of a package that starts empty.

    task: the body of an init task
    """
    info = {"description": task.get("description") or f"{name} description"}
    for key in ("site", "keywords"):
        if task.get(key):
            info[key] = task[key]
    kptfile = _document(f"apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: {name}\n")
    kptfile = editor.assign(kptfile, ("metadata", "annotations"), {LOCAL_CONFIG: "true"})
    kptfile = editor.assign(kptfile, ("info",), info)
    readme = (
        f"# {name}\n\n{info['description']}\n\n"
        f"## Use\n\nFetch the package, render it and look at what it holds:\n\n"
        f"    kpt pkg get <repository>[/<path>]@<version> {name}\n"
        f"    kpt fn render {name}\n    kpt pkg tree {name}\n"
    )
    return {KPTFILE: kptfile.text, "README.md": readme, CONTEXT_FILE: _context("example", None)}


def _context(name: str, path: str | None) -> str:
    document = _document(
        f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {CONTEXT_NAME}\n"
        f'  annotations:\n    {LOCAL_CONFIG}: "true"\n'
    )
    data = {"name": name} | ({"package-path": path} if path else {})
    return editor.assign(document, ("data",), data).text


def with_package_context(texts: Mapping[str, str], package_path: str) -> dict[str, str]:
    """Generate the package context of a deployment repository from scratch.

    Every existing context is removed, in any folder; a new one is made beside each Kptfile.
    """
    result = {}
    for path, text in texts.items():
        documents = editor.parse(text) if is_yaml(path) and CONTEXT_NAME in text else ()
        retained = tuple(document for document in documents if not _is_context(document.value))
        if len(retained) == len(documents):
            result[path] = text
        elif any(document.value is not None for document in retained):
            result[path] = editor.join(retained)
    for path, text in texts.items():
        folder, _, name = path.rpartition("/")
        if name == KPTFILE:
            own_name = editor.get(_document(text).value, ("metadata", "name"))
            beside = f"{folder}/{CONTEXT_FILE}" if folder else CONTEXT_FILE
            result[beside] = _context(str(own_name or ""), package_path)
    return result


def _is_context(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("kind") == "ConfigMap"
        and value.get("apiVersion") == "v1"
        and editor.get(value, ("metadata", "name")) == CONTEXT_NAME
    )


def _document(text: str) -> Document:
    documents = editor.parse(text)
    if not documents or not isinstance(documents[0].value, dict):
        raise editor.YamlError("it contains no object")
    return documents[0]


def with_metadata(field: str, wanted: Mapping[str, str], *, exact: bool) -> Edit:
    """Set metadata.labels or .annotations: exactly these, or merged into the present ones."""
    path = ("metadata", field)

    def edit(kptfile: Document) -> Document:
        present = editor.get(kptfile.value, path)
        retained = {} if exact or not isinstance(present, dict) else present
        value = {**retained, **wanted}
        return editor.assign(kptfile, path, value) if value else editor.delete(kptfile, path)

    return edit


def with_gates(gates: Sequence[Mapping[str, Any]]) -> Edit:
    """Set the readiness gates to exactly these."""
    wanted = {str(gate["conditionType"]): {"conditionType": gate["conditionType"]} for gate in gates}
    return lambda kptfile: _with_list(kptfile, ("info", "readinessGates"), "conditionType", wanted)


def is_stores(type_: str) -> bool:
    """Return whether only the package store sets this condition of a Kptfile: when it runs the pipeline."""
    return type_ == RENDERED or is_validators(type_)


def with_conditions(conditions: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> Edit:
    """Set the conditions to exactly these, except those of the store, which are the `own` ones."""
    others = (item for item in conditions if not is_stores(str(item["type"])))
    wanted = {str(item["type"]): item for item in (*others, *own)}
    return lambda kptfile: _with_list(kptfile, ("status", "conditions"), "type", wanted)


def with_carried(policy: CarryPolicy, task: str) -> Edit:
    """Treat the conditions that a new revision has from its source. The store's stay: it is rendered next.

    task: how the revision is made, for the message.
    """

    def carried(condition: Mapping[str, Any]) -> Mapping[str, Any]:
        before = condition.get("status")
        if before == "Unknown":
            return condition
        message = f"it was {before} before this {task}, which changed the package"
        return {"type": condition["type"], "status": "Unknown", "reason": INPUTS_CHANGED, "message": message}

    def edit(kptfile: Document) -> Document:
        present = list(_entries(_mapping(_mapping(kptfile.value).get("status")).get("conditions"), "type"))
        others = [each for each in present if not is_stores(each["type"])]
        if policy == "keep" or not others:
            return kptfile
        own = [each for each in present if is_stores(each["type"])]
        return with_conditions([] if policy == "remove" else [*map(carried, others)], own)(kptfile)

    return edit


def _with_list(
    kptfile: Document, path: tuple[str, ...], key: str, wanted: Mapping[str, Mapping[str, Any]]
) -> Document:
    """Set a list of keyed entries to exactly the wanted ones; those that stay keep their position."""
    present = editor.get(kptfile.value, path)
    present = present if isinstance(present, list) else []
    if not wanted:
        return editor.delete(kptfile, path)
    left = dict(wanted)
    for index in range(len(present) - 1, -1, -1):
        entry = present[index]
        name = entry.get(key) if isinstance(entry, dict) else None
        if name in left:
            kptfile = editor.assign(kptfile, (*path, index), dict(left.pop(name)))
        else:  # it is not wanted, or a second one of its key
            kptfile = editor.delete(kptfile, (*path, index))
    for entry in left.values():
        kptfile = editor.append(kptfile, path, dict(entry))
    return kptfile


class KptfileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a Kptfile that the API shows, as plain JSON.

    labels: the labels of the package
    annotations: the annotations of the package
    gates: the readiness gates
    conditions: the conditions, those of the store among them
    upstream_lock: the lock of the upstream, None without one
    """

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    gates: tuple[dict[str, str], ...] = ()
    conditions: tuple[dict[str, str], ...] = ()
    upstream_lock: dict[str, Any] | None = None

    @property
    def rendered(self) -> dict[str, str] | None:
        """The condition `Rendered`."""
        return next((item for item in self.conditions if item["type"] == RENDERED), None)

    @property
    def own(self) -> list[dict[str, str]]:
        """The conditions that the store sets."""
        return [item for item in self.conditions if is_stores(item["type"])]


def shown_conditions(facts: KptfileFacts, warning: str) -> list[dict[str, str]]:
    """Return the conditions of a Kptfile, with the store's warning if there is one."""
    conditions = [dict(condition) for condition in facts.conditions]
    if warning:
        reason = "SecondRunDiffers"
        conditions.append(
            {"type": RENDER_IDEMPOTENT, "status": "False", "reason": reason, "message": warning}
        )
    return conditions


def validators_in(texts: Mapping[str, str]) -> tuple[Validator, ...]:
    """Return the validators that a package's Kptfiles name; what cannot be read has none."""
    kptfiles: dict[str, Any] = {}
    for path, text in texts.items():
        folder, _, name = path.rpartition("/")
        if name != KPTFILE or "validators" not in text:
            continue
        try:
            kptfiles[folder] = editor.values(text)[0]
        except (editor.YamlError, IndexError):
            continue
    return validators_of(kptfiles)


def facts_of(text: str) -> KptfileFacts:
    """Read a Kptfile leniently: invalid fields count as absent."""
    try:
        value = editor.values(text)[0]
    except editor.YamlError as exc:
        return unreadable_kptfile(str(exc))
    except IndexError:
        return unreadable_kptfile("it is empty")
    facts = _facts_in(_mapping(value))
    if len(msgspec.json.encode(facts)) > bounds.FACTS_BYTES_MAX:
        return unreadable_kptfile(
            f"its labels, annotations, gates and conditions have more than {bounds.FACTS_BYTES_MAX} bytes"
        )
    return facts


def unreadable_kptfile(problem: str) -> KptfileFacts:
    """Return the facts of an unreadable Kptfile: a condition with the problem."""
    message = f"cannot read the Kptfile: {problem}"
    condition = {"type": RENDERED, "status": "False", "reason": "InvalidKptfile", "message": message}
    return KptfileFacts(conditions=(condition,))


def _facts_in(root: dict[str, Any]) -> KptfileFacts:
    metadata = _mapping(root.get("metadata"))
    return KptfileFacts(
        labels=_strings(metadata.get("labels")),
        annotations=_strings(metadata.get("annotations")),
        gates=tuple(_entries(_mapping(root.get("info")).get("readinessGates"), "conditionType")),
        conditions=tuple(
            each
            for each in _entries(_mapping(root.get("status")).get("conditions"), "type")
            if each["type"] != RENDER_IDEMPOTENT
        ),
        upstream_lock=_lock_in(_mapping(root.get("upstreamLock"))),
    )


def _lock_in(value: dict[str, Any]) -> dict[str, Any] | None:
    git = _strings(value.get("git"))
    retained = {key: git[key] for key in ("repo", "directory", "ref", "commit") if key in git}
    if not value:
        return None
    return {"type": str(value.get("type", "git"))} | ({"git": retained} if retained else {})


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _strings(value: Any) -> dict[str, str]:
    return {str(key): str(item) for key, item in _mapping(value).items()}


def _entries(value: Any, key: str) -> Iterable[dict[str, str]]:
    for item in value if isinstance(value, list) else []:
        if isinstance(item, dict) and item.get(key):
            yield _strings(item)
