"""Schemas: defaults, pruning, validation with Kubernetes' words, and what a CRD may say."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.controlplane.apiserver import structural
from pvbus.controlplane.apiserver.builtin import BUILTIN_KINDS
from pvbus.controlplane.apiserver.crdvalidation import validate_crd
from pvbus.controlplane.apiserver.structural import compile_schema
from pvbus.core.cel.patterns import go_pattern

SHARED = Path(__file__).parents[3] / ".." / "shared"


def spec(**schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"spec": schema}}


def thing(value: Any) -> dict[str, Any]:
    return {"apiVersion": "a/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": value}


OBJECT = {"type": "object"}
STRING = {"type": "string"}


def invalid(shown: str, why: str, path: str = "spec") -> str:
    return f"{path}: Invalid value: {shown}: {path} in body {why}"


@pytest.mark.parametrize(
    ("schema", "value", "finding"),
    [
        (STRING, "a", None),
        (STRING, 1, invalid('"integer"', 'must be of type string: "integer"')),
        ({"type": "integer"}, "a", invalid('"string"', 'must be of type integer: "string"')),
        ({"type": "integer"}, 1.0, None),
        ({"type": "integer"}, 1.5, invalid('"number"', 'must be of type integer: "number"')),
        ({"type": "integer"}, True, invalid('"boolean"', 'must be of type integer: "boolean"')),
        ({"type": "number"}, 1, None),
        ({"type": "boolean"}, 0, invalid('"integer"', 'must be of type boolean: "integer"')),
        (STRING, None, invalid('"null"', 'must be of type string: "null"')),
        ({**STRING, "nullable": True}, None, None),
        ({**STRING, "enum": ["a", "b"]}, "c", 'spec: Unsupported value: "c": supported values: "a", "b"'),
        ({**STRING, "minLength": 2}, "a", invalid('"a"', "should be at least 2 chars long")),
        ({**STRING, "maxLength": 1}, "ab", "spec: Too long: may not be more than 1 bytes"),
        ({**STRING, "pattern": "^a$"}, "b", invalid('"b"', "should match '^a$'")),
        ({**STRING, "pattern": "^a$"}, "a\n", invalid('"a\\n"', "should match '^a$'")),
        ({**STRING, "format": "date-time"}, "2026-01-02T03:04:05.6Z", None),
        (
            {**STRING, "format": "date-time"},
            "now",
            invalid('"now"', 'must be of type date-time: "now"'),
        ),
        ({**STRING, "format": "unheard-of"}, "x", None),
        ({"type": "integer", "minimum": 3}, 2, invalid("2", "should be greater than or equal to 3")),
        ({"type": "integer", "maximum": 3}, 4, invalid("4", "should be less than or equal to 3")),
        (
            {"type": "integer", "minimum": 3, "exclusiveMinimum": True},
            3,
            invalid("3", "should be greater than 3"),
        ),
        ({"type": "integer", "multipleOf": 3}, 4, invalid("4", "should be a multiple of 3")),
        ({"type": "array", "items": STRING, "minItems": 1}, [], invalid("0", "should have at least 1 items")),
        (
            {"type": "array", "items": STRING, "maxItems": 1},
            ["a", "b"],
            "spec: Too many: 2: must have at most 1 items",
        ),
        (
            {"type": "array", "items": STRING},
            ["a", 1],
            invalid('"integer"', 'must be of type string: "integer"', path="spec[1]"),
        ),
        (
            {"type": "array", "items": STRING, "x-kubernetes-list-type": "set"},
            ["a", "a"],
            'spec[1]: Duplicate value: "a"',
        ),
        (
            {
                "type": "array",
                "items": {**OBJECT, "properties": {"k": STRING, "v": STRING}},
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["k"],
            },
            [{"k": "a", "v": "1"}, {"k": "a", "v": "2"}],
            'spec[1]: Duplicate value: {"k":"a"}',
        ),
        ({**OBJECT, "properties": {"a": STRING}, "required": ["a"]}, {}, "spec.a: Required value"),
        (
            {**OBJECT, "additionalProperties": STRING},
            {"k": 1},
            invalid('"integer"', 'must be of type string: "integer"', path="spec.k"),
        ),
        (
            {**OBJECT, "additionalProperties": STRING, "maxProperties": 1},
            {"k": "", "l": ""},
            "spec: Too many: 2: must have at most 1 items",
        ),
        ({"x-kubernetes-int-or-string": True}, "a", None),
        ({"x-kubernetes-int-or-string": True}, 1, None),
        ({"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}, 1, None),
        (
            {"x-kubernetes-int-or-string": True},
            [],
            invalid('"array"', 'must be of type integer,string: "array"'),
        ),
        (
            {**STRING, "anyOf": [{"pattern": "^a"}, {"pattern": "^b"}]},
            "c",
            invalid('"c"', "must validate at least one schema (anyOf)"),
        ),
        (
            {**STRING, "oneOf": [{"pattern": "a"}, {"pattern": "b"}]},
            "ab",
            invalid('"ab"', "must validate one and only one schema (oneOf). Found 2 valid alternatives"),
        ),
        ({**STRING, "not": {"pattern": "a"}}, "a", invalid('"a"', "must not validate the schema (not)")),
        ({**STRING, "allOf": [{"minLength": 1}]}, "", invalid('""', "should be at least 1 chars long")),
        (
            {**OBJECT, "x-kubernetes-embedded-resource": True},
            {"kind": "K", "metadata": {}},
            "spec.apiVersion: Required value",
        ),
    ],
)
def test_validation(schema: dict[str, Any], value: Any, finding: str | None) -> None:
    """Each keyword, with the message that the real API server gives."""
    found = [str(error) for error in compile_schema(spec(**schema)).validate(thing(value))]
    assert found == ([finding] if finding else [])


def rule(text: str, **more: Any) -> dict[str, Any]:
    return {"rule": text, **more}


def test_rules_see_self() -> None:
    """A rule that does not hold is reported where it stands, with its message or itself."""
    schema = compile_schema(
        {
            **spec(**OBJECT, properties={"a": {"type": "integer"}, "b": {"type": "integer"}},
                   **{"x-kubernetes-validations": [
                       rule("self.a <= self.b", message="a is above b", fieldPath=".a"),
                       rule("!has(self.b) || self.b < 10"),
                       rule("self.a != 7", messageExpression="'a is ' + string(self.a)"),
                   ]}),
            "x-kubernetes-validations": [rule("self.metadata.name.startsWith('x')", message="no x")],
        }
    )  # fmt: skip
    assert schema.validate(thing({"a": 1, "b": 2})) == []
    bad = {**thing({"a": 7, "b": 5}), "metadata": {"name": "y"}}
    assert {str(error) for error in schema.validate(bad)} == {
        'spec.a: Invalid value: "object": a is above b',
        'spec: Invalid value: "object": a is 7',
        '<nil>: Invalid value: "object": no x',
    }
    assert [str(error) for error in schema.validate(thing({"a": 1, "b": 10}))] == [
        'spec: Invalid value: "object": failed rule: !has(self.b) || self.b < 10'
    ]


def test_rules_over_old_values() -> None:
    """`oldSelf` is what was there: rules with it hold at creation, and follow map lists by their keys."""
    immutable = {"x-kubernetes-validations": [rule("self == oldSelf", message="immutable")]}
    schema = compile_schema(
        spec(
            **OBJECT,
            properties={
                "a": {**STRING, **immutable},
                "l": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["k"],
                    "items": {**OBJECT, "properties": {"k": STRING, "v": {**STRING, **immutable}}},
                },
            },
        )
    )
    old = thing({"a": "1", "l": [{"k": "x", "v": "1"}, {"k": "y", "v": "2"}]})
    assert schema.validate(old) == []
    assert schema.validate(old, old) == []
    moved = thing({"a": "1", "l": [{"k": "y", "v": "2"}, {"k": "z", "v": "3"}]})
    assert schema.validate(moved, old) == []
    changed = thing({"a": "2", "l": [{"k": "y", "v": "9"}]})
    assert [error.path for error in schema.validate(changed, old)] == ["spec.a", "spec.l[0].v"]


def test_failing_evaluation_is_a_finding() -> None:
    """A rule that cannot be evaluated does not hold."""
    schema = compile_schema(
        spec(
            **OBJECT,
            properties={"a": {"type": "integer"}},
            **{"x-kubernetes-validations": [rule("1 / self.a > 0")]},
        )
    )
    (error,) = schema.validate(thing({"a": 0}))
    assert "rule evaluation error" in error.message


def test_loops_are_limited() -> None:
    """A rule that loops for ever longer is a finding after a while, and no standstill of the server."""
    nested = "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))"
    numbers = {"type": "array", "items": {"type": "integer"}, "x-kubernetes-validations": [rule(nested)]}
    schema = compile_schema(spec(**numbers))
    assert schema.validate(thing([1, 2, 3])) == []
    (error,) = schema.validate(thing(list(range(100))))
    assert "'operation cancelled: actual cost limit exceeded: the expression costs at least " in error.message
    assert "no further validation rules will be run due to call cost exceeds limit for rule:" in error.message


def test_a_rule_is_charged_for_a_match_before_it() -> None:
    """A pattern of two thousand steps over a long text would take a second, within one rule."""
    schema = compile_schema(
        spec(type="string", **{"x-kubernetes-validations": [rule("!self.matches('(a?){1000}b')")] * 2})
    )
    assert schema.validate(thing("a" * 200)) == []
    first, second = schema.validate(thing("a" * 100_000))
    assert "call cost exceeds limit for rule: failed rule: !self.matches('(a?){1000}b')" in first.message
    assert second.message.endswith(
        "validation failed due to running out of cost budget, no further validation rules will be run"
    )


def test_rules_of_an_object_share_a_budget() -> None:
    """Each is below its own limit, and all together are above that of the object."""
    items = {"type": "string", "x-kubernetes-validations": [rule("self + self != 'b'", message="no b")]}
    schema = compile_schema(spec(type="array", items=items))
    assert schema.validate(thing(["a" * 100_000] * 5)) == []
    messages = [error.message for error in schema.validate(thing(["a" * 100_000] * 50))]
    assert messages[0].endswith("call cost exceeds limit for rule: no b")
    assert "all expressions together cost at least" in messages[0]


DEFAULTS = spec(
    **OBJECT,
    properties={
        "a": {**STRING, "default": "x"},
        "n": {**STRING, "default": "x", "nullable": True},
        "plain": STRING,
        "o": {**OBJECT, "properties": {"deep": {"type": "integer", "default": 1}}, "default": {}},
        "l": {"type": "array", "items": {**OBJECT, "properties": {"k": {**STRING, "default": "d"}}}},
        "m": {**OBJECT, "additionalProperties": {**OBJECT, "properties": {"k": {**STRING, "default": "d"}}}},
    },
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, {"a": "x", "n": "x", "o": {"deep": 1}}),
        ({"a": None, "n": None, "plain": None, "o": {"deep": 2}}, {"a": "x", "n": None, "o": {"deep": 2}}),
        ({"a": "", "n": "", "o": {}}, {"a": "", "n": "", "o": {"deep": 1}}),
        (
            {"a": "", "n": "", "o": {"deep": 0}, "l": [{}, {"k": "v"}], "m": {"x": {}}},
            {"a": "", "n": "", "o": {"deep": 0}, "l": [{"k": "d"}, {"k": "v"}], "m": {"x": {"k": "d"}}},
        ),
    ],
)
def test_defaults(value: Any, expected: Any) -> None:
    """Defaults go where a field is missing or a meaningless null, inside what is there; arguments stay."""
    obj = thing(value)
    before = copy.deepcopy(obj)
    assert compile_schema(DEFAULTS).defaulted(obj) == thing(expected)
    assert obj == before


def test_defaults_are_not_shared() -> None:
    """A caller that changes a defaulted object does not change the default."""
    schema = compile_schema(DEFAULTS)
    first = schema.defaulted(thing({}))
    assert schema.defaulted(thing({})) == first
    assert schema.defaulted(first) is first


def test_pruning() -> None:
    """Unknown fields go, and their paths are told; what may hold anything keeps everything."""
    schema = compile_schema(
        spec(
            **OBJECT,
            properties={
                "a": STRING,
                "l": {"type": "array", "items": {**OBJECT, "properties": {"k": STRING}}},
                "free": {
                    **OBJECT,
                    "x-kubernetes-preserve-unknown-fields": True,
                    "properties": {"in": OBJECT},
                },
                "map": {**OBJECT, "additionalProperties": OBJECT},
                "res": {**OBJECT, "x-kubernetes-embedded-resource": True},
            },
        )
    )
    value = {
        "a": "1",
        "b": 2,
        "l": [{"k": "1"}, {"k": "1", "z": 1}],
        "free": {"x": 1, "in": {"y": 1}},
        "map": {"m": {"x": 1}},
        "res": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "nope": 1}, "spec": {}},
    }
    obj = thing(value) | {"extra": 1}
    before = copy.deepcopy(obj)
    result, unknown = schema.pruned(obj)
    assert sorted(unknown) == [
        "extra",
        "spec.b",
        "spec.free.in.y",
        "spec.l[1].z",
        "spec.map.m.x",
        "spec.res.metadata.nope",
        "spec.res.spec",
    ]
    assert obj == before
    assert result == thing(
        {
            "a": "1",
            "l": [{"k": "1"}, {"k": "1"}],
            "free": {"x": 1, "in": {}},
            "map": {"m": {}},
            "res": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n"}},
        }
    )
    assert schema.pruned(result) == (result, [])


def test_metadata_is_known_and_may_be_restricted() -> None:
    """Every object has metadata; a schema can say more about its name."""
    schema = compile_schema(
        {
            **OBJECT,
            "properties": {"metadata": {**OBJECT, "properties": {"name": {**STRING, "pattern": "^a"}}}},
        }
    )
    good = {"metadata": {"name": "a", "labels": {"x": "y"}, "creationTimestamp": None}}
    assert schema.pruned(good) == (good, [])
    assert schema.validate(good) == []
    assert [e.path for e in schema.validate({"metadata": {"name": "b", "labels": {"x": 1}}})] == [
        "metadata.name",
        "metadata.labels.x",
    ]


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("^a$", "a\n", False),
        (r"^a\z", "a", True),
        (r"^\d+$", "٣", False),
        ("^[[:alpha:]_]+$", "ab_", True),
        ("^[$]$", "$", True),
        ("[]a]", "]", True),
        (r"^\$$", "$", True),
    ],
)
def test_go_patterns(pattern: str, text: str, found: bool) -> None:
    """Patterns mean what Go's regexp package says, where Python's differs."""
    compiled = go_pattern(pattern)
    assert [compiled.found_in(text), compiled.found_in(text)] == [found, found]


def crd(**changes: Any) -> dict[str, Any]:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": spec(**OBJECT)}}
    base = {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [version],
    }
    return {"metadata": {"name": "things.example.com"}, "spec": base | changes}


def with_schema(**schema: Any) -> dict[str, Any]:
    made = crd()
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = {**OBJECT, "properties": {"spec": schema}}
    return made


def test_a_good_crd_has_no_findings() -> None:
    """The smallest sensible definition is accepted, and so are the schemas of our own kinds."""
    assert validate_crd(crd()) == []
    for kind in BUILTIN_KINDS:
        made = crd()
        schema: Any = kind.versions[0].schema
        schema = {**schema, "properties": {**schema["properties"], "metadata": {"type": "object"}}}
        made["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema
        assert validate_crd(made) == [], kind.kind


AT = "spec.validation.openAPIV3Schema.properties[spec]"


@pytest.mark.parametrize(
    ("made", "path", "words"),
    [
        (crd(group="other.com"), "metadata.name", 'must be spec.names.plural+"."+spec.group'),
        (crd(group="nodots"), "spec.group", "at least one dot"),
        (crd(names={"plural": "things"}), "spec.names.kind", "Required value"),
        (crd(scope="World"), "spec.scope", 'supported values: "Cluster", "Namespaced"'),
        (crd(versions=[]), "spec.versions", "must have at least one version"),
        (crd(preserveUnknownFields=True), "spec.preserveUnknownFields", "must be false"),
        (crd(conversion={"strategy": "Webhook"}), "spec.conversion.strategy", "Unsupported value"),
        (
            crd(
                versions=[
                    {"name": "v1", "served": True, "storage": False, "schema": {"openAPIV3Schema": OBJECT}}
                ]
            ),
            "spec.versions",
            "exactly one version",
        ),
        (
            crd(versions=[{"name": "v1", "served": True, "storage": True}]),
            "spec.versions[0].schema.openAPIV3Schema",
            "schemas are required",
        ),
        (with_schema(), f"{AT}.type", "must not be empty"),
        (with_schema(type="text"), f"{AT}.type", "Unsupported value"),
        (with_schema(type="array"), f"{AT}.items", "must be specified"),
        (with_schema(type="array", items=STRING, uniqueItems=True), f"{AT}.uniqueItems", "quadratic"),
        (
            with_schema(type="array", items=OBJECT, **{"x-kubernetes-list-type": "map"}),
            f"{AT}.x-kubernetes-list-map-keys",
            "must not be empty",
        ),
        (
            with_schema(type="object", properties={"a": STRING}, additionalProperties=STRING),
            f"{AT}.additionalProperties",
            "mutual exclusive",
        ),
        (with_schema(type="string", pattern="("), f"{AT}.pattern", "must be a valid regular expression"),
        (with_schema(type="string", default=1), f"{AT}.default", "must be of type string"),
        (
            with_schema(type="object", properties={"a": STRING}, default={"b": 1}),
            f"{AT}.default.b",
            "must not have unknown fields",
        ),
        (with_schema(type="string", anyOf=[{"type": "string"}]), f"{AT}.anyOf[0].type", "must be empty"),
        (with_schema(type="string", **{"$ref": "#/x"}), f"{AT}.$ref", "not supported"),
        (
            with_schema(type="string", **{"x-kubernetes-validations": [rule("self ==")]}),
            f"{AT}.x-kubernetes-validations[0].rule",
            "compilation failed",
        ),
        (
            with_schema(type="string", **{"x-kubernetes-validations": [rule("isURL(self)")]}),
            f"{AT}.x-kubernetes-validations[0].rule",
            "undeclared reference to 'isURL'",
        ),
        (
            with_schema(type="string", **{"x-kubernetes-validations": [rule("other == 'a'")]}),
            f"{AT}.x-kubernetes-validations[0].rule",
            "undeclared reference to 'other'",
        ),
    ],
)
def test_a_bad_crd_is_told_where(made: dict[str, Any], path: str, words: str) -> None:
    """Each rule of structural schemas, with the path of what breaks it."""
    findings = {error.path: error.message for error in validate_crd(made)}
    assert words in findings[path]


ROOT_SCHEMA = "spec.validation.openAPIV3Schema"
IMPLICIT = "Forbidden: must not specify anything other than name and generateName, but metadata is implicitly"


@pytest.mark.parametrize(
    ("metadata", "path", "words"),
    [
        ({"type": "object", "description": "Words."}, "", IMPLICIT),
        ({"type": "object", "properties": {"name": STRING, "labels": OBJECT}}, "", IMPLICIT),
        ({"type": "object", "required": ["name"]}, "", IMPLICIT),
        ({"type": "string"}, ".type", 'Invalid value: "string": must be object'),
        ({"type": "object"}, "", None),
        ({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}, "", None),
        ({"type": "object", "properties": {"name": STRING, "generateName": STRING}}, "", None),
    ],
)
def test_a_definition_says_little_of_metadata(metadata: Any, path: str, words: str | None) -> None:
    """Every API server refuses a definition that restricts more of metadata than the two names."""
    made = crd()
    schema = {**OBJECT, "properties": {"metadata": metadata}}
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema
    findings = {error.path: error.message for error in validate_crd(made)}
    at = f"{ROOT_SCHEMA}.properties[metadata]{path}"
    assert (words in findings[at]) if words else not findings


def test_below_the_root_metadata_is_a_field_like_any_other() -> None:
    """A template's metadata may be described at length."""
    made = with_schema(type="object", properties={"metadata": {"type": "object", "description": "Words."}})
    assert validate_crd(made) == []


def test_the_path_of_a_finding_names_the_version_where_schemas_differ() -> None:
    """One schema for all versions is reported once, as a real API server does."""
    bad = {**OBJECT, "properties": {"spec": {}}}
    version = {"served": True, "schema": {"openAPIV3Schema": bad}}
    same = crd(versions=[{"name": "v1", "storage": True, **version}, {"name": "v2", **version}])
    assert [error.path for error in validate_crd(same)] == [f"{ROOT_SCHEMA}.properties[spec].type"]
    same["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": OBJECT}
    at = "spec.versions[1].schema.openAPIV3Schema.properties[spec].type"
    assert [error.path for error in validate_crd(same)] == [at]


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="needs the shared reference folder beside the checkout")
def test_real_definitions_are_accepted() -> None:
    """Porch's CustomResourceDefinitions and Nephio's are valid and compile."""
    folders = [SHARED / "reference" / "crds", SHARED / "data" / "nephio" / "catalog" / "nephio" / "core"]
    seen = 0
    for path in (path for folder in folders for path in folder.rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        if "kind: CustomResourceDefinition" not in text:
            continue
        for document in yaml.safe_load_all(text):
            if document and document.get("kind") == "CustomResourceDefinition":
                seen += 1
                assert validate_crd(document) == [], path
                for version in document["spec"]["versions"]:
                    compile_schema(version["schema"]["openAPIV3Schema"])
    assert seen > 10


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="needs the shared reference folder beside the checkout")
def test_repository_rules_of_porch() -> None:
    """The rules of Porch's Repository: its name is a label, and what it points at does not change."""
    path = SHARED / "reference" / "crds" / "config.porch.kpt.dev_repositories.yaml"
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    schema = compile_schema(document["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    old = schema.defaulted(
        {"metadata": {"name": "r"}, "spec": {"type": "git", "git": {"repo": "u"}, "content": None}}
    )
    assert old["spec"] == {"type": "git", "git": {"repo": "u", "branch": "main"}, "content": "Package"}
    assert schema.validate(old, old) == []
    dotted = {**old, "metadata": {"name": "r.s"}}
    assert [str(error) for error in schema.validate(dotted)] == [
        '<nil>: Invalid value: "object": metadata.name must conform to the RFC1123 DNS label standard'
    ]
    moved = {**old, "spec": {**old["spec"], "git": {"repo": "other", "branch": "main"}}}
    assert [error.message for error in schema.validate(moved, old)] == [
        'Invalid value: "object": spec.git.repo is immutable'
    ]


@pytest.mark.parametrize("name", ["packagevariants", "packagevariantsets"])
def test_our_own_kinds_take_the_quick_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sound object of the kinds written by the thousand is judged without walking its schema."""
    path = Path(__file__).parents[3] / "schemas" / "crds" / f"{name}.config.porch.kpt.dev.yaml"
    versions = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["versions"]
    (version,) = (version for version in versions if version["storage"])
    schema = compile_schema(version["schema"]["openAPIV3Schema"])
    obj = {"metadata": {"name": "x"}, "spec": {"upstream": {"repo": "r", "package": "p", "revision": 1}}}
    for walk in ("default", "prune", "validate"):
        monkeypatch.setattr(structural, walk, None)
    assert schema.defaulted(obj) is obj
    assert schema.pruned(obj) == (obj, [])
    assert schema.validate(obj) == []
