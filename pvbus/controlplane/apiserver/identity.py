"""Who sends a request, and whether he may: the interfaces of authentication and authorization.

The server asks an `Authenticator` who sends a request, then an `Authorizer` whether this user may do what the
request asks for. The embedded server knows the holder of the data folder's token, who may do everything, and
the services and the users of `pvbus user`, who may do what their roles say
(`pvbus.controlplane.apiserver.rbac`).
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from aiohttp import web

from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.requests import Target, is_true

ADMIN = "pvbus-admin"
ADMINS_GROUP = "system:masters"
AUTHENTICATED_GROUP = "system:authenticated"


class User(NamedTuple):
    """The sender of a request, as Kubernetes describes users.

    name: the name
    groups: the groups
    uid: the uid, "" for none
    extra: further attributes, by name in lower case
    sender: who makes the request in the name of this user, None if it is the user
    """

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, Sequence[str]] = {}
    sender: "User | None" = None


class Attributes(NamedTuple):
    """What a request asks for.

    verb: get, list, watch, create, update, patch, delete or deletecollection
    group: the group of the resource, "" for the core group
    version: the version of the resource
    resource: the plural
    subresource: the subresource, "" for the object itself
    namespace: the namespace, "" for none or for all of them
    name: the name, "" for a collection
    path: the path of a request to no resource; its verb is the HTTP method in lower case, and the other
        fields are empty
    """

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


SYSTEM = User("system:apiserver", (ADMINS_GROUP,))
"""Does the server's own work: its collectors, and what it makes at its start."""


class Authenticator(Protocol):
    """Finds out who sends a request."""

    async def authenticate(self, request: web.BaseRequest) -> User:
        """Return the sender. Raises StatusError (401)."""
        ...


class Authorizer(Protocol):
    """Decides whether a user may do something."""

    async def authorize(self, user: User, attributes: Attributes) -> None:
        """Return if the user may. Raises StatusError (403; 5xx: it could not be decided)."""
        ...


class Asked(NamedTuple):
    """The request that is being answered.

    user: who sends it
    attributes: what it asks for
    authorizer: decides on further rights, None if everything is permitted
    """

    user: User
    attributes: Attributes
    authorizer: Authorizer | None = None


_current: ContextVar[Asked | None] = ContextVar("current", default=None)


def answering(user: User, attributes: Attributes, authorizer: Authorizer) -> None:
    """Note the request that this task answers, for checks deep in a write that need the user's rights."""
    _current.set(Asked(user, attributes, authorizer))


def current() -> Asked:
    """Return the request that this task answers; the server's own work if it answers none."""
    return _current.get() or Asked(SYSTEM, Attributes(""))


_OBJECT_VERBS = {"GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_COLLECTION_VERBS = {"GET": "list", "HEAD": "list", "DELETE": "deletecollection"}


def attributes_of(method: str, target: Target, query: Mapping[str, str]) -> Attributes:
    """Return what a request to a resource asks for.

    Source: Kubernetes 1.36, staging/src/k8s.io/apiserver/pkg/endpoints/request/requestinfo.go.
    """
    if method == "GET" and is_true(query, "watch"):
        verb = "watch"
    elif method == "POST":
        verb = "create"
    else:
        verb = (_OBJECT_VERBS if target.name else _COLLECTION_VERBS).get(method, method.lower())
    return Attributes(
        verb,
        target.group,
        target.version,
        target.plural,
        target.subresource,
        target.namespace or "",
        target.name,
    )


_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def denial(user: User, attributes: Attributes, reason: str = "") -> StatusError:
    """Return the error for a user without a right, in Kubernetes' words.

    Source: Kubernetes 1.36, staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go.
    """
    text = f'User "{user.name}" cannot {attributes.verb} '
    if attributes.path:
        text += f'path "{attributes.path}"'
    else:
        resource = "/".join(filter(None, (attributes.resource, attributes.subresource)))
        text += f'resource "{resource}" in API group "{attributes.group}" '
        namespace = attributes.namespace
        text += f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    text = text.translate(_ESCAPES)
    return refused(
        attributes.group, attributes.resource, attributes.name, f"{text}: {reason}" if reason else text
    )


def refused(group: str, resource: str, name: str, why: str) -> StatusError:
    """Return a 403 about an object, a collection or a path, as Kubernetes words it."""
    subject = status.Subject(group, resource, resource, name)
    text = f"forbidden: {why}"
    if resource:
        text = f'{subject.qualified} "{name}" is {text}' if name else f"{subject.qualified} is {text}"
    return StatusError(403, "Forbidden", text, details=subject.details())
