"""Repositories that others push to: what is bad in one fails alone, and the other packages go on."""

import subprocess
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages import bounds
from pvbus.core.kernel.objectrows import REPOSITORY
from tests.integration.packages.support import (
    KPTFILE,
    NAMESPACE,
    StoreWorld,
    clone_of,
    git,
    push_files,
    refs,
    repository,
    revision,
)


def stored(remote: Path, kind: str, content: bytes) -> str:
    """Write an object as it stands, whatever git would say to it."""
    command = ["git", "hash-object", "-t", kind, "-w", "--literally", "--stdin"]
    done = subprocess.run(command, cwd=remote, input=content, capture_output=True, check=True)
    return done.stdout.decode().strip()


def tree_of(remote: Path, *entries: tuple[str, bytes, str]) -> str:
    """entries: (mode, name, object)."""
    content = b"".join(f"{mode} ".encode() + name + b"\0" + bytes.fromhex(oid) for mode, name, oid in entries)
    return stored(remote, "tree", content)


def commit_of(
    remote: Path, tree: str, *, when: str = "1 +0000", head: bytes = b"", message: bytes = b"x"
) -> str:
    who = f"A <a@b> {when}".encode()
    text = b"tree %s\nauthor %s\ncommitter %s\n%s\n%s" % (tree.encode(), who, who, head, message)
    return stored(remote, "commit", text)


def package(remote: Path, name: bytes, *entries: tuple[str, bytes, str]) -> str:
    """Return a root tree with one package."""
    return tree_of(remote, ("40000", name, tree_of(remote, *entries)))


def tag(remote: Path, name: str, commit: str) -> None:
    file = remote / "refs" / "tags" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{commit}\n")


OUTSIDE = b"../../../etc/passwd"


async def test_one_bad_package_of_each_kind_leaves_the_others_alone(
    world: StoreWorld, blueprints: Path
) -> None:
    good = KPTFILE.format(name="good").encode()
    kptfile = ("100644", b"Kptfile", stored(blueprints, "blob", good))

    def blob(content: bytes) -> str:
        return stored(blueprints, "blob", content)

    big = blob(b"x" * (bounds.PACKAGE_BYTES_MAX + 1))
    bad = {
        "far": commit_of(blueprints, package(blueprints, b"far", kptfile), when="999999999999999 +0000"),
        "past": commit_of(blueprints, package(blueprints, b"past", kptfile), when="-3166904 +0000"),
        "noclock": commit_of(
            blueprints, package(blueprints, b"noclock", kptfile), when="99999999999999999999999 +0000"
        ),
        "letters": commit_of(
            blueprints,
            package(blueprints, b"letters", kptfile),
            head=b"encoding foo-bar\n",
            message=b"\xff\xfe",
        ),
        "story": commit_of(
            blueprints,
            package(blueprints, b"story", kptfile),
            message=b'kpt:{"package":"story","workspaceName":"v1","task":{"type":"clone","clone":"x"}}\n'
            + b"kpt:"
            + b"[" * 100_000,
        ),
        "deep": commit_of(
            blueprints,
            package(blueprints, b"deep", ("100644", b"Kptfile", blob(good + b"x: " + b"[" * 50_000))),
        ),
        "wide": commit_of(
            blueprints,
            package(blueprints, b"wide", ("100644", b"Kptfile", blob(b"#" * (bounds.KPTFILE_BYTES_MAX + 1)))),
        ),
        "big": commit_of(blueprints, package(blueprints, b"big", kptfile, ("100644", b"blob", big))),
        "named": commit_of(
            blueprints, package(blueprints, b"named", kptfile, ("100644", b"\xff\xfe", kptfile[2]))
        ),
        "link": commit_of(
            blueprints,
            package(blueprints, b"link", kptfile, ("120000", b"out", blob(OUTSIDE))),
        ),
        "sub": commit_of(blueprints, package(blueprints, b"sub", kptfile, ("160000", b"module", kptfile[2]))),
        "digits": commit_of(blueprints, package(blueprints, b"digits", kptfile)),
    }
    folder = tree_of(blueprints, kptfile)
    for _ in range(bounds.DEPTH_MAX + 10):
        folder = tree_of(blueprints, kptfile, ("40000", b"d", folder))
    bad["nest"] = commit_of(blueprints, tree_of(blueprints, ("40000", b"nest", folder)))
    for name, commit in bad.items():
        tag(blueprints, f"{name}/{'v' + '9' * 40 if name == 'digits' else 'v1'}", commit)
    (blueprints / "refs" / "heads").joinpath("drafts").mkdir(exist_ok=True)
    raw = str(blueprints / "refs" / "heads" / "drafts").encode() + b"/\xff\xfe"
    Path(raw.decode(errors="surrogateescape")).mkdir()
    Path((raw + b"/ws").decode(errors="surrogateescape")).write_text(bad["far"] + "\n")
    with capture_logs() as lines:
        ready = await world.add_repository("blue", blueprints)
        assert ready["status"]["conditions"][0]["status"] == "True"
        shown = {
            name.split(".")[1]: world.present(name) for name in world.names() if not name.endswith(".main")
        }
    assert [line for line in lines if line["log_level"] == "error"] == []
    assert set(shown) == {"app", *bad} - {"noclock"}
    assert (
        "refs/tags/noclock/v1 (it is not a commit that git can read)" in (world.condition("blue")["message"])
    )
    assert msgspec.json.encode(list(shown.values()))
    assert shown["far"]["metadata"]["creationTimestamp"] == "9999-12-31T23:59:59Z"
    assert shown["past"]["metadata"]["creationTimestamp"] == "1970-01-01T00:00:00Z"
    assert shown["digits"]["spec"]["revision"] == -1
    assert shown["story"]["spec"].get("tasks") in ([], None)
    for name, message in (("deep", "nested too deeply"), ("wide", "at most")):
        (condition,) = shown[name]["status"]["conditions"]
        assert (condition["type"], condition["status"]) == ("Rendered", "False")
        assert message in condition["message"]

    refused = {
        "big": (422, "more than 6291456 bytes"),
        "wide": (422, "Kptfile"),
        "named": (422, "not UTF-8"),
        "nest": (422, "nested folders"),
        "deep": (422, "nested too deeply"),
        "link": (422, "symbolic link 'out' leads out of the package"),
        "sub": (422, "'module' is a git submodule"),
    }
    await world.add_repository("edge", bare_beside(blueprints))
    for name, (code, message) in refused.items():
        with pytest.raises(StatusError, match=message) as caught:
            await world.create(
                revision("edge", f"copy-of-{name}", "ws", clone_of(shown[name]["metadata"]["name"]))
            )
        assert caught.value.code == code, name
    for name in ("app", "far", "past", "letters", "story"):
        source = shown[name]["metadata"]["name"]
        assert await world.create(revision("edge", f"copy-of-{name}", "ws", clone_of(source)))
    listed = {obj["metadata"]["name"]: obj for obj in await world.store.resources.list(NAMESPACE)}
    assert "Kptfile" in listed["blue.app.v1"]["spec"]["resources"]
    assert listed["blue.big.v1"]["spec"]["resources"] == {}
    assert "more than 6291456 bytes" in listed["blue.big.v1"]["status"]["renderStatus"]["error"]


def bare_beside(remote: Path) -> Path:
    path = remote.parent / "beside.git"
    path.mkdir()
    git(path, "init", "--quiet", "--bare", "--initial-branch=main")
    return path


async def test_a_tree_that_contains_itself_over_and_over_is_not_walked(
    world: StoreWorld, blueprints: Path
) -> None:
    """Ten levels of ten: ten billion folders, each with a package, of a few hundred bytes."""
    kptfile = stored(blueprints, "blob", KPTFILE.format(name="x").encode())
    folder = tree_of(blueprints, ("100644", b"Kptfile", kptfile))
    for _ in range(10):
        folder = tree_of(blueprints, *(("40000", b"d%d" % number, folder) for number in range(10)))
    git(blueprints, "update-ref", "refs/heads/main", commit_of(blueprints, folder))
    await world.add_repository("blue", blueprints)
    assert "set spec.git.directory" in world.condition("blue")["message"]
    push = commit_of(
        blueprints,
        tree_of(blueprints, ("40000", b"one", tree_of(blueprints, ("100644", b"Kptfile", kptfile)))),
    )
    git(blueprints, "update-ref", "refs/heads/main", push)
    await world.until(lambda: world.condition("blue")["status"] == "True" and world.revision("blue.one.main"))


async def test_an_empty_bomb_of_folders_is_walked_once_per_tree(world: StoreWorld, blueprints: Path) -> None:
    folder = tree_of(blueprints, ("100644", b"file", stored(blueprints, "blob", b"x")))
    for _ in range(12):
        folder = tree_of(blueprints, *(("40000", b"d%d" % number, folder) for number in range(10)))
    git(blueprints, "update-ref", "refs/heads/main", commit_of(blueprints, folder))
    ready = await world.add_repository("blue", blueprints)
    assert ready["status"]["conditions"][0]["status"] == "True"


@pytest.mark.parametrize("when", ["99999999999999999999 +0000", "never"])
async def test_a_branch_with_an_unreadable_commit_does_not_look_empty(
    world: StoreWorld, blueprints: Path, when: str
) -> None:
    """Somebody pushes a commit with a date out of range: the packages stay, and the condition says why."""
    await world.add_repository("blue", blueprints)
    before = world.names()
    assert "blue.app.main" in before
    bad = commit_of(blueprints, git(blueprints, "rev-parse", "main^{tree}"), when=when)
    git(blueprints, "update-ref", "refs/heads/main", bad)
    await world.until(lambda: world.condition("blue")["status"] == "False")
    assert f"the branch is at {bad}, which is not a commit" in world.condition("blue")["message"]
    assert world.names() == before


async def test_hooks_filters_and_submodules_of_a_repository_run_nothing(
    world: StoreWorld, blueprints: Path, tmp_path: Path
) -> None:
    touched = tmp_path / "touched"
    push_files(
        blueprints,
        {
            "app/.gitattributes": "* filter=evil\n",
            ".gitmodules": f'[submodule "x"]\n\tpath = x\n\turl = ext::sh -c "touch {touched}"\n',
        },
    )
    git(blueprints, "config", "filter.evil.smudge", f"touch {touched}")
    git(blueprints, "config", "core.fsmonitor", f"touch {touched}")
    git(blueprints, "config", "core.sshCommand", f"touch {touched}")
    await world.add_repository("blue", blueprints)
    files = await world.files("blue.app.main")
    assert files["spec"]["resources"][".gitattributes"] == "* filter=evil\n"
    assert not touched.exists()


async def test_a_repository_of_a_bad_address_is_refused_and_a_stored_one_says_why(
    world: StoreWorld, tmp_path: Path
) -> None:
    touched = tmp_path / "touched"
    bad = repository("bad", f"ext::sh -c 'touch {touched}'")
    with pytest.raises(StatusError, match="helper programs") as refused:
        await world.objects.create(REPOSITORY, world.store.repositories, bad)
    assert refused.value.code == 422
    await world.objects.put(REPOSITORY, bad)
    await world.until(lambda: world.ready("bad"))
    assert "helper programs" in world.condition("bad")["message"]
    assert not touched.exists()


async def test_files_with_bad_paths_are_refused_and_change_nothing(fleet: StoreWorld, edge: Path) -> None:
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    before = git(edge, "rev-parse", refs(edge)[0])
    for path in ("../x", ".git/config", "a\0b", "\ud800", "KPTFILE", "/etc/x", "x" * 2_000):
        with pytest.raises(StatusError) as refused:
            await fleet.put(await fleet.files("edge.app-1.ws"), {path: "x"})
        assert refused.value.code == 422, path
    assert git(edge, "rev-parse", refs(edge)[0]) == before
