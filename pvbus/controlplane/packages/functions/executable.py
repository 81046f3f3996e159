"""Runs a program as a function: a ResourceList on its standard input, another on its output.

Source of the protocol: kustomize cmd/config/docs/api-conventions/functions-spec.md, and kpt v1.0.0-beta.62
for the annotations: paths are relative to the object's package. Old libraries read the names without
`internal.`, so both are written, and both are removed afterwards.
"""

import posixpath
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from pvbus.controlplane.packages import bounds, programs
from pvbus.controlplane.packages.functions.item import (
    FunctionError,
    FunctionOutput,
    Item,
    Result,
    Value,
    text_of,
)
from pvbus.controlplane.packages.functions.limits import exclude_time
from pvbus.controlplane.packages.functions.yamltext import load
from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import YamlError, get, replaced
from pvbus.core.yaml.writer import dump

TIMEOUT_SECONDS = 300.0
OUTPUT_BYTES_MAX = 32 * 1024 * 1024
"""Limit of a program's output: five times the largest package."""
MEMORY_BYTES_MAX = 2 * 1024**3
FILE_BYTES_MAX = 256 * 1024**2
"""Limits of a program's memory and of one file: enough for any known function, but not the whole machine."""
# The program inherits nothing of ours: no credentials, no proxies, no settings.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_STDERR_CHARACTERS_MAX = 2000

_PATH = "internal.config.kubernetes.io/path"
_INDEX = "internal.config.kubernetes.io/index"
_PACKAGE = "internal.config.kubernetes.io/package-path"
_ID = "internal.config.kubernetes.io/id"
_LEGACY = {_PATH: "config.kubernetes.io/path", _INDEX: "config.kubernetes.io/index", _ID: "config.k8s.io/id"}
_BOOKKEEPING = frozenset(
    {_PATH, _INDEX, _PACKAGE, _ID, *_LEGACY.values(), "internal.config.kubernetes.io/seqindent"}
)
_ANNOTATIONS = ("metadata", "annotations")


class Ended(NamedTuple):
    """The end of a program or container.

    code: its exit code
    out: its standard output
    err: its standard error
    """

    code: int
    out: str
    err: str


def run_executable(
    command: Sequence[str],
    items: Sequence[Item],
    config: Value | None,
    *,
    timeout_seconds: float,
    isolated: bool = True,
) -> FunctionOutput:
    """Run a program on the items; block until it ends. Raises: PermanentError if it fails."""
    return evaluate(lambda text: _run(command, text, timeout_seconds, isolated), items, config)


def evaluate(run: Callable[[str], Ended], items: Sequence[Item], config: Value | None) -> FunctionOutput:
    """Return the output of a function: `run` passes it a ResourceList. Raises: PermanentError."""
    with exclude_time():
        code, out, err = run(encode(items, config))
    if code:
        results = _results_of(out)
        reported = [result.message for result in results if result.severity == "error"]
        said = "; ".join(reported) or err.strip()[-_STDERR_CHARACTERS_MAX:] or "no output"
        raise FunctionError(f"exit code {code}: {said}", results, code)
    return decoded(out, items)


def decoded(text: str, items: Sequence[Item]) -> FunctionOutput:
    """Read a returned ResourceList. Raises: PermanentError if it is not one."""
    try:
        return decode(text, items)
    except YamlError as exc:
        raise fault(f"the output is not a ResourceList: {exc}") from exc


def encode(items: Sequence[Item], config: Value | None) -> str:
    """Return the ResourceList. Comments inside the objects are kept: some functions read them."""
    head: Value = {"apiVersion": "config.kubernetes.io/v1", "kind": "ResourceList"}
    if config is not None:
        head["functionConfig"] = config
    marked = [_marked(item, number) for number, item in enumerate(items)]
    if not marked:
        return dump({**head, "items": []})
    text = f"{dump(head)}items:\n{''.join(map(_element, marked))}"
    values = [item.value for item in marked]
    try:
        if load(text)["items"] == values:
            return text
    except (YamlError, KeyError):
        pass  # a text that cannot be nested, such as one with directives: write its values
    return dump({**head, "items": values})


def decode(text: str, items: Sequence[Item]) -> FunctionOutput:
    """Read a returned ResourceList: objects that were sent keep the unchanged parts of their text."""
    resources = load(text)
    if not isinstance(resources, dict) or resources.get("kind") != "ResourceList":
        raise YamlError("kind is not ResourceList")
    given = resources.get("items") or []
    if not isinstance(given, list) or not all(isinstance(value, dict) for value in given):
        raise YamlError("items is not a list of objects")
    returned = tuple(_returned(value, items) for value in given)
    if problem := bounds.paths_problem(sorted({item.file for item in returned if item.file})):
        raise fault(f"an object cannot be put there: {problem}")
    return FunctionOutput(items=returned, results=_results(resources))


def _run(command: Sequence[str], text: str, timeout_seconds: float, isolated: bool) -> Ended:
    with tempfile.TemporaryDirectory(prefix="pvbus-function-", ignore_cleanup_errors=True) as folder:
        environment = {**ENVIRONMENT, "HOME": folder, "TMPDIR": folder}
        try:
            process = programs.start(
                command,
                folder,
                environment,
                with_input=True,
                limits=programs.Limits(MEMORY_BYTES_MAX, FILE_BYTES_MAX),
                isolated=isolated,
            )
        except OSError as exc:
            raise fault(f"cannot start {command[0]}: {exc.strerror}") from exc
        except ValueError as exc:
            raise fault(f"cannot start {command[0]!r}: {exc}") from exc
        return finish(process, text, timeout_seconds)


def finish(process: "subprocess.Popen[bytes]", text: str, timeout_seconds: float) -> Ended:
    """Pass a ResourceList to a started program, and wait for its end. Raises: PermanentError after a kill."""
    outcome = programs.run(process, text.encode(), seconds_max=timeout_seconds, bytes_max=OUTPUT_BYTES_MAX)
    if outcome.excess:
        raise fault(f"wrote more than {OUTPUT_BYTES_MAX} bytes and was killed")
    if outcome.code is None:
        raise fault(f"did not end within {timeout_seconds:g} s and was killed")
    return Ended(outcome.code, outcome.out.decode(errors="replace"), outcome.err.decode(errors="replace"))


def _marked(item: Item, number: int) -> Item:
    inside = item.file.removeprefix(f"{item.package}/") if item.package else item.file
    marks = {_PATH: inside, _INDEX: str(max(item.index, 0)), _ID: str(number)}
    marks |= {_LEGACY[name]: text for name, text in marks.items()}
    marks[_PACKAGE] = item.package or "."
    present = get(item.value, _ANNOTATIONS)
    annotations = {**(present if isinstance(present, dict) else {}), **marks}
    return msgspec.structs.replace(item, file="").with_value(replaced(item.value, _ANNOTATIONS, annotations))


def _element(item: Item) -> str:
    lines = item.text.split("\n")
    start = next((number for number, line in enumerate(lines) if line.startswith("---")), None)
    if start is not None:
        lines[start] = lines[start][3:]
    body = "\n".join(f"  {line}" if line else line for line in lines if line.rstrip() != "...")
    return f"- {body.lstrip()}\n"


def _returned(value: Value, items: Sequence[Item]) -> Item:
    marks = {str(key): text_of(text) for key, text in (get(value, _ANNOTATIONS) or {}).items()}
    number = marks.get(_ID, marks.get(_LEGACY[_ID], ""))
    sent = items[int(number)] if number.isdigit() and int(number) < len(items) else None
    value = _unmarked(value, sent)
    package = marks.get(_PACKAGE, ".").removeprefix(".")
    inside = marks.get(_PATH) or marks.get(_LEGACY[_PATH], "")
    index = marks.get(_INDEX) or marks.get(_LEGACY[_INDEX], "")
    if inside and (posixpath.isabs(inside) or posixpath.normpath(inside).startswith("..")):
        raise fault(f"an object was put at `{inside}`, outside of the package")
    file = f"{package}/{inside}" if package and inside else inside
    position = int(index) if index.isdigit() else -1
    if sent is None:
        return Item(text=dump(value), value=value, package=package, file=file, index=position)
    return msgspec.structs.replace(sent.with_value(value), package=package, file=file, index=position)


def _unmarked(value: Value, sent: Item | None) -> Value:
    annotations = get(value, _ANNOTATIONS)
    if not isinstance(annotations, dict):
        return value
    retained = {key: text for key, text in annotations.items() if key not in _BOOKKEEPING}
    had = sent is not None and get(sent.value, _ANNOTATIONS) is not None
    if retained or had:
        return dict(replaced(value, _ANNOTATIONS, retained))
    metadata = {key: field for key, field in value["metadata"].items() if key != "annotations"}
    return {**value, "metadata": metadata}


def _results_of(text: str) -> tuple[Result, ...]:
    try:
        resources = load(text)
    except YamlError:
        return ()
    return _results(resources) if isinstance(resources, dict) else ()


def _results(resources: Mapping[str, Any]) -> tuple[Result, ...]:
    """Read results in either shape: a list, or a map with the list in `items`."""
    given = resources.get("results") or resources.get("result") or []
    if isinstance(given, dict):
        given = given.get("items") or []
    return tuple(_result(each) for each in given if isinstance(each, dict)) if isinstance(given, list) else ()


def _result(given: Mapping[str, Any]) -> Result:
    reference = given.get("resourceRef")
    reference = dict(reference) if isinstance(reference, dict) else {}
    metadata = reference.pop("metadata", None)
    field = dict(given["field"]) if isinstance(given.get("field"), dict) else {}
    if "suggestedValue" in field:
        field["proposedValue"] = field.pop("suggestedValue")
    return Result(
        message=text_of(given.get("message")),
        severity=text_of(given.get("severity")) or "error",
        resource_ref={**reference, **(metadata if isinstance(metadata, dict) else {})},
        field=field,
        file=dict(given["file"]) if isinstance(given.get("file"), dict) else {},
    )


def fault(message: str) -> PermanentError:
    """Return the error of a function that failed."""
    return FunctionError(message)
