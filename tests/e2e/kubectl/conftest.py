"""A served API with one custom kind, and kubectl in the versions that must work with it."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubectl.driver import Kubectl
from tests.tools.kubectl import KubectlUnavailableError, find_or_build
from tests.tools.served import Served, serve

VERSIONS = ("1.32.4", "1.36.3")
_numbers = itertools.count()

WIDGETS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "string", "jsonPath": ".spec.size"},
                    {
                        "name": "Ready",
                        "type": "string",
                        "jsonPath": '.status.conditions[?(@.type=="Ready")].status',
                    },
                    {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "description": "Widget is something to try things on.",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "description": "What is wanted of the widget.",
                                "required": ["size"],
                                "properties": {
                                    "size": {
                                        "type": "string",
                                        "pattern": "^[0-9]+$",
                                        "description": "How large it is.",
                                    },
                                    "color": {"type": "string", "enum": ["red", "green"]},
                                    "shape": {"type": "string", "default": "round"},
                                },
                            },
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("apiserver"), [WIDGETS]) as running:
        yield running


@pytest.fixture(scope="session", params=VERSIONS)
def binary(request: pytest.FixtureRequest) -> Path:
    try:
        return find_or_build(request.param)
    except KubectlUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, binary: Path) -> Path:
    """Discovery is cached here, per version: it does not change while the tests run."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def kubectl(served: Served, binary: Path, home: Path) -> Kubectl:
    namespace = f"test-{next(_numbers)}"
    made = Kubectl(binary, home, served.server.kubeconfig_path, namespace, served)
    made.good(f"create namespace {namespace}")
    return made
