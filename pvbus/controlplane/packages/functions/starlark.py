"""starlark: run a Starlark script of the package on its objects.

Source: functions/go/starlark v0.5.0 of the krm-functions-catalog. The script runs in a process of its own
(`starlark_program`), with limits of time and memory and without network, files and environment. The
interpreter is the extra `pvbus[starlark]`: it has no `while` and no `set`.

A draft is rendered again and again, so a script that failed slowly is remembered with its input, and is not
run again at once. Few run at a time, whatever the number of drafts.
"""

import hashlib
import importlib.util
import os
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

from pvbus.controlplane.packages.functions import starlark_program
from pvbus.controlplane.packages.functions.executable import run_executable
from pvbus.controlplane.packages.functions.item import (
    FunctionError,
    FunctionOutput,
    Item,
    Value,
    config_fault,
    config_field,
    text_of,
)
from pvbus.controlplane.packages.functions.limits import exclude_time
from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import get

SECONDS_MAX = 60.0
"""Time of one script on a busy machine: as long as all built-in functions of a render together."""

CPU_SECONDS_MAX = 10
"""Computing time of a script, after which the kernel ends it: the largest known package takes a tenth of a
second."""

SCRIPTS_MAX = os.cpu_count() or 1
"""Scripts at a time: more would only wait for each other, with 512 MiB each."""

SLOW_SECONDS = 1.0
"""A failure that took longer is remembered; a faster one costs nothing to see again."""

REMEMBERED_SECONDS = 600.0
"""The machine may have been busy: then the script is tried again."""

REMEMBERED_MAX = 1000
"""Failures in memory, at some KB each."""

_ENDS: Mapping[int, str] = {
    signal.SIGXCPU: "the script needs too much computing time: let it do less for each object",
    signal.SIGKILL: "the script was killed: it needs too much computing time or memory",
    signal.SIGABRT: f"the script needs more than {starlark_program.MEMORY_BYTES_MAX // 1024**2} MiB",
    signal.SIGSEGV: "the script ended the interpreter: its values or expressions are nested too deeply, or "
    f"it needs more than {starlark_program.MEMORY_BYTES_MAX // 1024**2} MiB",
}
"""What it means that a signal ended the program."""

# Isolated: neither the environment nor the current folder decides what is imported.
_START = f"import sys; sys.path.insert(0, sys.argv[1]); from {starlark_program.__name__} import main; main()"
_ROOT = str(Path(__file__).parents[4])


def starlark(items: Sequence[Item], config: Value | None) -> FunctionOutput:
    """Run the script of the configuration; block until it ends. Raises: PermanentError if it fails."""
    source = config_field(config, "source", "StarlarkRun")
    if config and config["kind"] == "ConfigMap":
        source = get(source, ("source",))
    if not text_of(source):
        raise config_fault("`source` must not be empty")
    require_interpreter()
    key = _digest_of(items, config)
    _slow_failures.check(key)
    with exclude_time():
        _turns.acquire()
    began = time.monotonic()
    try:
        command = [sys.executable, "-I", "-c", _START, _ROOT, str(CPU_SECONDS_MAX)]
        return run_executable(command, items, config, timeout_seconds=SECONDS_MAX)
    except FunctionError as exc:
        error = FunctionError(_ENDS.get(_signal_of(exc.code), str(exc)), exc.results)
        if time.monotonic() - began > SLOW_SECONDS:
            _slow_failures.add(key, error)
        raise error from exc
    finally:
        _turns.release()


def _digest_of(items: Sequence[Item], config: Value | None) -> bytes:
    digest = hashlib.sha256(repr(config).encode())
    for item in items:
        digest.update(repr((item.package, item.file, item.index, item.text)).encode())
    return digest.digest()


def _signal_of(code: int) -> int:
    """Return the signal that ended a program or the shell around it, by the exit code; 0 for none."""
    return -code if code < 0 else max(0, code - 128)


class _SlowFailures:
    """Failures of scripts by the digest of script and input. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: OrderedDict[bytes, tuple[float, FunctionError]] = OrderedDict()

    def check(self, key: bytes) -> None:
        """Raises: FunctionError if this has failed lately."""
        with self._lock:
            until, error = self._failures.get(key, (0.0, None))
        if error is not None and time.monotonic() < until:
            raise FunctionError(
                f"{error} (not run again for {REMEMBERED_SECONDS / 60:g} minutes while script and package "
                "are the same)",
                error.results,
            )

    def add(self, key: bytes, error: FunctionError) -> None:
        with self._lock:
            self._failures[key] = (time.monotonic() + REMEMBERED_SECONDS, error)
            self._failures.move_to_end(key)
            while len(self._failures) > REMEMBERED_MAX:
                self._failures.popitem(last=False)


_turns = threading.BoundedSemaphore(SCRIPTS_MAX)
_slow_failures = _SlowFailures()


def require_interpreter() -> None:
    """Raises: PermanentError if the extra is not installed, with what installs it."""
    if importlib.util.find_spec("starlark") is None:
        raise PermanentError(
            "the interpreter of Starlark is not installed: pip install 'pvbus[starlark]'",
            reason="FunctionNotFound",
        )
