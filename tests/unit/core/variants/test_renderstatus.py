"""The render status of a target: the save's answer and the Kptfile agree."""

import msgspec
import pytest

from pvbus.controlplane.packages.render import render, rendering_of
from pvbus.core.api.packages import CATALOG
from pvbus.core.variants.inject.renderstatus import recorded, render_status, reported
from tests.unit.packages.test_render import REGISTRY, kptfile, steps, thing

RUN = """status:
  conditions:
  - {type: Rendered, status: "%s", reason: X}
  renderStatus:
    mutationSteps:
    - {image: a, exitCode: 0, results: [{message: m, severity: info}]}
    - {image: registry.example/quiet, exitCode: 0}
"""
ITEMS = [
    {"exitCode": 0, "image": f"{CATALOG}a", "results": [{"message": "m", "severity": "info"}]},
    {"exitCode": 0, "image": "registry.example/quiet"},
]


@pytest.mark.parametrize(
    "pipeline",
    [
        "",
        steps("trace-a"),
        steps("trace-a", "trace-b"),
        steps("trace-a", phase="validators"),
        steps("trace-a", "fail", "trace-b"),
        steps("fail"),
        steps("no-such-function"),
    ],
)
def test_a_save_answers_what_the_kptfile_records(pipeline: str) -> None:
    """So a worker that died behind its save reports what it would have reported."""
    made = rendering_of(render({"Kptfile": kptfile(pipeline), "a.yaml": thing("a")}, registry=REGISTRY))
    answered = msgspec.json.decode(msgspec.json.encode(made.status))  # as it comes over HTTP
    assert recorded(made.texts["Kptfile"]) == reported(answered)


@pytest.mark.parametrize("status", ["True", "False"])
def test_the_kptfile_comes_before_the_answer(status: str) -> None:
    resources = {
        "spec": {"resources": {"Kptfile": kptfile() + RUN % status}},
        "status": {"renderStatus": {"error": "another"}},
    }
    found = render_status(resources)
    assert found is not None
    assert (found["error"], found["result"]["items"]) == ("", ITEMS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        kptfile(),
        kptfile() + RUN % "Unknown",
        kptfile() + "status: {renderStatus: {mutationSteps: [{image: a, results: [{message: m}]}]}}\n",
        kptfile() + "status: {conditions: [{type: Rendered, status: 'True'}], renderStatus: 7}\n",
        kptfile() + "status: {conditions: [{type: Rendered, status: 'True'}]}\n",
    ],
    ids=["none", "no YAML", "no status", "deferred", "cloned", "another form", "nothing reported"],
)
def test_without_a_record_of_this_package_the_answer_counts(text: str) -> None:
    resources = {"spec": {"resources": {"Kptfile": text}}, "status": {"renderStatus": {"error": "e"}}}
    assert recorded(text) is None
    assert render_status(resources) == {"error": "e"}
    assert render_status({"spec": {"resources": {"Kptfile": text}}}) is None
