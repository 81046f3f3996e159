"""The work that `workers` has done in processes of its own.

Everything here is pure. Large values go in and out as JSON, which costs a fraction of the work.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pvbus.controlplane.apiserver import computing
from pvbus.controlplane.apiserver.workers import serve
from pvbus.core.yaml.reader import Limits, document


def read_yaml(content: bytes, limits: Limits) -> tuple[bytes, tuple[str, ...]]:
    """Return the value of a document as JSON, and its duplicate fields. Raises YamlError."""
    value, _, doubled = document(content, limits)
    return msgspec.json.encode(value), doubled


JOBS: Mapping[str, Callable[..., Any]] = {
    "read_yaml": read_yaml,
    "create": computing.created,
    "update": computing.updated,
}


if __name__ == "__main__":
    serve(int(sys.argv[1]), JOBS)
