"""Who sends a request to a server, what he may do, and what he may grant: all parts together."""

import asyncio
from collections.abc import Mapping, Sequence

from aiohttp import web

from pvbus.controlplane.apiserver.bodies import Body
from pvbus.controlplane.apiserver.identity import SYSTEM, Attributes, User
from pvbus.controlplane.apiserver.rbac.aggregation import Aggregator
from pvbus.controlplane.apiserver.rbac.authorizer import RbacAuthorizer
from pvbus.controlplane.apiserver.rbac.builtin import completed, initial
from pvbus.controlplane.apiserver.rbac.escalation import Escalation
from pvbus.controlplane.apiserver.rbac.impersonation import effective_user
from pvbus.controlplane.apiserver.rbac.kinds import strategies_of
from pvbus.controlplane.apiserver.rbac.policy import Binding
from pvbus.controlplane.apiserver.rbac.reviews import Reviews
from pvbus.controlplane.apiserver.rbac.services import bindings_in
from pvbus.controlplane.apiserver.rbac.users import Identities, UserFile
from pvbus.controlplane.apiserver.registry import Registry
from pvbus.controlplane.apiserver.requests import Options, Target
from pvbus.controlplane.apiserver.store import Store
from pvbus.controlplane.apiserver.strategies import Strategy
from pvbus.controlplane.apiserver.writes import Writer
from pvbus.ports.cluster import Kind, Object


class AccessControl:
    """Call `begin` with the writer, then `admit`; `run` keeps aggregated roles up to date."""

    def __init__(
        self, store: Store, registry: Registry, users: UserFile, namespaces: Sequence[str] = ()
    ) -> None:
        """Know nobody until `admit`.

        namespaces: the namespaces that the services are limited to; () if they are not
        """
        self._store = store
        self._registry = registry
        self._users = users
        self._limited = tuple(bindings_in(namespaces))
        self._authorizer = RbacAuthorizer(store)
        self.strategies: Mapping[Kind, Strategy] = strategies_of(Escalation(self._authorizer))

    async def begin(self, writer: Writer) -> None:
        """Make the built-in roles and bindings that are missing."""
        self._aggregator = Aggregator(self._store, self._registry, writer)
        wanted = initial(is_limited=bool(self._limited))
        await asyncio.gather(*(self._ensure(writer, kind, obj) for kind, obj in wanted))
        self._aggregator.begin()
        await self._aggregator.settle()

    async def _ensure(self, writer: Writer, kind: Kind, wanted: Object) -> None:
        endpoint = self._registry.storage(kind)
        assert endpoint is not None
        options = Options(SYSTEM.name, [])
        key = ("", wanted["metadata"]["name"])
        if self._store.head(kind, key) is None:
            await writer.create(endpoint, wanted, None, options)
        else:
            await writer.update(endpoint, key, lambda stored: completed(kind, stored, wanted), options)

    def admit(self, own: dict[str, User]) -> None:
        """Begin to know the users of the file, and others by their tokens. Raises PermanentError."""
        self._users.read()
        self._set_users(())
        self._identities = Identities(own, self._users, self._set_users)
        self._reviews = Reviews(self._authorizer, self._identities.user_of)

    def _set_users(self, bindings: Sequence[Binding]) -> None:
        self._authorizer.set_users([*self._limited, *bindings])

    async def run(self) -> None:
        await self._aggregator.work.run()

    async def authenticate(self, request: web.BaseRequest) -> User:
        """Return in whose name a request is made. Raises StatusError (400, 401, 403)."""
        user = await self._identities.authenticate(request)
        return await effective_user(user, request.headers, self._authorizer)

    async def authorize(self, user: User, attributes: Attributes) -> None:
        """Return if a user may. Raises StatusError (403)."""
        await self._authorizer.authorize(user, attributes)

    def is_review(self, target: Target) -> bool:
        """Return whether a path is that of a review, which is answered and not stored."""
        return bool(self._reviews.kind_of(target))

    def review(self, target: Target, body: Body, media: str, user: User) -> bytes:
        """Answer a review. Raises StatusError."""
        return self._reviews.answer(target, body, media, user)
