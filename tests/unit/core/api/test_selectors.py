"""Label selectors, of objects and in text: what they match, and what is refused in Kubernetes' words."""

from typing import Any

import msgspec
import pytest

from pvbus.controlplane.packages.functions.selecting import parse_selector
from pvbus.core.api.selectors import matches, requirements_of, selector_problems
from pvbus.core.api.selectortext import parse_label_selector
from pvbus.core.api.variants import LabelSelector, LabelSelectorRequirement
from pvbus.core.errors import PermanentError

LABELS = {"app": "web", "tier": "front", "size": "12", "empty": "", "in": "x"}


@pytest.mark.parametrize(
    ("text", "is_match"),
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
def test_label_selector_matches(text: str, is_match: bool) -> None:
    """Every operator, on labels that are there and on those that are not."""
    assert matches(parse_label_selector(text), LABELS) is is_match


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
        ("a=" + "x" * 64, 'values[0][a]: Invalid value: "xxx'),
        ("a in (b,-)", 'values[0][a]: Invalid value: "-": a valid label must'),
        ("/a", "prefix part must be non-empty"),
        ("a/", "name part must be non-empty"),
        ("a/b/c", "a valid label key must consist of a name with an optional DNS subdomain prefix"),
        ("a>9223372036854775808", "the value must be an integer"),
        (",".join("a" * 1001), "at most 1000 requirements"),
        ("a=-", "a valid label must be an empty string or consist of"),
    ],
)
def test_label_selector_errors(text: str, words: str) -> None:
    """A selector that cannot be read says what was found and what was expected."""
    with pytest.raises(ValueError, match="unable to parse requirement: ") as error:
        parse_label_selector(text)
    assert words in str(error.value)


@pytest.mark.parametrize("text", ["a=b,", "e in ()", "-a=b", "a=b c", "!a=b"])
def test_a_function_refuses_what_a_list_refuses(text: str) -> None:
    """Its configuration has the same selectors in text; the message names the text and the reason."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - its words are those of the table above
        parse_label_selector(text)
    with pytest.raises(PermanentError) as fault:
        parse_selector(text)
    assert repr(text) in str(fault.value)
    assert str(refused.value) in str(fault.value)


KEY_RULE = "name part must consist of alphanumeric characters"
VALUE_RULE = "a valid label must be an empty string or consist of alphanumeric characters"


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({"matchLabels": {"a b": "c"}}, [f'.matchLabels: Invalid value: "a b": {KEY_RULE}']),
        ({"matchLabels": {"a": "b c"}}, [f'.matchLabels: Invalid value: "b c": {VALUE_RULE}']),
        ({"matchLabels": {"a": ""}}, []),
        ({"matchLabels": {"-/a": "b"}}, ['.matchLabels: Invalid value: "-/a": prefix part a lowercase']),
        ({"matchLabels": {"a": "x" * 64}}, [f'.matchLabels: Invalid value: "{"x" * 64}": must be no more']),
        ({"matchLabels": {"x" * 64: "a"}}, [f'.matchLabels: Invalid value: "{"x" * 64}": name part must']),
        (
            {"matchExpressions": [{"key": "a", "operator": "in", "values": ["b"]}]},
            ['.matchExpressions[0].operator: Invalid value: "in": not a valid selector operator'],
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "In"}]},
            [".matchExpressions[0].values: Required value: must be specified when"],
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
            [".matchExpressions[0].values: Forbidden: may not be specified when"],
        ),
        (
            {"matchExpressions": [{"key": "", "operator": "NotIn", "values": ["b", "c/d"]}]},
            [
                '.matchExpressions[0].key: Invalid value: "": name part must be non-empty',
                f'.matchExpressions[0].values[1]: Invalid value: "c/d": {VALUE_RULE}',
            ],
        ),
    ],
)
def test_a_selector_of_an_object_is_refused_with_its_fields(
    selector: dict[str, Any], expected: list[str]
) -> None:
    found = list(selector_problems(msgspec.convert(selector, LabelSelector), "spec.selector"))
    assert len(found) == len(expected)
    assert all(text.startswith(f"spec.selector{start}") for text, start in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("operator", "values", "labels", "expected"),
    [
        ("In", ("a", "b"), {"k": "a"}, True),
        ("In", ("a", "b"), {"k": "c"}, False),
        ("In", ("a",), {}, False),
        ("NotIn", ("a",), {"k": "a"}, False),
        ("NotIn", ("a",), {"k": "b"}, True),
        ("NotIn", ("a",), {}, True),
        ("Exists", (), {"k": ""}, True),
        ("Exists", (), {}, False),
        ("DoesNotExist", (), {"k": ""}, False),
        ("DoesNotExist", (), {}, True),
        ("Gt", ("1",), {"k": "2"}, False),
    ],
)
def test_selector_operators(
    operator: str, values: tuple[str, ...], labels: dict[str, str], expected: bool
) -> None:
    """Operators mean what they mean in Kubernetes, for absent labels too."""
    requirement = LabelSelectorRequirement(key="k", operator=operator, values=values)
    assert matches(requirements_of(LabelSelector(match_expressions=(requirement,))), labels) is expected
    both = requirements_of(LabelSelector(match_labels={"x": "y"}, match_expressions=(requirement,)))
    assert matches(both, {**labels, "x": "y"}) is expected
    assert not matches(both, {**labels, "x": "z"})


def test_an_empty_selector_matches_everything() -> None:
    """No requirement, no refusal."""
    for labels in ({}, {"a": "b"}):
        assert matches(requirements_of(LabelSelector()), labels)
        assert matches(parse_label_selector(""), labels)


def test_text_and_object_of_one_selector_are_the_same_requirements() -> None:
    selector = {
        "matchLabels": {"a": "b"},
        "matchExpressions": [
            {"key": "c", "operator": "In", "values": ["d", "e"]},
            {"key": "f", "operator": "NotIn", "values": ["g"]},
            {"key": "h", "operator": "Exists"},
            {"key": "i", "operator": "DoesNotExist"},
        ],
    }
    parsed = parse_label_selector("a=b,c in (d,e),f!=g,h,!i")
    assert requirements_of(msgspec.convert(selector, LabelSelector)) == parsed
