"""The protobuf bodies of kubectl are read; others are refused, never misread."""

from base64 import b64encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvbus.controlplane.apiserver.openapi import OpenApi
from pvbus.controlplane.apiserver.protobuf import MAGIC, decode, fields


def varint(number: int) -> bytes:
    head = bytearray()
    while number > 0x7F:
        head.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*head, number])


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def entry(key: str, value: bytes | str) -> bytes:
    return field(1, key) + field(2, value)


def body(api_version: str, kind: str, raw: bytes) -> bytes:
    types = field(1, api_version) + field(2, kind)
    return MAGIC + field(1, types) + field(2, raw) + field(3, "") + field(4, "")


METADATA = (
    field(1, "a")
    + field(2, "")
    + field(3, "ns")
    + field(5, "")
    + field(7, 0)
    + field(8, b"")  # creationTimestamp: only the server sets it
    + field(11, entry("app", "x"))
    + field(13, field(1, "K") + field(3, "o") + field(4, "u") + field(5, "v1") + field(6, 1))
    + field(14, "f/x")
    + field(14, "f/y")
)


def test_config_map() -> None:
    """Metadata, both kinds of data and a flag; what is empty is not there."""
    raw = field(1, METADATA) + field(2, entry("k", "v")) + field(2, entry("empty", ""))
    raw += field(3, entry("b", b"\x00\xff")) + field(4, 1)
    assert decode(body("v1", "ConfigMap", raw)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "a",
            "namespace": "ns",
            "labels": {"app": "x"},
            "ownerReferences": [
                {"kind": "K", "name": "o", "uid": "u", "apiVersion": "v1", "controller": True}
            ],
            "finalizers": ["f/x", "f/y"],
        },
        "data": {"k": "v", "empty": ""},
        "binaryData": {"b": b64encode(b"\x00\xff").decode()},
        "immutable": True,
    }


def test_namespace_and_secret() -> None:
    """The other kinds that kubectl creates from its command line."""
    namespace = decode(body("v1", "Namespace", field(1, field(1, "n")) + field(2, b"") + field(3, b"")))
    assert namespace["metadata"] == {"name": "n"}
    secret = decode(
        body("v1", "Secret", field(1, METADATA) + field(2, entry("k", b"v")) + field(3, "Opaque"))
    )
    assert (secret["data"], secret["type"]) == ({"k": "dg=="}, "Opaque")


@pytest.mark.parametrize("api_version", ["v1", "meta.k8s.io/v1", "config.porch.kpt.dev/v1alpha1"])
def test_delete_options(api_version: str) -> None:
    """Typed clients send them in the group of what they delete."""
    raw = field(1, 0) + field(2, field(1, "u") + field(2, "7")) + field(3, 1)
    raw += field(4, "Foreground") + field(5, "All")
    assert decode(body(api_version, "DeleteOptions", raw)) == {
        "apiVersion": api_version,
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "orphanDependents": True,
        "propagationPolicy": "Foreground",
        "dryRun": ["All"],
    }


def test_events() -> None:
    """Both versions; times are those of JSON, and a time that is not set is not there."""
    reference = field(1, "Pod") + field(2, "ns") + field(3, "p") + field(5, "v1")
    when = field(1, 1_700_000_000) + field(2, 123_456_789)
    core = field(1, METADATA) + field(2, reference) + field(3, "Why") + field(4, "what")
    core += field(5, field(1, "me")) + field(6, when) + field(7, b"") + field(8, 3) + field(9, "Normal")
    core += field(10, when) + field(11, field(1, 2) + field(2, when))
    event = decode(body("v1", "Event", core))
    assert event["involvedObject"] == {"kind": "Pod", "namespace": "ns", "name": "p", "apiVersion": "v1"}
    assert (event["reason"], event["message"], event["source"]) == ("Why", "what", {"component": "me"})
    assert (event["firstTimestamp"], event["count"]) == ("2023-11-14T22:13:20Z", 3)
    assert event["eventTime"] == "2023-11-14T22:13:20.123456Z"
    assert event["series"] == {"count": 2, "lastObservedTime": "2023-11-14T22:13:20.123456Z"}
    assert "lastTimestamp" not in event
    new = decode(body("events.k8s.io/v1", "Event", field(8, reference) + field(10, "note") + field(15, 4)))
    assert (new["regarding"]["name"], new["note"], new["deprecatedCount"]) == ("p", "note", 4)


@pytest.mark.parametrize("seconds", [2**63 - 1, 2**63, 253_402_300_800])
def test_a_time_out_of_range_is_refused(seconds: int) -> None:
    """Year 10000, and what is beyond any calendar."""
    with pytest.raises(ValueError, match="out of range"):
        decode(body("v1", "Event", field(6, field(1, seconds))))


def test_a_time_before_1970() -> None:
    raw = field(6, field(1, 2**64 - 3600))
    assert decode(body("v1", "Event", raw))["firstTimestamp"] == "1969-12-31T23:00:00Z"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{}", "not a Kubernetes protobuf body"),
        (body("apps/v1", "Deployment", b""), "Deployment is not read from protobuf"),
        (body("v1", "ConfigMap", field(1, METADATA))[:-20], ""),
        (body("v1", "ConfigMap", field(1, 7)), "a message was expected"),
        (body("v1", "ConfigMap", b"\x0d\x00\x00\x00\x00"), "wire type 5"),
        (body("v1", "ConfigMap", field(1, field(1, b"\xff"))), "utf-8"),
        (MAGIC + b"\xff", "ends too early"),
    ],
)
def test_errors(content: bytes, words: str) -> None:
    """Damaged bodies and other kinds are ValueErrors."""
    with pytest.raises(ValueError, match=words or None):
        decode(content)


@given(st.binary(max_size=200))
def test_no_body_breaks_the_reader(content: bytes) -> None:
    """Any bytes are read or refused; nothing else happens."""
    with suppress(ValueError):
        decode(MAGIC + content)


def test_the_empty_swagger_document_is_well_formed() -> None:
    """The version 2 document in protobuf has the fields of its message and no more."""
    parts = dict(fields(memoryview(OpenApi(()).swagger_protobuf)))
    assert bytes(parts[1]) == b"2.0"
    info = parts[2]
    assert isinstance(info, memoryview)
    assert {number: bytes(text) for number, text in fields(info)}[1] == b"Kubernetes"
