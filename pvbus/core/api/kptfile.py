"""The Kptfile: its known parts, typed, and edits of its text that leave the rest unchanged.

Porch's server reads it strictly: one unknown field hides all gates, conditions and locks. The edits
here never add one.

Source: kpt v1.0.0-beta.62, pkg/api/kptfile/v1/types.go.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pvbus.core.api.packages import GitLock, PackageCondition, ReadinessGate
from pvbus.core.api.variants import ApiStruct, Pipeline
from pvbus.core.errors import PermanentError
from pvbus.core.yaml import editor

FILE = "Kptfile"
STATUSES = ("True", "False", "Unknown")
"""The valid statuses of a condition: any other makes Porch's server panic."""


class Metadata(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class KptfileGit(ApiStruct, frozen=True, kw_only=True):
    repo: str = ""
    directory: str = ""
    ref: str = ""


class KptfileUpstream(ApiStruct, frozen=True, kw_only=True):
    type: str = ""
    git: KptfileGit | None = None
    update_strategy: str = ""


class Generic(ApiStruct, frozen=True, kw_only=True):
    store_id: str = msgspec.field(default="", name="storeID")
    resource_id: str = msgspec.field(default="", name="resourceID")
    resource_version: str = ""


class UpstreamLock(ApiStruct, frozen=True, kw_only=True):
    type: str = ""
    git: GitLock | None = None
    generic: Generic | None = None


class Info(ApiStruct, frozen=True, kw_only=True):
    site: str = ""
    emails: tuple[str, ...] = ()
    license: str = ""
    license_file: str = ""
    description: str = ""
    keywords: tuple[str, ...] = ()
    man: str = ""
    readiness_gates: tuple[ReadinessGate, ...] = ()


class Status(ApiStruct, frozen=True, kw_only=True):
    conditions: tuple[PackageCondition, ...] = ()
    render_status: Any = None


class Kptfile(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    upstream: KptfileUpstream | None = None
    upstream_lock: UpstreamLock | None = None
    info: Info = Info()
    pipeline: Pipeline = Pipeline()
    inventory: Any = None
    status: Status = Status()


def read(text: str) -> Kptfile:
    """Decode a Kptfile; unknown fields are ignored.

    Raises: PermanentError("InvalidKptfile") if it is not YAML, or a field has the wrong type.
    """
    value = _document(text).value
    texts = _texts(value)
    if isinstance(status := value.get("status"), dict) and "renderStatus" in status:
        texts["status"]["renderStatus"] = status["renderStatus"]  # has numbers
    try:
        return msgspec.convert(texts, Kptfile)
    except msgspec.ValidationError as error:
        raise PermanentError(f"{FILE}: {error}", reason="InvalidKptfile") from None


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


# ---------------------------------------------------------------- edits of the text


def add_readiness_gates(text: str, types: Iterable[str]) -> str:
    """Append the missing gates."""
    path = ("info", "readinessGates")
    present = {name for _, name in _entries(text, path, "conditionType")}
    for name in dict.fromkeys(types):
        if name not in present:
            text = _edited(text, editor.append, path, {"conditionType": name})
    return text


def upsert_condition(text: str, condition: PackageCondition) -> str:
    """Replace one condition in its position, or append it. The others stay unchanged."""
    wanted = _condition(condition)
    path = ("status", "conditions")
    for index, entry in _entries(text, path, "type"):
        if entry == condition.type:
            return _assigned(text, (*path, index), wanted)
    return _edited(text, editor.append, path, wanted)


def _condition(condition: PackageCondition) -> dict[str, str]:
    if condition.status not in STATUSES:
        raise PermanentError(
            f'"{condition.status}" cannot be the status of a condition', reason="InvalidKptfile"
        )
    builtins: dict[str, str] = msgspec.to_builtins(condition)
    return builtins


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
    """Return the first document, which must be a mapping; there should be no other."""
    try:
        document = editor.parse(text)[0]
    except editor.YamlError as error:
        raise PermanentError(f"{FILE}: {error}", reason="InvalidKptfile") from None
    if not isinstance(document.value, dict):
        raise PermanentError(f"{FILE}: not a mapping", reason="InvalidKptfile")
    return document


# ---------------------------------------------------------------- reading


def _texts(value: Any) -> Any:
    """Convert scalars to strings, as Go does for string fields, and drop nulls, which count as absent."""
    if isinstance(value, dict):
        return {str(key): _texts(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_texts(item) for item in value if item is not None]
    if isinstance(value, bool):
        return "True" if value else "False"
    return value if isinstance(value, str) else str(value)
