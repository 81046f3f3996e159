"""The Kafka of the benchmarks' own test."""

from tests.tools.kafka import kafka_one

__all__ = ["kafka_one"]
