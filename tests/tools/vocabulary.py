"""Finds names that are words of our own, where the field has one: `python -m tests.tools.vocabulary`.

Looked at are names of classes, functions, parameters, variables and fields, whole names only: `told` and
`_told`, not `is_told_so`; and but for the tests the verbs of functions that do something (`verbs.py` beside
this). Prose is for people to judge. Exits with 1 and one line per name when there is any.
"""

import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.tools.verbs import effect_types, misnamed_verbs

CHECKOUT = Path(__file__).parents[2]
FOLDERS = ("pvbus", "services", "schemas", "tests", "deploy")
SAY = "say what it does: reconcile_install, merge_upstream, read_held"
WORDS = {
    "told": "reported, published",
    "kept": "retained; of a removal: cancelled",
    "claim": "lease",
    "claims": "leases",
    "openclaim": "lease with an epoch",
    "doubt": "outcome unknown",
    "place": "partition, downstream, field path, bus URL: whichever it is",
    "kindwatch": "informer",
    "intake": "table reader",
    "seen": "InjectState, RenderState",
    "crew": "supervisor",
    "keeper": "repository sync",
    "workshop": "revision requests",
    "ensurer": "downstream reconciler",
    "load": "store activity",
    "kick": "flush",
    "let_go": "release, orphan",
    "basis": "inputs digest",
    "touched": "dirty downstreams",
    "team": "consumer group",
    "deeds": "fault scenarios",
    "toys": "fakes",
    "chance": "rng",
}
"""A name, in lower case and without leading underscores, and what the field says."""
CLASSES_ONLY = frozenset({"seen", "load", "touched", "mirror"})
"""Common English as a function or a variable; as a class it names nothing."""
SETS_CLAIM = (
    "pvbus/core/variants/render/",
    "tests/unit/core/variants/test_render",
    "tests/property/",
    "tests/kit/oracle",
)
"""There a set claims the name of a variant, which is no lease."""


def private_words(file: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and the field's word of each name in a module's text."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.NAME:
            continue
        word = token.string.strip("_").lower()
        is_class = token.string.strip("_")[:1].isupper() and not token.string.isupper()
        if word not in WORDS or (word in CLASSES_ONLY and not is_class):
            continue
        if word in ("claim", "claims") and file.startswith(SETS_CLAIM):
            continue
        yield token.start[0], token.string, WORDS[word]


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "--", *(f"{folder}/*.py" for folder in FOLDERS)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    texts = {file: (CHECKOUT / file).read_text() for file in listed.stdout.split()}
    code = {file: text for file, text in texts.items() if not file.startswith("tests/")}
    effects = frozenset(name for text in code.values() for name in effect_types(text))
    found = [
        *(
            f"{file}:{line}: {name}: {word}"
            for file, text in texts.items()
            for line, name, word in private_words(file, text)
        ),
        *(
            f"{file}:{line}: {name}: {SAY}"
            for file, text in code.items()
            for line, name in misnamed_verbs(text, effects)
        ),
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
