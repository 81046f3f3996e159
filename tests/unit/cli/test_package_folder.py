"""`pvbus condition` and `pvbus task` on a package in a plain folder: what they write, bind and refuse."""

import getpass
import json
from pathlib import Path

import pytest

from pvbus.cli.main import run
from pvbus.cli.packagefolder import PackageFolder, folder_key
from pvbus.controlplane.packages import signing
from pvbus.controlplane.packages.content import facts_of
from pvbus.core.errors import ConflictError
from pvbus.core.kernel.objectrows import REVISION
from tests.kit.cluster import resource_of

Captured = pytest.CaptureFixture[str]
KPTFILE = """\
# of the web team
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: web
info:
  readinessGates:
    - conditionType: Certified # by the audit
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "web"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (folder / "Kptfile").write_text(KPTFILE)
    (folder / "app.yaml").write_text("replicas: 1\n")
    return folder


def shown(package: Path, capsys: Captured, *words: str) -> dict[str, object]:
    capsys.readouterr()
    assert run(["condition", "get", "--folder", str(package), "-o", "json", *words]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_a_condition_is_set_in_the_kptfile_whose_text_stays(package: Path, capsys: Captured) -> None:
    assert shown(package, capsys)["ready"] is False
    assert run(["condition", "set", "--folder", str(package), "Certified=True", "--reason", "Audited"]) == 0
    assert capsys.readouterr().out == (
        f"{package}: Certified is True\nready: all of 1 readiness gates are met\n"
    )
    text = (package / "Kptfile").read_text()
    assert text.startswith("# of the web team\n")
    assert "- conditionType: Certified # by the audit\n" in text
    before = (package / "Kptfile").stat().st_mtime_ns
    assert run(["condition", "set", "--folder", str(package), "Certified=True", "--reason", "Audited"]) == 0
    assert "already True" in capsys.readouterr().out
    assert (package / "Kptfile").stat().st_mtime_ns == before
    assert sorted(path.name for path in package.iterdir()) == [".git", "Kptfile", "app.yaml"]


def test_a_push_of_the_folder_brings_its_signature_along_and_an_edit_voids_it(
    package: Path, capsys: Captured
) -> None:
    assert run(["condition", "set", "--folder", str(package), "Certified=True"]) == 0
    pushed = {name: (package / name).read_text() for name in ("Kptfile", "app.yaml")}
    facts = facts_of(pushed["Kptfile"])
    assert signing.judged_edit(facts, pushed, {}) == facts

    (package / "app.yaml").write_text("replicas: 2\n")
    edited = {**pushed, "app.yaml": "replicas: 2\n"}
    (stored,) = signing.judged_edit(facts, edited, {}).conditions
    assert (stored["status"], stored["reason"]) == ("Unknown", "InputsChanged")
    document = shown(package, capsys, "Certified")
    assert (document["ready"], document["conditions"][0]["status"]) == (False, "Unknown")  # type: ignore[index]

    (package / ".git/HEAD").write_text("ref: refs/heads/other\n")
    assert run(["condition", "set", "--folder", str(package), "Certified=True"]) == 0
    (package / ".git/HEAD").write_text("ref: refs/heads/main\n")
    assert shown(package, capsys)["ready"] is True


def test_the_punch_list_has_owners_and_history(package: Path, capsys: Captured) -> None:
    where = ("--folder", str(package))
    assert run(["task", "open", *where, "Certified", "--question", "Is it?", "--owner", "ann"]) == 0
    capsys.readouterr()
    assert run(["task", "list", *where, "-o", "json"]) == 0
    (task,) = json.loads(capsys.readouterr().out)["tasks"]
    assert (task["revision"], task["owner"], task["gate"]) == (str(package), "ann", True)
    assert run(["task", "answer", *where, "Certified", "--status", "True"]) == 0
    by = f"{getpass.getuser()} (in a folder)"
    assert f"(by {by} at " in capsys.readouterr().out
    assert run(["task", "list", *where, "--answered", "-o", "json"]) == 0
    (task,) = json.loads(capsys.readouterr().out)["tasks"]
    assert [(change["after"], change["by"]) for change in task["history"]] == [("Unknown", by), ("True", by)]
    assert shown(package, capsys)["ready"] is True


@pytest.mark.parametrize(
    ("kptfile", "words", "said"),
    [
        (None, ("get",), "has no Kptfile: name the folder of a package"),
        ("a: [", ("get",), "cannot read the Kptfile"),
        ("", ("set", "Certified=True"), "cannot read the Kptfile: it is empty"),
        (KPTFILE, ("get", "-n", "default"), "leave one of them out"),
        (KPTFILE, ("get", "Nothing"), "no condition or gate Nothing; there are Certified"),
        (KPTFILE, ("set",), "what to set is missing"),
        (KPTFILE, ("set", "default/web", "Certified=True"), '"default/web" is no TYPE=STATUS'),
        (KPTFILE, ("set", "Rendered=True"), "is set by the package store"),
        (
            KPTFILE.replace("name: web", "name: web\n  annotations: {pvbus.dev/survives: '['}"),
            ("set", "Certified=True"),
            "annotation pvbus.dev/survives is not like",
        ),
    ],
)
def test_what_cannot_be_done_is_said(
    package: Path, capsys: Captured, kptfile: str | None, words: tuple[str, ...], said: str
) -> None:
    (package / "Kptfile").unlink()
    if kptfile is not None:
        (package / "Kptfile").write_text(kptfile)
    assert run(["condition", *words, "--folder", str(package)]) in (1, 2)
    assert said in capsys.readouterr().err
    assert not (package / "Kptfile").exists() or (package / "Kptfile").read_text() == kptfile


async def test_an_edit_in_the_same_moment_is_not_overwritten(package: Path) -> None:
    cluster = PackageFolder(package)
    resource = await resource_of(cluster, REVISION)
    revision = await cluster.get(resource, *folder_key(str(package)))
    assert revision is not None
    (package / "Kptfile").write_text(KPTFILE + "pipeline: {}\n")
    changed = {**revision, "status": {"conditions": [{"type": "Certified", "status": "True"}]}}
    with pytest.raises(ConflictError, match="changed in the same moment"):
        await cluster.update(resource, changed)
    assert (package / "Kptfile").read_text() == KPTFILE + "pipeline: {}\n"


def test_a_link_in_place_of_the_kptfile_is_refused(package: Path, capsys: Captured, tmp_path: Path) -> None:
    (package / "Kptfile").rename(tmp_path / "elsewhere")
    (package / "Kptfile").symlink_to(tmp_path / "elsewhere")
    assert run(["condition", "set", "--folder", str(package), "Certified=True"]) == 2
    assert "symbolic link" in capsys.readouterr().err
    assert (tmp_path / "elsewhere").read_text() == KPTFILE
