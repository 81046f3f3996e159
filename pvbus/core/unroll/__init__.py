"""Target unrolling: from a PackageVariantSet and the observed objects to one row per child.

`view` holds the broadcast tables and their reverse maps, `contexts` a set's targets and what they
evaluate to, `children` names and rows, `states` which state of a child follows which, `removal` and
`orders` when and how children are removed, `controller` the decision for one set.
"""
