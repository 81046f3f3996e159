"""Finds the function for an image.

The first that fits runs it: the program that the installation configures for the image; the built-in
function of its name; a container engine; Porch's function runner. The last two only if they are switched on.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

from pvbus.controlplane.packages.functions.apply_replacements import apply_replacements
from pvbus.controlplane.packages.functions.apply_setters import apply_setters
from pvbus.controlplane.packages.functions.container import engine_of, run_container
from pvbus.controlplane.packages.functions.create_setters import create_setters
from pvbus.controlplane.packages.functions.ensure_name_substring import ensure_name_substring
from pvbus.controlplane.packages.functions.executable import TIMEOUT_SECONDS, run_executable
from pvbus.controlplane.packages.functions.item import FunctionOutput, Item, Result, Value
from pvbus.controlplane.packages.functions.runner import FunctionRunner
from pvbus.controlplane.packages.functions.search_replace import search_replace
from pvbus.controlplane.packages.functions.set_annotations import set_annotations
from pvbus.controlplane.packages.functions.set_image import set_image
from pvbus.controlplane.packages.functions.set_labels import set_labels
from pvbus.controlplane.packages.functions.set_namespace import set_namespace
from pvbus.controlplane.packages.functions.starlark import starlark
from pvbus.controlplane.packages.functions.upsert_resource import upsert_resource
from pvbus.controlplane.packages.programs import isolation
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.keys import sha1_head

BUILTIN_PREFIX = "builtin:"

Function = Callable[[Sequence[Item], Value | None], FunctionOutput]


class Builtin(NamedTuple):
    """A function of ours.

    run: runs it
    version: the newest version of the catalog that behaves alike
    fields: what it reads of a functionConfig of its own kind; none for one that reads all
    is_constant: whether it writes only values of its configuration, and on all objects: with a `configMap` a
        second run then writes the same, so that pipelines of such functions run once
    """

    run: Function
    version: tuple[int, ...]
    fields: tuple[str, ...] = ()
    is_constant: bool = False


class Resolved(NamedTuple):
    """The function of an image.

    run: calls the function
    note: tells the user about the choice, "" for nothing to tell
    builtin: the name of a built-in function, "" for others
    """

    run: Function
    note: str = ""
    builtin: str = ""


class BuiltinSettings(NamedTuple):
    """What another process needs to find the built-in functions that a registry finds.

    images: the configured images, each with the name of its built-in function, "" for a program
    allow_exec: whether a Kptfile may name a command line itself
    has_others: whether an engine or a runner runs other images
    """

    images: tuple[tuple[str, str], ...]
    allow_exec: bool
    has_others: bool


BUILTINS = {
    "apply-replacements": Builtin(apply_replacements, (0, 1, 1), ("replacements",)),
    "apply-setters": Builtin(apply_setters, (0, 2, 0)),
    "create-setters": Builtin(create_setters, (0, 1, 0)),
    "ensure-name-substring": Builtin(
        ensure_name_substring, (0, 2, 0), ("substring", "editMode", "additionalNameFields", "fieldSpecs")
    ),
    "search-replace": Builtin(search_replace, (0, 2, 0)),
    "set-annotations": Builtin(
        set_annotations,
        (0, 1, 4),
        ("annotations", "additionalAnnotationFields", "fieldSpecs"),
        is_constant=True,
    ),
    "set-image": Builtin(set_image, (0, 1, 4), ("image", "additionalImageFields")),
    "set-labels": Builtin(set_labels, (0, 2, 1), ("labels",), is_constant=True),
    "set-namespace": Builtin(set_namespace, (0, 4, 1), ("namespace",), is_constant=True),
    "starlark": Builtin(starlark, (0, 5, 0)),
    "upsert-resource": Builtin(upsert_resource, (0, 2, 0)),
}


def unread_fields(name: str, config: Value | None) -> tuple[Result, ...]:
    """Return a warning if a built-in function does not read all of a functionConfig of its own kind.

    The catalog's functions drop such a field without a word, `options` of SetLabels for example.
    """
    builtin = BUILTINS.get(name)
    if builtin is None or not builtin.fields or not config or config.get("kind") == "ConfigMap":
        return ()
    unread = [key for key in config if key not in ("apiVersion", "kind", "metadata", *builtin.fields)]
    if not unread:
        return ()
    message = (
        f"{name} does not know `{'`, `'.join(map(str, unread))}` of its functionConfig, which has no effect; "
        f"it reads `{'`, `'.join(builtin.fields)}`"
    )
    return (Result(message=message, severity="warning"),)


class FunctionRegistry:
    """Finds the function of an image.

    images: image -> a command line, split as a shell does it, or `builtin:<name>`. The image stands with its
        tag, without it, or as its bare name, and overrides the built-in functions. The program has the rights
        of this process, and no network if isolated.
    allow_exec: whether a Kptfile may name a command line itself
    timeout_seconds: the time limit of one run
    isolated: whether programs run without network, as far as the system can do that
    engine: a container engine, `auto` for the first that is there, "" for none
    runner: HOST:PORT of a function runner, "" for none
    """

    def __init__(
        self,
        images: Mapping[str, str | list[str]] | None = None,
        *,
        allow_exec: bool = False,
        timeout_seconds: float = TIMEOUT_SECONDS,
        isolated: bool = True,
        engine: str = "",
        runner: str = "",
    ) -> None:
        """Raises: UsageError if an entry names nothing that can run."""
        self._allow_exec = allow_exec
        self._timeout_seconds = timeout_seconds
        self._isolated = isolated
        self._engine = engine_of(engine) if engine else ""
        self._runner = FunctionRunner(runner) if runner else None
        builtins = [(name, builtin.version) for name, builtin in BUILTINS.items()]
        builtins += [("interpreter", (1,))] if find_spec("starlark") else []
        given = (images or {}, allow_exec, timeout_seconds, isolated, self._engine, runner, builtins)
        self.digest = sha1_head(repr(given))
        self._images = {image: self._configured(image, target) for image, target in (images or {}).items()}

    @property
    def builtin_settings(self) -> BuiltinSettings:
        images = tuple((image, function.builtin) for image, function in self._images.items())
        return BuiltinSettings(images, self._allow_exec, bool(self._engine or self._runner))

    def resolve(self, image: str) -> Resolved:
        """Return the function of an image. Raises: PermanentError if there is none."""
        name, tag = split_image(image)
        untagged = image.removesuffix(f":{tag}") if tag else image
        for key in (image, untagged, name):
            if key in self._images:
                return self._images[key]
        if builtin := BUILTINS.get(name):
            return Resolved(builtin.run, _version_note(image, tag, builtin.version), name)
        if self._engine:
            run = partial(run_container, self._engine, image, timeout_seconds=self._timeout_seconds)
            return Resolved(run, f"{image} ran in a container of {self._engine}")
        if self._runner is not None:
            run = partial(self._runner.run, image, timeout_seconds=self._timeout_seconds)
            return Resolved(run, f"{image} ran at the function runner {self._runner.address}")
        raise PermanentError(
            "there is no built-in function of this name, and nothing else runs it: map it to a program "
            "(PVBUS_FUNCTIONS), switch on a container engine (PVBUS_FUNCTION_ENGINE), or name a function "
            "runner (PVBUS_FUNCTION_RUNNER)",
            reason="FunctionNotFound",
        )

    def resolve_exec(self, command_line: str) -> Resolved:
        """Return the function of a Kptfile's `exec`. Raises: PermanentError if that is not allowed."""
        if not self._allow_exec:
            raise PermanentError("functions by `exec` are not allowed here", reason="ExecNotAllowed")
        try:
            return self._program(command_line, shlex.split(command_line))
        except (ValueError, UsageError) as exc:
            raise PermanentError(f"`exec` is not a command line: {exc}", reason="InvalidPipeline") from exc

    def _configured(self, image: str, target: str | list[str]) -> Resolved:
        if isinstance(target, str) and target.startswith(BUILTIN_PREFIX):
            name = target.removeprefix(BUILTIN_PREFIX)
            if name not in BUILTINS:
                raise UsageError(
                    f"function {image}: unknown built-in {name!r}: expected one of {', '.join(BUILTINS)}"
                )
            return Resolved(BUILTINS[name].run, builtin=name)
        try:
            return self._program(image, shlex.split(target) if isinstance(target, str) else target)
        except (ValueError, UsageError) as exc:
            raise UsageError(f"function {image}: {exc}") from exc

    def _program(self, what: str, command: Sequence[str]) -> Resolved:
        if not command:
            raise UsageError("the command line is empty")
        argv = tuple(command)

        def run(items: Sequence[Item], config: Value | None) -> FunctionOutput:
            return run_executable(
                argv, items, config, timeout_seconds=self._timeout_seconds, isolated=self._isolated
            )

        network = "without" if self._isolated and isolation() else "with"
        return Resolved(run, f"{what} ran as the program {argv[0]}, {network} network")


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
