"""What is in a package arrives to the last byte, or is refused with file and reason, on every way in."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.ports.cluster import Object
from tests.integration.packages.support import (
    CONFIG,
    KPTFILE,
    StoreWorld,
    clone_of,
    git,
    push_files,
    revision,
    running,
)
from tests.integration.packages.test_bad_packages import bytes_of
from tests.integration.packages.test_upgrade import upgrade_of

LATIN = CONFIG.replace("small", "Zürich").encode("latin-1")
ELSEWHERE = "1234567890123456789012345678901234567890"


def publish(remote: Path, package: str, files: Mapping[str, bytes | str], *, tag: str = "v1") -> None:
    """Publish a package by hand. A text is the target of a link, or `gitlink`."""
    push_files(remote, {f"{package}/Kptfile": KPTFILE.format(name=package)})
    clone = remote.parent / f"clone-of-{remote.name}"
    for name, content in files.items():
        path = clone / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content == "gitlink":
            git(clone, "update-index", "--add", "--cacheinfo", f"160000,{ELSEWHERE},{package}/{name}")
        else:
            path.symlink_to(content)
    git(clone, "add", *(f"{package}/{name}" for name in files if files[name] != "gitlink"))
    git(clone, "commit", "--quiet", "--allow-empty", "--message", package)
    git(clone, "tag", f"{package}/{tag}")
    git(clone, "push", "--quiet", "origin", "main", f"{package}/{tag}")


def by_address(remote: Path, package: str) -> Object:
    location = {"repo": str(remote), "ref": "v1", "directory": package}
    return {"type": "clone", "clone": {"upstreamRef": {"type": "git", "git": location}}}


async def test_yaml_that_is_not_utf8_keeps_its_bytes_and_names_file_and_byte(
    fleet: StoreWorld, blueprints: Path, edge: Path
) -> None:
    """It is cloned, saved and renamed byte for byte; functions cannot read it, and the condition says so."""
    publish(blueprints, "town", {"town.yaml": LATIN, "notes.txt": LATIN, "logo.png": b"\x89PNG\xff\x00\xfe"})
    await fleet.until(lambda: fleet.revision("blue.town.v1"))
    draft = await fleet.create(revision("edge", "town", "ws", clone_of("blue.town.v1")))

    def assert_whole(path: str, name: str) -> None:
        assert bytes_of(edge, "drafts/town/ws:town", path) == bytes_of(blueprints, "town/v1:town", name)

    for name in ("town.yaml", "notes.txt", "logo.png"):
        assert_whole(name, name)
    (condition,) = draft["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Rendered", "False")
    assert condition["message"].startswith("town.yaml: yaml: line 7: the byte 0xFC is not UTF-8")
    files = await fleet.files("edge.town.ws")
    shown = files["spec"]["resources"]
    saved = await fleet.put(
        files, {"town.yaml": None, "old/town.txt": shown["town.yaml"], "copy.png": shown["logo.png"]}
    )
    assert_whole("old/town.txt", "town.yaml")
    assert_whole("copy.png", "logo.png")
    assert saved["spec"]["resources"]["copy.png"] == shown["logo.png"]
    assert fleet.present("edge.town.ws")["status"]["conditions"][0]["status"] == "True"


async def test_a_kptfile_that_is_not_utf8_cannot_be_cloned(fleet: StoreWorld, blueprints: Path) -> None:
    kptfile = KPTFILE.format(name="town").replace("example", "Zürich").encode("latin-1")
    publish(blueprints, "town", {"Kptfile": kptfile})
    upstream = await fleet.until(lambda: fleet.revision("blue.town.v1"))
    assert "0xFC is not UTF-8" in upstream["status"]["conditions"][0]["message"]
    with pytest.raises(StatusError, match="Kptfile: yaml: line 7: the byte 0xFC is not UTF-8") as refused:
        await fleet.create(revision("edge", "town", "ws", clone_of("blue.town.v1")))
    assert refused.value.code == 422


REFUSED: Mapping[str, tuple[Mapping[str, bytes | str], str]] = {
    "module": ({"vendor": "gitlink"}, "'vendor' is a git submodule"),
    "cased": ({"README.md": b"a", "readme.md": b"b"}, "differ only in case"),
    "out": ({"dir/out": "../../x"}, "'dir/out' leads out of the package"),
    "around": ({"a/b/up": "../..", "a/out": "b/up/.."}, "'a/out' leads out of the package"),
    "circle": ({"one": "two", "two": "one"}, "leads in a circle"),
}


async def test_what_no_package_may_have_is_refused_alike_on_every_way_in(
    blueprints: Path, edge: Path, tmp_path: Path
) -> None:
    """By a clone of a revision or an address, an upgrade and an edit; no retry helps, so it is 422."""
    async with running(tmp_path / "data", local_folders=(str(blueprints.parent),)) as world:
        for package, (files, _) in REFUSED.items():
            publish(blueprints, package, {})
            publish(blueprints, package, files, tag="v2")
        await world.add_repository("blue", blueprints)
        await world.add_repository("edge", edge)
        for package, (_, message) in REFUSED.items():
            local = await world.create(revision("edge", package, "ws", clone_of(f"blue.{package}.v1")))
            await world.publish(local)
            address = by_address(blueprints, package)
            address["clone"]["upstreamRef"]["git"]["ref"] = "v2"
            upgrade = upgrade_of(f"edge.{package}.ws", f"blue.{package}.v1", f"blue.{package}.v2")
            edit = {"type": "edit", "edit": {"sourceRef": {"name": f"blue.{package}.v2"}}}
            for wanted in (
                revision("edge", f"new-{package}", "ws", clone_of(f"blue.{package}.v2")),
                revision("edge", f"new-{package}", "ws", address),
                revision("edge", package, "next", upgrade),
                revision("blue", package, "next", edit),
            ):
                with pytest.raises(StatusError) as refused:
                    await world.create(wanted)
                assert refused.value.code == 422, refused.value.message
                assert message in refused.value.message


async def test_a_file_below_a_link_is_refused_and_the_link_stays(
    fleet: StoreWorld, blueprints: Path, edge: Path
) -> None:
    """The API shows no links, so a client does not know that the folder's name is taken."""
    publish(blueprints, "linked", {"real/a.txt": b"a", "link": "real", "README": "real/a.txt"})
    await fleet.until(lambda: fleet.revision("blue.linked.v1"))
    await fleet.create(revision("edge", "linked", "ws", clone_of("blue.linked.v1")))
    files = await fleet.files("edge.linked.ws")
    for path, message in (("link/b.txt", "both a file and a folder"), ("Readme", "differ only in case")):
        with pytest.raises(StatusError, match=message) as refused:
            await fleet.put(files, {path: "b"})
        assert refused.value.code == 422
    await fleet.put(files, {"real/b.txt": "b"})
    where = "drafts/linked/ws:linked"
    assert bytes_of(edge, where, "link") == bytes_of(blueprints, "linked/v1:linked", "link")
