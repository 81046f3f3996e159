"""starlark: run a Starlark script of the package on its objects.

Source: functions/go/starlark v0.5.0 of the krm-functions-catalog. The script runs in a process of its own
(`starlark_program`), with limits of time and memory and without network, files and environment. The
interpreter is the extra `pvbus[starlark]`: it has no `while` and no `set`.
"""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from pvbus.controlplane.packages.functions import starlark_program
from pvbus.controlplane.packages.functions.executable import run_executable
from pvbus.controlplane.packages.functions.item import (
    FunctionOutput,
    Item,
    Value,
    config_fault,
    config_field,
    text_of,
)
from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import get

SECONDS_MAX = 60.0
"""Time of one script: as long as all built-in functions of a render together."""

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
    command = [sys.executable, "-I", "-c", _START, _ROOT]
    return run_executable(command, items, config, timeout_seconds=SECONDS_MAX)


def require_interpreter() -> None:
    """Raises: PermanentError if the extra is not installed, with what installs it."""
    if importlib.util.find_spec("starlark") is None:
        raise PermanentError(
            "the interpreter of Starlark is not installed: pip install 'pvbus[starlark]'",
            reason="FunctionNotFound",
        )
