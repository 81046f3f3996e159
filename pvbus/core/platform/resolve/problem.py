"""What the resolver is asked: packages with their versions, wishes, and what is there.

A version whose content was not read yet counts as one that needs nothing and provides every API that is
wanted. If it is chosen, its content is read and the component is solved again; so only what can be chosen is
read, and a solution of which all contents are known is the best one.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from pvbus.core.kernel.packagerows import SourceRow
from pvbus.core.platform.packaging.reading import candidate_of
from pvbus.core.platform.resolve.state import ScopeState
from pvbus.core.platform.solver.model import Candidate, Package, PlatformNeed, Requirement

_WHOLE = re.compile(r"v?\d+\.\d+\.\d+([-+].*)?")
"""A tag that is a version. A part of one, such as `v1`, names whichever version is the newest of it."""


class Switches(NamedTuple):
    """What the install of a package leaves out of account."""

    skips_dependencies: bool = False
    ignores_platform: bool = False


class Offered(NamedTuple):
    """A package for the resolver.

    labels: text of a version -> the tag and the digest that it stands for
    is_read: whether the contents of all versions were read
    """

    package: Package
    labels: Mapping[str, tuple[str, str]]
    is_read: bool


def offered_package(
    state: ScopeState,
    source: str,
    needed: Iterable[tuple[str, str]],
    switches: Switches,
    wanted: tuple[str, ...] = (),
) -> Offered:
    """Return the versions of a source.

    needed: digest and version of each content that must be among them
    switches: what the install of the package leaves out of account
    wanted: the API kinds that a version may provide whose content was not read
    """
    row = state.sources.get(source) or SourceRow()
    labels: dict[str, tuple[str, str]] = {}
    for tag in dict.fromkeys((*row.tags, *row.digests)):
        if _WHOLE.fullmatch(tag):
            labels[tag] = (tag, row.digests.get(tag, ""))
    known = {digest for _, digest in labels.values() if digest}
    for digest, version in sorted(needed):
        if digest not in known:
            known.add(digest)
            labels[former(version, digest)] = (version or digest, digest)
    candidates = (_candidate(state, source, row, text, label, wanted) for text, label in labels.items())
    package = Package(
        name=source,
        candidates=tuple(_switched(each, switches) for each in candidates),
        trouble=row.message if row.is_refused else "",
    )
    contents = (state.content(source, digest) if digest else None for _, digest in labels.values())
    return Offered(package, labels, all(content is not None for content in contents))


def former(version: str, digest: str) -> str:
    """Return a version's text for a content that its tag does not name any more. It ranks equally."""
    if not _WHOLE.fullmatch(version):
        return digest
    return f"{version}{'.' if '+' in version else '+'}{digest.rpartition(':')[2][:12]}"


def _candidate(
    state: ScopeState,
    source: str,
    row: SourceRow,
    text: str,
    label: tuple[str, str],
    wanted: tuple[str, ...],
) -> Candidate:
    tag, digest = label
    content = state.content(source, digest) if digest else None
    if content is not None:
        return candidate_of(text, digest, content)
    is_asked = digest in row.digests.values() if digest else tag in row.digests
    why = row.refusals.get(digest, row.message)
    defect = f"cannot be pulled: {why}" if is_asked and row.is_refused else ""
    provides = () if defect else wanted
    return Candidate(version=text, digest=digest, provides=provides, defect=defect, is_read=False)


def _switched(candidate: Candidate, switches: Switches) -> Candidate:
    retained = tuple(each for each in candidate.requirements if not _is_left_out(each, switches))
    return msgspec.structs.replace(candidate, requirements=retained)


def _is_left_out(requirement: Requirement, switches: Switches) -> bool:
    is_platform = isinstance(requirement.need, PlatformNeed)
    return switches.ignores_platform if is_platform else switches.skips_dependencies
