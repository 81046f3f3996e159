"""The site of the documents: it has every page, every link holds, and it fetches nothing from elsewhere."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from mkdocs.exceptions import Abort

from docs import site
from tests.e2e.cli.command import REPOSITORY

pytestmark = pytest.mark.slow


def test_every_document_is_in_the_navigation() -> None:
    named = re.findall(r"[\w./-]+\.md", yaml.safe_dump(yaml.safe_load(site.CONFIG.read_text())["nav"]))
    assert sorted(named) == [str(path) for path in site.documents()]


def test_the_site_is_made_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    site.make(tmp_path)
    pages = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "ARCHITECTURE.html", "docs/tutorial.html", "docs/faq.html"} <= pages
    assert len(pages) == len(site.documents()) + 1, "a page for each document, and one for what is not found"
    for page in tmp_path.rglob("*.html"):
        fetched = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?:[^\"\s>]+)", page.read_text())
        assert fetched == [], page
    assert (tmp_path / "examples/tickets/tickets.py").exists(), "what a page links to comes along"


@pytest.mark.parametrize(
    ("link", "is_broken"),
    [("docs/nothing.md", True), ("docs/concepts.md#nothing", True), ("docs/concepts.md#tasks", False)],
)
def test_a_broken_link_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str, is_broken: bool
) -> None:
    for entry in REPOSITORY.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "SECURITY.md").unlink()
    (tmp_path / "SECURITY.md").write_text(f"# Security\n\n[look]({link})\n")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    with pytest.raises(Abort) if is_broken else nullcontext():
        site.make(tmp_path / "out")


def test_a_link_to_a_folder_is_its_name_but_in_code() -> None:
    text = "see [the programs](../examples/consumers)\n```md\n[x](../examples/consumers)\n```\n"
    made = site.page(Path("docs/events.md"), text)
    assert made == "see the programs\n```md\n[x](../examples/consumers)\n```\n"
