"""Answers questions about rights and identities: the reviews of authorization and authentication.

Source: Kubernetes 1.36, pkg/registry/authorization, pkg/registry/authentication and
pkg/apis/authorization/validation/validation.go.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pvbus.controlplane.apiserver import bodies, status
from pvbus.controlplane.apiserver.entries import encode
from pvbus.controlplane.apiserver.identity import Attributes, User
from pvbus.controlplane.apiserver.nodes import FieldError, invalid
from pvbus.controlplane.apiserver.rbac.authorizer import RbacAuthorizer
from pvbus.controlplane.apiserver.rbac.kinds import REVIEWS
from pvbus.controlplane.apiserver.rbac.policy import Rules, problems
from pvbus.controlplane.apiserver.rbac.rules import object_of
from pvbus.controlplane.apiserver.requests import Target
from pvbus.controlplane.apiserver.revisions import now
from pvbus.ports.cluster import Object

_PLURALS = {(group, f"{kind.lower()}s"): kind for group, kinds in REVIEWS.items() for kind in kinds}


class Reviews:
    """Answers reviews.

    user_of: finds the user of a token, None if there is none
    """

    def __init__(self, authorizer: RbacAuthorizer, user_of: Callable[[str], User | None]) -> None:
        self._authorizer = authorizer
        self._user_of = user_of

    @staticmethod
    def kind_of(target: Target | None) -> str:
        """Return the kind of review that a path is for, "" if it is for none."""
        if target is None or target.name or target.version != "v1":
            return ""
        return _PLURALS.get((target.group, target.plural), "")

    def answer(self, target: Target, body: bodies.Body, media: str, user: User) -> bytes:
        """Answer the review in a body. Raises StatusError (400, 415, 422)."""
        kind = self.kind_of(target)
        obj, _ = bodies.read_object(body, media, duplicates=False)
        _check_type(obj, kind, f"{target.group}/{target.version}")
        spec = obj.get("spec") or {}
        if not isinstance(spec, dict):
            raise status.bad_request(f"{kind} cannot be handled: spec must be an object")
        obj = {**obj, "metadata": obj.get("metadata") or {}}
        match kind:
            case "SelfSubjectReview":
                answer: Object = {"userInfo": _info(user)}
                obj["metadata"] = {"creationTimestamp": now()}
            case "TokenReview":
                answer = self._token(spec)
            case "SelfSubjectRulesReview":
                answer = self._rules(user, spec)
            case _:
                _check_access(obj, kind, spec, target)
                answer = self._access(spec, user if kind == "SelfSubjectAccessReview" else _user_of(spec))
        return encode({**obj, "spec": spec, "status": answer})

    def _access(self, spec: Mapping[str, Any], user: User) -> Object:
        allowed, reason = self._authorizer.decide(user, _attributes(spec))
        return {"allowed": allowed, **({"reason": reason} if reason else {})}

    def _rules(self, user: User, spec: Mapping[str, Any]) -> Object:
        namespace = spec.get("namespace")
        if not namespace or not isinstance(namespace, str):
            raise status.bad_request("no namespace on request")
        return _listed(self._authorizer.rules(user, namespace))

    def _token(self, spec: Mapping[str, Any]) -> Object:
        token = spec.get("token")
        if not token or not isinstance(token, str):
            raise status.bad_request("token is required for TokenReview in authentication")
        user = self._user_of(token)
        if user is None:
            return {"user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": _info(user)}


def _check_type(obj: Object, kind: str, api_version: str) -> None:
    for field, wanted in (("kind", kind), ("apiVersion", api_version)):
        given = obj.get(field)
        if not given:
            name = field[:1].upper() + field[1:] if field == "kind" else field
            raise status.bad_request(f"Object '{name}' is missing in the body of the request")
        if given != wanted:
            raise status.bad_request(f"the {field} in the data ({given}) does not match {wanted}")


def _info(user: User) -> Object:
    info: Object = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        info["uid"] = user.uid
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra.items()}
    return info


def _user_of(spec: Mapping[str, Any]) -> User:
    groups = spec.get("groups") or ()
    return User(str(spec.get("user") or ""), tuple(map(str, groups)), str(spec.get("uid") or ""))


def _attributes(spec: Mapping[str, Any]) -> Attributes:
    resource = spec.get("resourceAttributes")
    if resource is None:
        given = spec["nonResourceAttributes"]
        return Attributes(_text(given, "verb"), path=_text(given, "path") or "/")
    fields = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
    return Attributes(*(_text(resource, field) for field in fields))


def _text(given: Mapping[str, Any], field: str) -> str:
    value = given.get(field)
    return value if isinstance(value, str) else ""


def _check_access(obj: Object, kind: str, spec: Mapping[str, Any], target: Target) -> None:
    problems = list(_problems(obj, kind, spec, target))
    if problems:
        raise status.invalid(status.Subject(target.group, target.plural, kind), problems)


def _problems(obj: Object, kind: str, spec: Mapping[str, Any], target: Target) -> Iterator[FieldError]:
    resource, other = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    for field, value in (("resourceAttributes", resource), ("nonResourceAttributes", other)):
        if value is not None and not isinstance(value, dict):
            raise status.bad_request(f"{kind} cannot be handled: spec.{field} must be an object")
    if resource is not None and other is not None:
        why = "cannot be specified in combination with resourceAttributes"
        yield invalid("spec.nonResourceAttributes", other, why)
    if resource is None and other is None:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        yield invalid("spec.resourceAttributes", None, why)
    if kind != "SelfSubjectAccessReview" and not spec.get("user") and not spec.get("groups"):
        yield invalid("spec.user", "", "at least one of user or group must be specified")
    if kind == "LocalSubjectAccessReview":
        if resource is not None and _text(resource, "namespace") != target.namespace:
            why = "must match metadata.namespace"
            yield invalid("spec.resourceAttributes.namespace", _text(resource, "namespace"), why)
        if other is not None:
            yield invalid("spec.nonResourceAttributes", other, "disallowed on this kind of request")


def _listed(rules: Rules) -> Object:
    given = [object_of(granted.rule) for granted in rules.granted]
    answer: Object = {
        "resourceRules": [rule for rule in given if "resources" in rule],
        "nonResourceRules": [rule for rule in given if "nonResourceURLs" in rule],
        "incomplete": False,
    }
    if problem := problems(rules):
        answer["evaluationError"] = problem
    return answer
