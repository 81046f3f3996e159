"""Access reviews, which an API server answers by its own rules, and the requests that it refused.

Every account may ask for its own rights. Source: Kubernetes 1.36, ClusterRole system:basic-user.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from pvbus.core.kernel.rights import Request
from pvbus.ports.cluster import Object, Resource

_GROUP = "authorization.k8s.io"
_OWN = Resource(_GROUP, "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", False)
_OF_A_USER = Resource(_GROUP, "v1", "SubjectAccessReview", "subjectaccessreviews", False)

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class Creates(Protocol):
    """The one method of a cluster that is used here."""

    async def create(self, resource: Resource, obj: Object) -> Object: ...


async def is_allowed(cluster: Creates, request: Request, user: Mapping[str, Any] | None = None) -> bool:
    """Return whether a request is permitted, in all namespaces if it names none.

    user: `user` and `groups` of another account, None for our own rights
    Raises PermanentError if the API server has no reviews, or does not let us create one.
    """
    plural, _, subresource = request.resource.partition("/")
    attributes = {
        "verb": request.verb,
        "group": request.group,
        "resource": plural,
        "subresource": subresource,
    }
    if request.namespace:
        attributes["namespace"] = request.namespace
    resource = _OF_A_USER if user else _OWN
    spec = {"resourceAttributes": attributes, **(user or {})}
    review = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}, "spec": spec}
    answer = await cluster.create(resource, review)
    return bool(answer.get("status", {}).get("allowed"))


IMPERSONATE = Request("impersonate", "", "serviceaccounts")


class Refusals:
    """The requests that were answered with 403, by the name of the client, without their namespaces.

    A refused request in the name of an account has two possible reasons: the client may not use the name, or
    the account may not make the request. So both are noted: for the client the right to use the name, and for
    the account the request, with its namespace.
    """

    def __init__(self) -> None:
        self._found: set[tuple[str, Request]] = set()
        self._of_accounts: set[tuple[str, str, Request]] = set()

    def note(self, agent: str, method: str, path: str, *, watches: bool = False, user: str = "") -> None:
        request = request_of(method, path, watches=watches)
        if request is None:
            return
        if user:
            self._of_accounts.add((agent, user, request))
            request = IMPERSONATE
        self._found.add((agent, request._replace(namespace="")))

    def take(self) -> set[tuple[str, Request]]:
        """Return the requests refused since the last call."""
        found, self._found = self._found, set()
        return found

    def take_of_accounts(self) -> set[tuple[str, str, Request]]:
        """Return the requests refused to accounts since the last call: client, account, request."""
        found, self._of_accounts = self._of_accounts, set()
        return found


def request_of(method: str, path: str, *, watches: bool) -> Request | None:
    """Return what a request asks for; None for discovery, health and the like.

    Source: Kubernetes 1.36, staging/src/k8s.io/apiserver/pkg/endpoints/request/requestinfo.go.
    """
    match path.strip("/").split("/"):
        case ["api", _, *rest]:
            group = ""
        case ["apis", group, _, *rest]:
            pass
        case _:
            return None
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    if not rest:
        return None
    is_named = len(rest) > 1
    if method == "DELETE":
        verb = "delete" if is_named else "deletecollection"
    else:
        verb = _VERBS.get(method) or ("get" if is_named else "watch" if watches else "list")
    return Request(verb, group, "/".join([rest[0], *rest[2:3]]), namespace)
