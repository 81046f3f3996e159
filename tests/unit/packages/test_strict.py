"""Kptfiles as kpt takes them: what is refused, what is hidden, and what is reported."""

import time

import pytest

from pvbus.controlplane.packages.functions.files import ignored
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.recording import RESULTS_MAX
from pvbus.controlplane.packages.render import RenderResult, render
from pvbus.core.yaml.editor import values

KPTFILE = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata: {name: p}\n"
LABELS = "pipeline: {mutators: [{image: 'set-labels:v0.2', configMap: {app: x}}]}\n"
OBJECT = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
SETTERS = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\ndata: {app: x}\n"


def rendered(kptfile: str, **files: str) -> RenderResult:
    package = {"Kptfile": kptfile, "x.yaml": OBJECT} | {
        name.replace("__", "/").replace("_yaml", ".yaml"): text for name, text in files.items()
    }
    return render(package, registry=FunctionRegistry({}))


@pytest.mark.parametrize(
    ("kptfile", "message"),
    [
        (KPTFILE + "pipeline: {mutator: []}\n", "pipeline.mutator: unknown field"),
        (
            KPTFILE + "pipeline: {mutators: [{image: 'set-labels:v0.2', config: {}}]}\n",
            "unknown field `config`",
        ),
        (
            KPTFILE + "pipeline: {mutators: [{image: 'set-labels:v0.2', selectors: [{kinds: x}]}]}\n",
            "unknown field `kinds`",
        ),
        (
            KPTFILE + "pipeline: {mutators: [{image: 'set-labels:v0.2', configMap: {app: [a, b]}}]}\n",
            "configMap.app is a list, but must be a string",
        ),
        (
            KPTFILE + "pipeline: {mutators: [{image: 'set-labels:v0.2', configMap: {app: {a: b}}}]}\n",
            "configMap.app is a map, but must be a string",
        ),
        (
            KPTFILE + "pipeline: {mutators: [{image: 'set-labels:v0.2', configPath: sub/s.yaml}]}\n",
            "is in the sub-package sub",
        ),
        (
            KPTFILE + "pipeline: {mutators: [{image: 'set-labels:v0.2', configPath: ../s.yaml}]}\n",
            "must be a path inside the package",
        ),
        (
            KPTFILE.replace("kpt.dev/v1", "kpt.dev/v1alpha2"),
            "is kpt.dev/v1alpha2 Kptfile, but must be kpt.dev/v1",
        ),
        (KPTFILE.replace("kind: Kptfile", "kind: ConfigMap"), "must be kpt.dev/v1 Kptfile"),
    ],
)
def test_a_kptfile_that_kpt_refuses_is_refused_with_its_field(kptfile: str, message: str) -> None:
    result = rendered(kptfile, sub__Kptfile=KPTFILE, sub__s_yaml=SETTERS)
    assert not result.rendered
    assert message in result.message
    assert result.condition.message == result.message
    assert result.resources["x.yaml"] == OBJECT


def test_values_of_a_config_map_that_are_no_texts_still_become_some() -> None:
    entry = "{image: 'set-labels:v0.2', configMap: {a: 1, b: true}}"
    result = rendered(KPTFILE + f"pipeline: {{mutators: [{entry}]}}\n")
    assert result.rendered
    assert values(result.resources["x.yaml"])[0]["metadata"]["labels"] == {"a": "1", "b": "true"}


@pytest.mark.parametrize(
    ("patterns", "path", "hidden"),
    [
        ("x.yaml", "x.yaml", True),
        ("x.yaml", "a/b/x.yaml", True),
        ("/x.yaml", "a/x.yaml", False),
        ("a/x.yaml", "a/x.yaml", True),
        ("a/x.yaml", "b/a/x.yaml", False),
        ("*.yaml", "a/x.yaml", True),
        ("a/", "a/b/x.yaml", True),
        ("a/", "a", False),
        ("a", "b/a/x.yaml", True),
        ("**/x.yaml", "a/b/x.yaml", True),
        ("a/**/x.yaml", "a/x.yaml", True),
        ("a/**", "a/b/x.yaml", True),
        ("a/*", "a/b/x.yaml", True),
        ("?.yaml", "x.yaml", True),
        ("?.yaml", "xy.yaml", False),
        ("*.yaml\n!x.yaml", "x.yaml", False),
        ("!x.yaml\n*.yaml", "x.yaml", True),
        ("# x.yaml\n\n", "x.yaml", False),
        ("\\#x", "#x", True),
    ],
)
def test_patterns_of_a_krmignore(patterns: str, path: str, hidden: bool) -> None:
    assert (path in ignored({".krmignore": patterns, path: ""})) == hidden
    assert (f"sub/{path}" in ignored({"sub/.krmignore": patterns, f"sub/{path}": ""})) == hidden
    assert path not in ignored({"sub/.krmignore": patterns, path: ""})


def test_hidden_files_and_packages_are_not_rendered_and_stay() -> None:
    broken = "no: [object\n"
    result = render(
        {
            "Kptfile": KPTFILE + LABELS,
            ".krmignore": "broken.yaml\nold/\nKptfile\n",
            "broken.yaml": broken,
            "old/Kptfile": KPTFILE.replace("v1", "v1alpha1"),
            "old/x.yaml": OBJECT,
            "x.yaml": OBJECT,
        },
        registry=FunctionRegistry({}),
    )
    assert result.rendered, result.message
    assert result.resources["broken.yaml"] == broken
    assert result.resources["old/x.yaml"] == OBJECT
    assert values(result.resources["x.yaml"])[0]["metadata"]["labels"] == {"app": "x"}


def test_patterns_made_to_be_slow_are_not() -> None:
    began = time.process_time()
    ignored({".krmignore": "*a" * 2_000 + "b\n" + "**/" * 500 + "b", "a" * 4_000: "", "a/" * 60 + "a": ""})
    assert time.process_time() - began < 5


def test_the_kptfile_says_what_each_function_did() -> None:
    pipeline = (
        "pipeline:\n  mutators:\n  - {image: 'set-labels:v0.2', name: labels, configMap: {app: x}}\n"
        "  validators:\n  - {image: 'set-namespace:v0.4.1', configMap: {namespace: x}}\n"
    )
    result = rendered(KPTFILE + pipeline)
    (kptfile,) = values(result.resources["Kptfile"])
    assert kptfile["status"]["renderStatus"] == {
        "mutationSteps": [
            {
                "name": "labels",
                "image": "set-labels:v0.2",
                "exitCode": 0,
                "results": [{"message": "set 1 label(s) in total"}],
            }
        ],
        "validationSteps": [
            {
                "image": "set-namespace:v0.4.1",
                "exitCode": 0,
                "results": [{"message": 'namespace "" updated to "x", 1 value(s) changed'}],
            }
        ],
    }
    again = render(result.resources, registry=FunctionRegistry({}))
    assert again.digest == result.output_digest, "what rendering reports is no input of the next"
    assert again.resources == result.resources


def test_a_failure_is_summed_up_and_a_later_success_takes_it_back() -> None:
    failing = KPTFILE + "pipeline: {mutators: [{image: 'set-labels:v0.2'}]}\n"
    result = rendered(failing)
    (kptfile,) = values(result.resources["Kptfile"])
    status = kptfile["status"]["renderStatus"]
    assert status["errorSummary"] == result.message
    assert status["mutationSteps"][0]["exitCode"] == 1
    assert status["mutationSteps"][0]["executionError"] in result.message
    fixed = result.resources["Kptfile"].replace("'set-labels:v0.2'", "'set-labels:v0.2', configMap: {a: b}")
    (kptfile,) = values(rendered(fixed).resources["Kptfile"])
    assert "errorSummary" not in kptfile["status"]["renderStatus"]
    (kptfile,) = values(
        rendered(KPTFILE + "status: {renderStatus: {errorSummary: old}}\n").resources["Kptfile"]
    )
    assert "renderStatus" not in kptfile["status"]


def test_a_kptfile_does_not_repeat_thousands_of_results() -> None:
    fields = "".join(f"  k{number}: x # kpt-set: ${{a}}\n" for number in range(300))
    entry = "pipeline: {mutators: [{image: 'apply-setters:v0.2', configMap: {a: y}}]}\n"
    result = rendered(KPTFILE + entry, y_yaml=OBJECT.replace("name: x", "name: y") + "data:\n" + fields)
    (kptfile,) = values(result.resources["Kptfile"])
    (step,) = kptfile["status"]["renderStatus"]["mutationSteps"]
    assert len(step["results"]) == RESULTS_MAX + 1
    assert step["results"][-1]["message"] == "and 250 more"
