"""Says that a Repository, a package or a revision does not exist, in the same words for sets and variants."""

from collections.abc import Iterable

from pvbus.core.api.variants import Upstream
from pvbus.core.kernel.packagepaths import package_problem
from pvbus.core.kernel.records import RevisionFacts

REVISIONS_SHOWN = 5


def no_repository(name: str, namespace: str) -> str:
    return f'no Repository named "{name}" in namespace "{namespace}"'


def missing_part(
    upstream: Upstream, namespace: str, *, has_repository: bool, revisions: Iterable[RevisionFacts]
) -> str:
    """Say which of Repository, package and revision of an upstream is missing.

    revisions: of the upstream's package, all of them.
    """
    if not has_repository:
        return no_repository(upstream.repo, namespace)
    ranked = sorted((-facts.revision, facts.workspace) for facts in revisions)
    if not ranked:
        problem = package_problem(upstream.package)
        unserved = f", and cannot have one of this name: {problem}" if problem else ""
        return f'the repository has no package "{upstream.package}"{unserved}'
    names = [f"revision {-n}" if n < 0 else f"workspace {workspace}" for n, workspace in ranked]
    more = f" and {len(names) - REVISIONS_SHOWN} more" if len(names) > REVISIONS_SHOWN else ""
    return f"the package has {', '.join(names[:REVISIONS_SHOWN])}{more}"
