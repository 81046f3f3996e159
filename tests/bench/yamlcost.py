"""What reading and rendering one package costs: the first time, and again with nothing changed."""

import time
from importlib.resources import files

from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.render import render
from pvbus.core.yaml import editor
from tests.bench.report import Row

NAME = "yaml"
PACKAGES = 200


def _package(number: int) -> dict[str, str]:
    """Return the example's package as one of a fleet: every package has another name."""
    folder = files("pvbus.cli.examples") / "fleet_files" / "package"
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    return {path: text.replace("name: web", f"name: web-{number}") for path, text in texts.items()}


async def yaml(*, small: bool) -> list[Row]:
    count = 10 if small else PACKAGES
    registry, first, again, read_again = FunctionRegistry({}), 0.0, 0.0, 0
    documents = 0
    for number in range(count):
        package = _package(number)
        began = time.process_time()
        rendered = render(package, registry=registry).resources
        first += time.process_time() - began
        documents += sum(len(editor.parse(text)) for path, text in rendered.items() if _is_yaml(path))
        render(rendered, registry=registry)
        misses = _documents_read()
        began = time.process_time()
        render(rendered, registry=registry)
        again += time.process_time() - began
        read_again += _documents_read() - misses
    return [
        Row(NAME, "documents of a package", documents / count, "documents"),
        Row(NAME, "a package rendered: CPU", 1000 * first / count, "ms"),
        Row(
            NAME, "the same package again: CPU", 1000 * again / count, "ms", None, "less", again / first, "it"
        ),
        Row(NAME, "the same package again: documents read anew", read_again, "documents", 0, "equal"),
    ]


def _documents_read() -> int:
    return editor._constructed.cache_info().misses


def _is_yaml(path: str) -> bool:
    return path.endswith(".yaml") or path == "Kptfile"
