"""Signed plans: which sets need one, and whether the one that a set has is of this very set as it is.

A set needs a signed plan if the installation's settings name it, if its annotation `pvbus.dev/require-plan`
says so, or if it needed one before: an annotation can be edited by whoever can edit the set, so its removal
needs a signed plan, too. The keys are the installation's and never the set's.

`pvbus.dev/signed-plan` has the statement of a plan with its signature. A statement names sets by uid and
generation, which only the API server gives, and by the digest of the spec. So it says nothing about another
cluster, a set that was made again, a later edit, or a return to an earlier spec. What cannot be checked
holds.
"""

import hashlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from pvbus.core.api.variants import PackageVariantSet, PackageVariantSetSpec
from pvbus.core.kernel import minisign, sshsig
from pvbus.core.kernel.holds import NEEDS_PLAN
from pvbus.core.kernel.keys import REQUIRE_PLAN, SIGNED_PLAN
from pvbus.core.kernel.minisign import (
    Minisignature,
    is_minisigned,
    may_be_of,
    parse_minisign_key,
    parse_minisignature,
)
from pvbus.core.kernel.sshsig import (
    Signature,
    SignatureError,
    is_signed,
    parse_key,
    parse_signature,
)

NAMESPACE = b"pvbus-plan"
"""Of the signature: `ssh-keygen -Y sign -n pvbus-plan`,
or the trusted comment of `minisign -S`. One for another purpose counts for nothing."""
SIGNATURE_BEGINS = (sshsig.BEGIN, minisign.BEGIN)
SSH_KEY = "ssh-"
STATEMENT_BYTES_MAX = 64 << 10
_encoder = msgspec.json.Encoder(order="sorted")


class StatedSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a plan says of a set.

    uid: its uid
    generation: its generation once the plan is applied
    spec: the digest of its spec then
    requires: the value of its annotation `pvbus.dev/require-plan` then, "" for none
    """

    uid: str
    generation: int
    spec: str
    requires: str = ""


class Statement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is signed.

    plan: the digest of the plan's file
    sets: by `namespace/name`
    """

    plan: str
    sets: dict[str, StatedSet]


class PlanPolicy(NamedTuple):
    """The installation's settings.

    required: patterns of `namespace/name` of the sets that need a signed plan, whatever they say
    signers: the public keys by the names of their owners: 32 bytes of an SSH key, 42 of one of minisign
    is_checked: False lets everything pass, for a preview of what a signed plan would do
    """

    required: Sequence[str] = ()
    signers: Mapping[str, frozenset[bytes]] = {}
    is_checked: bool = True


NO_PLANS = PlanPolicy()


class PlanStanding(NamedTuple):
    """Whether a set needs a signed plan.

    uid: the uid of the set
    is_required: whether it needs one
    problem: why it has no valid one, "" if it has or needs none
    """

    uid: str = ""
    is_required: bool = False
    problem: str = ""


_statement = msgspec.json.Decoder(Statement)


def policy_of(required: str, signers: str) -> PlanPolicy:
    """Return the policy of two settings. Raises ValueError.

    required: patterns, separated by commas
    signers: `NAME ssh-ed25519 AAAA...` or `NAME RW...` of minisign, separated by commas or line ends
    """
    keys: dict[str, frozenset[bytes]] = {}
    for line in filter(None, (part.strip() for part in signers.replace("\n", ",").split(","))):
        name, _, key = line.partition(" ")
        parsed = parse_key(key) if key.strip().startswith(SSH_KEY) else parse_minisign_key(key)
        keys[name] = keys.get(name, frozenset()) | {parsed}
    return PlanPolicy(tuple(filter(None, (part.strip() for part in required.split(",")))), keys)


def spec_digest(spec: PackageVariantSetSpec) -> str:
    return hashlib.sha256(_encoder.encode(spec)).hexdigest()


def statement_text(statement: Statement) -> str:
    """Return what is signed, on one line."""
    return _encoder.encode(statement).decode()


def standing_of_plan(obj: PackageVariantSet, policy: PlanPolicy, *, was_required: bool) -> PlanStanding:
    """Return whether a set may be followed as it is.

    was_required: whether it needed a signed plan before
    """
    meta = obj.metadata
    says = meta.annotations.get(REQUIRE_PLAN, "")
    is_named = any(fnmatchcase(f"{meta.namespace}/{meta.name}", pattern) for pattern in policy.required)
    if not policy.is_checked or not (says or is_named or was_required):
        return PlanStanding(meta.uid)
    try:
        _check(obj, policy, says)
    except ValueError as exc:
        return PlanStanding(meta.uid, True, f"{NEEDS_PLAN}: {exc}")
    return PlanStanding(meta.uid, bool(says or is_named))


def _check(obj: PackageVariantSet, policy: PlanPolicy, says: str) -> None:
    """Raise ValueError, in words, unless the set has a valid signed plan of itself."""
    meta = obj.metadata
    if not policy.signers:
        raise ValueError("the installation knows no signers (PVBUS_PLAN_SIGNERS)")
    text, armored = split_signed(meta.annotations.get(SIGNED_PLAN, ""))
    if not armored:
        raise ValueError("it has none; pvbus plan --out, pvbus sign and pvbus apply bring one")
    if len(text) > STATEMENT_BYTES_MAX:
        raise ValueError("the statement of its plan is too long")
    message = text.strip().encode()
    _check_signature(message, armored, policy, says)
    try:
        statement = _statement.decode(message)
    except msgspec.MsgspecError as exc:
        raise ValueError("the statement of its plan cannot be read") from exc
    stated = statement.sets.get(f"{meta.namespace}/{meta.name}")
    if stated is None or stated.uid != meta.uid:
        raise ValueError("its plan is for other sets")
    if (stated.spec, stated.requires) != (spec_digest(obj.spec), says):
        raise ValueError("it was changed since its plan was signed")
    if stated.generation != meta.generation:
        raise ValueError(
            f"its plan is for generation {stated.generation}, and it has generation {meta.generation}"
        )


def _check_signature(message: bytes, armored: str, policy: PlanPolicy, says: str) -> None:
    try:
        signature = parsed_signature(armored)
    except SignatureError as exc:
        raise ValueError(f"its signature cannot be used ({exc})") from exc
    known = {name: [key for key in keys if _names(signature, key)] for name, keys in policy.signers.items()}
    if not any(known.values()):
        raise ValueError("it is signed with a key that the installation does not know")
    owners = {name for name, keys in known.items() if any(is_by(signature, key, message) for key in keys)}
    if not owners:
        raise ValueError("its signature is not of this plan")
    named = {name.strip() for name in says.split(",")} - {"true", ""}
    if named and not owners & named:
        raise ValueError(f"it was signed by {', '.join(sorted(owners))}, and {says} must sign")


def split_signed(annotation: str) -> tuple[str, str]:
    """Return the statement in the annotation of a signed plan, and its signature, "" if it has none."""
    for begin in SIGNATURE_BEGINS:
        text, found, rest = annotation.partition(begin)
        if found:
            return text, found + rest
    return annotation, ""


def parsed_signature(armored: str) -> Signature | Minisignature:
    """Decode a signature of ssh-keygen or minisign. Raises SignatureError."""
    is_minisign = armored.strip().startswith(minisign.BEGIN)
    return parse_minisignature(armored) if is_minisign else parse_signature(armored)


def is_by(signature: Signature | Minisignature, key: bytes, message: bytes) -> bool:
    """Return whether a signature of a statement is by this key, and for plans."""
    if isinstance(signature, Minisignature):
        return is_minisigned(signature, key, NAMESPACE, message)
    return signature.key == key and is_signed(signature, NAMESPACE, message)


def _names(signature: Signature | Minisignature, key: bytes) -> bool:
    """Return whether a signature says that it is by this key."""
    if isinstance(signature, Minisignature):
        return may_be_of(signature, key)
    return signature.key == key
