"""How Carvel's installs are decided on: by namespace, from the Packages that are there.

One round solves every namespace, and settles what nobody needs any more: first what no other such install
needs. `decided_rows` makes rounds until nothing changes, so that a decision of its own result is the same.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.keys import okey as object_key
from pvbus.core.kernel.packagekinds import CARVEL_INSTALL, CARVEL_PACKAGE
from pvbus.core.kernel.packagerows import LockRow, LockStatus
from pvbus.core.platform.packaging.carvelfacts import (
    GROUP,
    KIND,
    Catalogue,
    Facts,
    Present,
    is_needed_again,
    presents_of,
)
from pvbus.core.platform.packaging.reading import Problem as Unreadable
from pvbus.core.platform.packaging.restrictions import refusals_of
from pvbus.core.platform.packaging.statuses import refusal_words
from pvbus.core.platform.resolve.carvelproblem import (
    Foreign,
    Question,
    may_install,
    override_of,
    question_of,
    stray_override,
)
from pvbus.core.platform.resolve.decision import Need, decide
from pvbus.core.platform.resolve.naming import install_name
from pvbus.core.platform.resolve.plans import Plan, removed, unreadable
from pvbus.core.platform.resolve.reporting import Provider, dependencies_open
from pvbus.core.platform.resolve.solutions import ComponentCache
from pvbus.core.platform.resolve.state import ScopeState
from pvbus.core.platform.solver.languages import relaxed_version
from pvbus.core.platform.solver.model import Chosen, PackageNeed, Policy, Problem, Requirement, Resolution
from pvbus.core.platform.solver.resolving import resolve
from pvbus.core.platform.solver.states import dependencies_of
from pvbus.core.platform.solver.transaction import creations_of

Solve = Callable[[Problem], Resolution]
_HEAD = f"{CARVEL_INSTALL}|"
_ROUNDS_MIN = 8
"""A round that creates, one that reuses what was created, and some. Each settles one layer at least."""


def carvel_rows(
    state: ScopeState, cache: ComponentCache, policy: Policy, platforms: tuple[tuple[str, str], ...]
) -> dict[str, LockRow | None]:
    """Return the rows of Carvel's installs that change, by okey; None ends one.

    Nothing changes while their list is not complete, or that of the Packages.
    """
    if not all(_is_listed(state, str(kind)) for kind in (CARVEL_INSTALL, CARVEL_PACKAGE)):
        return {}
    before = {okey: row for okey, row in state.lock.items() if okey.startswith(_HEAD)}
    seen = {okey: each.install for okey, each in state.installs.items() if okey.startswith(_HEAD)}
    problems = {okey: install for okey, install in seen.items() if isinstance(install, Unreadable)}
    facts = Facts(
        installs={okey: install for okey, install in seen.items() if isinstance(install, Install)},
        packages=tuple(each for _, each in sorted(state.packages.items())),
        rows=before,
        offers=frozenset(offer for offers in state.definitions.values() for offer in offers),
        schemas={offer: schema for each in state.schemas.values() for offer, schema in each.items()},
        platforms=platforms,
        established=frozenset(okey for okey in state.established if okey.startswith(_HEAD)),
        unreadable=frozenset(okey for okey, problem in problems.items() if not problem.is_deleted),
        policy=policy,
    )
    after: dict[str, LockRow | None] = {**dict.fromkeys(before), **decided_rows(facts, cache.resolve)}
    for okey, problem in problems.items():
        broken = unreadable(before.get(okey), problem)
        after[okey] = removed(before.get(okey, broken)) if problem.is_deleted else broken
    return {okey: row for okey, row in after.items() if row != before.get(okey) and _may_change(state, okey)}


def _is_listed(state: ScopeState, kind: str) -> bool:
    marker = state.sync.marker(kind)
    return marker is not None and marker.state == "ok"


def _may_change(state: ScopeState, okey: str) -> bool:
    """Whether a row may follow from its install: it is there, is to be created, or is certainly gone."""
    row = state.lock.get(okey)
    return okey in state.installs or row is None or not row.uid or state.is_gone(okey)


def decided_rows(facts: Facts, solve: Solve = resolve) -> dict[str, LockRow]:
    """Return the lock's row of every install of Carvel's, by okey. holders are okeys, too.

    A row that is in `facts.rows` and not in the result is to be deleted. solve: may remember solutions.
    """
    remembered: dict[str, tuple[Problem, Resolution]] = {}

    def once(namespace: str, problem: Problem) -> Resolution:
        known = remembered.get(namespace)
        if known is None or known[0] != problem:
            remembered[namespace] = known = (problem, solve(problem))
        return known[1]

    rows = dict(facts.rows)
    for _ in range(2 * (len(facts.installs) + len(facts.rows)) + _ROUNDS_MIN):
        family = CarvelFamily(facts._replace(rows=rows), once)
        decide(family)
        after = family.finished()
        if after == rows:
            return after
        rows = after
    return rows


class NamespacePlan(Plan):
    """The plan of a PackageInstall.

    present: what is there of it
    version: that is decided on, else the one that is there
    question: what was asked of the resolver for its namespace, None while it takes no part
    template: the spec that it gets, if it is created now
    """

    def __init__(self, present: Present, install: Install | None, row: LockRow | None) -> None:
        super().__init__(present.okey, install, row)
        self.present = present
        self.package, self.holders = present.package, present.holders
        self.version = present.version
        self.question: Question | None = None
        self.template: Mapping[str, Any] = row.template if row else {}


class CarvelFamily:
    """One round on all namespaces; see `pvbus.core.platform.resolve.decision`."""

    def __init__(self, facts: Facts, solve: Callable[[str, Problem], Resolution]) -> None:
        self.lock: Mapping[str, LockRow] = facts.rows
        self.unreadable: Collection[str] = facts.unreadable
        self.rows: dict[str, LockRow | None] = {}
        self.plans: dict[str, NamespacePlan] = {}
        self._facts = facts
        self._solver = solve
        self._catalogue = Catalogue(facts.packages)
        presents = presents_of(facts)
        refusals = refusals_of(facts, self._catalogue, presents)
        for present in presents:
            plan = self._add(present)
            if present.okey in refusals:
                plan.fault = ("refused", *refusals[present.okey])
            elif plan.install is not None and not plan.is_created:
                known = self._catalogue.admitted(present.namespace, plan.install)
                if stray := stray_override(plan.install, known):
                    plan.fault = ("refused", "UnknownDependency", stray)
        self._taken: dict[str, set[str]] = {}
        rows = (
            okey for okey, row in facts.rows.items() if row.status != "removed" or okey in facts.established
        )
        for key in map(ObjectKey.parse, {*facts.installs, *rows}):
            self._taken.setdefault(key.namespace, set()).add(key.name)

    def _add(self, present: Present) -> NamespacePlan:
        okey = present.okey
        plan = NamespacePlan(present, self._facts.installs.get(okey), self._facts.rows.get(okey))
        self.plans[okey] = plan
        return plan

    def finished(self) -> dict[str, LockRow]:
        """Return all rows, with those of what ends or does not count."""
        installs, found = self._facts.installs, {okey: row for okey, row in self.rows.items() if row}
        for okey, row in self._facts.rows.items():
            if okey in found and is_needed_again(self._facts, okey):
                row = msgspec.structs.replace(row, holders=found[okey].holders)
            elif okey in found or not (okey in installs or okey in self._facts.established):
                continue
            found[okey] = _ended(row, installs.get(okey))
        for okey, install in installs.items():
            if okey not in found:
                found[okey] = _ended(LockRow(status="removed", package=install.package), install)
        return dict(sorted(found.items()))

    def install(self, okey: str) -> Install | None:
        return self._facts.installs.get(okey)

    def in_order(self) -> Iterable[NamespacePlan]:
        return list(self.plans.values())

    # ------------------------------------------------------------ solving

    def solve(self) -> None:
        """Solve the namespaces: first those with an install that is the only one of the cluster."""
        presents = [plan.present for plan in self.plans.values()]
        single = {each.namespace for each in presents if self._is_single(each)}
        for name in sorted(
            {each.namespace for each in presents}, key=lambda name: (name not in single, name)
        ):
            self._solve_namespace(name)

    def _is_single(self, present: Present) -> bool:
        install = self._facts.installs.get(present.okey)
        kind = self._catalogue.installation(present.namespace, present.package, present.version, install)
        return kind == "onePerCluster"

    def _foreign(self, namespace: str, own: Iterable[Present]) -> list[Foreign]:
        packages = {each.package for each in own}
        found: dict[str, Foreign] = {}
        for plan in self.plans.values():
            present = plan.present
            if present.namespace == namespace or plan.package in packages or plan.package in found:
                continue
            if plan.fault or not self._is_single(present):
                continue
            known = self._catalogue.versions(present.namespace, plan.package).get(plan.version)
            provides = known.candidate.provides if known else ()
            found[plan.package] = Foreign(plan.okey, plan.package, plan.version, provides)
        return [found[name] for name in sorted(found)]

    def _solve_namespace(self, namespace: str) -> None:
        everywhere = [plan.present for plan in self.plans.values() if not plan.fault]
        own = [each for each in everywhere if each.namespace == namespace]
        question = question_of(
            self._facts, self._catalogue, namespace, own, self._foreign(namespace, own), everywhere
        )
        resolution = self._solver(namespace, question.problem)
        okeys = dict(question.okeys)
        reports = dependencies_of(question.problem, resolution)
        for outcome, report in zip(resolution.outcomes, reports, strict=True):
            plan = self.plans[okeys[outcome.wish.package]]
            plan.outcome, plan.reports = outcome, report
        chosen = {each.package: each for each in resolution.chosen}
        okeys |= self._create_installs(namespace, question, resolution, chosen)
        question = question._replace(okeys=okeys)
        for node, okey in okeys.items():
            plan = self.plans[okey]
            if plan.present.namespace == namespace:
                plan.question = question
                if node in chosen:
                    self._choose(plan, question, chosen[node])

    @staticmethod
    def _choose(plan: NamespacePlan, question: Question, chosen: Chosen) -> None:
        asked = question.requirements.get((plan.present.node, chosen.version), ())
        plan.chosen, plan.version = chosen, chosen.version
        plan.asked = asked if len(asked) == len(chosen.edges) else ()

    def _create_installs(
        self, namespace: str, question: Question, resolution: Resolution, chosen: Mapping[str, Chosen]
    ) -> dict[str, str]:
        """Add the installs that are created; return their okeys by node."""
        strategies = {
            (namespace, node): self._facts.installs[okey].strategy
            for node, okey in question.okeys.items()
            if okey in self._facts.installs and self.plans[okey].present.namespace == namespace
        }
        okeys, made = dict(question.okeys), {}
        for rounds in creations_of(question.problem, resolution, "direct", strategies):
            for creation in rounds:
                owner, package = okeys[creation.owner[1]], creation.package
                name = self._take_name(namespace, package, creation.version)
                key = object_key(GROUP, KIND, namespace, name)
                okeys[package] = made[package] = key
                plan = self._add(Present(key, namespace, name, package, package, creation.version, (owner,)))
                plan.template = self._template(
                    owner, chosen.get(self.plans[owner].present.node), package, creation.version
                )
        return made

    def create(self) -> None:
        """Nothing is left to be created: what one namespace gets, others may use."""

    def _take_name(self, namespace: str, package: str, version: str) -> str:
        taken = self._taken.setdefault(namespace, set())
        name = install_name(package, version, taken)
        taken.add(name)
        return name

    def _template(self, owner: str, chosen: Chosen | None, package: str, version: str) -> dict[str, Any]:
        """Return the spec of an install that is created.

        owner: whose account and values it gets
        chosen: the version of the owner, None if it has none
        """
        install, parent = self._facts.installs.get(owner), self.plans[owner]
        account = install.service_account if install else str(parent.template.get("serviceAccountName", ""))
        spec: dict[str, Any] = {"packageRef": package_reference(package, version)}
        if account:
            spec["serviceAccountName"] = account
        names = [
            edge.requirement.name
            for edge in (chosen.edges if chosen else ())
            if edge.status == "met" and edge.provider == package
        ]
        values = values_of(install, names[0] if names else "", package)
        if values:
            spec["values"] = values
        return spec

    # ------------------------------------------------------------ who needs what

    def is_decided(self, plan: NamespacePlan) -> bool:
        return plan.chosen is not None and self._status(plan) == "locked"

    def needs(self) -> Iterable[Need]:
        needs = [need for okey in sorted(self.plans) for need in self._needs_of(self.plans[okey])]
        for plan in self.plans.values():
            for holder in plan.holders if plan.is_created else ():
                if self._is_whole(holder) and plan.okey in _reached(needs, holder):
                    yield Need(holder, plan.okey)
        yield from needs

    def _needs_of(self, plan: NamespacePlan) -> list[Need]:
        install = None if plan.is_created else plan.install
        found = []
        for edge in plan.chosen.edges if plan.chosen and plan.question else ():
            if edge.status != "met":
                continue
            assert plan.question is not None
            other = plan.question.okeys[edge.provider]
            if other != plan.okey:
                leaf = PackageNeed(package=self.plans[other].package)
                override = override_of(install, edge.requirement.name, leaf)
                found.append(Need(plan.okey, other, may_install(install, override)))
        return found

    def _is_whole(self, okey: str) -> bool:
        """Return whether an install holds all that it needs, itself or by others."""
        install, plan = self._facts.installs.get(okey), self.plans.get(okey)
        is_chosen = plan is not None and plan.chosen is not None
        return install is not None and install.strategy == "closure" and is_chosen

    # ------------------------------------------------------------ rows

    def conclude(self, plan: NamespacePlan) -> LockRow:
        install, former = plan.install, plan.row
        row = LockRow(
            status="locked",
            uid=install.uid if install else "",
            generation=install.generation if install else 0,
            package=plan.package,
            version=plan.version,
            revisions=former.revisions if former else (),
            dependencies=former.dependencies if former else (),
            removal=former.removal if former else "orphan",
        )
        if plan.is_created:
            return msgspec.structs.replace(row, template=_with_version(plan.template, row))
        reason, message = self._refusal(plan)
        return msgspec.structs.replace(
            row,
            status=self._status(plan),
            reason=reason,
            message=message,
            removal=install.removal if install else row.removal,
        )

    def pass_on(self, plan: NamespacePlan, row: LockRow, owner: str) -> LockRow:
        """Give a created install the account and the values that its owner has for it now.

        An owner that says nothing now changes nothing. Without a version a person has changed both.
        """
        if not row.version:
            return msgspec.structs.replace(row, removal=plan.row.removal if plan.row else "orphan")
        holder = self.plans.get(owner)
        if holder is None:
            return row
        is_known = holder.chosen is not None and (
            owner in self._facts.installs or bool(holder.row and holder.row.template)
        )
        if not (is_known or not row.template):
            return row
        template = self._template(owner, holder.chosen, plan.package, row.version)
        return msgspec.structs.replace(row, template=template)

    def _status(self, plan: NamespacePlan) -> LockStatus:
        if plan.fault:
            return "refused"
        if plan.outcome is None or plan.outcome.status == "granted":
            return "locked"
        return "waiting" if plan.outcome.status == "undecided" else "refused"

    def _refusal(self, plan: NamespacePlan) -> tuple[str, str]:
        outcome = plan.outcome
        if plan.fault:
            return plan.fault[1:]
        if outcome is None or outcome.status == "granted":
            return "", ""
        sentence = refusal_words(outcome.explanation)
        if outcome.status == "undecided":
            return "Undecided", sentence
        unmet = dependencies_open(plan.reports, lambda package, _: self._found(plan, package))
        conditions = {each.condition for each in unmet}
        # The sentence names an API that is missing; who provides it, or that nobody does, is said here.
        hints = [each.message for each in unmet if each.offer and not each.is_optional and each.message]
        sentence = "; ".join((sentence, *dict.fromkeys(hints)))
        if not self._catalogue.versions(plan.present.namespace, plan.package):
            conditions.add("UnknownPackage")
        for condition in _REFUSALS:
            if condition in conditions:
                return condition, sentence
        return "DependenciesUnmet", sentence

    def find(self, plan: NamespacePlan, package: str, requirement: Requirement) -> Provider:
        provider = self._found(plan, package)
        install = None if plan.is_created else plan.install
        override = override_of(install, requirement.name, PackageNeed(package=provider.package))
        if not provider.okey or override is None or not override.values:
            return provider
        name, values = ObjectKey.parse(provider.okey).name, ", ".join(override.values)
        note = f"its values ({values}) are not used: {name} was not created for this install"
        return provider._replace(note=note)

    def _found(self, plan: NamespacePlan, package: str) -> Provider:
        other = self.plans.get(plan.question.okeys.get(package, "") if plan.question else "")
        if other is None:
            return Provider("", package)
        return Provider(other.okey, other.package, other.version, other.present.version)

    def is_known(self, plan: NamespacePlan, package: str) -> bool:
        return bool(self._catalogue.versions(plan.present.namespace, package))


_REFUSALS = ("UnknownPackage", "UnknownPackageVersion", "FoundPackageInstallRequiresDifferentVersion")
"""The reasons of a refusal that name a dependency, the first one that holds counts."""


def _reached(needs: Iterable[Need], okey: str) -> set[str]:
    """Return all that an install needs, itself or by what it needs."""
    edges: dict[str, list[str]] = {}
    for need in needs:
        edges.setdefault(need.holder, []).append(need.install)
    found: set[str] = set()
    pending = list(edges.get(okey, ()))
    while pending:
        other = pending.pop()
        if other not in found and other != okey:
            found.add(other)
            pending += edges.get(other, ())
    return found


def _ended(row: LockRow, install: Install | None) -> LockRow:
    return removed(msgspec.structs.replace(row, uid=install.uid if install else row.uid), row.message)


def _with_version(template: Mapping[str, Any], row: LockRow) -> Mapping[str, Any]:
    if not template or not row.version:
        return template
    return {**template, "packageRef": package_reference(row.package, row.version)}


def package_reference(package: str, version: str) -> dict[str, Any]:
    """Return a packageRef that only this version fits."""
    selection: dict[str, Any] = {"constraints": version.removeprefix("v")}
    if relaxed_version(version).pre:
        selection["prereleases"] = {}
    return {"refName": package, "versionSelection": selection}


def values_of(install: Install | None, name: str, package: str) -> list[dict[str, Any]]:
    """Return the `values` of an install that is created: Secrets that its owner names for the dependency."""
    override = override_of(install, name, PackageNeed(package=package))
    if override is None:
        return []
    keys = (*override.value_keys, *("" for _ in override.values))
    return [
        {"secretRef": {"name": secret, "key": key} if key else {"name": secret}}
        for secret, key in zip(override.values, keys, strict=False)
    ]
