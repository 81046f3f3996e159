"""Which proposed revisions a policy is for, which of them may be approved, and in which order.

Annotations of a PackageRevision that Nephio's approval controller reads are read here, too.

Source of their meaning: nephio-project/nephio, controllers/pkg/reconcilers/approval/reconciler.go. The
differences are in docs/rollouts.md.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pvbus.core.api.packages import PUBLISHED
from pvbus.core.api.rollouts import RolloutPolicy, RolloutPolicySpec
from pvbus.core.api.selectors import matches, requirements_of
from pvbus.core.api.variants import Condition, LabelSelector, PackageVariant
from pvbus.core.kernel.holds import SetHold
from pvbus.core.kernel.messages import first_of
from pvbus.core.kernel.objects import annotations_of, set_among
from pvbus.core.kernel.rolloutrows import TargetFacts
from pvbus.core.promotion.protocol.proposals import (
    NOT_UP_TO_DATE,
    Refusal,
    gate_refusal,
    hold_refusal,
    is_outdated,
    labels_of,
    refusal,
    unready,
)
from pvbus.core.promotion.protocol.rules import seconds_of
from pvbus.core.promotion.protocol.validation import never_opens, validate_policy

POLICY_ANNOTATION = "approval.nephio.org/policy"
DELAY_ANNOTATION = "approval.nephio.org/delay"
NOT_SELECTED = "NotSelected"
"""The reason of a candidate that its policy does not select any more, but gave an order for."""
SHOWN_MAX = 3
NO_HOLDS: Mapping[str, SetHold] = {}
_RANK_WORDS = "the highest priority wins, then the oldest policy; a train has its members before these"
_LAST = "9999"  # a policy without creation time is of a file: any stored one is older

Object = Mapping[str, Any]


class Package(NamedTuple):
    """One target: a package with its open and its published revision.

    variant: its PackageVariant, None for a package of nobody
    set_name: the name of the variant's set, "" without one
    set_on_hold: the hold of that set, None without one
    is_open: whether it has a revision that is not published
    is_frozen: whether its proposal stays as it is though a newer upstream revision is there
    """

    name: str
    repository: str
    proposed: Object | None
    published: Object | None
    labels: Mapping[str, str]
    variant: PackageVariant | None = None
    set_name: str = ""
    set_on_hold: SetHold | None = None
    is_open: bool = False
    is_frozen: bool = False


class LeftOut(NamedTuple):
    """A proposed revision of a policy that is not to be approved now. due: when it will be, in seconds since
    1970; 0 if time does not change it."""

    target: str
    revision: str
    reason: str
    message: str
    due: float = 0


class Selection(NamedTuple):
    """What a policy is for.

    seen: target -> its facts, in the order of the policy's rollout
    lost: target -> the policy that has it instead
    problems: what is wrong with the spec; if anything is, nothing is approved
    words: canary -> what stands in its way, where that is known
    packages: target -> its package
    """

    policy: RolloutPolicy
    seen: dict[str, TargetFacts]
    left_out: list[LeftOut]
    lost: dict[str, str]
    problems: list[str]
    words: dict[str, str] = {}  # noqa: RUF012 - nothing writes to it
    packages: Mapping[str, Package] = {}


def select(policies: Iterable[RolloutPolicy], packages: Sequence[Package], now: float) -> list[Selection]:
    """Give each package to one policy of its namespace: a train, then the highest priority, then the oldest,
    then by name.

    A policy with problems has no packages, but keeps those it would have from others: a typing error must not
    hand a fleet over to a policy with other waves.
    """
    ranked = sorted(policies, key=rank)
    specs = [policy.spec for policy in ranked]
    owners = {package.name: owner_of(specs, package) for package in packages}
    selections = []
    for number, policy in enumerate(ranked):
        wanted = [package for package in packages if is_for(policy.spec, package)]
        mine = [each for each in wanted if owners[each.name] == number]
        others = ((each.name, owners[each.name]) for each in wanted)
        lost = {name: ranked[owner].metadata.name for name, owner in others if owner not in (None, number)}
        problems = validate_policy(policy.spec)
        seen, left_out = _seen(policy.spec, [] if problems else mine, now)
        words = dict(_words(policy.spec, packages, seen, left_out, lost))
        by_name = {package.name: package for package in mine}
        selections.append(Selection(policy, seen, left_out, lost, problems, words, by_name))
    return selections


def _words(
    spec: RolloutPolicySpec,
    packages: Iterable[Package],
    seen: Mapping[str, TargetFacts],
    left_out: Iterable[LeftOut],
    lost: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yield each canary that is not to be approved, with the reason."""
    found = {package.name: package for package in packages}
    reasons = {each.target: f"{each.reason}: {each.message}" for each in left_out}
    for canary in spec.canaries:
        package = found.get(canary)
        if canary in lost:
            yield canary, lost_to(lost[canary])
        elif canary in reasons:
            yield canary, reasons[canary]
        elif package is None:
            yield canary, "no PackageVariant of this name with a package revision is known here"
        elif canary not in seen:
            yield canary, not_selected(spec, package)
        elif package.variant is not None and package.proposed is None:
            refused = hold_refusal(package.variant, package.set_on_hold) or unready(package.variant)
            if refused is not None:
                yield canary, f"{refused.reason}: {refused.message}"


def lost_to(winner: str) -> str:
    """Say which policy has a target instead."""
    return f"policy {winner} has it: {_RANK_WORDS}"


def rank(policy: RolloutPolicy) -> tuple[int, str, str]:
    """Return the sort key of policies: of those that select a package, the first has it."""
    return -policy.spec.priority, policy.metadata.creation_timestamp or _LAST, policy.metadata.name


def is_for(spec: RolloutPolicySpec, package: Package) -> bool:
    """Tell whether a policy selects a package."""
    wanted = spec.revisions
    return (
        (not wanted.set or wanted.set == package.set_name)
        and (not wanted.repositories or package.repository in wanted.repositories)
        and matches(requirements_of(wanted.selector or LabelSelector()), package.labels)
    )


def seat_of(spec: RolloutPolicySpec, package: Package) -> tuple[str, int]:
    """Return the unit of a package in the policy's train, and its position there, from 1; ("", 0) if it is no
    member. The unit is "" where the variant has no label that names its site."""
    train = spec.train
    sets = [member.set for member in train.members] if train is not None else []
    if train is None or package.set_name not in sets:
        return "", 0
    site = package.labels.get(train.label, "") if train.label else package.repository
    return f"{site}/{'+'.join(sets)}" if site else "", sets.index(package.set_name) + 1


def owner_of(ranked: Sequence[RolloutPolicySpec], package: Package) -> int | None:
    """Return the position of the policy that has a package, None for none: the first, but a train has its
    members whatever the rank of another policy is."""
    found = [number for number, spec in enumerate(ranked) if is_for(spec, package)]
    return min(found, key=lambda number: not seat_of(ranked[number], package)[1], default=None)


def not_selected(spec: RolloutPolicySpec, package: Package) -> str:
    """Say why a policy does not select a package."""
    wanted, selector = spec.revisions, spec.revisions.selector
    why = ""
    if wanted.set and wanted.set != package.set_name:
        why = (
            f"it is of {f'set {package.set_name}' if package.set_name else 'no set'}, not of set {wanted.set}"
        )
    elif wanted.repositories and package.repository not in wanted.repositories:
        why = f"its repository is {package.repository}"
    elif selector is not None:
        labels = package.labels
        keys = [each.key for each in requirements_of(selector) if not matches((each,), labels)]
        why = ", ".join(
            f"its label {key} is {labels[key]}" if key in labels else f"it has no label {key}" for key in keys
        )
    return f"the policy does not select it: {why or 'see spec.revisions'}"


def _seen(
    spec: RolloutPolicySpec, packages: Iterable[Package], now: float
) -> tuple[dict[str, TargetFacts], list[LeftOut]]:
    seen, left_out = {}, []
    for package in sorted(packages, key=lambda package: order_of(spec, package)):
        why = None
        if package.proposed is not None:
            why = standing(spec, package, now)
        if why is not None:
            left_out.append(why)
        unit, part = seat_of(spec, package)
        seen[package.name] = TargetFacts(
            revision=_name(package.proposed),
            digest=content_of(package.proposed),
            is_proposed=package.proposed is not None and why is None,
            published=_name(package.published),
            published_digest=content_of(package.published),
            upstream=upstream_of(package.variant),
            is_current=is_current(package),
            unit=unit,
            part=part,
        )
    return seen, left_out


def is_current(package: Package) -> bool:
    """Tell whether the published revision is all that the variant of a package wants."""
    is_settled = package.published is not None and not package.is_open
    return is_settled and (package.variant is None or unready(package.variant) is None)


def upstream_of(variant: PackageVariant | None) -> str:
    """Return the upstream revision that a variant follows: `REPOSITORY/PACKAGE@REVISION`."""
    upstream = variant.spec.upstream if variant is not None else None
    if upstream is None:
        return ""
    revision = upstream.workspace_name or f"v{upstream.revision}"
    return f"{upstream.repo}/{upstream.package}@{revision}"


def order_of(spec: RolloutPolicySpec, package: Package) -> tuple[int, tuple[int, ...], str]:
    """Return the position of a package in the rollout: canaries, then by labels, then by name."""
    canaries = spec.canaries
    canary = canaries.index(package.name) if package.name in canaries else len(canaries)
    places = []
    for order in spec.order:
        value = package.labels.get(order.label, "")
        places.append(order.values.index(value) if value in order.values else len(order.values))
    return canary, tuple(places), package.name


def standing(spec: RolloutPolicySpec, package: Package, now: float) -> LeftOut | None:
    """Return why a proposed revision is not to be approved now, None if nothing speaks against it."""
    revision = package.proposed
    assert revision is not None
    refused = _refusal(package, revision) or _of_policy(spec, package, revision)
    if refused is not None:
        return LeftOut(package.name, _name(revision), refused.reason, refused.message)
    return _delayed(spec, package, revision, now)


def _refusal(package: Package, revision: Object) -> Refusal | None:
    if package.variant is None:
        return gate_refusal(dict(revision))
    refused = refusal(package.variant, dict(revision), set_on_hold=package.set_on_hold)
    is_behind = refused is not None and refused.reason == NOT_UP_TO_DATE and is_outdated(package.variant)
    return None if package.is_frozen and is_behind else refused


def _of_policy(spec: RolloutPolicySpec, package: Package, revision: Object) -> Refusal | None:
    """An unknown value of the annotation approves nothing, as in Nephio."""
    annotation = annotations_of(revision).get(POLICY_ANNOTATION)
    if annotation not in (None, "initial", "always"):
        return Refusal("InvalidPolicy", f'{POLICY_ANNOTATION} is "{annotation}": give initial or always')
    approval = annotation or spec.approval.lower()
    if approval == "initial" and package.published is not None:
        return Refusal(
            "NotInitial", f"{_name(package.published)} is published: only first revisions are approved"
        )
    return None


def _delayed(spec: RolloutPolicySpec, package: Package, revision: Object, now: float) -> LeftOut | None:
    text = annotations_of(revision).get(DELAY_ANNOTATION, spec.delay)
    name = _name(revision)
    try:
        delay = seconds_of(text)
    except ValueError as exc:
        return LeftOut(package.name, name, "InvalidDelay", f"{DELAY_ANNOTATION}: {exc}")
    if not delay:
        return None
    created = _created(revision)
    if created is None:
        return LeftOut(
            package.name, name, "Delayed", f"its creation time is not known, and it waits for {text}"
        )
    if now >= created + delay:
        return None
    return LeftOut(package.name, name, "Delayed", f"it is younger than {text}", created + delay)


def conditions_of(selection: Selection, now: float) -> Iterator[Condition]:
    """Yield the conditions that say whether a policy is in force."""
    problems, lost = selection.problems, selection.lost
    never = "" if problems else never_opens(selection.policy.spec, now)
    generation = selection.policy.metadata.generation
    yield Condition(
        type="Accepted",
        status="False" if problems else "True",
        reason="InvalidSpec" if problems else "NeverOpens" if never else "Valid",
        message="; ".join(problems) or never,
        observed_generation=generation,
    )
    winners = sorted(set(lost.values()))
    yield Condition(
        type="Overlapping",
        status="True" if lost else "False",
        reason="OtherPolicyWins" if lost else "NoOverlap",
        message=f"{len(lost)} of its targets ({first_of(sorted(lost), SHOWN_MAX)}) belong to "
        f"{', '.join(winners)}: {_RANK_WORDS}"
        if lost
        else "",
        observed_generation=generation,
    )


def packages_of(
    revisions: Iterable[Object],
    variants: Iterable[PackageVariant],
    held_sets: Mapping[str, SetHold] = NO_HOLDS,
) -> list[Package]:
    """Group the revisions of a namespace by package and owner. held_sets: holds of sets, by name.

    A variant of a file may have no uid: then its revisions name it. What somebody made by hand in the package
    of a variant is no revision of this variant.
    """
    owners = {variant.metadata.uid or variant.metadata.name: variant for variant in variants}
    groups: dict[tuple[str, str, str], list[Object]] = {}
    for revision in revisions:
        spec, variant = revision["spec"], _owner(revision, owners)
        package_key = spec.get("repository", ""), spec.get("packageName", "")
        groups.setdefault((*package_key, variant.metadata.name if variant else ""), []).append(revision)
    return [
        _package(package_key, members, owners, held_sets)
        for (*package_key, _), members in sorted(groups.items())
    ]


def _package(
    package_key: Sequence[str],
    members: Sequence[Object],
    owners: Mapping[str, PackageVariant],
    held_sets: Mapping[str, SetHold],
) -> Package:
    proposed = [each for each in members if each["spec"].get("lifecycle") == "Proposed"]
    published = [each for each in members if each["spec"].get("lifecycle") in PUBLISHED]
    newest = max(proposed, key=_age, default=None)
    latest = max(published, key=lambda each: each["spec"].get("revision", 0), default=None)
    shown = newest or latest or members[0]
    is_open = any(each["spec"].get("lifecycle") not in PUBLISHED for each in members)
    variant = _owner(shown, owners)
    if variant is None:
        labels = shown["metadata"].get("labels") or {}
        name, repository = "/".join(package_key), package_key[0]
        return Package(name, repository, newest, latest, labels, is_open=is_open)
    set_name = set_among(variant.metadata.owner_references)
    return Package(
        variant.metadata.name,
        package_key[0],
        newest,
        latest,
        labels_of(variant, dict(shown)),
        variant,
        set_name,
        held_sets.get(set_name),
        is_open,
    )


def _owner(revision: Object, owners: Mapping[str, PackageVariant]) -> PackageVariant | None:
    for reference in revision["metadata"].get("ownerReferences") or ():
        if reference.get("kind") == "PackageVariant":
            for key in (reference.get("uid"), reference.get("name")):
                if key in owners:
                    return owners[key]
    return None


def content_of(revision: Object | None) -> str:
    """Return the commit that a revision's content is in, "" where the server does not say."""
    lock = ((revision or {}).get("status") or {}).get("selfLock") or {}
    return str((lock.get("git") or {}).get("commit") or "")


def _age(revision: Object) -> tuple[str, str]:
    return revision["metadata"].get("creationTimestamp") or "", _name(revision)


def _name(revision: Object | None) -> str:
    return "" if revision is None else str(revision["metadata"]["name"])


def _created(revision: Object) -> float | None:
    try:
        return datetime.fromisoformat(revision["metadata"].get("creationTimestamp") or "").timestamp()
    except ValueError:
        return None
