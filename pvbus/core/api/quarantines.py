"""Quarantine of the group `promotion.pvbus.dev`: what failed, and is not to go out again.

Same rules as `pvbus.core.api.variants`: frozen Structs, unknown fields ignored. What a quarantine covers is
decided in `pvbus.core.promotion.protocol.quarantines`.
"""

from pvbus.core.api.promotion import PROMOTION_API
from pvbus.core.api.variants import ApiStruct, ObjectMeta


class QuarantinedUpstream(ApiStruct, frozen=True, kw_only=True):
    """revision: `REPOSITORY/PACKAGE@REVISION`. files: the digest of its files, "" if that is not known. good:
    the last good revision in the same form, "" for none."""

    revision: str = ""
    files: str = ""
    good: str = ""


class QuarantinedCombination(ApiStruct, frozen=True, kw_only=True):
    """upstreams: the revisions of all members of a train, each `REPOSITORY/PACKAGE@REVISION`."""

    upstreams: tuple[str, ...] = ()


class QuarantineRelease(ApiStruct, frozen=True, kw_only=True):
    """The end of a quarantine. by: "" if the user is not known. at: RFC 3339 in UTC."""

    reason: str = ""
    by: str = ""
    at: str = ""


class QuarantineSpec(ApiStruct, frozen=True, kw_only=True):
    """sets: names of PackageVariantSets, none for every PackageVariant of the namespace. contents: digests of
    the targets' packages. released: None while the quarantine lasts."""

    sets: tuple[str, ...] = ()
    upstreams: tuple[QuarantinedUpstream, ...] = ()
    contents: tuple[str, ...] = ()
    combinations: tuple[QuarantinedCombination, ...] = ()
    policy: str = ""
    attempt: int = 0
    reason: str = ""
    message: str = ""
    released: QuarantineRelease | None = None


class Quarantine(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PROMOTION_API
    kind: str = "Quarantine"
    metadata: ObjectMeta = ObjectMeta()
    spec: QuarantineSpec = QuarantineSpec()
