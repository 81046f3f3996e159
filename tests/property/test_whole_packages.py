"""Packages of any files go through the package store, and plain git finds the same bytes, modes and links.

The model is a table of git's modes and blobs. Files that are not YAML are compared as they are; of YAML, in
which a clone records origins, no line may be gone. `PVBUS_TEST_PACKAGES` is the number of packages.
"""

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.core.errors import PermanentError
from pvbus.core.variants.inject.rebasing import rebase
from pvbus.core.yaml.rawtext import no_text, text_of
from pvbus.ports.cluster import Object
from tests.integration.packages.support import StoreWorld, bare, clone_of, git, revision, running
from tests.integration.packages.test_upgrade import upgrade_of

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
PACKAGES = int(os.environ.get("PVBUS_TEST_PACKAGES", "10"))

KPTFILE = b"apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: any\n"
OBJECT = "# é\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {}\ndata:\n  a: 'ü'  # why\n"
PLAIN, RUN, LINK, MODULE = "100644", "100755", "120000", "160000"


class Entry(NamedTuple):
    """A file as git has it: its mode, and its bytes, the target of a link or the commit of a submodule."""

    mode: str
    data: bytes


Tree = Mapping[str, Entry]

PATHS = (
    "a.yaml", "b.yml", "c.txt", "logo.png", "run.sh", "dir/d.yaml", "dir/e.txt", "dir/deep/f.bin", "A.yaml",
    "Dir/g.txt", "ünï cödé.txt", "-rf", "it's \"it\".txt", "x" * 200, "c.txt/below", ".gitignore",
    ".gitmodules", "h.json.bak",
)  # fmt: skip
TARGETS = (b"c.txt", b"dir", b"nowhere", b"../x", b"/etc/passwd", b"dir/../../x", b"\xfc")
OBJECTS = st.builds(
    lambda name, ends, encoding, tail: (OBJECT.format(name) + tail).replace("\n", ends).encode(encoding),
    st.sampled_from(["one", "two"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "latin-1", "utf-16"]),
    st.sampled_from(["", "---\n", "...\n", "---\n# off\n"]),
)
CONTENTS = st.one_of(
    st.just(b""),
    OBJECTS,
    st.binary(max_size=60),
    st.sampled_from(
        [b"\xef\xbb\xbf", b"a\0b", b"a\r\nb\rc\n", "\U0010ff80\ufffd".encode(), b"\x89PNG\xff" * 60_000]
    ),
)
FILES = st.builds(Entry, st.sampled_from([PLAIN, PLAIN, RUN]), CONTENTS)
LINKS = st.builds(Entry, st.just(LINK), st.sampled_from(TARGETS))
MODULES = st.just(Entry(MODULE, b"1234567890123456789012345678901234567890"))
ENTRIES = st.one_of(FILES, FILES, FILES, LINKS, MODULES)
TREES = st.dictionaries(st.sampled_from(PATHS), st.one_of(FILES, FILES, FILES, FILES, LINKS), max_size=5)
ODD = st.dictionaries(st.sampled_from(PATHS), ENTRIES, max_size=2)
CHANGED = st.one_of(st.none(), FILES, FILES, FILES, FILES, FILES, LINKS, MODULES)
CHANGES = st.dictionaries(st.sampled_from(PATHS), CHANGED, max_size=4)


def is_yaml(path: str) -> bool:
    return path.endswith((".yaml", ".yml")) or path == "Kptfile"


def problems(tree: Tree) -> list[str]:
    """Return the paths that no package may have, by other means than the store's."""
    found = [path for path, entry in tree.items() if entry.mode == MODULE]
    folded: dict[str, str] = {}
    for path in tree:
        for depth in range(path.count("/") + 1):
            part = "/".join(path.split("/")[: depth + 1])
            if folded.setdefault(part.lower(), part) != part:
                found.append(part)
    for path, entry in tree.items():
        if entry.mode == LINK:
            end = os.path.normpath(f"/root/{os.path.dirname(path)}/{text_of(entry.data)}")
            is_out = entry.data.startswith(b"/") or not f"{end}/".startswith("/root/")
            if is_out or end == f"/root/{path}":  # of TARGETS, only c.txt is a path: no other circle can be
                found.append(path)
    return found


def without_clashes(tree: Tree) -> dict[str, Entry]:
    """Drop files below files, which git cannot hold either."""
    return {
        path: entry for path, entry in tree.items() if not any(path.startswith(f"{each}/") for each in tree)
    }


def commit(remote: Path, package: str, tag: str, tree: Tree) -> None:
    """Write a package with plain git, its files as they are."""
    lines = [b"commit refs/heads/main\nmark :1\ncommitter A <a@b> 1 +0000\ndata 0\n"]
    if (
        subprocess.run(
            ["git", "rev-parse", "-q", "--verify", "main"], cwd=remote, capture_output=True
        ).returncode
        == 0
    ):
        lines.append(b"from refs/heads/main^0\n")
    lines.append(b"D %s\n" % package.encode())
    for path, entry in {"Kptfile": Entry(PLAIN, KPTFILE), **tree}.items():
        quoted = f"{package}/{path}".replace("\\", "\\\\").replace('"', '\\"').encode()
        if entry.mode == MODULE:
            lines.append(b'M %s %s "%s"\n' % (entry.mode.encode(), entry.data, quoted))
        else:
            lines.append(
                b'M %s inline "%s"\ndata %d\n%s\n'
                % (entry.mode.encode(), quoted, len(entry.data), entry.data)
            )
    lines.append(b"\nreset refs/tags/%s/%s\nfrom :1\n" % (package.encode(), tag.encode()))
    command = ["git", "fast-import", "--quiet"]
    subprocess.run(command, cwd=remote, input=b"".join(lines), check=True, capture_output=True)


def read(remote: Path, where: str) -> dict[str, Entry]:
    """Read a folder with plain git: mode and blob of each file."""
    out = subprocess.run(
        ["git", "ls-tree", "-r", "-z", where], cwd=remote, capture_output=True, check=True
    ).stdout
    rows = (row.partition(b"\t") for row in out.split(b"\0") if row)
    return {name.decode(): Entry(facts.split()[0].decode(), facts.split()[2]) for facts, _, name in rows}


def content(remote: Path, entry: Entry) -> bytes:
    command = ["git", "cat-file", "blob", entry.data.decode()]
    return subprocess.run(command, cwd=remote, capture_output=True, check=True).stdout


class Stores(NamedTuple):
    world: StoreWorld
    blue: Path
    edge: Path

    def assert_copied(self, upstream: Mapping[str, Entry], draft: Mapping[str, Entry]) -> None:
        """All of upstream is in the draft, and nothing else."""
        assert draft.keys() == upstream.keys()
        for path, entry in upstream.items():
            assert draft[path].mode == entry.mode, path
            if draft[path] == entry or path == "Kptfile":
                continue
            assert is_yaml(path), path
            lines = iter(content(self.edge, draft[path]).splitlines())
            for line in content(self.blue, entry).splitlines():
                start = line.rstrip()
                assert any(each.startswith(start) for each in lines), (path, line)


def merged(old: Entry | None, local: Entry | None, new: Entry | None) -> Entry | None:
    """Return what a merge has of a file that it takes whole: content and mode each as one side changed it."""

    def part(of: Any) -> Any:
        before, ours, theirs = (of(side) if side is not None else None for side in (old, local, new))
        return theirs if ours == before else ours

    whole = part(lambda side: (side.mode == LINK, side.data))
    if whole is None or whole[0]:
        return None if whole is None else Entry(LINK, whole[1])
    modes = [side.mode if side is not None and side.mode != LINK else None for side in (old, local, new)]
    mode = modes[2] if modes[2] and modes[1] in (None, modes[0]) else modes[1]
    return Entry(mode or PLAIN, whole[1])


async def go_through(stores: Stores, package: str, old: Tree, changes: Mapping[str, Entry | None]) -> None:
    world, blue, edge = stores
    new = without_clashes({p: e for p, e in {**old, **changes}.items() if e is not None})
    commit(blue, package, "v1", old)
    commit(blue, package, "v2", new)
    await world.until(lambda: world.revision(f"blue.{package}.v1") and world.revision(f"blue.{package}.v2"))
    wanted = revision("edge", package, "ws", clone_of(f"blue.{package}.v1"))
    if bad := problems(old):
        await assert_refused(world.create(wanted), bad)
        return
    draft = await world.create(wanted)
    upstream = read(blue, f"{package}/v1:{package}")
    stores.assert_copied(upstream, read(edge, f"drafts/{package}/ws:{package}"))
    follower = f"{package}-f"
    await world.create(revision("edge", follower, "ws", clone_of(f"blue.{package}.v1")))

    files = await world.files(f"edge.{package}.ws")
    before = git(edge, "rev-parse", f"drafts/{package}/ws")
    await world.put(files, {})
    assert git(edge, "rev-parse", f"drafts/{package}/ws") == before
    if is_unrendered(draft, old):
        return
    assert not any(
        is_yaml(path) and entry.mode != LINK and no_text(text_of(entry.data)) for path, entry in old.items()
    )
    await world.put(files, {"own.txt": "own\n"} | {"moved.bin": files["spec"]["resources"].get("logo.png")})
    mine = read(edge, f"drafts/{package}/ws:{package}")
    if "logo.png" in files["spec"]["resources"]:
        assert mine["moved.bin"].data == upstream["logo.png"].data
    await world.publish(world.present(f"edge.{package}.ws"))
    assert read(edge, f"main:{package}") == mine
    await rebase_and_publish(stores, follower, package, new)

    names = (f"edge.{package}.ws", f"blue.{package}.v1", f"blue.{package}.v2")
    wanted = revision("edge", package, "next", upgrade_of(*names))
    if bad := problems({**new, "own.txt": Entry(PLAIN, b"")}):
        await assert_refused(world.create(wanted), bad)
        return
    await world.create(wanted)
    upgraded = read(edge, f"drafts/{package}/next:{package}")
    assert_merged(upstream, mine, read(blue, f"{package}/v2:{package}"), upgraded)


def assert_merged(old: Tree, local: Tree, new: Tree, result: Tree) -> None:
    for path in old.keys() | local.keys() | new.keys():
        if is_yaml(path):
            assert (path in result) == (path in new), path
        else:
            assert result.get(path) == merged(old.get(path), local.get(path), new.get(path)), path
    assert result.keys() <= old.keys() | local.keys() | new.keys()


def is_unrendered(draft: Object, files: Iterable[str]) -> bool:
    """Whether the pipeline has failed, as it may if its message names one of the files."""
    rendered = draft["status"]["conditions"][0]
    assert rendered["status"] == "True" or any(path in rendered["message"] for path in files)
    return bool(rendered["status"] != "True")


async def rebase_and_publish(stores: Stores, follower: str, package: str, upstream: Tree) -> None:
    """Bring an open draft to the second revision of its upstream, as inject does, and publish it on a branch
    that has moved since the draft was made. upstream: the second revision."""
    world, blue, edge = stores
    draft, first, second = f"edge.{follower}.ws", f"blue.{package}.v1", f"blue.{package}.v2"
    await world.put(await world.files(draft), {"own.txt": "own\n"})
    mine = read(edge, f"drafts/{follower}/ws:{follower}")
    resources = await world.files(draft)
    bad = problems({**upstream, "own.txt": Entry(PLAIN, b"")})
    if any(
        entry.mode == MODULE for entry in upstream.values()
    ):  # a text shows none: it is refused as a whole
        await assert_refused(world.files(second), bad)
        return
    old, local, new = [(await world.files(name))["spec"]["resources"] for name in (first, draft, second)]
    lock = world.present(second)["status"]["selfLock"]
    if marked := [path for path, text in new.items() if "\ufffd" in text and text != local.get(path)]:
        with pytest.raises(PermanentError) as refused:
            rebase(draft, old, local, new, lock, deployment=False)
        assert any(path in str(refused.value) for path in marked), refused.value
        return
    texts = rebase(draft, old, local, new, lock, deployment=False).texts
    changes = {path: texts.get(path) for path in texts.keys() | local.keys()}
    if bad:
        await assert_refused(world.put(resources, changes), bad)
        assert read(edge, f"drafts/{follower}/ws:{follower}") == mine
        return
    await world.put(resources, changes)
    rebased = read(edge, f"drafts/{follower}/ws:{follower}")
    assert_merged(read(blue, f"{package}/v1:{package}"), mine, read(blue, f"{package}/v2:{package}"), rebased)
    if is_unrendered(world.present(draft), upstream):
        return
    others = read(edge, f"main:{package}")
    await world.publish(world.present(draft))
    assert read(edge, f"main:{follower}") == rebased
    assert read(edge, f"main:{package}") == others


async def assert_refused(request: Awaitable[Object], bad: list[str]) -> None:
    """The refusal is of the content, and names one of the bad paths."""
    with pytest.raises(StatusError) as refused:
        await request
    assert refused.value.code == 422, refused.value.message
    assert any(repr(path[:60])[1:-1] in refused.value.message for path in bad), refused.value.message


@pytest.mark.slow
@pytest.mark.timeout(120 + 5 * PACKAGES)
def test_any_package_arrives_whole_or_is_refused(tmp_path: Path) -> None:
    blue, edge = bare(tmp_path / "blue.git"), bare(tmp_path / "edge.git")
    numbers = count()
    with asyncio.Runner() as runner:
        context = running(tmp_path / "data")
        world = runner.run(context.__aenter__())
        try:
            commit(blue, "first", "v1", {})
            runner.run(world.add_repository("blue", blue))
            runner.run(world.add_repository("edge", edge))
            stores = Stores(world, blue, edge)

            @settings(max_examples=PACKAGES, suppress_health_check=[HealthCheck.too_slow], phases=PHASES)
            @given(TREES, ODD, CHANGES)
            @example(tree={}, odd={}, changes={"c.txt": Entry(LINK, b"c.txt")})
            def check(tree: Tree, odd: Tree, changes: Mapping[str, Entry | None]) -> None:
                old = without_clashes({**tree, **(odd if len(odd) == 2 else {})})
                runner.run(go_through(stores, f"p{next(numbers)}", old, changes))

            check()
        finally:
            runner.run(context.__aexit__(None, None, None))
