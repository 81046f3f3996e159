"""Decides by the stored roles and bindings whether a user may do something.

Answers are kept until a role, a binding or a user changes, for each user and form of request: a hot request
costs one look into a dictionary. Members of system:masters may do everything, whatever the roles say.
"""

from collections.abc import Sequence

from pvbus.controlplane.apiserver.entries import Change
from pvbus.controlplane.apiserver.identity import ADMINS_GROUP, Attributes, User, denial
from pvbus.controlplane.apiserver.rbac.policy import BINDINGS, ROLES, Answer, Binding, Policy, Rules
from pvbus.controlplane.apiserver.store import Store

ANSWERS_MAX = 20_000
"""The number of answers that are retained; beyond it all are dropped at once. Each form of request of each
user and namespace has an answer of about 300 bytes."""

_Form = tuple[str, tuple[str, ...], str, str, str, str, str, str]


class RbacAuthorizer:
    """Role-based access control over the objects of a store."""

    def __init__(self, store: Store) -> None:
        self.policy = Policy()
        self._answers: dict[_Form, Answer] = {}
        for kind in (*ROLES, *BINDINGS):
            for entry in store.table(kind).in_order():
                self.policy.put(kind, entry.share())
        store.observe(self._observe)

    def _observe(self, change: Change) -> None:
        if change.kind not in ROLES and change.kind not in BINDINGS:
            return
        if change.type == "DELETED":
            self.policy.drop(change.kind, change.entry.key)
        else:
            self.policy.put(change.kind, change.entry.share())
        self._answers.clear()

    def set_users(self, bindings: Sequence[Binding]) -> None:
        """Replace the bindings of the users that `pvbus user` has made."""
        self.policy.extra = bindings
        self._answers.clear()

    async def authorize(self, user: User, attributes: Attributes) -> None:
        if ADMINS_GROUP in user.groups:
            return
        answer = self._answer(user, attributes)
        if not answer.reason(attributes.name):
            raise denial(user, attributes, f"RBAC: {answer.problem}" if answer.problem else "")

    def is_allowed(self, user: User, attributes: Attributes) -> bool:
        """Return whether a user may."""
        return ADMINS_GROUP in user.groups or bool(self._answer(user, attributes).reason(attributes.name))

    def decide(self, user: User, attributes: Attributes) -> tuple[bool, str]:
        """Return whether a user may, and why, as Kubernetes says it in access reviews."""
        if ADMINS_GROUP in user.groups:
            return True, ""
        answer = self._answer(user, attributes)
        if reason := answer.reason(attributes.name):
            return True, f"RBAC: allowed by {reason}"
        return False, f"RBAC: {answer.problem}" if answer.problem else ""

    def rules(self, user: User, namespace: str) -> Rules:
        """Return all rules of a user in a namespace, and for the whole cluster."""
        return self.policy.rules(user, namespace)

    def _answer(self, user: User, asked: Attributes) -> Answer:
        form = (user.name, user.groups, asked.verb, asked.group, asked.resource, asked.subresource,
                asked.namespace, asked.path)  # fmt: skip
        answer = self._answers.get(form)
        if answer is None:
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            answer = self._answers[form] = self.policy.answer(user, asked)
        return answer
