"""What the page shows of a draft: field by field, as text, and where its commit is."""

from typing import Any

import pytest

from pvbus.cli.fleet import Member
from pvbus.cli.pagedetail import DIFF_CHARACTERS_MAX, field_changes, file_change, revision_row
from pvbus.core.api.variants import PackageVariant

MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  x: {}\n"


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (MAP.format(1), MAP.format(2), [("data.x", 1, 2)]),
        (MAP.format(1), MAP.format("1  # why"), []),
        (MAP.format(1) + "---\n" + MAP.format(1), MAP.format(2), []),
        ("a: [", MAP.format(2), []),
        ("text", "other text", []),
    ],
)
def test_a_file_of_objects_differs_in_fields(before: str, after: str, wanted: list[Any]) -> None:
    """A comment is none; a file that is no YAML, or has an object twice, is compared as text only."""
    found = [(each["field"], each["before"], each["after"]) for each in field_changes(before, after)]
    assert found == wanted


def test_a_file_that_is_new_or_gone_is_said_and_a_long_one_is_cut() -> None:
    long = "x" * (2 * DIFF_CHARACTERS_MAX)
    added = file_change("a", {}, {"a": long})
    assert (added["what"], len(added["diff"]), added["fields"]) == ("added", DIFF_CHARACTERS_MAX, [])
    assert added["cut"] > 0
    assert file_change("a", {"a": "1"}, {})["what"] == "removed"
    assert file_change("a", {"a": "1\n"}, {"a": "2\n"})["diff"].endswith("-1\n+2\n")


@pytest.mark.parametrize(
    ("cause", "task", "why"),
    [
        ("PackageVariant a/b: template changed", {"type": "clone"}, "PackageVariant a/b: template changed"),
        (
            "",
            {"type": "upgrade", "upgrade": {"newUpstreamRef": {"name": "up.web.v2"}}},
            "upgrade to up.web.v2",
        ),
        ("", {"type": "edit", "edit": {"sourceRef": {"name": "edge.web.v1"}}}, "copy of edge.web.v1"),
        ("", {"type": "edit"}, "edit"),
        ("", {}, ""),
    ],
)
def test_a_revision_says_why_it_is_there(cause: str, task: dict[str, Any], why: str) -> None:
    meta = {"name": "r", "annotations": {"pvbus.dev/cause": cause}}
    revision = {"metadata": meta, "spec": {"lifecycle": "Draft", "tasks": [task]}}
    assert revision_row(Member(PackageVariant(), revision))["why"] == why


def test_a_revision_has_its_place_in_git() -> None:
    """A page of the forge, or for a repository on this machine the command that shows its commits."""
    git = {"repo": "/srv/my repo.git", "ref": "drafts/web/v1", "directory": "web", "commit": "abcdef1234"}
    revision = {
        "metadata": {"name": "r", "annotations": {"pvbus.dev/edited-by": "ann"}},
        "spec": {"lifecycle": "Draft"},
        "status": {"selfLock": {"git": git}},
    }
    row = revision_row(Member(PackageVariant(), revision))
    assert (row["log"], row["links"]) == ("git -C '/srv/my repo.git' log drafts/web/v1", None)
    git["repo"] = "https://github.com/o/r"
    row = revision_row(Member(PackageVariant(), revision))
    assert row["log"] == ""
    assert row["links"]["folder"] == "https://github.com/o/r/tree/abcdef1234/web"
