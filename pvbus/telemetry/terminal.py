"""Makes text safe to print: names and messages are foreign, and a terminal obeys escape sequences.

Those can move the cursor, hide or replace printed text, and set the title or the clipboard; marks of
writing direction can make a name look like another one.
"""

import io
import re
import sys
from typing import Any, TextIO

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""Control characters except line feed and tab, marks of direction, other line ends, and lone surrogates."""


def printable(text: str) -> str:
    """Escape unsafe characters as `\\uXXXX`, which JSON and quoted YAML read back."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """Return printable text on one line, for a table cell."""
    return printable(text.replace("\t", " ").replace("\n", "\\n"))


_COLOR = re.compile("(\x1b\\[(?:0|1|2|3[1-7]|9[1-7])?m)")
"""The colour sequences of our own tables, which change only the look of the text after them."""


class PrintableStream(io.TextIOWrapper):
    """A stream to a terminal, a file or a pipe that passes only printable text; on a terminal, colours pass.

    unfiltered: the underlying stream, for our other escape sequences
    """

    def __init__(self, stream: TextIO) -> None:
        by_line = isinstance(stream, io.TextIOWrapper) and stream.line_buffering
        super().__init__(
            stream.buffer,
            stream.encoding,
            errors="backslashreplace",
            line_buffering=by_line,
            write_through=True,
        )
        self.unfiltered = stream

    def write(self, text: str) -> int:
        parts = _COLOR.split(text) if self.isatty() else [text]
        super().write("".join(printable(part) if n % 2 == 0 else part for n, part in enumerate(parts)))
        return len(text)

    def close(self) -> None:
        """Leave the underlying stream open: it is not ours."""


def filter_streams() -> None:
    """Replace stdout and stderr of this process by filtering streams."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, PrintableStream):
            setattr(sys, name, PrintableStream(stream))


def unfiltered(stream: TextIO) -> TextIO:
    """Return the stream for our own escape sequences."""
    return stream.unfiltered if isinstance(stream, PrintableStream) else stream
