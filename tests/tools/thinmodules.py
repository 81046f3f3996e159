"""Lists thin modules of `pvbus` that do not say why they stand alone: `python -m tests.tools.thinmodules`.

A module is thin if it has fewer than 60 lines and only one other module imports it, of its own folder: then
a reader opens two files for one subject. Its docstring says why it stands alone, with the words "apart from"
or "each ... is a module"; else it belongs into the one that imports it. One that does not say it ends
`make check`.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Mapping

from tests.tools.arrows import CHECKOUT, imports_of, module_of

LINES_MIN = 60
_REASON = re.compile(r"\bapart\s+from\b|\beach\b[^.]*\bis\s+a\s+module\b", re.IGNORECASE)


def thin_modules(sources: Mapping[str, str]) -> dict[str, str]:
    """Return thin modules without a reason, each with the one that imports it. sources: text by module."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module, text in sources.items():
        for imported in imports_of(text, sources):
            importers[imported].add(module)
    thin = {}
    for module, text in sources.items():
        others = importers[module] - {module}
        if len(others) == 1 and text.count("\n") < LINES_MIN:
            (other,) = others
            if _is_beside(module, other) and not _REASON.search(ast.get_docstring(ast.parse(text)) or ""):
                thin[module] = other
    return thin


def _is_beside(module: str, other: str) -> bool:
    """Return whether both are in one folder, or the other one is this folder's `__init__`."""
    folder = module.rpartition(".")[0]
    return other in (folder, f"{folder}.{other.rpartition('.')[2]}")


def main() -> int:
    folders = [CHECKOUT / "pvbus", CHECKOUT / "services"]
    sources = {module_of(path): path.read_text() for folder in folders for path in folder.rglob("*.py")}
    thin = thin_modules(sources)
    for module, other in sorted(thin.items()):
        print(f"{module}: only {other} imports it: put it there, or say what it stands apart from, and why")
    return 1 if thin else 0


if __name__ == "__main__":
    sys.exit(main())
