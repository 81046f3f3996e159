"""Make the documents a site: `python -m docs.site [--out FOLDER]`, as `make site` does.

The pages are the documents of the repository, at the same paths, so that their links hold here and there. A
file that one links to is copied along; a folder has no page, and its name stands in place of the link. The
site is made without a warning or not at all, and fetches nothing from elsewhere when it is read.
"""

import argparse
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort, MkDocsException

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "docs" / "mkdocs.yml"
PICTURE = "How the services work together is drawn in [How it is built](ARCHITECTURE.md#the-first-page).\n"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.M | re.S)


def documents() -> list[Path]:
    """Return the documents, as paths in the repository."""
    found = (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))
    return sorted(path.relative_to(ROOT) for path in found)


def linked(document: Path, text: str) -> Iterator[Path]:
    """Yield the files of the repository that a document links to, as paths in it."""
    for _, _, link in _LINK.findall(text):
        target = _target(document, link)
        if target is not None and (ROOT / target).is_file():
            yield target


def page(document: Path, text: str) -> str:
    """Return the text of a page: links to folders are their names, and a diagram that only a script from
    elsewhere could draw is a link to the one that is text."""

    def replaced(found: re.Match[str]) -> str:
        target = _target(document, found[3])
        return found[2] if target is not None and (ROOT / target).is_dir() else found[0]

    parts = re.split(f"({_FENCE.pattern})", text, flags=_FENCE.flags)
    drawn = (PICTURE if part.startswith("```mermaid") else part for part in parts)
    return "".join(part if part.startswith("```") else _LINK.sub(replaced, part) for part in drawn)


def _target(document: Path, link: str) -> Path | None:
    """Return what a link within the repository leads to, None for any other link."""
    path = link.partition("#")[0]
    if not path or "://" in path or path.startswith("mailto:"):
        return None
    return Path(os.path.normpath(document.parent / path))


def stage(folder: Path) -> None:
    """Put the pages, and the files that they link to, into a folder."""
    pages = documents()
    for document in pages:
        text = (ROOT / document).read_text()
        (folder / document).parent.mkdir(parents=True, exist_ok=True)
        (folder / document).write_text(page(document, text))
        for file in linked(document, text):
            if file not in pages:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / file, folder / file)


def make(out: Path) -> None:
    """Build the site. Raises: Abort, MkDocsException where a link is broken or a page is missing."""
    with tempfile.TemporaryDirectory(prefix="pvbus-site-") as folder:
        stage(Path(folder))
        config = load_config(str(CONFIG), docs_dir=folder, site_dir=str(out), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.site", description="Make the documents a site.")
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="the folder of the site [site]")
    out = parser.parse_args().out.resolve()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        make(out)
    except (Abort, MkDocsException) as error:
        print(f"error: the site was not made: {error}", file=sys.stderr)
        return 1
    print(f"to read it: python3 -m http.server -d {out} 8000, then http://127.0.0.1:8000/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
