"""A failure that repeats is logged once, then at a growing interval with a count."""

from structlog import get_logger
from structlog.testing import capture_logs

from pvbus.telemetry.repeats import ERROR_CHARACTERS_MAX, KEYS_MAX, Repeats


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_ten_minutes_of_retries_make_four_lines_and_the_end_makes_one() -> None:
    clock = Clock()
    with capture_logs() as lines:
        repeats = Repeats(get_logger(), clock)
        for step in range(6_000):
            clock.now = step / 10
            repeats.failed("pass failed", OSError(f"no space: {step}"), repository="edge")
        repeats.succeeded("pass failed", repository="other")
        repeats.succeeded("pass failed", repository="edge")
        repeats.succeeded("pass failed", repository="edge")
    assert [line.get("times") for line in lines] == [None, 601, 1801, 4201, 6000]
    assert lines[0]["exc_info"]
    assert not any("exc_info" in line for line in lines[1:])
    assert lines[3]["since_seconds"] == 420
    assert lines[4]["event"] == "over: pass failed"


def test_another_step_or_kind_of_error_is_logged_at_once() -> None:
    with capture_logs() as lines:
        repeats = Repeats(get_logger(), Clock())
        repeats.failed("pass failed", OSError("x"), repository="edge")
        repeats.failed("pass failed", OSError("x"), repository="blue")
        repeats.failed("pass failed", KeyError("x"), repository="edge")
        repeats.succeeded("pass failed", repository="edge")
        repeats.failed("pass failed", OSError("x"), repository="edge")
    assert [line["log_level"] for line in lines] == ["error", "error", "error", "info", "info", "error"]


def test_neither_the_text_nor_what_is_remembered_grows() -> None:
    with capture_logs() as lines:
        repeats = Repeats(get_logger(), Clock())
        for number in range(3 * KEYS_MAX):
            repeats.failed("pass failed", OSError("x" * 100_000), revision=str(number))
    assert all(len(line["error"]) < ERROR_CHARACTERS_MAX + 40 for line in lines)
    assert len(repeats._failures) == KEYS_MAX
