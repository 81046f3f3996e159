"""Renders a package: runs the pipelines of its Kptfiles on its files.

This module does not depend on where packages are stored. A package's fault (a file that is not a
Kubernetes object, an unknown image, a failing function) is a result, not an exception.

A pipeline need not be idempotent: rendering a rendered package again may change it again. So a result
has the digests of its input and output, and the package store renders only files that have neither. The
outcome is a condition in the Kptfile and a note in the draft's commit message.
"""

import hashlib
import inspect
import time
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import msgspec
import yaml

from pvbus.controlplane.packages import answers, content
from pvbus.controlplane.packages.alike import AlikeTexts
from pvbus.controlplane.packages.functions import files, pipeline
from pvbus.controlplane.packages.functions.item import FunctionError, Item, Result
from pvbus.controlplane.packages.functions.limits import RENDER_TIMEOUT, render_limits
from pvbus.controlplane.packages.functions.pipeline import Entry, Phase, Step
from pvbus.controlplane.packages.functions.registry import BUILTINS, FunctionRegistry, unread_fields
from pvbus.controlplane.packages.functions.yamltext import compose, load, name_in
from pvbus.controlplane.packages.layout import RenderNote, one_line
from pvbus.controlplane.packages.recording import (
    StepReport,
    deferred_validators,
    of_validators,
    render_status,
    with_conditions,
)
from pvbus.core.api.packages import function_item, function_results
from pvbus.core.api.variants import Condition
from pvbus.core.errors import PermanentError
from pvbus.core.variants.merge import copies
from pvbus.core.yaml.editor import YamlError
from pvbus.ports.cluster import Object

BFS = "kpt.dev/bfs-rendering"
SAVE_ON_FAILURE = "kpt.dev/save-on-render-failure"


CONSTANT = frozenset(name for name, builtin in BUILTINS.items() if builtin.is_constant)
PROCESSES = frozenset({"", "starlark"})
"""Functions that need a process or a server ('': all that are not built in): too costly to repeat, and run by
the store itself. All other pipelines run twice, but for those of constant functions."""
SECOND_RUN_SECONDS_MAX = 1.0
"""Time of the first run above which there is no second one, and limit of the second."""
FILES_SHOWN_MAX = 3
CUT_BYTES_MAX = 2 << 20
_cut = AlikeTexts(CUT_BYTES_MAX)
"""Kptfiles without their status, as most of a fleet's are equal but for a name."""


class RenderResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of rendering a package.

    resources: all files, with the condition `Rendered` set in the root Kptfile
    digest: the digest of the files before, without the Kptfile's status
    output_digest: the digest of the files after, without the Kptfile's status
    rendered: whether all functions succeeded
    condition: the condition `Rendered`
    message: why the package was not rendered, in one sentence; "" if it was
    package: the sub-package of the failing function, "" for the root or if none failed
    image: the image of the failing function, "" if none failed
    step: the failing step, such as `pipeline.mutators[3]`; "" if none failed
    steps: a report of each step that ran
    warning: why a second run would change the files; "" if it would not, or if that is not known
    """

    resources: Mapping[str, str]
    digest: str
    output_digest: str
    rendered: bool
    condition: Condition
    message: str = ""
    package: str = ""
    image: str = ""
    step: str = ""
    steps: tuple[StepReport, ...] = ()
    warning: str = ""

    @property
    def results(self) -> tuple[Result, ...]:
        """The results of all functions, in order."""
        return tuple(result for report in self.steps for result in report.results)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes for users that are not failures."""
        return tuple(report.note for report in self.steps if report.note)


class _StepError(Exception):
    """A function failed."""

    def __init__(self, step: Step, message: str) -> None:
        super().__init__(f"{step}: {step.image or 'function'}: {message}")
        self.step = step


class _Run:
    """One rendering in progress: the current items and what was reported so far.

    Functions run in order, children's pipelines before their parent's unless the Kptfile asks for the
    opposite. Each function gets the items of its own package and of the packages in it; its output replaces
    them in place. An item is recognized by its id, and an item without one is new.

    originals: the items before the first function
    items: the items now
    reports: a report of each function that ran
    is_cheap: whether all mutators ran in this process
    is_constant: whether no mutator can change its own output
    began: when it began, in seconds of the monotonic clock
    """

    def __init__(
        self, items: Sequence[Item], registry: FunctionRegistry, phases: Sequence[Phase] = pipeline.PHASES
    ) -> None:
        self.originals = tuple(items)
        self.items = list(items)
        self.reports: list[StepReport] = []
        self.is_cheap = True
        self.is_constant = True
        self.began = time.monotonic()
        self._registry = registry
        self._phases = phases
        self._next_id = 1 + max((item.id for item in items if item.id is not None), default=0)

    def warning(self) -> str:
        """Return what a second run would change, "" for nothing, and where the answer costs too much."""
        took = time.monotonic() - self.began
        if self.is_constant or not self.is_cheap or took > SECOND_RUN_SECONDS_MAX:
            return ""
        second = _Run(self.items, self._registry, ("mutators",))
        try:
            with render_limits(SECOND_RUN_SECONDS_MAX):
                second.run()
        except (_StepError, PermanentError) as exc:
            timed_out = getattr(exc.__cause__, "reason", "") == RENDER_TIMEOUT
            return "" if timed_out else f"a second run of the pipeline would fail: {exc}"
        return _difference(self.items, second.items)

    def run(self) -> None:
        """Run every pipeline. Raises: _StepError, PermanentError; `items` then has the changes so far."""
        for step in self._steps():
            try:
                self._run_step(step)
            except (PermanentError, YamlError, OverflowError, RecursionError) as exc:
                message = "its objects are nested too deeply" if isinstance(exc, RecursionError) else str(exc)
                results = exc.results if isinstance(exc, FunctionError) else ()
                self._report(step, results=results, error=message, reason=getattr(exc, "reason", ""))
                raise _StepError(step, message) from exc

    def _steps(self) -> list[Step]:
        kptfiles = {item.package: item for item in self.originals if _is_kptfile(item)}
        if "" not in kptfiles:
            raise PermanentError("the package has no Kptfile", reason="InvalidPackage")
        parents_first = kptfiles[""].annotations.get(BFS) == "true"
        directories = sorted(kptfiles, key=_depth if parents_first else _children_first)
        try:
            steps = [step for directory in directories for step in pipeline.parse_steps(kptfiles[directory])]
            return [step for step in steps if step.phase in self._phases]
        except pipeline.InvalidStepError as exc:
            raise _StepError(exc.step, str(exc)) from exc

    def _run_step(self, step: Step) -> None:
        scope = [item for item in self.items if files.within(step.package, item.file)]
        config = pipeline.config_of(step, scope, self.originals)
        entry = step.entry
        image = entry.image if not entry.tag else f"{entry.image.partition('@')[0]}:{entry.tag}"
        function = self._registry.resolve(image) if image else self._registry.resolve_exec(entry.exec)
        if step.phase == "mutators":
            self.is_cheap &= function.builtin not in PROCESSES
            self.is_constant &= function.builtin in CONSTANT and _is_plain(entry)
        selected = pipeline.select(step, scope)
        output = function.run(selected, config)
        if output.error is not None:
            self._report(step, results=output.results, error=output.error, note=function.note)
            raise _StepError(step, output.error)
        if step.phase == "mutators":
            self._replace(scope, pipeline.merge(step, scope, selected, output.items))
        results = (*unread_fields(function.builtin, config), *output.results)
        self._report(step, results=results, note=function.note)

    def _replace(self, scope: Sequence[Item], merged: Sequence[Item]) -> None:
        """Replace a package's items in place within the items of all packages."""
        in_scope = {item.id for item in scope}
        known: dict[int | None, Item] = {item.id: item for item in merged if item.id is not None}
        retained = [
            known.get(item.id, item) for item in self.items if item.id not in in_scope or item.id in known
        ]
        for item in merged:
            if item.id is None:
                retained.append(msgspec.structs.replace(item, id=self._next_id))
                self._next_id += 1
        self.items = retained

    def _report(self, step: Step, **fields: Any) -> None:
        entry = step.entry
        self.reports.append(
            StepReport(
                package=step.package,
                step=step.path,
                image=step.image,
                name=entry.name,
                exec=entry.exec,
                **fields,
            )
        )


def render(
    resources: Mapping[str, str], *, registry: FunctionRegistry, keep_partial: bool = False
) -> RenderResult:
    """Run the pipelines of a package and its sub-packages; block while executables run.

    After a failure the files are unchanged except for the condition; with `keep_partial`, or with the
    Kptfile's annotation `kpt.dev/save-on-render-failure`, the changes of earlier functions are kept.

    keep_partial: whether the changes of earlier functions are kept after a failure
    Raises: TransientError if a container engine or a function runner cannot be reached.
    """
    failure: _StepError | PermanentError | None = None
    written: Mapping[str, str] = resources
    is_saved = False
    reports: Sequence[StepReport] = ()
    warning = ""
    try:
        package = files.read(resources)
        run = _Run(package.items, registry)
        try:
            with render_limits():
                run.run()
        except (_StepError, PermanentError) as exc:
            failure = exc
        if failure is None or keep_partial or _saves_on_failure(package.items):
            written = files.write(resources, package, run.items)
        is_saved = written is not resources or _contents(package.items) == _contents(run.items)
        reports = run.reports
        if failure is None and _contents(package.items) != _contents(run.items):
            warning = run.warning()
    except PermanentError as exc:
        failure = exc
    message = str(failure) if failure else ""
    condition = Condition(
        type=content.RENDERED,
        status="False" if failure else "True",
        reason="RenderFailed" if failure else "RenderSuccess",
        message=message,
    )
    step = failure.step if isinstance(failure, _StepError) else None
    validated = of_validators(resources, reports, message, is_saved=failure is None or is_saved)
    return RenderResult(
        resources=with_conditions(written, [*validated, condition], render_status(reports, message)),
        digest=input_digest(resources),
        output_digest=input_digest(written),
        rendered=failure is None,
        condition=condition,
        message=message,
        package=step.package if step else "",
        image=step.image if step else "",
        step=step.path if step else "",
        steps=tuple(reports),
        warning=warning,
    )


def _is_plain(entry: Entry) -> bool:
    """Return whether a function's configuration and objects do not depend on other functions."""
    return not (entry.config_path or entry.selectors or entry.exclude)


def _contents(items: Sequence[Item]) -> dict[int | None, tuple[str, str]]:
    return {item.id: (item.file, item.text) for item in items}


def _difference(first: Sequence[Item], second: Sequence[Item]) -> str:
    """Return a sentence about the files that differ, "" if none does."""
    differing = _contents(first).items() ^ _contents(second).items()
    names = sorted({file for _, (file, _) in differing})
    if not names:
        return ""
    more = f" and {len(names) - FILES_SHOWN_MAX} more files" if len(names) > FILES_SHOWN_MAX else ""
    return (
        f"a second run of the pipeline would change {', '.join(names[:FILES_SHOWN_MAX])}{more} again: "
        "correct the functions or their input, so that their output stays the same"
    )


def input_digest(resources: Mapping[str, str]) -> str:
    """Return a digest of all inputs of a pipeline: the files, without status and the store's records."""
    whole = hashlib.sha256()
    for file in sorted(resources):
        text = resources[file]
        if file.rpartition("/")[2] == files.KPTFILE:
            text = _without_status(_without_records(text))
        for part in (file, text):
            data = part.encode(errors="surrogatepass")
            whole.update(b"%d:" % len(data) + data)
    return whole.hexdigest()[:32]


def _without_records(text: str) -> str:
    """Remove the records of the store: an answer or a signature is no reason to run the pipeline."""
    try:
        return copies.without_records({files.KPTFILE: text})[files.KPTFILE]
    except YamlError:
        return text


def _without_status(text: str) -> str:
    """Return a Kptfile without its status, cut as from that of another package of the same content."""
    try:
        value = load(text)
        (cut,) = _cut.get((text,), name_in(value), lambda: (_status_cut(text, value),))
    except YamlError:
        return text
    return cut


def _status_cut(text: str, value: Any) -> str:
    root = compose(text) if isinstance(value, dict) else None
    if not isinstance(root, yaml.MappingNode):
        return text
    starts = [key.start_mark.index for key, _ in root.value]
    for (key, _), end in zip(root.value, [*starts[1:], len(text)], strict=True):
        if key.value == "status":
            text = text[: key.start_mark.index] + text[end:]
            break
    return text.rstrip()


def _is_kptfile(item: Item) -> bool:
    return item.file.rpartition("/")[2] == files.KPTFILE and item.index == 0


def _saves_on_failure(items: Sequence[Item]) -> bool:
    return any(
        _is_kptfile(item) and not item.package and item.annotations.get(SAVE_ON_FAILURE) == "true"
        for item in items
    )


def _children_first(directory: str) -> tuple[str, ...]:
    """Sort key: subdirectories come before their parent."""
    return (*(directory.split("/") if directory else ()), "\U0010ffff")


def _depth(directory: str) -> tuple[int, str]:
    return (len(directory.split("/")) if directory else 0, directory)


Render = Callable[[Mapping[str, str]], RenderResult | Awaitable[RenderResult]]
"""A render function. It runs in a worker thread; if it returns an awaitable, the event loop awaits it."""


class RegistryRender:
    """A render function with the functions of a registry. A process can do its work, see `computing`."""

    def __init__(self, registry: FunctionRegistry) -> None:
        self.registry = registry

    def __call__(self, resources: Mapping[str, str]) -> RenderResult:
        return render(resources, registry=self.registry)


DEFERRED = Condition(
    type=content.RENDERED,
    status="Unknown",
    reason="Deferred",
    message="the pipeline runs with the first update of the package's resources",
)


class Rendering(NamedTuple):
    """A rendered package.

    texts: the files, with the condition `Rendered`
    note: the pipeline's outcome, None if it is not recorded
    status: the API's renderStatus, None without a run
    """

    texts: Mapping[str, str]
    note: RenderNote | None
    status: Object | None = None


def defer(texts: Mapping[str, str]) -> Rendering:
    """Defer the pipeline to the next update."""
    own = [*deferred_validators(texts, DEFERRED.message), DEFERRED]
    return Rendering(with_conditions(texts, own), RenderNote("deferred", ""))


def unrendered(
    wanted: Mapping[str, str],
    stored: Mapping[str, str],
    note: RenderNote | None,
    own: Sequence[Mapping[str, str]],
) -> Rendering | None:
    """Return what a draft's new files become without a run of the pipeline; None where it has to run.

    wanted: the new files
    stored: the draft's files now
    note: the pipeline's outcome for the stored files
    own: the conditions of the stored files that the store itself sets
    """
    if _is_needed(wanted, stored, note):
        return None
    # Only the conditions can differ: take them from what is wanted, and the rest from where it is
    # rendered, those files themselves or what was made of them before.
    is_source = note is not None and note.state == "done" and input_digest(wanted) == note.digest
    conditions = content.facts_of(wanted[files.KPTFILE]).conditions
    edit = content.with_conditions(conditions, own)
    try:
        return Rendering(copies.edit_kptfile(stored if is_source else wanted, edit), note)
    except YamlError as exc:
        raise answers.unusable(f"Kptfile: {exc}") from exc


def _is_needed(texts: Mapping[str, str], stored: Mapping[str, str], note: RenderNote | None) -> bool:
    """Return whether these files must be rendered.

    That is so if the last pipeline failed or was deferred, or if these files are neither its input nor its
    output.

    note: the pipeline's outcome for the stored files
    """
    if note is not None and note.state != "done":
        return True
    digest = input_digest(texts)
    return digest != input_digest(stored) and (note is None or digest != note.digest)


async def run(render: Render, texts: Mapping[str, str], executor: Executor) -> Rendering:
    """Run the pipeline; a package that cannot be rendered keeps its files and records the error."""
    outcome = await get_running_loop().run_in_executor(executor, render, texts)
    return rendering_of(await outcome if inspect.isawaitable(outcome) else outcome)


def rendering_of(result: RenderResult) -> Rendering:
    """Return the part of a pipeline's result that is stored."""
    remarks = tuple(dict.fromkeys(map(one_line, result.notes)))
    state = "done" if result.rendered else "failed"
    note = RenderNote(state, result.digest, remarks, one_line(result.warning))
    return Rendering(result.resources, note, _status(result))


def _status(result: RenderResult) -> Object | None:
    items = [
        function_item(1 if step.error else 0, step.image, step.error, msgspec.to_builtins(step.results))
        for step in result.steps
    ]
    return function_results(result.message, items) if items or not result.rendered else None
