"""Carvel's packages: what is known of them, and what is asked for every PackageInstall.

`facts` has what is known, `problem` the resolver's problem of a namespace, `restrictions` the
installationType, `structure` the check of an API's fields, and `objects` reads objects. All of it is pure;
`pvbus.core.platform.resolve.carvel` decides.
"""

from pvbus.core.platform.packaging.carvel.facts import Facts, KnownPackage
from pvbus.core.platform.packaging.carvel.objects import (
    facts_of,
    known_package,
    served_by,
)
from pvbus.core.platform.packaging.carvel.restrictions import admission

__all__ = [
    "Facts",
    "KnownPackage",
    "admission",
    "facts_of",
    "known_package",
    "served_by",
]
