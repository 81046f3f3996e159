"""Text that is safe to show: names and messages come from others, and a terminal obeys what is in them.

Escape sequences can move the cursor, hide or replace what was printed before, and set the title or the
clipboard; marks of writing direction can make a name look like another one.
"""

import io
import re
import sys
from typing import Any, TextIO

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""Control characters but line feed and tab, marks of direction, other line ends, and halves of characters."""


def printable(text: str) -> str:
    """Return text with what a terminal would obey as `\\uXXXX`, which JSON and quoted YAML read back."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """Return printable text of one line, for a cell of a table."""
    return printable(text.replace("\t", " ").replace("\n", "\\n"))


_COLOR = re.compile("(\x1b\\[(?:0|1|2|3[1-7]|9[1-7])?m)")
"""Colours as our own tables have them: all that they can change is how the text after them looks."""


class PrintableStream(io.TextIOWrapper):
    """A stream to a terminal, a file or a pipe, through which only printable text goes.

    On a terminal colours pass. unfiltered: the stream below, for other escapes of our own.
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
        """Leave the stream below open: it is somebody else's."""


def filter_streams() -> None:
    """Let this process print through filters from now on."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, PrintableStream):
            setattr(sys, name, PrintableStream(stream))


def unfiltered(stream: TextIO) -> TextIO:
    """Return the stream to which escapes of our own may go."""
    return stream.unfiltered if isinstance(stream, PrintableStream) else stream
