"""A set that needs a signed plan is on hold without a valid one, whatever its editors do."""

import base64
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pvbus.core.api.variants import PackageVariantSet
from pvbus.core.kernel.keys import REQUIRE_PLAN, SIGNED_PLAN
from pvbus.core.variants.unroll.signedplans import (
    PlanPolicy,
    StatedSet,
    Statement,
    policy_of,
    spec_digest,
    statement_text,
)
from tests.simulation.parts import SET, UnrollPart, site_set
from tests.tools.minisigning import minisign_text, minisignature
from tests.tools.sshsigning import public_text, ssh_signature
from tests.unit.core.variants.unrolling import change, part

ALICE, BOB, EVE = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2, 3))
SIGNERS = f"alice {public_text(ALICE)}, bob {public_text(BOB)}"
POLICY = policy_of("", SIGNERS)
NEW = {"repo": "up", "package": "base", "revision": 2}
NEEDS = {REQUIRE_PLAN: "true"}


def signed(
    *,
    key: Ed25519PrivateKey = ALICE,
    namespace: bytes = b"pvbus-plan",
    name: str = "default/alpha",
    uid: str = "uid-alpha",
    generation: int = 1,
    requires: str = "true",
    up: Any = None,
    edit: Callable[[str], str] = str,
) -> str:
    """Return the annotation of a signed plan of the set of `part`."""
    thing = site_set()
    if up is not None:
        thing["spec"]["upstream"] = up
    spec = spec_digest(msgspec.convert(thing, PackageVariantSet).spec)
    stated = StatedSet(uid=uid, generation=generation, spec=spec, requires=requires)
    text = statement_text(Statement(plan="0" * 64, sets={name: stated}))
    return f"{edit(text)}\n{ssh_signature(key, namespace, text.encode())}"


def fleet(annotations: dict[str, str], policy: PlanPolicy = POLICY, **meta: Any) -> UnrollPart:
    return part(sites=("s1", "s2"), plans=policy, annotations=annotations, **meta)


def standing(unroll: UnrollPart) -> str:
    """Return why the set is on hold, "" if it is not and has its two variants."""
    unroll.now += 5
    unroll.run()
    assert unroll.rollup is not None
    if not unroll.rollup.on_hold:
        assert len(unroll.targets) == 2
        assert not any(row.on_hold for row in unroll.targets.values())
        return ""
    assert unroll.rollup.plan_required
    assert all(row.on_hold for row in unroll.targets.values())
    return unroll.rollup.hold_reason


def minisigned(key: Ed25519PrivateKey = ALICE, *, comment: str = "pvbus-plan", **statement: Any) -> str:
    """Return the annotation of a plan that is signed with a key of minisign."""
    text = signed(**statement).partition("\n")[0]
    return f"{text}\n{minisignature(key, comment, text.encode())}"


MINISIGNERS = policy_of(
    "", f"alice {minisign_text(ALICE)}, bob {minisign_text(BOB)}, carol {public_text(EVE)}"
)


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        (NEEDS | {SIGNED_PLAN: minisigned()}, ""),
        ({REQUIRE_PLAN: "bob", SIGNED_PLAN: minisigned(BOB, requires="bob")}, ""),
        (
            {REQUIRE_PLAN: "bob", SIGNED_PLAN: minisigned(requires="bob")},
            "signed by alice, and bob must sign",
        ),
        (NEEDS | {SIGNED_PLAN: minisigned(EVE)}, "with a key that the installation does not know"),
        (NEEDS | {SIGNED_PLAN: minisigned(comment="for git")}, "its signature is not of this plan"),
        (NEEDS | {SIGNED_PLAN: minisigned(up=NEW)}, "it was changed since its plan was signed"),
        (NEEDS | {SIGNED_PLAN: minisigned().replace("uid-alpha", "uid_alpha")}, "is not of this plan"),
        (NEEDS | {SIGNED_PLAN: minisigned()[:-60]}, "its signature cannot be used"),
        (NEEDS | {SIGNED_PLAN: signed(key=EVE)}, ""),
    ],
)
def test_keys_of_minisign_sign_beside_those_of_ssh(annotations: dict[str, str], words: str) -> None:
    found = standing(fleet(annotations, MINISIGNERS))
    assert words in found
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        (NEEDS, "it has none"),
        (NEEDS | {SIGNED_PLAN: signed()}, ""),
        (NEEDS | {SIGNED_PLAN: signed(key=BOB)}, ""),
        ({REQUIRE_PLAN: "bob", SIGNED_PLAN: signed(requires="bob", key=BOB)}, ""),
        ({REQUIRE_PLAN: "bob", SIGNED_PLAN: signed(requires="bob")}, "signed by alice, and bob must sign"),
        (NEEDS | {SIGNED_PLAN: signed(key=EVE)}, "with a key that the installation does not know"),
        (NEEDS | {SIGNED_PLAN: signed(namespace=b"git")}, "its signature is not of this plan"),
        (NEEDS | {SIGNED_PLAN: signed(edit=lambda t: t.replace("uid-", "uid_"))}, "is not of this plan"),
        (NEEDS | {SIGNED_PLAN: signed(uid="of another cluster")}, "its plan is for other sets"),
        (NEEDS | {SIGNED_PLAN: signed(name="default/beta")}, "its plan is for other sets"),
        (NEEDS | {SIGNED_PLAN: signed(up=NEW)}, "it was changed since its plan was signed"),
        (NEEDS | {SIGNED_PLAN: signed(generation=7)}, "its plan is for generation 7"),
        ({REQUIRE_PLAN: "eve", SIGNED_PLAN: signed()}, "signed by alice, and eve must sign"),
        ({REQUIRE_PLAN: "alice", SIGNED_PLAN: signed()}, "it was changed since its plan was signed"),
        (NEEDS | {SIGNED_PLAN: "yes"}, "it has none"),
        (NEEDS | {SIGNED_PLAN: signed()[:-60]}, "its signature cannot be used"),
        (NEEDS | {SIGNED_PLAN: "x" * 70_000 + signed()}, "too long"),
        ({}, ""),
    ],
)
def test_a_set_needs_a_plan_that_is_signed_for_it(annotations: dict[str, str], words: str) -> None:
    """By a known key that may sign, for this purpose, of this very set, generation, spec and requirement."""
    found = standing(fleet(annotations))
    assert words in found
    assert bool(found) == bool(words)


def test_without_signers_it_is_on_hold() -> None:
    """An installation that knows no keys lets nothing pass that needs a signature."""
    unroll = fleet(NEEDS | {SIGNED_PLAN: signed()}, PlanPolicy())
    assert "the installation knows no signers" in standing(unroll)


def test_an_edit_holds_what_is_made_and_a_signed_one_goes_on() -> None:
    """The variants keep what they have until the edit has a plan of its own."""
    unroll = fleet(NEEDS | {SIGNED_PLAN: signed()})
    assert standing(unroll) == ""
    change(unroll, generation=2, up=NEW, annotations=NEEDS | {SIGNED_PLAN: signed()})
    assert "it was changed since its plan was signed" in standing(unroll)
    fresh = NEEDS | {SIGNED_PLAN: signed(generation=2, up=NEW)}
    change(unroll, generation=2, up=NEW, annotations=fresh)
    assert standing(unroll) == ""
    # the old plan is signed and its spec was allowed once; its generation is past
    change(unroll, generation=3, annotations=NEEDS | {SIGNED_PLAN: signed()})
    assert "its plan is for generation 1, and it has generation 3" in standing(unroll)


@pytest.mark.parametrize("restarts", [False, True])
def test_the_requirement_cannot_be_edited_away(restarts: bool) -> None:
    """Without its annotation the set still needs a plan, also for a new worker; a signed one ends that."""
    unroll = fleet(NEEDS | {SIGNED_PLAN: signed()})
    assert standing(unroll) == ""
    if restarts:
        unroll.restart()
    change(unroll, generation=2, up=NEW, annotations={})
    assert "it has none" in standing(unroll)
    change(unroll, generation=2, up=NEW, annotations={SIGNED_PLAN: signed(generation=2, up=NEW)})
    assert "it was changed" in standing(unroll)  # what was signed keeps the requirement
    ended = {SIGNED_PLAN: signed(generation=2, up=NEW, requires="")}
    change(unroll, generation=2, up=NEW, annotations=ended)
    assert standing(unroll) == ""
    assert unroll.rollup is not None
    assert not unroll.rollup.plan_required


def test_a_set_that_the_installation_names_needs_a_plan_whatever_it_says() -> None:
    """Also one that was deleted and made again, which has no memory of its own."""
    policy = policy_of("prod/*, default/al*", SIGNERS)
    assert "it has none" in standing(fleet({}, policy))
    unroll = fleet({SIGNED_PLAN: signed(requires="")}, policy)
    assert standing(unroll) == ""
    unroll.tell_gone(SET, site_set())
    unroll.run()
    change(unroll, uid="again", annotations={SIGNED_PLAN: signed(requires="")})
    assert "its plan is for other sets" in standing(unroll)


@pytest.mark.parametrize("text", ["alice", "alice ssh-rsa AAAA", f"alice {public_text(ALICE)[:-8]}", "a b c"])
def test_a_bad_list_of_signers_is_refused(text: str) -> None:
    """At the start, before anything is decided."""
    with pytest.raises(ValueError, match=r"\w"):
        policy_of("", text)
    assert base64.b64decode(public_text(ALICE).split()[1])
