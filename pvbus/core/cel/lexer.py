"""Tokens of CEL: the lexical grammar of the language, with cel-go's choices where the grammar is open.

Source: CEL language definition, section "Syntax"; the choices were observed on cel-go v0.26.1.
"""

import re
from typing import NamedTuple

from pvbus.core.cel.errors import CompileProblem
from pvbus.core.cel.values import UINT_MAX, Uint

_ESCAPE = r"\\(?:[abfnrtv\"'\\?`]|[0-3][0-7]{2}|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
_TOKEN = re.compile(
    rf"""
    (?P<blank>   [ \t\n\r\f]+ | //[^\n]* )
  | (?P<quoted>  (?P<bytes>[bB]?)
        (?: (?P<raw>[rR]) (?: \"\"\"(?P<r1>.*?)\"\"\" | '''(?P<r2>.*?)'''
                            | "(?P<r3>[^"\n\r]*)" | '(?P<r4>[^'\n\r]*)' )
          | \"\"\"(?P<t1>(?:{_ESCAPE}|[^\\])*?)\"\"\" | '''(?P<t2>(?:{_ESCAPE}|[^\\])*?)'''
          | "(?P<t3>(?:{_ESCAPE}|[^\\"\n\r])*)" | '(?P<t4>(?:{_ESCAPE}|[^\\'\n\r])*)' ) )
  | (?P<double>  \d+\.\d+(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+ | \.\d+(?:[eE][+-]?\d+)? )
  | (?P<int>     (?:0x[0-9a-fA-F]+ | \d+) )(?P<unsigned>[uU]?)
  | (?P<name>    [A-Za-z_][A-Za-z0-9_]* )
  | (?P<quote>   ` )
  | (?P<sign>    == | != | <= | >= | && | \|\| | [-+*/%<>!?:.,()\[\]{{}}] )
    """,
    re.VERBOSE | re.DOTALL,
)
_SIMPLE = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}


class Token(NamedTuple):
    """A token. kind: `name`, `const`, `number` (a magnitude whose sign is not known yet), `end`, or the
    operator itself."""

    kind: str
    text: str
    offset: int
    value: str | bytes | int | float | Uint | None = None


def tokens(text: str) -> list[Token]:
    """Split a text into tokens; the last one has the kind `end`.

    Raises:
        CompileProblem: at an offset no token begins, or a literal has no value.
    """
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise CompileProblem(at, f"Syntax error: token recognition error at: '{text[at : at + 20]}'")
        if match["quote"]:
            raise CompileProblem(at, "unsupported syntax: '`'")
        if match["blank"] is None:
            found.append(_token(match, at))
        at = match.end()
    found.append(Token("end", "<EOF>", len(text)))
    return found


def _token(match: re.Match[str], at: int) -> Token:
    word = match[0]
    if match["quoted"] is not None:
        return Token("const", word, at, _unquoted(match, at))
    if match["double"] is not None:
        return Token("number", word, at, float(word))
    if match["int"] is not None:
        magnitude = int(match["int"], 16 if match["int"].startswith("0x") else 10)
        if match["unsigned"]:
            if magnitude > UINT_MAX:
                raise CompileProblem(at, "invalid uint literal")
            return Token("const", word, at, Uint(magnitude))
        return Token("number", word, at, magnitude)
    return Token("name" if match["name"] else word, word, at)


def _unquoted(match: re.Match[str], at: int) -> str | bytes:
    groups = ("r1", "r2", "r3", "r4") if match["raw"] else ("t1", "t2", "t3", "t4")
    body = next(match[g] for g in groups if match[g] is not None)
    body = body.replace("\r\n", "\n").replace("\r", "\n")
    as_bytes = bool(match["bytes"])
    if not match["raw"]:
        pieces = re.split(rf"({_ESCAPE})", body)
        body_parts = [
            _escape(p, at, as_bytes) if i % 2 else _plain(p, as_bytes) for i, p in enumerate(pieces)
        ]
        body = "".join(body_parts)
    elif as_bytes:
        body = _plain(body, as_bytes=True)
    return body.encode("latin-1") if as_bytes else body


def _plain(piece: str, as_bytes: bool) -> str:
    """Return a piece of a literal; in a bytes literal, each byte becomes one Latin-1 character."""
    return piece.encode().decode("latin-1") if as_bytes else piece


def _escape(piece: str, at: int, as_bytes: bool) -> str:
    letter, digits = piece[1], piece[2:]
    if letter in _SIMPLE:
        return chr(_SIMPLE[letter])
    if letter in "xX":
        return chr(int(digits, 16))
    if letter in "uU":
        code = int(digits, 16)
        if as_bytes:
            raise CompileProblem(at, "unable to unescape string")
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            raise CompileProblem(at, "invalid unicode code point")
        return chr(code)
    if letter.isdigit():
        return chr(int(piece[1:], 8))
    return letter
