"""The users that `pvbus user` makes, in a file of the data folder.

Each has a token, of which only a digest is stored, groups, and roles in all namespaces or in some. The server
looks at the file every LOOK_SECONDS, and for a token that it does not know; so a new user is let in at once,
and one who was removed is kept out soon. The file is replaced atomically, under a lock, by one command at a
time.
"""

import fcntl
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from aiohttp import web

from pvbus.adapters.files import check_seal, open_lock, own_file, sealed, write_private
from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.identity import ADMIN, AUTHENTICATED_GROUP, User
from pvbus.controlplane.apiserver.rbac.builtin import NAMESPACE_ADMIN, PEOPLE
from pvbus.controlplane.apiserver.rbac.policy import Binding, Subject
from pvbus.core.errors import PermanentError, UsageError
from pvbus.telemetry.structured import structlog

FILE, LOCK = "users.json", "users.lock"
TOKEN_BYTES = 32
LOOK_SECONDS = 0.25
"""A look costs more than all else of a request's authorization; nobody notices a quarter of a second."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._:+-]{0,252}")
_NAME_RULE = "1 to 253 letters, digits and @ . _ : + -, with a letter or digit first"
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_RESERVED = "system:"
_log = structlog.get_logger(__name__)


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A role that a user has.

    role: a role of `PEOPLE`
    namespaces: where he has it, () for everywhere
    """

    role: str
    namespaces: tuple[str, ...] = ()


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the data folder.

    name: the name
    digest: the SHA-256 of his token, in hex
    groups: the groups
    grants: the roles
    """

    name: str
    digest: str
    groups: tuple[str, ...] = ()
    grants: tuple[Grant, ...] = ()

    @property
    def user(self) -> User:
        return User(self.name, (*self.groups, AUTHENTICATED_GROUP))

    def bindings(self) -> Iterator[Binding]:
        """Yield what RoleBindings would grant the same."""
        subject = Subject("User", self.name)
        for role, namespaces in ((grant.role, grant.namespaces) for grant in self.grants):
            note = f'role "{role}" of user "{self.name}" (pvbus user)'
            for namespace in namespaces or ("",):
                name = NAMESPACE_ADMIN if namespace and role == "admin" else PEOPLE[role]
                yield Binding(self.name, namespace, ("ClusterRole", name), (subject,), note)


class _File(msgspec.Struct, frozen=True, kw_only=True):
    users: tuple[Account, ...] = ()
    seal: str = ""


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


class UserFile:
    """Reads and changes the users of a data folder's server."""

    def __init__(self, folder: Path) -> None:
        """Name the file; it need not exist.

        folder: the server's part of the data folder
        """
        self._folder = folder
        self.path = folder / FILE

    def read(self) -> tuple[Account, ...]:
        """Return the users by name. Raises PermanentError if the file is damaged."""
        with own_file(self.path, "restore it from a backup, or remove it and add the users again"):
            try:
                content = self.path.read_bytes()
            except FileNotFoundError:
                return ()
            users = msgspec.json.decode(content, type=_File).users
            check_seal(content)
        unknown = {grant.role for user in users for grant in user.grants} - set(PEOPLE)
        if unknown:
            raise PermanentError(
                f"{self.path} has roles that this version does not know ({', '.join(sorted(unknown))}): it "
                "was written by a newer one; start that one",
                reason="DataFolder",
            )
        return users

    def change(self, change: Callable[[dict[str, Account]], None]) -> None:
        """Replace the file by what `change` makes of the users by name; if it raises, nothing changes."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            users = {account.name: account for account in self.read()}
            change(users)
            content = _File(users=tuple(users[name] for name in sorted(users)))
            write_private(self.path, sealed(msgspec.json.format(msgspec.json.encode(content), indent=2)))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = open_lock(self._folder / LOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def check_user(name: str, groups: Sequence[str], namespaces: Sequence[str]) -> None:
    """Refuse names that Kubernetes reserves or that hide something. Raises UsageError."""
    for what, given in (("user", name), *(("group", group) for group in groups)):
        if not _NAME.fullmatch(given):
            raise UsageError(f"{given[:80]!r} cannot be the name of a {what}: it takes {_NAME_RULE}")
        if given.startswith(_RESERVED):
            raise UsageError(f"{given!r} cannot be the name of a {what}: {_RESERVED} is for Kubernetes' own")
    if name == ADMIN:
        raise UsageError(f"{ADMIN} is the holder of the data folder's kubeconfig: choose another name")
    for namespace in namespaces:
        if not _NAMESPACE.fullmatch(namespace):
            raise UsageError(f"{namespace[:80]!r} cannot be the name of a namespace")


class Identities:
    """Knows the admin, the services and the users by their bearer tokens."""

    def __init__(
        self, own: dict[str, User], file: UserFile, on_grant: Callable[[Sequence[Binding]], None]
    ) -> None:
        """Know nobody of the file yet.

        own: the users that are in no file, by token
        file: the file with the others
        on_grant: called with the bindings of the file's users when they change
        """
        self._own = {digest_of(token): user for token, user in own.items()}
        self._file = file
        self._on_grant = on_grant
        self._seen: tuple[int, int, int] | None = None
        self._looked_at = 0.0
        self._users = dict(self._own)
        self._headers: dict[str, User] = {}
        self._refresh()

    async def authenticate(self, request: web.BaseRequest) -> User:
        header = request.headers.get("Authorization", "")
        if time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._refresh()
        user = self._headers.get(header)
        if user is None:
            scheme, _, token = header.partition(" ")
            user = self.user_of(token) if scheme.lower() == "bearer" else None
            if user is None:
                raise status.unauthorized()
            self._headers[header] = user
        return user

    def user_of(self, token: str) -> User | None:
        """Return whose token this is. While the file is damaged, its users are not known."""
        self._refresh()
        return self._users.get(digest_of(token))

    def _refresh(self) -> None:
        self._looked_at = time.monotonic()
        try:
            found = os.stat(self._file.path)
        except FileNotFoundError:
            mark = None
        else:
            mark = (found.st_mtime_ns, found.st_ino, found.st_size)
        if mark == self._seen:
            return
        self._seen = mark
        self._headers.clear()
        try:
            accounts = self._file.read()
        except PermanentError as exc:
            _log.error("users are not known", error=str(exc))  # the admin gets in: he has to repair it
            accounts = ()
        self._users = {account.digest: account.user for account in accounts} | self._own
        self._on_grant([binding for account in accounts for binding in account.bindings()])
