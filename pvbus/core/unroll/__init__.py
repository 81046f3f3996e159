"""Target unrolling: from a PackageVariantSet and the observed objects to one row per child.

`view` holds the broadcast tables and their reverse maps, `contexts` a set's targets and what they
evaluate to, `children` names, removals and the guard, `controller` the decision for one set.
"""
