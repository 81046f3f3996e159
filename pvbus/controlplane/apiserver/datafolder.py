"""The folder of one server: its lock, token, port, certificates and kubeconfigs.

A server in memory has a temporary folder, which is removed when it stops.
"""

import base64
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pvbus.adapters.files import open_lock, own_file, write_private
from pvbus.controlplane.apiserver import certificates
from pvbus.controlplane.apiserver.rbac.services import tokens
from pvbus.controlplane.apiserver.rbac.users import UserFile
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.rights import SERVICE_RIGHTS
from pvbus.core.yaml.writer import dump

SERVICES_KUBECONFIG = "services.kubeconfig"
"""Beside the administrator's: a context for each service, with its ClusterRole's name."""

TOKEN_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")  # 32 bytes in base 64
_NEW_TOKEN = "the next start makes a new one, and a new kubeconfig"
_ANEW = "remove what is there; each start writes it anew"


class DataFolder:
    """The paths of the folder; reads and writes its files."""

    def __init__(self, data: Path | None, accounts: Path | None = None) -> None:
        """Name the folder; `open` makes it.

        data: the data folder, None for a temporary one
        accounts: a folder for a kubeconfig of each service alone, None for none
        """
        self._temporary = tempfile.TemporaryDirectory(prefix="pvbus-") if data is None else None
        self._root = Path(self._temporary.name) if self._temporary else Path(data or "").absolute()
        self._private = self._root / "apiserver"
        self._accounts = accounts
        self._lock: int | None = None
        self.token = ""
        self.kubeconfig = self._root / "kubeconfig"
        self.services_kubeconfig = self._root / SERVICES_KUBECONFIG
        self.port_file = self._private / "port"
        self.users = UserFile(self._private)
        self.database = None if data is None else self._private / "objects.db"

    def open(self) -> None:
        """Lock the folder for this process. Raises PermanentError if another process holds the lock."""
        for folder in (self._root, self._private):
            with own_file(folder, "it must be a folder: move away what is there"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with own_file(self._private / "lock", "remove what is there"):
            descriptor = open_lock(self._private / "lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(descriptor)
            raise PermanentError(
                f"the data folder {self._root} is in use by another pvbus: stop that one first, or choose "
                "another folder with --data",
                reason="DataInUse",
            ) from exc
        self._lock = descriptor
        self.token = self._ensure_token()

    def _ensure_token(self) -> str:
        """Return the administrator's token, from which the services' are derived; make it if there is none.

        Raises PermanentError if it is damaged: a new one would keep out whoever has the old one.
        """
        path = self._private / "token"
        with own_file(path, f"restore it from a backup, or remove it: {_NEW_TOKEN}"):
            try:
                token = path.read_text(encoding="ascii").strip()
            except FileNotFoundError:
                token = secrets.token_urlsafe(TOKEN_BYTES)
                write_private(path, token.encode())
            if not _TOKEN.fullmatch(token):
                raise ValueError("it is no token")
        return token

    def certificates(self, name: str) -> certificates.Certificates:
        folder = self._private / "pki"
        with own_file(folder, "move it away: certificates are made anew, and are in the new kubeconfig"):
            return certificates.ensure(folder, name)

    def kept_port(self) -> int:
        """Return the port of the last start, 0 if there was none."""
        try:
            text = self.port_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return 0
        return int(text) if text.isdecimal() and int(text) <= 65_535 else 0

    def keep_port(self, port: int) -> None:
        with own_file(self.port_file, _ANEW):
            write_private(self.port_file, str(port).encode())

    def service_tokens(self) -> dict[str, str]:
        """Return the token of each service, once the folder is open."""
        return tokens(self.token)

    def key_of(self, use: str) -> bytes:
        """Return a key for one use, once the folder is open: it derives from the token, as those do."""
        return hmac.digest(self.token.encode(), use.encode(), hashlib.sha256)

    def write_kubeconfigs(self, url: str, *, authority: bytes | None) -> None:
        """Write the administrator's and the services'. authority None: the server speaks plain HTTP.

        Raises PermanentError if the folder of the accounts cannot be written."""
        cluster = {"server": url}
        if authority is not None:
            cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
        services = {f"pvbus-{service}": token for service, token in self.service_tokens().items()}
        for path, content in (
            (self.kubeconfig, _kubeconfig(cluster, {"pvbus": self.token}, "pvbus")),
            (self.services_kubeconfig, _kubeconfig(cluster, services)),
        ):
            with own_file(path, _ANEW):
                write_private(path, content)
        for service, token in self.service_tokens().items():
            if self._accounts is None or not SERVICE_RIGHTS[service]:
                continue  # one without rights asks the API server nothing
            folder, user = self._accounts / service, f"pvbus-{service}"
            with own_file(folder, "make it a folder, or choose another one with --accounts"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_private(folder / "kubeconfig", _kubeconfig(cluster, {user: token}, user))

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._temporary is not None:
            self._temporary.cleanup()


def _kubeconfig(cluster: Mapping[str, str], users: Mapping[str, str], current: str = "") -> bytes:
    """Return a kubeconfig with a context for each user, of the same name.

    cluster: the server and its authority
    users: name of a user -> token
    current: the name of the current context, "" for none
    """
    contexts = {name: {"cluster": "pvbus", "user": name, "namespace": "default"} for name in users}
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "pvbus", "cluster": dict(cluster)}],
        "users": [{"name": name, "user": {"token": token}} for name, token in users.items()],
        "contexts": [{"name": name, "context": context} for name, context in contexts.items()],
        "current-context": current,
    }
    return dump(config).encode()
