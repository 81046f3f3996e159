"""Reads the settings of a process from `PVBUS_*` variables and the YAML file that `PVBUS_CONFIG` names.

A field `log_level` is the variable `PVBUS_LOG_LEVEL` and the key `logLevel` of the file; a variable overrides
the file. All problems are reported at once, including misspelt names. Several services may share one file:
each takes its own fields. Which settings there are says `settings`.
"""

import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from pvbus.adapters.files import open_plain
from pvbus.core.errors import UsageError
from pvbus.core.yaml.reader import YamlError, document
from pvbus.runtime.process.settings import (
    ALL_CONFIGS,
    NAMESPACES_WANTED,
    HttpUrl,
    Mirrors,
    Namespaces,
    ProcessConfig,
)

FILE_BYTES_MAX = 1 << 20  # a thousand times the size of usual settings
CONFIG_VARIABLE = "PVBUS_CONFIG"
_PREFIX = "PVBUS_"
_C = TypeVar("_C", bound=ProcessConfig)


def load_config(type_: type[_C], environment: Mapping[str, str] | None = None) -> _C:
    """Read the settings of a process. Raises UsageError that lists every problem."""
    environment = os.environ if environment is None else environment
    path = environment.get(CONFIG_VARIABLE, "")
    problems = list(_mistyped(environment))
    given = _read(path, problems) if path else {}
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(type_):
        variable = variable_of(field.name)
        if variable in environment:
            where, value = variable, _from_text(environment[variable], field.type)
        elif field.encode_name in given:
            where, value = f"{path}: {field.encode_name}", given[field.encode_name]
        else:
            continue
        try:
            values[field.name] = msgspec.convert(value, field.type, strict=False)
        except msgspec.ValidationError as exc:
            problems.append(f"{where}: {_wanted(field.type) or exc} (given: {value!r})")
    if problems:
        raise UsageError("invalid configuration:\n  " + "\n  ".join(problems))
    return type_(**values)


def settings_text(type_: type[ProcessConfig]) -> str:
    """Return a line for each setting of a process: its variable, and its default if it has one."""
    fields = msgspec.structs.fields(type_)
    width = max(len(variable_of(field.name)) for field in fields)
    lines = [f"  {variable_of(field.name):{width}}  {_shown(field.default)}".rstrip() for field in fields]
    return "\n".join([*lines, f"  {CONFIG_VARIABLE:{width}}  a YAML file with any of them: logLevel: debug"])


def _shown(default: object) -> str:
    if default is msgspec.NODEFAULT:
        return "{}"
    return str(default).lower() if isinstance(default, bool) else str(default)


def variable_of(field: str) -> str:
    """Return the environment variable of a setting."""
    return _PREFIX + field.upper()


def _read(path: str, problems: list[str]) -> Mapping[str, Any]:
    try:
        with open_plain(Path(path)) as stream:
            found = document(stream.read(FILE_BYTES_MAX)).value
    except (OSError, YamlError, UsageError) as exc:
        problems.append(f"{CONFIG_VARIABLE}: cannot read {path}: {exc}")
        return {}
    if found is None:
        return {}
    if not isinstance(found, dict):
        problems.append(f"{path}: must be a mapping of settings")
        return {}
    known = {field.encode_name for field in all_fields()}
    problems += [
        f"{path}: {name}: unknown setting{_meant(str(name), known)}" for name in found if name not in known
    ]
    return found


def all_fields() -> Iterator[msgspec.structs.FieldInfo]:
    """Yield the settings of all processes."""
    for type_ in ALL_CONFIGS:
        yield from msgspec.structs.fields(type_)


_KAFKA_PREFIX = _PREFIX + "KAFKA_"
_LINK = re.compile(_KAFKA_PREFIX + r"(SERVICE|PORT)(_|$)")
"""Variables that Kubernetes sets in every pod if there is a Service `pvbus-kafka`."""


def _mistyped(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the problems of variable names.

    A misspelt variable can disable encryption or the guard of removals. A name unlike every setting belongs
    to another program, except under PVBUS_KAFKA_: there it may be a setting's name in another Kafka client.
    """
    known = {variable_of(field.name) for field in all_fields()} | {CONFIG_VARIABLE}
    for name in sorted(name for name in environment if name.startswith(_PREFIX) and name not in known):
        meant = _meant(name, known)
        if meant or (name.startswith(_KAFKA_PREFIX) and not _LINK.match(name)):
            yield f"{name}: unknown setting{meant}"


def _meant(name: str, known: set[str]) -> str:
    """Return a suggestion for a misspelt name, "" if none is close; the common prefix does not count."""
    names = {each.removeprefix(_PREFIX): each for each in known}
    close = get_close_matches(name.removeprefix(_PREFIX), sorted(names), n=1, cutoff=0.8)
    return f"; did you mean {names[close[0]]}?" if close else ""


def _wanted(type_: Any) -> str:
    """Return the valid values of a setting in words, "" if msgspec's error is clear enough."""
    if type_ == Namespaces:
        return NAMESPACES_WANTED
    if type_ == Mirrors:
        return "must be registry=address[/prefix], separated by commas, without https://"
    if type_ == HttpUrl:
        return "must be a URL such as https://prometheus.monitoring:9090, without a password or a query"
    if type_ is bool:
        return "must be true or false"
    if get_origin(type_) is Literal:
        return f"must be {' or '.join(choice or 'nothing' for choice in get_args(type_))}"
    return ""


def _from_text(text: str, type_: Any) -> Any:
    """Return the value in a variable: its text; a mapping is YAML."""
    if get_origin(type_) is Mapping:
        try:
            return document(text).value
        except YamlError:
            return text
    return text
