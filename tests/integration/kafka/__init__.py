"""The Kafka bus beyond the contract: the library's defects, brokers that fail, processes that die."""

import tests.contract.bus  # noqa: F401  (first: it has the asserts of the contract suite rewritten)
