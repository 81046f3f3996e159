"""apply-replacements: copy a field of one object into fields of others.

Source: functions/go/apply-replacements v0.1.1 of the krm-functions-catalog with kustomize api v0.10.1.
Changes of later versions are not included: a missing target field is skipped, names are not patterns,
there is no wildcard, and the whole node is written, with the source's quotes and comment.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from pvbus.controlplane.packages.functions.item import (
    FunctionOutput,
    Item,
    Scalar,
    Value,
    lookup,
    replaced,
    scalar_at,
)
from pvbus.controlplane.packages.functions.selecting import ObjectSelector
from pvbus.controlplane.packages.functions.yamltext import Path
from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import DEPTH_MAX

_NAME = "metadata.name"


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    delimiter: str = ""
    index: int = 0
    create: bool = False


class _Target(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    select: dict[str, Any] | None = None
    reject: tuple[dict[str, Any], ...] = ()
    field_paths: tuple[str, ...] = ()
    options: _Options = _Options()


class _Replacement(msgspec.Struct, frozen=True, kw_only=True):
    source: dict[str, Any] | None = None
    targets: tuple[_Target, ...] = ()


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    replacements: tuple[_Replacement, ...] = ()


class _Match(NamedTuple):
    """The part `[key=value]` of a field path: the first matching list element. key '': a scalar element."""

    key: str
    value: str

    def accepts(self, element: Any) -> bool:
        found = lookup(element, (self.key,)) if self.key else element
        return found is not None and not isinstance(found, (dict, list)) and _written(found) == self.value

    def made(self) -> Any:
        return {self.key: self.value} if self.key else self.value


class _Source(NamedTuple):
    """The copied value, and its spelling if it is a scalar."""

    value: Any
    scalar: Scalar | None


_Part = str | _Match


def apply_replacements(items: Sequence[Item], config: Value | None) -> FunctionOutput:
    """Apply each replacement to the result of the previous one."""
    config = config or {}
    if (config.get("apiVersion"), config.get("kind")) != ("fn.kpt.dev/v1alpha1", "ApplyReplacements"):
        raise _fault(
            f"functionConfig is {config.get('kind') or 'absent'}, "
            "expected `ApplyReplacements` of fn.kpt.dev/v1alpha1"
        )
    try:
        replacements = msgspec.convert(
            {"replacements": config.get("replacements") or []}, _Config, strict=False
        ).replacements
    except msgspec.ValidationError as exc:
        raise _fault(str(exc)) from exc
    changed = list(items)
    for replacement in replacements:
        source = _read(changed, replacement.source)
        for target in replacement.targets:
            changed = _write(changed, target, source)
    return FunctionOutput(items=tuple(changed))


def parse_path(text: str) -> tuple[_Part, ...]:
    """Split a field path at its dots: `\\.` is a dot inside a key, brackets enclose a part with dots."""
    parts: list[_Part] = []
    current, position = "", 0
    while position <= len(text):
        char = text[position : position + 1]
        end = text.find("]", position) if char == "[" else -1
        if char == "\\" and text[position + 1 : position + 2] == ".":
            current += "."
            position += 2
        elif char == "[" and not current and end > 0:
            inner = text[position + 1 : end]
            key, equals, value = inner.partition("=")
            parts.append(_Match(key, value) if equals else inner)
            # A dot after the bracket belongs to it.
            position = end + (2 if text[end + 1 : end + 2] in (".", "") else 1)
        elif char in (".", ""):
            if current or char:
                parts.append(current)
            current = ""
            position += 1
        else:
            current += char
            position += 1
    if len(parts) > DEPTH_MAX:
        raise _fault(f"a field path has {len(parts)} parts, at most {DEPTH_MAX} are allowed: {text[:80]}...")
    return tuple(parts)


def _read(items: Sequence[Item], source: dict[str, Any] | None) -> _Source:
    if source is None:
        raise _fault("a replacement has no source")
    selector = ObjectSelector.parse(
        {key: source[key] for key in source if key not in ("fieldPath", "options")}
    )
    matches = [item for item in items if selector.matches(item)]
    if not matches:
        raise _fault(f"nothing selected by {selector}")
    if len(matches) > 1:
        raise _fault(f"multiple matches for selector {selector}: {', '.join(map(str, matches))}")
    field_path = source.get("fieldPath") or _NAME
    located = _locate(matches[0].value, parse_path(field_path), create=False)
    value = lookup(matches[0].value, located[0]) if located else None
    if value in (None, "", {}, []):
        raise _fault(f"fieldPath `{field_path}` is missing or empty in the replacement source {matches[0]}")
    assert located
    scalar = scalar_at(matches[0], located[0])
    try:
        options = msgspec.convert(source.get("options") or {}, _Options)
    except msgspec.ValidationError as exc:
        raise _fault(f"source options: {exc}") from exc
    return _Source(value, scalar) if not options.delimiter else _part_of(scalar, options)


def _part_of(scalar: Scalar | None, options: _Options) -> _Source:
    if scalar is None:
        raise _fault("the source option `delimiter` needs a scalar")
    parts = scalar.text.split(options.delimiter)
    if not 0 <= options.index < len(parts):
        raise _fault(f"the source option `index` {options.index} is out of bounds for {scalar.text!r}")
    part = scalar._replace(text=parts[options.index])
    return _Source(part.value, part)


def _write(items: Sequence[Item], target: _Target, source: _Source) -> list[Item]:
    if target.select is None:
        raise _fault("a replacement target has no `select`")
    select = ObjectSelector.parse(target.select)
    rejects = [each for each in map(ObjectSelector.parse, target.reject) if not each.is_empty]
    paths = [parse_path(text) for text in target.field_paths or (_NAME,)]
    changed: list[Item] = []
    for item in items:
        if select.matches(item) and not any(reject.matches(item) for reject in rejects):
            for path in paths:
                item = _written_into(item, path, target.options, source)
        changed.append(item)
    return changed


def _written_into(item: Item, parts: tuple[_Part, ...], options: _Options, source: _Source) -> Item:
    try:
        located = _locate(item.value, parts, create=options.create)
    except PermanentError as exc:
        raise _fault(f"{item}: {exc}") from exc
    if located is None:
        return item
    path, made = located
    scalar = source.scalar
    if options.delimiter:
        scalar = _joined(item, path, options, source)
    if scalar is None:
        return item.with_value(replaced(made, path, source.value))
    if lookup(item.value, path) is None:
        item = item.with_value(replaced(made, path, scalar.value))
    return item.with_scalar(path, scalar)


def _joined(item: Item, path: Path, options: _Options, source: _Source) -> Scalar:
    """Replace one part of the target's text by the source."""
    present = lookup(item.value, path)
    if isinstance(present, (dict, list)):
        raise _fault(f"{item}: the target option `delimiter` needs a scalar")
    if source.scalar is None:
        raise _fault("the target option `delimiter` needs a scalar as source")
    target = scalar_at(item, path)
    parts = (target.text if target else "").split(options.delimiter)
    if options.index < 0:
        parts.insert(0, source.scalar.text)
    elif options.index >= len(parts):
        parts.append(source.scalar.text)
    else:
        parts[options.index] = source.scalar.text
    return source.scalar._replace(text=options.delimiter.join(parts))


def _locate(value: Any, parts: tuple[_Part, ...], *, create: bool) -> tuple[Path, Any] | None:
    """Return the path of keys and indices, and the value with the parts that `create` added.

    None if a part is missing. Raises: PermanentError if a part does not fit the value.
    """
    if not parts:
        return None if value is None and not create else ((), value)
    part, rest = parts[0], parts[1:]
    if value is None:
        if not create:
            return None
        value = [] if isinstance(part, _Match) else {}
    if isinstance(value, list):
        key: str | int | None = next(_indices(value, part), None)
        if key is None and isinstance(part, _Match) and create:
            key, value = len(value), [*value, part.made()]
    elif isinstance(value, dict) and isinstance(part, str):
        key = part if create or part in value else None
        value = value if part in value or not create else {**value, part: None}
    else:
        raise _fault(f"`{part}` of a field path does not fit the value")
    if key is None:
        return None
    inner = _locate(value[key], rest, create=create)
    if inner is None:
        return None
    path, made = inner
    return (key, *path), (value if made is value[key] else replaced(value, (key,), made))


def _indices(value: list[Any], part: _Part) -> Iterator[int]:
    if isinstance(part, _Match):
        yield from (index for index, element in enumerate(value) if part.accepts(element))
    elif part == "-":
        yield from (len(value) - 1,) if value else ()
    elif part.isascii() and part.isdigit() and len(part) < 10:
        yield from (int(part),) if int(part) < len(value) else ()
    else:
        raise _fault(f"`{part}` of a field path is not an element of a list")


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fault(message: str) -> PermanentError:
    return PermanentError(message, reason="InvalidFunctionConfig")
