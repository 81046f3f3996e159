"""The text of a file of a package, from which its bytes can be had back.

The API of a package store carries files as text, and a file may hold any bytes. Bytes that are UTF-8 are the
text that they mean; each other byte is one character of a private range. So whatever a client reads, renames,
copies or sends back unchanged is stored byte for byte, which U+FFFD for all of them would not allow.

Characters of that range which a file has as UTF-8 are shown as their four bytes, for the same reason.
"""

import re

FIRST = 0x10FF80
"""The character of byte 0x80, and so on to U+10FFFF for 0xFF: the end of the last private plane, where no
font has symbols. They are valid in JSON and in YAML."""

_ENCODED = b"\xf4\x8f"
"""How these characters begin in UTF-8."""

_RAW = re.compile("[\U0010ff80-\U0010ffff]")
_TO_RAW = {0xDC00 + byte: chr(FIRST - 0x80 + byte) for byte in range(0x80, 0x100)}
_TO_SURROGATE = {ord(raw): chr(surrogate) for surrogate, raw in _TO_RAW.items()}


def text_of(data: bytes) -> str:
    """Return the text of any bytes; `bytes_of` returns them again."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="surrogateescape")
    else:
        if _ENCODED not in data:
            return text
    return _RAW.sub(_bytewise, text).translate(_TO_RAW)


def bytes_of(text: str) -> bytes:
    """Return the bytes of a text. Half a surrogate pair, which no file has, becomes a question mark."""
    if text.isascii():
        return text.encode()
    plain = text.encode(errors="replace").decode()
    if _RAW.search(plain) is None:
        return plain.encode()
    return plain.translate(_TO_SURROGATE).encode(errors="surrogateescape")


def no_text(text: str) -> str:
    """Return where a text has a byte that is not UTF-8, and what to do; "" if it has none."""
    raw = None if text.isascii() else _RAW.search(text)
    if raw is None:
        return ""
    byte = ord(raw[0]) - FIRST + 0x80
    line = text.count("\n", 0, raw.start()) + 1
    return f"line {line}: the byte 0x{byte:02X} is not UTF-8: save the file as UTF-8"


def _bytewise(match: re.Match[str]) -> str:
    return "".join(chr(FIRST - 0x80 + byte) for byte in match[0].encode())
