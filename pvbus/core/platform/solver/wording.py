"""Facts in words: a sentence on what collides, and one sentence per fact."""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from pvbus.core.platform.solver.closure import Catalog, Location, node_of
from pvbus.core.platform.solver.facts import (
    ConflictFact,
    DefectFact,
    DowngradeFact,
    Fact,
    NeedFact,
    PinFact,
    StayFact,
    WishFact,
)
from pvbus.core.platform.solver.graph import Graph, matches, need_of
from pvbus.core.platform.solver.model import (
    Candidate,
    Explanation,
    Need,
    OfferNeed,
    PackageNeed,
    PlatformNeed,
    Requirement,
    Wish,
    flattened,
)
from pvbus.core.platform.solver.ranking import ranked

LISTED_MAX = 3
"""More versions than this are given as the first and the last: a list of twenty hides the point."""

CLAUSES_MAX = 10
"""A sentence names so many limits of a package and counts the others: a package may have thousands."""


def explained(catalog: Catalog, facts: Sequence[Fact]) -> Explanation:
    """Put facts that exclude each other into words."""
    words = _Words(catalog, facts)
    unknown = {words.unknown_platform(fact) for fact in facts if isinstance(fact, NeedFact)} - {""}
    return Explanation(
        sentence=words.sentence(),
        reasons=tuple(words.reason(fact) for fact in facts),
        unknown_platforms=tuple(sorted(unknown)),
    )


def given_up(wish: Wish, conflicts_max: int, graph: Graph) -> Explanation:
    """Say what was tried for a wish that is undecided."""
    words, size = _wish_words(wish), f"{len(graph.owners):,} versions of {len(graph.nodes):,} packages"
    tried = f"{words}, and after {conflicts_max:,} conflicts among {size}"
    sentence = (
        f"{tried} neither a solution nor a proof that there is none was found: "
        "a version or a narrower range for it, or for what it needs, helps the search"
    )
    return Explanation(sentence=sentence, reasons=(words,))


class _Words:
    """Words for the facts of one explanation, which say which versions are at issue."""

    def __init__(self, catalog: Catalog, facts: Sequence[Fact]) -> None:
        self._catalog = catalog
        self._facts = facts
        self._needs_by: dict[Location, list[Fact]] = {}
        self._limits_by: dict[Location, list[Fact]] = {}
        self._left_by: dict[Location, list[Candidate]] = {}
        for fact in facts:
            for location in _wanted_by(fact):
                self._needs_by.setdefault(location, []).append(fact)
            for location in _limited_by(fact):
                self._limits_by.setdefault(location, []).append(fact)

    def sentence(self) -> str:
        """Return one sentence: the needs of one package that nothing meets, else all facts."""
        for fact in self._facts:
            if isinstance(fact, NeedFact) and self._is_offered_by_nobody(fact):
                return f"{self._says(fact, fact.location)}, but no known package provides it"
        for location, needs in self._needs_by.items():
            limits = self._limits_by.get(location, [])
            if not self._left(location, [*needs, *limits]):
                return self._clash(location, needs, limits)
        return "; ".join(self.reason(fact) for fact in self._facts) + ": these exclude each other"

    def _is_offered_by_nobody(self, fact: NeedFact) -> bool:
        leaves = list(flattened(fact.requirement.need))
        known = self._catalog.target(fact.location[0]).offers
        return all(
            isinstance(leaf, OfferNeed)
            and leaf.offer not in known
            and not self._catalog.providers(leaf.offer)
            for leaf in leaves
        )

    def _need_of(self, fact: Fact, location: Location) -> PackageNeed | None:
        """Return what a fact alone demands of a package; a requirement with alternatives demands nothing
        alone.
        """
        if isinstance(fact, WishFact):
            return need_of(fact.wish) if node_of(fact.wish) == location else None
        if isinstance(fact, NeedFact) and isinstance(fact.requirement.need, PackageNeed):
            need = fact.requirement.need
            return need if _location_of(fact.location, need) == location else None
        return None

    def _left(self, location: Location, facts: Iterable[Fact]) -> list[Candidate]:
        """Return the versions that facts on this package alone leave."""
        left = list(self._catalog.candidates(location))
        for fact in facts:
            need = self._need_of(fact, location)
            if need is not None:
                left = [each for each in left if matches(self._catalog, need, each)]
            elif isinstance(fact, StayFact | PinFact) and fact.location == location:
                left = [each for each in left if each.version == fact.version]
            elif isinstance(fact, DefectFact) and fact.location == location:
                left = [each for each in left if each.version != fact.version]
            elif isinstance(fact, DowngradeFact) and fact.location == location:
                left = [each for each in left if not self._is_below(location, each, fact.version)]
            elif isinstance(fact, NeedFact) and fact.location == location:
                if not self._can_be_met(location, fact.requirement.need):
                    left = [each for each in left if fact.requirement not in each.requirements]
        return left

    def _can_be_met(self, location: Location, need: Need) -> bool:
        """Say whether a need of the platform is met; other needs depend on what else is chosen."""
        if not isinstance(need, PlatformNeed):
            return True
        wanted = self._catalog.range(need.language, need.range)
        for name, text in self._catalog.target(location[0]).platforms:
            version = self._catalog.version(need.language, text)
            if name == need.platform and version is not None and not isinstance(wanted, str):
                return wanted.matches(version)
        return False

    def _is_below(self, location: Location, candidate: Candidate, version: str) -> bool:
        language = self._catalog.language_of(location[1])
        one, other = (self._catalog.version(language, text) for text in (candidate.version, version))
        return one is not None and other is not None and one.key < other.key

    def _clash(self, location: Location, needs: Sequence[Fact], limits: Sequence[Fact]) -> str:
        first, *others = [self._says(fact, location) for fact in [*needs, *limits]]
        if len(others) > CLAUSES_MAX:
            others = [*others[: CLAUSES_MAX - 1], f"{len(others) - CLAUSES_MAX + 1:,} more like these"]
        if others:
            return f"{first}, but " + ", and ".join(others)
        return f"{first}, but {self.available(location)}"

    def available(self, location: Location) -> str:
        """Say which versions of a package there are."""
        candidates = self._catalog.candidates(location)
        package = self._catalog.packages.get(location[1])
        trouble = package.trouble if package is not None else ""
        if candidates:
            text = f"{shown(location)} has only {self._versions(location, candidates)}"
            return f"{text} (it cannot be read now: {trouble})" if trouble else text
        text = shown(location)
        return f"{text} cannot be read: {trouble}" if trouble else f"no package {text} is known"

    def _says(self, fact: Fact, location: Location) -> str:
        """Return a fact on a package as a part of a sentence."""
        if isinstance(fact, NeedFact):
            holder = self._holder(fact)
            pinned = ", pinned by you," if self._pin_of(fact.location) else ""
            return f"{holder}{pinned} {self._needs(fact)}"
        return self.reason(fact)

    def unknown_platform(self, fact: NeedFact) -> str:
        """Return the platform that a requirement is on if no version of it is known, else ""."""
        need = fact.requirement.need
        if not isinstance(need, PlatformNeed):
            return ""
        known = {name for name, _ in self._catalog.target(fact.location[0]).platforms}
        return "" if need.platform in known else need.platform

    def _needs(self, fact: NeedFact) -> str:
        need, unknown = fact.requirement.need, self.unknown_platform(fact)
        if unknown:
            return f"{needs_words(fact)}, and no version of {unknown} is known"
        if not isinstance(need, PlatformNeed):
            return needs_words(fact)
        running = dict(self._catalog.target(fact.location[0]).platforms)[need.platform]
        return f"{needs_words(fact)}, and {running} runs"

    def _pin_of(self, location: Location) -> Wish | None:
        for fact in self._facts:
            if isinstance(fact, WishFact) and fact.wish.pinned and node_of(fact.wish) == location:
                return fact.wish
        return None

    def _in_versions(self, wish: Wish) -> Wish:
        """Return a wish for a digest as one for the version that has it: people know versions."""
        location = node_of(wish)
        found = [
            each for each in self._catalog.candidates(location) if wish.digest and each.digest == wish.digest
        ]
        if not found or found[0].version == wish.digest:
            return wish
        return msgspec.structs.replace(wish, digest="", range=self._versions(location, found))

    def _holder(self, fact: NeedFact | ConflictFact) -> str:
        """Return a package with those of its versions that have the fact and that the other facts leave."""
        location = fact.location
        about = [*self._needs_by.get(location, ()), *self._limits_by.get(location, ())]
        if fact in about:
            left = self._left(location, [each for each in about if each != fact])
        elif location in self._left_by:
            left = self._left_by[location]
        else:
            left = self._left_by[location] = self._left(location, about)
        left = left or list(self._catalog.candidates(location))
        if isinstance(fact, NeedFact):
            left = [each for each in left if fact.requirement in each.requirements]
        else:
            left = [each for each in left if fact.conflict in each.conflicts]
        return shown(location, self._versions(location, left) if left else "")

    def _versions(self, location: Location, candidates: Collection[Candidate]) -> str:
        language = self._catalog.language_of(location[1])
        rising = ranked(
            candidates, lambda text: self._catalog.version(language, text), "lowest-satisfying", None
        )
        texts = [each.version for each in rising]
        if len(texts) > LISTED_MAX:
            return f"{texts[0]} to {texts[-1]} ({len(texts)} versions)"
        return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)

    def reason(self, fact: Fact) -> str:
        """Return a fact as a sentence without its full stop."""
        match fact:
            case WishFact():
                return _wish_words(self._in_versions(fact.wish))
            case StayFact():
                return f"{shown(fact.location, fact.version)}, which is installed, stays"
            case NeedFact():
                return f"{self._holder(fact)} {self._needs(fact)}"
            case ConflictFact():
                other = f"{fact.conflict.package} {fact.conflict.range}".rstrip()
                return f"{self._holder(fact)} excludes {other}"
            case DefectFact():
                return f"{shown(fact.location, fact.version)} cannot be installed: {fact.defect}"
            case DowngradeFact():
                return f"{shown(fact.location, fact.version)} is installed, and downgrades are not allowed"
            case PinFact():
                return f"{shown(fact.location, fact.version)} is installed, and the policy pins it"


def shown(location: Location, version: str = "") -> str:
    """Return the name of a package with a version or a range, and its target if that has a name."""
    target, package = location
    words = f"{package} {version}".rstrip()
    return f"{words} in {target}" if target else words


def _limited_by(fact: Fact) -> Iterable[Location]:
    """Return the package whose versions a fact other than a need of it limits."""
    if isinstance(fact, StayFact | PinFact | DefectFact | DowngradeFact) or (
        isinstance(fact, NeedFact) and isinstance(fact.requirement.need, PlatformNeed)
    ):
        yield fact.location


def _location_of(holder: Location, need: PackageNeed) -> Location:
    return (holder[0] if need.target is None else need.target, need.package)


def _wanted_by(fact: Fact) -> Iterable[Location]:
    if isinstance(fact, WishFact):
        yield node_of(fact.wish)
    elif isinstance(fact, NeedFact) and isinstance(fact.requirement.need, PackageNeed):
        yield _location_of(fact.location, fact.requirement.need)


def _wish_words(wish: Wish) -> str:
    what = _demand(need_of(wish), wish.target)
    return f"you pin {what}" if wish.pinned else f"you want {what}"


def needs_words(fact: NeedFact) -> str:
    """Return what a requirement says, beginning with its verb."""
    return f"needs {requirement_words(fact.requirement, fact.location[0])}"


def requirement_words(requirement: Requirement, target: str = "") -> str:
    """Return what a requirement of a package in a target demands."""
    return " or ".join(_leaf_words(target, leaf) for leaf in flattened(requirement.need))


def _leaf_words(target: str, leaf: PackageNeed | OfferNeed | PlatformNeed) -> str:
    if isinstance(leaf, OfferNeed):
        return leaf.offer
    if isinstance(leaf, PlatformNeed):
        return f"{leaf.platform} {leaf.range}"
    return _demand(leaf, leaf.target if leaf.target is not None and leaf.target != target else "")


def _demand(need: PackageNeed, target: str) -> str:
    return shown((target, need.package), need.digest or need.range)
