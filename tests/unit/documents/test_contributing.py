"""CONTRIBUTING.md leads to what there is: each path, name and command in it."""

import re
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.e2e.cli.command import REPOSITORY

TEXT = (REPOSITORY / "CONTRIBUTING.md").read_text()
RECIPES = TEXT.partition("\n## Recipes\n")[2].partition("\n## ")[0].strip().split("\n\n")
FOLDERS = ("pvbus/", "services/", "schemas/", "deploy/", "tests/", "docs/")
TARGETS = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M))


def quoted(text: str) -> Iterator[str]:
    yield from (words.replace("\n", " ") for words in re.findall(r"`([^`]+)`", text))


@pytest.mark.parametrize("path", sorted({p for p in quoted(TEXT) if p.startswith(FOLDERS) and "<" not in p}))
def test_a_path_exists(path: str) -> None:
    assert (REPOSITORY / path).exists()


@pytest.mark.parametrize(
    "command", sorted({c for c in quoted(TEXT) if c.startswith(("make ", "python -m "))})
)
def test_a_command_exists(command: str) -> None:
    words = command.split()
    assert words[1] in TARGETS if words[0] == "make" else find_spec(words[2]) is not None


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.split("**")[1])
def test_a_name_of_a_recipe_is_in_a_file_of_the_recipe(recipe: str) -> None:
    words = list(quoted(recipe))
    files = [
        REPOSITORY / word for word in words if word.startswith(FOLDERS) and (REPOSITORY / word).is_file()
    ]
    code = "\n".join(file.read_text() for file in files)
    names = [word for word in words if re.fullmatch(r"[A-Z]+(_[A-Z]+)*", word)]
    assert [name for name in names if not re.search(rf"^{name}\b", code, re.M)] == []


def test_make_alone_prints_its_targets() -> None:
    """Every target of the Makefile that people call is among the lines that `make` prints."""
    lines = (REPOSITORY / "Makefile").read_text().partition("\n\n")[0]
    assert {name for name in TARGETS if not re.search(rf"make {name}\b", lines)} == {
        *("setup-run", "setup-dev", "clean", "format"),
    }
