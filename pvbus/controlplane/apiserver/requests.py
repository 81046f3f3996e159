"""Parses requests: path, options, and the accepted shape of the answer.

The head is checked before any other part of a request. A page of a foreign site can make a browser send
requests here, also under a name that it resolves to loopback (DNS rebinding). It has no token, but an earlier
refusal with a clear reason is better: requests must name this server or an address, and come from no other
origin.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec

from pvbus.adapters.httpserver import is_own_host
from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.nodes import FieldError, forbidden, required, unsupported

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CONTROL_BUT_SPACE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")

Shape = Literal["", "Table", "PartialObjectMetadata"]
Validation = Literal["Strict", "Warn", "Ignore"]


class Target(NamedTuple):
    """A path below /api or /apis.

    namespace: the namespace in the path, None without one
    name: the name in the path, "" for the collection
    """

    group: str
    version: str
    plural: str
    namespace: str | None
    name: str
    subresource: str


class Options(NamedTuple):
    """The options of a write.

    user: who writes
    warnings: collected during the write, and sent as headers
    dry_run: whether nothing is stored
    validation: what becomes of unknown fields
    manager: who will own the written fields
    applies: whether this is a server-side apply; the object then comes with its managedFields
    force: whether the apply takes over the fields of others
    """

    user: str
    warnings: list[str]
    dry_run: bool = False
    validation: Validation = "Warn"
    manager: str = ""
    applies: bool = False
    force: bool = False


class DeleteOptions(NamedTuple):
    """The options of a deletion.

    uid: the uid that the object must have, "" for any
    resource_version: the resourceVersion that the object must have, "" for any
    propagation: what becomes of the dependents
    dry_run: whether nothing is deleted
    user: who deletes, "" for the server itself
    """

    uid: str = ""
    resource_version: str = ""
    propagation: str = "Background"
    dry_run: bool = False
    user: str = ""


def parse_path(path: str) -> Target | None:
    """Return the target of a path, None if it is not the path of a resource.

    Raises StatusError (400) if it holds a control character, which no name can have.
    """
    parts = path.split("/")
    if parts[-1] == "":
        parts.pop()
    if "%" in path:
        parts = [unquote(part) for part in parts]
        if any(_CONTROL.search(part) for part in parts):
            raise status.bad_request("the path of the request must not contain a control character")
    if len(parts) > 3 and parts[1] == "api":
        group, version, rest = "", parts[2], parts[3:]
    elif len(parts) > 4 and parts[1] == "apis":
        group, version, rest = parts[2], parts[3], parts[4:]
    else:
        return None
    namespace = None
    if (
        rest[0] == "namespaces"
        and len(rest) > 2
        and not (group == "" and len(rest) == 3 and rest[2] in ("status", "finalize"))
    ):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3 or "" in rest:
        return None
    return Target(
        group,
        version,
        rest[0],
        namespace,
        rest[1] if len(rest) > 1 else "",
        rest[2] if len(rest) > 2 else "",
    )


def parse_query(text: str) -> Mapping[str, str]:
    """Return the parameters of a query. Raises StatusError (400): a control character."""
    if not text:
        return {}
    query = dict(parse_qsl(text, keep_blank_values=True))
    if "%" in text and any(_CONTROL_BUT_SPACE.search(part) for item in query.items() for part in item):
        raise status.bad_request("the query of the request must not contain a control character")
    return query


def number(name: str, text: str) -> int:
    """Return a number of a query. Raises StatusError (400)."""
    if len(text) > 18 or not (text.isascii() and text.isdigit()):
        raise status.bad_request(f'Invalid value: "{text}": {name} must be a number')
    return int(text)


def is_true(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1", "t")


MANAGER_BYTES_MAX = 128
"""kube-apiserver's limit for the name of a field manager."""

AGENT_CHARACTERS_MAX = 4 * MANAGER_BYTES_MAX
"""Characters of a User-Agent that are read."""


def write_options(
    query: Mapping[str, str], user: str, agent: str, *, kind: str = "CreateOptions", applies: bool = False
) -> Options:
    """Return the options of a write. Raises StatusError for invalid values.

    agent: the User-Agent, whose first part names the field manager if the query does not
    kind: the kind of the options, for messages
    applies: whether this is a server-side apply, which has to name its manager
    """
    if not query and not applies:
        return Options(user, [], manager=_agent_name(agent[:AGENT_CHARACTERS_MAX]))
    manager = query.get("fieldManager", "")
    found: list[FieldError] = []
    if applies and not manager:
        found.append(required("fieldManager", "is required for apply patch"))
    if not applies and kind == "PatchOptions" and query.get("force"):
        found.append(forbidden("force", "may not be specified for non-apply patch"))
    found += _manager_problems(manager)
    dry_run = query.get("dryRun")
    if dry_run not in (None, "", "All"):
        found.append(unsupported("dryRun", [dry_run], ("All",)))
    validation = query.get("fieldValidation") or "Warn"
    if validation not in ("Strict", "Warn", "Ignore"):
        found.append(unsupported("fieldValidation", validation, ("", "Ignore", "Strict", "Warn")))
    if found:
        raise status.invalid_option(kind, *found)
    return Options(
        user,
        [],
        dry_run == "All",
        validation,  # type: ignore[arg-type]  # one of the three, as checked above
        manager or _agent_name(agent[:AGENT_CHARACTERS_MAX]),
        applies,
        applies and is_true(query, "force"),
    )


def _manager_problems(manager: str) -> list[FieldError]:
    found = []
    if len(manager.encode()) > MANAGER_BYTES_MAX:
        text = f"Too long: may not be more than {MANAGER_BYTES_MAX} bytes"
        found.append(FieldError("fieldManager", "FieldValueTooLong", text))
    at = 0
    for character in manager:
        if not character.isprintable():
            text = f"invalid character U+{ord(character):04X} (at position {at})"
            found.append(status.invalid_value("fieldManager", manager, text))
        at += len(character.encode())
    return found


@lru_cache(256)
def _agent_name(agent: str) -> str:
    """Return the name in a User-Agent: what stands before the first slash, without control characters."""
    name, size = "", 0
    for character in agent.partition("/")[0]:
        if character.isprintable():
            size += len(character.encode(errors="surrogateescape"))
            if size > MANAGER_BYTES_MAX:
                break
            name += character
    return name


def _dry_run(value: Any) -> bool:
    values = [value] if isinstance(value, str) else list(value or ())
    for one in values:
        if one not in ("", "All"):
            raise status.invalid_option("CreateOptions", unsupported("dryRun", one, ("All",)))
    return "All" in values


class _Preconditions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _DeleteBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The supported fields of metav1.DeleteOptions."""

    preconditions: _Preconditions | None = None
    propagation_policy: str | None = None
    orphan_dependents: bool | None = None
    dry_run: list[str] | None = None


def delete_options(query: Mapping[str, str], content: Any, user: str) -> DeleteOptions:
    """Merge the query with a DeleteOptions body ({} if there was none). Raises StatusError (400, 422)."""
    try:
        body = msgspec.convert(content, _DeleteBody)
    except msgspec.ValidationError as exc:
        raise status.bad_request(f"the body of the request is not a DeleteOptions: {exc}") from exc
    preconditions = body.preconditions or _Preconditions()
    propagation = body.propagation_policy or query.get("propagationPolicy") or ""
    orphan = body.orphan_dependents
    if orphan is None and "orphanDependents" in query:
        orphan = is_true(query, "orphanDependents")
    if not propagation:
        propagation = "Orphan" if orphan else "Background"
    if propagation not in ("Background", "Foreground", "Orphan"):
        problem = unsupported("propagationPolicy", propagation, ("Foreground", "Background", "Orphan", "nil"))
        raise status.invalid_option("DeleteOptions", problem)
    return DeleteOptions(
        uid=preconditions.uid or "",
        resource_version=preconditions.resource_version or "",
        propagation=propagation,
        dry_run=_dry_run(body.dry_run) or _dry_run(query.get("dryRun")),
        user=user,
    )


class Wanted(NamedTuple):
    """The accepted shape of the answer.

    shape: whole objects, their metadata, or a table
    yaml: whether to encode it as YAML instead of JSON
    """

    shape: Shape
    yaml: bool = False


ACCEPT_REMEMBERED_MAX = 1024
"""Longest Accept header whose result is cached; the longest that clients send has about 300 characters."""


def wanted(accept: str) -> Wanted:
    """Return the first shape in an Accept header that this server supports. Raises StatusError (406)."""
    return _wanted(accept) if len(accept) <= ACCEPT_REMEMBERED_MAX else _wanted.__wrapped__(accept)


@lru_cache(256)
def _wanted(accept: str) -> Wanted:
    for term in accept.split(",") if accept else ("*/*",):
        media, *parameters = (part.strip() for part in term.split(";"))
        if media not in ("application/json", "application/*", "*/*", "application/yaml"):
            continue
        values = dict(parameter.partition("=")[::2] for parameter in parameters)
        shape = values.get("as", "").removesuffix("List")
        if shape == "":
            return Wanted("", media == "application/yaml")
        if shape in ("Table", "PartialObjectMetadata") and values.get("v", "v1") == "v1":
            return Wanted(shape)  # type: ignore[arg-type]
    raise StatusError(
        406,
        "NotAcceptable",
        "only the following media types are accepted: application/json, application/yaml",
    )


_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")


def check_head(raw_path: str, headers: Mapping[str, str], names: frozenset[str], scheme: str) -> None:
    """Raise StatusError for an invalid head (400) or a request that is not meant for this server (403).

    names: lower-case DNS names of this server; addresses are always its own.
    """
    if not raw_path.isascii():
        raise status.bad_request("the path and the query of the request must be percent-encoded")
    host = headers.get("Host", "")
    if not host:
        raise status.bad_request("the request has no Host header")
    if not is_own_host(host, names):
        listed = ", ".join(sorted(names))
        raise _foreign(f"Host {host[:253]!r} is not a name of this server: use {listed} or its address")
    origin = headers.get("Origin")
    if origin is not None and origin != f"{scheme}://{host}":
        raise _foreign(f"Origin {origin[:253]!r}: pages of other sites are not served")


def _foreign(text: str) -> StatusError:
    return StatusError(403, "Forbidden", f"forbidden: {text}")


def media_type(headers: Mapping[str, str]) -> str:
    """Return the Content-Type of a body without its parameters. Raises StatusError (415).

    A compressed body is refused: clients of a Kubernetes API send none, and a small one can unpack to any
    size.
    """
    encoding = headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise status.unsupported_media_type(
            f"Content-Encoding {encoding[:80]!r} is not supported: send the body as it is"
        )
    media, *parameters = headers.get("Content-Type", "").split(";")
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        charset = value.strip().strip('"').lower()
        if name.strip().lower() == "charset" and charset not in _CHARSETS:
            raise status.unsupported_media_type(f"charset {charset[:80]!r} is not supported: send UTF-8")
    return media.strip().lower()
