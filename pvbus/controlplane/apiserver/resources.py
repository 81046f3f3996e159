"""The REST verbs: from a parsed request to an answer.

This module handles the HTTP side: verb, body, shape of the answer. `writes` and `listing` implement the
verbs. Virtual kinds (created on demand, not stored) have their own short paths.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver import bodies, listing, shapes, status, watching
from pvbus.controlplane.apiserver import requests as rq
from pvbus.controlplane.apiserver.decoding import report_unknown
from pvbus.controlplane.apiserver.entries import ObjectKey, encode
from pvbus.controlplane.apiserver.hooks import StatusError, VirtualKind
from pvbus.controlplane.apiserver.metadata import check_place
from pvbus.controlplane.apiserver.patch import (
    APPLY_PATCH,
    PATCHES,
    STRATEGIC_PATCH,
    json_patch,
    merge_patch,
    strategic_merge_patch,
)
from pvbus.controlplane.apiserver.printing import partial_metadata
from pvbus.controlplane.apiserver.registry import Endpoint, Registry
from pvbus.controlplane.apiserver.store import Store
from pvbus.controlplane.apiserver.writes import Writer
from pvbus.ports.cluster import Kind, Object

RV_DIGITS_MAX = 18
"""Digits of a resourceVersion that can be: of a longer one the list says what is wrong."""


class Call(NamedTuple):
    """A request to a resource. media: the content type of its body, without parameters. agent: the
    User-Agent, which names the field manager of a write."""

    method: str
    target: rq.Target
    query: Mapping[str, str]
    wanted: rq.Wanted
    media: str
    body: bodies.Body
    user: str
    agent: str = ""


class Answer(NamedTuple):
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
        """tokens: of continued lists; None for a server that shares no secret with its replicas."""
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
        obj = _read(endpoint, call, options)
        namespace = call.target.namespace
        entry = await self._writer.create(endpoint, obj, namespace, options)
        return Answer(201, form.one(entry), tuple(options.warnings))

    async def _delete_collection(self, selected: listing.Selection, form: shapes.Form, call: Call) -> Answer:
        options = rq.delete_options(call.query, _read_delete_options(call))
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
            if options.applies:
                return await self._apply(endpoint, key, form, call, options)
            change = self._change(endpoint, key, call, options)
            if call.method == "PUT" and self._writer.creates_by_update(endpoint, key):
                entry = await self._writer.create(endpoint, _new(change({})), key[0] or None, options)
                return Answer(201, form.one(entry), tuple(options.warnings))
            entry = await self._writer.update(
                endpoint,
                key,
                change,
                options,
                subresource=target.subresource,
                conditional=call.method == "PUT",
            )
            return Answer(200, form.one(entry), tuple(options.warnings))
        if call.method == "DELETE" and not target.subresource:
            delete = rq.delete_options(call.query, _read_delete_options(call))
            result = await self._writer.delete(endpoint, key, delete)
            if result.gone:
                return Answer(200, encode(status.success(endpoint.subject(target.name), result.entry.uid)))
            return Answer(200, form.one(result.entry))
        raise status.not_allowed()

    async def _refresh(self, endpoint: Endpoint, key: ObjectKey | None, query: Mapping[str, str]) -> None:
        """Wait for what a read requires: the present state, or one of at least a resourceVersion."""
        asked = query.get("resourceVersion", "")
        if not asked and not query.get("continue"):
            await self._store.refresh(endpoint.stored_kind, key)
        elif asked.isdecimal() and len(asked) <= RV_DIGITS_MAX and int(asked) > self._store.rv:
            await self._store.reach(endpoint.stored_kind, int(asked))

    async def _apply(
        self, endpoint: Endpoint, key: ObjectKey, form: shapes.Form, call: Call, options: rq.Options
    ) -> Answer:
        config = bodies.read_config(call.body, strict=options.validation == "Strict")
        if endpoint.served.group in _GIT_GROUPS:
            bodies.refuse_nul(config, call.body, APPLY_PATCH)
        entry, is_new = await self._writer.apply(
            endpoint, key, config, options, subresource=call.target.subresource
        )
        return Answer(201 if is_new else 200, form.one(entry), tuple(options.warnings))

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

    def _change(
        self, endpoint: Endpoint, key: ObjectKey, call: Call, options: rq.Options
    ) -> Callable[[Object], Object]:
        """Return the function by which the request changes an object; the body is decoded at once."""
        if call.method == "PATCH":
            return _patcher(endpoint, call)
        obj = _read(endpoint, call, options)
        check_place(obj.get("metadata"), key, namespaced=True)
        if endpoint.served.namespaced:
            obj["metadata"]["namespace"] = key[0]
        return lambda old: obj

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
            new = self._change(endpoint, (target.namespace or "", target.name), call, options)({})
        else:
            new = _patcher(endpoint, call)(await self._virtual_get(endpoint, virtual, call))
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


def _new(obj: Object) -> Object:
    """Return the object of a PUT as one to create: it may name the version that it replaces."""
    metadata = {key: value for key, value in (obj.get("metadata") or {}).items() if key != "resourceVersion"}
    return {**obj, "metadata": metadata}


def _applies(call: Call) -> bool:
    return call.method == "PATCH" and call.media == APPLY_PATCH


def _options(endpoint: Endpoint, call: Call) -> rq.Options:
    """Return the options of a PUT or PATCH. Raises StatusError (415, 422)."""
    _check_media(endpoint, call)
    applies = _applies(call)
    kind = "PatchOptions" if call.method == "PATCH" else "UpdateOptions"
    return rq.write_options(call.query, call.user, call.agent, kind=kind, applies=applies)


_GIT_GROUPS = ("porch.kpt.dev", "config.porch.kpt.dev")
"""Groups whose objects name packages, branches and files: these texts reach git and the file system."""


def _read(endpoint: Endpoint, call: Call, options: rq.Options) -> Object:
    """Decode the object of a POST or PUT; duplicate fields are reported like unknown ones."""
    obj, doubled = bodies.read_object(call.body, call.media, duplicates=options.validation != "Ignore")
    if endpoint.served.group in _GIT_GROUPS:
        bodies.refuse_nul(obj, call.body, call.media)
    if doubled:
        report_unknown(endpoint, [f'duplicate field "{path}"' for path in doubled], options)
    if not obj.get("kind") and not endpoint.served.custom:
        # Like kube-apiserver, take the type of a built-in kind from the path.
        obj = {
            **obj,
            "kind": endpoint.served.kind,
            "apiVersion": obj.get("apiVersion") or endpoint.api_version,
        }
    return obj


def _read_delete_options(call: Call) -> Any:
    if not call.body:
        return {}
    return bodies.read_object(call.body, call.media, duplicates=False)[0]


def _unowned(obj: Object) -> Object:
    """Return an object without its managedFields, which are as deep as the fields that they name."""
    metadata = obj.get("metadata")
    if type(metadata) is not dict or "managedFields" not in metadata:
        return obj
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


def _deepened() -> StatusError:
    """Return the error for a patch whose operations nest an object too deeply."""
    text = f"the patch leaves an object that is more than {bodies.DEPTH_MAX} levels deep"
    return StatusError(422, "Invalid", text)


def _patcher(endpoint: Endpoint, call: Call) -> Callable[[Object], Object]:
    """Return the function that applies the patch of a request."""
    assert isinstance(call.body, bytes)  # patches are JSON
    patch = bodies.read_json(call.body)
    served = endpoint.served
    if served.group in _GIT_GROUPS:
        bodies.refuse_nul(patch, call.body, call.media)

    def apply(old: Object) -> Object:
        try:
            if call.media == STRATEGIC_PATCH:
                new = strategic_merge_patch(old, patch, group=served.group, kind=served.kind)
            elif call.media == "application/json-patch+json":
                new = json_patch(old, patch)
            else:
                new = merge_patch(old, patch)
        except RecursionError as exc:
            raise _deepened() from exc
        if type(new) is not dict:
            raise status.bad_request("the patch does not leave an object")
        if bodies.is_deep(_unowned(new)):
            raise _deepened()
        key = (call.target.namespace or "", call.target.name)
        check_place(new.get("metadata"), key, namespaced=served.namespaced)
        return new

    return apply
