"""The Kafkas that the contract runs on, besides SQLite."""

from tests.tools.kafka import kafka_one, kafka_three

__all__ = ["kafka_one", "kafka_three"]
