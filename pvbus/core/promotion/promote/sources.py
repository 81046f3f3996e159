"""Where the evidence of one target is, as its policy says: in its conditions, an object, and a metric.

Apart from `candidates`, as it alone knows the texts of conditions, and that module is long enough.
"""

from collections.abc import Mapping

from pvbus.core.api.rollouts import RolloutPolicySpec
from pvbus.core.api.variants import Condition, PackageVariant
from pvbus.core.kernel.keys import digest
from pvbus.core.kernel.messages import cut, part
from pvbus.core.kernel.promotionrows import EvidenceSource, SeenCondition
from pvbus.core.promotion.promote.view import PublishedRevision
from pvbus.core.promotion.protocol.evidence import Published, names, other_conditions, wants_evidence
from pvbus.core.promotion.protocol.evidencenames import evidence_texts

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
    texts, problems = evidence_texts(spec, variant.metadata.name, labels)
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


def _seen(condition: Condition, revision: Published) -> SeenCondition:
    words = f"{condition.type} is {condition.status} ({condition.reason}): {condition.message}"
    return SeenCondition(
        type=condition.type,
        status=condition.status,
        is_bound=names(condition.message, revision),
        words=part(words),
        digest=digest(condition),
    )
