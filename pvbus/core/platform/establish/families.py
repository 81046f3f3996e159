"""The two families of installs: what differs between them, beside how a version's objects are written.

`crossplane` and `carvel` write the objects; everything else asks here.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pvbus.core.kernel.effects import KindRef
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.packagerows import OBJECT_OWNED, SOURCE_FAILS, UNVERIFIED, WAITING
from pvbus.core.platform.packaging.reading import CROSSPLANE_OWNER, INSTALL_GROUP, OWNER, PKG_GROUP


class InstallFamily(NamedTuple):
    """A family of installs.

    group: the API group of its kinds
    versions: kind of an install -> the version that pvbus reads and writes, of its revisions, too
    owner: the annotation of an install that was made for others; it names the first of its holders
    passed_on: fields of a spec that an owner passes on and may take back: what the template lacks goes
    installer: who else installs it
    program: the name of their program in managedFields. The command line of Crossplane has the same name, but
        writes no status.
    switch: the field of a spec that leaves dependencies to pvbus, "" without one
    success: the conditions by which success is reported, the last one for the whole
    installed: the reason of a notice that it is installed
    words: the family's word for a reason of ours, where it has one
    has_revisions: whether its versions are revisions, with objects and statuses of their own; if not, the
        status of an install has exactly one condition
    """

    group: str
    versions: Mapping[str, str]
    owner: str
    installer: str
    program: str
    success: tuple[str, ...]
    installed: str
    words: Mapping[str, str] = {}
    passed_on: tuple[str, ...] = ()
    switch: str = ""
    has_revisions: bool = False


CROSSPLANE = InstallFamily(
    group=PKG_GROUP,
    versions={"Package": "v1beta1", "Provider": "v1", "Configuration": "v1", "Function": "v1"},
    owner=CROSSPLANE_OWNER,
    installer="Crossplane",
    program="crossplane",
    success=("Installed", "Healthy"),
    installed="InstallPackageRevision",
    words={
        **dict.fromkeys(("Conflict", "SearchLimit", "DuplicatePackage"), "ResolveDependencies"),
        **dict.fromkeys(("InvalidPackage", "InvalidContent"), "ParsePackage"),
        **dict.fromkeys((WAITING, SOURCE_FAILS, "UnknownContent"), "UnpackPackage"),
        OBJECT_OWNED: "SyncPackage",
        UNVERIFIED: "VerifySignature",
    },
    switch="skipDependencyResolution",
    has_revisions=True,
)
CARVEL = InstallFamily(
    group=INSTALL_GROUP,
    versions={"PackageInstall": "v1alpha1"},
    owner=OWNER,
    installer="kapp-controller",
    program="kapp-controller",
    success=("ReconcileSucceeded",),
    installed="ReconcileSucceeded",
    passed_on=("serviceAccountName", "values"),
)
FAMILIES = {"crossplane": CROSSPLANE, "carvel": CARVEL}
"""By the name that an `Install` has."""


def family_of(key: ObjectKey) -> InstallFamily:
    """Return the family of an install's key."""
    return CARVEL if key.group == CARVEL.group else CROSSPLANE


def kind_of_key(key: ObjectKey) -> KindRef:
    """Return the kind of an install, at the version that pvbus reads and writes."""
    return KindRef(key.group, key.kind, family_of(key).versions.get(key.kind, ""))
