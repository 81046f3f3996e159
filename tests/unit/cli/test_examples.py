"""The example is the same on every machine, and leaves alone what is there."""

from pathlib import Path

import pygit2

from pvbus.cli.validate import problems_of
from pvbus.core.variants.expressions import expressions_of
from pvbus.examples import fleet


def test_two_machines_get_the_same_commit(tmp_path: Path) -> None:
    """The blueprint's commit is a function of its content alone, and it is what the tag names."""
    commits = set()
    for name in ("a", "b"):
        fleet.make(tmp_path / name)
        repository = pygit2.Repository(str(tmp_path / name / "blueprints.git"))
        head = repository.references["refs/heads/main"].target
        assert repository.references[f"refs/tags/{fleet.REVISION_TAG}"].target == head
        commits.add(str(head))
    assert len(commits) == 1


def test_what_a_person_did_stays(tmp_path: Path) -> None:
    """A second call changes neither the blueprints nor the regions' repositories."""
    first = fleet.make(tmp_path)
    repository = pygit2.Repository(str(tmp_path / "blueprints.git"))
    author = pygit2.Signature("A Person", "person@example.com", 1, 0)
    tree = repository.references["refs/heads/main"].peel(pygit2.Commit).tree.id
    mine = repository.create_commit(
        "refs/heads/main", author, author, "mine", tree, [repository.references["refs/heads/main"].target]
    )
    assert [manifest.object for manifest in fleet.make(tmp_path)] == [manifest.object for manifest in first]
    assert repository.references["refs/heads/main"].target == mine


def test_its_manifests_are_valid(tmp_path: Path) -> None:
    """Every object passes `validate`, and 200 clusters carry the label that the set asks for."""
    manifests = fleet.make(tmp_path)
    assert list(problems_of(manifests)) == []
    clusters = [m.object for m in manifests if m.object["kind"] == "Cluster"]
    production = [c for c in clusters if c["metadata"]["labels"]["stage"] == "production"]
    assert (len(clusters), len(production)) == (204, 200)
    assert len({cluster["spec"]["serviceCidr"] for cluster in clusters}) == 204


def test_expressions_are_found_wherever_they_are() -> None:
    """Every field that ends with Expr, and the list of removeKeyExprs, each with its path. A label's own key
    is no field, whatever it ends with."""
    template = {
        "labels": {"costExpr": "no expression"},
        "downstream": {"repoExpr": "a", "package": "plain"},
        "labelExprs": [{"key": "k", "valueExpr": "b"}],
        "packageContext": {"removeKeyExprs": ["c", "d"]},
        "pipeline": {"mutators": [{"configMapExprs": [{"keyExpr": "e", "value": "v"}]}]},
    }
    assert dict(expressions_of(template, "template")) == {
        "template.downstream.repoExpr": "a",
        "template.labelExprs[0].valueExpr": "b",
        "template.packageContext.removeKeyExprs[0]": "c",
        "template.packageContext.removeKeyExprs[1]": "d",
        "template.pipeline.mutators[0].configMapExprs[0].keyExpr": "e",
    }


def test_a_package_that_is_deleted_leaves_nothing_to_deploy(tmp_path: Path) -> None:
    """Every repository of the example removes a package's folder with its last revision."""
    repositories = [each.object for each in fleet.make(tmp_path) if each.object["kind"] == "Repository"]
    assert len(repositories) == 5
    for each in repositories:
        assert each["metadata"]["annotations"]["pvbus.dev/remove-last-revision"] == "true"
