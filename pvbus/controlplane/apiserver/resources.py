"""The REST verbs: from a parsed request to an answer.

This module handles the HTTP side: verb, body, shape of the answer. `writes` and `listing` implement the
verbs. Virtual kinds (created on demand, not stored) have their own short paths.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver import bodies, changes, listing, shapes, status, watching
from pvbus.controlplane.apiserver import requests as rq
from pvbus.controlplane.apiserver.decoding import report_unknown
from pvbus.controlplane.apiserver.entries import ObjectKey, encode
from pvbus.controlplane.apiserver.hooks import StatusError, VirtualKind
from pvbus.controlplane.apiserver.patch import (
    APPLY_PATCH,
    PATCHES,
    STRATEGIC_PATCH,
)
from pvbus.controlplane.apiserver.printing import partial_metadata
from pvbus.controlplane.apiserver.registry import Endpoint, Registry
from pvbus.controlplane.apiserver.store import Store
from pvbus.controlplane.apiserver.workers import Workers
from pvbus.controlplane.apiserver.writes import Writer
from pvbus.ports.cluster import Kind, Object

RV_DIGITS_MAX = 18
"""Digits of a resourceVersion that can be: of a longer one the list says what is wrong."""


class Call(NamedTuple):
    """A request to a resource.

    method: the HTTP method
    target: the resource
    query: the parameters
    wanted: the accepted shape of the answer
    media: the content type of the body, without parameters
    body: the body
    user: who sends it
    agent: the User-Agent, which names the field manager of a write
    """

    method: str
    target: rq.Target
    query: Mapping[str, str]
    wanted: rq.Wanted
    media: str
    body: bodies.Body
    user: str
    agent: str = ""


class Answer(NamedTuple):
    """The answer to a request.

    code: the HTTP status
    body: the JSON of the answer
    warnings: the texts for the Warning headers
    """

    code: int
    body: bytes
    warnings: tuple[str, ...] = ()


class Resources:
    """The handlers of all resources of one server."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        writer: Writer,
        virtual: Mapping[Kind, VirtualKind],
        tokens: listing.Tokens | None = None,
    ) -> None:
        """Serve the kinds of a registry.

        virtual: the kinds that are not stored
        tokens: writes the tokens of continued lists; None for a server that shares no secret with its
            replicas
        """
        self._store = store
        self._registry = registry
        self._writer = writer
        self._virtual = virtual
        self._tokens = tokens or listing.Tokens()

    async def answer(self, call: Call) -> Answer | watching.WatchPlan:
        """Execute a request. Raises StatusError."""
        endpoint = self.endpoint(call.target)
        if endpoint.served.custom and not call.target.name and call.method in ("PUT", "PATCH"):
            raise status.bad_request("name must be provided")
        if not _verbs(call) & set(endpoint.served.verbs):
            raise status.not_allowed()
        virtual = self._virtual.get(endpoint.kind)
        if virtual is not None:
            return await self._answer_virtual(endpoint, virtual, call)
        if not call.target.name:
            return await self._collection(endpoint, call)
        return await self._single(endpoint, call)

    def creates(self, call: Call) -> bool:
        """Return whether an apply or a PUT is about to create its object, which takes the right to create."""
        target = call.target
        if call.method not in ("PUT", "PATCH") or not target.name or target.subresource:
            return False
        endpoint = self._registry.endpoint(target.group, target.version, target.plural)
        if endpoint is None:
            return False
        key = (target.namespace or "", target.name)
        if _applies(call):
            return self._store.head(endpoint.stored_kind, key) is None
        return call.method == "PUT" and self._writer.creates_by_update(endpoint, key)

    def changes_large(self, method: str, target: rq.Target) -> bool:
        """Return whether a request changes an object that is large."""
        if method not in ("PUT", "PATCH"):
            return False
        endpoint = self._registry.endpoint(target.group, target.version, target.plural)
        if endpoint is None:
            return False
        entry = self._store.head(endpoint.stored_kind, (target.namespace or "", target.name))
        return entry is not None and bodies.is_large(entry.raw)

    @property
    def workers(self) -> Workers:
        return self._writer.workers

    def endpoint(self, target: rq.Target) -> Endpoint:
        endpoint = self._registry.endpoint(target.group, target.version, target.plural)
        if endpoint is None:
            raise status.no_such_path()
        if target.namespace is not None and not endpoint.served.namespaced:
            raise status.no_such_path()
        if target.name and endpoint.served.namespaced and target.namespace is None:
            raise status.no_such_path()
        if target.subresource and target.subresource not in endpoint.version.subresources:
            raise status.no_such_path()
        return endpoint

    async def _collection(self, endpoint: Endpoint, call: Call) -> Answer | watching.WatchPlan:
        form = shapes.form(endpoint, call.wanted.shape, call.query)
        if call.method == "POST":
            return await self._create(endpoint, form, call)
        if call.method not in ("GET", "DELETE"):
            raise status.not_allowed()
        selected = listing.selection(endpoint, call.target.namespace, call.query)
        await self._refresh(endpoint, None, call.query)
        version = self._tokens.version(selected, call.query)
        if version > self._store.rv:  # another replica may have shown it already
            await self._store.reach(endpoint.stored_kind, version)
        if call.method == "DELETE":
            return await self._delete_collection(selected, form, call)
        if rq.is_true(call.query, "watch"):
            return watching.plan(self._store, selected, form, call.query)
        page = listing.page(self._store, selected, call.query, self._tokens)
        return Answer(200, form.many(page.entries, page.rv, page.continue_, page.remaining))

    async def _create(self, endpoint: Endpoint, form: shapes.Form, call: Call) -> Answer:
        options = rq.write_options(call.query, call.user, call.agent)
        entry = await self._writer.create(endpoint, _sent(call), call.target.namespace, options)
        return Answer(201, form.one(entry), tuple(options.warnings))

    async def _delete_collection(self, selected: listing.Selection, form: shapes.Form, call: Call) -> Answer:
        options = rq.delete_options(call.query, _read_delete_options(call), call.user)
        page = listing.page(self._store, selected, call.query, self._tokens)
        for entry in page.entries:
            try:
                await self._writer.delete(selected.endpoint, entry.key, options)
            except StatusError as exc:
                if exc.code != 404:
                    raise
        return Answer(200, form.many(page.entries, page.rv, page.continue_, page.remaining))

    async def _single(self, endpoint: Endpoint, call: Call) -> Answer | watching.WatchPlan:
        target = call.target
        key = (target.namespace or "", target.name)
        form = shapes.form(endpoint, call.wanted.shape, call.query)
        if call.method == "GET":
            return await self._get(endpoint, key, form, call)
        if call.method in ("PUT", "PATCH"):
            options = _options(endpoint, call)
            sent = _sent(call)
            if options.applies:
                entry, is_new = await self._writer.apply(endpoint, sent, options)
                return Answer(201 if is_new else 200, form.one(entry), tuple(options.warnings))
            if call.method == "PUT" and self._writer.creates_by_update(endpoint, key):
                entry = await self._writer.create(endpoint, sent, key[0] or None, options)
                return Answer(201, form.one(entry), tuple(options.warnings))
            entry = await self._writer.update(
                endpoint,
                key,
                sent,
                options,
                subresource=target.subresource,
                conditional=call.method == "PUT",
            )
            return Answer(200, form.one(entry), tuple(options.warnings))
        if call.method == "DELETE" and not target.subresource:
            delete = rq.delete_options(call.query, _read_delete_options(call), call.user)
            result = await self._writer.delete(endpoint, key, delete)
            if result.gone:
                return Answer(200, encode(status.success(endpoint.subject(target.name), result.entry.uid)))
            return Answer(200, form.one(result.entry))
        raise status.not_allowed()

    async def _refresh(self, endpoint: Endpoint, key: ObjectKey | None, query: Mapping[str, str]) -> None:
        """Wait for the state that a read requires: the present one, or one of at least a resourceVersion."""
        asked = query.get("resourceVersion", "")
        if not asked and not query.get("continue"):
            await self._store.refresh(endpoint.stored_kind, key)
        elif asked.isdecimal() and len(asked) <= RV_DIGITS_MAX and int(asked) > self._store.rv:
            await self._store.reach(endpoint.stored_kind, int(asked))

    async def _get(
        self, endpoint: Endpoint, key: ObjectKey, form: shapes.Form, call: Call
    ) -> Answer | watching.WatchPlan:
        await self._refresh(endpoint, key, call.query)
        if rq.is_true(call.query, "watch"):
            query = {**call.query, "fieldSelector": f"metadata.name={key[1]}"}
            selected = listing.selection(endpoint, call.target.namespace, query)
            return watching.plan(self._store, selected, form, query)
        entry = self._store.get(endpoint.stored_kind, key)
        if entry is None:
            raise status.not_found(endpoint.subject(key[1]))
        return Answer(200, form.one(entry))

    async def _answer_virtual(self, endpoint: Endpoint, virtual: VirtualKind, call: Call) -> Answer:
        target = call.target
        form = shapes.form(endpoint, call.wanted.shape, call.query)
        if not target.name:
            if call.method != "GET" or rq.is_true(call.query, "watch"):
                raise status.not_allowed()
            selected = listing.selection(endpoint, target.namespace, call.query)
            objects = [obj for obj in await virtual.list(target.namespace) if selected.matches_object(obj)]
            return Answer(200, _virtual_list(form, objects))
        if call.method == "GET":
            return Answer(200, _virtual_one(form, await self._virtual_get(endpoint, virtual, call)))
        if call.method not in ("PUT", "PATCH"):
            raise status.not_allowed()
        options = _options(endpoint, call)
        if options.applies:
            raise status.unsupported_media_type(
                f"{endpoint.served.plural} are read from git and have no owners of fields: use a merge or "
                "JSON patch, or an update, in place of a server-side apply"
            )
        if call.method == "PUT":
            new = changes.replacer(endpoint, _sent(call), options)({})
        else:
            new = changes.patcher(endpoint, _sent(call))(await self._virtual_get(endpoint, virtual, call))
        if endpoint.schema is not None:
            new, unknown = endpoint.schema.pruned(new)
            if unknown:
                report_unknown(endpoint, [f'unknown field "{path}"' for path in unknown], options)
            if problems := endpoint.schema.validate(new):
                raise status.invalid(endpoint.subject(target.name), problems)
        if not options.dry_run:
            new = await virtual.update(new, user=call.user)
        return Answer(200, _virtual_one(form, new), tuple(options.warnings))

    async def _virtual_get(self, endpoint: Endpoint, virtual: VirtualKind, call: Call) -> Object:
        obj = await virtual.get(call.target.namespace or "", call.target.name)
        if obj is None:
            raise status.not_found(endpoint.subject(call.target.name))
        return obj


_OBJECT_VERBS = {"GET": {"get"}, "PUT": {"update"}, "PATCH": {"patch"}, "DELETE": {"delete"}}
_COLLECTION_VERBS = {"GET": {"list"}, "POST": {"create"}, "DELETE": {"deletecollection"}}


def _verbs(call: Call) -> set[str]:
    """Return the discovery verbs of a request; none for an unsupported method."""
    if call.method == "GET" and rq.is_true(call.query, "watch"):
        return {"watch"}
    return (_OBJECT_VERBS if call.target.name else _COLLECTION_VERBS).get(call.method, set())


def _virtual_one(form: shapes.Form, obj: Object) -> bytes:
    if form.shape == "":
        return encode(obj)
    if form.shape == "PartialObjectMetadata":
        return encode(partial_metadata(obj))
    return encode(form.table([obj]))


def _virtual_list(form: shapes.Form, objects: list[Object]) -> bytes:
    if form.shape == "Table":
        return encode(form.table(objects))
    if form.shape == "PartialObjectMetadata":
        items = [encode(partial_metadata(obj)) for obj in objects]
        return shapes.joined("meta.k8s.io/v1", "PartialObjectMetadataList", {}, items)
    items = [encode(obj) for obj in objects]
    return shapes.joined(form.endpoint.api_version, form.endpoint.served.list_kind, {}, items)


def _check_media(endpoint: Endpoint, call: Call) -> None:
    """Refuse (415) a patch of an unknown type."""
    accepted = (*PATCHES, APPLY_PATCH) if endpoint.served.custom else (*PATCHES, STRATEGIC_PATCH, APPLY_PATCH)
    if call.method == "PATCH" and call.media not in accepted:
        raise status.unsupported_media_type(
            f"the body of the request was in an unknown format - accepted media types include: "
            f"{', '.join(accepted)}"
        )


def _sent(call: Call) -> changes.Sent:
    key = (call.target.namespace or "", call.target.name)
    return changes.Sent(call.method, call.media, call.body, key, call.target.subresource)


def _applies(call: Call) -> bool:
    return call.method == "PATCH" and call.media == APPLY_PATCH


def _options(endpoint: Endpoint, call: Call) -> rq.Options:
    """Return the options of a PUT or PATCH. Raises StatusError (415, 422)."""
    _check_media(endpoint, call)
    applies = _applies(call)
    kind = "PatchOptions" if call.method == "PATCH" else "UpdateOptions"
    return rq.write_options(call.query, call.user, call.agent, kind=kind, applies=applies)


def _read_delete_options(call: Call) -> Any:
    if not call.body:
        return {}
    return bodies.read_object(call.body, call.media, duplicates=False)[0]
