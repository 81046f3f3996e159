"""The pipeline of a Kptfile: the order, input and configuration of its functions."""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from pvbus.controlplane.packages.functions.files import check_krm, placed
from pvbus.controlplane.packages.functions.item import Item, Value, text_of
from pvbus.controlplane.packages.functions.selecting import expression
from pvbus.core.api.variants import FunctionSelector
from pvbus.core.errors import PermanentError

Phase = Literal["mutators", "validators"]
API_VERSION = "kpt.dev/v1"
PHASES: tuple[Phase, ...] = ("mutators", "validators")


class Selector(FunctionSelector, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Selects objects that have every given field, and every pair of a given map.

    resource_file_regexp: an expression that matches a part of the object's path in the rendered package
    """

    resource_file_regexp: str = ""

    def matches(self, item: Item) -> bool:
        if self.resource_file_regexp:
            if not expression(self.resource_file_regexp, "`resourceFileRegexp`").search(item.file):
                return False
        wanted = (self.api_version, self.kind, self.name, self.namespace)
        present = (item.api_version, item.kind, item.name, item.namespace)
        return (
            all(want in ("", have) for want, have in zip(wanted, present, strict=True))
            and self.labels.items() <= item.labels.items()
            and self.annotations.items() <= item.annotations.items()
        )


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One function of a pipeline, as in the Kptfile."""

    image: str = ""
    tag: str = ""
    exec: str = ""
    name: str = ""
    config_map: dict[str, Any] | None = None
    config_path: str = ""
    selectors: tuple[Selector, ...] = ()
    exclude: tuple[Selector, ...] = ()


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One function of one package.

    package: the directory of the package, "" for the root
    phase: mutators or validators
    index: its position in that list
    entry: what the Kptfile says of it
    """

    package: str
    phase: Phase
    index: int
    entry: Entry

    @property
    def path(self) -> str:
        """The function's path in the Kptfile."""
        return f"pipeline.{self.phase}[{self.index}]"

    @property
    def image(self) -> str:
        """The image or command line in the Kptfile."""
        return self.entry.image or self.entry.exec

    def __str__(self) -> str:
        where = f"package {self.package}: " if self.package else ""
        return f"{where}{self.path}"


class InvalidStepError(PermanentError):
    """An entry of a pipeline that cannot run on any objects."""

    def __init__(self, step: Step, message: str) -> None:
        super().__init__(message, reason="InvalidPipeline")
        self.step = step


def parse_steps(kptfile: Item) -> list[Step]:
    """Return a Kptfile's functions in the order they run. Raises: PermanentError."""
    if (kptfile.api_version, kptfile.kind) != (API_VERSION, "Kptfile"):
        raise PermanentError(
            f"{kptfile.file}: is {kptfile.api_version or 'of no version'} {kptfile.kind}, but must be "
            f"{API_VERSION} Kptfile",
            reason="InvalidPipeline",
        )
    pipeline = kptfile.value.get("pipeline") or {}
    if not isinstance(pipeline, dict):
        raise PermanentError(f"{kptfile.file}: pipeline is not a map", reason="InvalidPipeline")
    if unknown := sorted(map(str, pipeline.keys() - set(PHASES))):
        raise PermanentError(
            f"{kptfile.file}: pipeline.{unknown[0]}: unknown field, expected {' or '.join(PHASES)}",
            reason="InvalidPipeline",
        )
    steps: list[Step] = []
    for phase in PHASES:
        entries = pipeline.get(phase) or []
        if not isinstance(entries, list):
            raise PermanentError(f"{kptfile.file}: pipeline.{phase} is not a list", reason="InvalidPipeline")
        for index, given in enumerate(entries):
            step = Step(package=kptfile.package, phase=phase, index=index, entry=Entry())
            try:
                step = msgspec.structs.replace(step, entry=msgspec.convert(given, Entry))
            except msgspec.ValidationError as exc:
                raise InvalidStepError(step, f"{exc}") from exc
            _check(step)
            steps.append(step)
    return steps


def config_of(step: Step, items: Sequence[Item], originals: Sequence[Item]) -> Value | None:
    """Return a function's configuration.

    A mutator sees the file as previous functions changed it; a validator sees the original file.
    """
    entry = step.entry
    if entry.config_map is not None:
        data = {key: text_of(value) for key, value in entry.config_map.items()}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "function-input"}, "data": data}
    if not entry.config_path:
        return None
    file = posixpath.normpath(posixpath.join(step.package, entry.config_path))
    current = items if step.phase == "mutators" else ()
    found = [item for item in current if item.file == file] or [
        item for item in originals if item.file == file
    ]
    if outside := [item for item in found if item.package != step.package]:
        raise PermanentError(
            f"configPath `{entry.config_path}` is in the sub-package {outside[0].package}, but must be a "
            "file of the package itself",
            reason="InvalidPipeline",
        )
    if len(found) != 1:
        raise PermanentError(
            f"configPath `{entry.config_path}` must be a file with exactly one object, it has {len(found)}",
            reason="InvalidPipeline",
        )
    check_krm(found[0])
    return found[0].value


def select(step: Step, items: Sequence[Item]) -> list[Item]:
    """Return a function's input: an object that two selectors match is included twice.

    An empty selector selects everything, and excludes nothing.
    """
    entry = step.entry
    exclude = [selector for selector in entry.exclude if selector != Selector()]
    if entry.selectors:
        items = [item for item in items for selector in entry.selectors if selector.matches(item)]
    return [item for item in items if not any(selector.matches(item) for selector in exclude)]


def merge(step: Step, items: Sequence[Item], selected: Sequence[Item], output: Sequence[Item]) -> list[Item]:
    """Replace a function's input by its output; new objects go to the end.

    Raises: PermanentError if an object is not a Kubernetes object, or two have one position in a file.
    """
    given = {item.id for item in selected}
    returned: Mapping[int | None, Item] = {item.id: item for item in output if item.id is not None}
    merged = [returned.get(item.id, item) for item in items if item.id in returned or item.id not in given]
    merged += [placed(item, step.package) for item in output if item.id is None]
    positions: set[tuple[str, int]] = set()
    for item in merged:
        check_krm(item)
        position = (item.file, item.index)
        if item.index >= 0 and position in positions:
            raise PermanentError(
                f"two objects have index {item.index} of {item.file}", reason="InvalidResource"
            )
        positions.add(position)
    return merged


def _check(step: Step) -> None:
    entry = step.entry
    if bool(entry.image) == bool(entry.exec):
        raise InvalidStepError(step, "must have exactly one of `image` and `exec`")
    if entry.config_map is not None and entry.config_path:
        raise InvalidStepError(step, "must not have both `configMap` and `configPath`")
    for key, value in (entry.config_map or {}).items():
        if isinstance(value, dict | list):
            kind = "map" if isinstance(value, dict) else "list"
            raise InvalidStepError(step, f"configMap.{key} is a {kind}, but must be a string")
    if entry.config_path and (
        posixpath.isabs(entry.config_path) or ".." in posixpath.normpath(entry.config_path).split("/")
    ):
        raise InvalidStepError(step, f"configPath `{entry.config_path}` must be a path inside the package")
