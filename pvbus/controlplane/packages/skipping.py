"""Packages of a git repository that no PackageRevision can be of: their names, or a package at the root."""

from collections.abc import Mapping

from pvbus.controlplane.packages import layout
from pvbus.core.kernel.packagepaths import label_problem, package_problem

CONDITION = "PackagesSkipped"
NAMED_MAX = 5
ROOT = "a package at the root has no name: move its files into a folder, or correct spec.git.directory"


def problem_of(directory: str, base: str, workspace: str = "") -> str:
    """Return why a package, or one of its workspaces, cannot be served, "" if it can.

    base: the Repository's directory
    """
    package = layout.package_path(directory, base) or ""
    if not package:
        return ROOT
    if problem := package_problem(package):
        return problem
    # A workspace may be one that Porch would not create, such as the tag v1.2.
    problems = (label_problem(part) for part in workspace.split(".") if workspace)
    return next((f"workspace {workspace}: {problem}" for problem in problems if problem), "")


def condition(skipped: Mapping[str, str]) -> dict[str, str] | None:
    """Return the condition that counts what is skipped, None if nothing is.

    skipped: folder or ref -> reason
    """
    if not skipped:
        return None
    named = "; ".join(f"{name}: {skipped[name]}" for name in sorted(skipped)[:NAMED_MAX])
    more = f"; and {len(skipped) - NAMED_MAX} more" if len(skipped) > NAMED_MAX else ""
    count = "1 package" if len(skipped) == 1 else f"{len(skipped)} packages"
    return {
        "type": CONDITION,
        "status": "True",
        "reason": "InvalidNames",
        "message": f"{count} of the repository cannot be served: {named}{more}. Rename the folders",
    }
