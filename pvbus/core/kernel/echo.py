"""How long the response to a write of our own stands for the object, until the watch shows it (its echo)."""

ECHO_SECONDS = 10.0


def is_awaited(expires: float, now: float) -> bool:
    """Return whether the echo may still come. expires: ECHO_SECONDS after the write.

    Both are of the wall clock, which may be set back by any time: a wait that would be longer than it can be
    is over, or what was written by hand meanwhile would not be seen for so long.
    """
    return 0 < expires - now <= 2 * ECHO_SECONDS
