"""Repositories made to harm: each is refused in a sentence or read as what it is, and runs no program here.

The package store (its mirror) and the sources of packages read the same repositories.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pvbus.adapters.sources.git import GitRemote
from pvbus.adapters.sources.limits import SourceLimits
from pvbus.controlplane.packages import gitcommand, gitrepo, programs
from pvbus.controlplane.packages.bounds import ContentError
from pvbus.controlplane.packages.gitcommand import Git, GitError
from pvbus.controlplane.packages.gitrepo import BareMirror
from pvbus.core.errors import PermanentError
from pvbus.core.platform.packaging.references import GitFolder
from tests.tools.gitobjects import FILE, FOLDER, LINK, SUBMODULE, Entry, RawRepository

KPTFILE = b"apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata: {name: p}\n"
SECONDS_MAX = 20.0
"""What is not bounded takes hours; the rest some milliseconds."""


class Case(NamedTuple):
    """entries: of the package's folder. store, source: what each refuses, "" for nothing."""

    entries: Callable[[RawRepository], list[Entry]]
    store: str = ""
    source: str = ""


def _file(name: bytes, mode: bytes = FILE, data: bytes = b"a: 1\n") -> Callable[[RawRepository], list[Entry]]:
    return lambda made: [(mode, name, made.blob(data))]


_CASES = {
    "a folder without files that holds itself a billion times": Case(
        lambda made: [(FOLDER, b"x", made.nested(made.tree([]), depth=9, width=10))],
        "more than 10000 folders",
        "git printed more than",
    ),
    "a file a billion times": Case(
        lambda made: [
            (FOLDER, b"x", made.nested(made.tree([(FILE, b"f", made.blob(b""))]), depth=9, width=10))
        ],
        "more than 10000 folders",
        "git printed more than",
    ),
    "folders in folders": Case(
        lambda made: [(FOLDER, b"x", made.nested(made.tree([]), depth=200, width=1))],
        "more than 64 nested folders",
    ),
    "..": Case(_file(b".."), "not a path inside a package", "the path has .."),
    "a folder ..": Case(
        lambda made: [(FOLDER, b"..", made.tree([(FILE, b"up", made.blob(b""))]))],
        "not a path inside a package",
        "the path has ..",
    ),
    ".git": Case(_file(b".git"), "not a path inside a package"),
    ".GIT of a Mac": Case(_file(".g\u200cIT".encode()), "not a path inside a package", "control character"),
    "a slash in a name": Case(_file(b"a/b"), "one name in a folder has a slash"),
    "an absolute name": Case(_file(b"/etc/passwd"), "one name in a folder has a slash", "absolute"),
    "a name twice": Case(
        lambda made: [(FILE, b"a", made.blob(b"1")), (FILE, b"a", made.blob(b"2"))],
        "'a' is there twice",
        "'a': the path is there twice",
    ),
    "a line in a name": Case(_file(b"a\nb"), "characters that no file name may have", "control character"),
    "a name that is not UTF-8": Case(_file(b"\xff\xfe"), "not UTF-8", "not UTF-8"),
    "a long name": Case(_file(b"a" * 5000), "is too long", "more than 4096 characters"),
    "an absolute link": Case(_file(b"l", LINK, b"/etc/passwd"), source="it is a link"),
    "a link out of the package": Case(_file(b"l", LINK, b"../../../etc/passwd"), source="it is a link"),
    "a link to itself": Case(_file(b"l", LINK, b"l"), source="it is a link"),
    "a submodule": Case(
        lambda made: [(SUBMODULE, b"s", "1" * 40)], "'s' is a git submodule", "it is a submodule"
    ),
    "a pointer of LFS": Case(
        lambda made: [
            (FILE, b".gitattributes", made.blob(b"* filter=lfs diff=lfs merge=lfs\n")),
            (FILE, b"big.yaml", made.blob(b"version https://git-lfs.github.com/spec/v1\noid x\n")),
        ]
    ),
}  # fmt: skip


def _packaged(made: RawRepository, entries: list[Entry]) -> str:
    return made.tree([(FOLDER, b"pkg", made.tree([(FILE, b"Kptfile", made.blob(KPTFILE)), *entries]))])


def _mirror(tmp_path: Path, made: RawRepository) -> BareMirror:
    return BareMirror(tmp_path / "mirror", str(made.folder), Git())


def _remote(made: RawRepository) -> GitRemote:
    return GitRemote(GitFolder(f"file://{made.folder}", "pkg", "main"), SourceLimits(seconds_max=SECONDS_MAX))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize("name", _CASES)
def test_what_a_folder_holds_is_read_or_refused(tmp_path: Path, name: str) -> None:
    made, case = RawRepository(tmp_path / "r.git"), _CASES[name]
    made.set_ref(made.commit(_packaged(made, case.entries(made))))
    mirror = _mirror(tmp_path, made)
    tree = mirror.tree_of(mirror.fetch_one("refs/heads/main"), "pkg")
    assert tree is not None
    if case.store:
        with pytest.raises(ContentError, match=case.store):
            mirror.files(tree)
    else:
        assert mirror.files(tree)["Kptfile"].data == KPTFILE
    remote = _remote(made)
    commit = remote.refs().commit("pkg", "main")
    if case.source:
        with pytest.raises(PermanentError, match=case.source):
            remote.files(commit)
    else:
        assert remote.files(commit)["Kptfile"] == KPTFILE


def test_links_and_pointers_are_texts(tmp_path: Path) -> None:
    """Neither a link's target nor a large file is looked for."""
    made = RawRepository(tmp_path / "r.git")
    entries = [
        entry for name in ("an absolute link", "a pointer of LFS") for entry in _CASES[name].entries(made)
    ]
    made.set_ref(made.commit(_packaged(made, entries)))
    mirror = _mirror(tmp_path, made)
    files = mirror.files(mirror.tree_of(mirror.fetch_one("refs/heads/main"), "pkg") or "")
    assert {path: file.data[:20] for path, file in files.items() if path != "Kptfile"} == {
        "l": b"/etc/passwd",
        ".gitattributes": b"* filter=lfs diff=lf",
        "big.yaml": b"version https://git-",
    }


def test_an_object_that_is_read_whole_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit, tag or folder of 200 MB packs to 200 KB."""
    monkeypatch.setattr(gitrepo, "OBJECT_BYTES_MAX", 1024)
    made = RawRepository(tmp_path / "r.git")
    small, large = _packaged(made, []), made.tree([(FILE, b"a" * 2000, made.blob(b""))])
    commits = {"message": made.commit(small, b"x" * 2000), "folder": made.commit(large)}
    made.set_ref(made.commit(small))
    for name, oid in commits.items():
        made.set_ref(oid, f"refs/heads/{name}")
    mirror = _mirror(tmp_path, made)
    mirror.fetch()
    for read in (
        lambda: mirror.commit(commits["message"]),
        lambda: mirror.commit_of(commits["message"]),
        lambda: mirror.tree_of(commits["message"], "pkg"),
        lambda: mirror.packages(commits["folder"], ""),
        lambda: mirror.files(mirror.tree_of(commits["folder"]) or ""),
    ):
        with pytest.raises(
            ContentError, match=r"has 2\d\d\d bytes, and a commit, tag or folder at most 1024"
        ):
            read()
    assert list(mirror.packages(mirror.refs["refs/heads/main"], "")) == ["pkg"]


@pytest.mark.parametrize("date", ["99999999999999999999 +0000", "-1 -9999", "x", "253402300800 +9999"])
def test_a_commit_has_a_date_that_an_api_can_hold_or_is_none(tmp_path: Path, date: str) -> None:
    made = RawRepository(tmp_path / "r.git")
    made.set_ref(made.commit(_packaged(made, []), date=date))
    mirror = _mirror(tmp_path, made)
    commit = mirror.commit(mirror.fetch_one("refs/heads/main") or "")
    assert commit is None or "1970" <= commit.authored[:4] <= "9999"


def test_tags_of_tags_have_a_limit(tmp_path: Path) -> None:
    made = RawRepository(tmp_path / "r.git")
    commit = made.commit(_packaged(made, []))
    first = target = made.tag(commit, "commit")
    for _ in range(100):
        target = made.tag(target, "tag")
    made.set_ref(commit)
    made.set_ref(first, "refs/tags/pkg/v1")
    made.set_ref(target, "refs/tags/pkg/v2")
    mirror = _mirror(tmp_path, made)
    mirror.fetch()
    assert mirror.commit_of(mirror.refs["refs/tags/pkg/v1"]) == commit
    assert mirror.commit_of(mirror.refs["refs/tags/pkg/v2"]) is None


def test_a_pack_that_unpacks_to_more_than_the_memory_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = programs.Limits(memory_bytes=64 << 20, file_bytes=64 << 20)
    monkeypatch.setattr(gitcommand, "UPSTREAM_LIMITS", limits)
    monkeypatch.setattr(gitcommand, "FETCH_LIMITS", limits)
    made = RawRepository(tmp_path / "r.git")
    made.set_ref(made.commit(_packaged(made, [(FILE, b"z", made.blob(bytes(100 << 20)))])))
    mirror = _mirror(tmp_path, made)
    refusal = "more than 67108864 bytes of memory to unpack"
    with pytest.raises(GitError, match=refusal):
        mirror.fetch_one("refs/heads/main")
    with pytest.raises(GitError, match=refusal):
        mirror.fetch()


def test_a_repository_runs_no_program_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks, and settings that name programs: in the repository, in an included file, in a person's file."""
    marker, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0" >> {marker}\nexec "$@"\n')
    program.chmod(0o755)
    made = RawRepository(tmp_path / "r.git")
    commit = made.commit(_packaged(made, []))
    made.set_ref(commit)
    settings = (
        f"[core]\n\tfsmonitor = {program}\n\tpager = {program}\n\tsshCommand = {program}\n"
        f"\talternateRefsCommand = {program}\n\taskPass = {program}\n\teditor = {program}\n"
        f"[uploadpack]\n\tpackObjectsHook = {program}\n[credential]\n\thelper = !{program}\n"
        f"[filter \"lfs\"]\n\tsmudge = {program}\n\tprocess = {program}\n\trequired = true\n"
        f"[gpg]\n\tprogram = {program}\n[diff]\n\texternal = {program}\n"
    )  # fmt: skip
    (tmp_path / "included").write_text(settings)
    with (made.folder / "config").open("a") as config:
        config.write(settings + f'[includeIf "gitdir:**"]\n\tpath = {tmp_path / "included"}\n')
    for hook in ("post-checkout", "reference-transaction", "post-index-change", "pre-auto-gc"):
        link = made.folder / "hooks" / hook
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(program)
    mirror = _mirror(tmp_path, made)
    mirror.fetch()
    mirror.fetch_one("refs/heads/main")
    Git().run("pack-refs", "--all", directory=made.folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text(settings)
    remote = _remote(made)
    assert remote.files(remote.refs().commit("pkg", "main"))["Kptfile"] == KPTFILE
    assert not marker.exists(), marker.read_text()


def test_a_repository_of_very_many_tags_is_read(tmp_path: Path) -> None:
    made = RawRepository(tmp_path / "r.git")
    commit = made.commit(_packaged(made, []))
    made.set_ref(commit)
    lines = "".join(f"{commit} refs/tags/v{number:05}\n" for number in range(20_000))
    (made.folder / "packed-refs").write_text(f"# pack-refs with: peeled fully-peeled sorted \n{lines}")
    assert len(_remote(made).refs().versions("pkg")) == 20_000
    assert Git().remote_refs(str(made.folder), ["refs/tags/v19999"], tmp_path) == {"refs/tags/v19999": commit}


def test_objects_of_a_folder_that_a_repository_borrows_from_are_its_own(tmp_path: Path) -> None:
    """Alternates lead to another repository; only what is reachable from the refs is sent, and none here."""
    other, made = RawRepository(tmp_path / "other.git"), RawRepository(tmp_path / "r.git")
    secret = other.commit(_packaged(other, []), b"secret")
    made.set_ref(made.commit(_packaged(made, [])))
    (made.folder / "objects/info").mkdir(exist_ok=True)
    (made.folder / "objects/info/alternates").write_text(f"{other.folder}/objects\n")
    mirror = _mirror(tmp_path, made)
    mirror.fetch()
    assert not (mirror.path / "objects/info/alternates").exists()
    assert subprocess.run(["git", "cat-file", "-e", secret], cwd=mirror.path, check=False).returncode


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "https://169.254.169.254/x.git",
        "http://0xa9fea9fe/x.git",
        "http://2852039166/x.git",
        "http://[::ffff:169.254.169.254]/x.git",
        "http://[fd00:ec2::254]/x.git",
        "ssh://git@169.254.169.254/x.git",
        "http://0.0.0.0/x.git",
    ],
)
def test_git_does_not_connect_to_a_metadata_address(tmp_path: Path, url: str) -> None:
    refusal = "git does not connect there"
    with pytest.raises(PermanentError, match=refusal) as caught:
        GitRemote(GitFolder(url, "pkg", "main"), SourceLimits())
    assert caught.value.reason == "Forbidden"
    with pytest.raises(GitError, match=refusal):
        Git(url=url).remote_refs(url, ["refs/heads/main"], tmp_path)
    mirror = BareMirror(tmp_path / "mirror", url, Git(url=url))
    with pytest.raises(GitError, match=refusal):
        mirror.fetch()


@pytest.mark.parametrize("url", ["git@169.254.169.254:x.git", "169.254.169.254:x.git"])
def test_an_address_of_ssh_without_a_scheme_is_judged_too(tmp_path: Path, url: str) -> None:
    with pytest.raises(GitError, match="git does not connect there"):
        Git(url=url).remote_refs(url, ["refs/heads/main"], tmp_path)
