"""Objects for the tests of functions and of the renderer, written as YAML."""

import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pvbus.controlplane.packages.functions import files
from pvbus.controlplane.packages.functions.item import Item, Value
from pvbus.controlplane.packages.functions.registry import Function
from pvbus.controlplane.packages.functions.yamltext import load
from pvbus.core.yaml.editor import parse

SHARED = Path(__file__).parents[3].parent / "shared"
CATALOG = SHARED / "data" / "nephio" / "catalog"

needs_catalog = [
    pytest.mark.shared,
    pytest.mark.skipif(not CATALOG.is_dir(), reason=f"needs the Nephio packages in {CATALOG}"),
]


def text(indented: str) -> str:
    return textwrap.dedent(indented).lstrip("\n")


def eventually(is_true: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait until something is true; return whether it is."""
    deadline = time.monotonic() + seconds
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_true()


def items(*texts: str) -> tuple[Item, ...]:
    """Read objects, each from its own file."""
    return files.read({f"{number}.yaml": text(each) for number, each in enumerate(texts)}).items


def config(indented: str) -> Value:
    value = load(text(indented))
    assert isinstance(value, dict)
    return value


def config_map(**data: str) -> Value:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "function-input"}, "data": data}


def after(function: Function, configuration: Value | None, *texts: str) -> list[str]:
    """Return the objects' texts after a function that must succeed."""
    output = function(items(*texts), configuration)
    assert output.error is None
    return [item.text for item in output.items]


def package(directory: Path) -> dict[str, str]:
    """Read a package from disk."""
    return {
        str(path.relative_to(directory)): path.read_text()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def objects(resources: Mapping[str, str]) -> list[Value]:
    """Return every object of a package's YAML files, files in order."""
    return [
        document.value
        for file in sorted(resources)
        if file.endswith((".yaml", ".yml", "Kptfile"))
        for document in parse(resources[file])
        if document.value is not None
    ]
