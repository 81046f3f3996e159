"""What a controller takes for the object between a write of its own and the echo of that write."""

from typing import Any

import msgspec
import pytest

from pvbus.core.kernel.echo import ECHO_SECONDS, ObservedObject

NOW = 1000.0


def thing(version: str) -> dict[str, Any]:
    return {"metadata": {"name": "a", "resourceVersion": version}}


def after(*steps: str) -> str:
    """Return the version that counts after some steps: `=v` the watch shows, `!v` a write is answered, `x` a
    conflict."""
    seen = ObservedObject()
    for step in steps:
        if step == "x":
            seen.forget_answer()
        elif step[0] == "!":
            seen.note_answer(thing(step[1:]), NOW)
        else:
            seen.observe(None if step == "=" else msgspec.json.encode(thing(step[1:])))
    current = seen.current(NOW + 1)
    return "" if current is None else str(msgspec.json.decode(current)["metadata"]["resourceVersion"])


@pytest.mark.parametrize(
    ("steps", "version"),
    [
        pytest.param(("=1", "!2"), "2", id="the answer stands for the object"),
        pytest.param(("=1", "!2", "=2"), "2", id="until its echo"),
        pytest.param(("=1", "!2", "=3"), "3", id="or another write"),
        pytest.param(("=1", "!2", "="), "", id="or its end"),
        pytest.param(("=1", "!2", "=1"), "2", id="not until an older row comes again"),
        pytest.param(("=1", "!2", "!3", "=2"), "3", id="nor the echo of a write before it"),
        pytest.param(("=1", "!2", "!3", "!4", "=2", "=3"), "4", id="nor two of them"),
        pytest.param(("=1", "!2", "!3", "=2", "=3"), "3", id="then its own echo"),
        pytest.param(("=1", "!2", "!3", "=2", "=4"), "4", id="then another write"),
        pytest.param(("=1", "=2", "!2", "=2"), "2", id="the echo comes before the answer"),
        pytest.param(("=1", "=2", "!2", "=3"), "3", id="the echo, the answer, another write"),
        pytest.param(("=1", "!1", "=1"), "1", id="a write that changes nothing"),
        pytest.param(("!1", "=1"), "1", id="a new object"),
        pytest.param(("=1", "!2", "x"), "1", id="a conflict"),
        pytest.param(("=1", "!2", "!3", "x", "=2"), "2", id="a conflict, and then an echo"),
    ],
)
def test_the_newest_known_version_counts(steps: tuple[str, ...], version: str) -> None:
    assert after(*steps) == version


def test_an_answer_without_an_echo_counts_for_a_while() -> None:
    seen = ObservedObject()
    seen.observe(msgspec.json.encode(thing("1")))
    seen.note_answer(thing("2"), NOW)
    seen.observe(msgspec.json.encode(thing("1")))
    assert seen.current(NOW + ECHO_SECONDS) == seen.raw
