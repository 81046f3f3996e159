"""The order in which the versions of a package are tried."""

from collections.abc import Callable, Iterable

from pvbus.core.platform.solver.languages import Version
from pvbus.core.platform.solver.model import Candidate, VersionPolicy


def ranked(
    candidates: Iterable[Candidate],
    parse: Callable[[str], Version | None],
    policy: VersionPolicy,
    installed: str | None,
) -> tuple[Candidate, ...]:
    """Return the versions, the preferred first; what is no version is last. installed: the version that is
    there.

    Versions of equal precedence, such as those that differ in build metadata only, are ordered by their text.
    """
    readable, others = [], []
    for candidate in candidates:
        version = parse(candidate.version)
        if version is None:
            others.append(candidate)
        else:
            readable.append(((version.key, version.text), candidate))
    readable.sort(key=lambda each: each[0])
    others.sort(key=lambda each: each.version)
    rising = [candidate for _, candidate in readable]
    position = next((i for i, each in enumerate(rising) if each.version == installed), None)
    if policy == "highest" or (policy != "lowest-satisfying" and position is None):
        return (*reversed(rising), *others)
    if position is None:
        return (*rising, *others)
    return (*rising[position:], *reversed(rising[:position]), *others)
