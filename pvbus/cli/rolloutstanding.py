"""Where a rollout is, from the objects of an API server and the rows on the bus: a rehearsal begins there.

The objects say which targets a policy has, in which order, and what may be approved. The rows say what an
attempt has done so far, which contents are quarantined, and which were in vain. Where a file changes an
object, its row says nothing any more, and a revision stands for its content.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from pvbus.cli.rolloutmoves import draft_name, opts_in
from pvbus.cli.rolloutrows import Rows
from pvbus.core.api.quarantines import Quarantine
from pvbus.core.kernel.promotionrows import CandidateRow
from pvbus.core.kernel.rolloutrows import Evidence, Target, TargetFacts
from pvbus.core.promotion.promote.verdicts import DELETED, WAITS_FOR_ROLLOUT
from pvbus.core.promotion.protocol.observing import is_candidate, moved_on
from pvbus.core.promotion.protocol.proposals import NOT_UP_TO_DATE
from pvbus.core.promotion.protocol.quarantines import QUARANTINED, UNKNOWN, Content, Quarantines, package_of
from pvbus.core.promotion.protocol.rehearsal import Standing
from pvbus.core.promotion.protocol.selection import LeftOut, Selection
from pvbus.core.promotion.protocol.turn import ENDED
from pvbus.core.promotion.rollout.candidates import Candidates
from pvbus.core.promotion.rollout.commanding import commands_of
from pvbus.core.promotion.rollout.recovery import recovered
from pvbus.ports.cluster import Object

UNTRIED = "NotTriedAgain"
_OF_ROWS = frozenset({QUARANTINED, UNKNOWN, DELETED, "ContentUnknown"})
"""What speaks against an approval and is in no object that a plan reads."""
_OF_PUBLISHED = (
    "published_digest",
    "published_source",
    "published_release",
    "runs",
    "refused",
    "withdrawn",
    "unrestored",
)
NO_UPSTREAMS: Mapping[str, Mapping[str, str]] = MappingProxyType({})
_quarantines = list[Quarantine]


class Known(NamedTuple):
    """The facts of a target, what the objects do not say against its approval, and what is proposed of it
    once its rollout lets go of what is planned, None for the same."""

    facts: TargetFacts
    left_out: LeftOut | None = None
    following: TargetFacts | None = None


class Stand(NamedTuple):
    """A standing, and what is left out of it."""

    standing: Standing
    left_out: list[LeftOut]


def stand_of(
    selection: Selection,
    rows: Rows | None,
    quarantines: Sequence[Object] = (),
    upstreams: Mapping[str, Mapping[str, str]] = NO_UPSTREAMS,
) -> Stand:
    """Return where the rollout of a policy is.

    rows: what the bus has of it, None if that is not known
    quarantines: of the policy's namespace
    upstreams: REPOSITORY/PACKAGE@REVISION -> annotations of each published revision of the namespace
    """
    policy = selection.policy
    namespace = policy.metadata.namespace or "default"
    lasting = Quarantines(namespace, msgspec.convert(list(quarantines), _quarantines))
    train = policy.spec.train
    releases = {
        source: annotations.get(train.annotation, "") if train is not None else ""
        for source, annotations in upstreams.items()
    }
    found = [_target(selection, name, rows, lasting, releases) for name in selection.seen]
    known_of = dict(zip(selection.seen, found, strict=True))
    seen = {name: known.facts for name, known in known_of.items()}
    held = [known.left_out for known in found if known.left_out is not None]
    following = {name: known.following for name, known in known_of.items() if known.following is not None}
    start = recovered(policy.status) if rows is None else rows.rollout
    standing = Standing(seen, start, following=following)
    if rows is not None:
        candidates = _candidates(rows)
        orders = {name: f for name, f in candidates.live_facts(rows.targets).items() if name not in seen}
        known = candidates.evidence(rows.rollout.attempt)
        leaving = {name: facts for name, facts in orders.items() if name in rows.targets}
        standing = standing._replace(
            seen={**seen, **leaving},
            rows=rows.targets,
            evidence=dict(_said(known, seen)),
            words={**selection.words, **_held_words(candidates.words(policy.spec.canaries), selection)},
        )
    else:
        standing = standing._replace(evidence=dict(_imagined(seen)), words=selection.words)
    standing = standing._replace(commands=commands_of(policy.metadata.annotations)[0])
    named = {each.target for each in held}
    left_out = [each for each in selection.left_out if each.target not in named]
    return Stand(standing, [*held, *left_out, *_vain_proposals(standing)])


def _said(known: Mapping[str, Evidence], seen: Mapping[str, TargetFacts]) -> Iterator[tuple[str, Evidence]]:
    """Yield the evidence of what is published. The variant of an imagined draft speaks of that."""
    for name, said in known.items():
        facts = seen.get(name)
        if facts is not None and (not facts.revision or facts.digest != facts.revision):
            yield name, said


def _candidates(rows: Rows) -> Candidates:
    found = Candidates()
    for name, row in rows.candidates.items():
        found.load(name, row)
    return found


def _held_words(words: Mapping[str, str], selection: Selection) -> dict[str, str]:
    """Return what promote says of canaries that the objects say nothing against, or only that the variant is
    not ready: promote has looked at the draft, too."""
    known = selection.words
    return {
        name: text
        for name, text in words.items()
        if text and (name not in known or known[name].startswith(NOT_UP_TO_DATE))
    }


def _imagined(seen: Mapping[str, TargetFacts]) -> Iterator[tuple[str, Evidence]]:
    """Without rows, what is published and all that its variant wants counts as good."""
    for name, facts in seen.items():
        if facts.is_current:
            yield name, Evidence(facts.published, facts.published_digest, 0, True)


def _target(
    selection: Selection,
    name: str,
    rows: Rows | None,
    quarantines: Quarantines,
    releases: Mapping[str, str],
) -> Known:
    """Return what is known of a target."""
    facts = selection.seen[name]
    row = rows.candidates.get(name) if rows is not None else None
    known = _known(name, row) if row is not None else None
    if rows is None or row is None or known is None or known.published != facts.published:
        return _named(selection, name, facts, quarantines, releases)
    if known.revision == facts.revision and _is_kept(known, rows.targets.get(name)):
        facts = _drafted(selection, name)
    if known.revision != facts.revision:
        named, left_out, _ = _named(selection, name, facts, quarantines, releases)
        fields = {field: getattr(known, field) for field in _OF_PUBLISHED}
        moved = Known(named._replace(**fields), left_out)
        return _as_planned(moved, known, rows.targets.get(name))
    is_held = row.reason in _OF_ROWS
    left_out = LeftOut(name, row.revision, row.reason, row.message) if is_held else None
    is_proposed = facts.is_proposed and not is_held
    return Known(known._replace(is_proposed=is_proposed, is_current=facts.is_current), left_out)


def _is_kept(live: TargetFacts, row: Target | None) -> bool:
    """Tell whether a rollout keeps the proposal of a target, whose variant has moved on already."""
    return row is not None and _is_frozen(live, row) and moved_on(row, live)


def _is_frozen(live: TargetFacts, row: Target) -> bool:
    return row.is_frozen and live.is_proposed and live.revision == row.revision


def _drafted(selection: Selection, name: str) -> TargetFacts:
    """Return the facts of a target as of the draft that its variant gets once its proposal makes way."""
    facts, variant = selection.seen[name], selection.packages[name].variant
    is_opted_in = variant is not None and opts_in(variant.metadata.annotations, variant.spec.annotations)
    return facts._replace(revision=draft_name(facts.upstream, name), is_proposed=is_opted_in)


def _as_planned(moved: Known, live: TargetFacts, row: Target | None) -> Known:
    """Return what is known of a target whose variant moves on, where its rollout keeps what is planned.

    moved: as if it did not. live: before the change
    """
    if row is None or not _is_frozen(live, row):
        return moved
    why = f"{row.revision} stays as planned until attempt {row.attempt} is over, and this comes after it"
    facts = live._replace(
        upstream=moved.facts.upstream, is_current=False, is_upstream_held=moved.left_out is not None
    )
    left_out = moved.left_out or LeftOut(row.target, moved.facts.revision, WAITS_FOR_ROLLOUT, why)
    return Known(facts, left_out, moved.facts)


def _known(name: str, row: CandidateRow) -> TargetFacts | None:
    """Return the facts of a row, None if its policy does not have the target."""
    live = Candidates()
    live.load(name, row)
    return live.live_facts({}).get(name)


def _named(
    selection: Selection,
    name: str,
    facts: TargetFacts,
    quarantines: Quarantines,
    releases: Mapping[str, str],
) -> Known:
    """Let the names of revisions stand for their contents: no server need say what is in them."""
    source = facts.upstream if facts.revision else ""
    named = facts._replace(digest=facts.revision, published_digest=facts.published, source=source)
    if facts.is_current:
        named = named._replace(published_source=facts.upstream)
    set_name = selection.packages[name].set_name
    if facts.part:
        packages = {package_of(each) for each in (source, named.published_source) if each}
        named = named._replace(
            banned=tuple(quarantines.combinations(set_name, packages)),
            release=releases.get(source, ""),
            published_release=releases.get(named.published_source, ""),
        )
    content = Content(set_name, source, None)
    refused = quarantines.refusal(content, name) if source else None
    if refused is None or not facts.revision:
        return Known(named)
    left_out = LeftOut(name, facts.revision, refused.reason, refused.message)
    return Known(named._replace(is_proposed=False, is_quarantined=True), left_out)


def _vain_proposals(standing: Standing) -> Iterator[LeftOut]:
    """Yield what is proposed and was in vain in a former attempt."""
    is_under_way = standing.rollout.state not in ENDED
    for name, facts in standing.seen.items():
        row = standing.rows.get(name)
        if row is None or (is_under_way and row.attempt == standing.rollout.attempt):
            continue
        if facts.is_proposed and not is_candidate(row, facts, standing.commands.restart):
            why = f"attempt {row.attempt} did not prove it, so it is not tried again before it changes"
            yield LeftOut(
                name, facts.revision, UNTRIED, f"{why}, or a person restarts it: pvbus rollout restart"
            )
