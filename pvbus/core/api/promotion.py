"""API types of the group `promotion.pvbus.dev`: who takes part before a draft is proposed."""

from pvbus.core.api.variants import ApiStruct, LabelSelector, ObjectMeta

PROMOTION_GROUP = "promotion.pvbus.dev"
PROMOTION_API = f"{PROMOTION_GROUP}/v1alpha1"
SPECIALIZER_NAME_CHARACTERS_MAX = 63
"""The name is part of the name of an annotation."""
DEADLINE_SECONDS = 600
OPEN = "Open"
CLOSED = "Closed"


class PackageSpecializerSpec(ApiStruct, frozen=True, kw_only=True):
    """A program that works on drafts. An empty selector selects every draft of the namespace.

    condition_types: those that the program reports. deadline_seconds: from the creation of the revision.
    after_deadline: `Open` or `Closed`.
    """

    selector: LabelSelector = LabelSelector()
    condition_types: tuple[str, ...] = ()
    deadline_seconds: int = DEADLINE_SECONDS
    after_deadline: str = CLOSED


class PackageSpecializer(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PROMOTION_API
    kind: str = "PackageSpecializer"
    metadata: ObjectMeta = ObjectMeta()
    spec: PackageSpecializerSpec = PackageSpecializerSpec()
