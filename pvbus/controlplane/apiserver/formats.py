"""Regular expressions as Go reads them, and the string formats that schemas may name."""

import re
from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]  # it has no types

PATTERN_BYTES_MAX = 8192
"""Longest pattern. The longest in common definitions (cron schedules) have about 1,000 bytes."""

PATTERN_STEPS_MAX = 20_000
"""Largest compiled pattern. `.{0,1000}` has 9,000 steps; Go's own limit of repetitions is 1,000, too."""


REMEMBERED_MAX = 128
"""Longest text whose match is cached: types and reasons of conditions recur all the time, and a cache hit
takes a fiftieth of a search."""


class Pattern:
    """A compiled pattern. steps: its size; multiplied by a text's length, it bounds the cost of a search."""

    def __init__(self, compiled: Any) -> None:
        self.steps: int = compiled.programsize
        self._search = compiled.search
        self._remembered = lru_cache(maxsize=512)(self._found)

    def found_in(self, text: str) -> bool:
        """Return whether the pattern matches anywhere."""
        return self._remembered(text) if len(text) <= REMEMBERED_MAX else self._found(text)

    def _found(self, text: str) -> bool:
        return self._search(text) is not None


@lru_cache(maxsize=256)
def go_pattern(text: str) -> Pattern:
    """Compile a pattern in Go's syntax, for searches in time linear in the text.

    Raises ValueError for patterns that Go cannot compile or that are too large.
    """
    if len(text.encode(errors="surrogatepass")) > PATTERN_BYTES_MAX:
        raise ValueError(f"it is longer than {PATTERN_BYTES_MAX} bytes")
    if _ANY_BYTE.search(text):  # in RE2 it matches a single byte of UTF-8, in Go never
        raise ValueError(r"error parsing regexp: invalid escape sequence: `\C`")
    options = re2.Options()
    options.log_errors = False
    try:
        pattern = re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0]
        words = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"error parsing regexp: {words}") from error
    if pattern.programsize > PATTERN_STEPS_MAX:
        raise ValueError("it is too large: use smaller repetitions")
    return Pattern(pattern)


_ANY_BYTE = re.compile(r"(?<!\\)(?:\\\\)*\\C")

_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_IPV6 = r"(?=[^ ]*:[^ ]*:)[0-9a-fA-F:]{2,39}(?:\.\d{1,3}){0,3}"
_DATE = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?"
_LABEL = r"[0-9A-Za-z](?:[-0-9A-Za-z]{0,61}[0-9A-Za-z])?"
_HOST = rf"(?=.{{1,255}}$){_LABEL}(?:\.{_LABEL})*"

FORMAT_PATTERNS = {
    name: rf"(?a)\A(?:{body})\Z"
    for name, body in {
        "date": _DATE,
        "date-time": rf"{_DATE}[Tt ]{_TIME}(?:[Zz]|[+-]\d\d:?\d\d)",
        "byte": r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
        "duration": r"(?:\d+(?:\.\d+)? ?(?:ns|us|µs|ms|s|m|h|d|w))+|0",
        "ipv4": _IPV4,
        "ipv6": _IPV6,
        "ip": rf"{_IPV4}|{_IPV6}",
        "cidr": rf"(?:{_IPV4}/(?:3[0-2]|[12]?\d))|(?:{_IPV6}/(?:12[0-8]|1[01]\d|\d?\d))",
        "email": r"[^@\s]+@[^@\s]+",
        "hostname": _HOST,
        "uri": r"[A-Za-z][A-Za-z0-9+.-]*:\S*|/\S*",
        "uuid": r"(?i:[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12})",
        "mac": r"(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}",
    }.items()
}
"""Formats that are checked; others are ignored, as in Kubernetes. Each pattern matches the whole text."""
