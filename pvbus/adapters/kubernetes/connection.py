"""How to reach and authenticate to an API server: our own session with whatever credentials there are.

kubernetes-asyncio's configuration code knows every kind of kubeconfig, and refreshes tokens; it is asked for
those that `credentials` cannot read. Its HTTP client is not used, being five times slower.
"""

import os
import ssl
from pathlib import Path

from pvbus.adapters.kubernetes.credentials import Credentials, of_file, of_pod
from pvbus.errors import UsageError

HOME = Path("~/.kube/config")


class Connection:
    """An API server's address, TLS context and, for each request, its authorization."""

    def __init__(self, credentials: Credentials) -> None:
        """Raises OSError for files that are no certificates."""
        self._authorization = credentials.authorization
        self.url = credentials.url
        self.ssl: ssl.SSLContext | bool = credentials.context()

    @classmethod
    async def load(cls, kubeconfig: Path | None, context: str | None = None) -> "Connection":
        """Read a kubeconfig; without one, $KUBECONFIG or ~/.kube/config, else the pod's own account.

        Raises UsageError when there is nothing usable.
        """
        if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            return cls(of_pod(os.environ))
        file = kubeconfig or Path(os.environ.get("KUBECONFIG") or HOME).expanduser()
        if os.pathsep not in str(file) and not file.exists():
            raise UsageError(
                f"there is no kubeconfig at {file}: give one with --kubeconfig or PVBUS_KUBECONFIG "
                "(`pvbus up` and `pvbus apiserver` write one into their data folder)"
            )
        try:
            return cls(of_file(file, context) or await _of_library(kubeconfig, context))
        except OSError as exc:
            raise _unusable(kubeconfig, exc) from exc

    async def headers(self) -> dict[str, str]:
        """Return the headers that authenticate a request; an expiring token is refreshed first."""
        authorization = await self._authorization()
        return {"Authorization": authorization} if authorization else {}


async def _of_library(kubeconfig: Path | None, context: str | None) -> Credentials:
    """Return what kubernetes-asyncio finds. It is imported for those who need it: that takes 0.25 s."""
    from kubernetes_asyncio import config
    from kubernetes_asyncio.client import Configuration

    found = Configuration()
    try:
        await config.load_kube_config(
            config_file=str(kubeconfig) if kubeconfig else None,
            context=context,
            client_configuration=found,
        )
    except config.ConfigException as exc:
        raise _unusable(kubeconfig, exc) from exc

    async def authorization() -> str:
        return await found.get_api_key_with_prefix("BearerToken") or ""

    return Credentials(
        (found.host or "").rstrip("/"),
        authorization,
        authority_file=found.ssl_ca_cert,
        verify=found.verify_ssl,
        certificate_file=found.cert_file or "",
        key_file=found.key_file or "",
    )


def _unusable(kubeconfig: Path | None, error: Exception) -> UsageError:
    where = kubeconfig or "$KUBECONFIG or ~/.kube/config"
    return UsageError(
        f"no usable kubeconfig at {where}: {error}; give one with --kubeconfig or PVBUS_KUBECONFIG"
    )
