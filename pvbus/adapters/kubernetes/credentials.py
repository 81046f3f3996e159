"""Where an API server is and how to authenticate to it, for those setups that take no program to know.

A pod's own account, and a kubeconfig whose context has a token or files of a certificate: that is what
services run with. Whatever else a kubeconfig may say (plugins, providers, several files) is left to
kubernetes-asyncio, see `connection`; to import that takes as long as all else of a service's start.
"""

import base64
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from pvbus.errors import UsageError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 60.0
"""How long a token of a pod is used until its file is read again; the kubelet replaces it in good time."""


class Credentials(NamedTuple):
    """authority_file, authority: of who signed the server's certificate, a file or PEM; with neither, the
    machine's. authorization: gives what the header of that name is to say, "" for none."""

    url: str
    authorization: Callable[[], Awaitable[str]]
    authority_file: str | None = None
    authority: str | None = None
    verify: bool = True
    certificate_file: str = ""
    key_file: str = ""

    def context(self) -> ssl.SSLContext | bool:
        """Return what TLS takes; False for a server without."""
        if not self.url.startswith("https"):
            return False
        context = ssl.create_default_context(cafile=self.authority_file, cadata=self.authority)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file or None)
        return context


def of_pod(environment: Mapping[str, str], account: Path = ACCOUNT) -> Credentials:
    """Return those of the pod that this process runs in. Raises UsageError."""
    host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    authority = account / "ca.crt"
    try:
        token = _PodToken(account / "token")
        if not (host and port and authority.read_text(encoding="ascii").strip()):
            raise ValueError("the service's host or port, or the authority's certificate, is empty")
    except (OSError, ValueError) as exc:
        raise UsageError(f"no usable account of this pod: {exc}; give one with --kubeconfig") from exc
    address = f"[{host}]" if ":" in host else host
    return Credentials(f"https://{address}:{port}", token.authorization, authority_file=str(authority))


class _PodToken:
    """The token of a pod's account, read at once. Raises OSError and ValueError."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read()

    def _read(self) -> None:
        self._read_at = time.monotonic()
        token = self._file.read_text(encoding="ascii").strip()
        if not token:
            raise ValueError(f"{self._file} is empty")
        self._authorization = f"Bearer {token}"

    async def authorization(self) -> str:
        if time.monotonic() - self._read_at > TOKEN_SECONDS:
            with contextlib.suppress(OSError, ValueError):  # the server says when the old one has ended
                self._read()
        return self._authorization


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """What is understood of a kubeconfig's entry; with any other field it is not ours to read."""


class _Context(_Part, frozen=True, kw_only=True):
    cluster: str
    user: str
    namespace: str = ""


class _Cluster(_Part, frozen=True, kw_only=True):
    server: str
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False


class _User(_Part, frozen=True, kw_only=True):
    token: str = ""
    client_certificate: str = ""
    client_key: str = ""


_P = TypeVar("_P", bound=_Part)


def of_file(path: Path, context: str | None = None) -> Credentials | None:
    """Return those of a kubeconfig's context, by default of the current one; None if that is not enough."""
    try:
        config: Any = msgspec.yaml.decode(path.read_bytes())
        chosen = _entry(config, "context", context or config["current-context"], _Context)
        cluster = _entry(config, "cluster", chosen.cluster, _Cluster)
        user = _entry(config, "user", chosen.user, _User)
        authority = base64.b64decode(cluster.certificate_authority_data, validate=True).decode("ascii")
    except (OSError, LookupError, TypeError, ValueError, msgspec.MsgspecError):
        return None

    def absolute(name: str) -> str:
        return str(path.parent / name) if name else ""

    async def authorization() -> str:
        return f"Bearer {user.token}" if user.token else ""

    return Credentials(
        cluster.server.rstrip("/"),
        authorization,
        authority_file=None if authority else absolute(cluster.certificate_authority) or None,
        authority=authority or None,
        verify=not cluster.insecure_skip_tls_verify,
        certificate_file=absolute(user.client_certificate),
        key_file=absolute(user.client_key),
    )


def _entry(config: Any, kind: str, name: str, part: type[_P]) -> _P:
    """Return the one entry of that name. Raises LookupError, TypeError, ValueError and MsgspecError."""
    (found,) = (each[kind] for each in config[f"{kind}s"] if each["name"] == name)
    return msgspec.convert(found, part)
