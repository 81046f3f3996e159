"""Mutations of the decision logic: each is a defect, put into a copy of the code, that a named test must find.

`make mutants` (or `python -m tests.mutants [NAME...]`) runs all. The tables:

- `shell`: claims, tables, the worker and ingest
- `core`: selectors, index, tables, render, conditions, inject
- `removal`: unroll and the renderer
"""
