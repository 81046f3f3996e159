"""The conditions of a package's validators: one for each function of `pipeline.validators`.

Only the package store sets them, when it runs the pipeline, so that a readiness gate on such a type is met
only by a validator that passed on the content that is stored. The same reports give the same conditions.

Source: kpt v1.0.0-beta.62, pkg/api/kptfile/v1/types.go; results as in kustomize's functions-spec.md.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pvbus.core.kernel.messages import part
from pvbus.core.kernel.objects import mapping

PREFIX = "validator.pvbus.dev/"
"""Of the types of all validators' conditions. A condition with it that has no validator is removed."""

SET_BY = "is set by the package store when it runs the validator; only it may set it: correct the package"

VALIDATORS_MAX = 100
"""Validators of a package that have a condition: with a message of the longest each, they fit into what a
PackageRevision shows of a Kptfile (256 KiB)."""
MESSAGE_CHARACTERS_MAX = 500
FINDING_CHARACTERS_MAX = 140
"""Of one finding: as many as are shown fit into a message."""
FINDINGS_SHOWN_MAX = 3
NAME_CHARACTERS_MAX = 63
"""Of the type behind its prefix, as of a label in Kubernetes."""

NOT_RUN = frozenset({"ExecNotAllowed", "FunctionNotFound", "InvalidPipeline", "RenderTimeout"})
"""Reasons of errors after which nothing is known of the package: its executor or its input was missing."""
SEVERITIES = ("error", "warning", "info")

_ADDED = re.compile(r"PackageVariant\..+\.(?P<name>[^.]*)\.[+-]?[0-9]+")
"""The name of a function that a PackageVariant added. See `pvbus.core.variants.inject.mutations.pipeline`."""
_FOREIGN = re.compile(r"[^A-Za-z0-9_.-]+")

Object = Mapping[str, Any]
Position = tuple[str, str]
"""Of a function: the package's directory, '' for the root, and the path in its Kptfile,
`pipeline.validators[0]`."""
Saved = Literal["as validated", "otherwise", "deferred"]
"""What is stored: what the validators saw, something else after a failure, or what has not been rendered."""


class Validator(NamedTuple):
    """A function of `pipeline.validators`, and the type of its condition."""

    position: Position
    type: str


class Report(NamedTuple):
    """What became of a function that was reached.

    results: its results, in kpt's form
    error: why it failed, "" if it did not
    reason: the class of the error, as one word
    """

    results: Sequence[Object] = ()
    error: str = ""
    reason: str = ""


def is_validators(type_: str) -> bool:
    """Return whether a condition type is one of validators, of this package or another."""
    return type_.startswith(PREFIX)


def validators_of(kptfiles: Mapping[str, Any]) -> tuple[Validator, ...]:
    """Return the validators of a package and its sub-packages. kptfiles: content by directory.

    A type has the function's name, else that of its image or program. Of several alike the package's own come
    before those that a PackageVariant adds and those of sub-packages, in their order, and the second one ends
    in `-2`. What is no function is left out.
    """
    entries: list[tuple[Any, str, Position]] = []
    for directory, value in kptfiles.items():
        for index, entry in enumerate(_entries(value)):
            if isinstance(entry, dict) and (name := _name(entry)):
                path = f"{directory.replace('/', '.')}.{name}" if directory else name
                is_added = _ADDED.fullmatch(str(entry.get("name") or "")) is not None
                order = (bool(directory), is_added, directory, index)
                entries.append((order, _plain(path), (directory, f"pipeline.validators[{index}]")))
    entries.sort(key=lambda item: item[0])
    known = {name for _, name, _ in entries}
    taken: set[str] = set()
    validators = []
    for _, name, position in entries[:VALIDATORS_MAX]:
        own = name if name not in taken else _next(name, known | taken)
        taken.add(own)
        validators.append(Validator(position, f"{PREFIX}{own}"))
    return tuple(validators)


def conditions_of(
    validators: Iterable[Validator], reports: Mapping[Position, Report], why: str, saved: Saved
) -> list[dict[str, str]]:
    """Return the conditions after a run of the pipeline. why: the error that ended it, "" without one."""
    return [
        _condition(validator.type, *_verdict(reports.get(validator.position), why, saved))
        for validator in sorted(validators, key=lambda validator: validator.type)
    ]


def unproven(conditions: Iterable[Object]) -> list[dict[str, str]]:
    """Return conditions with those of validators Unknown: another program has written this content."""
    why = "the store did not write this content: save the package's resources, so that the pipeline runs"
    return [
        _condition(str(condition["type"]), "Unknown", "NotRun", why)
        if is_validators(str(condition.get("type")))
        else dict(condition)
        for condition in conditions
    ]


def _verdict(report: Report | None, why: str, saved: Saved) -> tuple[str, str, str]:
    """Return status, reason and message of a condition."""
    if saved == "deferred":
        return "Unknown", "Deferred", why
    if report is None:
        return "Unknown", "NotRun", f"it did not run: {why}"
    if report.reason in NOT_RUN:
        return "Unknown", "NotRun", f"it did not run: {report.error}"
    summary = findings(report.results)
    failed = any(_severity(result) == "error" for result in report.results)
    if report.error or failed:
        return "False", "Failed", summary if failed else f"it failed without an error result: {report.error}"
    if saved == "otherwise":
        return "Unknown", "NotRun", f"it passed on the pipeline's output, which is not stored: {why}"
    return "True", "Passed", summary


def findings(results: Sequence[Object]) -> str:
    """Return how many results of each severity there are, and the first of the worst; "" without any."""
    by_severity = {
        severity: [result for result in results if _severity(result) == severity] for severity in SEVERITIES
    }
    counts = ", ".join(_count(severity, len(alike)) for severity, alike in by_severity.items() if alike)
    worst = next((alike for alike in by_severity.values() if alike), [])
    lines = sorted({_finding(result) for result in worst})
    if not lines:
        return ""
    hidden = len(results) > len(worst) or len(lines) > FINDINGS_SHOWN_MAX
    rest = "; all are in status.renderStatus of the Kptfile" if hidden else ""
    return f"{counts}: {'; '.join(lines[:FINDINGS_SHOWN_MAX])}{rest}"


def _finding(result: Object) -> str:
    """Return a result in one line: file, object and field, and its message."""
    reference, field, file = (mapping(result.get(key)) for key in ("resourceRef", "field", "file"))
    name = "/".join(str(reference[key]) for key in ("namespace", "name") if reference.get(key))
    words = (file.get("path"), reference.get("kind"), name, field.get("path"))
    where = " ".join(str(word) for word in words if word)
    message = str(result.get("message") or "no message")
    return part(_one_line(f"{where}: {message}" if where else message), FINDING_CHARACTERS_MAX)


def _severity(result: Object) -> str:
    """Return the severity of a result; error for what the protocol does not know."""
    severity = result.get("severity")
    return str(severity) if severity in SEVERITIES else "error"


def _count(severity: str, count: int) -> str:
    return f"{count} {severity}{'s' if count > 1 and severity != 'info' else ''}"


def _condition(type_: str, status: str, reason: str, message: str) -> dict[str, str]:
    condition = {"type": type_, "status": status, "reason": reason}
    return (
        {**condition, "message": part(_one_line(message), MESSAGE_CHARACTERS_MAX)} if message else condition
    )


def _name(entry: Mapping[str, Any]) -> str:
    """Return the name of a function: that in the Kptfile, of its image, or of its program."""
    name = str(entry.get("name") or "")
    if added := _ADDED.fullmatch(name):
        name = added["name"]
    image = str(entry.get("image") or "").partition("@")[0].rpartition("/")[2].partition(":")[0]
    program = (str(entry.get("exec") or "").split() or [""])[0].rpartition("/")[2]
    return name or image or program


def _plain(name: str) -> str:
    """Return a name as it can be in the type of a condition."""
    return _FOREIGN.sub("-", name).strip("-_.")[:NAME_CHARACTERS_MAX].strip("-_.") or "function"


def _next(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"


def _entries(kptfile: Any) -> Sequence[Any]:
    entries = mapping(mapping(kptfile).get("pipeline")).get("validators")
    return entries if isinstance(entries, list) else ()


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
