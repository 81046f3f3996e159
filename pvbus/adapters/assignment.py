"""Assigns leases to members: a pure function of the members and the current owners.

Both bus adapters use it. Every worker computes the same result from the same arguments, so it does not
matter which worker computes it.
"""

from collections.abc import Mapping, Sequence
from zlib import crc32


def assign(partitions: int, members: Sequence[str], owners: Mapping[int, str]) -> dict[int, str]:
    """Choose the member for each partition.

    Loads differ by one at most, so none is above ceil(partitions / members). A partition leaves a living
    owner only if that owner has too many; it goes where its rendezvous score is highest among those with
    room. When a member takes a partition that is assigned to it, the result does not change for the others,
    so workers may act on it one after the other.

    partitions: the number of partitions
    members: the ids of the living members
    owners: the current owner of each partition that has one, which may be a dead member
    """
    if not members:
        return {}
    held: dict[str, list[int]] = {member: [] for member in members}
    for number in range(partitions):
        owner = owners.get(number)
        if owner in held:
            held[owner].append(number)
    floor, extra = divmod(partitions, len(held))
    fullest_first = sorted(held, key=lambda member: (-len(held[member]), member))
    room = {member: floor + (rank < extra) for rank, member in enumerate(fullest_first)}

    result: dict[int, str] = {}
    for member, numbers in held.items():
        numbers.sort(key=lambda number: (-_score(member, number), number))
        for number in numbers[: room[member]]:
            result[number] = member
            room[member] -= 1
    for number in range(partitions):
        if number not in result:
            member = max((m for m, left in room.items() if left), key=lambda m: (_score(m, number), m))
            result[number] = member
            room[member] -= 1
    return result


def _score(member: str, number: int) -> int:
    return crc32(f"{number}|{member}".encode())
