"""docs/operations.md has every type and reason of a condition that the code knows, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.cli.command import REPOSITORY

OPERATIONS = REPOSITORY / "docs" / "operations.md"
SOURCES = (
    "pvbus/core/variants/unroll",
    "pvbus/core/variants/render",
    "pvbus/core/variants/inject",
    "pvbus/core/variants/conditions",
    "pvbus/core/kernel/effects.py",
    "pvbus/controlplane/packages/content.py",
    "pvbus/core/variants/revisions/signatures.py",
    "pvbus/controlplane/packages/leftovers.py",
    "pvbus/controlplane/packages/render.py",
    "pvbus/controlplane/packages/status.py",
    "pvbus/controlplane/packages/store.py",
    "pvbus/cli/failing.py",
    "pvbus/cli/conditionevents.py",
    "pvbus/controlplane/packages/skipping.py",
    "pvbus/core/variants/revisions/validators.py",
    "pvbus/core/variants/attention.py",
    "pvbus/core/variants/notices.py",
    "pvbus/core/variants/publishing.py",
    "pvbus/core/variants/readiness.py",
    "pvbus/core/variants/severity.py",
    "pvbus/core/variants/revisions/holding.py",
)
"""Where conditions are decided."""

CAMEL_CASE = re.compile(r"[A-Z][a-z]+([A-Z][a-z]+)*")
NO_REASONS = {
    *("ConfigMap", "PackageRevision", "PackageRevisionResources", "PackageVariant", "PackageVariantSet"),
    *("ControllerRevision", "FunctionResultList", "Repository", "RolloutPolicy", "RolloutStop"),
    *("True", "False", "Unknown"),
    *("DoesNotExist", "Exists", "In", "NotIn"),
    *("Event", "Reconcile", "Normal", "Warning"),  # the kind of an Event, the action and the types of ours
    "Expr",  # how the fields with expressions end
    *("NotFound", "PackageExists"),  # reasons of errors that are caught
    *("ExecNotAllowed", "FunctionNotFound", "InvalidPipeline", "RenderTimeout"),  # and of validators' errors
}
"""Words in CamelCase that are no type and no reason of a condition: kinds, statuses, operators."""

LIFECYCLES = {"Draft", "Proposed", "Published", "DeletionProposed"}
"""Of a PackageRevision: the reason of its condition `Published` is what the API server has."""


def words(path: Path) -> Iterator[str]:
    """Yield every string of a module that could be a type or a reason.

    Reasons of errors are not shown as reasons of conditions, but for those that stop a set.
    """
    for file in sorted(path.glob("**/*.py")) if path.is_dir() else [path]:
        pending: list[ast.AST] = [ast.parse(file.read_text())]
        while pending:
            node = pending.pop()
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id.endswith("Error") and node.func.id != "StopError":
                    continue
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if CAMEL_CASE.fullmatch(node.value):
                    yield node.value
            pending += ast.iter_child_nodes(node)


def documented() -> set[str]:
    """Return the types and reasons in the tables of conditions, and in the sentences between them."""
    section = OPERATIONS.read_text().partition("\n## Conditions\n")[2]
    return {word for word in re.findall(r"`([^`]+)`", section) if CAMEL_CASE.fullmatch(word)}


def test_every_reason_is_documented() -> None:
    """What a status, an event or a command can show is in operations.md."""
    known = {word for source in SOURCES for word in words(REPOSITORY / source)} | LIFECYCLES
    assert known - NO_REASONS - documented() == set()


def test_no_other_reason_is_documented() -> None:
    """A reason that went from the code goes from the document, too."""
    known = {word for source in SOURCES for word in words(REPOSITORY / source)} | LIFECYCLES
    assert documented() - known == set()


def test_every_reason_has_a_meaning_and_a_next_action() -> None:
    section = (
        OPERATIONS.read_text().partition("\n## Conditions\n")[2].partition("\n### Kubernetes Events\n")[0]
    )
    for line in re.findall(r"^\| .*`.*\|$", section, re.M):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 5, line
        assert all(cells[1:]), line
