"""Finds names that are words of our own, where the field has one: `python -m tests.tools.vocabulary`.

Looked at are names of classes, functions, parameters, variables and fields, whole names only: `told` and
`_told`, not `is_told_so`; and in `pvbus` the verbs of functions that await or yield effects: a participle
says what there is after the call, and not that the call does something. Prose is for people to judge. Exits
with 1 and one line per name when there is any.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
FOLDERS = ("pvbus", "services", "schemas", "tests", "deploy")
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


PARTICIPLES = frozenset(
    {
        *("begun", "brought", "built", "chosen", "done", "found", "given", "gone", "held", "kept", "known"),
        *("left", "made", "met", "sent", "shown", "taken", "told", "written"),
    }
)
"""The irregular ones that were used; the others end with `ed`."""
NO_PARTICIPLES = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "speed", "succeed"})
OTHERS_WORDS = {
    "assigned": "Kafka's callback as a member of a group gets a partition",
    "revoked": "Kafka's callback as a member of a group loses a partition",
    "committed": "Kafka's word for the offsets of a group",
}
"""Participles that are the field's own names of functions."""


def misnamed_verbs(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each function with effects that is named by a participle."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in OTHERS_WORDS:
            word = node.name.strip("_").partition("_")[0]
            is_participle = word in PARTICIPLES or (word.endswith("ed") and word not in NO_PARTICIPLES)
            if is_participle and _has_effects(node):
                yield node.lineno, node.name


def _has_effects(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if isinstance(function, ast.AsyncFunctionDef):
        return True
    returned = ast.unparse(function.returns) if function.returns is not None else ""
    return returned.startswith(("Generator[Effect", "Reconciliation"))


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
    found = 0
    for file in listed.stdout.split():
        text = (CHECKOUT / file).read_text()
        for line, name, word in private_words(file, text):
            print(f"{file}:{line}: {name}: {word}")
            found += 1
        for line, name in misnamed_verbs(text) if file.startswith("pvbus/") else ():
            print(f"{file}:{line}: {name}: say what it does: reconcile_install, merge_upstream, read_held")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
