"""What reading a manifest costs, and rendering one package: the first time, and with nothing changed."""

import time
from importlib.resources import files

import yaml as pyyaml

from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.render import render
from pvbus.core.yaml import editor, reader
from pvbus.core.yaml.writer import dump
from tests.bench.report import Row

NAME = "yaml"
PACKAGES = 200
MANIFEST_BYTES = 1_000_000
READINGS = 3


def _package(number: int) -> dict[str, str]:
    """Return the example's package as one of a fleet: every package has another name."""
    folder = files("pvbus.examples") / "fleet_files" / "package"
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
        _manifest_row(small=small),
        Row(NAME, "documents of a package", documents / count, "documents"),
        Row(NAME, "a package rendered: CPU", 1000 * first / count, "ms"),
        Row(
            NAME, "the same package again: CPU", 1000 * again / count, "ms", None, "less", again / first, "it"
        ),
        Row(NAME, "the same package again: documents read anew", read_again, "documents", 0, "equal"),
    ]


def _manifest_row(*, small: bool) -> Row:
    """Compare the reader with PyYAML's loader in C, which neither limits nor checks anything, in turn."""
    manifest = _manifest(20_000 if small else MANIFEST_BYTES)
    ours, peer = [], []
    for _ in range(1 if small else READINGS):
        began = time.process_time()
        found = reader.values(manifest)
        middle = time.process_time()
        expected = list(pyyaml.load_all(manifest, Loader=pyyaml.CSafeLoader))
        ours.append(middle - began)
        peer.append(time.process_time() - middle)
        assert found == expected
    ratio = min(ours) / min(peer)
    return Row(
        NAME,
        "a manifest of 1 MB read: CPU",
        1000 * min(ours),
        "ms",
        None,
        "less",
        ratio,
        "CSafeLoader's",
    )


def _manifest(size: int) -> str:
    """Return Deployments as one text of at least this size."""
    containers = [
        {"name": f"c{n}", "image": f"example.org/app:1.{n}", "args": [f"--port={8000 + n}", "--fast"],
         "ports": [{"containerPort": 8000 + n}], "tty": n % 2 == 0}
        for n in range(5)
    ]  # fmt: skip
    metadata = {"namespace": "default", "labels": {"app": "web", "tier": "front"}}
    documents: list[str] = []
    while sum(map(len, documents)) < size:
        named = {"name": f"web-{len(documents)}", **metadata}
        spec = {"replicas": len(documents), "template": {"spec": {"containers": containers}}}
        documents.append(
            "---\n" + dump({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": named, "spec": spec})
        )
    return "".join(documents)


def _documents_read() -> int:
    return editor._constructed.cache_info().misses


def _is_yaml(path: str) -> bool:
    return path.endswith(".yaml") or path == "Kptfile"
