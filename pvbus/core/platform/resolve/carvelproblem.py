"""The resolver's problem of a namespace: what users want there, what is there, and which packages it can use.

Namespaces are solved apart, as a dependency of Carvel's is in the namespace of what needs it. A package of
which the cluster may have one install only, and that is in another namespace, is in the problem with the one
version that it has there.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from pvbus.core.kernel.installs import Install, Override
from pvbus.core.platform.packaging.carvelfacts import Catalogue, Facts, KnownPackage, Present
from pvbus.core.platform.packaging.structure import missing_fields
from pvbus.core.platform.solver.languages import CARVEL, VersionError
from pvbus.core.platform.solver.model import (
    AnyOf,
    Candidate,
    Installed,
    Need,
    OfferNeed,
    Package,
    PackageNeed,
    PlatformNeed,
    Problem,
    Requirement,
    Target,
    Wish,
    flattened,
)

Leaf = PackageNeed | OfferNeed | PlatformNeed


class Foreign(NamedTuple):
    """An install in another namespace that serves here as well. version: what is there, "" for none."""

    okey: str
    package: str
    version: str
    provides: tuple[str, ...] = ()


class Question(NamedTuple):
    """What a namespace has to decide.

    problem: the problem for the resolver
    okeys: node -> okey of its install
    refused: the installs that the resolver is not asked for
    requirements: node and version -> the requirements as the package says them; the problem has them in the
        same order, perhaps with other contents
    """

    problem: Problem
    okeys: Mapping[str, str]
    requirements: Mapping[tuple[str, str], tuple[Requirement, ...]]


def question_of(
    facts: Facts,
    catalogue: Catalogue,
    namespace: str,
    presents: Iterable[Present],
    foreign: Iterable[Foreign] = (),
    everywhere: Iterable[Present] = (),
) -> Question:
    """Return the problem of a namespace.

    presents: the installs of the namespace that take part
    foreign: see `Foreign`
    everywhere: the installs of all namespaces
    """
    builder = _Builder(facts, catalogue, namespace, tuple(presents), tuple(foreign))
    for each in everywhere:
        builder.everywhere.setdefault(each.package, []).append(each)
    return builder.question()


class _Builder:
    def __init__(
        self,
        facts: Facts,
        catalogue: Catalogue,
        namespace: str,
        presents: tuple[Present, ...],
        foreign: tuple[Foreign, ...],
    ) -> None:
        self._facts = facts
        self._catalogue = catalogue
        self._namespace = namespace
        self._presents = presents
        self._foreign = foreign
        self._nodes: dict[str, list[str]] = {}
        for each in presents:
            self._nodes.setdefault(each.package, []).append(each.node)
        for other in foreign:
            self._nodes.setdefault(other.package, []).append(other.package)
        self._provided = self._provided_here()
        self._checked = self._fields_needed()
        self._requirements: dict[tuple[str, str], tuple[Requirement, ...]] = {}
        self.everywhere: dict[str, list[Present]] = {}

    def question(self) -> Question:
        packages = [self._package_of(each) for each in self._presents]
        packages += [self._foreign_package(each) for each in self._foreign]
        present = {package.name for package in packages}
        for name in self._catalogue.names(self._namespace):
            if name not in present:
                known = self._catalogue.versions(self._namespace, name)
                candidates = tuple(self._candidate(name, each, None, "") for each in known.values())
                packages.append(Package(name=name, candidates=candidates, language="carvel"))
        problem = Problem(
            packages=tuple(packages),
            wishes=tuple(self._wish(each) for each in self._presents if not each.is_created),
            installed=(*self._installed(), *self._foreign_installed()),
            targets=(self._target(),),
            policy=msgspec.structs.replace(self._facts.policy, unneeded="orphan"),
        )
        okeys = {each.node: each.okey for each in self._presents}
        okeys |= {each.package: each.okey for each in self._foreign}
        return Question(problem, okeys, self._requirements)

    def _install(self, present: Present) -> Install | None:
        return self._facts.installs.get(present.okey)

    # what is there

    def _provided_here(self) -> frozenset[str]:
        """Return the offers of installed versions: an API that an install provides is met by the install."""
        found: set[str] = set()
        for each in self._presents:
            known = self._catalogue.versions(self._namespace, each.package).get(each.version)
            found.update(known.candidate.provides if known else ())
        for other in self._foreign:
            found.update(other.provides)
        return frozenset(found)

    def _installed(self) -> list[Installed]:
        return [
            Installed(
                package=present.node,
                version=present.version,
                target=self._namespace,
                is_preferred=present.is_created,
                is_downgradable=(install := self._install(present)) is not None and install.downgrades,
            )
            for present in self._presents
            if present.version
        ]

    def _foreign_installed(self) -> list[Installed]:
        return [
            Installed(package=each.package, version=each.version, target=self._namespace)
            for each in self._foreign
            if each.version
        ]

    def _target(self) -> Target:
        live = self._facts.offers - self._provided
        found = set(live)
        for offer, fields in self._checked:
            if offer in live and not self._lacks(offer, fields):
                found.add(_with_fields(offer, fields))
        return Target(name=self._namespace, offers=tuple(sorted(found)), platforms=self._facts.platforms)

    def _lacks(self, offer: str, fields: tuple[str, ...]) -> tuple[str, ...]:
        schema = self._facts.schemas.get(offer)
        return missing_fields(schema, fields) if schema is not None else ()

    # wishes and packages

    def _wish(self, present: Present) -> Wish:
        install = self._facts.installs[present.okey]
        return Wish(
            package=present.node,
            target=self._namespace,
            range=install.range,
            language=install.language,
            prereleases=install.prereleases,
            pinned=is_exact(install.range),
            name=present.name,
        )

    def _package_of(self, present: Present) -> Package:
        install = self._install(present)
        known = self._catalogue.versions(self._namespace, present.package)
        own = None if present.is_created else install
        candidates = [self._candidate(present.node, each, own, present.okey) for each in known.values()]
        if present.version and install is not None and install.is_paused:
            candidates = [each for each in candidates if each.version == present.version]
        return Package(name=present.node, candidates=tuple(candidates), language="carvel")

    def _foreign_package(self, foreign: Foreign) -> Package:
        if foreign.version:
            one = Candidate(version=foreign.version, provides=foreign.provides)
            return Package(name=foreign.package, candidates=(one,), language="carvel")
        known = self._catalogue.versions(self._namespace, foreign.package)
        text = "a cluster may have it once, and where it is, it has no version yet"
        candidates = tuple(Candidate(version=version, defect=text) for version in known)
        return Package(name=foreign.package, candidates=candidates, language="carvel")

    def _candidate(self, node: str, known: KnownPackage, install: Install | None, okey: str) -> Candidate:
        """Return a version as an install asks for it.

        install: the install of a user, None for a version that others need
        okey: the okey of the install, "" for an install that would be new
        """
        candidate = known.candidate
        self._requirements[node, candidate.version] = candidate.requirements
        requirements, defect = [], candidate.defect or self._one_too_many(known, okey)
        for requirement in candidate.requirements:
            asked, text = self._asked(requirement, dict(known.fields), install)
            requirements.append(asked)
            defect = defect or text
        provides = [*candidate.provides]
        for offer, fields in self._checked:
            if offer in candidate.provides and (
                offer not in self._facts.offers or not self._lacks(offer, fields)
            ):
                provides.append(_with_fields(offer, fields))
        return msgspec.structs.replace(
            candidate, requirements=tuple(requirements), provides=tuple(provides), defect=defect
        )

    def _one_too_many(self, known: KnownPackage, okey: str) -> str:
        """Return why a version cannot be here beside the other installs of its package, "" if it can."""
        for each in self.everywhere.get(known.name, ()) if known.installation != "noRestrictions" else ():
            if each.okey == okey:
                continue
            if known.installation == "onePerCluster":
                return f"it may be installed once per cluster, and {each.namespace}/{each.name} is there"
            if each.namespace == self._namespace:
                return f"it may be installed once per namespace, and {each.namespace}/{each.name} is there"
        return ""

    def _fields_needed(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the offers of which packages need fields, with these."""
        found = {
            pair
            for name in self._catalogue.names(self._namespace)
            for known in self._catalogue.versions(self._namespace, name).values()
            for pair in known.fields
        }
        return tuple(sorted(found))

    # dependencies as an install asks for them

    def _asked(
        self, requirement: Requirement, fields: Mapping[str, tuple[str, ...]], install: Install | None
    ) -> tuple[Requirement, str]:
        """Return a requirement, and why it cannot be met, "" if it may be."""
        leaves: list[Need] = []
        refused: list[str] = []
        original = flattened(requirement.need)
        packages = sum(isinstance(leaf, PackageNeed) for leaf in original)
        for leaf in original:
            override = override_of(install, requirement.name if packages == 1 else "", leaf)
            installs = may_install(install, override_of(install, requirement.name, leaf))
            if not installs and not self._is_there(leaf):
                refused.append(_named(leaf))
                continue
            leaves += self._leaves(leaf, override, fields)
        if leaves or not original:
            need = leaves[0] if len(leaves) == 1 else AnyOf(alternatives=tuple(leaves))
            return msgspec.structs.replace(requirement, need=need), ""
        if requirement.optional:
            return msgspec.structs.replace(requirement, need=AnyOf(alternatives=())), ""
        text = f"it needs {' or '.join(refused)}, which may not be installed for it, and is not there"
        return requirement, text

    def _leaves(
        self, leaf: Leaf, override: Override | None, fields: Mapping[str, tuple[str, ...]]
    ) -> list[Need]:
        if isinstance(leaf, OfferNeed) and leaf.offer in fields:
            return [OfferNeed(offer=_with_fields(leaf.offer, fields[leaf.offer]))]
        if not isinstance(leaf, PackageNeed):
            return [leaf]
        leaf = _overridden(leaf, override)
        nodes = self._nodes.get(leaf.package, [leaf.package])
        return [msgspec.structs.replace(leaf, package=node) for node in nodes]

    def _is_there(self, leaf: Leaf) -> bool:
        if isinstance(leaf, PackageNeed):
            return leaf.package in self._nodes
        if isinstance(leaf, OfferNeed):
            return leaf.offer in self._facts.offers or leaf.offer in self._provided
        return True


def override_of(install: Install | None, name: str, leaf: Leaf) -> Override | None:
    """Return what an install says of a dependency, None without anything.

    What it says by the dependency's name comes before what it says by the refName of the package.
    """
    package = leaf.package if isinstance(leaf, PackageNeed) else ""
    named, others = [], []
    for each in install.overrides if install else ():
        if each.dependency:
            if each.dependency == name and each.package in ("", package):
                named.append(each)
        elif each.package and each.package == package:
            others.append(each)
    found = None
    for each in (*named, *others):
        found = each if found is None else _merged(found, each)
    return found


def _overridden(leaf: PackageNeed, override: Override | None) -> PackageNeed:
    if override is not None and override.range:
        leaf = msgspec.structs.replace(leaf, range=override.range, language="carvel")
    if override is not None and override.prereleases is not None:
        leaf = msgspec.structs.replace(leaf, prereleases=override.prereleases)
    return leaf


def with_overrides(candidate: Candidate, install: Install) -> Candidate:
    """Return a version with the ranges that an install gives to its dependencies."""
    return msgspec.structs.replace(
        candidate, requirements=tuple(_with_override(each, install) for each in candidate.requirements)
    )


def _with_override(requirement: Requirement, install: Install) -> Requirement:
    original = flattened(requirement.need)
    packages = sum(isinstance(leaf, PackageNeed) for leaf in original)
    leaves: list[Need] = [
        _overridden(leaf, override_of(install, requirement.name if packages == 1 else "", leaf))
        if isinstance(leaf, PackageNeed)
        else leaf
        for leaf in original
    ]
    need = leaves[0] if len(leaves) == 1 else AnyOf(alternatives=tuple(leaves))
    return msgspec.structs.replace(requirement, need=need)


def stray_override(install: Install, known: Iterable[KnownPackage]) -> str:
    """Return which override or value of an install is for no dependency, "" if each is for one.

    known: the versions of its package that it may get; without any there is nothing to say
    """
    requirements = [requirement for each in known for requirement in each.candidate.requirements]
    if not requirements and not (install.overrides and list(known)):
        return ""
    names = {requirement.name for requirement in requirements} - {""}
    packages = {
        leaf.package
        for requirement in requirements
        for leaf in flattened(requirement.need)
        if isinstance(leaf, PackageNeed)
    }
    for each in install.overrides:
        if each.dependency and each.dependency not in names:
            return _no_dependency("name", each.dependency, names)
        if each.package and each.package not in packages:
            return _no_dependency("refName", each.package, packages)
    return ""


def _no_dependency(field: str, name: str, known: Collection[str]) -> str:
    text = f"spec.dependencies has an item with {field} {name}, and the package has no such dependency"
    return f"{text}: it has {', '.join(sorted(known))}" if known else text


def _merged(first: Override, second: Override) -> Override:
    return first._replace(
        range=first.range or second.range,
        prereleases=second.prereleases if first.prereleases is None else first.prereleases,
        is_installed=second.is_installed if first.is_installed is None else first.is_installed,
        values=first.values or second.values,
        value_keys=first.value_keys if first.values else second.value_keys,
    )


def may_install(install: Install | None, override: Override | None) -> bool:
    """Say whether an install may have a dependency installed."""
    if override is not None and override.is_installed is not None:
        return override.is_installed
    return install is None or install.installs_dependencies


def is_exact(text: str) -> bool:
    """Say whether a range is one version."""
    try:
        CARVEL.parse_version(text.removeprefix("=").strip())
    except VersionError:
        return False
    return True


def described(need: Need) -> str:
    """Return a need in words."""
    return " or ".join(_named(leaf) for leaf in flattened(need))


def _named(leaf: Leaf) -> str:
    if isinstance(leaf, PackageNeed):
        return f"{leaf.package} {leaf.range or leaf.digest}".rstrip()
    if isinstance(leaf, OfferNeed):
        return leaf.offer
    return f"{leaf.platform} {leaf.range}"


def _with_fields(offer: str, fields: tuple[str, ...]) -> str:
    return f"{offer} with {', '.join(fields)}"
