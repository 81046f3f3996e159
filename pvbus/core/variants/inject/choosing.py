"""Chooses the revisions that stand for a variant's downstream: adopts, takes up, clones and releases."""

from collections.abc import Generator
from typing import Any

from pvbus.core.api.variants import PackageVariant
from pvbus.core.errors import NotOwnedError, PermanentError
from pvbus.core.kernel.effects import Effect, Get
from pvbus.core.kernel.keys import RESTORES
from pvbus.core.variants.inject.view import InjectView
from pvbus.core.variants.revisions import former
from pvbus.core.variants.revisions.former import PLACEHOLDER
from pvbus.core.variants.revisions.making import Making, Written
from pvbus.core.variants.revisions.observed import ObservedRevision
from pvbus.core.variants.revisions.owning import (
    PUBLISHED,
    REVISION,
    Effects,
    Object,
    adopt,
    belongs_to,
    is_terminating,
    lifecycle_of,
    list_package,
    living_owner,
    release,
    republish,
    version_of,
)
from pvbus.core.variants.revisions.states import Action, DownstreamState, Finding, action, left


class NotYetError(Exception):
    """The step must wait for another event, which the text names."""


class Choosing:
    def __init__(
        self, variant: PackageVariant, upstream: str, view: InjectView, making: Making, written: Written
    ) -> None:
        """Choose for one attempt. upstream: the name of the upstream revision, for a clone."""
        assert variant.spec.downstream is not None
        self.variant = variant
        self.upstream = upstream
        self.view = view
        self.downstream = variant.spec.downstream
        self.namespace = variant.metadata.namespace
        self.uid = variant.metadata.uid
        self._making = making
        self._written = written

    def run(self) -> Generator[Effect, Any, list[Object]]:
        """Return all open revisions, else the last published one; make the first if there is none."""
        chosen = yield from self._read_observed()
        if chosen:
            return chosen
        live = yield from list_package(self.namespace, self.downstream)
        return (yield from self._find_live(live))

    def _read_observed(self) -> Generator[Effect, Any, list[Object]]:
        """Read the observed revisions to update, after adopting those that are to be taken over."""
        revisions = []
        for revision in self.view.at(self.namespace, self.downstream):
            if revision.row.deleted:
                continue
            if revision.owned_by(self.uid):
                if former.is_proposed_by(former.trace_of_row(revision), self.variant):
                    yield from self._republish(revision)
                revisions.append(revision)
            elif self._is_adopted(former.trace_of_row(revision)):
                if (yield from self._adopt(revision.name)) is not None:
                    revisions.append(revision)
        found = []
        for revision in choose(revisions, lambda r: (r.facts.lifecycle or "Draft", r.facts.revision)):
            obj = yield Get(REVISION, self.namespace, revision.name)
            if obj is not None and belongs_to(obj, self.variant) and not is_terminating(obj):
                found.append(obj)
        return found

    def _find_live(self, live: list[Object]) -> Generator[Effect, Any, list[Object]]:
        """Choose among the live revisions: a previous worker may have made one whose echo is not here yet.
        If there is none to choose, clone one."""
        mine = [obj for obj in live if belongs_to(obj, self.variant)]
        going = [obj["metadata"]["name"] for obj in mine if is_terminating(obj)]
        for obj in live:
            if not belongs_to(obj, self.variant) and self._is_adopted(former.trace_of(obj)):
                taken = yield from self._adopt(obj["metadata"]["name"])
                mine += [taken] if taken is not None else []
        staying = [obj for obj in mine if not is_terminating(obj)]
        chosen = choose(staying, lambda obj: (lifecycle_of(obj), obj["spec"].get("revision", 0)))
        return chosen or [(yield from self._first(live, going))]

    def _first(self, live: list[Object], going: list[str]) -> Generator[Effect, Any, Object]:
        """Make the first revision. going: names of ours that are being deleted."""
        owned = None if going else (yield from self._find_other_owner(live))
        finding = Finding.GOING if going else Finding.OWNED if owned else Finding.WANTED
        match action(DownstreamState.NONE, finding):
            case Action.WAIT:
                raise NotYetError(f"the deletion of PackageRevision {', '.join(going)}")
            case Action.REPORT:
                raise PermanentError(owned or "", reason="OwnedByOther")
        return (yield from self._making.clone(self.upstream, live))

    def _find_other_owner(self, live: list[Object]) -> Generator[Effect, Any, str | None]:
        """Return the message if another living owner has a revision of the package."""
        for obj in live:
            owner = yield from living_owner(obj, self.variant)
            if owner:
                package, repository = self.downstream.package, self.downstream.repo
                return (
                    f'package "{package}" in repository "{repository}" belongs to {owner} '
                    f"({obj['metadata']['name']}); it is left alone; once that owner has released it, "
                    "adoptionPolicy: adoptExisting takes it over"
                )
        return None

    def _republish(self, revision: ObservedRevision) -> Effects:
        """Withdraw the deletion that we proposed while the downstream was another one."""
        try:
            restored = yield from republish(revision.name, self.variant)
        except NotOwnedError:
            return
        self._written.add(revision.name, revision.row.resource_version, restored)

    def _is_adopted(self, trace: former.Trace) -> bool:
        """Return whether to adopt a foreign revision: by policy, or as a former variant's of this name.

        What a rollback makes is left alone until it is published: an adopted draft is brought up to date.
        """
        if self.variant.spec.adoption_policy == "adoptExisting":
            is_open = trace.lifecycle not in PUBLISHED
            is_wanted = trace.revision != PLACEHOLDER and not (is_open and RESTORES in trace.annotations)
        else:
            is_wanted = former.made(trace, self.variant)
        finding = Finding.WANTED if is_wanted else Finding.UNWANTED
        return action(DownstreamState.FOREIGN, finding) is Action.ADOPT

    def _adopt(self, name: str) -> Generator[Effect, Any, Object | None]:
        """Adopt a revision if it still qualifies, and return it; None if it does not."""
        obj = yield Get(REVISION, self.namespace, name)
        if obj is None or is_terminating(obj):
            return None
        if belongs_to(obj, self.variant):  # the echo of our own adoption is not here yet
            return dict(obj)
        if not self._is_adopted(former.trace_of(obj)):
            return None
        updated = yield from adopt(obj, self.variant)
        self._written.add(name, version_of(obj), updated)
        return updated

    def leave_other_places(self) -> Generator[Effect, Any, tuple[str, str] | None]:
        """Release our revisions of a former downstream by the deletion policy.

        Returns reason and message of a problem."""
        problem = None
        finding = left(self.variant.spec.deletion_policy, ended=False)
        for revision in self.view.owned(self.namespace, self.uid):
            here = (revision.facts.repository, revision.facts.package)
            if here == (self.downstream.repo, self.downstream.package) or revision.row.deleted:
                continue
            state = DownstreamState(revision.facts.lifecycle or "Draft")
            if action(state, finding) is Action.NOTHING:
                continue
            try:
                yield from release(revision.name, self.variant)
            except NotOwnedError:  # it has another owner or is gone: there is nothing to release
                continue
            except PermanentError as error:  # the new downstream must not wait for the old one
                problem = ("Error", f"cannot release {revision.name} of the former downstream: {error}")
        return problem


def choose(found: list[Any], facts: Any) -> list[Any]:
    """Pick all drafts if there are any, else the published revision with the highest number.

    facts: returns (lifecycle, revision number) of an element.
    """
    drafts = [one for one in found if facts(one)[0] not in PUBLISHED]
    if drafts:
        return drafts
    published = [one for one in found if facts(one)[1] > PLACEHOLDER]
    return [max(published, key=lambda one: facts(one)[1])] if published else []
