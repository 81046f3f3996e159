"""What `plan` says: differences, reasons, exit codes, what it lacks, and that nothing makes it crash."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from pvbus.adapters.memory.writes import Write
from pvbus.cli.differences import differences
from pvbus.cli.live import Export, cleaned, injected_kinds, selected_kinds
from pvbus.cli.plan import exit_code, plan
from pvbus.cli.plandocument import Document, reason_of
from pvbus.cli.planinput import PlanInput, admitted, deletions, read_input, write_export
from pvbus.cli.planpreview import Request, Settings, merged, plan_of_files
from pvbus.cli.planscreen import screen_lines
from pvbus.cli.plantext import plan_lines
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.core.errors import UsageError
from pvbus.core.kernel.keys import EDITED_BY, PROPOSED_CONTENT
from pvbus.core.variants.render.controller import RenderController
from pvbus.ports.cluster import Kind
from pvbus.runtime.process.settings import UnrollConfig

HOW = Settings(UnrollConfig().limits, FunctionRegistry({}))
KPTFILE = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: web\n"
FILES = """\
apiVersion: config.porch.kpt.dev/v1alpha1
kind: Repository
metadata: {name: blue, namespace: default}
spec: {type: git, git: {repo: /nowhere/blue.git}}
---
apiVersion: config.porch.kpt.dev/v1alpha1
kind: Repository
metadata: {name: edge, namespace: default}
spec: {type: git, deployment: true, git: {repo: /nowhere/edge.git}}
---
apiVersion: porch.kpt.dev/v1alpha1
kind: PackageRevision
metadata: {name: blue.web.v1, namespace: default}
spec: {repository: blue, packageName: web, workspaceName: v1, revision: 1, lifecycle: Published}
---
apiVersion: porch.kpt.dev/v1alpha1
kind: PackageRevisionResources
metadata: {name: blue.web.v1, namespace: default}
spec:
  repository: blue
  packageName: web
  workspaceName: v1
  resources:
    Kptfile: |
      apiVersion: kpt.dev/v1
      kind: Kptfile
      metadata:
        name: web
"""
VARIANT = """\
apiVersion: config.porch.kpt.dev/v1alpha1
kind: PackageVariant
metadata: {name: own, namespace: default}
spec:
  upstream: {repo: blue, package: web, revision: 1}
  downstream: {repo: edge, package: own}
"""
SET_THAT_STALLS = """\
apiVersion: config.porch.kpt.dev/v1alpha2
kind: PackageVariantSet
metadata: {name: own, namespace: default}
spec:
  upstream: {repo: blue, package: web, revision: 1}
  targets:
  - repositories: [{name: edge, packageNames: [own]}]
    template: {labelExprs: [{key: region, valueExpr: "target.lables.region"}]}
"""
LOCKED = ("repo", "directory", "ref", "commit")
FUNCTION = "  pipeline: {mutators: [{name: one, image: set-labels, configMap: {region: north}}]}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "files.yaml").write_text(FILES)
    (tmp_path / "variant.yaml").write_text(VARIANT)
    return tmp_path


def planned(*paths: Path, **options: Any) -> Document:
    return plan_of(read_input(paths), **options)


def plan_of(given: PlanInput, **options: Any) -> Document:
    return plan_of_files(Request(given, HOW, **options)).document


def actions(document: Document) -> list[tuple[str, str, str]]:
    return [(action["verb"], action["kind"], action["name"]) for action in document["actions"]]


def without_versions(found: list[Document]) -> list[Document]:
    """resourceVersions follow the order in which objects were read."""
    plain: list[Document] = json.loads(json.dumps(found))
    for action in plain:
        action["object"]["metadata"].pop("resourceVersion")
    return plain


def settled_export(document: Document) -> Export:
    """The system as it is after a plan was carried out."""
    objects = [obj for obj in document["objects"] if obj["kind"] != "Namespace"]
    return Export(server="pvbus", items=msgspec.json.decode(msgspec.json.encode(objects)))


# ---------------------------------------------------------------- differences


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"a": [1, 2]}, {"a": (1, 2)}, []),
        ({"a": [{"b": 1}]}, {"a": ({"b": 1},)}, []),
        ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}, [("a[1].b", 2, 3)]),
        ({"a": [1]}, {"a": [1, 2]}, [("a", [1], [1, 2])]),
        ({"a": {}}, {}, []),
        ({"a": None}, {"a": []}, []),
        ({"a": 0}, {}, [("a", 0, None)]),
        ({"a": 0}, {"a": False}, [("a", 0, False)]),
        ({"a": {"b": "x" * 500}}, {"a": {"b": "y"}}, [("a.b", "x" * 500, "y")]),
        (None, {"a": 1}, [("", None, {"a": 1})]),
    ],
)
def test_differences_compare_values(before: Any, after: Any, found: list[Any]) -> None:
    """Equal lists are equal whatever holds them; what differs is named with both values in full."""
    assert [(d["path"], d["before"], d["after"]) for d in differences(before, after)] == found


def test_long_values_are_cut_for_people_only(folder: Path) -> None:
    """A terminal shows the beginning and says so; the document has everything."""
    set_text = (
        "apiVersion: config.porch.kpt.dev/v1alpha2\nkind: PackageVariantSet\n"
        "metadata: {name: s, namespace: default}\n"
        "spec:\n  upstream: {repo: blue, package: web, revision: 1}\n  targets:\n"
        "  - repositories: [{name: edge, packageNames: [p]}]\n    template: {annotations: {a: %s}}\n"
    )
    (folder / "set.yaml").write_text(set_text % "short")
    before = settled_export(planned(folder))
    (folder / "set.yaml").write_text(set_text % ("n" * 300))
    document = plan_of(PlanInput((before,), tuple(read_input([folder / "set.yaml"]).manifests)))
    text = "\n".join(plan_lines(document))
    assert "n" * 300 not in text
    assert "-o json has them in full" in text
    assert "n" * 300 in json.dumps(document)


# ---------------------------------------------------------------- proposals


@pytest.mark.parametrize("by_promotion", [True, False], ids=["promotion", "a person"])
def test_a_proposal_that_needs_a_change_is_taken_back_by_who_made_it(
    folder: Path, *, by_promotion: bool
) -> None:
    """Promotion does so by itself, and the draft gets the change. A person has to reject their own."""
    before = settled_export(planned(folder))
    draft = next(
        obj for obj in before.items if "lifecycle" in obj["spec"] and "own" in obj["metadata"]["name"]
    )
    draft["spec"]["lifecycle"] = "Proposed"
    draft["metadata"]["annotations"] = {PROPOSED_CONTENT: "digest"} if by_promotion else {}
    (folder / "variant.yaml").write_text(VARIANT + FUNCTION)
    document = plan_of(PlanInput((before,), tuple(read_input([folder / "variant.yaml"]).manifests)))
    reasons = [action["reason"] for action in document["actions"] if action["kind"] == "PackageRevision"]
    if by_promotion:
        assert document["troubles"] == []
        assert "promotion takes the proposal of PackageVariant own back" in reasons[0]
        assert "region: north" in document["packages"]["default/edge.own.packagevariant-1"]["Kptfile"]
    else:
        assert reasons == []
        assert "is Proposed, but needs a change: reject it" in " ".join(document["troubles"])


# ---------------------------------------------------------------- lacks


def test_missing_upstream_is_an_error(folder: Path) -> None:
    """Without the upstream's revision the plan names it and who follows it, and never says `no changes`."""
    (folder / "files.yaml").write_text(FILES.split("---\napiVersion: porch")[0])
    document = planned(folder)
    assert exit_code(document, check=False) == 1
    (error,) = document["errors"]
    assert "package web in repository blue, revision 1" in error
    assert "PackageVariant default/own" in error
    assert "pvbus export" in error
    assert "no changes" not in "\n".join(plan_lines(document))


def test_a_plan_of_a_set_that_stalls_never_says_no_changes(folder: Path) -> None:
    """An expression that reads a field that no object has writes nothing, and that is no good end."""
    (folder / "variant.yaml").write_text(SET_THAT_STALLS)
    for lines in (plan_lines, screen_lines):
        text = "\n".join(lines(planned(folder)))
        assert "nothing to write, 1 stalled, see below." in text
        assert "no changes" not in text


def test_missing_files_are_an_error(folder: Path) -> None:
    """A revision without its files cannot be planned from."""
    (folder / "files.yaml").write_text(FILES.rpartition("---\n")[0])
    document = planned(folder)
    assert any(
        "PackageRevisionResources of PackageRevision default/blue.web.v1" in e for e in document["errors"]
    )


def test_an_export_that_does_not_know_a_kind_says_so(folder: Path) -> None:
    """Changes that select a kind nobody asked for when the export was taken need another export."""
    before = settled_export(planned(folder))
    (folder / "set.yaml").write_text(
        "apiVersion: config.porch.kpt.dev/v1alpha2\nkind: PackageVariantSet\n"
        "metadata: {name: s, namespace: default}\n"
        "spec:\n  upstream: {repo: blue, package: web, revision: 1}\n  targets:\n"
        "  - objectSelector: {apiVersion: x.org/v1, kind: Site}\n"
        "    template: {downstream: {repo: edge, packageExpr: target.name}}\n"
    )
    given = PlanInput((before,), tuple(read_input([folder / "set.yaml"]).manifests))
    assert any("says nothing about Site (x.org)" in error for error in plan_of(given)["errors"])


# ---------------------------------------------------------------- exit codes


def test_exit_codes_of_check(folder: Path) -> None:
    """3 with changes, 0 when they were carried out, 1 for what is stalled; without --check always 0."""
    document = planned(folder)
    assert (exit_code(document, check=True), exit_code(document, check=False)) == (3, 0)
    after = settled_export(document)
    again = plan_of(PlanInput((after,), ()))
    assert actions(again) == []
    assert exit_code(again, check=True) == 0
    (folder / "variant.yaml").write_text(VARIANT + "  pipeline: {mutators: [{name: a.b, image: x}]}\n")
    stalled = planned(folder)
    assert (exit_code(stalled, check=True), exit_code(stalled, check=False)) == (1, 0)


def test_a_held_removal_is_exit_code_1(folder: Path) -> None:
    """What the guard holds is no write, and no success either."""
    targets = ", ".join(f"p{number}" for number in range(12))
    wide = (
        "apiVersion: config.porch.kpt.dev/v1alpha2\nkind: PackageVariantSet\n"
        "metadata: {name: s, namespace: default}\n"
        "spec:\n  upstream: {repo: blue, package: web, revision: 1}\n  targets:\n"
        "  - repositories: [{name: edge, packageNames: [%s]}]\n"
    )
    (folder / "variant.yaml").unlink()
    (folder / "set.yaml").write_text(wide % targets)
    before = settled_export(planned(folder))
    (folder / "set.yaml").write_text(wide % "p0")
    document = plan_of(PlanInput((before,), tuple(read_input([folder / "set.yaml"]).manifests)))
    assert actions(document) == []
    assert len(document["held"]) == 11
    assert exit_code(document, check=True) == 1
    said = "\n".join(plan_lines(document))
    assert "11 held" in said
    assert "confirm-deletion=" not in said + json.dumps(document), "the token of a preview confirms nothing"
    confirming = (wide % "p0").replace("name: s,", "name: s, annotations: {pvbus.dev/confirm-deletion: abc},")
    (folder / "set.yaml").write_text(confirming)
    document = plan_of(PlanInput((before,), tuple(read_input([folder / "set.yaml"]).manifests)))
    assert any("cannot be previewed" in note for note in document["notes"])


def test_a_defect_is_an_error_in_the_document(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that fails by a bug of ours is told with its key, and ends the command with 1."""

    def broken(self: Any, number: int, key: str, now: float) -> Iterator[Any]:
        raise ZeroDivisionError(key)
        yield

    monkeypatch.setattr(RenderController, "reconcile", broken)
    (folder / "set.yaml").write_text(
        "apiVersion: config.porch.kpt.dev/v1alpha2\nkind: PackageVariantSet\n"
        "metadata: {name: s, namespace: default}\n"
        "spec:\n  upstream: {repo: blue, package: web, revision: 1}\n  targets:\n"
        "  - repositories: [{name: edge, packageNames: [p]}]\n"
    )
    document = planned(folder)
    assert any(
        "render failed to decide on default/s-edge-p (ZeroDivisionError" in e for e in document["errors"]
    )
    assert exit_code(document, check=False) == 1


# ---------------------------------------------------------------- changes, exports


def test_export_is_the_live_system(folder: Path) -> None:
    """An export that went through a file gives the same plan, and it is one JSON document."""
    before = settled_export(planned(folder))
    (folder / "live.json").write_text(write_export(before))
    assert json.loads((folder / "live.json").read_text())["kind"] == "ExportList"
    (folder / "variant.yaml").write_text(VARIANT + FUNCTION)
    direct = plan_of(PlanInput((before,), tuple(read_input([folder / "variant.yaml"]).manifests)))
    through = planned(folder / "live.json", folder / "variant.yaml")
    assert without_versions(direct["actions"]) == without_versions(through["actions"])
    assert actions(through) == [("updateResources", "PackageRevisionResources", "edge.own.packagevariant-1")]
    (update,) = through["actions"]
    assert update["files"] == ["Kptfile"]


def test_diffs_show_package_files(folder: Path) -> None:
    """--render compares a draft with what it was, line by line."""
    before = settled_export(planned(folder))
    (folder / "variant.yaml").write_text(VARIANT + FUNCTION)
    given = PlanInput((before,), tuple(read_input([folder / "variant.yaml"]).manifests))
    diff = plan_of(given, with_diffs=True)["diffs"]["default/edge.own.packagevariant-1"]
    assert "--- a/Kptfile\n+++ b/Kptfile\n" in diff
    assert "region: north\n" in diff
    assert all(line[:1] in "+-@ " for line in diff.splitlines())


def test_diffs_from_files_alone_show_what_pipelines_make(folder: Path) -> None:
    """Without a live system --render runs the pipelines itself, and a function nobody has is an error."""
    (folder / "variant.yaml").write_text(VARIANT + FUNCTION)
    diff = planned(folder, with_diffs=True)["diffs"]["default/edge.own.packagevariant-1"]
    assert "+  - type: Rendered\n" in diff
    (folder / "variant.yaml").write_text(VARIANT + FUNCTION.replace("set-labels", "no-such-function"))
    document = planned(folder, with_diffs=True)
    assert any("no-such-function" in error for error in document["errors"])


def test_the_packages_of_a_fleet_are_those_of_each_variant_alone(folder: Path) -> None:
    """What is made of a package is remembered for those that differ in their name alone."""
    context = "    template: {packageContext: {data: {tier: gold}}}\n"
    the_set = SET_THAT_STALLS[: SET_THAT_STALLS.index("    template:")] + context
    items = list(yaml.safe_load_all(f"{FILES}    {FUNCTION}"))
    items[2]["status"] = {"selfLock": {"type": "git", "git": dict.fromkeys(LOCKED, "v1")}}
    export = Export(server="pvbus", items=items)

    def packages(*names: str) -> dict[str, dict[str, str]]:
        (folder / "set.yaml").write_text(the_set.replace("[own]", f"[{', '.join(names)}]"))
        document = plan_of(PlanInput((export,), read_input([folder / "set.yaml"]).manifests))
        assert not document["troubles"]
        return {key: files for key, files in document["packages"].items() if "/edge." in key}

    fleet = packages(*(f"site-{number:02}" for number in range(6)))
    (alone,) = packages("zone-a-1").values()
    assert "tier: gold" in alone["package-context.yaml"]
    assert "region: north" in alone["Kptfile"] + alone["package-context.yaml"]
    assert fleet == {
        f"default/edge.site-{number:02}.packagevariant-1": {
            path: text.replace("zone-a-1", f"site-{number:02}") for path, text in alone.items()
        }
        for number in range(6)
    }


def test_objects_of_one_name_in_two_namespaces_are_planned_and_rendered(folder: Path) -> None:
    """Each draft has its own diff, and a function that nobody has is named for each."""
    broken = VARIANT + FUNCTION.replace("set-labels", "no-such-function")
    both = [(FILES + "---\n" + broken).replace("namespace: default", f"namespace: {name}") for name in "ab"]
    (folder / "files.yaml").write_text("---\n".join(both))
    document = planned(folder / "files.yaml", with_diffs=True)
    drafts = [f"{name}/edge.own.packagevariant-1" for name in "ab"]
    assert sorted(document["diffs"]) == drafts
    for draft in drafts:
        assert any(draft in error and "no-such-function" in error for error in document["errors"])


def in_namespace(export: Export, name: str) -> Export:
    items = msgspec.json.encode(export.items).replace(b'"default"', f'"{name}"'.encode())
    return Export(server="pvbus", namespace=name, items=msgspec.json.decode(items))


def test_exports_of_two_namespaces_are_one_of_both(folder: Path) -> None:
    """What has one name in both is changed where the change is; a third namespace was not read."""
    before = settled_export(planned(folder))
    exports = tuple(in_namespace(before, name) for name in "ab")
    assert merged(exports).namespace == "a,b"
    assert merged((*exports, before)).namespace == ""
    assert len(merged(exports).items) == 2 * len(before.items)

    def plan_in(namespace: str, *given: Export) -> Document:
        text = (VARIANT + FUNCTION).replace("namespace: default", f"namespace: {namespace}")
        (folder / "variant.yaml").write_text(text)
        return plan_of(PlanInput(given, tuple(read_input([folder / "variant.yaml"]).manifests)))

    document = plan_in("b", *exports)
    assert [action["namespace"] for action in document["actions"]] == ["b"]
    assert "errors" not in document
    for namespace, given in (("c", exports), ("b", exports[:1])):
        (error,) = plan_in(namespace, *given)["errors"]
        assert (
            f"objects in namespace {namespace}, and the export has only {'a,b'[: len(given) * 2 - 1]}"
            in error
        )


def test_exports_that_do_not_belong_together_are_refused(folder: Path) -> None:
    before = settled_export(planned(folder))
    other = Export(server="porch", items=before.items)
    with pytest.raises(UsageError, match="package servers pvbus and porch"):
        merged((before, other))
    (item,) = (obj for obj in before.items if obj["kind"] == "PackageVariant")
    newer = {**item, "apiVersion": "config.porch.kpt.dev/v1alpha2"}
    with pytest.raises(UsageError, match="different versions of PackageVariant default/own"):
        merged((before, Export(server="pvbus", items=[newer])))


def test_deletion(folder: Path) -> None:
    """--delete takes an object away: finalizers hold, packages go, and what is not there is named."""
    before = settled_export(planned(folder))
    document = plan_of(PlanInput((before,), ()), delete=["packagevariant/default/own"])
    assert actions(document) == [
        ("delete", "PackageRevision", "edge.own.packagevariant-1"),
        ("update", "PackageVariant", "own"),
    ]
    with pytest.raises(UsageError, match="there is no cluster/default/own in the live system or the files"):
        deletions(["cluster/default/own"], before.items)
    with pytest.raises(UsageError, match="is no KIND/NAMESPACE/NAME"):
        deletions(["own"], before.items)


def test_a_deletion_names_what_people_edited_and_leaves_it(folder: Path) -> None:
    before = settled_export(planned(folder))
    draft = next(item for item in before.items if item["metadata"]["name"] == "edge.own.packagevariant-1")
    draft["metadata"].setdefault("annotations", {})[EDITED_BY] = "ann"
    document = plan_of(PlanInput((before,), ()), delete=["packagevariant/default/own"])
    assert [(action["verb"], action["kind"], action["reason"]) for action in document["actions"]] == [
        (
            "update",
            "PackageRevision",
            "kept without an owner, as ann edited it: PackageVariant own goes",
        ),
        ("update", "PackageVariant", "its packages are gone or released"),
    ]


def test_secrets_and_managed_fields_are_left_out() -> None:
    """An export can be given to CI: it holds no Secret data, and nothing that only a server needs."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "s",
            "managedFields": [{}],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"},
        },
        "data": {"password": "eA=="},
        "stringData": {"password": "x"},
    }
    assert cleaned(secret) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "annotations": {"a": "b"}},
    }


def test_kinds_that_a_plan_needs() -> None:
    """Sets name the kinds of their targets, packages those that are injected."""
    selector = {"apiVersion": "example.org/v1", "kind": "Cluster"}
    one = {
        "apiVersion": "config.porch.kpt.dev/v1alpha2",
        "kind": "PackageVariantSet",
        "metadata": {"name": "s"},
        "spec": {"targets": [{"objectSelector": selector}, {"repositories": []}]},
    }
    assert selected_kinds([one]) == [Kind("example.org", "Cluster")]
    point = (
        "apiVersion: x.org/v1\nkind: Site\nmetadata:\n  name: s\n  annotations:\n"
        "    kpt.dev/config-injection: required\n"
    )
    files = {"spec": {"resources": {"Kptfile": KPTFILE, "site.yaml": point}}}
    assert injected_kinds([files]) == [Kind("x.org", "Site")]


# ---------------------------------------------------------------- bad input


BAD = {
    "two documents of one object": VARIANT + "---\n" + VARIANT,
    "a label that is a number": VARIANT.replace("name: own,", "name: own, labels: {a: 1},"),
    "owners that are a text": VARIANT.replace("name: own,", "name: own, ownerReferences: x,"),
    "a revision's spec that is a text": (
        "apiVersion: porch.kpt.dev/v1alpha1\nkind: PackageRevision\nmetadata: {name: r}\nspec: x\n"
    ),
    "a revision of a list": (
        "apiVersion: porch.kpt.dev/v1alpha1\nkind: PackageRevision\nmetadata: {name: r}\n"
        "spec: {repository: [x]}\n"
    ),
    "a spec that is an empty list": (
        "apiVersion: porch.kpt.dev/v1alpha1\nkind: PackageRevision\nmetadata: {name: r}\nspec: []\n"
    ),
    "a name that is none": VARIANT.replace("name: own,", 'name: "é|/",'),
    "files that are no object": (
        "apiVersion: porch.kpt.dev/v1alpha1\nkind: PackageRevisionResources\nmetadata: {name: r}\nspec: [1]\n"
    ),
    "files that are a list": (
        "apiVersion: porch.kpt.dev/v1alpha1\nkind: PackageRevisionResources\nmetadata: {name: r}\n"
        "spec: {resources: [a]}\n"
    ),
    "a definition without names": (
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: x}\n"
        "spec: {group: x}\n"
    ),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_bad_objects_are_refused_with_their_place(folder: Path, text: str) -> None:
    """What no API server takes is an error with file and document, and nothing is planned."""
    (folder / "variant.yaml").write_text(text)
    document = planned(folder)
    assert document["actions"] == []
    assert all("variant.yaml, document" in error for error in document["errors"])
    assert exit_code(document, check=False) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "not valid YAML"),
        ("- x", "is no object"),
        ("kind: X\n", "has no apiVersion"),
        ("\x00", "YAML"),
        (VARIANT.replace("name: own,", "name: own, labels: [a],"), "metadata.labels is no mapping"),
    ],
)
def test_broken_files_are_named(folder: Path, text: str, says: str) -> None:
    """A file that cannot be read is bad usage, with its name."""
    (folder / "variant.yaml").write_text(text)
    with pytest.raises(UsageError, match=says):
        planned(folder)


def test_a_damaged_export_is_named(folder: Path) -> None:
    """Half an export says what to do."""
    text = write_export(settled_export(planned(folder)))
    (folder / "live.json").write_text(text[: len(text) // 2])
    with pytest.raises(UsageError, match=r"live\.json: this export is damaged"):
        planned(folder / "live.json")


def mutated(value: Any, choice: random.Random) -> Any:
    """Put something else somewhere into an object."""
    junk: list[Any] = [None, 7, -1, True, "", "x" * 80, "é|/\n", [], {}, [None], {"a": None}, [[]], 1.5]
    if isinstance(value, dict) and value and choice.random() < 0.8:
        key = choice.choice(list(value))
        return {**value, key: mutated(value[key], choice)}
    if isinstance(value, list) and value and choice.random() < 0.8:
        number = choice.randrange(len(value))
        return [mutated(item, choice) if n == number else item for n, item in enumerate(value)]
    return choice.choice(junk)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_makes_it_crash(folder: Path, seed: int) -> None:
    """Whatever stands in an object, the answer is a document or a sentence, never a traceback or a defect."""
    choice = random.Random(seed)
    documents = list(yaml.safe_load_all(FILES + "---\n" + VARIANT))
    number = choice.randrange(len(documents))
    documents[number] = mutated(documents[number], choice)
    (folder / "files.yaml").write_text(yaml.safe_dump_all(documents))
    try:
        document = planned(folder / "files.yaml")
    except UsageError:
        return
    assert not [error for error in document.get("errors", ()) if "bug in pvbus" in error or "Error:" in error]
    json.dumps(document)
    list(plan_lines(document))


# ---------------------------------------------------------------- the command


def test_stdout_is_one_document(folder: Path) -> None:
    """With -o json nothing but the document is on stdout."""
    done = CliRunner().invoke(plan, ["-f", str(folder), "-o", "json", "--check"])
    assert done.exit_code == 3
    assert json.loads(done.stdout)["actions"]


def test_nothing_given_is_bad_usage() -> None:
    """The message names the ways to give something."""
    done = CliRunner().invoke(plan, [])
    assert isinstance(done.exception, UsageError)
    assert "--kubeconfig" in str(done.exception)


def test_admission_is_that_of_the_crds(folder: Path) -> None:
    """A value of a wrong type is refused as an API server would: path and wanted type."""
    (folder / "variant.yaml").write_text(VARIANT.replace("revision: 1", "revision: v1"))
    _, errors = admitted(read_input([folder / "variant.yaml"]).manifests)
    assert any("spec.upstream.revision" in error and "integer" in error for error in errors)


def test_an_upgrades_conflicts_are_said_below_its_draft_and_counted() -> None:
    conflict = {"file": "a.yaml", "field": "spec.x", "old": 1, "local": 2, "new": 3}
    action = {
        "verb": "create",
        "kind": "PackageRevision",
        "namespace": "default",
        "name": "edge.web.packagevariant-2",
        "reason": "upgrade draft of PackageVariant web from blue.web.v1 to blue.web.v2",
        "conflicts": [conflict],
    }
    lines = list(plan_lines({"actions": [action], "held": [], "troubles": [], "notes": []}))
    assert (
        lines[2] == "    [yellow]conflict[/] a.yaml, spec.x: is upstream's 3; here it was changed from 1 to 2"
    )
    assert lines[0] == "Plan: 1 to create, 1 conflict to settle."


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (
            "PackageVariant d/w: upgrade to blue.web.v2; generation 3 by PackageVariantSet s",
            "upgrade to blue.web.v2 of an open draft",
        ),
        ("PackageVariant d/w: upgrade to blue.web.v2, pipeline", "upgrade to blue.web.v2 of an open draft"),
        (
            "PackageVariant d/w: pipeline",
            "the package context, functions and injections of its PackageVariant",
        ),
        ("", "the package context, functions and injections of its PackageVariant"),
    ],
)
def test_an_upgrade_of_an_open_draft_is_called_so(cause: str, reason: str) -> None:
    obj = {"metadata": {"name": "r", "annotations": {"pvbus.dev/cause": cause}}}
    assert reason_of(Write("updateResources", "PackageRevisionResources", "d", "r", obj, ""), None) == reason
