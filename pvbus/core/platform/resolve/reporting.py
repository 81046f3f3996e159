"""What is known of each dependency of an install, for its row in the lock."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pvbus.core.kernel.packagerows import DependencyCondition, LockedDependency
from pvbus.core.platform.packaging.statuses import DEPENDENCY_CONDITIONS
from pvbus.core.platform.solver.model import (
    Chosen,
    OfferNeed,
    PackageNeed,
    PlatformNeed,
    Requirement,
    flattened,
    is_platform,
)
from pvbus.core.platform.solver.states import DependencyReport, DependencyState


class Provider(NamedTuple):
    """Who meets a need. is_owned: whether it was made for the install that has the need."""

    okey: str
    version: str
    is_owned: bool


def dependencies_met(chosen: Chosen, find: Callable[[str], Provider]) -> tuple[LockedDependency, ...]:
    """Return the dependencies of a version that is chosen, in the order of its package."""
    found = []
    for edge in chosen.edges:
        if is_platform(edge.requirement):
            continue
        wanted = _wanted(edge.requirement, edge.provider)
        match edge.status:
            case "exists":
                found.append(_dependency(edge.requirement, wanted, "ExistingGVK"))
            case "met":
                provider = find(edge.provider)
                condition: DependencyCondition = (
                    "OwnedPackageInstall" if provider.is_owned else "FoundPackageInstall"
                )
                found.append(
                    _dependency(
                        edge.requirement, wanted, condition, install=provider.okey, version=provider.version
                    )
                )
            case "unmet":
                message = f"optional: {_shown(wanted)} is not installed"
                found.append(_dependency(edge.requirement, wanted, "UnknownPackageVersion", message=message))
    return tuple(found)


def dependencies_open(reports: Iterable[DependencyReport]) -> tuple[LockedDependency, ...]:
    """Return the dependencies of a version that cannot be installed."""
    found = []
    for each in reports:
        if is_platform(each.requirement):
            continue
        wanted = _wanted(each.requirement, each.provider)
        found.append(
            _dependency(
                each.requirement, wanted, DEPENDENCY_CONDITIONS[each.state], message=_missing(each, wanted)
            )
        )
    return tuple(found)


def _missing(report: DependencyReport, wanted: PackageNeed | OfferNeed | None) -> str:
    match report.state:
        case DependencyState.UNKNOWN_PACKAGE:
            return f"nothing is known that is {_shown(wanted)}"
        case DependencyState.UNKNOWN_VERSION:
            return f"no version is known that is {_shown(wanted)}"
        case DependencyState.REQUIRES_DIFFERENT_VERSION:
            return f"what is installed is not {_shown(wanted)}"
        case DependencyState.AMBIGUOUS:
            return f"several packages provide it, install one: {', '.join(report.candidates)}"
    return ""


def _dependency(
    requirement: Requirement,
    wanted: PackageNeed | OfferNeed | None,
    condition: DependencyCondition,
    *,
    install: str = "",
    version: str = "",
    message: str = "",
) -> LockedDependency:
    return LockedDependency(
        condition=condition,
        name=requirement.name,
        package=wanted.package if isinstance(wanted, PackageNeed) else "",
        range=(wanted.range or wanted.digest) if isinstance(wanted, PackageNeed) else "",
        offer=wanted.offer if isinstance(wanted, OfferNeed) else "",
        install=install,
        version=version,
        is_optional=requirement.optional,
        message=message,
    )


def _wanted(requirement: Requirement, provider: str) -> PackageNeed | OfferNeed | None:
    """Return the alternative that a provider meets, else the first one."""
    leaves = [each for each in flattened(requirement.need) if not isinstance(each, PlatformNeed)]
    named = (each for each in leaves if isinstance(each, PackageNeed) and each.package == provider)
    return next(named, leaves[0] if leaves else None)


def _shown(wanted: PackageNeed | OfferNeed | None) -> str:
    if isinstance(wanted, PackageNeed):
        return f"{wanted.package} {wanted.range or wanted.digest}".rstrip()
    return wanted.offer if wanted is not None else "it"
