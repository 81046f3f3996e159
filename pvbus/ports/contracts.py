"""The former path of the topic table; see `pvbus.core.topics`."""

import msgspec

from pvbus.core.topics import TOPICS
from pvbus.core.topics import Topic as TopicContract

__all__ = ["TopicContract", "topic_contracts", "value_types"]


def topic_contracts() -> tuple[TopicContract, ...]:
    """Return every topic, with the default number of partitions."""
    return TOPICS


def value_types(topic: str) -> dict[str, type[msgspec.Struct]]:
    """Return the types of a topic's values by name, whole API objects included."""
    return {rows.type.__name__: rows.type for found in TOPICS if found.name == topic for rows in found.rows}
