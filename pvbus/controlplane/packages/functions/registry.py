"""Finds the function for an image: a built-in one, or a program that the installation configures."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pvbus.controlplane.packages.functions.apply_replacements import apply_replacements
from pvbus.controlplane.packages.functions.apply_setters import apply_setters
from pvbus.controlplane.packages.functions.create_setters import create_setters
from pvbus.controlplane.packages.functions.ensure_name_substring import ensure_name_substring
from pvbus.controlplane.packages.functions.executable import TIMEOUT_SECONDS, run_executable
from pvbus.controlplane.packages.functions.item import FunctionOutput, Item, Value
from pvbus.controlplane.packages.functions.search_replace import search_replace
from pvbus.controlplane.packages.functions.set_annotations import set_annotations
from pvbus.controlplane.packages.functions.set_image import set_image
from pvbus.controlplane.packages.functions.set_labels import set_labels
from pvbus.controlplane.packages.functions.set_namespace import set_namespace
from pvbus.controlplane.packages.functions.starlark import starlark
from pvbus.controlplane.packages.functions.upsert_resource import upsert_resource
from pvbus.core.errors import PermanentError, UsageError

BUILTIN_PREFIX = "builtin:"

Function = Callable[[Sequence[Item], Value | None], FunctionOutput]


class Builtin(NamedTuple):
    """A function of ours, and the newest version with the same behaviour."""

    run: Function
    version: tuple[int, ...]


class Resolved(NamedTuple):
    """A function, and a note for the user about the choice ('' for none)."""

    run: Function
    note: str = ""


BUILTINS = {
    "apply-replacements": Builtin(apply_replacements, (0, 1, 1)),
    "apply-setters": Builtin(apply_setters, (0, 2, 0)),
    "create-setters": Builtin(create_setters, (0, 1, 0)),
    "ensure-name-substring": Builtin(ensure_name_substring, (0, 2, 0)),
    "search-replace": Builtin(search_replace, (0, 2, 0)),
    "set-annotations": Builtin(set_annotations, (0, 1, 4)),
    "set-image": Builtin(set_image, (0, 1, 4)),
    "set-labels": Builtin(set_labels, (0, 2, 1)),
    "set-namespace": Builtin(set_namespace, (0, 4, 1)),
    "starlark": Builtin(starlark, (0, 5, 0)),
    "upsert-resource": Builtin(upsert_resource, (0, 2, 0)),
}


class FunctionRegistry:
    """Finds the function of an image.

    images: image, with or without its tag or as its bare name, to a command line, split like a shell
    line, or to `builtin:<name>`; it overrides the built-in functions. A command line runs with the
    rights of this process. allow_exec: whether a Kptfile may name a command line itself.
    """

    def __init__(
        self,
        images: Mapping[str, str | list[str]] | None = None,
        *,
        allow_exec: bool = False,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Raises: UsageError if an entry names nothing that can run."""
        self._allow_exec = allow_exec
        self._timeout_seconds = timeout_seconds
        self._images = {image: self._configured(image, target) for image, target in (images or {}).items()}

    def resolve(self, image: str) -> Resolved:
        """Return the function of an image. Raises: PermanentError if there is none."""
        name, tag = split_image(image)
        untagged = image.removesuffix(f":{tag}") if tag else image
        for key in (image, untagged, name):
            if key in self._images:
                return Resolved(self._images[key])
        builtin = BUILTINS.get(name)
        if builtin is None:
            raise PermanentError(
                "there is no built-in function of this name and no executable is configured for it",
                reason="FunctionNotFound",
            )
        return Resolved(builtin.run, _version_note(image, tag, builtin.version))

    def resolve_exec(self, command_line: str) -> Resolved:
        """Return the function of a Kptfile's `exec`. Raises: PermanentError if that is not allowed."""
        if not self._allow_exec:
            raise PermanentError("functions by `exec` are not allowed here", reason="ExecNotAllowed")
        try:
            return Resolved(self._program(shlex.split(command_line)))
        except (ValueError, UsageError) as exc:
            raise PermanentError(f"`exec` is not a command line: {exc}", reason="InvalidPipeline") from exc

    def _configured(self, image: str, target: str | list[str]) -> Function:
        if isinstance(target, str) and target.startswith(BUILTIN_PREFIX):
            name = target.removeprefix(BUILTIN_PREFIX)
            if name not in BUILTINS:
                raise UsageError(
                    f"function {image}: unknown built-in {name!r}: expected one of {', '.join(BUILTINS)}"
                )
            return BUILTINS[name].run
        try:
            return self._program(shlex.split(target) if isinstance(target, str) else target)
        except (ValueError, UsageError) as exc:
            raise UsageError(f"function {image}: {exc}") from exc

    def _program(self, command: Sequence[str]) -> Function:
        if not command:
            raise UsageError("the command line is empty")
        argv = tuple(command)

        def run(items: Sequence[Item], config: Value | None) -> FunctionOutput:
            return run_executable(argv, items, config, timeout_seconds=self._timeout_seconds)

        return run


def split_image(image: str) -> tuple[str, str]:
    """Return the last path element of an image's name, and its tag ('' without one)."""
    last = image.partition("@")[0].rpartition("/")[2]
    name, _, tag = last.partition(":")
    return name, tag


def _version_note(image: str, tag: str, known: tuple[int, ...]) -> str:
    match = re.match(r"v?([0-9]{1,9}(?:\.[0-9]{1,9})*)(?![0-9])", tag)
    if match and tuple(map(int, match[1].split("."))) > known:
        return f"{image} runs as version {'.'.join(map(str, known))}, the newest one built in"
    return ""
