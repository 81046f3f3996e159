"""Logs the warnings of an API server: deprecated versions, unknown fields, policies of the administrator.

Source: https://kubernetes.io/docs/reference/using-api/#warnings and RFC 7234, section 5.5.
"""

import re
from collections.abc import Iterable

from pvbus.telemetry.logs import get_logger

TEXTS_MAX = 1_000  # a text may name an object: the log must not fill with them

_FORM = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")

_log = get_logger("kubernetes")


class Warnings:
    """Logs each distinct text once."""

    def __init__(self) -> None:
        self._texts: set[str] = set()

    def note(self, headers: Iterable[str], where: str) -> None:
        """Take the Warning headers of a response. where: its request."""
        for header in headers:
            for quoted in _FORM.findall(header):
                text = _ESCAPE.sub(r"\1", quoted)
                if text not in self._texts and len(self._texts) < TEXTS_MAX:
                    self._texts.add(text)
                    _log.warning("the API server warns", warning=text, request=where)
