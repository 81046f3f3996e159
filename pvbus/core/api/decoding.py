"""Decodes PackageVariantSets, also those that an old Porch stored.

The API server shows a set that is stored as v1alpha1 as v1alpha2 with its old spec, as the definition has no
conversion. It still has a name, a generation and conditions, which can say what is wrong with it.
"""

import msgspec

from pvbus.core.api.v1alpha1 import OldPackageVariantSet
from pvbus.core.api.variants import SET_API, ObjectMeta, PackageVariantSet, PackageVariantSetStatus

_OLD_SHAPE = (
    "it has the form of v1alpha1, which nothing converts: write it anew in the form of "
    f"{SET_API.rpartition('/')[2]}, with upstream.repo, upstream.package and upstream.revision, and with "
    "repositories, repositorySelector or objectSelector in each target; its PackageVariants stay as they are "
    "until then"
)


class _Headed(msgspec.Struct):
    metadata: ObjectMeta = ObjectMeta()


class _Reported(msgspec.Struct):
    status: PackageVariantSetStatus = PackageVariantSetStatus()


_set = msgspec.json.Decoder(PackageVariantSet)
_old = msgspec.json.Decoder(OldPackageVariantSet)
_headed = msgspec.json.Decoder(_Headed)
_reported = msgspec.json.Decoder(_Reported)


def decode_set(value: bytes) -> tuple[PackageVariantSet, str]:
    """Return a set, and why its spec cannot be read, "" if it can. If not, the set has an empty spec.

    Raises msgspec.MsgspecError if it has no metadata that can be read, either.
    """
    try:
        return _set.decode(value), ""
    except msgspec.ValidationError as exc:
        metadata = _headed.decode(value).metadata
        if not metadata.name:
            raise
        problem = f"the spec cannot be read: {exc}"
        if _is_old(value):
            problem = f"{problem}; {_OLD_SHAPE}"
        return PackageVariantSet(metadata=metadata, status=_status_of(value)), problem


def _is_old(value: bytes) -> bool:
    try:
        upstream = _old.decode(value).spec.upstream
    except msgspec.ValidationError:
        return False
    return upstream is not None and upstream.package is not None


def _status_of(value: bytes) -> PackageVariantSetStatus:
    try:
        return _reported.decode(value).status
    except msgspec.ValidationError:
        return PackageVariantSetStatus()
