"""What is known of each dependency of an install, in the words of Carvel's merged proposal."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.packagerows import DependencyCondition, LockedDependency
from pvbus.core.platform.packaging.carvel.facts import Catalogue, Facts, Present
from pvbus.core.platform.packaging.carvel.problem import Leaf, Question, described, override_of
from pvbus.core.platform.packaging.statuses import DEPENDENCY_CONDITIONS
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


class Outlook(NamedTuple):
    """What reports are made from.

    presents: okey -> install that is there, or will be
    holders: okey of a created install -> the installs that it was created for
    versions: okey -> the version that was decided on
    """

    catalogue: Catalogue
    presents: Mapping[str, Present]
    holders: Mapping[str, tuple[str, ...]]
    versions: Mapping[str, str]
    facts: Facts


def dependencies_met(
    outlook: Outlook, present: Present, question: Question, chosen: Chosen
) -> tuple[LockedDependency, ...]:
    """Return the dependencies of a version that is chosen, in the order of its package."""
    originals = question.requirements.get((present.node, chosen.version), ())
    if len(originals) != len(chosen.edges):
        originals = tuple(edge.requirement for edge in chosen.edges)
    found = [
        _met(outlook, present, question, edge, original)
        for edge, original in zip(chosen.edges, originals, strict=True)
        if not is_platform(original)
    ]
    return tuple(found)


def _met(
    outlook: Outlook, present: Present, question: Question, edge: Edge, original: Requirement
) -> LockedDependency:
    name, optional = original.name, original.optional
    if edge.status == "exists":
        offers = (leaf.offer for leaf in flattened(original.need) if isinstance(leaf, OfferNeed))
        return LockedDependency(
            condition="ExistingGVK", name=name, offer=next(offers, ""), is_optional=optional
        )
    if edge.status == "unmet":
        return _left_out(outlook, present, edge, original)
    okey = question.okeys[edge.provider]
    holders = outlook.holders.get(okey, ())
    is_owner = bool(holders) and holders[0] == present.okey
    leaf = _leaf_of(edge, original, outlook.presents[okey].package)
    return LockedDependency(
        condition="OwnedPackageInstall" if is_owner else "FoundPackageInstall",
        name=name,
        package=leaf.package if isinstance(leaf, PackageNeed) else outlook.presents[okey].package,
        range=leaf.range if isinstance(leaf, PackageNeed) else "",
        offer=leaf.offer if isinstance(leaf, OfferNeed) else "",
        install=okey,
        version=outlook.versions.get(okey, outlook.presents[okey].version),
        is_optional=optional,
        message="" if is_owner else _unused_values(outlook, present, okey, original),
    )


def _leaf_of(edge: Edge, original: Requirement, package: str) -> Leaf | None:
    """Return the alternative that a package meets, with the range that is asked for."""
    for leaf in flattened(edge.requirement.need):
        if isinstance(leaf, PackageNeed) and leaf.package in (package, edge.provider):
            named = next(
                (each for each in flattened(original.need) if getattr(each, "package", "") == package), None
            )
            return PackageNeed(package=package, range=leaf.range) if named is not None else leaf
    return next((leaf for leaf in flattened(original.need) if isinstance(leaf, OfferNeed)), None)


def _unused_values(outlook: Outlook, present: Present, okey: str, original: Requirement) -> str:
    install = outlook.facts.installs.get(present.okey)
    if present.is_created or install is None:
        return ""
    package = PackageNeed(package=outlook.presents[okey].package)
    override = override_of(install, original.name, package)
    if override is None or not override.values:
        return ""
    name = ObjectKey.parse(okey).name
    return f"its values ({', '.join(override.values)}) are not used: {name} was not created for this install"


def _left_out(outlook: Outlook, present: Present, edge: Edge, original: Requirement) -> LockedDependency:
    """Return the state of an optional dependency that is not met."""
    leaves = flattened(original.need)
    leaf = leaves[0]
    text = described(original.need)
    packages = [each for each in leaves if isinstance(each, PackageNeed)]
    known = [each for each in packages if outlook.catalogue.versions(present.namespace, each.package)]
    condition: DependencyCondition = "UnknownPackageVersion"
    if not flattened(edge.requirement.need):
        condition, message = "WaitingForDependencies", f"{text} may not be installed for it, and is not there"
    elif packages and not known:
        condition, message = "UnknownPackage", f"no package {packages[0].package} is known"
    elif not packages:
        condition, message = "UnknownPackage", f"nothing that is there provides {text}"
    elif any(each.package == other.package for each in known for other in _here(outlook, present)):
        condition = "FoundPackageInstallRequiresDifferentVersion"
        message = f"{text} is not what is there, and that cannot change"
    else:
        message = f"no version of {text} can be installed"
    return LockedDependency(
        condition=condition,
        name=original.name,
        package=leaf.package if isinstance(leaf, PackageNeed) else "",
        range=leaf.range if isinstance(leaf, PackageNeed) else "",
        offer=leaf.offer if isinstance(leaf, OfferNeed) else "",
        is_optional=True,
        message=f"optional: {message}",
    )


def _here(outlook: Outlook, present: Present) -> Iterable[Present]:
    return (each for each in outlook.presents.values() if each.namespace == present.namespace)


def dependencies_open(
    outlook: Outlook, present: Present, reports: Iterable[DependencyReport]
) -> tuple[LockedDependency, ...]:
    """Return the dependencies of a version that cannot be installed."""
    return tuple(_open(outlook, present, each) for each in reports if not is_platform(each.requirement))


def _open(outlook: Outlook, present: Present, report: DependencyReport) -> LockedDependency:
    leaf = next(iter(flattened(report.requirement.need)), None)
    package = leaf.package if isinstance(leaf, PackageNeed) else ""
    there = next((each for each in _here(outlook, present) if each.node == package), None)
    condition = DEPENDENCY_CONDITIONS[report.state]
    is_found = there is not None and condition == "FoundPackageInstallRequiresDifferentVersion"
    return LockedDependency(
        condition=condition,
        name=report.requirement.name,
        package=there.package if there else package,
        range=leaf.range if isinstance(leaf, PackageNeed) else "",
        offer=leaf.offer if isinstance(leaf, OfferNeed) else "",
        install=there.okey if there and is_found else "",
        version=there.version if there and is_found else "",
        is_optional=report.requirement.optional,
        message=_message(report, leaf, there),
    )


def _message(report: DependencyReport, leaf: Leaf | None, there: Present | None) -> str:
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
        case DependencyState.REQUIRES_DIFFERENT_VERSION if there is not None:
            return f"{text} is needed, and {there.name} has {there.version}"
        case DependencyState.WAITING if report.candidates:
            return f"{text} is provided by {', '.join(report.candidates)}: install it"
        case DependencyState.UNMET:
            return "optional: it may not be installed, and is not there"
        case DependencyState.WAITING:
            return f"{text} is not installed yet"
        case _:
            return ""
