"""set-labels v0.2."""

import pytest

from pvbus.controlplane.packages.functions.set_labels import set_labels
from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import get
from tests.unit.packages.support import after, config, config_map, items, text

POD = ("spec", "template", "metadata", "labels")
MATCH = ("spec", "selector", "matchLabels")


def test_keys_are_added_sorted_and_present_ones_keep_their_place() -> None:
    before = """
        apiVersion: x.org/v1
        kind: Thing
        metadata:
          name: a
          labels:
            z: old # why
            mine: "1"
        """
    assert after(set_labels, config_map(z="new", b="2", a="1"), before) == [
        text("""
            apiVersion: x.org/v1
            kind: Thing
            metadata:
              name: a
              labels:
                z: new # why
                mine: "1"
                a: "1"
                b: "2"
            """)
    ]


def test_objects_for_the_package_alone_are_skipped() -> None:
    before = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  annotations:\n    {}: 'true'\n"
    before = before.format("config.kubernetes.io/local-config")
    assert after(set_labels, config_map(a="1"), before) == [before]


@pytest.mark.parametrize(
    ("api_version", "kind", "spec", "path", "expected"),
    [
        ("v1", "Service", "{}", ("spec", "selector"), {"k": "v"}),
        ("example.com/v1", "Service", "{}", ("spec", "selector"), None),
        ("v1", "ReplicationController", "{template: {}}", POD, {"k": "v"}),
        ("apps/v1", "Deployment", "{}", MATCH, {"k": "v"}),
        ("apps/v1", "Deployment", "{template: {}}", POD, {"k": "v"}),
        ("apps/v1", "Deployment", "{}", ("spec", "template"), None),
        ("apps/v1", "Deployment", "null", ("spec", "selector"), None),
        ("extensions/v1beta1", "DaemonSet", "{}", MATCH, {"k": "v"}),
        ("apps/v1", "StatefulSet", "{}", MATCH, {"k": "v"}),
        ("example.com/v1", "StatefulSet", "{}", MATCH, None),
        ("batch/v1", "Job", "{selector: {matchLabels: {a: b}}}", MATCH, {"a": "b"}),
        ("batch/v1", "Job", "{selector: {matchLabels: {k: b}}}", MATCH, {"k": "v"}),
        ("policy/v1", "PodDisruptionBudget", "{selector: {matchLabels: {k: b}}}", MATCH, {"k": "v"}),
        ("policy/v1", "PodDisruptionBudget", "{}", ("spec", "selector"), None),
        ("batch/v1", "CronJob", "{}", ("spec", "jobTemplate"), None),
        (
            "batch/v1",
            "CronJob",
            "{jobTemplate: {}}",
            ("spec", "jobTemplate", "metadata", "labels"),
            {"k": "v"},
        ),
        (
            "batch/v1",
            "CronJob",
            "{jobTemplate: {spec: {template: {}}}}",
            ("spec", "jobTemplate", *POD),
            {"k": "v"},
        ),
        (
            "apps/v1",
            "StatefulSet",
            "{volumeClaimTemplates: [{}]}",
            ("spec", "volumeClaimTemplates", 0, "metadata", "labels"),
            {"k": "v"},
        ),
        (
            "apps/v1",
            "Deployment",
            "{template: {spec: {topologySpreadConstraints: [{labelSelector: {matchLabels: {k: b}}}]}}}",
            ("spec", "template", "spec", "topologySpreadConstraints", 0, "labelSelector", "matchLabels"),
            {"k": "v"},
        ),
        (
            "apps/v1",
            "Deployment",
            "{template: {spec: {affinity: {podAffinity: {preferred: "
            "[{labelSelector: {matchLabels: {k: b}}}]}}}}}",
            (
                "spec",
                "template",
                "spec",
                "affinity",
                "podAffinity",
                "preferred",
                0,
                "labelSelector",
                "matchLabels",
            ),
            {"k": "b"},
        ),
        (
            "networking.k8s.io/v1",
            "NetworkPolicy",
            "{ingress: [{from: [{podSelector: {matchLabels: {k: b, c: d}}}]}]}",
            ("spec", "ingress", 0, "from", 0, "podSelector", "matchLabels"),
            {"k": "v", "c": "d"},
        ),
        (
            "networking.k8s.io/v1",
            "NetworkPolicy",
            "{podSelector: {matchLabels: {c: d}}}",
            ("spec", "podSelector", "matchLabels"),
            {"c": "d"},
        ),
    ],
)
def test_where_labels_are_written(
    api_version: str, kind: str, spec: str, path: tuple[str | int, ...], expected: object
) -> None:
    """Selectors of some kinds are only followed, never invented; a missing template stays missing."""
    given = items(f"apiVersion: {api_version}\nkind: {kind}\nmetadata:\n  name: a\nspec: {spec}\n")
    (changed,) = set_labels(given, config_map(k="v")).items
    assert get(changed.value, path) == expected
    assert get(changed.value, ("metadata", "labels")) == {"k": "v"}


def test_its_own_config_kind_is_read_and_values_become_text() -> None:
    own = config("{apiVersion: fn.kpt.dev/v1alpha1, kind: SetLabels, labels: {a: 5}}")
    (changed,) = set_labels(items("apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n"), own).items
    assert changed.labels == {"a": "5"}
    assert changed.text == 'apiVersion: v1\nkind: Secret\nmetadata: {name: a, labels: {a: "5"}}\n'


def test_no_labels_are_a_warning_and_no_configuration_a_failure() -> None:
    assert [result.severity for result in set_labels((), config_map()).results] == ["warning"]
    with pytest.raises(PermanentError):
        set_labels((), None)


def test_the_result_counts_the_labels() -> None:
    assert [result.message for result in set_labels((), config_map(a="1", b="2")).results] == [
        "set 2 label(s) in total"
    ]
