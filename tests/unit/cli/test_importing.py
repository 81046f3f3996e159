"""`pvbus import`: what becomes of each part of an ApplicationSet, a GitRepo or a Bundle."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pvbus.cli.importing.converted import NoCounterpartError
from pvbus.cli.importing.selections import Selection, disjoint
from pvbus.cli.importing.texts import expression, parse
from pvbus.cli.main import run
from pvbus.core.api.selectors import Requirement, matches
from pvbus.core.cel import compile_expression

CLUSTER = {"argocd.argoproj.io/secret-type": "cluster"}
SOURCE = {
    "repoURL": "https://git.example.dev/Blueprints.git",
    "path": "apps/web",
    "targetRevision": "apps/web/v3",
}


def application_set(generators: list[Any], **spec: Any) -> dict[str, Any]:
    """An ApplicationSet whose Applications are named after their clusters, unless `spec` says otherwise."""
    template = {"metadata": {"name": "{{name}}-web"}, "spec": {"source": SOURCE}}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "ApplicationSet",
        "metadata": {"name": "web", "namespace": "argocd"},
        "spec": {"generators": generators, "template": template, **spec},
    }


def git_repo(targets: list[Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "fleet.cattle.io/v1alpha1",
        "kind": "GitRepo",
        "metadata": {"name": "edge", "namespace": "fleet-default"},
        "spec": {"repo": "https://git.example.dev/edge", "paths": ["web"], "targets": targets, **spec},
    }


class Imported:
    """Runs the command. code: its exit code. sets, notes: what it printed."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys

    def run(self, kind: str, *objects: dict[str, Any], options: str = "") -> "Imported":
        file = self._folder / "given.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        self.code = run(["import", kind, str(file), *options.split()])
        printed = self._capsys.readouterr()
        self.sets = list(yaml.safe_load_all(printed.out))
        self.notes = printed.err
        return self

    @property
    def targets(self) -> list[dict[str, Any]]:
        targets: list[dict[str, Any]] = self.sets[0]["spec"]["targets"]
        return targets


@pytest.fixture
def imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Imported:
    return Imported(tmp_path, capsys)


def test_clusters_become_targets_of_the_set(imported: Imported) -> None:
    """The set selects the Secrets that Argo CD selects, in its namespace, and reads none of them."""
    clusters = {"selector": {"matchLabels": {"env": "prod"}}}
    imported.run("applicationset", application_set([{"clusters": clusters}]))
    (made,) = imported.sets
    assert made["metadata"] == {"name": "web", "namespace": "argocd"}
    assert made["spec"]["upstream"] == {"repo": "blueprints", "package": "apps/web", "revision": 3}
    assert imported.targets == [
        {
            "objectSelector": {
                "apiVersion": "v1",
                "kind": "Secret",
                "matchLabels": CLUSTER | {"env": "prod"},
            },
            "template": {"downstream": {"repo": "deployments", "packageExpr": "target.name + '-web'"}},
        }
    ]
    assert "assumed to be the Repository blueprints" in imported.notes


def test_elements_of_a_list_become_packages(imported: Imported) -> None:
    """Elements that differ in their package alone are one target; others are targets of their own."""
    elements = [{"name": "a", "env": "x"}, {"name": "b", "env": "x"}, {"name": "c", "env": True}]
    template = {
        "metadata": {"name": "{{name}}-web", "labels": {"env": "{{env}}"}},
        "spec": {"source": SOURCE},
    }
    imported.run("applicationset", application_set([{"list": {"elements": elements}}], template=template))
    assert [
        (target["repositories"][0]["packageNames"], target["template"]["labels"])
        for target in imported.targets
    ] == [(["a-web", "b-web"], {"env": "x"}), (["c-web"], {"env": "true"})]


def test_a_matrix_of_clusters_and_a_list_has_a_target_for_each_element(imported: Imported) -> None:
    matrix = {"generators": [{"clusters": {}}, {"list": {"elements": [{"part": "db"}, {"part": "ui"}]}}]}
    template = {"metadata": {"name": "{{name}}-{{part}}"}, "spec": {"source": SOURCE}}
    imported.run("applicationset", application_set([{"matrix": matrix}], template=template))
    assert [target["template"]["downstream"]["packageExpr"] for target in imported.targets] == [
        "target.name + '-db'",
        "target.name + '-ui'",
    ]


@pytest.mark.parametrize(
    ("generator", "reason"),
    [
        ({"git": {"repoURL": "x", "directories": [{"path": "*"}]}}, "does not read folders or files of git"),
        ({"scmProvider": {}}, "has no counterpart"),
        ({"pullRequest": {}}, "a pull request is no target"),
        ({"merge": {}}, "labels of the clusters' Secrets"),
        ({"plugin": {}}, "has no counterpart"),
        ({"unknown": {}}, "has exactly one kind"),
        ({"clusters": {}, "list": {}}, "has exactly one kind"),
        ({}, "has exactly one kind"),
        ({"clusters": {}, "selector": {"matchLabels": {"a": "b"}}}, "`selector` filters"),
        ({"clusters": {"template": {"metadata": {}}}}, "`template` replaces"),
        ({"clusters": {"flatList": True}}, "`flatList`"),
        ({"list": {"elementsYaml": "x"}}, "`elementsYaml` is computed"),
        ({"list": {"elements": [{"other": "x"}]}}, "the element has no name"),
        ({"matrix": {"generators": [{"clusters": {}}, {"clusters": {}}]}}, "not a pair of two"),
        ({"matrix": {"generators": [{"clusters": {}}, {"git": {}}]}}, "does not read folders"),
    ],
)
def test_a_generator_that_is_only_partly_understood_is_left_out(
    imported: Imported, generator: dict[str, Any], reason: str
) -> None:
    """The others stay, so the set selects no more than the definition; alone there is nothing to import."""
    clusters = {"clusters": {"selector": {"matchLabels": {"env": "prod"}}}}
    imported.run("applicationset", application_set([generator, clusters]))
    assert imported.code == 0
    assert len(imported.targets) == 1
    assert "spec.generators[0]" in imported.notes
    assert "left out: " in imported.notes
    assert reason in imported.notes
    imported.run("applicationset", application_set([generator]))
    assert imported.code == 2
    assert imported.sets == []
    assert "no generator can be imported" in imported.notes
    assert reason in imported.notes


@pytest.mark.parametrize(
    ("text", "cel"),
    [
        ("a-{{name}}", "'a-' + target.name"),
        ("{{ metadata.labels.example.com/region }}", "target.labels['example.com/region']"),
        (
            "{{metadata.annotations.a}}{{values.tier}}",
            "target.annotations['a'] + 'tier-' + target.labels['t']",
        ),
        ("it's \\ {{name}}", r"'it\'s \\ ' + target.name"),
    ],
)
def test_texts_become_expressions_that_compile(imported: Imported, text: str, cel: str) -> None:
    clusters = {"values": {"tier": "tier-{{metadata.labels.t}}"}}
    template = {
        "metadata": {"name": "{{name}}", "labels": {"made": text}},
        "spec": {"source": SOURCE},
    }
    imported.run("applicationset", application_set([{"clusters": clusters}], template=template))
    assert imported.targets[0]["template"]["labelExprs"] == [{"key": "made", "valueExpr": cel}]
    compile_expression(cel)


@pytest.mark.parametrize(
    ("placeholder", "parameter"),
    [
        ("{{ .name }}", "name"),
        ("{{.metadata.labels.region}}", "metadata.labels.region"),
        ('{{ index .metadata.labels "example.com/region" }}', "metadata.labels.example.com/region"),
    ],
)
def test_plain_placeholders_of_go_templates_are_parameters(placeholder: str, parameter: str) -> None:
    assert expression(parse(placeholder, lambda name: (name,), is_go=True)) == f"'{parameter}'"


@pytest.mark.parametrize(
    "placeholder",
    ["{{ .name | lower }}", "{{if .a}}b{{end}}", "{{- .name -}}", "{{ normalize .name }}", "{{}}"],
)
def test_what_a_go_template_computes_has_no_counterpart(placeholder: str) -> None:
    with pytest.raises(NoCounterpartError, match="computed by a Go template"):
        parse(placeholder, lambda name: (name,), is_go=True)


def test_what_is_inside_a_secret_is_noted_and_not_guessed(imported: Imported) -> None:
    """A value that refers to itself ends, too."""
    clusters = {"values": {"loop": "{{values.loop}}"}}
    template = {
        "metadata": {"name": "{{name}}", "labels": {"a": "{{server}}", "b": "{{values.loop}}", "c": "kept"}},
        "spec": {"source": SOURCE, "destination": {"namespace": "{{project}}", "server": "{{server}}"}},
    }
    imported.run("applicationset", application_set([{"clusters": clusters}], template=template))
    made = imported.targets[0]["template"]
    assert made.keys() == {"downstream", "labels"}
    assert made["labels"] == {"c": "kept"}
    assert "labels[a]: server is in the content of a Secret" in imported.notes
    assert "labels[b]: there is no parameter values.loop" in imported.notes
    assert "destination.namespace: project is in the content of a Secret" in imported.notes
    assert "stays with Argo CD" in imported.notes


def test_namespace_images_labels_and_annotations_become_functions(imported: Imported) -> None:
    kustomize = {
        "images": ["nginx=example.dev:5000/nginx:1.2", "redis@sha256:ab12"],
        "commonLabels": {"region": "{{metadata.labels.region}}"},
        "commonAnnotations": {"owner": "web"},
        "namePrefix": "x-",
    }
    template = {
        "metadata": {"name": "{{name}}"},
        "spec": {"source": SOURCE | {"kustomize": kustomize}, "destination": {"namespace": "web"}},
    }
    imported.run("applicationset", application_set([{"clusters": {}}], template=template))
    mutators = imported.targets[0]["template"]["pipeline"]["mutators"]
    assert [
        (made["image"].rpartition("/")[2].partition(":")[0], *list(made.values())[1:]) for made in mutators
    ] == [
        ("set-namespace", {"namespace": "web"}),
        ("set-image", {"name": "nginx", "newName": "example.dev:5000/nginx", "newTag": "1.2"}),
        ("set-image", {"name": "redis", "newName": "redis", "digest": "sha256:ab12"}),
        ("set-labels", [{"key": "region", "valueExpr": "target.labels['region']"}]),
        ("set-annotations", {"owner": "web"}),
    ]
    assert "kustomize.namePrefix: has no counterpart" in imported.notes


@pytest.mark.parametrize(
    ("policy", "deletion"),
    [
        ({}, None),
        ({"preserveResourcesOnDeletion": True}, "orphan"),
        ({"applicationsSync": "create-update"}, "orphan"),
        ({"applicationsSync": "sync"}, None),
    ],
)
def test_what_argo_cd_leaves_is_not_deleted(
    imported: Imported, policy: dict[str, Any], deletion: str | None
) -> None:
    imported.run("applicationset", application_set([{"clusters": {}}], syncPolicy=policy))
    assert imported.targets[0]["template"].get("deletionPolicy") == deletion


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        (SOURCE | {"targetRevision": "HEAD"}, "", "names no published revision"),
        (SOURCE | {"path": "envs/{{name}}"}, "", "differs by target"),
        (SOURCE | {"path": "."}, "", "is the whole repository"),
        (SOURCE | {"repoURL": ""}, "", "name the Repository by --upstream-repository"),
        (
            {"repoURL": "https://charts.example.dev", "chart": "web", "targetRevision": "1"},
            "",
            "a Helm chart",
        ),
        (SOURCE | {"path": 7.5, "targetRevision": ["x"]}, "", "must be a text"),
    ],
)
def test_a_source_that_is_no_published_package_is_refused_with_what_to_give(
    imported: Imported, source: dict[str, Any], options: str, reason: str
) -> None:
    template = {"metadata": {"name": "{{name}}"}, "spec": {"source": source}}
    imported.run("applicationset", application_set([{"clusters": {}}], template=template), options=options)
    assert imported.code == 2
    assert imported.sets == []
    assert "document 1: ApplicationSet web: spec.template.spec.source" in imported.notes
    assert reason in imported.notes
    given = "--upstream-repository b --upstream-package web --upstream-revision 2 --repository edge"
    if "targetRevision" not in source or isinstance(source["targetRevision"], str):
        imported.run("applicationset", application_set([{"clusters": {}}], template=template), options=given)
        assert imported.sets[0]["spec"]["upstream"] == {"repo": "b", "package": "web", "revision": 2}
        assert imported.targets[0]["template"]["downstream"]["repo"] == "edge"


def test_all_targets_in_one_package_are_refused(imported: Imported) -> None:
    template = {"metadata": {"name": "web"}, "spec": {"source": SOURCE}}
    imported.run("applicationset", application_set([{"clusters": {}}], template=template))
    assert imported.code == 2
    assert "all its targets would be the one package web" in imported.notes


@pytest.mark.parametrize(
    "spec",
    [
        {"generators": "x"},
        {"generators": ["x"]},
        {"template": []},
        {"template": {"metadata": {"labels": 1}}},
        None,
    ],
)
def test_wrong_types_are_errors_that_name_the_field(imported: Imported, spec: Any) -> None:
    broken = application_set([{"clusters": {}}])
    broken["spec"] = broken["spec"] | spec if spec is not None else "x"
    imported.run("applicationset", broken)
    assert imported.code == 2
    assert "must be a" in imported.notes or "is missing" in imported.notes


def test_of_fleets_targets_the_first_takes_a_cluster(imported: Imported) -> None:
    """What is not to be deployed is excluded from the targets after it, and no target of its own."""
    targets = [
        {"clusterSelector": {"matchLabels": {"env": "dev", "region": "eu"}}},
        {"clusterSelector": {"matchLabels": {"env": "lab"}}, "doNotDeploy": True},
        {"clusterSelector": {}},
    ]
    imported.run("bundle", git_repo(targets), options="--upstream-revision 1")
    selectors = [target["objectSelector"] for target in imported.targets]
    assert [labels_of(selector) for selector in selectors] == [
        [("env", "In", ("dev",)), ("region", "In", ("eu",))],
        [("env", "NotIn", ("dev",)), ("env", "NotIn", ("lab",))],
        [("env", "In", ("dev",)), ("region", "NotIn", ("eu",))],
    ]
    assert {selector["kind"] for selector in selectors} == {"Cluster"}
    assert imported.targets[0]["template"]["downstream"]["packageExpr"] == "target.name + '-web'"


def labels_of(selector: dict[str, Any]) -> list[tuple[str, str, tuple[str, ...]]]:
    made = [(key, "In", (value,)) for key, value in selector.get("matchLabels", {}).items()]
    expressions = selector.get("matchExpressions", [])
    return made + [(row["key"], row["operator"], tuple(row.get("values", ()))) for row in expressions]


def test_a_group_needs_its_object(imported: Imported) -> None:
    """Without it that target is left out, and those after it: Fleet would have asked it first."""
    targets = [
        {"clusterSelector": {"matchLabels": {"env": "dev"}}},
        {"clusterGroup": "big"},
        {"clusterSelector": {}},
    ]
    imported.run("bundle", git_repo(targets), options="--upstream-revision 1")
    assert len(imported.targets) == 1
    assert "spec.targets[1]: left out, and all targets after it" in imported.notes
    group = {
        "apiVersion": "fleet.cattle.io/v1alpha1",
        "kind": "ClusterGroup",
        "metadata": {"name": "big", "namespace": "fleet-default"},
        "spec": {"selector": {"matchLabels": {"size": "big"}}},
    }
    imported.run("bundle", git_repo(targets), group, options="--upstream-revision 1")
    assert len(imported.targets) == 3
    assert imported.targets[1]["objectSelector"]["matchLabels"] == {"size": "big"}


@pytest.mark.parametrize(
    ("targets", "left"),
    [
        ([{"clusterName": "a"}, {"clusterName": "b"}], 2),
        ([{"clusterName": "a"}, {"clusterName": "a"}], 1),
        ([{"clusterName": "a"}, {"clusterSelector": {}}], 1),
        ([{"clusterSelector": {"matchLabels": {"a": "b"}}}, {"clusterName": "a"}], 2),
        ([{"clusterSelector": {"matchLabels": {"a": "b"}}}, {"clusterGroupSelector": {}}], 1),
        ([{"clusterSelector": {"matchLabels": {"a": "b"}}}, {"name": "none"}], 1),
    ],
)
def test_clusters_by_name(imported: Imported, targets: list[Any], left: int) -> None:
    """A selector cannot exclude a name: then the later target is left out."""
    imported.run("bundle", git_repo(targets), options="--upstream-revision 1")
    assert len(imported.targets) == left


def test_each_path_is_a_set_and_the_rest_is_noted(imported: Imported) -> None:
    targets = [{"clusterSelector": {}, "helm": {"values": {"a": 1}}, "namespace": "web"}]
    definition = git_repo(targets, paths=["apps/web", "db", "x/*"], dependsOn=[{"name": "y"}], paused=True)
    imported.run("bundle", definition, options="--upstream-revision 4")
    assert [made["metadata"]["name"] for made in imported.sets] == ["edge-apps-web", "edge-db"]
    assert [made["spec"]["upstream"]["package"] for made in imported.sets] == ["apps/web", "db"]
    assert imported.targets[0]["template"]["pipeline"]["mutators"][0]["configMap"] == {"namespace": "web"}
    for words in ("targets[0].helm: has no", "spec.dependsOn: has no", "pvbus hold", "paths[2]: left out"):
        assert words in imported.notes


def test_a_bundle_goes_no_further_than_its_restrictions(imported: Imported) -> None:
    definition = git_repo(
        [{"clusterSelector": {"matchLabels": {"env": "prod"}}}],
        targetRestrictions=[{"clusterSelector": {"matchLabels": {"region": "eu"}}}],
    )
    definition["kind"] = "Bundle"
    imported.run("bundle", definition, options="--upstream-revision 1 --upstream-package web")
    (target,) = imported.targets
    assert target["objectSelector"]["matchLabels"] == {"env": "prod", "region": "eu"}


def test_a_file_without_such_an_object_is_refused(imported: Imported) -> None:
    imported.run("applicationset", git_repo([]))
    assert imported.code == 2
    assert "there is no ApplicationSet of argoproj.io in the files" in imported.notes


REQUIREMENTS = st.builds(
    Requirement,
    st.sampled_from("ab"),
    st.sampled_from(["In", "NotIn"]),
    st.sets(st.sampled_from("xyz"), min_size=1).map(frozenset),
) | st.builds(Requirement, st.sampled_from("ab"), st.sampled_from(["Exists", "DoesNotExist"]))
SELECTIONS = st.lists(REQUIREMENTS, max_size=3).map(lambda rows: Selection(requirements=tuple(rows)))
LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xyzw"))


@given(st.lists(SELECTIONS, max_size=4), LABELS)
def test_disjoint_selections_select_the_same_once(
    selections: list[Selection], labels: dict[str, str]
) -> None:
    found = sum(matches(piece.requirements, labels) for piece in disjoint(selections))
    assert found == any(matches(selection.requirements, labels) for selection in selections)
