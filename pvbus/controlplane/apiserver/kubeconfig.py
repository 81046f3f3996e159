"""The kubeconfig of the embedded server: one cluster, one user, one context, all called `pvbus`."""

import base64
from pathlib import Path

import yaml

from pvbus.adapters.files import write_private


def write(path: Path, *, url: str, token: str, authority: bytes | None) -> None:
    """Write the file, readable by its owner only. authority None: the server speaks plain HTTP."""
    cluster = {"server": url}
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "pvbus", "cluster": cluster}],
        "users": [{"name": "pvbus", "user": {"token": token}}],
        "contexts": [
            {"name": "pvbus", "context": {"cluster": "pvbus", "user": "pvbus", "namespace": "default"}}
        ],
        "current-context": "pvbus",
    }
    write_private(path, yaml.safe_dump(config, sort_keys=False).encode())
