"""Decides when a package's pipeline runs, and stores its outcome.

A pipeline need not be idempotent, so it runs only if its input is neither the last input nor the last
output. The outcome is a condition in the Kptfile and a note in the draft's commit message.
"""

import inspect
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import Any, NamedTuple

import msgspec

from pvbus.controlplane.packages.layout import RenderNote
from pvbus.controlplane.packages.render import RENDERED, RenderResult, input_digest, with_condition
from pvbus.core.api.variants import Condition
from pvbus.ports.cluster import Object

Render = Callable[[Mapping[str, str]], RenderResult | Awaitable[RenderResult]]
"""A render function. It runs in a worker thread; if it returns an awaitable, the event loop awaits it."""

DEFERRED = Condition(
    type=RENDERED,
    status="Unknown",
    reason="Deferred",
    message="the pipeline runs with the first update of the package's resources",
)


class Rendering(NamedTuple):
    """A rendered package. texts: the files with the condition `Rendered`; status: the API's renderStatus."""

    texts: Mapping[str, str]
    note: RenderNote | None
    status: Object | None = None


def defer(texts: Mapping[str, str]) -> Rendering:
    """Defer the pipeline to the next update."""
    return Rendering(with_condition(texts, DEFERRED), RenderNote("deferred", ""))


def is_needed(texts: Mapping[str, str], stored: Mapping[str, str], note: RenderNote | None) -> bool:
    """Return whether these files must be rendered. note: of the stored files."""
    if note is not None and note.state != "done":
        return True
    digest = input_digest(texts)
    return digest != input_digest(stored) and (note is None or digest != note.digest)


def is_source_of_stored(texts: Mapping[str, str], note: RenderNote | None) -> bool:
    """Return whether the stored files were rendered from exactly these files."""
    return note is not None and note.state == "done" and input_digest(texts) == note.digest


async def run(render: Render, texts: Mapping[str, str], executor: Executor) -> Rendering:
    """Run the pipeline; a package that cannot be rendered keeps its files and records the error."""
    outcome = await get_running_loop().run_in_executor(executor, render, texts)
    return rendering_of(await outcome if inspect.isawaitable(outcome) else outcome)


def rendering_of(result: RenderResult) -> Rendering:
    """Return the part of a pipeline's result that is stored."""
    note = RenderNote("done" if result.rendered else "failed", result.digest)
    return Rendering(result.resources, note, _status(result))


def _status(result: RenderResult) -> Object | None:
    items: list[dict[str, Any]] = []
    for report in result.steps:
        item: dict[str, Any] = {"exitCode": 1 if report.error else 0}
        if report.image:
            item["image"] = report.image
        if report.error:
            item["stderr"] = report.error
        if report.results:
            item["results"] = msgspec.to_builtins(report.results)
        if report.error or report.results:
            items.append(item)
    if result.rendered and not items:
        return None
    listed: dict[str, Any] = {
        "apiVersion": "kpt.dev/v1",
        "kind": "FunctionResultList",
        "metadata": {"name": "fnresults"},
        "exitCode": 0 if result.rendered else 1,
    }
    if items:
        listed["items"] = items
    return {"error": result.message, "result": listed}
