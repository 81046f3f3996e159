"""Mutations of the decision logic: defects put into a copy of the code, each found by tests that it names.

`make mutants` (or `python -m tests.mutants [NAME...]`) runs all. The tables:

- `shell.toml`: claims, tables, the worker and ingest
- `core.toml`: selectors, index, tables, render, conditions, inject
- `removal.toml`: unroll and the renderer
"""
