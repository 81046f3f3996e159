"""Finds an API server and authenticates to it.

kubernetes-asyncio's configuration code finds and reads the settings. Its HTTP client is not used, as it is
five times slower; nor is its renewal of credentials, which is missing for most kinds.

The proxy is `proxy-url` of the kubeconfig, else the environment's, as with kubectl. Source: Go 1.24,
golang.org/x/net/http/httpproxy: https_proxy and no_proxy in capital or small letters, the first that is set;
hosts of this machine never take a proxy.
"""

import copy
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import yaml

from pvbus.adapters.files import open_plain
from pvbus.adapters.kubernetes.credentials import Credential, Credentials, StaticCredentials, TokenFile
from pvbus.adapters.kubernetes.kubeconfig import read_kubeconfig
from pvbus.adapters.kubernetes.library import (
    ConfigException,
    Configuration,
    incluster_config,
    load_incluster_config,
)
from pvbus.adapters.kubernetes.tls import TlsContext, TlsFiles
from pvbus.core.errors import UsageError


def proxy_of_environment(url: str, environment: Mapping[str, str]) -> str:
    """Return the proxy for a URL, "" for none."""
    scheme = urlsplit(url).scheme
    proxy = _variable(environment, f"{scheme}_proxy")
    if not proxy or _is_excepted(url, _variable(environment, "no_proxy")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name.upper()) or environment.get(name) or ""


def _is_excepted(url: str, exceptions: str) -> bool:
    parts = urlsplit(url)
    host, port = (parts.hostname or "").rstrip("."), parts.port or (443 if parts.scheme == "https" else 80)
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(each.strip().lower(), host, port, address) for each in exceptions.split(","))


def _matches(pattern: str, host: str, port: int, address: "_Address | None") -> bool:
    """Return whether an entry of NO_PROXY means a host: `*`, an address, a network, or a domain."""
    if pattern in ("", "*"):
        return pattern == "*"
    if "/" in pattern:
        try:
            return address is not None and address in ipaddress.ip_network(pattern, strict=False)
        except ValueError:
            return False
    name, wanted_port = _split_port(pattern)
    if wanted_port and wanted_port != str(port):
        return False
    if (named := _address(name)) is not None or address is not None:
        return named is not None and named == address
    domain = name.removeprefix("*")
    if domain.startswith("."):
        return host.endswith(domain)
    return host == domain or host.endswith(f".{domain}")


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _split_port(pattern: str) -> tuple[str, str]:
    """Return name and port of `name:port`, `[address]:port` or a name alone."""
    if pattern.startswith("["):
        name, _, rest = pattern[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = pattern.rpartition(":")
    return (name, port) if name and ":" not in name else (pattern, "")


def _address(text: str) -> _Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


HOME = "~/.kube/config"

_UNUSABLE = (
    ConfigException,
    OSError,
    ValueError,
    yaml.YAMLError,
    msgspec.ValidationError,
    UsageError,
)
_SHAPELESS = (TypeError, KeyError, AttributeError, AssertionError)
"""What the library raises for YAML that is no kubeconfig."""


class Access(NamedTuple):
    """How to send one request.

    credential: the credential in it, for `Connection.reject`
    headers: the headers that authenticate it
    options: options of aiohttp: TLS context, expected server name, proxy
    """

    credential: Credential
    headers: dict[str, str]
    options: dict[str, Any]


class Connection:
    """An API server's address, and the TLS context and credentials of its next request."""

    def __init__(self, configuration: Configuration, credentials: Credentials | None = None) -> None:
        """Prepare the connection; nothing is sent.

        credentials: the source of credentials, None for that of the configuration
        Raises UsageError, OSError or ValueError.
        """
        self.url = _url_of(configuration)
        proxy = _proxy_of(configuration.proxy, self.url)
        self._options: dict[str, Any] = {"server_hostname": configuration.tls_server_name, "proxy": proxy}
        token = configuration.api_key.get("BearerToken", "")
        self._access: Access | None = None
        self._credentials = credentials or StaticCredentials(token)
        given = configuration
        self._files = TlsFiles(given.ssl_ca_cert, given.cert_file, given.key_file, given.verify_ssl)
        self._tls = TlsContext(self._files) if self.url.startswith("https:") else None

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

    @classmethod
    def unused(cls) -> "Connection":
        """Return the connection of a service that sends no requests: its host does not exist."""
        return cls(Configuration(host="http://no-kubeconfig.invalid"))

    def with_token(self, token: str) -> "Connection":
        """Return one of another user, by his bearer token. It shares the TLS context, and so connections."""
        other = copy.copy(self)
        other._credentials, other._access = StaticCredentials(f"Bearer {token}"), None
        return other

    def of_user(self, token: str) -> "Connection":
        """Return one of another user, who is known by his bearer token alone.

        An API server that gets a client certificate takes its user, whatever the token: so this connection
        has none, and shares nothing.
        """
        other = self.with_token(token)
        other._tls = TlsContext(self._files._replace(certificate=None, key=None)) if self._tls else None
        return other

    async def access(self) -> Access:
        """Return what authenticates the next request; renew it first if it expires.

        Raises TransientError if the renewal fails.
        """
        credential = await self._credentials.current()
        context = self._tls.current(credential.certificate) if self._tls else False
        last = self._access
        if last is None or last.credential is not credential or last.options["ssl"] is not context:
            headers = {"Authorization": credential.authorization} if credential.authorization else {}
            last = Access(credential, headers, {**self._options, "ssl": context})
            self._access = last
        return last

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


def _url_of(configuration: Configuration) -> str:
    url: str = (configuration.host or "").rstrip("/")
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f'server "{url}" is no address: expected https://<host>:<port>')
    return url


def _proxy_of(proxy_url: str | None, server: str) -> str | None:
    """Return the URL of the proxy, or None. aiohttp logs in with its user and password, and quotes neither.

    proxy_url: `proxy-url` of the kubeconfig; without it, the environment decides
    """
    proxy = proxy_url or proxy_of_environment(server, os.environ)
    if not proxy:
        return None
    scheme = urlsplit(proxy).scheme
    if scheme not in ("http", "https"):
        source = "proxy-url" if proxy_url else "the proxy in HTTPS_PROXY"
        raise UsageError(
            f'{source} with scheme "{scheme}" is not supported: expected http:// or https://, '
            "of a proxy that allows CONNECT"
        )
    return proxy


def _service_account() -> tuple[Configuration, Credentials]:
    configuration = Configuration()
    load_incluster_config(  # type: ignore[no-untyped-call]  # the library has no annotation
        client_configuration=configuration, try_refresh_token=False
    )
    return configuration, TokenFile(Path(incluster_config.SERVICE_TOKEN_FILENAME))
