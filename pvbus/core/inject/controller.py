"""The decision for one PackageVariant: what it waits for, and when its downstream needs a look.

The result row remembers a digest over everything an outcome depends on: the spec, the upstream's
identity, the revisions at its places and the content of injected objects. An equal digest means
nothing is read or written, which is what makes a restart silent.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import msgspec

from pvbus.core.effects import Get, KindRef, Outcome, Put, Reconciliation, Update
from pvbus.core.ids import FINALIZER, HOLD, digest, okey
from pvbus.core.inject.ensure import (
    RESOURCES,
    Ensured,
    Ensurer,
    disown,
    list_place,
    owned_by,
    release,
)
from pvbus.core.inject.view import REPOSITORY_KIND, REVISION_KIND, Revision, View, ViewCandidates
from pvbus.core.model import CONFIG_GROUP, Condition, Downstream, PackageVariant
from pvbus.core.mutations import InjectionPoints, injection_points, validate_variant, wanted
from pvbus.core.records import (
    DESIRED,
    INJECTABLES,
    OBJECTS,
    RESULTS,
    VARIANTS,
    WATCHES,
    DesiredRow,
    InjectedObject,
    ResultRow,
    WatchRequest,
    watch_key,
)
from pvbus.core.tables import SyncView, is_marker
from pvbus.errors import ConflictError, PermanentError

VARIANT = KindRef(CONFIG_GROUP, "PackageVariant", "v1alpha1")
VARIANT_KIND = f"{CONFIG_GROUP}/PackageVariant"
POINTS_KEPT = 256  # upstream contents whose injection points are remembered
REFUSED_RETRY_SECONDS = 60.0
SETTLE_SECONDS = 1.0

_variant = msgspec.json.Decoder(PackageVariant)
_desired = msgspec.json.Decoder(DesiredRow)
_result = msgspec.json.Decoder(ResultRow)
_request = msgspec.json.Decoder(WatchRequest)
ContentName = tuple[str, str, str, str]
"""(group, version, kind, name)."""


class Seen:
    """One variant key: the object, its set's decision, and what was last done."""

    __slots__ = ("desired", "names", "raw", "requests", "result")

    def __init__(self) -> None:
        self.raw: bytes | None = None
        self.desired: DesiredRow | None = None
        self.result: ResultRow | None = None
        self.requests: dict[str, WatchRequest] = {}
        self.names: tuple[ContentName, ...] = ()


class InjectController:
    """PackageVariants in, drafts out. See `pvbus.core.effects.Controller`."""

    name = "inject"
    inputs = (VARIANTS, DESIRED)
    memory = (RESULTS,)
    broadcast = (OBJECTS, INJECTABLES, WATCHES)

    def __init__(self, *, partitions: int) -> None:
        self.view = View(partitions)
        self._keys: dict[int, dict[str, Seen]] = {}
        self._sync: dict[int, SyncView] = {}
        self._requests: dict[str, dict[str, WatchRequest]] = {}
        self._users: dict[int, dict[str, set[str]]] = {}
        self._points: OrderedDict[str, InjectionPoints] = OrderedDict()

    # ------------------------------------------------------------ records in

    def open(self, partition: int) -> None:
        self._keys[partition] = {}
        self._users[partition] = {}
        self._sync[partition] = SyncView(1)

    def close(self, partition: int) -> None:
        for vkey in self._keys.pop(partition, {}):
            self.view.forget(vkey)
        self._users.pop(partition, None)
        self._sync.pop(partition, None)

    def keys(self, partition: int) -> Iterable[str]:
        return [key for key, seen in self._keys.get(partition, {}).items() if seen.raw or seen.result]

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        if topic == OBJECTS:
            dirty = self.view.load_object(partition, key, value)
            return self._all_keys() if dirty is None else dirty
        if topic == INJECTABLES:
            return self.view.load_injectable(partition, key, value)
        if topic == WATCHES:
            return self._load_request(key, value)
        if partition not in self._keys:
            return ()
        if is_marker(key):
            changed = topic == VARIANTS and self._sync[partition].load(partition, key, value)
            return self.keys(partition) if changed else ()
        seen = self._keys[partition].setdefault(key, Seen())
        if topic == VARIANTS:
            seen.raw = value
        elif topic == DESIRED:
            seen.desired = _desired.decode(value) if value is not None else None
        else:
            seen.result = _result.decode(value) if value is not None else None
        return (key,)

    def _all_keys(self) -> list[str]:
        return [key for partition in self._keys for key in self.keys(partition)]

    def _load_request(self, key: str, value: bytes | None) -> tuple[str, ...]:
        requester = key.split("|")[1]
        if value is None:
            self._requests.get(requester, {}).pop(key, None)
        elif requester.startswith("inject-"):
            self._requests.setdefault(requester, {})[key] = _request.decode(value)
        return ()

    def store(self, partition: int, put: Put) -> Iterable[str]:
        if put.topic == RESULTS and partition in self._keys:
            seen = self._keys[partition].setdefault(put.key, Seen())
            seen.result = put.row if isinstance(put.row, ResultRow) else None
        return ()

    # ------------------------------------------------------------ deciding

    def reconcile(self, key: str, now: float) -> Reconciliation:
        partition = next((p for p, table in self._keys.items() if key in table), None)
        if partition is None:
            return Outcome()
        seen = self._keys[partition][key]
        if seen.raw is None:
            return self._gone(partition, key, seen)
        for kind in (REVISION_KIND, REPOSITORY_KIND):
            if not self.view.sync.ok(kind):
                return Outcome(result="waiting", waiting=(f"{kind} is being listed",))
        raw = seen.raw  # records that arrive while effects run replace it
        variant = _variant.decode(raw)
        if variant.metadata.deletion_timestamp:
            return (yield from self._terminate(partition, key, seen, raw, variant))
        if variant.metadata.annotations.get(HOLD) == "true":
            message = "nothing is written for this variant while it has the annotation pvbus.dev/hold"
            return self._ended(
                key, seen, variant, [_condition("OnHold", True, "Annotation", message, variant)]
            )
        if self._set_will_change_it(seen, variant):
            return Outcome(result="waiting", waiting=("its set is about to change it",))
        return (yield from self._ensure(partition, key, seen, raw, variant, now))

    @staticmethod
    def _set_will_change_it(seen: Seen, variant: PackageVariant) -> bool:
        desired = seen.desired
        return (
            desired is not None
            and desired.outcome == "applied"
            and desired.uid == variant.metadata.uid
            and desired.spec_digest != digest(variant.spec)
        )

    def _gone(self, partition: int, key: str, seen: Seen) -> Outcome:
        if not self._sync[partition].ok(VARIANT_KIND):
            return Outcome(result="waiting", waiting=("PackageVariants are being listed",))
        puts = self._request_puts(partition, key, seen, {})
        if seen.result is not None:
            puts.append(Put(RESULTS, key, None))
        self.view.forget(key)
        if not puts and seen.desired is None:
            del self._keys[partition][key]
        return Outcome(tuple(puts), "changed" if puts else "unchanged")

    def _ensure(
        self, partition: int, key: str, seen: Seen, raw: bytes, variant: PackageVariant, now: float
    ) -> Reconciliation:
        if FINALIZER not in variant.metadata.finalizers:
            obj = msgspec.json.decode(raw)
            obj["metadata"]["finalizers"] = [*(obj["metadata"].get("finalizers") or ()), FINALIZER]
            yield Update(VARIANT, obj)
            return Outcome(result="changed", waiting=("the echo of its finalizer",))
        problems = validate_variant(variant.spec)
        if problems:
            return self._invalid(key, seen, variant, "; ".join(problems))
        assert variant.spec.upstream is not None
        assert variant.spec.downstream is not None
        up, down = variant.spec.upstream, variant.spec.downstream
        namespace = variant.metadata.namespace
        places = [(namespace, up.repo, up.package), (namespace, down.repo, down.package)]
        self.view.use(key, variant.metadata.uid, places=places)
        upstream = self.view.upstream(namespace, up)
        if upstream is None:
            asked = ", ".join(
                f"{k} {v}" for k, v in (("revision", up.revision), ("workspace", up.workspace_name)) if v
            )
            message = (
                f'could not find upstream package revision of package "{up.package}" in repository '
                f'"{up.repo}" ({asked or "workspace main"})'
            )
            return self._invalid(key, seen, variant, message)
        waiting = yield from self._gather(partition, key, seen, variant, upstream, places)
        if isinstance(waiting, Outcome):
            return waiting
        inputs = self._input_digest(seen, variant, upstream)
        if seen.result is not None and seen.result.input_digest == inputs:
            return Outcome()
        return (yield from self._apply(key, seen, variant, upstream, inputs, now))

    def _apply(
        self, key: str, seen: Seen, variant: PackageVariant, upstream: Revision, inputs: str, now: float
    ) -> Reconciliation:
        before = {
            t.name: t for t in (seen.result.targets if seen.result else variant.status.downstream_targets)
        }
        candidates = ViewCandidates(self.view, variant.metadata.namespace, seen.names)
        ensurer = Ensurer(variant, upstream, self.view, candidates, before)
        valid = _condition("Stalled", False, "Valid", "all validation checks passed", variant)
        try:
            ensured = yield from ensurer.run()
        except ConflictError:
            raise
        except PermanentError as error:
            failed = _condition("Ready", False, "Error", str(error), variant)
            outcome = self._ended(key, seen, variant, [valid, failed], upstream=upstream)
            return outcome._replace(result="failed", again_after=REFUSED_RETRY_SECONDS)
        conditions = [valid, self._ready(variant, ensured), *self._injection(variant, ensured)]
        return self._ended(
            key, seen, variant, conditions, upstream=upstream, ensured=ensured, input_digest=inputs, cause=now
        )

    def _ready(self, variant: PackageVariant, ensured: Ensured) -> Condition:
        if ensured.problem is not None:
            return _condition("Ready", False, *ensured.problem, variant)
        failure = self._render_failure(variant, ensured)
        if failure:
            return _condition("Ready", False, "RenderFailed", failure, variant)
        message = "successfully ensured downstream package variant"
        return _condition("Ready", True, "NoErrors", message, variant)

    def _render_failure(self, variant: PackageVariant, ensured: Ensured) -> str:
        """Return why a target's pipeline could not run: from the answer of the save, else as observed."""
        revisions = {r.name: r for r in self.view.owned(variant.metadata.uid)}
        for target in ensured.targets:
            error = (target.render_status or {}).get("error")
            if error:
                return f"{target.name}: {error}"
            revision = revisions.get(target.name)
            for condition in revision.facts.conditions if revision else ():
                if condition.type == "Rendered" and condition.status == "False":
                    return f"{target.name}: {condition.message}"
        return ""

    @staticmethod
    def _injection(variant: PackageVariant, ensured: Ensured) -> list[Condition]:
        if not ensured.injected:
            return []
        missing = [i for i in ensured.injected if i.required and i.source_name is None]
        if missing:
            message = "; ".join(f"{i.condition_type}: {i.message}" for i in missing)
            return [_condition("ConfigInjected", False, "RequiredNotInjected", message, variant)]
        message = f"{len(ensured.injected)} injection points processed"
        return [_condition("ConfigInjected", True, "Complete", message, variant)]

    def _invalid(self, key: str, seen: Seen, variant: PackageVariant, message: str) -> Outcome:
        stalled = _condition("Stalled", True, "ValidationError", message, variant)
        ready = _condition("Ready", False, "Error", "invalid packagevariant object", variant)
        return self._ended(key, seen, variant, [stalled, ready])

    # ------------------------------------------------------------ content to inject

    def _gather(
        self,
        partition: int,
        key: str,
        seen: Seen,
        variant: PackageVariant,
        upstream: Revision,
        places: list[tuple[str, str, str]],
    ) -> Any:
        """Ask for what may be injected; return an Outcome that waits, or None when all is known."""
        namespace = variant.metadata.namespace
        names: tuple[ContentName, ...] = ()
        if variant.spec.injectors:
            points = yield from self._points_of(namespace, upstream.name, upstream.identity)
            found = list(points.points)
            for revision in self.view.owned(variant.metadata.uid):
                own = yield from self._points_of(namespace, revision.name, _content_identity(revision))
                found += own.points
            names = wanted(found, variant.spec.injectors)
        seen.names = names
        requests = {}
        kinds = set()
        objects = set()
        for group, _, kind, name in names:
            request = WatchRequest(
                group=group,
                kind=kind,
                requester=f"inject-{partition}",
                content=True,
                namespace=namespace,
                name=name,
            )
            requests[watch_key(request)] = request
            kinds.add(f"{group}/{kind}")
            objects |= {okey(group, kind, namespace, name), okey(group, kind, namespace, "")}
        self.view.use(key, variant.metadata.uid, places=places, objects=objects, kinds=kinds)
        puts = self._request_puts(partition, key, seen, requests)
        unknown = [
            f"{kind} {name}"
            for group, version, kind, name in names
            if self.view.injectable(group, kind, namespace, name) is None
            and not self.view.unavailable(group, version, kind)
        ]
        if unknown or puts:
            return Outcome(
                tuple(puts),
                "waiting" if unknown else "changed",
                waiting=tuple(f"content of {what}" for what in unknown),
                again_after=None if unknown else 0,
            )
        return None

    def _points_of(self, namespace: str, name: str, identity: str) -> Any:
        """Return the injection points of a revision's content, read once per content."""
        found = self._points.get(identity)
        if found is None:
            resources = yield Get(RESOURCES, namespace, name)
            files = ((resources or {}).get("spec") or {}).get("resources") or {}
            found = self._points[identity] = injection_points(files)
            if len(self._points) > POINTS_KEPT:
                self._points.popitem(last=False)
        return found

    def _request_puts(
        self, partition: int, key: str, seen: Seen, requests: dict[str, WatchRequest]
    ) -> list[Put]:
        """Add and withdraw requests; one that another variant of the claim makes too stays."""
        users = self._users[partition]
        own = self._requests.get(f"inject-{partition}", {})
        puts = []
        for name, request in requests.items():
            users.setdefault(name, set()).add(key)
            if name not in own and name not in seen.requests:
                puts.append(Put(WATCHES, name, request))
        for name in seen.requests:
            if name not in requests:
                users[name].discard(key)
                if not users[name]:
                    del users[name]
                    puts.append(Put(WATCHES, name, None))
        seen.requests = requests
        return puts

    # ------------------------------------------------------------ ending

    def _input_digest(self, seen: Seen, variant: PackageVariant, upstream: Revision) -> str:
        """Digest everything the outcome depends on."""
        assert variant.spec.downstream is not None
        namespace = variant.metadata.namespace
        revisions = {r.name: r for r in self.view.at(namespace, variant.spec.downstream)}
        revisions |= {r.name: r for r in self.view.owned(variant.metadata.uid)}
        contents = []
        for group, version, kind, name in seen.names:
            row = self.view.injectable(group, kind, namespace, name)
            contents.append([group, kind, name, row, self.view.unavailable(group, version, kind)])
        facts = [[r.name, r.row.digest] for _, r in sorted(revisions.items())]
        return digest([variant.metadata.uid, variant.spec, upstream.identity, facts, contents])

    def _ended(
        self,
        key: str,
        seen: Seen,
        variant: PackageVariant,
        conditions: list[Condition],
        *,
        upstream: Revision | None = None,
        ensured: Ensured | None = None,
        input_digest: str = "",
        cause: float = 0,
    ) -> Outcome:
        old = seen.result if seen.result is not None and seen.result.uid == variant.metadata.uid else None
        downstreams = list(old.downstreams) if old is not None else []
        if upstream is not None and variant.spec.downstream is not None:
            if variant.spec.downstream not in downstreams:
                downstreams.append(variant.spec.downstream)
        targets = ensured.targets if ensured is not None else old.targets if old is not None else ()
        row = ResultRow(
            uid=variant.metadata.uid,
            generation=variant.metadata.generation,
            input_digest=input_digest,
            upstream=upstream.name if upstream is not None else "",
            upstream_identity=upstream.identity if upstream is not None else "",
            revisions=tuple(t.name for t in targets),
            injected=tuple(
                InjectedObject(
                    file=i.file,
                    group=i.group,
                    kind=i.kind,
                    condition_type=i.condition_type,
                    required=i.required,
                    name=i.source_name or "",
                    hash=i.hash or "",
                    reason=i.reason,
                    message=i.message,
                )
                for i in (ensured.injected if ensured is not None else ())
            ),
            downstreams=tuple(downstreams),
            targets=targets,
            conditions=tuple(conditions),
            cause=cause,
        )
        if old is not None and msgspec.structs.replace(row, cause=old.cause) == old:
            return Outcome()
        return Outcome((Put(RESULTS, key, row),), "changed")

    # ------------------------------------------------------------ deletion

    def _terminate(
        self, partition: int, key: str, seen: Seen, raw: bytes, variant: PackageVariant
    ) -> Reconciliation:
        """Let all our revisions go, look again live, and only then take the finalizer off."""
        puts = self._request_puts(partition, key, seen, {})
        if FINALIZER not in variant.metadata.finalizers:
            return Outcome(tuple(puts), "waiting", waiting=("its other finalizers",))
        for obj in (yield from self._live_owned(seen, variant)):
            after = yield from release(obj, variant)
            if after is not None and after["spec"].get("lifecycle") == "DeletionProposed":
                yield from disown(after, variant)  # else it would be collected without approval
        left = yield from self._live_owned(seen, variant)
        if left:
            names = tuple(f"PackageRevision {obj['metadata']['name']}" for obj in left)
            return Outcome(tuple(puts), "waiting", again_after=SETTLE_SECONDS, waiting=names)
        obj = msgspec.json.decode(raw)
        obj["metadata"]["finalizers"] = [f for f in obj["metadata"]["finalizers"] if f != FINALIZER]
        yield Update(VARIANT, obj)
        return Outcome(tuple(puts), "changed")

    def _live_owned(self, seen: Seen, variant: PackageVariant) -> Any:
        """List live, at every place that ever had a revision of ours, those that still are."""
        places: dict[Downstream, None] = {}
        if variant.spec.downstream is not None:
            places[variant.spec.downstream] = None
        if seen.result is not None:
            places |= dict.fromkeys(seen.result.downstreams)
        for revision in self.view.owned(variant.metadata.uid):
            places[Downstream(repo=revision.facts.repository, package=revision.facts.package)] = None
        found = []
        for place in places:
            live = yield from list_place(variant.metadata.namespace, place)
            found += [obj for obj in live if owned_by(obj, variant.metadata.uid)]
        return found


def _content_identity(revision: Revision) -> str:
    return f"{revision.name}@{revision.row.uid}@{revision.facts.self_commit or revision.row.digest}"


def _condition(kind: str, status: bool, reason: str, message: str, variant: PackageVariant) -> Condition:
    return Condition(
        type=kind,
        status="True" if status else "False",
        reason=reason,
        message=message,
        observed_generation=variant.metadata.generation,
    )
