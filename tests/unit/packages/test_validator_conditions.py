"""A run of the pipeline as the conditions of validators see it."""

import pytest

from pvbus.controlplane.packages.functions.item import Result
from pvbus.controlplane.packages.functions.yamltext import load
from pvbus.controlplane.packages.recording import RESULTS_BYTES_MAX, RESULTS_MAX, StepReport, render_status
from pvbus.controlplane.packages.render import render
from pvbus.core.variants.revisions.validators import PREFIX
from tests.unit.packages.test_render import REGISTRY, kptfile, steps, thing


def found(resources: dict[str, str]) -> dict[str, str]:
    result = render(resources, registry=REGISTRY)
    conditions = load(result.resources["Kptfile"])["status"]["conditions"]
    assert conditions[-1]["type"] == "Rendered"
    return {each["type"].removeprefix(PREFIX): each["status"] for each in conditions[:-1]}


def test_a_sub_packages_validator_has_a_condition_of_the_package() -> None:
    own, below = (steps(image, phase="validators") for image in ("trace-c", "trace-a"))
    resources = {"Kptfile": kptfile(own), "sub/Kptfile": kptfile(below), "sub/a.yaml": thing("a")}
    assert found(resources) == {"trace-c": "True", "sub.trace-a": "True"}
    resources["sub/Kptfile"] = kptfile(steps("fail", phase="validators"))
    assert found(resources) == {"trace-c": "Unknown", "sub.fail": "False"}


@pytest.mark.parametrize(
    ("mutators", "annotations", "status"),
    [
        ("trace-a", "{}", "Unknown"),
        ("trace-a", "{kpt.dev/save-on-render-failure: 'true'}", "True"),
        ("", "{}", "True"),
    ],
)
def test_what_passed_is_true_only_of_what_is_stored(mutators: str, annotations: str, status: str) -> None:
    """A later validator fails: the files stay as they came, unless the mutators changed nothing."""
    pipeline = (steps(mutators) if mutators else "") + steps("trace-c", "fail", phase="validators")
    resources = {"Kptfile": kptfile(pipeline, annotations=annotations), "a.yaml": thing("a")}
    assert found(resources) == {"trace-c": status, "fail": "False"}


def test_a_pipeline_that_cannot_be_read_leaves_its_validators_unknown() -> None:
    pipeline = steps("trace-c", phase="validators") + "  - {image: x, nonsense: true}\n"
    assert found({"Kptfile": kptfile(pipeline)}) == {"trace-c": "Unknown", "x": "Unknown"}


def test_a_kptfile_has_as_many_results_as_fit() -> None:
    """What a Kptfile stores is read for every revision, so long results count by their size."""
    results = tuple(Result(message="m" * 5000, severity="error") for _ in range(RESULTS_MAX))
    report = StepReport(package="", step="pipeline.validators[0]", image="x", results=results)
    status = render_status([report, report], "")
    assert status is not None
    for step in status["validationSteps"]:
        *shown, last = step["errorResults"]
        assert 0 < len(shown) * 5000 < RESULTS_BYTES_MAX // 2
        assert last["message"] == f"and {RESULTS_MAX - len(shown)} more"
