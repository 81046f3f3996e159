"""Finds an API server and authenticates to it: kubernetes-asyncio's configuration, our own session.

Its configuration code reads kubeconfigs (certificates, tokens, exec plugins) and in-cluster files
and refreshes tokens; its HTTP client is not used, as it is five times slower.
"""

import os
import ssl
from pathlib import Path

import yaml
from kubernetes_asyncio import config
from kubernetes_asyncio.client import Configuration

from pvbus.adapters.files import open_plain
from pvbus.core.errors import TransientError, UsageError

HOME = "~/.kube/config"


class Connection:
    """An API server's address, TLS context and authorization headers."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self.url: str = (configuration.host or "").rstrip("/")
        self.ssl: ssl.SSLContext | bool = self._context()

    @classmethod
    async def load(cls, kubeconfig: Path | None, context: str | None = None) -> "Connection":
        """Read a kubeconfig; without one, $KUBECONFIG or ~/.kube/config, else the pod's service account.

        Raises UsageError if none of them is usable.
        """
        is_pod = kubeconfig is None and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
        file = kubeconfig or Path(os.environ.get("KUBECONFIG") or HOME).expanduser()
        if not is_pod and os.pathsep not in str(file) and not file.exists():
            raise UsageError(
                f"there is no kubeconfig at {file}: give one with --kubeconfig or PVBUS_KUBECONFIG "
                "(`pvbus up` and `pvbus apiserver` write one into their data folder)"
            )
        if not is_pod:
            for each in str(file).split(os.pathsep):
                if Path(each).exists():
                    open_plain(Path(each)).close()
        configuration = Configuration()
        try:
            if is_pod:
                config.load_incluster_config(  # type: ignore[no-untyped-call]  # the library has no annotation
                    client_configuration=configuration
                )
            else:
                await config.load_kube_config(
                    config_file=str(file),
                    context=context,
                    client_configuration=configuration,
                )
            return cls(configuration)
        except (config.ConfigException, OSError, ValueError, TypeError, yaml.YAMLError) as exc:
            where = "no usable account of this pod" if is_pod else f"no usable kubeconfig at {file}"
            raise UsageError(f"{where}: {exc}; give one with --kubeconfig or PVBUS_KUBECONFIG") from exc

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
        """Return the headers that authenticate a request; refresh an expiring token first.

        Raises TransientError if the refresh fails.
        """
        try:
            token = await self._configuration.get_api_key_with_prefix("BearerToken")
        except (config.ConfigException, OSError, ValueError) as exc:
            raise TransientError(f"the credentials for {self.url} cannot be renewed: {exc!r}") from exc
        return {"Authorization": token} if token else {}
