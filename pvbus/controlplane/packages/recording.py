"""Writes the outcome of a pipeline into the Kptfile's status: conditions and kpt's `renderStatus`."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from pvbus.controlplane.packages import content
from pvbus.controlplane.packages.functions import files
from pvbus.controlplane.packages.functions.item import Result
from pvbus.core.api.variants import Condition
from pvbus.core.errors import PermanentError
from pvbus.core.variants.revisions.validators import Report, Saved, conditions_of

RESULTS_MAX = 50
"""Results of one function that a Kptfile stores: it is read for every revision."""
RESULTS_BYTES_MAX = 64 * 1024
"""The size of the results of all functions together, and of their errors: a Kptfile may have 512 KiB."""


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one executed function.

    package: the directory of the package, "" for the root
    step: the position in the pipeline, such as `pipeline.mutators[3]`
    image: the image, "" for a program
    name: the name of the step, "" for none
    exec: the command line, "" for an image
    results: what the function reported
    note: about the choice of the function, for the log; "" for nothing
    error: why the function failed, "" if it did not
    reason: the class of the error, "" for none
    """

    package: str
    step: str
    image: str
    name: str = ""
    exec: str = ""
    results: tuple[Result, ...] = ()
    note: str = ""
    error: str = ""
    reason: str = ""


def render_status(reports: Sequence[StepReport], message: str) -> dict[str, Any] | None:
    """Return the Kptfile's `renderStatus` of the executed functions, in kpt's form; None if none ran."""
    status: dict[str, Any] = {}
    for phase, field in (("mutators", "mutationSteps"), ("validators", "validationSteps")):
        steps = [
            _step_status(report, RESULTS_BYTES_MAX // len(reports))
            for report in reports
            if report.step.startswith(f"pipeline.{phase}[")
        ]
        if steps:
            status[field] = steps
    if status and message:
        status["errorSummary"] = message
    return status or None


def _step_status(report: StepReport, bytes_max: int) -> dict[str, Any]:
    """Return one function's part of the `renderStatus`.

    bytes_max: the size of its results, and again of its errors
    """
    step: dict[str, Any] = {"name": report.name} if report.name else {}
    step |= {"exec": report.exec} if report.exec else {"image": report.image}
    if report.error:
        step["executionError"] = report.error
    step["exitCode"] = 1 if report.error else 0
    for field, wanted in (("results", False), ("errorResults", True)):
        if listed := [each for each in report.results if (each.severity == "error") == wanted]:
            step[field] = _recorded(listed, bytes_max)
    return step


def _recorded(results: Sequence[Result], bytes_max: int) -> list[Any]:
    """Return results as a Kptfile stores them, and the number of those that do not fit."""
    sizes = accumulate(len(msgspec.json.encode(each)) for each in results[:RESULTS_MAX])
    fitting = [each for each, size in zip(results[:RESULTS_MAX], sizes, strict=True) if size <= bytes_max]
    listed: list[Any] = msgspec.to_builtins(fitting)
    if left := len(results) - len(fitting):
        listed.append({"message": f"and {left} more", "severity": "info"})
    return listed


def of_validators(
    resources: Mapping[str, str], reports: Sequence[StepReport], message: str, *, is_saved: bool
) -> list[Condition]:
    """Return the conditions of a package's validators.

    is_saved: whether the files that they saw are stored
    """
    by_position = {
        (report.package, report.step): Report(
            [{**msgspec.to_builtins(each), "severity": each.severity} for each in report.results],
            report.error,
            report.reason,
        )
        for report in reports
    }
    saved: Saved = "as validated" if is_saved else "otherwise"
    found = conditions_of(content.validators_in(resources), by_position, message, saved)
    return [msgspec.convert(each, Condition) for each in found]


def deferred_validators(resources: Mapping[str, str], message: str) -> list[Condition]:
    """Return the conditions of a package's validators while its pipeline has not run."""
    found = conditions_of(content.validators_in(resources), {}, message, "deferred")
    return [msgspec.convert(each, Condition) for each in found]


def with_conditions(
    resources: Mapping[str, str],
    conditions: Sequence[Condition],
    render_status: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return the files with these as the store's conditions, the last ones in the root Kptfile's status.

    render_status: replaces the former one. An unreadable Kptfile stays as it is: the render's message
    reports the problem already.
    """
    try:
        package = files.read({files.KPTFILE: resources[files.KPTFILE]})
        (kptfile,) = package.items
        status = kptfile.value.get("status") or {}
        others = [
            each for each in status.get("conditions") or [] if not content.is_stores(str(each.get("type")))
        ]
    except (KeyError, ValueError, TypeError, AttributeError, PermanentError):
        return dict(resources)
    own = [_entry(condition) for condition in conditions]
    retained = {key: each for key, each in status.items() if key != "renderStatus"}
    described = {"renderStatus": dict(render_status)} if render_status else {}
    value = {**kptfile.value, "status": {**retained, "conditions": [*others, *own], **described}}
    return {**resources, **files.write({}, package, [kptfile.with_value(value)])}


def _entry(condition: Condition) -> dict[str, str]:
    entry = {"type": condition.type, "status": condition.status, "reason": condition.reason}
    return {**entry, "message": condition.message} if condition.message else entry
