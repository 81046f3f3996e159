"""Carvel's packages: what is decided for every PackageInstall.

`facts` has what is known, `problem` the resolver's problem of a namespace, `deciding` the lock, `reports` the
state of dependencies, `restrictions` the installationType, `structure` the check of an API's fields,
and `objects` reads objects. All of it is pure.
"""

from pvbus.core.platform.packaging.carvel.deciding import decide
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
    "decide",
    "facts_of",
    "known_package",
    "served_by",
]
