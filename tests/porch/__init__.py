"""Porch's own client, tests of the API and controllers against the package store, as a person runs them.

They run with PVBUS_TEST_PORCH=1 only: building them takes minutes. Where pvbus is meant to differ is in
`expected`.
"""
