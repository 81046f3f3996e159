"""A set's children: their names, what render is told of them, their removal and the guard.

Removal is never the absence of something: a child that no target wants any more goes through
`removing` (it has to stay unwanted for a while), then `removed` (render is told) or `held` (too
many at once), then `gone`. Each state is a row, so it survives any restart, and the guard counts
rows, not evaluations.
"""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from pvbus.core.effects import Put
from pvbus.core.ids import (
    Key,
    colliding_variant_name,
    deletion_token,
    digest,
    sha1_head,
    variant_name,
)
from pvbus.core.model import Downstream, PackageVariantSet
from pvbus.core.records import TARGETS, UNROLL, ChildResult, ChildRow, TargetRow
from pvbus.core.unroll.contexts import Context, Contexts
from pvbus.core.unroll.view import Observed

REMEMBER_GONE_SECONDS = 600.0  # also the guard's window: forgetting sooner would let removals trickle


class Limits(NamedTuple):
    """When removals are believed, and how many at once. share: of the children the set had."""

    removal_delay_seconds: float = 5.0
    removals_max: int = 10
    removals_share: float = 0.3


class Children:
    """Rows of one set, by PackageVariant name, and the puts that the current pass adds."""

    def __init__(self, skey: str) -> None:
        self.skey = skey
        self.rows: dict[str, ChildRow] = {}
        self.results: dict[str, ChildResult] = {}
        self.leaving: set[str] = set()
        self._names: dict[Downstream, str] = {}
        self._named: dict[str, Downstream] = {}
        self._uids: dict[str, int] = {}

    def _name(self, downstream: Downstream, name: str) -> None:
        self._names[downstream] = name
        self._named[name] = downstream

    def _unname(self, downstream: Downstream, name: str) -> None:
        if self._names.get(downstream) == name:
            del self._names[downstream]
        if self._named.get(name) == downstream:
            del self._named[name]

    # ------------------------------------------------------------ rows in

    def take(self, name: str, row: ChildRow | None) -> None:
        """Take over a row, restored or just written."""
        old = self.rows.pop(name, None)
        if old is not None:
            self._unname(old.downstream, name)
            self._uids[old.set_uid] -= 1
        self.leaving.discard(name)
        if row is None:
            return
        self.rows[name] = row
        self._uids[row.set_uid] = self._uids.get(row.set_uid, 0) + 1
        if row.state != "gone":
            self._name(row.downstream, name)
        if row.state != "present":
            self.leaving.add(name)

    # ------------------------------------------------------------ names

    def name_of(self, downstream: Downstream) -> str | None:
        return self._names.get(downstream)

    def adopt_names(self, names: Iterable[str], owned: dict[str, Observed]) -> list[Downstream]:
        """Remember those of the named living children that no row knows, under the names they have.

        A child that a row knows is identified by the row: its spec may have been edited by hand.
        Returns their downstreams, to be settled.
        """
        unknown = []
        for name in sorted(names):
            row, observed = self.rows.get(name), owned.get(name)
            if observed is None or (row is not None and row.state != "gone"):
                continue
            if observed.downstream in self._names:
                continue
            self._name(observed.downstream, name)
            unknown.append(observed.downstream)
        return unknown

    def new_name(self, set_name: str, downstream: Downstream, taken: Iterable[str]) -> str:
        """Choose a name for a new child: Porch's, unless another downstream has it."""
        name = variant_name(set_name, downstream.repo, downstream.package)
        if self._named.get(name, downstream) != downstream or name in taken:
            name = colliding_variant_name(set_name, downstream.repo, downstream.package)
        self._name(downstream, name)
        return name

    # ------------------------------------------------------------ wanted

    def wanted(
        self, obj: PackageVariantSet, contexts: Contexts, context: Context, name: str
    ) -> tuple[Put, ...]:
        """Return what makes this child present; nothing when its rows say so already."""
        row = self.rows.get(name)
        kept = ""
        if row is not None:
            came_back = row.state == "removed"  # a DELETE may be under way
            kept = sha1_head(f"{name}/{row.since}") if came_back else row.kept
        target = target_row(obj, contexts, context, kept)
        fresh = ChildRow(
            set_uid=obj.metadata.uid,
            state="present",
            downstream=target.downstream,
            digest=target.digest,
            target=context.key[0],
            okey=context.object,
            kept=kept,
        )
        if row == fresh:
            return ()
        puts = [self.put(name, fresh)]
        if row is None or row.digest != fresh.digest:
            puts.append(Put(TARGETS, self._target_key(name), target))
        return tuple(puts)

    def put(self, name: str, row: ChildRow | None) -> Put:
        return Put(UNROLL, f"{self.skey}|{name}", row)

    def _target_key(self, name: str) -> str:
        skey = Key.parse(self.skey)
        return f"{skey.namespace}/{name}|{skey.name}"

    # ------------------------------------------------------------ unwanted

    def unwanted(
        self, uid: str, downstream: Downstream, name: str, owned: dict[str, Observed], now: float
    ) -> tuple[Put, ...]:
        """Note that no target wants this child since now; the removal itself comes later."""
        row = self.rows.get(name)
        if (row is None or row.state == "gone") and name not in owned:
            self._unname(downstream, name)
            return ()
        if row is not None and row.state not in ("present", "gone"):  # gone, and back: a late create
            return ()
        fresh = ChildRow(
            set_uid=uid,
            state="removing",
            downstream=downstream,
            digest=row.digest if row else "",
            target=row.target if row else 0,
            okey=row.okey if row else "",
            since=now,
            kept=row.kept if row else "",
        )
        return (self.put(name, fresh),)

    def due(self, now: float, limits: Limits, confirmed: frozenset[str]) -> list[str]:
        """Return the children whose removal may be decided now, by name."""
        found = []
        for name in self.leaving:
            row = self.rows[name]
            waited = row.state == "removing" and now - row.since >= limits.removal_delay_seconds
            if waited or (row.state == "held" and row.token in confirmed):
                found.append(name)
        return sorted(found)

    def next_due(self, limits: Limits) -> float | None:
        """Return when a removal falls due next (wall clock, seconds)."""
        times = [self.rows[n].since for n in self.leaving if self.rows[n].state == "removing"]
        return min(times) + limits.removal_delay_seconds if times else None

    def all_evaluated(self) -> bool:
        """Whether render evaluated every present row at its current digest, none failing."""
        for name, row in self.rows.items():
            if row.state == "present":
                result = self.results.get(name)
                if result is None or result.evaluated != row.digest:
                    return False
                if result.error and result.reason != "OnHold":  # a person's hold is no failure
                    return False
        return True

    def remove(
        self,
        obj: PackageVariantSet,
        names: list[str],
        now: float,
        limits: Limits,
        confirmed: frozenset[str],
    ) -> list[Put]:
        """Decide removals that passed every gate: told to render, or held by the guard.

        The guard counts removals of the last ten minutes, decided, done and held alike, against
        the children the set had.
        """
        fresh = [n for n in names if not (self.rows[n].state == "held" and self.rows[n].token in confirmed)]
        released = [n for n in names if n not in set(fresh)]
        recent = sum(
            1
            for n in self.leaving
            if self.rows[n].state in ("removed", "gone", "held")
            and (self.rows[n].state == "held" or now - self.rows[n].since < REMEMBER_GONE_SECONDS)
        )
        had = len(self.rows)
        if fresh and recent + len(fresh) > max(limits.removals_max, limits.removals_share * had):
            namespace = Key.parse(self.skey).namespace
            token = deletion_token(f"{namespace}/{n}" for n in fresh)
            if token in confirmed:
                released, fresh = released + fresh, []
            held = [self.put(n, replace(self.rows[n], state="held", token=token, since=now)) for n in fresh]
        else:
            released, held = released + fresh, []
        return held + [put for n in released for put in self._removed(obj, n, now)]

    def _removed(self, obj: PackageVariantSet, name: str, now: float) -> tuple[Put, Put]:
        generation = obj.metadata.generation
        row = replace(self.rows[name], state="removed", digest="", token="", since=now, generation=generation)
        target = TargetRow(
            state="removed",
            set_name=obj.metadata.name,
            set_uid=obj.metadata.uid,
            set_created=obj.metadata.creation_timestamp or "",
            generation=obj.metadata.generation,
            downstream=row.downstream,
        )
        return self.put(name, row), Put(TARGETS, self._target_key(name), target)

    def settle_removed(
        self, obj: PackageVariantSet, contexts: Contexts, owned: dict[str, Observed], now: float
    ) -> list[Put]:
        """Note which removed children are seen gone, and forget those gone long ago.

        An order to remove stands for one generation of the set; at another it is given again.
        Caller: only when the PackageVariants are known completely.
        """
        puts: list[Put] = []
        for name in sorted(self.leaving):
            row = self.rows[name]
            if row.downstream in contexts.by_downstream:
                continue  # wanted again: what this very pass says of it must not be taken back
            if row.state == "removed" and name not in owned:
                puts.append(self.put(name, replace(row, state="gone", since=now)))
                puts.append(Put(TARGETS, self._target_key(name), None))
            elif row.state == "removed" and row.generation != obj.metadata.generation:
                puts += self._removed(obj, name, row.since)
            elif row.state == "gone" and now - row.since >= REMEMBER_GONE_SECONDS:
                puts.append(self.put(name, None))
        return puts

    def former(self, uid: str) -> list[str]:
        """Return the children of a deleted set of the same name; costs nothing where there are none."""
        if self._uids.get(uid, 0) == len(self.rows):
            return []
        return [name for name, row in self.rows.items() if row.set_uid != uid]

    def let_go(self, names: Iterable[str], puts_max: int) -> list[Put]:
        """Tombstone children, some at a time: nobody writes or deletes them for this set any more."""
        puts = []
        for name in sorted(names)[:puts_max]:
            puts.append(self.put(name, None))
            if self.rows[name].state != "gone":
                puts.append(Put(TARGETS, self._target_key(name), None))
        return puts


def target_row(obj: PackageVariantSet, contexts: Contexts, context: Context, kept: str) -> TargetRow:
    """Build render's self-contained input for one child; its digest covers all but the generation."""
    assert context.downstream is not None
    row = TargetRow(
        state="present",
        set_name=obj.metadata.name,
        set_uid=obj.metadata.uid,
        set_created=obj.metadata.creation_timestamp or "",
        kept=kept,
        target=context.key[0],
        upstream=obj.spec.upstream,
        template=obj.spec.targets[context.key[0]].template,
        downstream=context.downstream,
        repo_default=context.repo_default,
        package_default=context.package_default,
        list_target=not context.object,
        roots=contexts.roots(context),
    )
    return replace(row, digest=digest(row))
