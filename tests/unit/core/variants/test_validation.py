"""Validation of a set: every rule with Porch's words, in Porch's order, and what pvbus adds."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import PackageVariantSetSpec
from pvbus.core.variants.unroll.validation import duplicate_downstreams, validate_set

UPSTREAM = {"repo": "r", "package": "p", "revision": 1}
LISTED = {"repositories": [{"name": "a"}]}
F = "spec.targets[0].template"


def spec_of(value: dict[str, Any]) -> PackageVariantSetSpec:
    return msgspec.convert(value, PackageVariantSetSpec)


def problems(target: dict[str, Any] | None = None, *, upstream: dict[str, Any] | None = None) -> list[str]:
    targets = [target] if target is not None else []
    return validate_set(spec_of({"upstream": UPSTREAM if upstream is None else upstream, "targets": targets}))


def templated(template: dict[str, Any]) -> list[str]:
    return problems({**LISTED, "template": template})


def test_a_valid_set_has_no_problems() -> None:
    """All kinds of targets and fields together, each set right."""
    template = {
        "downstream": {"repoExpr": "'a'", "package": "p"},
        "adoptionPolicy": "adoptExisting",
        "deletionPolicy": "orphan",
        "labelExprs": [{"key": "a", "valueExpr": "'b'"}, {"keyExpr": "'a'", "value": ""}],
        "injectors": [{"name": "x"}, {"kind": "K", "nameExpr": "'x'"}],
        "pipeline": {
            "mutators": [{"image": "i", "name": "n", "configMapExprs": [{"key": "k", "value": "v"}]}]
        },
    }
    selector = {"matchLabels": {"a.b/c": "d"}, "matchExpressions": [{"key": "e", "operator": "Exists"}]}
    targets = [
        {**LISTED, "template": template},
        {"repositorySelector": selector},
        {"objectSelector": {"apiVersion": "v1", "kind": "ConfigMap", **selector}},
        {"repositorySelector": {}, "template": {}},
    ]
    assert validate_set(spec_of({"upstream": UPSTREAM, "targets": targets})) == []


@pytest.mark.parametrize(
    ("upstream", "expected"),
    [
        ({"repo": "r", "revision": 1}, ["spec.upstream.package is a required field"]),
        ({"package": "p", "revision": 1}, ["spec.upstream.repo is a required field"]),
        (
            {"package": "p", "repo": "r"},
            ["either spec.upstream.revision or spec.upstream.workspaceName must be specified"],
        ),
        ({"package": "p", "repo": "r", "workspaceName": "main"}, []),
        (
            {},
            [
                "spec.upstream.package is a required field",
                "spec.upstream.repo is a required field",
                "either spec.upstream.revision or spec.upstream.workspaceName must be specified",
            ],
        ),
    ],
)
def test_upstream_rules(upstream: dict[str, Any], expected: list[str]) -> None:
    """Package, repo, and one of revision and workspaceName are required."""
    assert problems(LISTED, upstream=upstream) == expected


def test_an_empty_spec_lacks_upstream_and_targets() -> None:
    """Without an upstream, its own rules are not reported."""
    expected = ["spec.upstream is a required field", "must specify at least one item in spec.targets"]
    assert validate_set(PackageVariantSetSpec()) == expected


ONE_OF = "spec.targets[0] must specify one of `repositories`, `repositorySelector`, or `objectSelector`"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({}, [ONE_OF]),
        ({"repositories": []}, ["spec.targets[0].repositories must not be an empty list if specified"]),
        ({"repositories": [{"name": ""}]}, ["spec.targets[0].repositories[0].name cannot be empty"]),
        (
            {"repositories": [{"name": "a", "packageNames": ["b", ""]}]},
            ["spec.targets[0].repositories[0].packageNames[1] cannot be empty"],
        ),
        (
            {"objectSelector": {}},
            [
                "spec.targets[0].objectselector.apiVersion cannot be empty",
                "spec.targets[0].objectselector.kind cannot be empty",
            ],
        ),
        ({**LISTED, "repositorySelector": {}}, [ONE_OF]),
        (
            {"repositories": [], "objectSelector": {"kind": "K"}},
            [
                "spec.targets[0].repositories must not be an empty list if specified",
                "spec.targets[0].objectselector.apiVersion cannot be empty",
                ONE_OF,
            ],
        ),
    ],
)
def test_selection_rules(target: dict[str, Any], expected: list[str]) -> None:
    """A target selects in exactly one way, and completely."""
    assert problems(target) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ({"adoptionPolicy": "x"}, [f'{F}.adoptionPolicy can only be "adoptNone" or "adoptExisting"']),
        ({"adoptionPolicy": ""}, [f'{F}.adoptionPolicy can only be "adoptNone" or "adoptExisting"']),
        ({"deletionPolicy": "x"}, [f'{F}.deletionPolicy can only be "orphan" or "delete"']),
        (
            {"downstream": {"repo": "a", "repoExpr": "'a'"}},
            [f"{F} may specify only one of `downstream.repo` and `downstream.repoExpr`"],
        ),
        (
            {"downstream": {"repo": "", "repoExpr": ""}},
            [f"{F} may specify only one of `downstream.repo` and `downstream.repoExpr`"],
        ),
        (
            {"downstream": {"package": "a", "packageExpr": "'a'"}},
            [f"{F} may specify only one of `downstream.package` and `downstream.packageExpr`"],
        ),
        (
            {"labelExprs": [{"key": "a", "keyExpr": "'a'", "value": "b"}]},
            [f"{F}.labelExprs[0] may specify only one of `key` and `keyExpr`"],
        ),
        (
            {"annotationExprs": [{"key": "a", "value": "b", "valueExpr": "'b'"}]},
            [f"{F}.annotationExprs[0] may specify only one of `value` and `valueExpr`"],
        ),
        (
            {"packageContext": {"dataExprs": [{}]}},
            [
                f"{F}.packageContext.dataExprs[0] must specify either `key` or `keyExpr`",
                f"{F}.packageContext.dataExprs[0] must specify either `value` or `valueExpr`",
            ],
        ),
        (
            {"injectors": [{"name": "a", "nameExpr": "'a'"}, {}]},
            [
                f"{F}.injectors[0] may specify only one of `name` and `nameExpr`",
                f"{F}.injectors[1] must specify either `name` or `nameExpr`",
            ],
        ),
        (
            {"pipeline": {"mutators": [{"name": "a.b"}], "validators": [{"exec": "x"}]}},
            [
                f"{F}.pipeline.validators[0].image must not be empty",
                f"{F}.pipeline.mutators[0].image must not be empty",
                f"{F}.pipeline.mutators[0].name must not contain '.'",
            ],
        ),
        (
            {"pipeline": {"mutators": [{"image": "i", "configMapExprs": [{"key": "a", "keyExpr": "'a'"}]}]}},
            [
                f"{F}.pipeline.mutators[0].configMapExprs[0] may specify only one of `key` and `keyExpr`",
                f"{F}.pipeline.mutators[0].configMapExprs[0] must specify either `value` or `valueExpr`",
            ],
        ),
        ({"annotations": {"pvbus.dev/follow": "saves"}}, []),
        (
            {"annotations": {"pvbus.dev/follow": "Saves"}},
            [f'{F}.annotations[pvbus.dev/follow] can only be "publications" or "saves", not "Saves"'],
        ),
    ],
)
def test_template_rules(template: dict[str, Any], expected: list[str]) -> None:
    """Each part of a template is given once, as a value or as an expression."""
    assert templated(template) == expected


def test_problems_come_in_the_order_of_the_fields() -> None:
    """Selection before template, and within it policies, downstream, maps, injectors, pipeline."""
    template = {
        "pipeline": {"mutators": [{}]},
        "injectors": [{}],
        "annotationExprs": [{}],
        "labelExprs": [{"key": "a"}],
        "downstream": {"repo": "a", "repoExpr": "b"},
        "deletionPolicy": "x",
    }
    found = problems({"template": template})
    marks = ["must specify one of", "deletionPolicy", "downstream.repo", "labelExprs", "annotationExprs[0]"]
    marks += ["annotationExprs[0]", "injectors", "mutators"]
    assert len(found) == len(marks)
    assert all(mark in problem for mark, problem in zip(marks, found, strict=True))


def test_a_selector_that_an_api_server_would_refuse_is_reported_before_anything_is_listed() -> None:
    refused = 'Invalid value: "in": not a valid selector operator'
    selector = {"matchExpressions": [{"key": "a", "operator": "in", "values": ["b"]}]}
    for kind, more in (("repositorySelector", {}), ("objectSelector", {"apiVersion": "v1", "kind": "X"})):
        found = problems({kind: {**selector, **more}})
        assert found == [f"spec.targets[0].{kind}.matchExpressions[0].operator: {refused}"]


def test_listed_targets_of_one_downstream_are_named() -> None:
    """Both entries and the downstream are named; downstreams of expressions are not checked."""
    targets = [
        {"repositories": [{"name": "a", "packageNames": ["x", "y"]}, {"name": "b"}]},
        {"repositories": [{"name": "a", "packageNames": ["y"]}]},
        {"repositories": [{"name": "c"}], "template": {"downstream": {"repo": "b"}}},
        {"repositories": [{"name": "b"}], "template": {"downstream": {"repoExpr": "'z'"}}},
    ]
    found = duplicate_downstreams(spec_of({"upstream": UPSTREAM, "targets": targets}))
    assert found == [
        "spec.targets[0].repositories[0].packageNames[1] and spec.targets[1].repositories[0].packageNames[0]"
        ' have the same downstream "a/y"',
        'spec.targets[0].repositories[1] and spec.targets[2].repositories[0] have the same downstream "b/p"',
    ]
