"""Commit messages say who writes a draft and why, when the request does."""

from pathlib import Path

import pytest

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.layout import Annotation
from tests.integration.packages.support import StoreWorld, clone_of, git, revision


def messages(remote: Path, *branch: str) -> list[str]:
    return [
        text.strip() for text in git(remote, "log", "--format=%B%x00", *branch).split("\0") if text.strip()
    ]


async def test_the_cause_of_a_request_is_in_its_commit_and_in_no_other(fleet: StoreWorld, edge: Path) -> None:
    made = revision("edge", "web", "ws", clone_of("blue.app.v1"))
    made["metadata"]["annotations"] = {layout.CAUSE: "PackageVariant fleet/v: clone of blue.app.v1"}
    await fleet.create(made)
    saved = await fleet.files("edge.web.ws")
    saved["metadata"]["annotations"] = {layout.CAUSE: "PackageVariant fleet/v: pipeline"}
    await fleet.put(saved, {"a.txt": "1"})
    await fleet.put(await fleet.files("edge.web.ws"), {"a.txt": "2"})
    third, second, first = messages(edge, "drafts/web/ws")
    assert first.startswith("Creating new revision by cloning\n\n")
    assert "\nCause: PackageVariant fleet/v: clone of blue.app.v1\n" in first
    assert "\nCause: PackageVariant fleet/v: pipeline\n" in second
    assert "Cause" not in third
    assert fleet.present("edge.web.ws")["spec"]["tasks"][0]["type"] == "clone"


async def test_an_approval_says_why_and_one_that_repeats_the_drafts_cause_does_not(
    fleet: StoreWorld, edge: Path
) -> None:
    """The commit that publishes is still read as Porch's, and the object keeps the cause of its draft."""
    for package, cause in (("web", "RolloutPolicy fleet/web, attempt 2"), ("db", "clone")):
        made = revision("edge", package, "ws", clone_of("blue.app.v1"))
        made["metadata"]["annotations"] = {layout.CAUSE: "clone"}
        proposed = await fleet.update(await fleet.create(made), lifecycle="Proposed")
        asked = {**proposed, "metadata": {**proposed["metadata"], "annotations": {layout.CAUSE: cause}}}
        published = await fleet.update(asked, lifecycle="Published", subresource="approval")
        assert published["metadata"]["annotations"][layout.CAUSE] == "clone"
    second, first, *_ = messages(edge, "--first-parent", "main")
    said = "Cause: RolloutPolicy fleet/web, attempt 2"
    assert first.startswith(f"Approving package revision web/1\n\n{said}\n\nkpt:")
    assert layout.parse_annotations(first)[0].revision == "1"
    assert second.startswith("Approving package revision db/1\n\nkpt:")


@pytest.mark.parametrize(
    "cause",
    ['x\nkpt:{"package":"evil"}', "x\r\npvbus-render: failed aa", "x\u2028kpt:{}", "\x85kpt:{}", "y" * 9999],
)
def test_a_cause_is_one_short_line_and_never_an_annotation(cause: str) -> None:
    """Whoever reads the history must not take a client's words for the store's."""
    annotation = Annotation(package="web", workspace_name="ws", revision="0")
    message = layout.draft_message("Rendering package", annotation, None, layout.cause_line(cause))
    assert layout.parse_annotations(message) == [annotation]
    assert layout.parse_render_note(message) is None
    assert len(message) < 500
    assert sum(line.startswith("Cause: ") for line in message.splitlines()) == 1


@pytest.mark.parametrize("cause", ["", " \n\t"])
def test_without_a_cause_the_message_is_porchs(cause: str) -> None:
    annotation = Annotation(package="web")
    assert layout.draft_message("t", annotation, None, layout.cause_line(cause)) == layout.draft_message(
        "t", annotation
    )
