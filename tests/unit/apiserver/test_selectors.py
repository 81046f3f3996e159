"""Selectors mean what Kubernetes means by them, and fail with its words."""

import re

import pytest

from pvbus.controlplane.apiserver.selectors import (
    parse_field_selector,
    parse_label_selector,
    selectable_fields,
)

LABELS = {"app": "web", "tier": "front", "size": "12", "empty": "", "in": "x"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        ("app = web , tier=front", True),
        ("app=db", False),
        ("app!=db", True),
        ("absent!=db", True),
        ("app!=web", False),
        ("app in (web,db)", True),
        ("app in (db)", False),
        ("absent in (web)", False),
        ("app notin (db)", True),
        ("absent notin (db)", True),
        ("app notin (web, db)", False),
        ("app", True),
        ("absent", False),
        ("!absent", True),
        ("!app", False),
        ("size>11", True),
        ("size>12", False),
        ("size<13", True),
        ("size<12", False),
        ("app>1", False),
        ("absent<1", False),
        ("empty=", True),
        ("app=", False),
        ("empty in (,a)", True),
        ("in=x", True),
        ("in in (x)", True),
        ("example.com/a.b_c!=1,app", True),
    ],
)
def test_label_selector_matches(text: str, matches: bool) -> None:
    """Every operator, on labels that are there and on those that are not."""
    assert parse_label_selector(text).matches(LABELS) is matches


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("=a", "found '=', expected: !, identifier, or 'end of string'"),
        ("a,", "found '', expected: identifier after ','"),
        ("a b", "found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a in b", "found 'b', expected: '('"),
        ("a in (b", "found '', expected: ',' or ')'"),
        ("a in ()", "values set can't be empty"),
        ("!a=b", "found '=', expected: ',' or 'end of string'"),
        ("a>b", "for 'Gt', 'Lt' operators, the value must be an integer"),
        ("-a=b", "name part must consist of alphanumeric characters"),
        ("A/b=c", "prefix part a lowercase RFC 1123 subdomain"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("a=" + "x" * 64, "must be no more than 63 bytes"),
        ("a=-", "a valid label must be an empty string or consist of"),
    ],
)
def test_label_selector_errors(text: str, words: str) -> None:
    """A selector that cannot be read says what was found and what was expected."""
    with pytest.raises(ValueError, match="unable to parse requirement: ") as error:
        parse_label_selector(text)
    assert words in str(error.value)


def test_no_labels_at_all() -> None:
    """An object without labels is like one with an empty map."""
    assert parse_label_selector("!a").matches(None)
    assert not parse_label_selector("a").matches(None)


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
