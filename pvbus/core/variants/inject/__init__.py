"""Injection: one PackageVariant, one draft with context, pipeline and configuration in it.

`view` holds revisions, Repositories and injectable objects with their reverse maps, `requests` the
requests for injectable content, `state` the records of a variant's attempts, `ensure` the state machine that
makes and mutates drafts. `owning` checks, writes, adopts and releases revisions, `former` finds their
former owners, `holding` implements the hold annotation, `report` builds the result row, `controller`
decides for one key.
"""
