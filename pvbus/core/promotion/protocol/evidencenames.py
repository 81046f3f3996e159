"""Which object and which metric the evidence of each target is, and what is wrong with that. Pure.

An object proves one target, and is one object: two targets with the same, or one name in several namespaces,
would hold a rollout for ever, so it is said before one begins.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pvbus.core.api.rollouts import RolloutPolicySpec
from pvbus.core.cel import CelError, compile_expression
from pvbus.core.kernel.messages import first_of, part
from pvbus.core.promotion.protocol.evidence import AMBIGUOUS, INVALID, SHARED, TARGET_VARIABLES

SHOWN_MAX = 3


def evidence_texts(
    spec: RolloutPolicySpec, name: str, labels: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return what the expressions of a policy's evidence give for a target, by field, and what is wrong.

    labels: of the target, which expressions read
    """
    target = {"name": name, "labels": dict(labels)}
    texts, problems = {}, []
    for field, expression in _expressions(spec).items():
        try:
            program = compile_expression(expression, variables=TARGET_VARIABLES)
            texts[field] = program.evaluate({"target": target})
        except CelError as exc:
            problems.append(f"spec.evidence.{field} cannot be evaluated: {part(str(exc))}")
            continue
        if not texts[field]:
            problems.append(f"spec.evidence.{field} gives an empty text")
    return texts, problems


def _expressions(spec: RolloutPolicySpec) -> dict[str, str]:
    """Return the expressions over the target, by field."""
    found, query = spec.evidence.object, spec.evidence.query
    texts = {}
    if found is not None:
        texts["object.name"] = found.name
        if found.namespace:
            texts["object.namespace"] = found.namespace
    if query is not None:
        texts["query.expression"] = query.expression
    return texts


def evidence_warnings(
    spec: RolloutPolicySpec,
    targets: Mapping[str, Mapping[str, str]],
    objects: Iterable[Mapping[str, Any]] = (),
) -> Iterator[str]:
    """Yield why evidence would never be known, each with the reason that a rollout would show.

    targets: name -> labels
    objects: those of the evidence's kind, as far as they are known
    """
    rule = spec.evidence.object
    if rule is None:
        return
    named: dict[tuple[str, str], list[str]] = {}
    for target, labels in targets.items():
        texts, problems = evidence_texts(spec, target, labels)
        for problem in problems:
            yield f"{INVALID}: {target}: {problem}"
        if name := texts.get("object.name", ""):
            named.setdefault((texts.get("object.namespace", ""), name), []).append(target)
    if not targets and "target" not in rule.name + rule.namespace:
        yield f"{SHARED}: {rule.kind} {rule.name} is the evidence of every target: give each its own"
    places: dict[str, set[str]] = {}
    for each in objects:
        places.setdefault(each["metadata"]["name"], set()).add(each["metadata"].get("namespace", ""))
    for (namespace, name), sharers in named.items():
        shown = f"{rule.kind} {'/'.join(filter(None, (namespace, name)))}"
        if len(sharers) > 1:
            listed = first_of(sorted(sharers), SHOWN_MAX)
            yield f"{SHARED}: {shown} is the evidence of {len(sharers)} targets ({listed}): give each its own"
        if not namespace and len(places.get(name, ())) > 1:
            where = ", ".join(sorted(places[name]))
            yield f"{AMBIGUOUS}: {shown} exists in several namespaces ({where}): give object.namespace"
