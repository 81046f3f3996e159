"""Decides what evidence from the clusters says of a published revision: good, bad, or not known.

Evidence counts only for the revision that it is bound to, by what the policy says and nothing else: the
commit that an object reports, a spec that names the revision, or, weakly, a status that has changed since
before the approval. Times of two clocks are never compared. What is not bound, absent or ambiguous is not
known, which proves nothing and fails nothing.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.core.api.rollouts import EvidenceObject, RolloutPolicySpec
from pvbus.core.cel import CelError, compile_expression
from pvbus.core.kernel.keys import digest
from pvbus.core.kernel.messages import SEPARATOR, part
from pvbus.core.kernel.promotionrows import SeenCondition

MISSING = "EvidenceMissing"
AMBIGUOUS = "EvidenceAmbiguous"
SHARED = "EvidenceShared"
STALE = "EvidenceStale"
UNREAD = "EvidenceUnread"
INVALID = "EvidenceInvalid"
PENDING = "EvidencePending"
BAD = "EvidenceBad"

READY = "Ready"
OBJECT_VARIABLES = ("object",)
TARGET_VARIABLES = ("target",)
OBJECT = "object"
"""Name of the object's status among those that weak evidence is compared with."""
_COMMIT = re.compile(r"(?:^|[@:/])([0-9a-f]{40}|[0-9a-f]{64})$")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]|[A-Za-z0-9]")


class Proof(NamedTuple):
    """What evidence says. reason, words: why it is not good, as a word and in a sentence."""

    verdict: bool | None
    reason: str = ""
    words: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.words}" if self.reason else ""


class Published(NamedTuple):
    """The revision to prove. commit: the one that published it, "" if the server does not say."""

    name: str
    commit: str = ""


GOOD = Proof(True)


def other_conditions(spec: RolloutPolicySpec) -> tuple[str, ...]:
    """Return the condition types that count as evidence: Ready is no such, as pvbus writes it itself."""
    return tuple(type_ for type_ in spec.conditions if type_ != READY)


def wants_evidence(spec: RolloutPolicySpec) -> bool:
    """Tell whether a policy asks for more than Ready."""
    evidence = spec.evidence
    return bool(evidence.object or evidence.query or other_conditions(spec))


def is_weak(spec: RolloutPolicySpec) -> bool:
    """Tell whether a status from before the approval must be known."""
    found = spec.evidence.object
    weak_conditions = spec.evidence.condition_binding == "Weak" and other_conditions(spec)
    return bool(weak_conditions) or (found is not None and found.binding == "Weak")


def combined(proofs: Iterable[Proof]) -> Proof:
    """Return the proof of all together: bad if any is, not known if any is not."""
    listed = list(proofs)
    for verdict in (False, None):
        parts = [each for each in listed if each.verdict is verdict]
        if parts:
            words = SEPARATOR.join(part(each.words) for each in parts)
            return Proof(verdict, parts[0].reason, words)
    return GOOD


# ------------------------------------------------------------ objects


def the_object(kind: str, name: str, objects: Sequence[Mapping[str, Any]], sharers: int) -> Proof:
    """Return GOOD if exactly one object speaks of exactly one target.

    name: as messages show it. objects: all of this name. sharers: how many targets name it.
    """
    if sharers > 1:
        return Proof(None, SHARED, f"{kind} {name} is the evidence of {sharers} targets: give each its own")
    if not objects:
        return Proof(None, MISSING, f"{kind} {name} does not exist")
    if len(objects) > 1:
        where = ", ".join(sorted(str(each["metadata"].get("namespace", "")) for each in objects))
        return Proof(None, AMBIGUOUS, f"{kind} {name} exists in several namespaces ({where})")
    return GOOD


def status_digest(found: Mapping[str, Any] | None) -> str:
    """Return the digest of an object's status. One that does not exist has a status, too: none."""
    return digest(None if found is None else found.get("status"))


def commit_in(text: str) -> str:
    """Return the commit that a text ends with, as in `main@sha1:COMMIT`, "" for none."""
    match = _COMMIT.search(text.strip())
    return match.group(1) if match is not None else ""


def reported(rule: EvidenceObject, found: Mapping[str, Any]) -> str:
    """Return the revision that an object names. Raises CelError."""
    return compile_expression(rule.revision, variables=OBJECT_VARIABLES).evaluate({"object": found}).strip()


def object_proof(
    rule: EvidenceObject,
    found: Mapping[str, Any],
    published: Published,
    *,
    is_later: bool | None = None,
    before: str = "",
) -> Proof:
    """Return what an object says of a published revision.

    is_later: whether the commit that it reports comes after the published one and has the same package, None
        if that is not known
    before: digest of its status before the approval, "" if that is not known
    """
    try:
        stale = _unbound(rule, found, published, is_later, before)
        if not stale and rule.current and not _is_true(rule.current, found):
            stale = "its status is not of that revision yet"
        if stale:
            return Proof(None, STALE, f"{_named(rule, found)}: {stale}")
        if rule.bad and _is_true(rule.bad, found):
            return Proof(False, BAD, f"{_named(rule, found)} is bad: {rule.bad}")
        if _is_true(rule.good, found):
            return GOOD
    except CelError as exc:
        return Proof(None, INVALID, f"an expression cannot be evaluated for {_named(rule, found)}: {exc}")
    return Proof(None, PENDING, f"{_named(rule, found)} is not good yet: {rule.good}")


def _unbound(
    rule: EvidenceObject,
    found: Mapping[str, Any],
    published: Published,
    is_later: bool | None,
    before: str,
) -> str:
    """Return why an object does not speak of a revision, "" if it does."""
    match rule.binding:
        case "Commit":
            return _other_commit(commit_in(reported(rule, found)), published, is_later)
        case "Generation":
            return _other_spec(reported(rule, found), found, published)
        case "Weak":
            return unchanged(status_digest(found), before)
    return f"the binding {rule.binding} is not known"


def _other_commit(commit: str, published: Published, is_later: bool | None) -> str:
    if not published.commit:
        return f"the server does not say which commit {published.name} is"
    if not commit:
        return "it reports no commit"
    if commit == published.commit or is_later is True:
        return ""
    why = "the package there is another one, or an earlier one"
    if is_later is None:
        why = "the server does not say whether the package there is the same"
    return f"it is at commit {commit[:12]}, {published.name} is {published.commit[:12]}: {why}"


def _other_spec(text: str, found: Mapping[str, Any], published: Published) -> str:
    """A status of an older generation is of another spec, and so maybe of another revision."""
    if text not in (published.name, published.commit) or not text:
        return f'its spec names "{part(text)}", not {published.name}'
    observed = (found.get("status") or {}).get("observedGeneration")
    generation = found["metadata"].get("generation")
    if observed is None or observed != generation:
        return f"its status is for generation {observed}, its spec has generation {generation}"
    return ""


def unchanged(now: str, before: str) -> str:
    """Return why weak evidence does not count, "" if it does. now, before: digests of a status."""
    if not before:
        return "its status before the approval is not known, so it has to change once more"
    return "its status has not changed since before the approval" if now == before else ""


def _is_true(expression: str, found: Mapping[str, Any]) -> bool:
    return compile_expression(expression, variables=OBJECT_VARIABLES).test({"object": found})


def _named(rule: EvidenceObject, found: Mapping[str, Any]) -> str:
    metadata = found["metadata"]
    return f"{rule.kind} {'/'.join(filter(None, (metadata.get('namespace'), metadata['name'])))}"


# ------------------------------------------------------------ conditions


def condition_proof(
    type_: str, seen: Sequence[SeenCondition], *, is_weak: bool, before: str, revision: str
) -> Proof:
    """Return what the conditions of one type say of a published revision. before: as in `object_proof`."""
    if len(seen) != 1:
        return Proof(None, MISSING, f"the PackageVariant has {len(seen) or 'no'} conditions {type_}")
    condition = seen[0]
    stale = unchanged(condition.digest, before) if is_weak else ""
    if not is_weak and not condition.is_bound:
        stale = f"its message does not name {revision}, or the commit of it"
    if stale:
        return Proof(None, STALE, f"condition {type_}: {stale}")
    if condition.status == "True":
        return GOOD
    is_bad = condition.status == "False"
    return Proof(False if is_bad else None, BAD if is_bad else PENDING, condition.words)


def names(message: str, published: Published) -> bool:
    """Tell whether a message has the name or the commit of a revision as a whole word."""
    wanted = {published.name, published.commit} - {""}
    return any(word in wanted for word in _WORD.findall(message))
