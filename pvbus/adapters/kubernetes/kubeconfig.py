"""Reads a kubeconfig: kubernetes-asyncio merges and resolves it, pvbus keeps its credentials fresh.

The library's own reader of YAML is used: the file is the user's, and its values are texts. The library reads
credentials once, and runs plugins without most of their settings. Token files and plugins
are therefore ours.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pvbus.adapters.kubernetes.credentials import (
    Credentials,
    ReloadedCredentials,
    RenewedCredentials,
    StaticCredentials,
    TokenFile,
)
from pvbus.adapters.kubernetes.library import Configuration, KubeConfigLoader, KubeConfigMerger
from pvbus.adapters.kubernetes.plugin import Plugin, PluginConfig
from pvbus.core.errors import TransientError, UsageError

EXTENSION = "client.authentication.k8s.io/exec"
"""The name of the cluster's extension that a plugin gets as its configuration."""

FORWARDED = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression")


class _Entry(NamedTuple):
    """A cluster or a user of a kubeconfig, and the folder that its relative paths start from."""

    fields: dict[str, Any]
    folder: Path


async def read_kubeconfig(files: str, context: str | None) -> tuple[Configuration, Credentials]:
    """Read the merged kubeconfig files. Raises UsageError, and the library's and Python's errors."""
    merger = KubeConfigMerger(files)
    if merger.config is None:
        raise UsageError("it is empty")
    loader = KubeConfigLoader(merger.config, active_context=context, config_base_path=None)
    chosen = (loader.current_context or {}).get("context") or {}
    user = _entry(merger, "user", chosen.get("user"))
    if user.fields.get("as"):
        raise UsageError(
            f"impersonation (as: {user.fields['as']}) is not supported: use the credentials of that user"
        )
    plugin, provider = user.fields.pop("exec", None), user.fields.pop("auth-provider", None)
    configuration = Configuration()
    loader = KubeConfigLoader(merger.config, active_context=context, config_base_path=None)
    await loader.load_and_set(configuration)
    if user.fields.get("tokenFile"):
        return configuration, TokenFile(user.folder / user.fields["tokenFile"])
    static = configuration.api_key.get("BearerToken", "")
    if static or (plugin is None and provider is None):  # as kubectl: a token comes before a plugin
        return configuration, ReloadedCredentials(static, files, lambda: _token_of(files, context))
    if plugin is None:
        return configuration, _provided(provider)
    cluster = _entry(merger, "cluster", chosen.get("cluster"))
    plugin_config = msgspec.convert(plugin, PluginConfig)
    info = _cluster_info(cluster.fields, configuration.ssl_ca_cert)
    return configuration, RenewedCredentials(Plugin(plugin_config, user.folder, info).issue)


async def _token_of(files: str, context: str | None) -> str:
    """Return the token that a kubeconfig has now. Raises TransientError: it may be only half written."""
    try:
        configuration, credentials = await read_kubeconfig(files, context)
    except Exception as exc:  # the library raises anything for a file that is half written
        raise TransientError(f"{files}: the kubeconfig cannot be read again: {exc!r}") from exc
    await credentials.close()
    return str(configuration.api_key.get("BearerToken", ""))


def _provided(provider: Mapping[str, Any]) -> Credentials:
    """Return the stored token of an `auth-provider`. The library renews it over TLS without verification."""
    name = provider.get("name")
    token = (provider.get("config") or {}).get("id-token")
    if name != "oidc" or not token:
        raise UsageError(
            f'auth-provider "{name}" is not supported: use a credential plugin (exec), such as '
            "gke-gcloud-auth-plugin, kubelogin or kubectl oidc-login, or a service account's token"
        )
    return StaticCredentials(f"Bearer {token}")


def _entry(merger: KubeConfigMerger, kind: str, name: str | None) -> _Entry:
    """Return the fields of a named user or cluster, shared with the library; {} if there is none."""
    assert merger.config is not None
    if not name or not merger.config.safe_get(f"{kind}s"):
        return _Entry({}, Path())
    node = merger.config[f"{kind}s"].get_with_name(name, safe=True)
    fields = node.value.get(kind) if node is not None else None
    if node is None or not isinstance(fields, dict):
        return _Entry({}, Path())
    return _Entry(fields, Path(node.path or "").absolute().parent)


def _cluster_info(cluster: Mapping[str, Any], ca_file: str | None) -> dict[str, Any]:
    """Return the facts on the cluster that a plugin with `provideClusterInfo` gets."""
    info = {name: cluster[name] for name in FORWARDED if cluster.get(name)}
    if ca_file:
        info["certificate-authority-data"] = base64.b64encode(Path(ca_file).read_bytes()).decode("ascii")
    for each in cluster.get("extensions") or ():
        if each.get("name") == EXTENSION:
            info["config"] = each.get("extension")
    return info
