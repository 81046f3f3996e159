"""set-annotations v0.1.4."""

import pytest

from pvbus.controlplane.packages.functions.set_annotations import set_annotations
from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import get
from tests.unit.packages.support import after, config, config_map, items


def test_objects_for_the_package_and_the_kptfile_are_annotated_too() -> None:
    before = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: a\n  annotations:\n    {}: 'true'\n"
    before = before.format("config.kubernetes.io/local-config")
    assert after(set_annotations, config_map(b="true"), before) == [f'{before}    b: "true"\n']


@pytest.mark.parametrize(
    ("api_version", "kind", "path", "written"),
    [
        ("apps/v1", "Deployment", "spec/template", True),
        ("example.com/v1", "StatefulSet", "spec/template", True),
        ("v1", "ReplicationController", "spec/template", True),
        ("example.com/v1", "ReplicationController", "spec/template", False),
        ("batch/v1", "Job", "spec/template", True),
        ("example.com/v1", "Job", "spec/template", False),
        ("batch/v1", "CronJob", "spec/jobTemplate", True),
        ("batch/v1", "CronJob", "spec/jobTemplate/spec/template", True),
        ("v1", "Pod", "spec/template", False),
    ],
)
def test_pods_of_workloads_are_annotated(api_version: str, kind: str, path: str, written: bool) -> None:
    given = items(f"apiVersion: {api_version}\nkind: {kind}\nmetadata:\n  name: a\n")
    (changed,) = set_annotations(given, config_map(k="v")).items
    assert changed.annotations == {"k": "v"}
    found = get(changed.value, (*path.split("/"), "metadata", "annotations"))
    assert found == ({"k": "v"} if written else None)


@pytest.mark.parametrize("name", ["additionalAnnotationFields", "fieldSpecs"])
def test_more_fields_can_be_named(name: str) -> None:
    own = config(f"""
        apiVersion: fn.kpt.dev/v1alpha1
        kind: SetAnnotations
        annotations: {{k: v}}
        {name}:
        - {{kind: Thing, group: x.org, path: 'spec/parts[]/meta', create: true}}
        - {{kind: Thing, path: spec/none}}
        - {{kind: Other, path: spec/other, create: true}}
        """)
    given = items(
        "apiVersion: x.org/v1\nkind: Thing\nmetadata: {name: a}\nspec: {parts: [{}, {meta: {a: b}}]}\n"
    )
    (changed,) = set_annotations(given, own).items
    assert changed.value["spec"] == {"parts": [{"meta": {"k": "v"}}, {"meta": {"a": "b", "k": "v"}}]}


@pytest.mark.parametrize(
    "configuration",
    [
        "{apiVersion: v1, kind: ConfigMap}",
        "{apiVersion: v1, kind: Secret, data: {a: b}}",
        "{apiVersion: fn.kpt.dev/v1alpha1, kind: SetAnnotations, annotations: {a: b}, "
        "fieldSpecs: [{path: a}], additionalAnnotationFields: [{path: a}]}",
        "{apiVersion: fn.kpt.dev/v1alpha1, kind: SetAnnotations, annotations: {a: b}, "
        "fieldSpecs: [{kind: X}]}",
    ],
)
def test_a_configuration_it_cannot_use_fails(configuration: str) -> None:
    with pytest.raises(PermanentError):
        set_annotations((), config(configuration))


def test_it_reports_nothing() -> None:
    assert set_annotations((), config_map(a="b")).results == ()
