"""Readiness of a package revision: which of its gates are not met, and why.

A gate names a condition type. It is met if exactly one condition has this type, and its status is True. The
commands and the package store ask here, so that they never disagree.

Source of gates and conditions: kpt v1.0.0-beta.62, pkg/api/kptfile/v1/types.go. Porch's commands take one of
several conditions of a type; here they count as not met, because nobody can say which one is right.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from pvbus.core.errors import PermanentError
from pvbus.core.kernel import tasks
from pvbus.core.kernel.keys import CONDITION_ORDER, GATE_STEPS
from pvbus.core.kernel.messages import part

Object = Mapping[str, Any]
NO_QUESTIONS: Mapping[str, str] = {}
Step = Literal["propose", "approve"]
Order = Mapping[str, tuple[str, ...]]
"""By condition type, the types that come before it."""


class Unmet(NamedTuple):
    """A gate that is not met. why: for people."""

    type: str
    why: str

    def __str__(self) -> str:
        return f"{self.type} ({self.why})"


def unmet_gates(
    gates: Iterable[str], conditions: Iterable[Object], questions: Mapping[str, str] = NO_QUESTIONS
) -> list[Unmet]:
    """Return the gates that are not met, each once, in order.

    gates: the condition types that gates name
    questions: condition type -> the question that people are asked
    """
    by_type: dict[str, list[Object]] = {}
    for condition in conditions:
        by_type.setdefault(str(condition.get("type")), []).append(condition)
    gated = ((gate, _why(by_type.get(gate, []), questions.get(gate, ""))) for gate in dict.fromkeys(gates))
    return [Unmet(gate, why) for gate, why in gated if why]


def unmet_of(revision: Object) -> list[Unmet]:
    """Return the gates of a PackageRevision that are not met, of those for its next step."""
    annotations = tasks.kptfile_annotations(revision)
    required = gates_for(next_step(revision), gates_of(revision), annotations)
    return unmet_gates(required, conditions_of(revision), tasks.questions(annotations))


def gates_of(revision: Object) -> list[str]:
    """Return the condition types that a PackageRevision requires, for any step."""
    gates = (revision.get("spec") or {}).get("readinessGates") or ()
    return [str(gate.get("conditionType")) for gate in gates]


# ---------------------------------------------------------------- gates for one step


def next_step(revision: Object) -> Step:
    """Return the step that a PackageRevision is before: a proposal may be approved, all else proposed."""
    return "approve" if (revision.get("spec") or {}).get("lifecycle") == "Proposed" else "propose"


def gates_for(step: Step, gates: Iterable[str], annotations: Mapping[str, str]) -> list[str]:
    """Return the gates that a step requires. annotations: of the package's Kptfile."""
    gates = list(gates)
    steps = steps_in(annotations, gates)
    return [gate for gate in gates if steps.get(gate, step) == step]


def steps_in(annotations: Mapping[str, str], gates: Iterable[str]) -> dict[str, Step]:
    """Return the step of each gate that is for one step only.

    They are a JSON object in an annotation of the Kptfile, because kpt refuses further fields of a gate. An
    annotation that cannot be read leaves each gate to both steps.
    """
    text = annotations.get(GATE_STEPS)
    try:
        steps = msgspec.json.decode(text, type=dict[str, Step]) if text else {}
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return {gate: steps[gate] for gate in gates if gate in steps}


def steps_annotation(steps: Mapping[str, str]) -> dict[str, str]:
    """Return the annotation that says these steps, {} for none."""
    return {GATE_STEPS: msgspec.json.encode(steps).decode()} if steps else {}


def open_on_proposals(revision: Object) -> frozenset[str]:
    """Return the condition types that change while a PackageRevision is Proposed: those of gates that only
    its approval requires. All others are what it was proposed with."""
    steps = steps_in(tasks.kptfile_annotations(revision), gates_of(revision))
    return frozenset(gate for gate, step in steps.items() if step == "approve")


def conditions_of(revision: Object) -> list[Object]:
    return list((revision.get("status") or {}).get("conditions") or ())


def words(unmet: Iterable[Unmet]) -> str:
    return f"unmet readiness gates: {', '.join(map(str, unmet))}"


def _why(conditions: list[Object], question: str) -> str:
    """Return why a gate with these conditions is not met, "" if it is. An open question comes first: a
    blueprint may ask without a condition, and an upgrade replaces the condition that has it."""
    if not conditions:
        return part(question) or "nothing was reported of it yet"
    if len(conditions) > 1:
        return f"{len(conditions)} conditions have this type: set it anew to leave one"
    (condition,) = conditions
    status = condition.get("status")
    if status == "True":
        return ""
    said = str(condition.get("message") or condition.get("reason") or f"its status is {status}")
    if not question or status in tasks.ANSWERS or said == question:
        return part(said)
    return part(f"{question}; {said}")


def merged(present: Iterable[Object], changes: Iterable[Object]) -> list[Object]:
    """Return conditions with some replaced by type, in their position; new types come last.

    All others stay as they are, so that writers of different types agree. Of the changed types one remains.
    """
    wanted = {str(change["type"]): change for change in changes}
    result: list[Object] = []
    placed: set[str] = set()
    for condition in present:
        type_ = str(condition.get("type"))
        if type_ not in wanted:
            result.append(condition)
        elif type_ not in placed:
            result.append(wanted[type_])
            placed.add(type_)
    return [*result, *(change for type_, change in wanted.items() if type_ not in placed)]


# ---------------------------------------------------------------- conditions that depend on others


def predecessors(revision: Object) -> Order:
    """Return the order of conditions that a package declares.

    They are a JSON object in an annotation of the Kptfile, because kpt refuses further fields of a gate or
    a condition. Raises: PermanentError("InvalidOrder").
    """
    metadata = (revision.get("spec") or {}).get("packageMetadata") or {}
    return order_in(metadata.get("annotations") or {})


def order_in(annotations: Mapping[str, str]) -> Order:
    """Return the order that the annotations of a Kptfile declare. Raises: PermanentError("InvalidOrder")."""
    text = annotations.get(CONDITION_ORDER)
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, tuple[str, ...]])
    except msgspec.MsgspecError as error:
        example = '{"Deployed": ["Certified", "Tested"]}'
        raise PermanentError(
            f"the package's annotation {CONDITION_ORDER} is not like {example}: {error}",
            reason="InvalidOrder",
        ) from None


def awaited(after: Order, conditions: Iterable[Object], type_: str) -> list[Unmet]:
    """Return what a condition comes after, directly or through others, and what is not True of it.

    A condition in a circle waits for itself.
    """
    before = all_before(after, type_)
    if type_ in before:
        return [Unmet(type_, f"it comes after itself: correct {CONDITION_ORDER}")]
    return unmet_gates(before, conditions)


def all_before(after: Order, type_: str) -> list[str]:
    """Return what a condition comes after, directly or through others; in a circle, itself too."""
    earlier: dict[str, None] = {}
    left = list(after.get(type_, ()))
    while left:
        before = left.pop(0)
        if before not in earlier:
            earlier[before] = None
            left += after.get(before, ())
    return list(earlier)
