"""Mutations of the decision logic: defects put into a copy of the code, each found by tests that it names.

`make mutants` (or `python -m tests.mutants [NAME...]`) runs all. The tables:

- `shell.toml`: leases, tables, the worker and ingest
- `core.toml`: selectors, index, tables, render, conditions, inject
- `removal.toml`: unroll and the renderer
- `checker.toml`: the checks of a chaos run
- `apply.toml`: server-side apply and the owners of fields
- `aggregated.toml`: whom the package store behind kube-apiserver believes, and what it asks for
- `promotion.toml`: promote and release
- `sources.toml`: sources of packages: archives, references, logins, registries, git, the cache
- `lockgroups.toml`: what resolve decides on after a change
- `carvel.toml`: decisions on Carvel's packages, and the admission of PackageInstalls
- `accounts.toml`: the services' accounts on the embedded API server
- `families.toml`: what objects of packages say, and their statuses
- `locking.toml`: the decisions of resolve
- `establish.toml`: what establish writes, and what it leaves alone
- `web.toml`: who may see the web page, and what a page gets

Some defects of earlier code have no counterpart any more. Nothing asks whether a set has settled before an
order: orders are looked at only in a pass that had no other row to write. A new holder of a lease cannot
believe the answer of the one before, because the check lives in memory only; its nonce is mutated instead.
A request that stays after its order is dropped by the next pass anyway; that requests are dropped at all is
mutated instead.
"""
