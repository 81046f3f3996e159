"""Looks at the evidence of one target: its conditions, its object on the API server, and its metric.

Objects are read live, each at most every few seconds, by the account of the service rollout. Whatever cannot
be read is not known, and the words say who must act.
"""

from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pvbus.core.api.rollouts import EvidenceObject, EvidenceQuery, QueryCheck, RolloutPolicySpec
from pvbus.core.cel import CelError
from pvbus.core.errors import FORBIDDEN, PermanentError, TransientError
from pvbus.core.kernel.effects import Effect, Get, KindRef, List
from pvbus.core.kernel.keys import IS_LATER, digest
from pvbus.core.kernel.messages import part
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.kernel.promotionrows import EvidenceSource
from pvbus.core.promotion.protocol.evidence import (
    BAD,
    GOOD,
    INVALID,
    MISSING,
    OBJECT,
    PENDING,
    UNREAD,
    Proof,
    Published,
    combined,
    commit_in,
    condition_proof,
    object_proof,
    other_conditions,
    reported,
    status_digest,
    the_object,
)
from pvbus.core.promotion.protocol.rules import QUERY_WINDOW, seconds_of
from pvbus.core.promotion.rollout.checking import RECENT_SECONDS, look_at_query
from pvbus.core.variants.revisions.content import content_digest
from pvbus.core.variants.revisions.owning import RESOURCES

Statuses = dict[str, str]
Looking = Generator[Effect, Any, Proof]


class Subject(NamedTuple):
    """The target to look at.

    published, digest: its published revision, and the digest of the files
    before: name -> digest of that status before the approval
    seconds: watched time since the approval was seen; infinite without one
    sharers: how many targets name its object
    """

    source: EvidenceSource | None
    published: str
    digest: str
    before: Mapping[str, str] = MappingProxyType({})
    seconds: float = float("inf")
    sharers: int = 1


class Look(NamedTuple):
    """What a look saw.

    statuses: name -> digest of that status; empty if not all could be read
    is_answered: whether whoever was asked has answered
    """

    proof: Proof
    statuses: Mapping[str, str] = MappingProxyType({})
    is_answered: bool = True


def look_at(
    spec: RolloutPolicySpec, subject: Subject, now: float, namespace: str
) -> Generator[Effect, Any, Look]:
    """Look at all evidence of a target. namespace: of the policy. now: in seconds since 1970."""
    source, evidence = subject.source, spec.evidence
    if source is None:
        return Look(Proof(None, MISSING, "it is not known yet where its evidence is"))
    if source.problem:
        return Look(Proof(None, INVALID, source.problem))
    statuses: Statuses = {}
    try:
        proofs = list(_conditions(spec, subject, source, statuses))
        if evidence.object is not None:
            proofs.append((yield from _object(evidence.object, subject, source, namespace, statuses)))
        if evidence.query is not None and subject.published:
            proofs.append((yield from _query(evidence.query, subject, source, now)))
    except TransientError as exc:
        return Look(Proof(None, UNREAD, str(exc)), is_answered=False)
    except PermanentError as exc:
        return Look(Proof(None, UNREAD, _refusal(exc)))
    return Look(combined(proofs), statuses)


def _refusal(error: PermanentError) -> str:
    if error.reason != FORBIDDEN:
        return str(error)
    return f"an administrator must grant the account of the service rollout `get` and `list` on it: {error}"


def _conditions(
    spec: RolloutPolicySpec, subject: Subject, source: EvidenceSource, statuses: Statuses
) -> Sequence[Proof]:
    proofs = []
    for type_ in other_conditions(spec):
        seen = [each for each in source.conditions if each.type == type_]
        name = f"condition/{type_}"
        statuses[name] = seen[0].digest if len(seen) == 1 else digest([each.digest for each in seen])
        proofs.append(
            condition_proof(
                type_,
                seen,
                is_weak=spec.evidence.condition_binding == "Weak",
                before=subject.before.get(name, ""),
                revision=subject.published,
            )
        )
    return proofs


# ------------------------------------------------------------ objects


def _object(
    rule: EvidenceObject, subject: Subject, source: EvidenceSource, namespace: str, statuses: Statuses
) -> Looking:
    objects = yield from _read(rule, source)
    statuses[OBJECT] = status_digest(objects[0] if len(objects) == 1 else None)
    name = "/".join(filter(None, (source.namespace, source.name)))
    proof = the_object(rule.kind, name, objects, subject.sharers)
    if proof is not GOOD:
        return proof
    published = Published(subject.published, source.commit)
    is_later = yield from _is_later(rule, objects[0], subject, published, namespace)
    before = subject.before.get(OBJECT, "")
    return object_proof(rule, objects[0], published, is_later=is_later, before=before)


def _read(
    rule: EvidenceObject, source: EvidenceSource
) -> Generator[Effect, Any, Sequence[Mapping[str, Any]]]:
    group, _, version = rule.api_version.rpartition("/")
    kind = KindRef(group, rule.kind, version)
    if source.namespace:
        found = yield Get(kind, source.namespace, source.name)
        return [found] if found is not None else []
    listed = yield List(kind, "", field_selector=f"metadata.name={source.name}")
    return [each for each in listed if each["metadata"]["name"] == source.name]


def _is_later(
    rule: EvidenceObject,
    found: Mapping[str, Any],
    subject: Subject,
    published: Published,
    namespace: str,
) -> Generator[Effect, Any, bool | None]:
    """Return whether the commit that an object reports follows the published one and has the same package:
    in a repository of many packages HEAD moves with each. None if the server does not say."""
    if rule.binding != "Commit" or not published.commit:
        return None
    try:
        commit = commit_in(reported(rule, found))
    except CelError:
        return None  # `object_proof` says it
    if not commit or commit == published.commit:
        return None
    resources = yield Get(RESOURCES, namespace, f"{published.name}@{commit}")
    if resources is None or IS_LATER not in annotations_of(resources):
        return None
    files = resources["spec"].get("resources") or {}
    return annotations_of(resources)[IS_LATER] == "true" and content_digest(files) == subject.digest


# ------------------------------------------------------------ metrics


def _query(rule: EvidenceQuery, subject: Subject, source: EvidenceSource, now: float) -> Looking:
    """A value from before the publication says nothing of the revision, whichever way."""
    check = QueryCheck(expression=source.query, window=rule.window, min=rule.min, max=rule.max)
    verdict, words = yield from look_at_query(check, now)
    window = seconds_of(rule.window or QUERY_WINDOW)
    if subject.seconds < (RECENT_SECONDS if verdict is False else window):
        why = f"its metric counts {window:g} s after the publication"
        return Proof(None, PENDING, why)
    if verdict is None:
        return Proof(None, MISSING, part(words))
    return GOOD if verdict else Proof(False, BAD, part(words))
