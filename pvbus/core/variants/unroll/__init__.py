"""Target unrolling: from a PackageVariantSet and the observed objects to one row per child.

`view` holds the broadcast tables and their reverse maps, `contexts` a set's targets and their
downstreams, `children` names and rows, `states` the transitions of a child, `removal` and `orders` when
and how children are removed, `controller` the decision for one set.
"""
