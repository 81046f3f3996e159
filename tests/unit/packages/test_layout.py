"""Names, refs and commit messages of Porch's git layout."""

import re
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.layout import Annotation, PackageRef, RenderNote
from pvbus.core.kernel.keys import revision_name
from pvbus.core.kernel.packagepaths import package_problem

LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
LIKE_A_VERSION = re.compile(r"\.v[0-9]*(\.[0-9]+)+$")
"""How names end that do not tell whether the last dots are of the workspace or of the package."""


class RevisionName(NamedTuple):
    """A PackageRevision's name taken apart. package has dots where its path has slashes."""

    repository: str
    package: str
    workspace: str


def parse_revision_name(name: str) -> RevisionName | None:
    """Take a name apart as Porch v1.5.8 does; None when it has fewer than three parts."""
    repository, _, rest = name.partition(".")
    if re.search(r"\.v[0-9.]*[0-9]$", rest):
        package, separator, tail = rest.rpartition(".v")
        workspace = f"v{tail}"
    else:
        package, separator, workspace = rest.rpartition(".")
    if not (repository and package and separator and workspace):
        return None
    return RevisionName(repository, package, workspace)


@pytest.mark.parametrize(
    ("namespace", "name", "uid"),
    [
        ("rpkg-clone", "git.basens-clone.clone-2", "710e4f9b-b21f-5786-bf04-1d1d9b32d57c"),
        ("rpkg-clone", "git.empty-clone.clone-1", "e8317a47-90ce-5c75-b548-26e7de2e2508"),
        ("RPKG-clone", "git.Basens-clone.clone-2", "710e4f9b-b21f-5786-bf04-1d1d9b32d57c"),
    ],
)
def test_the_uid_of_a_revision_is_the_one_porch_computes(namespace: str, name: str, uid: str) -> None:
    assert layout.revision_uid(namespace, name) == uid


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("repo.pkg.ws", RevisionName("repo", "pkg", "ws")),
        ("repo.a.b.pkg.ws", RevisionName("repo", "a.b.pkg", "ws")),
        ("repo.pkg.v1.2", RevisionName("repo", "pkg", "v1.2")),
        ("repo.pkg.v3", RevisionName("repo", "pkg", "v3")),
        ("repo.pkg.v1.2.3", RevisionName("repo", "pkg", "v1.2.3")),
        ("repo.pkg.version", RevisionName("repo", "pkg", "version")),
        ("repo.x.v.0", RevisionName("repo", "x", "v.0")),  # of package x/v, too: the name does not tell
        ("repo.pkg", None),
        ("repo", None),
        ("", None),
    ],
)
def test_names_are_taken_apart_as_porch_does(name: str, parts: RevisionName | None) -> None:
    assert parse_revision_name(name) == parts


@given(repository=LABEL, package=st.lists(LABEL, min_size=1, max_size=3), workspace=LABEL)
def test_a_composed_name_comes_apart_again(repository: str, package: list[str], workspace: str) -> None:
    name = revision_name(repository, "/".join(package), workspace)
    assume(not LIKE_A_VERSION.search(name))
    assert parse_revision_name(name) == RevisionName(repository, ".".join(package), workspace)


@given(directory=st.lists(LABEL, min_size=1, max_size=4).map("/".join), identifier=LABEL)
def test_every_kind_of_ref_can_be_read_back(directory: str, identifier: str) -> None:
    for kind, ref in (
        ("draft", layout.draft_ref(directory, identifier)),
        ("proposed", layout.proposed_ref(directory, identifier)),
        ("deletion", layout.deletion_ref(directory, identifier)),
        ("tag", layout.tag_ref(directory, identifier)),
    ):
        assert layout.parse_ref(ref) == PackageRef(kind, directory, identifier)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ref",
    ["refs/heads/main", "refs/tags/v1", "refs/heads/feature/x", "refs/heads/drafts/x", "refs/notes/a/b"],
)
def test_other_refs_are_not_of_packages(ref: str) -> None:
    assert layout.parse_ref(ref) is None


@pytest.mark.parametrize(
    ("tag", "number"), [("v1", 1), ("v12", 12), ("v1.2", -1), ("beta", -1), ("1", -1), ("v", -1), ("v-1", -1)]
)
def test_only_v_and_an_integer_is_a_revision_number(tag: str, number: int) -> None:
    assert layout.revision_number(tag) == number


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("a", True),
        ("a/b-c/d", True),
        ("0", True),
        ("a" * 63, True),
        ("a" * 64, False),
        ("a//b", False),
        ("/a", False),
        ("a/", False),
        ("", False),
        ("A", False),
        ("a.b", False),
        ("-a", False),
        ("a b", False),
        ("../a", False),
    ],
)
def test_package_paths_are_labels_joined_by_slashes(path: str, good: bool) -> None:
    assert (package_problem(path) is None) == good


@pytest.mark.parametrize(
    ("directory", "base", "path"),
    [("a/b", "", "a/b"), ("a/b", "a", "b"), ("a/b", "/a/", "b"), ("ab/c", "a", None), ("a", "a", None)],
)
def test_a_package_is_named_from_the_repositorys_directory_on(
    directory: str, base: str, path: str | None
) -> None:
    assert layout.package_path(directory, base) == path


def test_draft_messages_have_porchs_framing_and_our_line_behind_it() -> None:
    annotation = Annotation(package="a/b", workspace_name="ws", revision="0", task={"type": "init"})
    message = layout.draft_message("Creating new empty revision", annotation)
    assert message == (
        "Creating new empty revision\n\n\n"
        'kpt:{"package":"a/b","workspaceName":"ws","revision":"0","task":{"type":"init"}}\n'
    )
    noted = layout.draft_message("Creating new empty revision", annotation, RenderNote("done", "abc"))
    assert noted == message + "pvbus-render: done abc\n"
    assert layout.parse_annotations(noted) == [annotation]
    assert layout.parse_render_note(noted) == RenderNote("done", "abc")


def test_approve_messages_have_porchs_framing() -> None:
    assert layout.approve_message("a/b", "ws", 3) == (
        'Approving package revision a/b/3\n\nkpt:{"package":"a/b","workspaceName":"ws","revision":"3"}\n'
    )


@pytest.mark.parametrize("state", ["done", "failed", "deferred"])
def test_a_render_note_survives_the_commit_message(state: str) -> None:
    note = RenderNote(state, "" if state == "deferred" else "0123abcd")
    assert layout.parse_render_note(layout.draft_message("t", Annotation(), note)) == note


def test_reading_annotations_skips_what_is_broken_and_finds_every_line() -> None:
    message = (
        'A title\n\n  kpt:{broken\nkpt:{"package":"a"}\n text\n\t kpt:{"package":"b","new":1} \nkpt:[]\n'
    )
    assert [note.package for note in layout.parse_annotations(message)] == ["a", "b"]
    assert layout.parse_render_note("pvbus-render: unheard of\n") is None
