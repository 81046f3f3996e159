"""Kubernetes' rules for names, labels and annotations, in its words.

Source: Kubernetes 1.36, apimachinery/pkg/util/validation/validation.go and pkg/api/validation/objectmeta.go.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

SHOWN_MAX = 200
"""Characters of a wrong key or value that a message shows."""

ANNOTATIONS_BYTES_MAX = 256 * 1024
"""Kubernetes' limit for the keys and values of all annotations of an object together."""

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")

SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and "
    "must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
    "and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_NAME_PART_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def subdomain_error(name: str) -> str:
    if len(name) > 253:
        return "must be no more than 253 characters"
    return "" if _SUBDOMAIN.match(name) else SUBDOMAIN_RULE


def label_error(name: str) -> str:
    if len(name) > 63:
        return "must be no more than 63 characters"
    return "" if _LABEL.match(name) else LABEL_RULE


REMEMBERED_MAX = 320
"""Longest text whose check is cached: a label key with its prefix. Longer ones are always invalid, and
thousands of them would stay in memory."""


def key_error(key: str) -> str:
    return _checked_key(key) if len(key) <= REMEMBERED_MAX else _checked_key.__wrapped__(key)


@lru_cache(4096)
def _checked_key(key: str) -> str:
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        return "a valid label key must consist of a name with an optional DNS subdomain prefix and '/'"
    if slash and (why := subdomain_error(prefix) if prefix else "must be non-empty"):
        return f"prefix part {why}"
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 characters"
    return "" if _QUALIFIED.match(name) else _NAME_PART_RULE


def value_error(value: str) -> str:
    if len(value) > 63:
        return "must be no more than 63 characters"
    return _checked_value(value)


@lru_cache(4096)
def _checked_value(value: str) -> str:
    return "" if not value or _QUALIFIED.match(value) else _VALUE_RULE


def label_errors(labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (the wrong key or value, why) for the labels of an object."""
    for key, value in labels.items():
        if text := key_error(key):
            yield key, text
        if text := value_error(value):
            yield value, text


def annotation_errors(annotations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (the wrong key, why) for the annotations of an object."""
    for key in annotations:
        if text := key_error(key.lower()):
            yield key, text


def annotations_too_long(annotations: Mapping[str, str]) -> str:
    """Return why the annotations of an object are too large together, "" if they are not."""
    size = sum(
        len(key) + (len(value) if value.isascii() else len(value.encode()))
        for key, value in annotations.items()
    )
    return "" if size <= ANNOTATIONS_BYTES_MAX else f"may not be more than {ANNOTATIONS_BYTES_MAX} bytes"


def invalid_value(wrong: str, why: str) -> str:
    """Say of a field that its value is wrong, in an API server's words."""
    return f'Invalid value: "{wrong[:SHOWN_MAX]}": {why}'


def map_problems(field: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Iterator[str]:
    """Yield what an API server would refuse of the labels and annotations below a field of a spec."""
    for name, errors in (("labels", label_errors(labels)), ("annotations", annotation_errors(annotations))):
        yield from (f"{field}.{name}: {invalid_value(wrong, why)}" for wrong, why in errors)
    if why := annotations_too_long(annotations):
        yield f"{field}.annotations: Too long: {why}"
