"""The work that `computing` has done in processes of their own: renders with built-in functions, and merges.

A job returns its result, the exception of a package that is at fault, or None if the store has to do the work
itself: programs, containers, runners and scripts are started, limited and ended by the store alone.
"""

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from pvbus.controlplane.apiserver.workers import serve
from pvbus.controlplane.packages import upgrading
from pvbus.controlplane.packages.filesets import Files
from pvbus.controlplane.packages.functions.registry import (
    BUILTIN_PREFIX,
    BuiltinSettings,
    FunctionRegistry,
    Resolved,
)
from pvbus.controlplane.packages.render import PROCESSES, Rendering, rendering_of
from pvbus.controlplane.packages.render import render as render_package
from pvbus.controlplane.packages.upgrading import Upgraded, Upstream
from pvbus.core.errors import PermanentError
from pvbus.core.variants.merge import MergeError
from pvbus.core.yaml.editor import YamlError

_PROGRAM = ["program"]
"""Stands for any program: none runs here."""


class _NeedsStoreError(Exception):
    """A function is not one of those that run here."""


class _BuiltinFunctions(FunctionRegistry):
    """Finds the built-in functions that another registry finds."""

    def __init__(self, settings: BuiltinSettings) -> None:
        images = {image: f"{BUILTIN_PREFIX}{name}" if name else _PROGRAM for image, name in settings.images}
        super().__init__(images, allow_exec=settings.allow_exec, isolated=False)
        self._has_others = settings.has_others

    def resolve(self, image: str) -> Resolved:
        try:
            return _own(super().resolve(image))
        except PermanentError as exc:
            if self._has_others:
                raise _NeedsStoreError from exc
            raise

    def resolve_exec(self, command_line: str) -> Resolved:
        return _own(super().resolve_exec(command_line))


def _own(function: Resolved) -> Resolved:
    if function.builtin in PROCESSES:
        raise _NeedsStoreError
    return function


_functions = lru_cache(maxsize=1)(_BuiltinFunctions)


def render(texts: Mapping[str, str], settings: BuiltinSettings) -> Rendering | YamlError | None:
    """Render a package."""
    try:
        return rendering_of(render_package(texts, registry=_functions(settings)))
    except YamlError as exc:
        return exc
    except _NeedsStoreError:
        return None


def merge(
    old: Upstream, local: Files, new: Upstream, lock: Mapping[str, Any], strategy: str, deployment: bool
) -> Upgraded | MergeError | YamlError:
    """Merge the files of an upgrade."""
    try:
        return upgrading.upgraded(old, local, new, lock, strategy, deployment=deployment)
    except (MergeError, YamlError) as exc:
        return exc


JOBS: Mapping[str, Callable[..., Any]] = {"render": render, "merge": merge}


if __name__ == "__main__":
    serve(int(sys.argv[1]), JOBS, has_cycles=True)  # errors of packages that cannot be rendered
