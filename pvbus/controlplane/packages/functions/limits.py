"""How long one render may compute, and how large a text may become.

Editing a document reads it again after each change, so a hostile package can make a render quadratic.
Functions that are built in cannot be killed as programs are; they look at the clock at every edit.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import DEPTH_MAX

RENDER_SECONDS_MAX = 60.0
"""Time of a whole render less that of programs, which have their own limit. The largest packages known
take a second; more would let eight bad packages hold all threads of the store for longer."""

TEXT_CHARACTERS_MAX = 8_000_000
"""Length of a text that a function makes of others: more than any request may hold (6 MiB)."""

GROWTH_CHARACTERS_MAX = 32_000_000
"""How much longer all texts of a package may become in one render. A value of a megabyte that is copied
into each of ten thousand objects would take all memory there is."""


NODES_MAX = 100_000
"""Values in an object that a function changed. The largest CustomResourceDefinitions have some 20,000."""


class _State(threading.local):
    until: float | None = None
    seconds: float = 0.0
    growth: int = 0


_state = _State()


@contextmanager
def render_limits(seconds: float | None = None) -> Iterator[None]:
    """Count time and growth on this thread from here on, for the checks below."""
    before = _state.until, _state.seconds, _state.growth
    seconds = RENDER_SECONDS_MAX if seconds is None else seconds
    _state.until, _state.seconds, _state.growth = time.monotonic() + seconds, seconds, 0
    try:
        yield
    finally:
        _state.until, _state.seconds, _state.growth = before


@contextmanager
def untimed() -> Iterator[None]:
    """Do not count the time of this block, which has a limit of its own."""
    began = time.monotonic()
    try:
        yield
    finally:
        if _state.until is not None:
            _state.until += time.monotonic() - began


def check_time() -> None:
    """Raises: PermanentError when the time of the render is over."""
    if _state.until is not None and time.monotonic() > _state.until:
        raise PermanentError(
            f"the built-in functions did not end within {_state.seconds:g} s: make the package smaller, or "
            "its functions change fewer fields",
            reason="RenderTimeout",
        )


def check_value(value: Any) -> None:
    """Raises: PermanentError for a value that is too large or too deep to be written."""
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
    """Raises: PermanentError for a text that would be too long."""
    if characters > TEXT_CHARACTERS_MAX:
        raise PermanentError(
            f"a value would have {characters} characters, at most {TEXT_CHARACTERS_MAX} are allowed",
            reason="TextTooLong",
        )


def check_growth(before: int, after: int) -> None:
    """Raises: PermanentError for a text that becomes too long, or that makes the package so."""
    check_length(after)
    _state.growth += max(0, after - before)
    if _state.growth > GROWTH_CHARACTERS_MAX:
        raise PermanentError(
            f"the functions make the package more than {GROWTH_CHARACTERS_MAX} characters longer",
            reason="TextTooLong",
        )
