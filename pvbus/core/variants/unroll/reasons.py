"""Says why a set has no use for a child any more."""

from pvbus.core.api.variants import PackageVariantSet
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.messages import part
from pvbus.core.kernel.records import ChildRow
from pvbus.core.variants.unroll.contexts import Contexts, describe_object, selected_kinds


def removal_reason(obj: PackageVariantSet, contexts: Contexts, row: ChildRow) -> str:
    """Return why a child is removed, as the targets and their objects are at the order.

    row: of the child, which no target wants.
    """
    meta = obj.metadata
    confirmed = "; a person confirmed it" if row.hold else ""
    by = f"PackageVariantSet {meta.namespace}/{meta.name} (generation {meta.generation}) removed it"
    return part(f"{by}: {_cause(contexts, row)}{confirmed}")


def _cause(contexts: Contexts, row: ChildRow) -> str:
    downstream = f"package {row.downstream.package} in repository {row.downstream.repo}"
    if not row.okey:
        return f"no target names {downstream} any more"
    name, key = describe_object(row.okey), ObjectKey.parse(row.okey)
    if f"{key.group}/{key.kind}" in selected_kinds(contexts.spec) and row.okey not in contexts.view.objects:
        return f"{name}, the object of its target, is deleted"
    others = (contexts.by_key[context].downstream for context in sorted(contexts.by_object.get(row.okey, ())))
    renamed = next(filter(None, others), None)
    if renamed is not None:
        return f"{name} gives package {renamed.package} in repository {renamed.repo} now, before {downstream}"
    return f"no target selects {name} any more"
