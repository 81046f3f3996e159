"""Porch's own client, tests of the API, controllers and server against pvbus, as a person runs them.

They run with PVBUS_TEST_PORCH=1 only: building them takes minutes. Where pvbus is meant to differ is in
`expected`, and what only a reading of git can compare in `test_batches`.
"""
