"""Injection: one PackageVariant, one draft with context, pipeline and configuration in it.

`view` holds revisions, Repositories and injectable objects with their reverse maps, `requests` whose
content is asked for, `state` what is remembered of a variant, `ensure` the state machine that makes and
mutates drafts, `owning` how revisions are checked, written, taken over and let go, `former` whose they
were, `holding` what the hold annotation stops, `report` what is told, `controller` the decision for one
key.
"""
