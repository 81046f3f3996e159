"""Protects the secrets of a process from its start on: in files, core files, and in what Python writes.

Every command begins with it, so it imports little.
"""

import logging
import os
import resource
import sys
import threading
import traceback
import warnings
from types import TracebackType
from typing import TextIO

from pvbus.core.redaction import without_secrets
from pvbus.telemetry.terminal import printable, unfiltered

PRIVATE_UMASK = 0o077
"""Only the owner can access the files that our processes create: databases, mirrors and logs hold Secrets."""

CHARACTERS_MAX = 32 * 1024
"""The length of one value in a line: a long trace has 10,000. More of a message is foreign text that somebody
sent."""


def begin_process() -> None:
    """Make files private, forbid core files, and filter what Python itself writes. Call it first."""
    os.umask(PRIVATE_UMASK)
    limit_core_files(0)
    filter_interpreter()


def limit_core_files(size: int | None) -> None:
    """Limit the core file that a crash of this process or of a child writes; None: by the hard limit only.

    It is the whole memory, with every token and Secret. The hard limit stays, so a user may raise this one.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard if size is None else size, hard))


def filtered_text(text: str) -> str:
    """Return a text without secrets, long tails, and characters that a terminal obeys."""
    if len(text) > CHARACTERS_MAX:
        text = f"{text[:CHARACTERS_MAX]} ({len(text) - CHARACTERS_MAX} characters more)"
    return printable(without_secrets(text))


class StderrHandler(logging.Handler):
    """Writes to the current `sys.stderr`."""

    def emit(self, record: logging.LogRecord) -> None:
        unfiltered(sys.stderr).write(f"{self.format(record)}\n")


class _FilteringFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return filtered_text(super().format(record))


def filter_interpreter() -> None:
    """Filter uncaught errors, warnings, and the records of libraries in a process that sets up no logging.

    `faulthandler` needs nothing: its traces have no values.
    """
    last = StderrHandler(logging.WARNING)
    last.setFormatter(_FilteringFormatter())
    logging.lastResort = last
    warnings.showwarning = _write_warning
    sys.excepthook = _write_uncaught
    threading.excepthook = _write_thread_end
    sys.unraisablehook = _write_unraisable


def _write_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    text = warnings.formatwarning(message, category, filename, lineno, line)
    (file or sys.stderr).write(filtered_text(text))


def _write_thread_end(about: threading.ExceptHookArgs) -> None:
    if about.exc_type is not SystemExit:  # a thread that just ends
        name = about.thread.name if about.thread is not None else "?"
        _write_uncaught(about.exc_type, about.exc_value, about.exc_traceback, f"in thread {name}: ")


def _write_unraisable(about: "sys.UnraisableHookArgs") -> None:
    where = f"ignored in {type(about.object).__qualname__}: "
    _write_uncaught(about.exc_type, about.exc_value, about.exc_traceback, where)


def _write_uncaught(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None, where: str = ""
) -> None:
    sys.stderr.write(filtered_text(where + "".join(traceback.format_exception(kind, error, trace))))
