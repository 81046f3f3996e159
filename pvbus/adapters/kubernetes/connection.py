"""Finds an API server and authenticates to it.

kubernetes-asyncio's configuration code finds and reads the settings. Its HTTP client is not used, as it is
five times slower; nor is its renewal of credentials, which is missing for most kinds.
"""

import os
import ssl
from pathlib import Path
from typing import NamedTuple

import msgspec
import yaml
from kubernetes_asyncio import config
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import incluster_config

from pvbus.adapters.files import open_plain
from pvbus.adapters.kubernetes.credentials import Credential, Credentials, StaticCredentials, TokenFile
from pvbus.adapters.kubernetes.kubeconfig import read_kubeconfig
from pvbus.adapters.kubernetes.tls import TlsContext, TlsFiles
from pvbus.core.errors import UsageError

HOME = "~/.kube/config"

_UNUSABLE = (
    config.ConfigException,
    OSError,
    ValueError,
    yaml.YAMLError,
    msgspec.ValidationError,
    UsageError,
)
_SHAPELESS = (TypeError, KeyError, AttributeError, AssertionError)
"""What the library raises for YAML that is no kubeconfig."""


class Access(NamedTuple):
    """How to send one request. ssl: False for a server without TLS."""

    credential: Credential
    headers: dict[str, str]
    ssl: ssl.SSLContext | bool


class Connection:
    """An API server's address, and the TLS context and credentials of its next request."""

    def __init__(self, configuration: Configuration, credentials: Credentials | None = None) -> None:
        """credentials: those of the configuration if not given. Raises OSError or ValueError."""
        self.url: str = (configuration.host or "").rstrip("/")
        token = configuration.api_key.get("BearerToken", "")
        self._credentials = credentials or StaticCredentials(token)
        given = configuration
        files = TlsFiles(given.ssl_ca_cert, given.cert_file, given.key_file, given.verify_ssl)
        self._tls = TlsContext(files) if self.url.startswith("https:") else None

    @classmethod
    async def load(cls, kubeconfig: Path | None, context: str | None = None) -> "Connection":
        """Read a kubeconfig; without one, $KUBECONFIG or ~/.kube/config, else the pod's service account.

        Raises UsageError if none of them is usable.
        """
        is_pod = kubeconfig is None and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
        file = kubeconfig or Path(os.environ.get("KUBECONFIG") or HOME).expanduser()
        if not is_pod:
            _check_files(str(file))
        try:
            if is_pod:
                return cls(*_service_account())
            return cls(*await read_kubeconfig(str(file), context))
        except (*_UNUSABLE, *_SHAPELESS) as exc:
            where = "no usable account of this pod" if is_pod else f"no usable kubeconfig at {file}"
            why = f"its content is not a kubeconfig's ({exc!r})" if isinstance(exc, _SHAPELESS) else exc
            raise UsageError(f"{where}: {why}; give one with --kubeconfig or PVBUS_KUBECONFIG") from exc

    async def access(self) -> Access:
        """Return what authenticates the next request; renew it first if it expires.

        Raises TransientError if the renewal fails.
        """
        credential = await self._credentials.current()
        headers = {"Authorization": credential.authorization} if credential.authorization else {}
        return Access(credential, headers, self._tls.current(credential.certificate) if self._tls else False)

    def reject(self, access: Access) -> bool:
        """Note that the server answered 401; return whether to send the request again."""
        return self._credentials.reject(access.credential)

    async def close(self) -> None:
        await self._credentials.close()


def _check_files(files: str) -> None:
    """Raises UsageError if no file exists, or one is no regular file."""
    if os.pathsep not in files and not Path(files).exists():
        raise UsageError(
            f"there is no kubeconfig at {files}: give one with --kubeconfig or PVBUS_KUBECONFIG "
            "(`pvbus up` and `pvbus apiserver` write one into their data folder)"
        )
    for each in files.split(os.pathsep):
        if Path(each).exists():
            open_plain(Path(each)).close()


def _service_account() -> tuple[Configuration, Credentials]:
    configuration = Configuration()
    config.load_incluster_config(  # type: ignore[no-untyped-call]  # the library has no annotation
        client_configuration=configuration, try_refresh_token=False
    )
    return configuration, TokenFile(Path(incluster_config.SERVICE_TOKEN_FILENAME))
