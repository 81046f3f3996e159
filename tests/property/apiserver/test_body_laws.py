"""Laws of request bodies: what is read is what was written, whatever the format."""

import json
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pvbus.controlplane.apiserver import bodies
from pvbus.controlplane.apiserver.hooks import StatusError

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    # Go writes larger floats as integers, and takes them for these: tests/data has the table of its answers.
    st.floats(-1e15, 1e15),
    st.text(max_size=12),
    st.sampled_from(["yes", "1e3", "0x10", "2026-01-01", "<<", "~", "- a", "a: b", "é", "'", '"']),
)
OBJECTS = st.dictionaries(
    st.one_of(st.text(max_size=8), st.sampled_from(["<<", "1", "true", "a b"])),
    st.recursive(
        SCALARS,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=12,
    ),
    max_size=4,
)


@given(OBJECTS, st.booleans(), st.booleans())
def test_yaml_is_read_as_it_was_written(value: dict[str, Any], flow: bool, aliases: bool) -> None:
    """In both styles; an object that occurs twice may be written as an alias."""
    value = {**value, "twice": [value, value] if aliases else []}
    # In quotes, with tags for numbers: this dumper does not quote all that Go takes for a number.
    content = yaml.safe_dump(value, default_flow_style=flow, default_style='"').encode()
    assert bodies.read_object(content, "application/yaml", duplicates=True) == (value, [])


@given(OBJECTS)
def test_json_is_read_as_it_was_written(value: dict[str, Any]) -> None:
    """However its letters are written, and with any spaces."""
    for content in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        found = bodies.read_object(content.encode(), "application/json", duplicates=True)
        assert found == (value, [])


@given(st.one_of(st.binary(max_size=60), st.text("[]{}&*a:,-!<> \n\"'#|?%@", max_size=60).map(str.encode)))
def test_no_body_breaks_a_reader(content: bytes) -> None:
    """Any bytes are an object or a StatusError; nothing else happens."""
    for media in ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf"):
        with suppress(StatusError):
            found, _ = bodies.read_object(content, media, duplicates=True)
            assert isinstance(found, dict)


@given(st.integers(1, 300), st.booleans())
def test_depth_is_limited_at_one_place(depth: int, as_list: bool) -> None:
    """JSON and YAML agree on what is too deep."""
    inside: Any = "x"
    for _ in range(depth - 1):
        inside = [inside] if as_list else {"a": inside}
    value = {"a": inside} if depth else {}
    content = json.dumps(value).encode()
    assert bodies.is_deep(value) is (depth > bodies.DEPTH_MAX)
    for media in ("application/json", "application/yaml"):
        expected: Any = (
            pytest.raises(StatusError, match="levels deep") if bodies.is_deep(value) else nullcontext()
        )
        with expected:
            bodies.read_object(content, media, duplicates=False)
