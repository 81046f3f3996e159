"""The program that runs a Starlark script: a ResourceList on its standard input, another on its output.

It is a process of its own, because an interpreter cannot bound the memory of a script. `print` of the
script writes to standard error.
"""

import base64
import json
import os
import re
import resource
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from pvbus.controlplane.packages.functions.yamltext import load
from pvbus.core.yaml.writer import dump

MEMORY_BYTES_MAX = 512 * 1024**2
"""Memory of a script with its interpreter: ten times the largest package as values."""
NICENESS = 10
"""Scripts get what the server leaves of the processors."""
MESSAGE_CHARACTERS_MAX = 2000
CALLS_MAX = 500
"""Depth of calls: the interpreter's stack ends not far above."""

TAB = 8
"""Columns to the next tab stop. Source: go.starlark.net, scan.go."""

_STRINGS_AND_TABS = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''''
    r"|^[ \t]+|#[^\n]*|\t",
    re.MULTILINE | re.DOTALL,
)
_VARIABLE = "resource_list_"
_CONTEXT = f"ctx = struct(resource_list = {_VARIABLE}, environment = {{}})"
_MODULES = {
    "krmfn.star": """
def _match_gvk(obj, api_version, kind):
    return obj.get("apiVersion") == api_version and obj.get("kind") == kind

def _match_name(obj, name):
    return obj.get("metadata", {}).get("name") == name

def _match_namespace(obj, namespace):
    return obj.get("metadata", {}).get("namespace", "") == namespace

krmfn = struct(match_gvk = _match_gvk, match_name = _match_name, match_namespace = _match_namespace)
""",
    "encoding/json.star": (
        "json = struct(encode = encode_, dumps = encode_, decode = decode_, loads = decode_)"
    ),
    "encoding/base64.star": "base64 = struct(encode = b64encode_, decode = b64decode_)",
}
_CALLABLES: dict[str, Callable[..., Any]] = {
    "encode_": lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False),
    "decode_": json.loads,
    "b64encode_": lambda text: base64.b64encode(text.encode()).decode(),
    "b64decode_": lambda text: base64.b64decode(text, validate=True).decode(),
}


def main() -> NoReturn:
    """Run the script of the functionConfig, and exit: 1 with its error as a result.

    The last argument is the computing time, in seconds, at which the kernel ends the script.
    """
    cpu_seconds_max = int(sys.argv[-1])
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds_max, cpu_seconds_max + 1))
    given = load(sys.stdin.read())
    config = given["functionConfig"]
    source = config["data"]["source"] if config["kind"] == "ConfigMap" else config["source"]
    name = config.get("metadata", {}).get("name") or "starlark-function-run"
    head = {"apiVersion": given["apiVersion"], "kind": given["kind"]}
    try:
        text, code = dump({**head, **evaluate(str(source), str(name), given)}), 0
    except BaseException as exc:  # of the interpreter or a module's function; a panic of Rust is no Exception
        text, code = (
            dump({**head, "items": [], "results": [{"message": _message(exc), "severity": "error"}]}),
            1,
        )
    sys.stdout.write(text)
    sys.exit(code)


def _message(exc: BaseException) -> str:
    """Return an error in one line, with its line and column in the script."""
    said = str(exc)
    if isinstance(exc, MemoryError) or re.search("out of memory|PyObject pointer is null", said):
        return f"the script needs more than {MEMORY_BYTES_MAX // 1024**2} MiB"
    reason = said.rpartition("error: ")[2].partition("\n")[0][:MESSAGE_CHARACTERS_MAX]
    location = re.search(r"--> (\S+)\s*$", said, re.MULTILINE)
    return f"{location[1]}: {reason}" if location else reason


def without_tabs(source: str) -> str:
    """Return a script without tabs outside its strings: the interpreter allows none, catalog's does."""
    return _STRINGS_AND_TABS.sub(lambda found: _expanded(found[0]), source)


def _expanded(text: str) -> str:
    return text if text[0] in "\"'" else text.expandtabs(TAB)


def evaluate(source: str, name: str, resource_list: dict[str, Any]) -> Any:
    """Run a script on a ResourceList; return the items and results that it leaves. Raises: StarlarkError."""
    import starlark

    extensions = starlark.LibraryExtension
    known = starlark.Globals.extended_by([extensions.StructType, extensions.Print])
    dialect = starlark.Dialect.extended()
    dialect.enable_top_level_stmt = True

    def module(path: str) -> starlark.FrozenModule:
        if path not in _MODULES:
            raise ValueError(f"there is no module {path}: expected one of {', '.join(_MODULES)}")
        loaded = starlark.Module()
        for function, run in _CALLABLES.items():
            loaded.add_callable(function, run)
        starlark.eval(loaded, starlark.parse(path, _MODULES[path], dialect), known)
        return loaded.freeze()

    script = starlark.Module()
    script[_VARIABLE] = resource_list
    starlark.eval(script, starlark.parse("context", _CONTEXT, dialect), known)
    starlark.eval_with(
        starlark.EvalOptions(max_callstack_size=CALLS_MAX),
        script,
        starlark.parse(name, without_tabs(source), dialect),
        known,
        file_loader=starlark.FileLoader(module),
    )
    left: Any = script[_VARIABLE]
    if "items" not in left:
        raise ValueError("the script left no `items` in `ctx.resource_list`")
    return {key: left[key] for key in ("items", "results") if key in left}
