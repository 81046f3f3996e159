"""The result of a package's last pipeline run, in the form of `status.downstreamTargets[].renderStatus`.

A package server returns it only once, in the response to the save. kpt records the same in the Kptfile, where
a worker that restarts after its save finds it; so the Kptfile is read first, and both ways give one value.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pvbus.core.api import kptfile
from pvbus.core.api.packages import function_item, function_results
from pvbus.core.errors import PermanentError
from pvbus.core.variants.revisions.owning import Object

RENDERED = "Rendered"


class _Step(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One function that ran. Source: kpt's Kptfile, `status.renderStatus.mutationSteps[]`."""

    image: str = ""
    execution_error: str = ""
    exit_code: int = 0
    results: tuple[dict[str, Any], ...] = ()
    error_results: tuple[dict[str, Any], ...] = ()


class _Recorded(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    mutation_steps: tuple[_Step, ...] = ()
    validation_steps: tuple[_Step, ...] = ()
    error_summary: str = ""


def render_status(resources: Object) -> dict[str, Any] | None:
    """Return the render status of a PackageRevisionResources; None if no function ran."""
    files = (resources.get("spec") or {}).get("resources") or {}
    status = recorded(files.get(kptfile.FILE, ""))
    return status if status is not None else reported((resources.get("status") or {}).get("renderStatus"))


def reported(status: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a renderStatus with the fields that the API requires; None for an empty one."""
    if not status:
        return None
    complete = {"error": "", **status}
    if complete.get("result") is not None:
        result = {"exitCode": 0, **complete["result"]}
        if result.get("items"):
            result["items"] = [{"exitCode": 0, **item} for item in result["items"]]
        complete["result"] = result
    return complete


def recorded(text: str) -> dict[str, Any] | None:
    """Return the render status in a Kptfile; None if it has none, or if no function ran."""
    try:
        status = kptfile.read(text).status
        run = msgspec.convert(status.render_status or {}, _Recorded)
    except (PermanentError, msgspec.ValidationError):
        return None  # not in kpt's form
    if not any(each.type == RENDERED and each.status in ("True", "False") for each in status.conditions):
        return None  # it belongs to the package that this one was cloned from
    items = list(_items(run))
    if not items and not run.error_summary:
        return None
    return function_results(run.error_summary, items)


def _items(run: _Recorded) -> Iterator[dict[str, Any]]:
    for step in (*run.mutation_steps, *run.validation_steps):
        results = [*step.results, *step.error_results]
        yield function_item(step.exit_code, step.image, step.execution_error, results)
