"""The state of each direct dependency of a wish, in the words of Carvel's merged proposal.

Source: carvel proposals, kapp-controller 004-dependency-resolution.
"""

from enum import StrEnum

from pvbus.core.platform.solver.closure import Catalog, Location, node_of
from pvbus.core.platform.solver.graph import matches, need_of
from pvbus.core.platform.solver.model import (
    Candidate,
    Edge,
    Model,
    OfferNeed,
    Outcome,
    PackageNeed,
    Problem,
    Requirement,
    Resolution,
    flattened,
)
from pvbus.core.platform.solver.ranking import ranked


class DependencyState(StrEnum):
    """What is known of one dependency.

    OWNED: an install is created for it
    FOUND: an install that is there serves
    REQUIRES_DIFFERENT_VERSION: an install is there, and it cannot have a version that serves
    EXISTING_GVK: the target has it without a package
    UNKNOWN_PACKAGE: no package of this name, or none that provides the offer, is known
    UNKNOWN_VERSION: the package is known, and none of its versions meets the need
    AMBIGUOUS: several packages provide the offer, so a person has to choose one
    WAITING: none of these stands against it; the version that needs it cannot be installed yet
    UNMET: it is optional, and goes without, or no alternative is left
    """

    OWNED = "OwnedPackageInstall"
    FOUND = "FoundPackageInstall"
    REQUIRES_DIFFERENT_VERSION = "FoundPackageInstallRequiresDifferentVersion"
    EXISTING_GVK = "ExistingGVK"
    UNKNOWN_PACKAGE = "UnknownPackage"
    UNKNOWN_VERSION = "UnknownPackageVersion"
    AMBIGUOUS = "AmbiguousProvider"
    WAITING = "WaitingForDependencies"
    UNMET = "OptionalNotInstalled"


class DependencyReport(Model, frozen=True, kw_only=True):
    """The state of one dependency.

    target, provider, version: where, by which package and version the dependency is met, "" if it is not
    candidates: the packages to choose a provider from
    """

    requirement: Requirement
    state: DependencyState
    target: str = ""
    provider: str = ""
    version: str = ""
    candidates: tuple[str, ...] = ()


def dependencies_of(problem: Problem, resolution: Resolution) -> tuple[tuple[DependencyReport, ...], ...]:
    """Return the state of each dependency of each wish: of the chosen version, else of the preferred one."""
    catalog = Catalog(problem).as_read()
    chosen = {(each.target, each.package): each for each in resolution.chosen}
    versions = {location: each.version for location, each in chosen.items()}
    found = []
    for outcome in resolution.outcomes:
        location = node_of(outcome.wish)
        if outcome.status == "granted":
            found.append(tuple(_met(catalog, versions, edge) for edge in chosen[location].edges))
            continue
        candidate = _preferred(catalog, location, outcome)
        requirements = candidate.requirements if candidate else ()
        found.append(tuple(_open(catalog, location, requirement) for requirement in requirements))
    return tuple(found)


def _met(catalog: Catalog, versions: dict[Location, str], edge: Edge) -> DependencyReport:
    if edge.status == "exists":
        return DependencyReport(requirement=edge.requirement, state=DependencyState.EXISTING_GVK)
    if edge.status == "unmet":
        return DependencyReport(requirement=edge.requirement, state=DependencyState.UNMET)
    location = (edge.target, edge.provider)
    state = DependencyState.FOUND if location in catalog.installed else DependencyState.OWNED
    return DependencyReport(
        requirement=edge.requirement,
        state=state,
        target=edge.target,
        provider=edge.provider,
        version=versions[location],
    )


def _preferred(catalog: Catalog, location: Location, outcome: Outcome) -> Candidate | None:
    """Return the version that the wish would have, were its dependencies met."""
    language, installed = catalog.language_of(location[1]), catalog.installed.get(location)
    candidates = ranked(
        catalog.candidates(location),
        lambda text: catalog.version(language, text),
        catalog.policy.versions,
        installed.version if installed else None,
    )
    return next((each for each in candidates if matches(catalog, need_of(outcome.wish), each)), None)


def _open(catalog: Catalog, location: Location, requirement: Requirement) -> DependencyReport:
    """Return the state of a dependency of a version that cannot be installed."""
    leaves = flattened(requirement.need)
    serving = next(filter(None, (_serving(catalog, location, leaf) for leaf in leaves)), None)
    if serving is not None:
        return DependencyReport(
            requirement=requirement,
            state=DependencyState.FOUND,
            target=serving[0],
            provider=serving[1],
            version=catalog.installed[serving].version,
        )
    found = [_state(catalog, location, leaf) for leaf in leaves]
    none = (DependencyState.UNMET, ())
    best = min(found, key=lambda each: _BEST.index(each[0]), default=none)
    return DependencyReport(requirement=requirement, state=best[0], candidates=best[1])


def _serving(catalog: Catalog, location: Location, leaf: object) -> Location | None:
    """Return the install that is there and meets an alternative, None without one."""
    if isinstance(leaf, OfferNeed):
        nodes = [(location[0], provider) for provider in catalog.providers(leaf.offer)]
    elif isinstance(leaf, PackageNeed):
        nodes = [_node_of(location, leaf)]
    else:
        return None
    return next((node for node in nodes if _meets(catalog, leaf, node)), None)


def _meets(catalog: Catalog, leaf: PackageNeed | OfferNeed, node: Location) -> bool:
    there = catalog.installed.get(node)
    if there is None:
        return False
    versions = [each for each in catalog.candidates(node) if each.version == there.version]
    if isinstance(leaf, OfferNeed):
        return any(leaf.offer in each.provides for each in versions)
    return any(matches(catalog, leaf, each) for each in versions)


_BEST = (
    DependencyState.EXISTING_GVK,
    DependencyState.WAITING,
    DependencyState.REQUIRES_DIFFERENT_VERSION,
    DependencyState.AMBIGUOUS,
    DependencyState.UNKNOWN_VERSION,
    DependencyState.UNKNOWN_PACKAGE,
)


def _state(catalog: Catalog, location: Location, leaf: object) -> tuple[DependencyState, tuple[str, ...]]:
    if isinstance(leaf, OfferNeed):
        if leaf.offer in catalog.target(location[0]).offers:
            return DependencyState.EXISTING_GVK, ()
        providers = tuple(catalog.providers(leaf.offer))
        if len(providers) > 1:
            return DependencyState.AMBIGUOUS, providers
        return (DependencyState.WAITING if providers else DependencyState.UNKNOWN_PACKAGE), providers
    if not isinstance(leaf, PackageNeed):
        return DependencyState.WAITING, ()
    node = _node_of(location, leaf)
    candidates = catalog.candidates(node)
    if not candidates:
        return DependencyState.UNKNOWN_PACKAGE, ()
    if not any(matches(catalog, leaf, each) for each in candidates):
        return DependencyState.UNKNOWN_VERSION, ()
    if node in catalog.installed:
        return DependencyState.REQUIRES_DIFFERENT_VERSION, ()
    return DependencyState.WAITING, ()


def _node_of(location: Location, need: PackageNeed) -> Location:
    return (location[0] if need.target is None else need.target, need.package)
