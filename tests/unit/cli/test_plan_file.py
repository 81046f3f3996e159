"""A plan's file: what it holds, which files are refused, and which inputs count as moved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli.live import Export
from pvbus.cli.main import run
from pvbus.cli.plan import file_of, plan
from pvbus.cli.planapply import MovedError, difference_lines, same_words, still_to_do, write_changes
from pvbus.cli.plancost import coefficients, cost_of
from pvbus.cli.planfile import PlanFile, read_plan
from pvbus.cli.planinput import PlanInput, read_input, write_export
from pvbus.cli.planpreview import Request, plan_of_files
from pvbus.cli.planstanding import standing_of
from pvbus.core.errors import UsageError
from pvbus.core.kernel.keys import PROPOSED_CONTENT
from pvbus.ports.cluster import Kind, Object
from tests.unit.cli.test_plan import FILES, HOW, VARIANT, plan_of, settled_export

OWN = Kind("config.porch.kpt.dev", "PackageVariant")
STEP = """
  pipeline:
    mutators:
    - name: size
      image: ghcr.io/kptdev/krm-functions-catalog/set-labels:v0.2
      configMap: {size: l}
"""
BLUE = "PackageRevision default/blue.web.v1"


@pytest.fixture
def export(tmp_path: Path) -> Export:
    """A settled system with a variant and its draft."""
    (tmp_path / "files.yaml").write_text(FILES)
    (tmp_path / "own.yaml").write_text(VARIANT)
    return settled_export(plan_of(read_input([tmp_path / "files.yaml", tmp_path / "own.yaml"])))


@pytest.fixture
def change(tmp_path: Path) -> Path:
    (tmp_path / "change.yaml").write_text(VARIANT.rstrip() + STEP)
    return tmp_path / "change.yaml"


@pytest.fixture
def file(tmp_path: Path, export: Export, change: Path) -> Path:
    """The file of a plan that changes the variant, as the command writes it."""
    (tmp_path / "live.json").write_text(write_export(export))
    arguments = ["-f", str(tmp_path / "live.json"), "-f", str(change), "--out", str(tmp_path / "plan.json")]
    done = CliRunner().invoke(plan, arguments)
    assert done.exit_code == 0, done.output
    return tmp_path / "plan.json"


def edited(export: Export, kind: str, edit: Callable[[Object], None], name: str = "") -> Export:
    copied = msgspec.json.decode(msgspec.json.encode(export), type=Export)
    for obj in copied.items:
        if obj["kind"] == kind and name in ("", obj["metadata"]["name"]):
            edit(obj)
    return copied


def without(export: Export, kind: str) -> Export:
    return msgspec.structs.replace(export, items=[obj for obj in export.items if obj["kind"] != kind])


# ---------------------------------------------------------------- the file


def test_a_plan_says_what_it_reads_and_changes(file: Path) -> None:
    """Its inputs have digests, what it changes a chain of states, and nothing of it is a whole package."""
    made = read_plan(file)
    assert {str(planned) for planned in made.changed} == {
        "PackageVariant default/own",
        "PackageRevisionResources default/edge.own.packagevariant-1",
    }
    assert BLUE in map(str, made.objects)
    assert all(len(digest) == 32 for planned in made.objects for digest in planned.states)
    assert made.cost["writes"] == 2
    assert made.cost["commits"] == 1
    assert made.gates == [{"gate": "approval", "count": 1, "example": "default/edge.own.packagevariant-1"}]
    assert "resources" not in file.read_text()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[: len(text) // 2], "damaged or only half written"),
        (lambda text: text.replace("size", "sise"), "changed after it was made"),
        (lambda text: text[: text.rindex(',\n"seal"')] + "\n}", "its seal is missing"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "has format 9, and this pvbus reads 1"),
        (lambda _: "kind: PackageVariant\n", "is no plan"),
        (lambda _: '{"kind": "List"}', "is no plan"),
        (lambda _: "", "is no plan"),
    ],
    ids=["half", "edited", "unsealed", "version", "manifest", "json", "empty"],
)
def test_another_file_is_refused_in_words(
    file: Path, damage: Callable[[str], str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before anything is asked or connected."""
    file.write_text(damage(file.read_text()))
    assert run(["apply", str(file), "--yes", "--data", str(file.parent)]) == 2
    assert words in capsys.readouterr().err
    with pytest.raises(UsageError):
        read_plan(file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-f", "{files}", "--out", "{out}"], "needs a live system"),
        (["-f", "{live}", "--set", "default/x", "--out", "{out}"], "a whole plan"),
        (["-f", "{live}", "-f", "{broken}", "--out", "{out}"], "cannot be applied"),
    ],
    ids=["no live system", "a part", "errors"],
)
def test_a_plan_that_cannot_be_applied_is_not_written(
    file: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says why, and leaves no file."""
    folder = file.parent
    (folder / "broken.yaml").write_text(VARIANT.partition("spec:")[0] + "spec: 5\n")
    names = {"files": "files.yaml", "live": "live.json", "broken": "broken.yaml", "out": "out.json"}
    paths = {key: str(folder / name) for key, name in names.items()}
    assert run(["plan", *(argument.format(**paths) for argument in arguments)]) == 2
    assert words in capsys.readouterr().err
    assert not (folder / "out.json").exists()


# ---------------------------------------------------------------- moved inputs


def label(obj: Object) -> None:
    obj["metadata"].setdefault("labels", {})["a"] = "b"


def recreate(obj: Object) -> None:
    obj["metadata"]["uid"] = "another"


def commit(obj: Object) -> None:
    obj["status"] = {"selfLock": {"git": {"commit": "2222"}}}


def report(obj: Object) -> None:
    obj["status"] = {"conditions": [{"type": "Ready", "status": "False"}]}
    obj["metadata"]["resourceVersion"] = "99"


def add_file(obj: Object) -> None:
    obj["spec"]["resources"]["more.yaml"] = "a: 1\n"


@pytest.mark.parametrize(
    ("kind", "name", "edit", "moved"),
    [
        ("Repository", "blue", label, ["Repository default/blue: was changed"]),
        ("Repository", "blue", recreate, ["Repository default/blue: was deleted and created again"]),
        ("Repository", "blue", report, []),
        ("PackageRevision", "blue.web.v1", commit, [f"{BLUE}: is at commit 2222, and was at 1111"]),
        (
            "PackageRevisionResources",
            "blue.web.v1",
            add_file,
            [f"{BLUE.replace(' ', 'Resources ')}: was changed"],
        ),
        ("PackageVariant", "own", label, ["PackageVariant default/own: was changed"]),
        ("PackageVariant", "own", report, []),
    ],
)
def test_a_moved_input_is_named(
    export: Export, change: Path, kind: str, name: str, edit: Callable[[Object], None], moved: list[str]
) -> None:
    """What a plan depends on has moved if its content has; status and versions say nothing."""

    def at_first(obj: Object) -> None:
        obj["status"] = {"selfLock": {"git": {"commit": "1111"}}}

    export = edited(export, "PackageRevision", at_first, "blue.web.v1")
    plan = made_of(export, change)
    found = standing_of(plan, edited(export, kind, edit, name)).moved
    assert len(found) == len(moved)
    assert all(text.startswith(words) for text, words in zip(found, moved, strict=True))


def test_what_is_new_or_gone_has_moved(export: Export, change: Path) -> None:
    """Of the kinds and namespaces that the plan read; of others nothing is an input."""
    plan = made_of(export, change)
    assert standing_of(plan, without(export, "Repository")).moved == [
        "Repository default/blue: was deleted",
        "Repository default/edge: was deleted",
    ]
    repository = next(obj for obj in export.items if obj["kind"] == "Repository")
    for namespace, moved in (("default", ["Repository default/new: is new"]), ("other", [])):
        new = {**repository, "metadata": {"name": "new", "namespace": namespace, "uid": "n"}}
        present = msgspec.structs.replace(export, items=[*export.items, new])
        assert standing_of(plan, present).moved == moved


def test_the_states_of_a_plan_have_not_moved(export: Export, change: Path) -> None:
    """Before it nothing is done, in between it has begun, and after it everything is done."""
    request = Request(inputs(export, change), HOW, has_states=True)
    plan, result = made_of(export, change), plan_of_files(request).result
    before = standing_of(plan, export)
    assert (before.moved, before.done, before.total, before.begun) == ([], 0, 2, False)
    after = msgspec.structs.replace(export, items=list(result.objects))
    assert standing_of(plan, after).is_complete
    variant = next(obj for obj in result.objects if obj["kind"] == "PackageVariant")
    others = [obj for obj in export.items if obj["kind"] != "PackageVariant"]
    between = standing_of(plan, msgspec.structs.replace(export, items=[*others, variant]))
    assert (between.moved, between.done, between.begun) == ([], 1, True)
    assert between.waiting == ["PackageRevisionResources default/edge.own.packagevariant-1"]
    counts = [still_to_do(plan, standing)[0] for standing in (before, between, standing_of(plan, after))]
    assert counts == [0, 0, 1]  # the change of the variant is the user's, and no write of the plan
    (left,) = still_to_do(plan, between)[1]["actions"]
    assert left["verb"] == "updateResources"
    deleted = standing_of(plan, msgspec.structs.replace(export, items=others))
    assert still_to_do(plan, deleted)[0] == 0  # what has moved is not done


@pytest.mark.parametrize(
    ("lifecycle", "what", "is_moved"),
    [
        ("Proposed", "", False),
        ("Published", "", False),
        ("Proposed", "before", True),  # promotion has proposed what the plan replaces
        ("Proposed", "edited", True),
        ("Proposed", "labelled", True),
        ("Proposed", "recreated", True),
        ("DeletionProposed", "", True),
    ],
)
def test_promotion_of_a_draft_that_the_plan_changes_moves_nothing(
    export: Export, change: Path, lifecycle: str, what: str, is_moved: bool
) -> None:
    """Its lifecycle may go on, once its files are as announced; any other change has moved."""
    request = Request(inputs(export, change), HOW, has_states=True)
    plan, result = made_of(export, change), plan_of_files(request).result
    items = export.items if what == "before" else list(result.objects)

    def promoted(obj: Object) -> None:
        obj["spec"] |= {"lifecycle": lifecycle, "revision": 1 if lifecycle == "Published" else 0}
        obj["metadata"].setdefault("annotations", {})[PROPOSED_CONTENT] = "digest"
        if what == "labelled":
            label(obj)
        if what == "recreated":
            recreate(obj)

    draft = "edge.own.packagevariant-1"
    present = edited(msgspec.structs.replace(export, items=items), "PackageRevision", promoted, draft)
    if what == "edited":
        present = edited(present, "PackageRevisionResources", add_file, draft)
    standing = standing_of(plan, present)
    assert bool(standing.moved) == is_moved
    assert standing.is_complete != is_moved


def inputs(export: Export, change: Path) -> PlanInput:
    return PlanInput((export,), tuple(read_input([change]).manifests))


def made_of(export: Export, change: Path) -> PlanFile:
    return file_of(plan_of_files(Request(inputs(export, change), HOW, has_states=True)))


# ---------------------------------------------------------------- writing


async def test_changes_are_written_once(export: Export, file: Path) -> None:
    """A second run finds them written; what moves in between is not overwritten."""
    plan = read_plan(file)
    cluster = MemoryCluster(export.items, now=lambda: "2026-01-01T00:00:00Z")
    assert await write_changes(cluster, plan, {}) == 1
    assert await write_changes(cluster, plan, {}) == 0
    written = cluster.peek(OWN, "default", "own")
    assert written is not None
    assert written["spec"]["pipeline"]["mutators"][0]["name"] == "size"
    moved = MemoryCluster(edited(export, "PackageVariant", label).items, now=lambda: "2026-01-01T00:00:00Z")
    with pytest.raises(MovedError, match="PackageVariant default/own: was changed"):
        await write_changes(moved, plan, {})
    assert moved.writes == []


def test_two_plans_are_compared_write_by_write() -> None:
    """What only one has, and what both have with other values."""

    def document(**values: Any) -> Any:
        actions = [
            {"verb": "update", "kind": "PackageVariant", "namespace": "n", "name": name, "reason": "r",
             "differences": [{"path": "spec", "before": 1, "after": value}]}
            for name, value in values.items()
        ]  # fmt: skip
        return {"actions": actions, "troubles": []}

    found = difference_lines(document(a=1, b=1, c=1), document(b=2, c=1, d=1))
    assert [line.partition(":")[0] for line in found] == ["no longer", "in addition", "otherwise"]
    assert [line.rpartition("n/")[2] for line in found] == ["a: r", "d: r", "b: r"]


@pytest.mark.parametrize(
    ("left", "words"),
    [(0, "no writes: nothing is left to do"), (1, "the same write"), (3, "the same 3 writes")],
)
def test_a_new_plan_that_does_not_differ_says_what_is_left(left: int, words: str) -> None:
    assert same_words({"actions": [{}] * left}) == f"a plan made now has {words}"


def test_the_cost_is_of_measured_coefficients() -> None:
    """The file of coefficients says how they were measured, and the cost repeats it."""
    measured = coefficients()
    assert "variants" in measured.source
    action = {"verb": "create", "kind": "PackageRevision"}
    cost = cost_of({"actions": [action] * 1000}, 1, measured)
    assert (cost["writes"], cost["commits"]) == (1001, 1000)
    assert cost["seconds"] == round(1001 * measured.seconds_per_write + 1000 * measured.seconds_per_commit, 1)
    assert json.dumps(cost)
