"""Injection: one PackageVariant, one draft with context, pipeline and configuration in it.

`view` holds revisions, Repositories and injectable objects with their reverse maps, `downstream`
the choice among existing revisions, `ensure` the state machine that makes and mutates drafts,
`deletion` the end of a PackageVariant, `controller` the decision for one key.
"""
