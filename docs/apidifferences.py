"""The differences between the embedded API server and kube-apiserver that are meant to be there.

`docs.reference` prints the table. A difference that no entry matches fails the campaign, and so does an entry
that 20,000 calls never meet.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple


class Known(NamedTuple):
    """One entry. name: a short name. ours: what the embedded server does; reason: why.

    explains: (difference, one of its lines) -> whether this entry is why the line is there. ends_round: the
    servers have other objects from there on.
    """

    name: str
    ours: str
    reason: str
    explains: Callable[[Any, str], bool]
    ends_round: bool = False


def _text(answer: Any) -> str:
    """Return the message of an error, "" of another answer."""
    return str(answer.body.get("message", "")) if isinstance(answer.body, dict) else ""


def _own_words(difference: Any, line: str) -> bool:
    code = difference.real.code
    same_code = code == difference.ours.code and code in (400, 404, 415)
    return same_code and line.startswith((".message: ", ".details: ") if code != 400 else ".message: ")


def _patch_words(difference: Any, line: str) -> bool:
    is_patch = difference.call.media == "application/json-patch+json"
    same_code = difference.real.code == difference.ours.code == 422
    return is_patch and same_code and line.startswith((".message: ", ".details: {}"))


def _control(difference: Any, line: str) -> bool:
    return "control character" in _text(difference.ours)


def _method(difference: Any, line: str) -> bool:
    return difference.call.method == "POST" and (difference.real.code, difference.ours.code) == (400, 405)


def _read_first(difference: Any, line: str) -> bool:
    codes = (difference.real.code, difference.ours.code)
    is_secret = difference.call.plural == "secrets" and codes == (400, 404)
    return is_secret or (difference.call.method == "PATCH" and codes == (404, 400))


def _first_of_several(difference: Any, line: str) -> bool:
    body = difference.call.body
    reported = difference.real.code in (400, 422) and difference.ours.code == 422
    return reported and isinstance(body, dict) and body.get("kind") == "Other"


def _status_kind(difference: Any, line: str) -> bool:
    body, codes = difference.call.body, (difference.real.code, difference.ours.code)
    is_other = isinstance(body, dict) and body.get("kind") == "Other"
    return codes == (200, 422) and is_other and difference.call.path.endswith("/status")


def _event_finalizer(difference: Any, line: str) -> bool:
    is_event = difference.call.plural == "events" and difference.real.code in (200, 201)
    text = _text(difference.ours)
    return is_event and ("standard finalizer name" in text or "metadata.name: " in text)


def _version_of_new(difference: Any, line: str) -> bool:
    codes = (difference.real.code, difference.ours.code)
    is_dry = ("dryRun", "All") in difference.call.query
    if codes == (500, 400) or (is_dry and codes == (201, 400)):
        return "resourceVersion should not be set" in _text(difference.ours)
    return is_dry and codes == (201, 201) and line == ".metadata.resourceVersion: '<rv>' / '(absent)'"


def _generation(difference: Any, line: str) -> bool:
    return ".generation: 7 / '(absent)'" in line


def _status_path(difference: Any, line: str) -> bool:
    both = difference.real.code == difference.ours.code == 422
    # Ours has `status.phase in body`, kube-apiserver `phase in body`: all else is the same.
    real, _, ours = line.partition("' / '")
    return (
        both
        and "in body" in real
        and _STATUS_FIELD.sub("", ours) == _STATUS_FIELD.sub("", f"{real}'").partition(": '")[2]
    )


def _empty_map(difference: Any, line: str) -> bool:
    is_same = difference.ours.code in (200, 422) and difference.call.plural == "configmaps"
    return difference.real.code == 422 and is_same and "field is immutable when" in str(difference.real.body)


def _apply_type(difference: Any, line: str) -> bool:
    codes = (difference.real.code, difference.ours.code)
    # Ours may name another fault of the object first.
    return codes == (500, 400) and "illegal base64" in _text(difference.real)


def _patched_type(difference: Any, line: str) -> bool:
    codes = (difference.real.code, difference.ours.code)
    return codes in ((422, 400), (422, 422)) and "invalid: patch: Invalid value" in _text(difference.real)


def _storage_words(difference: Any, line: str) -> bool:
    return "StorageError" in line and line.startswith(".message: ")


def _owners_lost(difference: Any, line: str) -> bool:
    return difference.real.code < 300 and line.startswith(".metadata.managedFields: '(absent)' / [")


_STATUS_FIELD = re.compile(r"(status\.?)?(\w+(\.\w+|\[\d+\])*)? in body ")
_ITEM_TYPE = re.compile(r"\.items\[\d+\]\.(apiVersion|kind): '\(absent\)' / ")

NOT_SENT: tuple[tuple[str, str], ...] = (
    (
        "A delete is a dry run if the query or the body says so.",
        "kube-apiserver reads no options from the query if there is a body. Not sent by the calls.",
    ),
    (
        "`/scale` and webhooks of conversion are not served.",
        "Deployments are stored, and nothing runs. Not sent by the calls.",
    ),
)
"""Differences that the calls avoid: (what the embedded server does, why), for the reference."""

KNOWN: tuple[Known, ...] = (
    Known(
        "own words",
        "The text of a 400 says which field or option is wrong and what to send.",
        "kube-apiserver prints the errors of Go's decoders; code, reason and details agree.",
        _own_words,
    ),
    Known(
        "JSON patch in words",
        "A 422 of a JSON patch names the operation's path and what is wrong with it.",
        "kube-apiserver says only that the request was in error.",
        _patch_words,
    ),
    Known(
        "types of items",
        "Items of lists of built-in kinds have `apiVersion` and `kind`.",
        "The bytes of an object are shared by gets, lists and watches; kube-apiserver leaves both out.",
        lambda difference, line: _ITEM_TYPE.match(line) is not None,
    ),
    Known(
        "control characters",
        "A control character in a query is answered with 400.",
        "It is refused before any option is read.",
        _control,
    ),
    Known(
        "POST to an object",
        "A POST to the path of an object is answered with 405.",
        "kube-apiserver reads the body of a custom kind first, and answers 400.",
        _method,
    ),
    Known(
        "body before object",
        "A patch that cannot be read is answered with 400, also if there is no such object.",
        "kube-apiserver reads a patch only when it has the object, and answers 404.",
        _read_first,
    ),
    Known(
        "types after a patch",
        "A patch that gives a field of a built-in kind a wrong type is answered as an update is: 400.",
        "kube-apiserver answers 422 with the whole patched object in its text, Secrets' data too.",
        _patched_type,
    ),
    Known(
        "types of an apply",
        "An apply of a Secret with data that is not base64 is answered with 400, as a create is.",
        "kube-apiserver answers 500.",
        _apply_type,
    ),
    Known(
        "metadata of events",
        "An Event's name and finalizers are checked as those of every kind.",
        "kube-apiserver takes any name of an Event, and any finalizer in an update.",
        _event_finalizer,
        ends_round=True,
    ),
    Known(
        "kind of a status",
        "An update of a custom object's status needs the right kind, as any update does.",
        "kube-apiserver does not look at the kind there.",
        _status_kind,
        ends_round=True,
    ),
    Known(
        "first of several errors",
        "If a custom object has several errors, a wrong kind is reported first.",
        "The type of an object is checked before its fields are read.",
        _first_of_several,
    ),
    Known(
        "version of a new object",
        "A resourceVersion in a create is refused with 400, and dropped from a dry run that would create.",
        "kube-apiserver answers 500 for built-in kinds, and takes it in dry runs.",
        _version_of_new,
    ),
    Known(
        "generation of a client",
        "A generation that a client gives a built-in kind without one is dropped.",
        "Only the server counts generations; kube-apiserver stores the number.",
        _generation,
    ),
    Known(
        "path of a status",
        "An error of a status names the field.",
        "kube-apiserver's text lacks the field's name; the cause has it.",
        _status_path,
    ),
    Known(
        "empty map",
        "An empty map in an update of an immutable ConfigMap is no change.",
        "kube-apiserver tells an empty map from none there, though it stores neither.",
        _empty_map,
        ends_round=True,
    ),
    Known(
        "storage in words",
        "A 409 for another uid does not name the key in etcd.",
        "There is no etcd; code, reason and details agree.",
        _storage_words,
    ),
    Known(
        "owners stay",
        "An update whose status has a wrong type leaves `managedFields`, if it may not write the status.",
        "kube-apiserver drops all owners then, and logs that it should not happen.",
        _owners_lost,
        ends_round=True,
    ),
)
