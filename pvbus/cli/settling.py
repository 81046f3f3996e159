"""Settles equal conflicts of many drafts, lists what was settled, and takes it back.

Each draft is read from the API server before its write, and settled only if it still has the conflict. Its
annotation `pvbus.dev/settled-conflicts` records what was settled, by which resolution; who did it is in the
draft's commit.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from pvbus.cli.diff import put_side, texts_of, twice
from pvbus.cli.explain_text import conflict_value
from pvbus.cli.fleet import Member, Progress, counter, existing, require_served, work_off
from pvbus.cli.live import REVISION
from pvbus.core.api.variants import ObjectMeta, PackageVariant
from pvbus.core.errors import PermanentError, PvbusError
from pvbus.core.kernel.conflicts import CONFLICTS, Conflict, annotation, where
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.objectrows import VARIANT
from pvbus.core.kernel.objects import owner_name
from pvbus.core.promotion.protocol.proposals import conflicts_of
from pvbus.core.variants.merge import MergeError
from pvbus.core.variants.merge.resolving import unresolved
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.core.web.conflicts import Group, by_draft, kind_of, values_of
from pvbus.core.yaml.editor import YamlError
from pvbus.ports.cluster import Cluster, Object

SETTLED = "pvbus.dev/settled-conflicts"
"""On a draft: what was settled by resolutions, as JSON, so that `pvbus conflicts undo` finds it."""
SETTLED_BYTES_MAX = 64 * 1024  # of 256 KiB for all annotations; the oldest go first
LINES_MAX = 20


class Settled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conflict that a resolution has settled.

    resolution: its id
    side: whose value the draft has since
    """

    resolution: str
    side: str
    conflict: Conflict


class Result(NamedTuple):
    """What became of one draft.

    outcome: done, refused, or failed
    """

    variant: str
    revision: str
    outcome: str
    message: str = ""


class Resolution(NamedTuple):
    """One decision, as far as drafts record it.

    places: the fields that it settled, in words
    variants: whose drafts it settled, sorted
    """

    id: str
    side: str
    places: tuple[str, ...]
    variants: tuple[str, ...]


_settled = msgspec.json.Decoder(tuple[Settled, ...])


# ------------------------------------------------------------ settling


async def settle_group(
    cluster: Cluster,
    group: Group,
    side: str,
    resolution: str,
    id_of: Callable[[Conflict], str],
    progress: Progress = counter,
) -> tuple[list[Result], bool]:
    """Settle a group, some drafts at a time; return the results, and whether a person has interrupted it."""

    async def settle_draft(item: tuple[str, str]) -> Result:
        revision, variant = item
        work = partial(_settle_draft, cluster, Key.parse(variant), Key.parse(revision).name)
        return await _report_draft(variant, revision, partial(work, side, resolution, group.id, id_of))

    return await work_off(list(by_draft(group).items()), settle_draft, "settle", progress)


async def _report_draft(variant: str, revision: str, attempt: Callable[[], Any]) -> Result:
    try:
        return Result(variant, revision, "done", await twice(attempt))
    except (MergeError, YamlError) as exc:
        return Result(variant, revision, "refused", str(exc))
    except PermanentError as exc:
        return Result(variant, revision, "refused" if exc.reason == "Changed" else "failed", str(exc))
    except PvbusError as exc:
        return Result(variant, revision, "failed", str(exc))


async def _settle_draft(
    cluster: Cluster,
    key: Key,
    name: str,
    side: str,
    resolution: str,
    group: str,
    id_of: Callable[[Conflict], str],
) -> str:
    draft = await _draft_of(cluster, key, name)
    due = [each for each in conflicts_of(draft.revision) if not each.is_warning and id_of(each) == group]
    if not due:
        raise PermanentError("it has no such conflict any more", reason="Changed")
    for conflict in due:
        if side != conflict.taken:
            await put_side(cluster, draft, conflict, side)
    done = tuple(Settled(resolution=resolution, side=side, conflict=each) for each in due)
    await twice(partial(_rewrite, cluster, draft, remove=due, record=done))
    return ""


async def _draft_of(cluster: Cluster, key: Key, name: str) -> Member:
    """Read a draft. Raises PermanentError if it is none any more."""
    revision = await existing(cluster, REVISION, Key(key.namespace, name))
    if lifecycle_of(revision) != "Draft":
        raise PermanentError(f"it is {lifecycle_of(revision)}, and nothing changes it", reason="Changed")
    owner = PackageVariant(metadata=ObjectMeta(namespace=key.namespace, name=key.name))
    return Member(owner, revision)


async def _rewrite(
    cluster: Cluster,
    draft: Member,
    *,
    remove: Sequence[Conflict] = (),
    add: Sequence[Conflict] = (),
    record: Sequence[Settled] = (),
    forget: str = "",
) -> None:
    """Write a draft's list of conflicts, and what was settled. forget: a resolution that was undone."""
    live = await existing(cluster, REVISION, Key(draft.key.namespace, draft.name))
    annotations = live["metadata"].setdefault("annotations", {})
    before = dict(annotations)
    left = [each for each in conflicts_of(live) if each not in remove and each not in add]
    _assign(annotations, CONFLICTS, annotation([*left, *add]) if left or add else "")
    settled = [each for each in settled_of(live) if each.resolution != forget]
    _assign(annotations, SETTLED, _within_limit([*settled, *record]))
    if annotations != before:
        await cluster.update(await require_served(cluster, REVISION), live)


def _assign(annotations: dict[str, str], name: str, text: str) -> None:
    if text:
        annotations[name] = text
    else:
        annotations.pop(name, None)


def _within_limit(settled: Sequence[Settled]) -> str:
    """Return the record as text, "" for none. The oldest ones go where it would be too long."""
    text = msgspec.json.encode(settled).decode()
    if len(text.encode()) > SETTLED_BYTES_MAX:
        return _within_limit(settled[1:])
    return text if settled else ""


def settled_of(revision: Object) -> tuple[Settled, ...]:
    """Return what resolutions have settled in a draft; a record that cannot be read has nothing."""
    try:
        return _settled.decode((revision["metadata"].get("annotations") or {}).get(SETTLED) or "[]")
    except msgspec.MsgspecError:
        return ()


# ------------------------------------------------------------ what was settled


def variant_of(revision: Object) -> str:
    """Return the variant that owns a package revision, as `<namespace>/<name>`; no name if none does."""
    return f"{revision['metadata']['namespace']}/{owner_name(revision, VARIANT.kind)}"


def resolutions_of(revisions: Iterable[Object]) -> list[Resolution]:
    """Return the resolutions that drafts record: what `undo_all` can take back; the largest one first."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for revision in revisions:
        for each in settled_of(revision) if lifecycle_of(revision) == "Draft" else ():
            of_draft = (variant_of(revision), place_of(each.conflict))
            found.setdefault((each.resolution, each.side), []).append(of_draft)
    made = []
    for (name, side), pairs in found.items():
        variants, places = (tuple(sorted(set(texts))) for texts in zip(*pairs, strict=True))
        made.append(Resolution(name, side, places, variants))
    return sorted(made, key=lambda each: (-len(each.variants), each.id))


def place_of(conflict: Conflict) -> str:
    """Return where a conflict is, without the name of the object: that often has the variant's."""
    return where(msgspec.structs.replace(conflict, object=kind_of(conflict)))


def undo_lines(drafts: Iterable[Object], resolution: str) -> Iterator[str]:
    """Yield what taking a resolution back would write: each change of a field with its number of drafts."""
    counts: Counter[str] = Counter()
    for each in (each for draft in drafts for each in settled_of(draft) if each.resolution == resolution):
        now, then = (
            conflict_value(values_of(each.conflict), "upstream" if side == "new" else side)
            for side in (each.side, each.conflict.taken)
        )
        counts[f"{place_of(each.conflict)}: has {now}, would have {then}, and be in conflict again"] += 1
    for words, count in counts.most_common(LINES_MAX):
        yield f"{count} x {words}"
    if len(counts) > LINES_MAX:
        yield f"and {len(counts) - LINES_MAX} other changes"


# ------------------------------------------------------------ taking back


async def read_settled(cluster: Cluster, resolution: str) -> list[Object]:
    """List the package revisions that record a resolution."""
    found = await read_all_settled(cluster)
    return [obj for obj in found if any(each.resolution == resolution for each in settled_of(obj))]


async def read_all_settled(cluster: Cluster) -> list[Object]:
    """List the package revisions that record any resolution."""
    listing = await cluster.list(await require_served(cluster, REVISION))
    return [obj for obj in listing.items if settled_of(obj)]


async def undo_all(
    cluster: Cluster, drafts: Sequence[Object], resolution: str, progress: Progress = counter
) -> tuple[list[Result], bool]:
    """Take a resolution back, some drafts at a time."""

    async def undo_draft(obj: Object) -> Result:
        variant, name = variant_of(obj), obj["metadata"]["name"]
        work = partial(_undo_draft, cluster, Key.parse(variant), name, resolution)
        return await _report_draft(variant, f"{obj['metadata']['namespace']}/{name}", work)

    return await work_off(drafts, undo_draft, "undo", progress)


async def _undo_draft(cluster: Cluster, key: Key, name: str, resolution: str) -> str:
    draft = await _draft_of(cluster, key, name)
    due = [each for each in settled_of(draft.revision) if each.resolution == resolution]
    texts = await texts_of(cluster, key.namespace, name)
    settled = [msgspec.structs.replace(each.conflict, taken=each.side) for each in due]
    if len(unresolved(settled, texts)) < len(due):
        raise PermanentError("its value was changed since", reason="Changed")
    for each in due:
        if each.side != each.conflict.taken:
            await put_side(cluster, draft, each.conflict, each.conflict.taken)
    reopened = [each.conflict for each in due]
    await twice(partial(_rewrite, cluster, draft, add=reopened, forget=resolution))
    return ""
