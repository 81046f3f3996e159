"""`pvbus validate`, as an editor or a pipeline would call it."""

from pathlib import Path

import msgspec
import pytest

from pvbus.cli.commands import COMMANDS
from pvbus.cli.main import run
from tests.e2e.cli.command import pvbus

HEAD = "apiVersion: config.porch.kpt.dev/v1alpha2\nkind: PackageVariantSet\nmetadata: {name: s}\nspec:\n"
UP = "  upstream: {repo: r, package: p, revision: 1}\n"
TARGETS = (
    '  targets:\n  - repositories: [{name: edge}]\n    template:\n      downstream: {packageExpr: "%s"}\n'
)
SELECTED = (
    "  targets:\n  - objectSelector: {apiVersion: example.org/v1, kind: Site, matchLabels: {env: prod}}\n"
    '    template:\n      downstream: {repo: edge, packageExpr: "%s"}\n'
)


@pytest.mark.parametrize(
    ("reason", "text", "field", "words"),
    [
        ("no upstream", HEAD + TARGETS % "target.package", "spec.upstream", ""),
        (
            "unknown field",
            HEAD + UP + "  other: 1\n" + TARGETS % "target.package",
            "spec.other",
            "unknown field",
        ),
        ("wrong type", HEAD + UP + "  targets: none\n", "spec.targets", "must be of type array"),
        ("syntax", HEAD + UP + TARGETS % "target.", "downstream.packageExpr", "ERROR: "),
        (
            "a sixth variable",
            HEAD + UP + TARGETS % "cluster.name",
            "downstream.packageExpr",
            "undeclared reference",
        ),
        (
            "a field that no object can have",
            HEAD + UP + SELECTED % "target.lables['tier']",
            "spec.targets[0].template.downstream.packageExpr",
            "target has no field lables: it has name, namespace, labels and annotations",
        ),
        ("a version nobody serves", HEAD.replace("v1alpha2", "v9") + UP, "apiVersion", "v1alpha2"),
    ],
)
def test_each_problem_has_file_document_and_field(
    tmp_path: Path, reason: str, text: str, field: str, words: str
) -> None:
    """What is wrong is found without a cluster and told with its place; exit code 1."""
    (tmp_path / "set.yaml").write_text("---\n" + text)
    done = pvbus("validate", "set.yaml", "-o", "json", cwd=tmp_path)
    assert done.code == 1, reason
    problems = msgspec.json.decode(done.out)["problems"]
    assert any(field in p["field"] + p["message"] and words in p["message"] for p in problems), problems
    assert {(p["file"], p["object"]) for p in problems} == {("set.yaml", "PackageVariantSet s")}


def test_two_targets_of_one_downstream_are_named(tmp_path: Path) -> None:
    """Both places, and what they share; a mistake in an expression is told beside it."""
    listed = "  - repositories: [{name: edge}]\n"
    (tmp_path / "set.yaml").write_text(HEAD + UP + "  targets:\n" + listed * 2)
    done = pvbus("validate", "set.yaml", cwd=tmp_path)
    assert (done.code, done.out) == (
        1,
        "set.yaml, document 1: PackageVariantSet s: spec.targets[0].repositories[0]: "
        'and spec.targets[1].repositories[0] have the same downstream "edge/p"\n',
    )
    wrong = TARGETS.partition("targets:\n")[2] % "target."
    (tmp_path / "set.yaml").write_text(HEAD + UP + "  targets:\n" + listed * 2 + wrong)
    assert "ERROR: " in pvbus("validate", "set.yaml", cwd=tmp_path).out


def test_what_is_right_passes(tmp_path: Path) -> None:
    """A good set is exit code 0, and the text says how much was looked at."""
    (tmp_path / "set.yaml").write_text(HEAD + UP + TARGETS % "target.package")
    done = pvbus("validate", "set.yaml", cwd=tmp_path)
    assert (done.code, done.out) == (0, "1 object, no problems\n")


def test_a_second_opinion_is_a_warning(tmp_path: Path) -> None:
    """Where cel-python reads an expression differently the set is still right, and exit code is 0."""
    (tmp_path / "set.yaml").write_text(HEAD + UP + TARGETS % "[target.package,][0]")
    done = pvbus("validate", "set.yaml", cwd=tmp_path)
    where = "set.yaml, document 1: PackageVariantSet s: spec.targets[0].template.downstream.packageExpr: "
    words = "cel-python does not parse this expression, line 1, column 17: other CEL implementations may "
    assert (done.code, done.out) == (
        0,
        f"warning: {where}{words}refuse it\n1 object, no problems, 1 warning\n",
    )
    document = msgspec.json.decode(pvbus("validate", "set.yaml", "-o", "json", cwd=tmp_path).out)
    assert document["problems"] == []
    assert [warning["object"] for warning in document["warnings"]] == ["PackageVariantSet s"]


def test_own_definitions_judge_own_kinds(tmp_path: Path) -> None:
    """Inventory objects are checked by the definition beside them."""
    from pvbus.examples import fleet

    folder = Path(fleet.__file__).parent / "fleet_files" / "manifests"
    (tmp_path / "bad.yaml").write_text(
        "apiVersion: fleet.example.dev/v1\nkind: Cluster\nmetadata: {name: c}\nspec: {nodes: 0}\n"
    )
    done = pvbus("validate", folder, "bad.yaml", cwd=tmp_path)
    assert done.code == 1
    assert "bad.yaml, document 1: Cluster c: spec.nodes: " in done.out


def test_a_missing_file_is_bad_usage(tmp_path: Path) -> None:
    """Exit code 2, and the name of what is not there."""
    done = pvbus("validate", "nothing.yaml", cwd=tmp_path)
    assert done.code == 2
    assert "nothing.yaml: no such file or folder" in done.err


def test_help_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command's help has an example of itself."""
    for name in COMMANDS:
        assert run([name, "--help"]) == 0
        assert f"  pvbus {name}" in capsys.readouterr().out, name
