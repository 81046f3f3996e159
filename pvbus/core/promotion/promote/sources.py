"""Where the evidence of one target is, as its policy says: in its conditions, an object, and a metric."""

from collections.abc import Mapping

from pvbus.core.api.rollouts import RolloutPolicySpec
from pvbus.core.api.variants import Condition, PackageVariant
from pvbus.core.cel import CelError, compile_expression
from pvbus.core.kernel.keys import digest
from pvbus.core.kernel.messages import cut, part
from pvbus.core.kernel.records import EvidenceSource, SeenCondition
from pvbus.core.promotion.promote.view import PublishedRevision
from pvbus.core.promotion.protocol.evidence import (
    TARGET_VARIABLES,
    Published,
    names,
    other_conditions,
    wants_evidence,
)

NOTHING_PUBLISHED = Published("")


def evidence_source(
    spec: RolloutPolicySpec,
    variant: PackageVariant,
    labels: Mapping[str, str],
    published: PublishedRevision | None,
) -> EvidenceSource | None:
    """Return where the evidence of a target is, None if its policy asks for nothing but Ready.

    labels: of the target, which expressions read
    """
    if not wants_evidence(spec):
        return None
    target = {"name": variant.metadata.name, "labels": dict(labels)}
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
    revision = Published(published.name, published.commit) if published is not None else NOTHING_PUBLISHED
    wanted = other_conditions(spec)
    return EvidenceSource(
        commit=revision.commit,
        namespace=texts.get("object.namespace", ""),
        name=texts.get("object.name", ""),
        query=texts.get("query.expression", ""),
        problem=cut("; ".join(problems)),
        conditions=tuple(_seen(c, revision) for c in variant.status.conditions if c.type in wanted),
    )


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


def _seen(condition: Condition, revision: Published) -> SeenCondition:
    words = f"{condition.type} is {condition.status} ({condition.reason}): {condition.message}"
    return SeenCondition(
        type=condition.type,
        status=condition.status,
        is_bound=names(condition.message, revision),
        words=part(words),
        digest=digest(condition),
    )
