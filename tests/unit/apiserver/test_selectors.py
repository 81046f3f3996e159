"""Field selectors mean what Kubernetes means by them, and fail with its words."""

import re

import pytest

from pvbus.controlplane.apiserver.selectors import (
    parse_field_selector,
    selectable_fields,
)

REVISION = {
    "metadata": {"name": "r", "namespace": "n"},
    "spec": {"revision": 3, "lifecycle": "Draft", "packageMetadata": {"labels": {"a/b": "c"}}},
}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("metadata.name=r", True),
        ("metadata.name==r,metadata.namespace=n", True),
        ("metadata.name!=r", False),
        ("spec.revision=3", True),
        ("spec.lifecycle!=Published", True),
        ("spec.packageMetadata.labels[a/b]=c", True),
        ("spec.packageMetadata.labels[x]=c", False),
        ("spec.workspaceName=", True),
    ],
)
def test_field_selector_of_package_revisions(text: str, matches: bool) -> None:
    """Porch's fields can be selected by, numbers as text and absent fields as empty."""
    supported = selectable_fields("porch.kpt.dev", "PackageRevision")
    assert parse_field_selector(text, supported).matches(REVISION) is matches


def test_a_revision_without_a_number_is_selected_by_0() -> None:
    """Like Porch's server, ours omits the number of a draft, which is 0."""
    supported = selectable_fields("porch.kpt.dev", "PackageRevision")
    draft = {"metadata": {"name": "r"}, "spec": {"lifecycle": "Draft"}}
    assert parse_field_selector("spec.revision=0", supported).matches(draft)
    assert not parse_field_selector("spec.revision=0", supported).matches(REVISION)
    assert not parse_field_selector("spec.revision!=0", supported).matches(draft)


def test_field_selector_of_events() -> None:
    """`source` stands for the component of an event's source."""
    event = {"source": {"component": "kubelet"}, "involvedObject": {"name": "a,b"}, "type": "Normal"}
    supported = selectable_fields("", "Event")
    assert parse_field_selector(r"source=kubelet,involvedObject.name=a\,b", supported).matches(event)
    assert not parse_field_selector("type=Warning", supported).matches(event)


def test_field_selector_names_an_exact_value() -> None:
    """A handler may take a short cut for one name, but not for an excluded one."""
    assert parse_field_selector("metadata.name=a").exact("metadata.name") == "a"
    assert parse_field_selector("metadata.name!=a").exact("metadata.name") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("spec.x=1", "field label not supported: spec.x"),
        ("metadata.name", "invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
        (r"metadata.name=\x", "invalid escape sequence"),
    ],
)
def test_field_selector_errors(text: str, words: str) -> None:
    """Unknown fields and unreadable terms are refused."""
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_field_selector(text)
