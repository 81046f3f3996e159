"""Packages with odd files, and repositories that others rewrite: nothing is lost, and a condition says so."""

import asyncio
from pathlib import Path

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from tests.integration.packages.support import (
    CONFIG,
    DEADLINE_SECONDS,
    StoreWorld,
    clone_of,
    git,
    push_files,
    refs,
    revision,
    tree,
)
from tests.integration.packages.test_upgrade import upgrade_of

OBJECT = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {}\ndata:\n  a: one\n  b: one\n"
ALIASES = "  c: &c one\n  d: *c\n"
BINARY = b"\x89PNG\xff\x00\xfe"
ODD = {
    "bom.yaml": "\ufeff" + OBJECT.format("bom"),
    "crlf.yaml": OBJECT.format("crlf").replace("\n", "\r\n"),
    "aliases.yaml": OBJECT.format("aliases") + ALIASES,
    "unended.yaml": OBJECT.format("unended").rstrip("\n"),
    "ended.yaml": OBJECT.format("ended") + "...\n",
}


def write(remote: Path, files: dict[str, str], tag: str) -> None:
    """Commit the files with their own line ends, beside a binary one and a link."""
    clone = remote.parent / f"clone-of-{remote.name}"
    for name, text in files.items():
        (clone / "app" / name).write_bytes(text.encode())
    (clone / "app" / "logo.png").write_bytes(BINARY)
    if not (clone / "app" / "link.yaml").is_symlink():
        (clone / "app" / "link.yaml").symlink_to("bom.yaml")
    push_files(remote, {}, tag=tag)


def bytes_of(remote: Path, commit: str, name: str) -> str:
    """Return the mode and the blob of a file."""
    return git(remote, "ls-tree", commit, name).partition("\t")[0]


async def test_odd_files_go_through_clone_edit_and_upgrade(
    fleet: StoreWorld, blueprints: Path, edge: Path
) -> None:
    """A mark, line ends, aliases and a missing newline stay; both changes are there, and nothing else."""
    write(blueprints, ODD, "app/v2")
    await fleet.until(lambda: fleet.revision("blue.app.v2"))
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v2")))
    files = await fleet.files("edge.app-1.ws")
    cloned = files["spec"]["resources"]
    await fleet.put(files, {name: cloned[name].replace("a: one", "a: ours") for name in ODD})
    await fleet.publish(fleet.present("edge.app-1.ws"))
    changed = {name: text.replace("b: one", "b: theirs") for name, text in ODD.items()}
    write(blueprints, changed | {"new.yaml": OBJECT.format("new").replace("\n", "\r\n")}, "app/v3")
    await fleet.until(lambda: fleet.revision("blue.app.v3"))
    draft = await fleet.create(
        revision("edge", "app-1", "next", upgrade_of("edge.app-1.ws", "blue.app.v2", "blue.app.v3"))
    )

    assert "pvbus.dev/upgrade-conflicts" not in draft["metadata"].get("annotations", {})
    merged = (await fleet.files("edge.app-1.next"))["spec"]["resources"]
    for name in ODD:
        assert merged[name] == cloned[name].replace("a: one", "a: ours").replace("b: one", "b: theirs")
    assert merged["bom.yaml"].startswith("\ufeff")
    for name in ("crlf.yaml", "new.yaml"):
        assert "\n" not in merged[name].replace("\r\n", "")
    for name in ("logo.png", "link.yaml"):
        assert bytes_of(edge, "drafts/app-1/next:app-1", name) == bytes_of(blueprints, "app/v3:app", name)
    assert merged["aliases.yaml"].endswith(ALIASES)


async def test_an_object_that_is_there_twice_refuses_the_upgrade_and_leaves_nothing(
    fleet: StoreWorld, blueprints: Path, edge: Path
) -> None:
    await fleet.publish(await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1"))))
    push_files(blueprints, {"app/settings.yaml": f"{CONFIG}---\n{CONFIG}"}, tag="app/v2")
    await fleet.until(lambda: fleet.revision("blue.app.v2"))
    before = refs(edge)
    with pytest.raises(StatusError, match="ConfigMap example/settings is there twice"):
        await fleet.create(revision("edge", "app-1", "next", upgrade_of("edge.app-1.ws")))
    assert refs(edge) == before


@pytest.mark.parametrize(
    ("kptfile", "message"),
    [
        ("apiVersion: kpt.dev/v9\nkind: Kptfile\nmetadata: {name: app}\n", "kpt.dev/v9"),
        ("apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata: {name: app}\npipeline: 5\n", "Kptfile"),
        ("]: [", "Kptfile"),
    ],
)
async def test_an_upstream_with_a_bad_kptfile_fails_alone(
    fleet: StoreWorld, blueprints: Path, edge: Path, kptfile: str, message: str
) -> None:
    """It is shown with the reason and cannot be cloned, or its clone cannot be proposed; others go on."""
    push_files(blueprints, {"bad/Kptfile": kptfile, "bad/a.yaml": OBJECT.format("a")}, tag="bad/v1")
    await fleet.until(lambda: fleet.revision("blue.bad.v1"))
    with pytest.raises(StatusError, match=message):
        await fleet.publish(await fleet.create(revision("edge", "bad-1", "ws", clone_of("blue.bad.v1"))))
    assert not any(ref.startswith("refs/heads/proposed/") for ref in refs(edge))
    good = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    await fleet.publish(good)


async def test_a_tag_that_moves_and_a_history_that_is_rewritten_upstream_lose_no_draft(
    fleet: StoreWorld, blueprints: Path, edge: Path
) -> None:
    """The revision shows the tag's new content; the draft's lock still names what it was made of."""
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    old = git(blueprints, "rev-parse", "app/v1")
    clone = blueprints.parent / f"clone-of-{blueprints.name}"
    (clone / "app" / "settings.yaml").write_text(CONFIG.replace("small", "moved"))
    git(clone, "commit", "--quiet", "--all", "--amend", "--message", "Rewritten")
    git(clone, "tag", "--force", "app/v1")
    git(clone, "push", "--quiet", "--force", "origin", "main", "app/v1")
    new = git(blueprints, "rev-parse", "app/v1")
    assert new != old

    async def shown() -> str:
        return str((await fleet.files("blue.app.v1"))["spec"]["resources"]["settings.yaml"])

    async with asyncio.timeout(DEADLINE_SECONDS):
        while "moved" not in await shown():  # noqa: ASYNC110 - the store reports no fetch
            await asyncio.sleep(0.02)
    assert fleet.condition("blue")["status"] == "True"
    assert fleet.present("edge.app-1.ws")["status"]["upstreamLock"]["git"]["commit"] == old
    assert "small" in tree(edge, "drafts/app-1/ws", "app-1")["settings.yaml"]
    await fleet.publish(draft)
    second = await fleet.create(revision("edge", "app-2", "ws", clone_of("blue.app.v1")))
    assert second["status"]["upstreamLock"]["git"]["commit"] == new


async def test_a_history_that_is_rewritten_downstream_takes_the_next_revision(
    fleet: StoreWorld, edge: Path
) -> None:
    """Tags keep what was published; the next approval goes onto the branch as it is now."""
    await fleet.publish(await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1"))))
    other = await fleet.create(revision("edge", "app-2", "ws", clone_of("blue.app.v1")))
    empty = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    git(edge, "update-ref", "refs/heads/main", git(edge, "commit-tree", "-m", "Anew", empty))
    await fleet.publish(other)
    assert git(edge, "ls-tree", "--name-only", "main") == "app-2"
    assert "refs/tags/app-1/v1" in refs(edge)
    assert fleet.present("edge.app-1.ws")["spec"]["lifecycle"] == "Published"
    edited = {"type": "edit", "edit": {"sourceRef": {"name": "edge.app-1.ws"}}}
    await fleet.publish(await fleet.create(revision("edge", "app-1", "again", edited)))
    assert git(edge, "ls-tree", "--name-only", "main").split() == ["app-1", "app-2"]
    assert (
        tree(edge, "app-1/v2", "app-1")["settings.yaml"] == tree(edge, "app-1/v1", "app-1")["settings.yaml"]
    )
