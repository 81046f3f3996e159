"""Limits of one render: computing time, and the size of texts.

Editing a document parses it again after each change, so a hostile package can make a render quadratic.
Built-in functions cannot be killed like programs; they check the clock at every edit.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import DEPTH_MAX

RENDER_SECONDS_MAX = 60.0
"""Time of a whole render without its programs, which have their own limit. The largest known packages take
a second; with a higher limit, eight bad packages would block all threads of the store for longer."""

RENDER_TIMEOUT = "RenderTimeout"
"""The reason of the error of `check_time`."""

TEXT_CHARACTERS_MAX = 8_000_000
"""Length of a text that a function composes: more than the largest request (6 MiB)."""

GROWTH_CHARACTERS_MAX = 32_000_000
"""Growth of all texts of a package in one render. A value of a megabyte that is copied into each of ten
thousand objects would use all memory."""


NODES_MAX = 100_000
"""Values in an object that a function changed. The largest CustomResourceDefinitions have some 20,000."""


class _State(threading.local):
    until: float | None = None
    seconds: float = 0.0
    growth: int = 0


_state = _State()


@contextmanager
def render_limits(seconds: float | None = None) -> Iterator[None]:
    """Measure time and growth on this thread within the block, for the checks below."""
    before = _state.until, _state.seconds, _state.growth
    seconds = RENDER_SECONDS_MAX if seconds is None else seconds
    _state.until, _state.seconds, _state.growth = time.monotonic() + seconds, seconds, 0
    try:
        yield
    finally:
        _state.until, _state.seconds, _state.growth = before


@contextmanager
def exclude_time() -> Iterator[None]:
    """Exclude the time of this block, which has its own limit."""
    began = time.monotonic()
    try:
        yield
    finally:
        if _state.until is not None:
            _state.until += time.monotonic() - began


def check_time() -> None:
    """Check the time of the render. Raises: PermanentError."""
    if _state.until is not None and time.monotonic() > _state.until:
        raise PermanentError(
            f"the built-in functions did not end within {_state.seconds:g} s: make the package smaller, or "
            "let its functions change fewer fields",
            reason=RENDER_TIMEOUT,
        )


def check_value(value: Any) -> None:
    """Check that a value is not too large or too deep to write. Raises: PermanentError."""
    nodes = 0

    def visit(item: Any, depth: int) -> None:
        nonlocal nodes
        children = item.values() if isinstance(item, dict) else item
        nodes += len(item)
        if nodes > NODES_MAX or depth > DEPTH_MAX:
            problem = (
                f"would have more than {NODES_MAX} values"
                if nodes > NODES_MAX
                else f"would be nested more than {DEPTH_MAX} levels deep"
            )
            raise PermanentError(f"an object {problem}", reason="ObjectTooLarge")
        for child in children:
            if isinstance(child, dict | list):
                visit(child, depth + 1)

    if isinstance(value, dict | list):
        visit(value, 1)


def check_length(characters: int) -> None:
    """Check the length of a text. Raises: PermanentError."""
    if characters > TEXT_CHARACTERS_MAX:
        raise PermanentError(
            f"a value would have {characters} characters, at most {TEXT_CHARACTERS_MAX} are allowed",
            reason="TextTooLong",
        )


def check_growth(before: int, after: int) -> None:
    """Check the length of a text, and the growth of the package. Raises: PermanentError."""
    check_length(after)
    _state.growth += max(0, after - before)
    if _state.growth > GROWTH_CHARACTERS_MAX:
        raise PermanentError(
            f"the functions make the package more than {GROWTH_CHARACTERS_MAX} characters longer",
            reason="TextTooLong",
        )
