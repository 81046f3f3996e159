"""The package kinds of an API server without a package store: upstream revisions, as plain objects."""

from pathlib import Path
from typing import Any

DEFINITION = Path(__file__).with_name("packagerevisions.yaml")


def published(namespace: str, repository: str, package: str, revision: int) -> dict[str, Any]:
    """Return a published PackageRevision, named and shaped as Porch does."""
    workspace = f"v{revision}"
    return {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {"namespace": namespace, "name": f"{repository}.{package}.{workspace}"},
        "spec": {
            "repository": repository,
            "packageName": package,
            "workspaceName": workspace,
            "revision": revision,
            "lifecycle": "Published",
        },
    }
