"""How to reach and authenticate to an API server: kubernetes-asyncio's knowledge, our own session.

Its configuration code reads kubeconfigs (certificates, tokens, exec plugins) and in-cluster files
and refreshes tokens; its HTTP client is not used, being five times slower.
"""

import os
import ssl
from pathlib import Path

from kubernetes_asyncio import config
from kubernetes_asyncio.client import Configuration

from pvbus.errors import UsageError


class Connection:
    """An API server's address, TLS context and, for each request, its authorization."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self.url: str = (configuration.host or "").rstrip("/")
        self.ssl: ssl.SSLContext | bool = self._context()

    @classmethod
    async def load(cls, kubeconfig: Path | None, context: str | None = None) -> "Connection":
        """Read a kubeconfig; without one, $KUBECONFIG or ~/.kube/config, else the pod's own account.

        Raises UsageError when there is nothing usable.
        """
        configuration = Configuration()
        try:
            if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
                config.load_incluster_config(  # type: ignore[no-untyped-call]  # the library has no annotation
                    client_configuration=configuration
                )
            else:
                await config.load_kube_config(
                    config_file=str(kubeconfig) if kubeconfig else None,
                    context=context,
                    client_configuration=configuration,
                )
        except (config.ConfigException, OSError) as exc:
            where = kubeconfig or "$KUBECONFIG or ~/.kube/config"
            raise UsageError(f"no usable kubeconfig at {where}: {exc}; give one with --kubeconfig") from exc
        return cls(configuration)

    def _context(self) -> ssl.SSLContext | bool:
        if not self.url.startswith("https"):
            return False
        setup = self._configuration
        context = ssl.create_default_context(cafile=setup.ssl_ca_cert)
        if not setup.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if setup.cert_file:
            context.load_cert_chain(setup.cert_file, setup.key_file)
        return context

    async def headers(self) -> dict[str, str]:
        """Return the headers that authenticate a request; an expiring token is refreshed first."""
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        return {"Authorization": token} if token else {}
