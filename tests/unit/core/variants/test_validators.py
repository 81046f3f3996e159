"""Conditions of validators: their types, and what each run of a pipeline makes of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvbus.cli.condition import conditions_named
from pvbus.core.errors import UsageError
from pvbus.core.variants.revisions.validators import (
    FINDINGS_SHOWN_MAX,
    MESSAGE_CHARACTERS_MAX,
    PREFIX,
    VALIDATORS_MAX,
    Report,
    Saved,
    Validator,
    conditions_of,
    is_validators,
    validators_of,
)

AT = ("", "pipeline.validators[0]")
ERROR = {
    "message": "must be big",
    "severity": "error",
    "resourceRef": {"kind": "ConfigMap", "namespace": "shop", "name": "web"},
    "field": {"path": "data.size"},
    "file": {"path": "settings.yaml"},
}
WARNING = {"message": "is old", "severity": "warning"}
INFO = {"message": "looked", "severity": "info"}
FINDING = "settings.yaml ConfigMap shop/web data.size: must be big"
REST = "; all are in status.renderStatus of the Kptfile"


def names(*entries: Any, **others: list[Any]) -> list[str]:
    """Return the names of validators; others: those of sub-packages."""
    kptfiles = {"": list(entries), **others}
    found = validators_of({folder: {"pipeline": {"validators": each}} for folder, each in kptfiles.items()})
    assert all(each.type.startswith(PREFIX) and is_validators(each.type) for each in found)
    return [each.type.removeprefix(PREFIX) for each in found]


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ({"image": "ghcr.io/org/catalog/kubeconform:v0.1.1"}, "kubeconform"),
        ({"image": "host:5000/kubeconform@sha256:abc"}, "kubeconform"),
        ({"image": "starlark:v0.5", "name": "replica-policy"}, "replica-policy"),
        ({"exec": "/usr/bin/check.sh --all"}, "check.sh"),
        ({"image": "x", "name": "PackageVariant.web.asia.policy.0"}, "policy"),
        ({"image": "host/x:v1", "name": "PackageVariant.web..0"}, "x"),
        ({"image": "x", "name": "at least/two pods!"}, "at-least-two-pods"),
        ({"image": "x", "name": "ü"}, "function"),
        ({"image": "x", "name": "n" * 300}, "n" * 63),
    ],
)
def test_a_type_has_the_name_of_the_function_or_of_its_image(entry: Any, name: str) -> None:
    assert names(entry) == [name]


def test_types_are_unique_and_nobody_elses_function_takes_the_packages_own() -> None:
    twice = {"image": "x:v1"}
    assert names(twice, twice, {"name": "x-2"}, twice) == ["x", "x-3", "x-2", "x-4"]
    added = {"name": "PackageVariant.v.x.0", "image": "y"}
    assert names(added, twice) == ["x", "x-2"]
    found = validators_of({"": {"pipeline": {"validators": [added, twice]}}})
    assert [position for position, _ in found] == [("", "pipeline.validators[1]"), AT]
    assert names(twice, **{"db/main": [twice]}) == ["x", "db.main.x"]


@pytest.mark.parametrize("given", [None, {}, {"pipeline": []}, {"pipeline": {"validators": {"a": "b"}}}])
def test_a_kptfile_of_another_form_has_no_validators(given: Any) -> None:
    assert validators_of({"": given}) == ()
    assert names("text", None, {}, {"image": "x"}) == ["x"]


FAILED = "it failed without an error result: exit code 1: no output"


@pytest.mark.parametrize(
    ("report", "saved", "status", "reason", "message"),
    [
        (Report(), "as validated", "True", "Passed", ""),
        (Report([INFO]), "as validated", "True", "Passed", "1 info: looked"),
        (Report([WARNING, WARNING]), "as validated", "True", "Passed", "2 warnings: is old"),
        (Report([ERROR]), "as validated", "False", "Failed", f"1 error: {FINDING}"),
        (Report([ERROR]), "otherwise", "False", "Failed", f"1 error: {FINDING}"),
        (Report([{"message": "no severity"}]), "as validated", "False", "Failed", "1 error: no severity"),
        (Report([WARNING, ERROR]), "as validated", "False", "Failed", f"1 error, 1 warning: {FINDING}{REST}"),
        (
            Report([ERROR], "exit code 1: x", "FunctionFailed"),
            "otherwise",
            "False",
            "Failed",
            f"1 error: {FINDING}",
        ),
        (Report([], "exit code 1: no output", "FunctionFailed"), "otherwise", "False", "Failed", FAILED),
        (
            Report([], "no such", "FunctionNotFound"),
            "otherwise",
            "Unknown",
            "NotRun",
            "it did not run: no such",
        ),
        (
            Report([], "no exec", "ExecNotAllowed"),
            "otherwise",
            "Unknown",
            "NotRun",
            "it did not run: no exec",
        ),
        (
            Report([], "too slow", "RenderTimeout"),
            "otherwise",
            "Unknown",
            "NotRun",
            "it did not run: too slow",
        ),
        (None, "otherwise", "Unknown", "NotRun", "it did not run: the reason"),
        (None, "deferred", "Unknown", "Deferred", "the reason"),
        (
            Report(),
            "otherwise",
            "Unknown",
            "NotRun",
            "it passed on the pipeline's output, which is not stored: the reason",
        ),
    ],
)
def test_a_condition_says_what_became_of_the_validator(
    report: Report | None, saved: Saved, status: str, reason: str, message: str
) -> None:
    reports = {} if report is None else {AT: report}
    (found,) = conditions_of([Validator(AT, f"{PREFIX}x")], reports, "the reason", saved)
    wanted = {"type": f"{PREFIX}x", "status": status, "reason": reason}
    assert found == ({**wanted, "message": message} if message else wanted)


def test_the_first_findings_are_shown_and_all_are_counted() -> None:
    results = [{"message": f"problem {number}\n", "severity": "error"} for number in (5, 3, 1, 4, 2)]
    (found,) = conditions_of([Validator(AT, "t")], {AT: Report(results)}, "", "as validated")
    assert found["message"] == f"5 errors: problem 1; problem 2; problem 3{REST}"
    assert found["message"].count("problem") == FINDINGS_SHOWN_MAX
    turned = conditions_of([Validator(AT, "t")], {AT: Report(results[::-1])}, "", "as validated")
    assert turned == [found], "the order in which a function reports is not the condition's"


VALUES = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
RESULTS = st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(ERROR, VALUES)), max_size=8)


@pytest.mark.slow
@given(RESULTS, st.text(max_size=800))
def test_no_result_breaks_a_condition_or_makes_it_long(results: list[Any], error: str) -> None:
    (found,) = conditions_of([Validator(AT, "t")], {AT: Report(results, error)}, "why", "as validated")
    assert found["status"] in ("True", "False")
    assert len(found.get("message", "")) <= MESSAGE_CHARACTERS_MAX
    assert found.get("message", "x").isprintable()


def test_a_package_of_very_many_validators_has_conditions_of_the_first() -> None:
    assert len(names(*[{"image": "x"}] * (VALIDATORS_MAX + 5))) == VALIDATORS_MAX


def test_a_person_cannot_set_a_validators_condition() -> None:
    with pytest.raises(UsageError, match="is set by the package store when it runs the validator"):
        conditions_named([f"{PREFIX}x=True"], "", "")
