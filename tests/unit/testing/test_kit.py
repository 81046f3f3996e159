"""The kit of the tests: its guide names what it has, and a name of a world means one world."""

import ast
from collections import Counter
from pathlib import Path

import tests.kit

KIT = Path(tests.kit.__file__).parent
FILES = sorted(KIT.parent.rglob("*.py"))


def test_the_guide_names_every_module_of_the_kit_and_no_other() -> None:
    rows = [line.split("|")[1] for line in (tests.kit.__doc__ or "").splitlines() if line.startswith("| `")]
    named = [name.strip(" `") for row in rows for name in row.split(",")]
    assert sorted(named) == sorted(path.stem for path in KIT.glob("*.py") if path.stem != "__init__")


def test_each_world_is_named_for_what_it_is_a_world_of() -> None:
    trees = (ast.parse(path.read_text()) for path in FILES)
    classes = [node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    worlds = Counter(name.strip("_") for name in classes if name.endswith("World"))
    assert worlds["World"] == 0
    assert {name: count for name, count in worlds.items() if count > 1} == {}
