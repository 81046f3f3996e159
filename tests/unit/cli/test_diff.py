"""`pvbus diff`: what a draft changes, and conflicts that a person settles without an editor."""

import json
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli import diff
from pvbus.cli.main import run
from pvbus.core.errors import ConflictError
from pvbus.core.kernel.conflicts import Conflict, annotation
from pvbus.core.variants.merge.copies import UPSTREAM_IDENTIFIER, upgraded, upstream_texts
from pvbus.core.variants.merge.objects import merge
from pvbus.core.variants.revisions.signatures import signed_digest
from pvbus.ports.cluster import Object

Captured = pytest.CaptureFixture[str]
KEY = "default/web-edge"
ANNOTATION = "pvbus.dev/upgrade-conflicts"
LONG = "x" * 1500
HEAD = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: web\ndata:\n"


def file(image: str, note: str) -> str:
    return f"{HEAD}  image: {image} # which\n  note: {note}\n"


OLD, LOCAL, NEW = file("a:1", "old"), file("a:2", LONG), file("a:3", "new")
MERGED = merge("map.yaml", OLD, LOCAL, NEW)


def revision(name: str, package: str, lifecycle: str, number: int, text: str, **more: Any) -> list[Object]:
    owners = [{"kind": "PackageVariant", "name": "web-edge", "uid": "u"}] if package == "web" else []
    meta = {"name": name, "namespace": "default", "ownerReferences": owners, **more.get("metadata", {})}
    spec = {"repository": "r", "packageName": package, "revision": number, "lifecycle": lifecycle}
    spec |= {"tasks": more.get("tasks", [])}
    status = {"upstreamLock": {"git": {"ref": more.get("lock", "")}}, "selfLock": {"git": {"ref": name}}}
    api = {"apiVersion": "porch.kpt.dev/v1alpha1"}
    files = {"repository": "r", "packageName": package, "resources": {"map.yaml": text, "same": "s"}}
    return [
        {**api, "kind": "PackageRevision", "metadata": meta, "spec": spec, "status": status},
        {**api, "kind": "PackageRevisionResources", "metadata": dict(meta), "spec": files},
    ]


def upgrade() -> Any:
    names = {"oldUpstreamRef": "up.v1", "newUpstreamRef": "up.v2", "localPackageRevisionRef": "r.web.1"}
    return {"type": "upgrade", "upgrade": {field: {"name": name} for field, name in names.items()}}


class Location:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, lifecycle: str, text: str) -> None:
        (folder / "kubeconfig").write_text("")
        self.folder = folder
        spec = {"upstream": {"repo": "r", "package": "up"}, "downstream": {"repo": "r", "package": "web"}}
        meta = {"name": "web-edge", "namespace": "default", "uid": "u"}
        annotations = {"annotations": {ANNOTATION: annotation(MERGED.conflicts), "mine": "stays"}}
        objects: list[Object] = [
            {
                "apiVersion": "config.porch.kpt.dev/v1alpha1",
                "kind": "PackageVariant",
                "metadata": meta,
                "spec": spec,
            },
            *revision("up.v1", "up", "Published", 1, OLD),
            *revision("up.v2", "up", "Published", 2, NEW),
            *revision("r.web.1", "web", "Published", 1, LOCAL, lock="up.v1"),
        ]
        if lifecycle:
            more = {"metadata": annotations, "tasks": [upgrade()], "lock": "up.v2"}
            objects += revision("r.web.2", "web", lifecycle, 0, text, **more)
        self.cluster = MemoryCluster(objects, now=lambda: "2026-01-01T00:00:00Z")
        monkeypatch.setattr(HttpCluster, "connect", self._connect)
        monkeypatch.setattr(diff, "SECOND_TRY_SECONDS", 0.0)

    async def _connect(self, path: Path) -> MemoryCluster:
        return self.cluster

    def run(self, *arguments: str) -> int:
        return run(["diff", KEY, *arguments, "--data", str(self.folder)])

    def draft(self, kind: str) -> Any:
        found = (obj for obj in self.cluster.objects() if obj["metadata"]["name"] == "r.web.2")
        return next(obj for obj in found if obj["kind"] == kind)

    @property
    def text(self) -> str:
        return str(self.draft("PackageRevisionResources")["spec"]["resources"]["map.yaml"])

    @property
    def fields(self) -> list[str]:
        annotations = self.draft("PackageRevision")["metadata"]["annotations"]
        assert annotations["mine"] == "stays"
        return [each.get("field", "") for each in json.loads(annotations.get(ANNOTATION, "[]"))]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    return Location(tmp_path, monkeypatch, lifecycle="Draft", text=str(MERGED.text))


def test_the_conflicts_come_first_and_then_the_differences(package: Location, capsys: Captured) -> None:
    assert package.run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 to settle")
    assert "it was 'a:1', is 'a:2' here and 'a:3' upstream; the draft has the upstream one" in lines[2]
    assert "r.web.2 (Draft) against r.web.1" in lines
    assert lines[lines.index("--- a/map.yaml") + 1] == "+++ b/map.yaml"
    content = signed_digest(package.draft("PackageRevisionResources")["spec"]["resources"])
    assert f"content {content}: name it with --content to set a condition on these files" in lines
    assert "-  image: a:2 # which" in lines
    assert "+  image: a:3 # which" in lines
    assert "--- a/same" not in lines
    assert package.run("--upstream", "-o", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["against"], document["diff"]) == ("up.v2", "")
    assert package.cluster.writes == []


def test_a_clone_that_was_merged_in_place_has_its_local_value_in_the_report(package: Location) -> None:
    draft = package.draft("PackageRevision")
    clone = {"type": "clone", "clone": {"upstreamRef": {"upstreamRef": {"name": "up.v1"}}}}
    package.cluster.put({**draft, "spec": {**draft["spec"], "tasks": [clone]}})
    field = package.fields[0]
    assert "image: a:2" not in package.text
    assert package.run("--take", "local", field) == 0
    assert "image: a:2" in package.text
    assert field not in package.fields


def test_local_values_come_back_in_full_and_byte_for_byte(package: Location, capsys: Captured) -> None:
    """The long one is shortened in the report; with the last one the annotation goes."""
    assert package.run("--take", "local", "data.note") == 0
    assert "to settle: 1 more" in capsys.readouterr().out
    assert package.text == file("a:3", LONG)
    assert package.fields == ["data.image"]
    assert package.run("--take", "local", "data.image", "map.yaml") == 0
    assert "no conflict is left" in capsys.readouterr().out
    assert package.text == LOCAL
    assert package.fields == []


def test_upstreams_value_stays_and_is_settled(package: Location) -> None:
    assert package.run("--take", "upstream", "data.image") == 0
    assert package.text == MERGED.text
    assert package.fields == ["data.note"]


def test_a_shortened_value_is_never_written(package: Location, capsys: Captured) -> None:
    """Where no file has the reported value in full any more, nothing is written."""
    for obj in package.cluster.objects():
        if (obj["kind"], obj["metadata"]["name"]) == ("PackageRevisionResources", "r.web.1"):
            obj["spec"]["resources"]["map.yaml"] = file("a:2", "another")
            package.cluster.put(obj)
    assert package.run("--take", "local", "data.note") == 1
    assert "the value is too long for the report" in capsys.readouterr().err
    assert package.text == MERGED.text
    assert package.run("--take", "local", "data.image") == 0
    assert "image: a:2" in package.text


@pytest.mark.parametrize(("times", "code"), [(1, 0), (2, 1)])
def test_another_writer_is_tried_against_once(
    package: Location, capsys: Captured, times: int, code: int
) -> None:
    def refuse(verb: str, obj: Object) -> None:
        nonlocal times
        times -= 1
        if times >= 0:
            raise ConflictError("another writer")

    package.cluster.before_write = refuse
    assert package.run("--take", "local", "data.image") == code
    assert ("others write to the draft" in capsys.readouterr().err) == bool(code)
    assert package.fields == (["data.image", "data.note"] if code else ["data.note"])


def test_inject_may_remove_the_conflict_first(package: Location, capsys: Captured) -> None:
    """It sees the saved value before the command goes on: the command ends well, whatever it lists."""
    plain = [
        {**each, "old": None} for each in json.loads(annotation(MERGED.conflicts)) if "note" in each["field"]
    ]

    def inject(verb: str, obj: Object) -> None:
        if obj["kind"] == "PackageRevision":  # the files are saved
            package.cluster.before_write = None
            draft = package.draft("PackageRevision")
            draft["metadata"]["annotations"][ANNOTATION] = json.dumps(plain)
            package.cluster.put(draft)

    package.cluster.before_write = inject
    assert package.run("--take", "local", "data.image") == 0
    assert "to settle: 1 more" in capsys.readouterr().out
    assert package.fields == ["data.note"]


def test_a_draft_that_began_as_a_clone_takes_the_reported_value(package: Location) -> None:
    draft = package.draft("PackageRevision")
    draft["spec"]["tasks"] = [{"type": "clone"}]
    package.cluster.put(draft)
    assert package.run("--take", "local", "data.image") == 0
    assert "image: a:2" in package.text
    assert package.run("--take", "local", "data.note") == 1


@pytest.mark.parametrize(
    ("lifecycle", "arguments", "code", "words"),
    [
        ("Draft", ("--take", "local", "data.imagee"), 1, '"data.imagee" is not in conflict; there are: '),
        ("Draft", ("--take", "local"), 2, "in one FIELD"),
        ("Draft", ("data.image",), 2, "in one FIELD"),
        ("Proposed", ("--take", "local", "data.image"), 1, "r.web.2 is Proposed, and nothing changes it"),
        ("Published", ("--take", "local", "data.image"), 1, "has no draft with a conflict"),
        ("", ("--take", "local", "data.image"), 1, "has no draft with a conflict"),
    ],
)  # fmt: skip
def test_what_cannot_be_settled_is_explained(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    lifecycle: str,
    arguments: Any,
    code: int,
    words: str,
) -> None:
    package = Location(tmp_path, monkeypatch, lifecycle=lifecycle, text=str(MERGED.text))
    assert package.run(*arguments) == code
    assert words in capsys.readouterr().err
    assert package.cluster.writes == []


def test_without_a_draft_the_published_revision_is_compared_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    package = Location(tmp_path, monkeypatch, lifecycle="", text="")
    assert package.run() == 0
    out = capsys.readouterr().out
    assert f"{KEY} has no draft; r.web.1 is published" in out
    assert f"pvbus diff {KEY} --upstream" in out
    assert package.run("--upstream") == 0
    out = capsys.readouterr().out
    assert "r.web.1 against up.v1" in out
    assert "-  image: a:1 # which\n" in out


@pytest.mark.parametrize(("commit", "against"), [("c2", "up.v3"), ("c1", "up.v3@c1")])
def test_a_draft_upstream_that_has_gone_on_is_compared_at_the_commit_that_was_taken(
    package: Location, capsys: Captured, commit: str, against: str
) -> None:
    upstream, files = revision("up.v3", "up", "Draft", 0, NEW)
    upstream["status"]["selfLock"]["git"] = {"ref": "drafts/up/v3", "commit": "c2"}
    at = {**files, "metadata": {**files["metadata"], "name": "up.v3@c1"}}
    at["spec"] = {**files["spec"], "resources": {"map.yaml": OLD, "same": "s"}}
    draft = package.draft("PackageRevision")
    draft["status"]["upstreamLock"]["git"] = {"ref": "drafts/up/v3", "commit": commit}
    for obj in (upstream, files, at, draft):
        package.cluster.put(obj)
    assert package.run("--upstream") == 0
    out = capsys.readouterr().out
    assert f"r.web.2 (Draft) against {against}" in out
    assert ("-  image: a:1 # which" in out) is (commit == "c1")


PORTS = "apiVersion: v1\nkind: Service\nmetadata:\n  name: s\nspec:\n  ports:\n"


@pytest.mark.parametrize(("side", "left"), [("local", "9"), ("upstream", "8")])
def test_of_two_elements_that_stay_one_can_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, side: str, left: str
) -> None:
    merged = merge("map.yaml", *(f"{PORTS}  - port: {port}\n" for port in (1, 9, 8)))
    package = Location(tmp_path, monkeypatch, lifecycle="Draft", text=str(merged.text))
    draft = package.draft("PackageRevision")
    draft["metadata"]["annotations"][ANNOTATION] = annotation(merged.conflicts)
    package.cluster.put(draft)
    assert package.run() == 0
    out = capsys.readouterr().out
    assert "1 to look at, as both sides changed the key of an element and both stay:" in out
    assert 'it was {"port":1}, is {"port":9} here and {"port":8} upstream; the draft has both' in out
    assert "to settle one" not in out
    assert package.run("--take", side, package.fields[0]) == 0
    assert package.text == f"{PORTS}  - port: {left}\n"
    assert package.fields == []


KPTFILE = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: app\n"
SIDES = {"r.web.1": "local", "up.v1": "old", "up.v2": "new", "r.web.2": "draft"}


def put_files(package: Location, **sides: dict[str, str]) -> dict[str, str]:
    """Store the files of three sides and of their draft, as the upgrade merges them; return the draft's."""
    root = {side: {"Kptfile": KPTFILE, **files} for side, files in sides.items()}
    merged = upgraded(
        upstream_texts(root["old"]), root["local"], upstream_texts(root["new"]), LOCK, "resource-merge",
        deployment=False,
    )  # fmt: skip
    for obj in package.cluster.objects():
        side = SIDES.get(obj["metadata"]["name"], "")
        if side and obj["kind"] == "PackageRevisionResources":
            obj["spec"]["resources"] = merged.texts if side == "draft" else root[side]
            package.cluster.put(obj)
    draft = package.draft("PackageRevision")
    draft["metadata"]["annotations"][ANNOTATION] = annotation(merged.conflicts)
    package.cluster.put(draft)
    return merged.texts


def sub(value: str) -> dict[str, str]:
    return {"sub/Kptfile": KPTFILE, "sub/map.yaml": file(value, LONG), "sub/in/Kptfile": KPTFILE}


LOCK = {"git": {"repo": "r", "directory": "web", "ref": "v2", "commit": "c"}}


@pytest.mark.parametrize("side", ["local", "upstream"])
@pytest.mark.parametrize("is_local", [False, True])
def test_a_sub_package_that_one_side_deleted_is_shown_and_settled(
    package: Location, capsys: Captured, side: str, is_local: bool
) -> None:
    """Upstream's comes back as the merge adds it, with the origins of its objects, however long it is."""
    before = put_files(
        package, old=sub("a:1"), local=sub("a:2") if is_local else {}, new={} if is_local else sub("a:2")
    )
    is_there = {path for path in before if path.startswith("sub/")}
    assert is_there == ({"sub/Kptfile", "sub/map.yaml"} if is_local else set())
    assert package.run() == 0
    out = capsys.readouterr().out
    assert "1 to settle" in out
    assert "here and nothing upstream" in out if is_local else "is nothing here and " in out
    assert "--take local|upstream 'sub/'" in out
    assert package.run("--take", side, "sub/") == 0
    assert "no conflict is left" in capsys.readouterr().out
    files = package.draft("PackageRevisionResources")["spec"]["resources"]
    assert package.fields == []
    if side == "local":
        assert files == before
    elif is_local:
        assert files == {path: text for path, text in before.items() if path not in is_there}
    else:
        restored = upstream_texts(sub("a:2"))
        assert files == {**before, **restored}
        assert UPSTREAM_IDENTIFIER in files["sub/map.yaml"]


def test_a_long_object_that_was_deleted_locally_can_be_taken_from_upstream(package: Location) -> None:
    before = put_files(package, old={"a.yaml": OLD}, local={}, new={"a.yaml": LOCAL})
    assert "a.yaml" not in before
    assert package.run("--take", "upstream", "ConfigMap web") == 0
    text = package.draft("PackageRevisionResources")["spec"]["resources"]["a.yaml"]
    assert LONG in text
    assert UPSTREAM_IDENTIFIER in text


def test_a_link_is_not_settled_without_its_value(package: Location, capsys: Captured) -> None:
    draft = package.draft("PackageRevision")
    draft["metadata"]["annotations"][ANNOTATION] = annotation([Conflict(file="link", taken="local")])
    package.cluster.put(draft)
    assert package.run("--take", "upstream", "link") == 1
    assert "link has a symbolic link, which the API does not carry" in capsys.readouterr().err
    assert package.fields == [""]
    assert package.run("--take", "local", "link") == 0
    assert package.fields == []
