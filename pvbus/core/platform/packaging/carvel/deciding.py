"""Decides the lock of Carvel's installs: versions, dependencies, and installs that are created for others.

One round solves every namespace, and settles what nobody needs any more: first what no other such install
needs. `decide` makes rounds until nothing changes, so that a decision of its own result is the same.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.keys import okey as object_key
from pvbus.core.kernel.packagerows import LockedDependency, LockRow
from pvbus.core.platform.packaging.carvel.facts import (
    GROUP,
    KIND,
    ORPHANED,
    Catalogue,
    Facts,
    Present,
    is_needed_again,
    presents_of,
)
from pvbus.core.platform.packaging.carvel.problem import Foreign, Question, override_of, question_of
from pvbus.core.platform.packaging.carvel.reports import Outlook, dependencies_met, dependencies_open
from pvbus.core.platform.packaging.carvel.restrictions import refusals_of
from pvbus.core.platform.packaging.naming import install_name
from pvbus.core.platform.packaging.statuses import refusal_words
from pvbus.core.platform.solver.languages import relaxed_version
from pvbus.core.platform.solver.model import Chosen, Outcome, PackageNeed, Problem, Resolution
from pvbus.core.platform.solver.resolving import resolve
from pvbus.core.platform.solver.states import DependencyReport, dependencies_of
from pvbus.core.platform.solver.transaction import creations_of

Removal = Literal["orphan", "delete", "keep-if-used"]
Solve = Callable[[Problem], Resolution]


def decide(facts: Facts, solve: Solve = resolve) -> dict[str, LockRow]:
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
        found = _Round(facts._replace(rows=rows), once).rows()
        if found == rows:
            return found
        rows = found
    return rows


_ROUNDS_MIN = 8
"""A round that creates, one that reuses what was created, and some. Each settles one layer at least."""


class _Need(NamedTuple):
    """A need of one install for another.

    holds: whether the one may have the other installed, and so keeps it
    """

    holder: str
    install: str
    holds: bool


class _Round:
    def __init__(self, facts: Facts, solve: Callable[[str, Problem], Resolution]) -> None:
        self._facts = facts
        self._solve = solve
        self._catalogue = Catalogue(facts.packages)
        self._presents = {each.okey: each for each in presents_of(facts)}
        self._refusals = refusals_of(facts, self._catalogue, tuple(self._presents.values()))
        self._taken: dict[str, set[str]] = {}
        rows = (
            okey for okey, row in facts.rows.items() if row.status != "removed" or okey in facts.established
        )
        for key in map(ObjectKey.parse, {*facts.installs, *rows}):
            self._taken.setdefault(key.namespace, set()).add(key.name)
        self._versions: dict[str, str] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._open: dict[str, tuple[DependencyReport, ...]] = {}
        self._chosen: dict[str, tuple[Question, Chosen]] = {}
        self._templates: dict[str, Mapping[str, Any]] = {}
        self._needs: list[_Need] = []

    def rows(self) -> dict[str, LockRow]:
        for namespace in self._namespaces():
            self._solve_namespace(namespace)
        self._needs = [need for okey in sorted(self._chosen) for need in self._needs_of(okey)]
        retained = self._retained()
        holders = {
            okey: self._holders(each, retained) for okey, each in self._presents.items() if each.is_created
        }
        found = {}
        for okey, present in self._presents.items():
            found[okey] = self._row(present, holders)
        self._settle(found, holders)
        for okey, row in self._facts.rows.items():
            if okey in found and is_needed_again(self._facts, okey):
                found[okey] = _removed(
                    msgspec.structs.replace(row, holders=holders[okey]), self._facts.installs.get(okey)
                )
            elif okey not in found:
                ended = self._ended(okey, row)
                if ended is not None:
                    found[okey] = ended
        for okey, install in self._facts.installs.items():
            if okey not in found:
                found[okey] = _removed(LockRow(status="removed", package=install.package), install)
        return dict(sorted(found.items()))

    # solving

    def _namespaces(self) -> list[str]:
        """Return the namespaces: first those with an install that is the only one of the cluster."""
        single = {each.namespace for each in self._presents.values() if self._is_single(each)}
        names = {each.namespace for each in self._presents.values()}
        return sorted(names, key=lambda name: (name not in single, name))

    def _is_single(self, present: Present) -> bool:
        install = self._facts.installs.get(present.okey)
        found = self._catalogue.installation(present.namespace, present.package, present.version, install)
        return found == "onePerCluster"

    def _foreign(self, namespace: str, own: Iterable[Present]) -> list[Foreign]:
        packages = {each.package for each in own}
        found: dict[str, Foreign] = {}
        for each in self._presents.values():
            if each.namespace == namespace or each.package in packages or each.package in found:
                continue
            if each.okey in self._refusals or not self._is_single(each):
                continue
            version = self._versions.get(each.okey, "") or each.version
            known = self._catalogue.versions(each.namespace, each.package).get(version)
            provides = known.candidate.provides if known else ()
            found[each.package] = Foreign(each.okey, each.package, version, provides)
        return [found[name] for name in sorted(found)]

    def _solve_namespace(self, namespace: str) -> None:
        own = [
            each
            for each in self._presents.values()
            if each.namespace == namespace and each.okey not in self._refusals
        ]
        everywhere = [each for each in self._presents.values() if each.okey not in self._refusals]
        question = question_of(
            self._facts, self._catalogue, namespace, own, self._foreign(namespace, own), everywhere
        )
        resolution = self._solve(namespace, question.problem)
        okeys = dict(question.okeys)
        reports = dependencies_of(question.problem, resolution)
        for outcome, report in zip(resolution.outcomes, reports, strict=True):
            self._outcomes[okeys[outcome.wish.package]] = outcome
            self._open[okeys[outcome.wish.package]] = report
        chosen = {each.package: each for each in resolution.chosen}
        for okey in self._create(namespace, question, resolution, chosen):
            okeys[self._presents[okey].node] = okey
        question = question._replace(okeys=okeys)
        for node, each in chosen.items():
            okey = okeys[node]
            if ObjectKey.parse(okey).namespace == namespace:
                self._versions[okey] = each.version
                self._chosen[okey] = (question, each)

    def _create(
        self, namespace: str, question: Question, resolution: Resolution, chosen: Mapping[str, Chosen]
    ) -> list[str]:
        """Add the installs that are created; return their okeys."""
        strategies = {
            (namespace, node): self._facts.installs[each].strategy
            for node, each in question.okeys.items()
            if each in self._facts.installs and self._presents[each].namespace == namespace
        }
        okeys = dict(question.okeys)
        made = []
        for rounds in creations_of(question.problem, resolution, "direct", strategies):
            for creation in rounds:
                owner = okeys[creation.owner[1]]
                key = self._named(namespace, creation.package, creation.version)
                okeys[creation.package] = key
                name = ObjectKey.parse(key).name
                self._presents[key] = Present(
                    key,
                    namespace,
                    name,
                    creation.package,
                    creation.package,
                    creation.version,
                    True,
                    (owner,),
                )
                self._templates[key] = self._template(owner, chosen, creation.package, creation.version)
                made.append(key)
        return made

    def _named(self, namespace: str, package: str, version: str) -> str:
        taken = self._taken.setdefault(namespace, set())
        name = install_name(package, version, taken)
        taken.add(name)
        return object_key(GROUP, KIND, namespace, name)

    def _template(
        self, owner: str, chosen: Mapping[str, Chosen], package: str, version: str
    ) -> dict[str, Any]:
        """Return the spec of an install that is created. owner: whose account and values it gets."""
        install = self._facts.installs.get(owner)
        former = self._templates.get(owner) or _template_of(self._facts.rows.get(owner))
        account = install.service_account if install else str(former.get("serviceAccountName", ""))
        spec: dict[str, Any] = {"packageRef": package_reference(package, version)}
        if account:
            spec["serviceAccountName"] = account
        node = self._presents[owner].node
        names = [
            edge.requirement.name
            for edge in (chosen[node].edges if node in chosen else ())
            if edge.status == "met" and edge.provider == package
        ]
        values = values_of(install, names[0] if names else "", package)
        if values:
            spec["values"] = values
        return spec

    # who needs what

    def _needs_of(self, okey: str) -> list[_Need]:
        question, chosen = self._chosen[okey]
        present = self._presents[okey]
        install = None if present.is_created else self._facts.installs.get(okey)
        found = []
        for edge in chosen.edges:
            if edge.status != "met":
                continue
            other = question.okeys[edge.provider]
            if other != okey:
                leaf = PackageNeed(package=self._presents[other].package)
                override = override_of(install, edge.requirement.name, leaf)
                holds = install is None or install.installs_dependencies
                if override is not None and override.is_installed is not None:
                    holds = override.is_installed
                found.append(_Need(okey, other, holds))
        return found

    def _reached(self, okey: str) -> set[str]:
        """Return all that an install needs, itself or by what it needs."""
        edges: dict[str, list[str]] = {}
        for need in self._needs:
            edges.setdefault(need.holder, []).append(need.install)
        found: set[str] = set()
        pending = list(edges.get(okey, ()))
        while pending:
            each = pending.pop()
            if each not in found and each != okey:
                found.add(each)
                pending += edges.get(each, ())
        return found

    def _retained(self) -> set[str]:
        """Return the installs that could not be decided on, and what was created for them.

        They hold what they held: nothing that they rest on is given up.
        """
        users = [okey for okey, each in self._presents.items() if not each.is_created]
        found = {okey for okey in users if self._status(okey) != "locked"}
        pending = True
        while pending:
            more = {
                okey
                for okey, each in self._presents.items()
                if each.is_created and okey not in self._chosen and found & set(each.holders)
            }
            pending = not more <= found
            found |= more
        return found

    def _is_whole(self, okey: str) -> bool:
        install = self._facts.installs.get(okey)
        return install is not None and install.strategy == "closure"

    def _holders(self, present: Present, retained: Collection[str]) -> tuple[str, ...]:
        """Return the holders, the former ones first, so that the owner is the eldest."""
        holding = {need.holder for need in self._needs if need.install == present.okey and need.holds}
        for each in present.holders:
            if each in retained or (
                self._is_whole(each) and each in self._chosen and present.okey in self._reached(each)
            ):
                holding.add(each)
        former = [each for each in present.holders if each in holding]
        return (*former, *sorted(holding - set(former)))

    def _status(self, okey: str) -> str:
        if okey in self._refusals:
            return "refused"
        outcome = self._outcomes.get(okey)
        if outcome is None:
            return "locked"
        return {"granted": "locked", "undecided": "waiting"}.get(outcome.status, "refused")

    # rows

    def _row(self, present: Present, holders: Mapping[str, tuple[str, ...]]) -> LockRow:
        okey, former = present.okey, self._facts.rows.get(present.okey)
        install = self._facts.installs.get(okey)
        row = LockRow(
            status="locked",
            uid=install.uid if install else "",
            generation=install.generation if install else 0,
            package=present.package,
            version=self._versions.get(okey, present.version),
            revisions=former.revisions if former else (),
            dependencies=self._dependencies(present, holders),
            removal=install.removal if install and not present.is_created else _removal_of(former),
        )
        if present.is_created:
            return self._created_row(row, present, holders[okey])
        reason, message = self._refusal(okey)
        if former is not None and former.reason == ORPHANED and not reason:
            reason, message = ORPHANED, former.message
        version = row.version if okey in self._chosen or self._status(okey) == "locked" else present.version
        return msgspec.structs.replace(
            row, status=self._status(okey), version=version, reason=reason, message=message
        )

    def _created_row(self, row: LockRow, present: Present, holders: tuple[str, ...]) -> LockRow:
        former = self._facts.rows.get(present.okey)
        template = self._templates.get(present.okey) or _template_of(former)
        if not row.version:
            return msgspec.structs.replace(row, holders=holders, template=template)  # a person changed both
        owner = holders[0] if holders and holders[0] in self._presents else ""
        is_known = owner in self._chosen and (
            owner in self._facts.installs or bool(_template_of(self._facts.rows.get(owner)))
        )
        if owner and (is_known or not template):  # an owner that says nothing now changes nothing
            template = self._template(owner, self._chosen_by(owner), present.package, row.version)
        if template:
            template = {**template, "packageRef": package_reference(present.package, row.version)}
        removal: Removal = self._removal(holders[0]) if holders else row.removal
        return msgspec.structs.replace(row, holders=holders, template=template, removal=removal)

    def _chosen_by(self, okey: str) -> Mapping[str, Chosen]:
        """Return the chosen version of an install by its node, {} without one."""
        return {self._presents[okey].node: self._chosen[okey][1]} if okey in self._chosen else {}

    def _removal(self, okey: str) -> Removal:
        """Return what an install wants done with what only it held; its owner says so for a created one."""
        seen: set[str] = set()
        while okey not in seen:
            seen.add(okey)
            install, row = self._facts.installs.get(okey), self._facts.rows.get(okey)
            present = self._presents.get(okey)
            if install is not None and (present is None or not present.is_created) and not install.owner:
                return install.removal
            if row is not None:
                return row.removal
            if present is None or not present.holders:
                break
            okey = present.holders[0]
        return "orphan"

    def _refusal(self, okey: str) -> tuple[str, str]:
        if okey in self._refusals:
            return self._refusals[okey]
        outcome = self._outcomes.get(okey)
        if outcome is None or outcome.status == "granted":
            return "", ""
        if outcome.status == "undecided":
            return "Undecided", refusal_words(outcome.explanation)
        sentence = refusal_words(outcome.explanation)
        conditions = [each.condition for each in self._open_dependencies(self._presents[okey], {})]
        for condition in ("UnknownPackage", "UnknownPackageVersion"):
            if condition in conditions:
                return condition, sentence
        if not self._catalogue.versions(*self._location(okey)):
            return "UnknownPackage", sentence
        if "FoundPackageInstallRequiresDifferentVersion" in conditions:
            return "FoundPackageInstallRequiresDifferentVersion", sentence
        return "DependenciesUnmet", sentence

    def _location(self, okey: str) -> tuple[str, str]:
        present = self._presents[okey]
        return present.namespace, present.package

    def _dependencies(
        self, present: Present, holders: Mapping[str, tuple[str, ...]]
    ) -> tuple[LockedDependency, ...]:
        if self._status(present.okey) == "locked" and present.okey in self._chosen:
            question, chosen = self._chosen[present.okey]
            outlook = Outlook(self._catalogue, self._presents, holders, self._versions, self._facts)
            return dependencies_met(outlook, present, question, chosen)
        if present.okey in self._open and self._status(present.okey) != "locked":
            return self._open_dependencies(present, holders)
        former = self._facts.rows.get(present.okey)
        return former.dependencies if former else ()

    def _open_dependencies(
        self, present: Present, holders: Mapping[str, tuple[str, ...]]
    ) -> tuple[LockedDependency, ...]:
        outlook = Outlook(self._catalogue, self._presents, holders, self._versions, self._facts)
        return dependencies_open(outlook, present, self._open.get(present.okey, ()))

    # what ends

    def _settle(self, found: dict[str, LockRow], holders: Mapping[str, tuple[str, ...]]) -> None:
        """Decide on created installs that nobody holds: those first that no other of them held."""
        left = {okey for okey, each in holders.items() if not each}
        if not left:
            return
        top = {okey for okey in left if not left & set(self._presents[okey].holders) - {okey}}
        top = top or {min(left)}
        for okey in left:
            former = self._facts.rows.get(okey)
            if okey in top:
                found[okey] = self._without_holders(okey, found[okey])
            elif former is not None:
                found[okey] = msgspec.structs.replace(found[okey], holders=former.holders)
            else:
                found[okey] = msgspec.structs.replace(found[okey], holders=self._presents[okey].holders)

    def _without_holders(self, okey: str, row: LockRow) -> LockRow:
        """Return the row of a created install that has lost its last holder."""
        former, install = self._facts.rows.get(okey), self._facts.installs.get(okey)
        owners = self._presents[okey].holders
        removal = self._removal(owners[0]) if owners and owners[0] in self._facts.installs else row.removal
        is_used = any(need.install == okey for need in self._needs)
        is_ours = (
            former is not None
            and bool(former.template)
            and former.uid in ("", install.uid if install else "")
        )
        if install is None:
            return _removed(row, install)
        if removal == "orphan" or not is_ours or (removal == "keep-if-used" and is_used):
            text = f"it was created for {_shown(owners)}, and stays without it"
            return msgspec.structs.replace(row, holders=(), template={}, reason=ORPHANED, message=text)
        return _removed(msgspec.structs.replace(row, message=f"it was created for {_shown(owners)}"), install)

    def _ended(self, okey: str, row: LockRow) -> LockRow | None:
        """Return the row of an install that does not count any more, None to delete the row."""
        install = self._facts.installs.get(okey)
        if install is None and okey not in self._facts.established:
            return None
        return _removed(row, install)


def _removed(row: LockRow, install: Install | None) -> LockRow:
    uid = install.uid if install else row.uid
    return msgspec.structs.replace(
        row, status="removed", uid=uid, reason="Removed", dependencies=(), template={}, holders=row.holders
    )


def _removal_of(row: LockRow | None) -> Removal:
    return row.removal if row else "orphan"


def _template_of(row: LockRow | None) -> Mapping[str, Any]:
    return row.template if row else {}


def _shown(okeys: Iterable[str]) -> str:
    return ", ".join(ObjectKey.parse(each).name for each in okeys) or "others"


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


__all__ = ["decide", "package_reference", "values_of"]
