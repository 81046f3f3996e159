"""Lists: selectors, consistent pages, and the requested resourceVersion.

A continue token holds the resource version of the first page and the last key sent. Later pages show the
objects as they were at that version, as long as the log of changes reaches back to it. The token is signed
for its list: one that was made up, or for another list, gives no page.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.entries import Entry, ObjectKey
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.nodes import forbidden, unsupported
from pvbus.controlplane.apiserver.registry import Endpoint
from pvbus.controlplane.apiserver.requests import is_true, number
from pvbus.controlplane.apiserver.selectors import (
    FieldSelector,
    parse_field_selector,
    selectable_fields,
)
from pvbus.controlplane.apiserver.store import ExpiredError, Store, Table
from pvbus.core.api.selectors import Requirements, matches
from pvbus.core.api.selectortext import parse_label_selector
from pvbus.ports.cluster import Object


class Selection(NamedTuple):
    """The selected objects of a kind.

    endpoint: the kind, in the version of the request
    namespace: the one namespace, None for all
    labels: the label selector, None for all objects
    fields: the field selector, None for all objects
    """

    endpoint: Endpoint
    namespace: str | None
    labels: Requirements | None = None
    fields: FieldSelector | None = None

    @property
    def unrestricted(self) -> bool:
        return self.labels is None and self.fields is None

    def matches(self, entry: Entry) -> bool:
        if self.namespace is not None and entry.key[0] != self.namespace:
            return False
        if self.labels is not None and not matches(self.labels, entry.labels):
            return False
        return self.fields is None or self.fields.matches(self.endpoint.presented(entry.share()))

    def matches_object(self, obj: Object) -> bool:
        """Return whether the selectors match an object that is not stored; the namespace is not checked."""
        if self.labels is not None and not matches(self.labels, obj["metadata"].get("labels") or {}):
            return False
        return self.fields is None or self.fields.matches(obj)


MAC_BYTES = 16
"""The length of the signature of a continue token: requests cannot guess 128 bits."""


class Page(NamedTuple):
    """One page of a list.

    entries: the objects
    rv: the resourceVersion of the list
    continue_: the token of the next page, "" on the last one
    remaining: the number of objects on later pages, 0 if there are none or if it is unknown
    """

    entries: list[Entry]
    rv: int
    continue_: str = ""
    remaining: int = 0


class _Token(msgspec.Struct, frozen=True, kw_only=True):
    rv: int
    start: ObjectKey


def selection(endpoint: Endpoint, namespace: str | None, query: Mapping[str, str]) -> Selection:
    """Read the selectors of a request. Raises StatusError (400)."""
    labels_text, fields_text = query.get("labelSelector", ""), query.get("fieldSelector", "")
    try:
        labels = parse_label_selector(labels_text) if labels_text else None
        supported = selectable_fields(endpoint.served.group, endpoint.served.kind)
        fields = parse_field_selector(fields_text, supported) if fields_text else None
    except ValueError as exc:
        if "not supported" in str(exc):
            _check_options(query)  # first what cannot be read, then the options, then what is not served
        raise status.bad_request(str(exc)) from exc
    _check_options(query)
    return Selection(endpoint, namespace, labels, fields)


class Tokens:
    """Writes and reads continue tokens.

    A server whose replicas have no secret in common has an empty key: its tokens fit their lists and versions
    only. Whoever makes one up may start a list anywhere that he may read anyway.

    key: signs the tokens; the servers that share a list share it
    """

    def __init__(self, key: bytes = b"") -> None:
        self._key = key

    def write(self, selected: Selection, query: Mapping[str, str], token: _Token) -> str:
        content = msgspec.json.encode(token)
        return base64.urlsafe_b64encode(self._mac(selected, query, content) + content).decode().rstrip("=")

    def read(self, selected: Selection, query: Mapping[str, str]) -> _Token:
        """Return the token of a request. Raises StatusError: 400 unreadable, 410 not of this list."""
        text = query["continue"]
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            mac, content = raw[:MAC_BYTES], raw[MAC_BYTES:]
            token = msgspec.json.decode(content, type=_Token)
        except (binascii.Error, ValueError) as exc:
            raise status.bad_request("continue key is not valid: it was not made by this server") from exc
        if not hmac.compare_digest(mac, self._mac(selected, query, content)):
            raise status.expired(
                "The provided continue parameter was not made by this server for this list. You can start a "
                "new list without the continue parameter."
            )
        return token

    def version(self, selected: Selection, query: Mapping[str, str]) -> int:
        """Return the version of the list that a request continues, 0 for none. Raises: as `read`."""
        return self.read(selected, query).rv if query.get("continue") else 0

    def _mac(self, selected: Selection, query: Mapping[str, str], content: bytes) -> bytes:
        """Return the signature of a token. Every part has a length, so none can run into the next one."""
        kind = selected.endpoint.stored_kind
        namespace = "*" if selected.namespace is None else f"={selected.namespace}"
        selectors = (query.get("labelSelector", ""), query.get("fieldSelector", ""))
        parts = msgspec.json.encode([kind.group, kind.kind, namespace, *selectors, content])
        return hmac.digest(self._key, parts, hashlib.sha256)[:MAC_BYTES]


def page(store: Store, selected: Selection, query: Mapping[str, str], tokens: Tokens) -> Page:
    """Return one page of a list. Raises StatusError: 400, 410 Expired, 504.

    All pages of a list show the objects as they were at the resourceVersion of the first one (`_past`). A
    page begins behind the last key of the page before, so objects that came or went in between neither repeat
    nor skip others.
    """
    table = store.table(selected.endpoint.stored_kind)
    limit = number("limit", query.get("limit") or "0")
    rv, after = store.rv, None
    if query.get("continue"):
        if query.get("resourceVersion", "0") not in ("", "0"):
            raise status.bad_request("specifying resource version is not allowed when using continue")
        token = tokens.read(selected, query)
        rv, after = token.rv, token.start
        if rv > store.rv:
            raise status.expired(_TOO_OLD.format("it comes from a list that this server does not have"))
        table = _past(table, rv)
    else:
        given = asked_version(store, query)
        match = query.get("resourceVersionMatch")
        if query.get("resourceVersion") == "0":
            limit = 0  # like kube-apiserver: "any version" is answered at once, and whole
        elif given and (match == "Exact" or (limit and not match)):
            rv = given
            table = _past(table, rv)
    candidates = keys = _candidates(table, selected, after)
    if not selected.unrestricted:
        keys = [key for key in keys if selected.matches(table.entries[key])]
    shown = [table.entries[key] for key in (keys[:limit] if limit else keys)]
    # Like kube-apiserver: a full page has a next one if any object follows, selected or not.
    by_name = selected.fields is not None and selected.fields.exact("metadata.name")
    if len(shown) < (limit or len(keys) + 1) or shown[-1].key == (keys if by_name else candidates)[-1]:
        return Page(shown, rv)
    remaining = len(keys) - limit if selected.unrestricted else 0
    return Page(shown, rv, tokens.write(selected, query, _Token(rv=rv, start=shown[-1].key)), remaining)


def _candidates(table: Table, selected: Selection, after: ObjectKey | None) -> Sequence[ObjectKey]:
    """Return the keys of all objects that may be selected, in order."""
    package = selected.fields.exact("spec.packageName") if selected.fields is not None else None
    if not package:
        return table.keys(selected.namespace, after=after)
    return table.of_package(package, selected.namespace, after=after)


def asked_version(store: Store, query: Mapping[str, str]) -> int:
    """Return the resourceVersion of a request, 0 for none. Raises StatusError if it is invalid."""
    text = query.get("resourceVersion", "")
    if text in ("", "0"):
        return 0
    rv = number("resourceVersion", text)
    if rv > store.rv:
        raise StatusError(
            504,
            "Timeout",
            f"Too large resource version: {rv}, current: {store.rv}",
            causes=(("", "ResourceVersionTooLarge", "Too large resource version"),),
            retry_after_seconds=1,
        )
    return rv


_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new "
    "list without the continue parameter. ({})"
)


def _past(table: Table, rv: int) -> Table:
    try:
        return table.snapshot(rv)
    except ExpiredError as exc:
        raise status.expired(_TOO_OLD.format(exc)) from exc


def _check_options(query: Mapping[str, str]) -> None:
    number("limit", query.get("limit") or "0")
    if not is_true(query, "watch"):
        _check_match(query)


def _check_match(query: Mapping[str, str]) -> None:
    """Refuse an invalid resourceVersionMatch (422)."""
    match = query.get("resourceVersionMatch", "")
    if not match:
        return
    problems = []
    if not query.get("resourceVersion"):
        why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        problems.append(forbidden("resourceVersionMatch", why))
    if query.get("continue"):
        why = "resourceVersionMatch is forbidden when continue is provided"
        problems.append(forbidden("resourceVersionMatch", why))
    if match == "Exact" and query.get("resourceVersion") == "0":
        why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        problems.append(forbidden("resourceVersionMatch", why))
    if match not in ("Exact", "NotOlderThan"):
        problems.append(unsupported("resourceVersionMatch", match, ("Exact", "NotOlderThan", "")))
    if problems:
        raise status.invalid_option("ListOptions", *problems)
