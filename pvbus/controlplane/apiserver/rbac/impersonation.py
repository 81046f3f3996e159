"""Requests in the name of somebody else: the headers Impersonate-User and the like (`kubectl --as`).

Each header needs the right `impersonate` of the one who sends it.
Source: Kubernetes 1.36, apiserver/pkg/endpoints/filters/impersonation/impersonation.go.
"""

from collections.abc import Iterator
from urllib.parse import unquote

from multidict import CIMultiDictProxy

from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.identity import AUTHENTICATED_GROUP, Attributes, Authorizer, User
from pvbus.controlplane.apiserver.rbac.policy import ACCOUNT_PREFIX

ANONYMOUS = "system:anonymous"
UNAUTHENTICATED_GROUP = "system:unauthenticated"
_ACCOUNTS_GROUP = "system:serviceaccounts"
_USER, _GROUP, _UID, _EXTRA = "Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "impersonate-extra-"
_PREFIX = "impersonate-"
_AUTHENTICATION = "authentication.k8s.io"


async def effective_user(user: User, headers: CIMultiDictProxy[str], authorizer: Authorizer) -> User:
    """Return in whose name a request is made. Raises StatusError (400, 403)."""
    if not any(name[0] in "iI" and name.lower().startswith(_PREFIX) for name in headers):
        return user
    wanted = headers.get(_USER, "")
    groups, uid, extra = headers.getall(_GROUP, []), headers.get(_UID, ""), list(_extra(headers))
    if not wanted:
        if groups or uid or extra:
            raise status.bad_request("requested groups, uid or extra without impersonating a user")
        return user
    for asked in _asked(wanted, groups, uid, extra):
        await authorizer.authorize(user, asked)
    values: dict[str, list[str]] = {}
    for key, value in extra:
        values.setdefault(key, []).append(value)
    return User(wanted, tuple(_groups(wanted, groups)), uid, values, user)


def _extra(headers: CIMultiDictProxy[str]) -> Iterator[tuple[str, str]]:
    for name, value in headers.items():
        if name.lower().startswith(_EXTRA):
            yield unquote(name[len(_EXTRA) :].lower()), value


def _asked(wanted: str, groups: list[str], uid: str, extra: list[tuple[str, str]]) -> Iterator[Attributes]:
    namespace, name = account(wanted)
    if name:
        yield Attributes("impersonate", "", "v1", "serviceaccounts", "", namespace, name)
    else:
        yield Attributes("impersonate", resource="users", name=wanted)
    for group in groups:
        yield Attributes("impersonate", resource="groups", name=group)
    for key, value in extra:
        yield Attributes("impersonate", _AUTHENTICATION, "v1", "userextras", key, "", value)
    if uid:
        yield Attributes("impersonate", _AUTHENTICATION, "v1", "uids", "", "", uid)


def account(user: str) -> tuple[str, str]:
    """Return namespace and name of a ServiceAccount's user, empty ones if it is no such user."""
    if not user.startswith(ACCOUNT_PREFIX):
        return "", ""
    namespace, colon, name = user.removeprefix(ACCOUNT_PREFIX).partition(":")
    return (namespace, name) if colon and namespace and name and ":" not in name else ("", "")


def account_groups(namespace: str) -> tuple[str, ...]:
    """Return the groups of every ServiceAccount of a namespace."""
    return (_ACCOUNTS_GROUP, f"{_ACCOUNTS_GROUP}:{namespace}")


def _groups(wanted: str, given: list[str]) -> list[str]:
    namespace, name = account(wanted)
    groups = list(given) if given or not name else list(account_groups(namespace))
    if wanted == ANONYMOUS:
        return groups if UNAUTHENTICATED_GROUP in groups else [*groups, UNAUTHENTICATED_GROUP]
    if AUTHENTICATED_GROUP in groups or UNAUTHENTICATED_GROUP in groups:
        return groups
    return [*groups, AUTHENTICATED_GROUP]
