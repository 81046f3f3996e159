"""Checks of a caller's input that are the same for every bus."""

from collections.abc import Iterable

from pvbus.core.errors import PermanentError, TooLargeError
from pvbus.ports.bus import Output


def check_partition(topic: str, partition: int, count: int) -> None:
    """Raise PermanentError for a partition that the topic does not have.

    count: the number of the topic's partitions
    """
    if not 0 <= partition < count:
        raise PermanentError(
            f"topic {topic} has no partition {partition}, only {count}", reason="UnknownPartition"
        )


def common_count(group: str, counts: set[int]) -> int:
    """Return the one partition count of a group's topics. Raises PermanentError if they differ."""
    if len(counts) != 1:
        raise PermanentError(
            f"group {group}: its topics must have one partition count, not {sorted(counts)}",
            reason="PartitionsDiffer",
        )
    return next(iter(counts))


def check_sizes(outputs: Iterable[Output], record_bytes_max: int) -> None:
    """Raise TooLargeError for the first record whose key, value and headers together exceed the limit."""
    for topic, _, key, value, headers in outputs:
        size = len(key) + len(value or b"")
        if headers:
            size += sum(len(name) + len(content) for name, content in headers)
        if size > record_bytes_max:
            raise TooLargeError(
                f"{topic}: the record of {key[:100]!r} has {size} bytes, the limit is {record_bytes_max}"
            )
