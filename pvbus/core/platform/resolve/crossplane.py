"""How the installs of Crossplane's family are decided on: by sources, contents and revisions.

An install is decided on only once all that can matter for it is known; until then its row stays.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.packagekinds import CROSSPLANE_GROUP as PKG
from pvbus.core.kernel.packagerows import (
    OBJECT_OWNED,
    ROLLED_BACK,
    SOURCE_FAILS,
    STAYS_ACTIVE,
    UNVERIFIED,
    WAITING,
    LockRow,
)
from pvbus.core.platform.packaging.statuses import refusal_words
from pvbus.core.platform.resolve.asking import Asking
from pvbus.core.platform.resolve.children import child_kind, template_of
from pvbus.core.platform.resolve.decision import Need, decide
from pvbus.core.platform.resolve.groups import Link, Member, sources_of
from pvbus.core.platform.resolve.naming import child_name
from pvbus.core.platform.resolve.planning import in_order, locked, planned, with_children
from pvbus.core.platform.resolve.plans import Decision, RevisionPlan, Settings, faulty, settles, shown
from pvbus.core.platform.resolve.problem import Switches
from pvbus.core.platform.resolve.reporting import Provider
from pvbus.core.platform.resolve.revisions import History, Intent, advanced, is_new, new_contents, next_digest
from pvbus.core.platform.resolve.solutions import Asked, Part, Solver, kinds_of, needs_of
from pvbus.core.platform.resolve.state import ScopeState
from pvbus.core.platform.solver.model import Chosen, Requirement, Wish

NAME_CHARACTERS = 50
"""Of an install's name in the name of its revision, so that with the digest it is a name of 63."""
DIGEST_CHARACTERS = 12
NOT_RUN = "Configuration"
"""The kind of an install whose package nothing runs."""
ANY_KIND = "Package"
"""The kind of an install that takes a package of each kind."""


class CrossplaneFamily:
    """One decision about some groups of installs and sources; see `pvbus.core.platform.resolve.decision`.

    only: the installs and sources of these groups; None for all there are
    waits: what an install waits for, in words -> the member that waits
    is_recovering: whether all wait for the content of a revision that was found in the cluster
    plans, rows, lock, unreadable: see `Family`
    """

    def __init__(
        self, state: ScopeState, solver: Solver, settings: Settings, only: set[Member] | None
    ) -> None:
        self.only = only
        self.waits: dict[str, Member] = {}
        self.is_recovering = False
        self._state = state
        self._solver = solver
        self._settings = settings
        self.lock: Mapping[str, LockRow] = state.lock
        self.unreadable: Collection[str] = ()
        self.rows: dict[str, LockRow | None] = {}
        self.plans: dict[str, RevisionPlan] = {}
        self._by_package: dict[str, str] = {}
        self._ending: dict[str, str] = {}
        self._asking = Asking(state)
        self._claimed: dict[str, str] = {}
        self._taken_names: dict[str, set[str]] = {}
        self._question: Asked | None = None
        self._names: list[str] = []

    def prepare(self) -> None:
        """Find out what is asked, and read the packages that can come to be needed for it."""
        self.rows, self.plans, self._by_package, self._ending = planned(self._state, self.only, self._asking)
        self.unreadable = {okey for okey, row in self.rows.items() if row and row.status == "broken"}
        self._question = self._asked()
        self._names = self._solver.offer(self._state, self._question)

    def decision(self) -> Decision:
        """Return what changes for these groups. Caller: after `prepare`.

        Only rows that differ from the lock are returned. `settles` says when no other decision has to follow.
        """
        decide(self)
        rows = {okey: row for okey, row in self.rows.items() if self._state.lock.get(okey) != row}
        known = self._state.sources if self.only is None else set(sources_of(self.only))
        sources = self._asking.rows(known)
        retained = {(plan.package, r.digest) for plan in self.plans.values() for r in plan.history.revisions}
        read = self._state.contents if self.only is None else known
        contents = tuple(self._asking.unneeded(read, sources, retained))
        is_settled = not contents and None not in sources.values() and settles(self._state, self.rows)
        return Decision(rows, sources, contents, self._asking.demands(), is_settled=is_settled)

    def links(self) -> Iterable[Link]:
        """Yield which installs, sources and API kinds cannot be decided on apart."""
        for okey in {*locked(self._state, self.only), *self.plans}:
            plan, row = self.plans.get(okey), self._state.lock.get(okey)
            own = Member("install", okey)
            for package in {row.package if row else "", plan.package if plan else ""} - {""}:
                yield own, Member("source", package)
            for holder in {*(row.holders if row else ()), *(plan.holders if plan else ())}:
                yield own, Member("install", holder)
        for name in self._names:
            own, offered = Member("source", name), self._solver.offered[name]
            for need in needs_of(offered):
                yield own, Member("source", need.package)
            for kind in kinds_of(offered):
                yield own, Member("offer", kind)

    def disowned(self) -> Iterable[str]:
        """Yield the installs that are refused since another one has one of their objects."""
        return (okey for okey, row in self.rows.items() if row is not None and row.reason == OBJECT_OWNED)

    # ------------------------------------------------------------ what is asked

    def _asked(self) -> Asked:
        wishes, installed, switches = [], {}, {}
        needed: dict[str, set[tuple[str, str]]] = {}
        consenting: set[str] = set()
        for plan in self.plans.values():
            if plan.fault is not None:
                continue
            self._look_at_content(plan)
            install, active = plan.install, plan.history.active
            needed.setdefault(plan.package, set()).update(
                (r.digest, r.version) for r in plan.history.revisions
            )
            if plan.pin:
                needed[plan.package].add((plan.pin, install.tag if install else ""))
            if install is not None:
                switches[plan.package] = Switches(install.skips_dependencies, install.ignores_platform)
            if active is not None:
                installed["", plan.package] = active.digest
            plan.wish = self._wish(plan)
            if plan.wish is not None:
                wishes.append(plan.wish)
            is_moved = plan.wish is not None and active is not None and plan.wish.digest != active.digest
            if install is not None and (install.downgrades or (plan.wish and plan.wish.pinned and is_moved)):
                consenting.add(plan.okey)
        return Asked(
            wishes=tuple(wishes),
            installed=installed,
            switches=switches,
            needed={name: frozenset(each) for name, each in needed.items()},
            offers=self._state.offers(),
            platforms=self._settings.platforms,
            policy=self._settings.policy,
            downgrades=frozenset(("", plan.package) for plan in with_children(consenting, self.plans)),
        )

    def _look_at_content(self, plan: RevisionPlan) -> None:
        """Ask for the content that a plan's digest names, and find out whether it can be used."""
        if plan.is_created or not plan.is_pinned:
            return
        assert plan.install is not None
        self._asking.observe(plan.package, plan.install.secrets)
        source = self._state.sources.get(plan.package)
        if not plan.pin:
            tag = plan.install.tag if plan.install else ""
            if source is not None and source.tags and tag not in source.tags and tag in source.digests:
                plan.wait, plan.is_stuck = f"the tag {tag}, which {plan.package} does not have", True
            elif source is not None and source.message:
                plan.wait, plan.is_stuck = f"{plan.package}, which cannot be observed: {source.message}", True
            else:
                plan.wait = f"what {plan.package}:{tag} is"
            return
        self._asking.content(plan.package, plan.pin)
        content = self._state.content(plan.package, plan.pin)
        if content is None:
            why = f": {source.message}" if source is not None and source.message else ""
            plan.wait, plan.is_stuck = f"the content of {plan.package}{why}", bool(why)
        elif content.defect:
            plan.fault = ("broken", "InvalidPackage", f"{plan.package}: {content.defect}")

    def _wait_for_former_contents(self) -> None:
        """Have everybody wait for the contents of revisions that were found in the cluster.

        Until they are read it is not known which objects these have, and nobody else must get one of them. A
        source that says no holds nobody up.
        """
        wait = ""
        for plan in self.plans.values():
            for revision in plan.history.revisions:
                if revision.objects or self._state.content(plan.package, revision.digest) is not None:
                    continue
                self._asking.content(plan.package, revision.digest)
                self._asking.observe(plan.package, plan.install.secrets if plan.install else ())
                source = self._state.sources.get(plan.package)
                if source is None or not source.is_refused:
                    wait = wait or f"the content of {plan.package} that is installed"
        self.is_recovering = bool(wait)
        for plan in self.plans.values():
            plan.wait = plan.wait or wait

    def _wish(self, plan: RevisionPlan) -> Wish | None:
        """Return what a user wants of the resolver; None for what was made for others, or is not known."""
        install, active = plan.install, plan.history.active
        if install is None or plan.is_created:
            return None
        intent = Intent("" if plan.wait or plan.fault else plan.pin, is_manual=plan.is_manual)
        digest = next_digest(plan.history, intent, plan.request)
        is_open = not plan.is_pinned and not plan.request.activate and not plan.is_manual
        if is_open and not install.is_paused:
            return Wish(
                package=install.package,
                range=install.range,
                language=install.language,
                prereleases=install.prereleases,
                name=plan.okey,
            )
        digest = digest or (active.digest if active else "")
        return Wish(package=install.package, digest=digest, pinned=True, name=plan.okey) if digest else None

    # ------------------------------------------------------------ what was found

    def solve(self) -> None:
        """Solve the components, and ask for what is not known of them.

        All plans wait while the content of a revision that was found in the cluster is not known.
        """
        assert self._question is not None
        for part in self._solver.solve(self._question, self._names):
            self._take(part)
        self._wait_for_former_contents()

    def in_order(self) -> list[RevisionPlan]:
        return in_order(self.plans.values(), self._state)

    def _take(self, part: Part) -> None:
        """Note the solution of a component for its plans, and what is not known of its packages."""
        secrets = self._secrets(part)
        wait, is_stuck = "", False
        for _, source in part.nodes:
            self._asking.observe(source, secrets)
            row = self._state.sources.get(source)
            if row is None or not (row.tags or row.is_refused or any(row.digests.values())):
                why = f": {row.message}" if row is not None and row.message else ""
                is_stuck |= bool(why)
                wait = wait or f"the versions of {source}{why}"
        for (_, source), chosen in part.chosen.items():
            wait = self._unread(source, chosen) or wait
        for _, source in part.nodes:
            okey = self._by_package.get(source)
            if okey is None:
                continue
            plan = self.plans[okey]
            plan.part, plan.wait = part, plan.wait or wait
            plan.is_stuck |= is_stuck and not plan.history.revisions
            plan.chosen = part.chosen.get(("", source))
        for outcome in part.outcomes:
            plan = self.plans[outcome.wish.name]
            plan.outcome, plan.reports = outcome, part.reports.get(plan.okey, ())
        if wait:
            self.waits[wait] = Member("source", part.nodes[0][1])

    def _secrets(self, part: Part) -> Iterable[str]:
        """Return the pull secrets of a component's installs; an install's own come first for its source."""
        found: dict[str, None] = {}
        for _, source in part.nodes:
            plan = self.plans.get(self._by_package.get(source, ""))
            if plan is not None and plan.install is not None:
                self._asking.observe(source, plan.install.secrets)
                found.update(dict.fromkeys(plan.install.secrets))
        return found

    def _unread(self, source: str, chosen: Chosen) -> str:
        """Ask for the content of a chosen version if it was not read; return what is waited for."""
        tag, digest = self._solver.label(source, chosen.version)
        if not digest:
            self._asking.digest(source, tag)
            return f"what {source}:{tag} is"
        if self._state.content(source, digest) is None:
            self._asking.content(source, digest)
            return f"the content of {source}:{tag}"
        return ""

    # ------------------------------------------------------------ rows

    def conclude(self, plan: RevisionPlan) -> LockRow:
        """Return the row of one install, without what others decide for it."""
        row = self._base(plan)
        if plan.fault is not None:
            return faulty(row, *plan.fault)
        if plan.install is not None and plan.install.is_paused and plan.row is not None:
            return msgspec.structs.replace(
                plan.row, generation=plan.install.generation, revisions=plan.history.revisions
            )
        return self._waits(plan, row) if plan.wait else self._decide(plan, row)

    def _base(self, plan: RevisionPlan) -> LockRow:
        """Return the row as it is, for the install as it is now."""
        install = plan.install
        row = plan.row or LockRow(status="waiting", package=plan.package)
        history = plan.history
        return msgspec.structs.replace(
            row,
            uid=install.uid if install else row.uid if plan.okey in self._state.installs else "",
            generation=install.generation if install else 0,
            package=plan.package,
            revisions=history.revisions,
            observed=history.observed,
            holders=plan.holders,
            template=row.template if plan.is_created else {},
            account_annotations=row.account_annotations if plan.is_created else {},
            removal=install.removal if install and not plan.is_created else row.removal,
        )

    def _waits(self, plan: RevisionPlan, row: LockRow) -> LockRow:
        """Return the row of an install that cannot be decided on yet: what is locked stays locked.

        Such a row says what is waited for only if that may take for ever: each upgrade waits for a moment.
        While it has revisions it stays a decision on the generation before, so that nobody takes what is
        installed for what is asked for now.
        """
        self.waits[plan.wait] = Member("install", plan.okey)
        message = f"waits for {plan.wait}"
        if plan.row is not None and plan.history.revisions:
            row = msgspec.structs.replace(row, generation=plan.row.generation)
        if row.status == "locked" and plan.history.revisions:
            return msgspec.structs.replace(row, reason=WAITING, message=message) if plan.is_stuck else row
        reason = SOURCE_FAILS if plan.is_stuck else WAITING
        return msgspec.structs.replace(row, status="waiting", reason=reason, message=message)

    def _decide(self, plan: RevisionPlan, row: LockRow) -> LockRow:
        intent = self._intent(plan)
        target = next_digest(plan.history, intent, plan.request)
        refusal = self._refusal(plan, target, intent)
        history = plan.history
        if refusal is None:
            history = advanced(history, intent, plan.request)
            for revision in history.revisions:
                self._claimed.update(dict.fromkeys(revision.objects, plan.okey))
        active = history.active
        row = msgspec.structs.replace(
            row,
            status="locked",
            revisions=history.revisions,
            observed=history.observed,
            version=active.version if active else "",
            digest=active.digest if active else "",
            reason="",
            message="",
        )
        if refusal is not None:
            return faulty(row, "refused", *refusal)
        if active is None:
            message = "waits until a user activates a revision"
            return msgspec.structs.replace(row, status="locked", reason="AwaitsActivation", message=message)
        if plan.request.deactivate and not plan.request.activate:
            message = "the active revision stays active until another one is activated"
            return msgspec.structs.replace(row, reason=STAYS_ACTIVE, message=message)
        if plan.wanted and history.observed not in ("", active.digest):
            newest = history.of(history.observed)
            name = newest.name if newest else plan.wanted
            message = (
                f"{active.name} was activated by hand and stays: activate {name}, or change spec.package"
            )
            return msgspec.structs.replace(row, reason=ROLLED_BACK, message=message)
        return row

    def _intent(self, plan: RevisionPlan) -> Intent:
        """Return the content that the install asks for now."""
        install = plan.install
        if plan.is_pinned:
            digest, version = plan.pin, install.tag if install else ""
        elif plan.chosen is not None:
            version, digest = self._solver.label(plan.package, plan.chosen.version)
        else:
            digest, version = "", ""
        content = self._state.content(plan.package, digest)
        name = ObjectKey.parse(plan.okey).name[:NAME_CHARACTERS].rstrip("-.")
        return Intent(
            digest=digest,
            name=f"{name}-{digest.rpartition(':')[2][:DIGEST_CHARACTERS]}",
            version=version,
            source=plan.package,
            objects=content.objects if content else (),
            is_manual=plan.is_manual,
            history_max=install.history_max if install else 1,
            wanted=plan.wanted,
        )

    def _refusal(self, plan: RevisionPlan, target: str, intent: Intent) -> tuple[str, str] | None:
        """Return why the next step is refused: the resolver, or the owner of an object."""
        outcome, active = plan.outcome, plan.history.active
        if outcome is not None and outcome.status != "granted":
            if outcome.status == "undecided":
                return "SearchLimit", refusal_words(outcome.explanation)
            return "Conflict", refusal_words(outcome.explanation, "ignoreCrossplaneConstraints: true")
        if not self._settings.is_verified_beside:
            for digest, version in new_contents(plan.history, intent, target).items():
                if words := self._state.check_image(plan.package, version, digest):
                    return UNVERIFIED, words
        content = self._state.content(plan.package, target) if target else None
        if target and (active is None or target != active.digest) and content is None:
            return "UnknownContent", f"the content {target} was not read"
        kind = str(content.meta.get("kind") or "") if content else ""
        if kind and ObjectKey.parse(plan.okey).kind not in (kind, ANY_KIND):
            text = f"{plan.package} is a {kind}: install it with kind {kind}"
            return "InvalidPackage", text
        objects = list(content.objects) if content else []
        objects += intent.objects if is_new(plan.history, intent) else ()
        for each in objects:
            owner = self._claimed.get(each) or self._state.owner_beside(each, plan.okey)
            if owner is not None and owner != plan.okey:
                return OBJECT_OWNED, f"{shown(each)} belongs to {shown(owner)}"
        return None

    def find(self, plan: RevisionPlan, package: str, requirement: Requirement) -> Provider:
        okey = self._by_package.get(package) or self._ending.get(package, "")
        other, row = self.plans.get(okey), self.lock.get(okey)
        version = self._solver.label(package, other.chosen.version)[0] if other and other.chosen else ""
        return Provider(okey, package, version, row.version if row else "")

    def is_known(self, plan: RevisionPlan, package: str) -> bool:
        source = self._state.sources.get(package)
        return source is not None and bool(source.tags)

    def install(self, okey: str) -> Install | None:
        seen = self._state.installs.get(okey)
        return seen.install if seen is not None and isinstance(seen.install, Install) else None

    # ------------------------------------------------------------ installs that are created

    def create(self) -> None:
        """Lock an install for every chosen package that has none.

        While a former install of the package is being deleted, it is waited for: it has the name and the
        objects that the new one gets.
        """
        pending = [plan for plan in self.in_order() if self.is_decided(plan)]
        while pending:
            plan = pending.pop(0)
            for package, chosen in self._needed_by(plan):
                if package in self._ending and package not in self._by_package:
                    okey = self._ending[package]
                    self.waits[f"the end of {shown(okey)}"] = Member("install", okey)
                elif package not in self._by_package:
                    pending.append(self._create_install(plan, package, chosen))

    def is_decided(self, plan: RevisionPlan) -> bool:
        row = self.rows.get(plan.okey)
        if plan.chosen is None or plan.wait or row is None:
            return False
        return row.status == "locked" and bool(row.digest)

    def _needed_by(self, plan: RevisionPlan) -> list[tuple[str, Chosen]]:
        assert plan.chosen is not None and plan.part is not None
        names = dict.fromkeys(edge.provider for edge in plan.chosen.edges if edge.status == "met")
        return [(name, plan.part.chosen["", name]) for name in names if ("", name) in plan.part.chosen]

    def _create_install(self, owner: RevisionPlan, package: str, chosen: Chosen) -> RevisionPlan:
        digest = self._solver.label(package, chosen.version)[1]
        assert owner.chosen is not None
        holder = (owner.package, self._solver.label(owner.package, owner.chosen.version)[1])
        kind = child_kind(self._state, holder, package, digest)
        name = child_name(package, self._read_taken_names(kind))
        self._taken_names[kind].add(name)
        okey = f"{PKG}/{kind}||{name}"
        plan = RevisionPlan(okey, None, None, History())
        plan.package, plan.part, plan.chosen, plan.holders = package, owner.part, chosen, (owner.okey,)
        self.plans[okey], self._by_package[package] = plan, okey
        self.rows[okey] = self.conclude(plan)
        return plan

    def _read_taken_names(self, kind: str) -> set[str]:
        """Return the names that installs of a kind have; read once per decision."""
        if kind not in self._taken_names:
            ended = {okey for okey, row in self.rows.items() if row is None}
            okeys = {*self._state.installs, *self._state.lock, *self.plans} - ended
            head = f"{PKG}/{kind}|"
            self._taken_names[kind] = {ObjectKey.parse(each).name for each in okeys if each.startswith(head)}
        return self._taken_names[kind]

    def needs(self) -> Iterable[Need]:
        for plan in self.plans.values():
            if self.is_decided(plan):
                for package, _ in self._needed_by(plan):
                    if package in self._by_package:
                        yield Need(plan.okey, self._by_package[package])

    def pass_on(self, plan: RevisionPlan, row: LockRow, owner: str) -> LockRow:
        """Give a created install its version, and its owner's pull secrets, policies and account."""
        holder, parent = self.plans.get(owner), self.rows.get(owner)
        install = holder.install if holder is not None else None
        is_run = ObjectKey.parse(plan.okey).kind != NOT_RUN
        template = template_of(row, install, parent, is_there=plan.install is not None, is_run=is_run)
        account = row.account_annotations
        if parent is not None and parent.holders:
            account = parent.account_annotations
        elif install is not None:
            account = dict(install.account_annotations)
        return msgspec.structs.replace(row, template=template, account_annotations=account)
