"""What is known of each dependency of an install, for its row in the lock.

The conditions are those of Carvel's merged proposal, for both families.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.packagerows import DependencyCondition, LockedDependency
from pvbus.core.platform.packaging.statuses import DEPENDENCY_CONDITIONS
from pvbus.core.platform.resolve.carvelproblem import Leaf, described
from pvbus.core.platform.solver.model import (
    Chosen,
    Edge,
    OfferNeed,
    PackageNeed,
    Requirement,
    flattened,
    is_platform,
)
from pvbus.core.platform.solver.states import DependencyReport, DependencyState


class Provider(NamedTuple):
    """An install that meets a need, or that is there and cannot.

    okey: "" if there is no install of the package
    version: that it gets
    present: the version that it has, "" if that is unknown
    is_owned: whether it was made for the install that has the need
    note: what the install that has the need is to know of it
    """

    okey: str
    package: str
    version: str = ""
    present: str = ""
    is_owned: bool = False
    note: str = ""


Find = Callable[[str, Requirement], Provider]
"""Returns the install of a package, as the resolver names it."""


def dependencies_met(
    chosen: Chosen, asked: Iterable[Requirement], find: Find, is_known: Callable[[str], bool]
) -> tuple[LockedDependency, ...]:
    """Return the dependencies of a version that is chosen, in the order of its package.

    asked: the requirements as the package says them, one for each edge
    is_known: says whether a package has versions
    """
    return tuple(
        _met(edge, requirement, find, is_known)
        for edge, requirement in zip(chosen.edges, asked, strict=True)
        if not is_platform(requirement)
    )


def _met(edge: Edge, asked: Requirement, find: Find, is_known: Callable[[str], bool]) -> LockedDependency:
    if edge.status == "exists":
        return _dependency(asked, _offer_of(asked), "ExistingGVK")
    if edge.status == "unmet":
        return _left_out(edge, asked, find, is_known)
    return _provided(edge, asked, find(edge.provider, asked))


def _provided(edge: Edge, asked: Requirement, provider: Provider) -> LockedDependency:
    condition: DependencyCondition = "OwnedPackageInstall" if provider.is_owned else "FoundPackageInstall"
    leaf = _leaf_of(edge, asked, provider.package)
    return _dependency(asked, leaf, condition, provider.note, provider, provider.version)


def _leaf_of(edge: Edge, asked: Requirement, package: str) -> Leaf | None:
    """Return the alternative that a package meets, with the range that is asked for."""
    names = {getattr(leaf, "package", "") for leaf in flattened(asked.need)}
    for leaf in flattened(edge.requirement.need):
        if isinstance(leaf, PackageNeed) and leaf.package in (package, edge.provider):
            return PackageNeed(package=package, range=leaf.range or leaf.digest) if package in names else leaf
    return _offer_of(asked)


def _offer_of(asked: Requirement) -> OfferNeed | None:
    return next((leaf for leaf in flattened(asked.need) if isinstance(leaf, OfferNeed)), None)


def _left_out(
    edge: Edge, asked: Requirement, find: Find, is_known: Callable[[str], bool]
) -> LockedDependency:
    """Return the state of an optional dependency that is not met."""
    leaves, text = flattened(asked.need), described(asked.need)
    packages = [leaf.package for leaf in leaves if isinstance(leaf, PackageNeed)]
    known = [package for package in packages if is_known(package)]
    condition: DependencyCondition = "UnknownPackageVersion"
    if not flattened(edge.requirement.need):
        condition, message = "WaitingForDependencies", f"{text} may not be installed for it, and is not there"
    elif packages and not known:
        condition, message = "UnknownPackage", f"no package {packages[0]} is known"
    elif not packages:
        condition, message = "UnknownPackage", f"nothing that is there provides {text}"
    elif any(find(package, asked).okey for package in known):
        condition = "FoundPackageInstallRequiresDifferentVersion"
        message = f"{text} is not what is there, and that cannot change"
    else:
        message = f"no version of {text} can be installed"
    return _dependency(asked, leaves[0], condition, f"optional: {message}")


def dependencies_open(reports: Iterable[DependencyReport], find: Find) -> tuple[LockedDependency, ...]:
    """Return the dependencies of a version that cannot be installed."""
    return tuple(_open(each, find) for each in reports if not is_platform(each.requirement))


def _open(report: DependencyReport, find: Find) -> LockedDependency:
    if report.state is DependencyState.FOUND:
        edge = Edge(
            requirement=report.requirement, status="met", target=report.target, provider=report.provider
        )
        return _provided(edge, report.requirement, find(report.provider, report.requirement))
    leaf = next(iter(flattened(report.requirement.need)), None)
    there = find(leaf.package, report.requirement) if isinstance(leaf, PackageNeed) else None
    message = _message(report, leaf, there)
    if there is not None and report.state is not DependencyState.REQUIRES_DIFFERENT_VERSION:
        there = Provider("", there.package)
    condition = DEPENDENCY_CONDITIONS[report.state]
    return _dependency(report.requirement, leaf, condition, message, there, there.present if there else "")


def _message(report: DependencyReport, leaf: Leaf | None, there: Provider | None) -> str:
    text = described(report.requirement.need)
    match report.state:
        case DependencyState.AMBIGUOUS:
            return f"{text} is provided by {', '.join(report.candidates)}: install one of them"
        case DependencyState.UNKNOWN_PACKAGE if isinstance(leaf, OfferNeed):
            return f"the cluster does not serve {text}, and no package provides it"
        case DependencyState.UNKNOWN_PACKAGE:
            return f"no package is known for {text}"
        case DependencyState.UNKNOWN_VERSION:
            return f"no version is known for {text}"
        case DependencyState.REQUIRES_DIFFERENT_VERSION if there is not None and there.okey:
            return f"{text} is needed, and {ObjectKey.parse(there.okey).name} has {there.present}"
        case DependencyState.WAITING if report.candidates:
            return f"{text} is provided by {', '.join(report.candidates)}: install it"
        case DependencyState.UNMET:
            return "optional: it may not be installed, and is not there"
        case DependencyState.WAITING:
            return f"{text} is not installed yet"
        case _:
            return ""


def _dependency(
    requirement: Requirement,
    leaf: Leaf | None,
    condition: DependencyCondition,
    message: str = "",
    provider: Provider | None = None,
    version: str = "",
) -> LockedDependency:
    """Return a dependency. leaf: the alternative that is met, or asked for. version: of what is there."""
    named = leaf if isinstance(leaf, PackageNeed) else None
    return LockedDependency(
        condition=condition,
        name=requirement.name,
        package=provider.package if provider else named.package if named else "",
        range=(named.range or named.digest) if named else "",
        offer=leaf.offer if isinstance(leaf, OfferNeed) else "",
        install=provider.okey if provider else "",
        version=version,
        is_optional=requirement.optional,
        message=message,
    )
