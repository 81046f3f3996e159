"""The Kptfile: its known parts, typed, and edits of its text that leave everything else alone.

Porch's server reads it strictly: one field that it does not know hides all gates, conditions and
locks. `read(strict=True)` finds such a field; writing here never adds one.

Source: kpt v1.0.0-beta.62, pkg/api/kptfile/v1/types.go.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.core.api.variants import Pipeline
from pvbus.core.errors import PermanentError
from pvbus.core.yaml import editor

FILE = "Kptfile"
STATUSES = ("True", "False", "Unknown")
"""What a condition's status may be: any other makes Porch's server panic."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Options shared by all parts (kw_only must be repeated)."""


class Metadata(_Part, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class KptfileGit(_Part, frozen=True, kw_only=True):
    repo: str = ""
    directory: str = ""
    ref: str = ""


class KptfileGitLock(KptfileGit, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    commit: str = ""


class KptfileUpstream(_Part, frozen=True, kw_only=True):
    type: str = ""
    git: KptfileGit | None = None
    update_strategy: str = ""


class Generic(_Part, frozen=True, kw_only=True):
    store_id: str = msgspec.field(default="", name="storeID")
    resource_id: str = msgspec.field(default="", name="resourceID")
    resource_version: str = ""


class UpstreamLock(_Part, frozen=True, kw_only=True):
    type: str = ""
    git: KptfileGitLock | None = None
    generic: Generic | None = None


class KptfileReadinessGate(_Part, frozen=True, kw_only=True):
    condition_type: str = ""


class Info(_Part, frozen=True, kw_only=True):
    site: str = ""
    emails: tuple[str, ...] = ()
    license: str = ""
    license_file: str = ""
    description: str = ""
    keywords: tuple[str, ...] = ()
    man: str = ""
    readiness_gates: tuple[KptfileReadinessGate, ...] = ()


class KptfileCondition(_Part, frozen=True, kw_only=True):
    """A condition of a package: unlike Kubernetes' it has no times."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Status(_Part, frozen=True, kw_only=True):
    conditions: tuple[KptfileCondition, ...] = ()
    render_status: Any = None


class Kptfile(_Part, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    upstream: KptfileUpstream | None = None
    upstream_lock: UpstreamLock | None = None
    info: Info = Info()
    pipeline: Pipeline = Pipeline()
    inventory: Any = None
    status: Status = Status()


class UnmetGate(NamedTuple):
    """A readiness gate whose condition is not True; status is "" when there is no such condition."""

    condition_type: str
    status: str
    message: str


def read(text: str, *, strict: bool = False) -> Kptfile:
    """Decode a Kptfile. strict: refuse unknown fields, as Porch's server does.

    Raises: PermanentError("InvalidKptfile") when it is no YAML, or a field has another type.
    """
    value = _document(text).value
    texts = _texts(value)
    if isinstance(status := value.get("status"), dict) and "renderStatus" in status:
        texts["status"]["renderStatus"] = status["renderStatus"]  # has numbers
    try:
        kptfile = msgspec.convert(texts, Kptfile)
    except msgspec.ValidationError as error:
        raise PermanentError(f"{FILE}: {error}", reason="InvalidKptfile") from None
    if strict and (unknown := _unknown(value, _everything(kptfile), "")):
        raise PermanentError(f'{FILE}: unknown field "{unknown}"', reason="InvalidKptfile")
    return kptfile


def known_content(text: str) -> Any:
    """Return the known parts for comparison: gates and conditions are sets, keyed by their type.

    Raises: PermanentError("InvalidKptfile").
    """
    value = msgspec.to_builtins(read(text))
    for part, field, key in (("info", "readinessGates", "conditionType"), ("status", "conditions", "type")):
        entries = value.get(part, {}).pop(field, ())
        value[part, field] = {entry.get(key, ""): entry for entry in entries}
        if not value.get(part, True):
            del value[part]
    return value


def gates_met(kptfile: Kptfile) -> list[UnmetGate]:
    """Return the readiness gates that are not met, in their order."""
    conditions = {condition.type: condition for condition in kptfile.status.conditions}
    unmet = []
    for gate in kptfile.info.readiness_gates:
        condition = conditions.get(gate.condition_type, KptfileCondition())
        if condition.status != "True":
            unmet.append(UnmetGate(gate.condition_type, condition.status, condition.message))
    return unmet


# ---------------------------------------------------------------- edits of the text


def set_name(text: str, name: str) -> str:
    """Set metadata.name."""
    return _assigned(text, ("metadata", "name"), name)


def set_upstream(text: str, upstream: KptfileUpstream | None, lock: UpstreamLock | None) -> str:
    """Set upstream and upstreamLock; None takes a part away."""
    for field, part in (("upstream", upstream), ("upstreamLock", lock)):
        if part is None:
            text = _edited(text, editor.delete, (field,))
        else:
            text = _assigned(text, (field,), msgspec.to_builtins(part))
    return text


def set_labels(text: str, labels: Mapping[str, str]) -> str:
    """Make metadata.labels exactly these."""
    return _set_mapping(text, ("metadata", "labels"), labels)


def set_annotations(text: str, annotations: Mapping[str, str]) -> str:
    """Make metadata.annotations exactly these."""
    return _set_mapping(text, ("metadata", "annotations"), annotations)


def set_readiness_gates(text: str, types: Iterable[str]) -> str:
    """Make the gates exactly these: those that stay keep their place, new ones come last."""
    path = ("info", "readinessGates")
    return _set_entries(text, path, "conditionType", {name: {"conditionType": name} for name in types})


def add_readiness_gates(text: str, types: Iterable[str]) -> str:
    """Add the gates that are missing, as the last ones."""
    path = ("info", "readinessGates")
    present = {name for _, name in _entries(text, path, "conditionType")}
    for name in dict.fromkeys(types):
        if name not in present:
            text = _edited(text, editor.append, path, {"conditionType": name})
    return text


def set_conditions(text: str, conditions: Iterable[KptfileCondition]) -> str:
    """Make the conditions exactly these: those that stay keep their place, new ones come last."""
    wanted = {condition.type: _condition(condition) for condition in conditions}
    return _set_entries(text, ("status", "conditions"), "type", wanted)


def upsert_condition(text: str, condition: KptfileCondition) -> str:
    """Set one condition in its place, or add it as the last one. Others are not touched."""
    wanted = _condition(condition)
    path = ("status", "conditions")
    for index, entry in _entries(text, path, "type"):
        if entry == condition.type:
            return _assigned(text, (*path, index), wanted)
    return _edited(text, editor.append, path, wanted)


def _condition(condition: KptfileCondition) -> dict[str, str]:
    if condition.status not in STATUSES:
        raise PermanentError(
            f'"{condition.status}" cannot be the status of a condition', reason="InvalidKptfile"
        )
    builtins: dict[str, str] = msgspec.to_builtins(condition)
    return builtins


def _set_mapping(text: str, path: editor.Path, mapping: Mapping[str, str]) -> str:
    if mapping:
        return _assigned(text, path, dict(mapping))
    return _edited(text, editor.delete, path)


def _set_entries(text: str, path: editor.Path, key: str, wanted: Mapping[str, Mapping[str, str]]) -> str:
    for index, name in reversed(_entries(text, path, key)):
        if name not in wanted:
            text = _edited(text, editor.delete, (*path, index))
    present = {name: index for index, name in _entries(text, path, key)}
    for name, entry in wanted.items():
        if name in present:
            text = _assigned(text, (*path, present[name]), dict(entry))
        else:
            text = _edited(text, editor.append, path, dict(entry))
    if not wanted and editor.get(_document(text).value, path) == []:
        text = _edited(text, editor.delete, path)
    return text


def _entries(text: str, path: editor.Path, key: str) -> list[tuple[int, str]]:
    entries = editor.get(_document(text).value, path) or []
    if not isinstance(entries, list):
        raise PermanentError(f"{FILE}: {'.'.join(map(str, path))} is no list", reason="InvalidKptfile")
    return [(index, str(editor.get(entry, (key,)))) for index, entry in enumerate(entries)]


def _assigned(text: str, path: editor.Path, value: Any) -> str:
    return _edited(text, editor.assign, path, value)


def _edited(text: str, edit: Any, *args: Any) -> str:
    documents = editor.parse(text)
    try:
        return editor.join((edit(_document(text), *args), *documents[1:]))
    except editor.YamlError as error:
        raise PermanentError(f"{FILE}: {error}", reason="InvalidKptfile") from None


def _document(text: str) -> editor.Document:
    """Return the first document, which has to be a mapping; there should not be another."""
    try:
        document = editor.parse(text)[0]
    except editor.YamlError as error:
        raise PermanentError(f"{FILE}: {error}", reason="InvalidKptfile") from None
    if not isinstance(document.value, dict):
        raise PermanentError(f"{FILE}: not a mapping", reason="InvalidKptfile")
    return document


# ---------------------------------------------------------------- reading


def _texts(value: Any) -> Any:
    """Make scalars texts, as Go reads them into string fields, and drop nulls, which are absent."""
    if isinstance(value, dict):
        return {str(key): _texts(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_texts(item) for item in value if item is not None]
    if isinstance(value, bool):
        return "True" if value else "False"
    return value if isinstance(value, str) else str(value)


def _everything(kptfile: Kptfile) -> Any:
    """Return all known fields of the parts that are there, empty ones too."""
    if isinstance(kptfile, msgspec.Struct):
        fields = msgspec.structs.fields(kptfile)
        return {field.encode_name: _everything(getattr(kptfile, field.name)) for field in fields}
    return [_everything(item) for item in kptfile] if isinstance(kptfile, tuple) else kptfile


def _unknown(value: Any, known: Any, path: str) -> str | None:
    """Find the first field that is in the value and not among the known ones."""
    if isinstance(value, dict) and isinstance(known, dict):
        for key, item in value.items():
            here = f"{path}.{key}" if path else str(key)
            if str(key) not in known:
                return here if item is not None else None
            if found := _unknown(item, known[str(key)], here):
                return found
    if isinstance(value, list) and isinstance(known, list):
        for index, (item, other) in enumerate(zip((i for i in value if i is not None), known, strict=True)):
            if found := _unknown(item, other, f"{path}[{index}]"):
                return found
    return None
