"""Brings a set's contexts up to date before a pass, or reports what prevents it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from pvbus.core.kernel.keys import digest
from pvbus.core.kernel.records import ObjectRow
from pvbus.core.variants.missing import missing_part
from pvbus.core.variants.pacing import COSTLY, TURN_COST
from pvbus.core.variants.template import compile_ahead, compile_targets
from pvbus.core.variants.unroll.contexts import Contexts, root_of
from pvbus.core.variants.unroll.facts import STATIC_KINDS, SetFacts
from pvbus.core.variants.unroll.report import StopError
from pvbus.core.variants.unroll.state import Building, Compiling, SetState
from pvbus.core.variants.unroll.view import UnrollView

T = TypeVar("T")


class Preparing:
    """Evaluates the targets of sets.

    set_evaluations, target_evaluations: how often sets and targets were evaluated, for tests of cost
    spent: what the last turn cost, 0 if it was not costly
    """

    def __init__(self, view: UnrollView, turn_targets: int) -> None:
        """Prepare for the first turn. turn_targets: how many targets a turn evaluates at most."""
        self.spent = 0
        self.set_evaluations = 0
        self.target_evaluations = 0
        self._view = view
        self._turn_targets = turn_targets

    def prepare(self, state: SetState) -> bool:
        """Bring the contexts up to date; False requests another pass. Raises StopError."""
        self.spent = 0
        if not state.is_current:
            state.is_current = self._evaluate(state)
        return state.is_current and self._refresh(state)

    def _evaluate(self, state: SetState) -> bool:
        """Check the set, its upstream and its kinds; if they changed, evaluate the next of all targets.

        Returns whether all targets are evaluated. Raises StopError.
        """
        obj, facts = state.obj, state.facts
        assert obj is not None and facts is not None
        self._use(state, facts)
        if facts.problem:
            raise StopError("ValidationError", facts.problem)
        self._require_ok(STATIC_KINDS, obj.metadata.namespace)
        upstream = self._upstream(state)
        self._require_served(facts.kinds, obj.metadata.namespace)
        if state.compiled is None or state.compiled_for != facts.spec_digest:
            if not self._compile(state, facts):
                return False
            state.compiled, state.compiling = compile_targets(obj.spec), None
            state.compiled_for = facts.spec_digest
        root = root_of(*upstream)
        inputs_digest = digest([obj.metadata.uid, facts.spec_digest, root])
        if inputs_digest == state.inputs_digest:
            return True
        if state.building is None or state.building.inputs_digest != inputs_digest:
            self._begin(state, Contexts(state.skey, obj, state.compiled, root, self._view), inputs_digest)
            self._use(state, facts)
        return self._build(state)

    def _use(self, state: SetState, facts: SetFacts) -> None:
        """Register the dependencies of the set, whether or not they exist."""
        obj = state.obj
        assert obj is not None
        self._view.use_uid(obj.metadata.uid, state.skey)
        self._view.use_kinds((*STATIC_KINDS, *facts.kinds), state.skey)
        if obj.spec.upstream is not None:
            self._view.use_upstream(obj.metadata.namespace, obj.spec.upstream, state.skey)

    def _upstream(self, state: SetState) -> tuple[str, ObjectRow]:
        obj = state.obj
        assert obj is not None and obj.spec.upstream is not None
        upstream = self._view.upstream(obj.metadata.namespace, obj.spec.upstream)
        if upstream is None:
            raise StopError("UpstreamNotFound", self._missing(state))
        return upstream

    def _missing(self, state: SetState) -> str:
        """Say which of Repository, package and revision of an upstream is missing.

        The first sentence is Porch's. Source: Porch v1.5.8, packagevariantset_controller.go.
        """
        obj = state.obj
        assert obj is not None and obj.spec.upstream is not None
        upstream, namespace = obj.spec.upstream, obj.metadata.namespace
        message = (
            f"could not find upstream package revision '{upstream.package}/{upstream.revision}' "
            f"in repo '{upstream.repo}'"
        )
        has_repository = self._view.repository(namespace, upstream.repo) is not None
        revisions = self._view.revisions_of(namespace, upstream)
        part = missing_part(upstream, namespace, has_repository=has_repository, revisions=revisions)
        return f"{message}: {part}"

    def _require_ok(self, kinds: Iterable[str], namespace: str) -> None:
        for kind in kinds:
            if not self._view.sync.ok(kind, namespace):
                self._require_covered(kind, namespace)
                marker = self._view.sync.marker(kind)
                if marker is not None and marker.state == "unavailable":
                    raise StopError("UnexpectedError", f"{kind} cannot be read: {marker.message}")
                raise StopError("", f"{kind} is being listed")

    def _require_covered(self, kind: str, namespace: str) -> None:
        problem = self._view.sync.problem(kind, namespace)
        if problem:
            raise StopError("UnexpectedError", f"{kind} cannot be read in {namespace}: {problem}")

    def _require_served(self, kinds: Mapping[str, tuple[str, ...]], namespace: str) -> None:
        for kind, versions in kinds.items():
            marker = self._view.sync.marker(kind)
            group, _, name = kind.rpartition("/")
            if marker is None or marker.state in ("syncing", "unwatched"):
                raise StopError("", f"{kind} is being listed")
            served = [version for version in versions if not version or version in marker.versions]
            asked = f"{group}/{versions[0]}" if group else versions[0]
            unknown = f'no matches for kind "{name}" in version "{asked}"'
            if marker.state == "unavailable":
                if marker.message and not marker.message.startswith("no matches"):
                    raise StopError("UnexpectedError", f"{kind} cannot be read: {marker.message}")
                raise StopError("NoMatchingTargets", unknown)
            if not served:
                raise StopError("NoMatchingTargets", unknown)
            self._require_covered(kind, namespace)

    def _begin(self, state: SetState, contexts: Contexts, inputs_digest: str) -> None:
        """Begin to evaluate all targets of a new generation (or upstream)."""
        self._view.forget(state.skey)
        self.set_evaluations += 1
        state.contexts, state.inputs_digest = None, ""
        state.building = Building(inputs_digest, contexts, contexts.build())
        state.objects.clear()
        state.repositories.clear()

    def _compile(self, state: SetState, facts: SetFacts) -> bool:
        """Compile some more expressions; return whether all are compiled."""
        assert state.obj is not None
        if state.compiling is None or state.compiling.spec_digest != facts.spec_digest:
            templates = (target.template for target in state.obj.spec.targets)
            state.compiling = Compiling(facts.spec_digest, compile_ahead(templates))
        spent = 0
        for cost in state.compiling.rest:
            spent += cost
            if spent >= TURN_COST:
                self.spent = spent
                return False
        return True

    def _build(self, state: SetState) -> bool:
        """Evaluate some more targets; return whether all are evaluated."""
        assert state.building is not None and state.obj is not None
        building, state.building = state.building, None  # after a defect, nothing half built is left
        contexts = building.contexts
        if not contexts.index() or not self._take_turn(contexts, building.rest, lambda _: None):
            state.building = building
            return False
        state.contexts, state.inputs_digest = contexts, building.inputs_digest
        state.touched.add(row.downstream for row in state.children.rows.values())
        state.touched.add(contexts.by_downstream)
        state.backlog, state.deferred = True, set()
        state.seen.update(self._view.owned(state.obj.metadata.uid, state.obj.metadata.namespace))
        return True

    def _refresh(self, state: SetState) -> bool:
        """Evaluate some more targets of changed objects and Repositories; return whether all are."""
        contexts = state.contexts
        assert contexts is not None
        if state.objects or state.repositories:
            state.touched.add(contexts.note(state.objects, state.repositories))
            state.objects.clear()
            state.repositories.clear()
            self.set_evaluations += 1
        return self._take_turn(contexts, contexts.refresh(), state.touched.add)

    def _take_turn(self, contexts: Contexts, rest: Iterator[T], take: Callable[[T], None]) -> bool:
        """Evaluate contexts until one pass has enough of them; return whether all are evaluated."""
        begun, count, is_done = contexts.spent, 0, True
        for count, evaluated in enumerate(rest, start=1):
            take(evaluated)
            self.target_evaluations += 1
            if count == self._turn_targets or contexts.spent - begun >= TURN_COST:
                is_done = False
                break
        spent = contexts.spent - begun
        if count and spent // count >= COSTLY:
            self.spent = spent
        return is_done
