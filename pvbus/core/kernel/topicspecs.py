"""What the topic table says of a topic: its settings on the bus, its rows, and who writes and reads them.

The form of a key is its parts in angle brackets, joined by bars; the names in them have no bars. Forms of one
topic differ in their prefix (`check|`, `!sync|`) or in their number of parts, so the form of a key is known
without decoding it.
"""

from collections.abc import Callable

import msgspec

from pvbus.core.api.decoding import decode_set
from pvbus.core.api.variants import PackageVariantSet

TOMBSTONE_SECONDS = 86_400  # a reader that was away for less than half of it still sees every deletion


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's settings on the bus.

    cleanup: "compact" keeps the last record of a key, and drops a tombstone `tombstone_seconds` after
    its write at the earliest, and later if there are no further writes; "delete" drops records after
    `retention_seconds`.
    """

    name: str
    partitions: int
    cleanup: str
    retention_seconds: int | None = None
    tombstone_seconds: int = TOMBSTONE_SECONDS


class Rows:
    """Rows of one type within a topic, and the codec of their keys.

    form: the form of the keys, see the module
    parse: decodes such a key (ValueError for an invalid one); `str` of the result encodes it
    by: the part of the key that chooses the partition, "" for the whole key
    check: validates rows on arrival whose bytes controllers keep and decode later; None for other rows
    is_any: whether keys have any form
    is_everywhere: whether every partition has each row
    """

    __slots__ = ("by", "check", "chooser", "form", "is_any", "is_everywhere", "parse", "type")

    def __init__(
        self,
        type_: type[msgspec.Struct],
        form: str,
        parse: Callable[[str], object],
        *,
        by: str = "",
        keeps_bytes: bool = False,
        is_any: bool = False,
        is_everywhere: bool = False,
    ) -> None:
        self.type = type_
        self.form = form
        self.parse = parse
        self.by = by
        self.chooser = form.split("|").index(by) if by else -1
        self.check: Callable[[bytes], object] | None = None
        if type_ is PackageVariantSet:
            self.check = decode_set  # one that an old Porch stored is no bad record: its condition says so
        elif keeps_bytes:
            self.check = msgspec.json.Decoder(type_).decode
        self.is_any = is_any
        self.is_everywhere = is_everywhere

    def partition_key(self, key: str) -> str:
        """Return the part of a key that chooses its partition."""
        if self.chooser == 0:
            return key.partition("|")[0]
        return key if self.chooser < 0 else key.split("|", self.chooser + 1)[self.chooser]


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic: its rows, producers, owners and readers.

    owners: the services whose lease i covers partition i
    readers: the services and programs that read every partition
    public: whether the topic is part of the contract with programs outside of pvbus
    """

    spec: TopicSpec
    description: str
    rows: tuple[Rows, ...]
    producers: tuple[str, ...]
    owners: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    public: bool = False

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def values(self) -> tuple[str, ...]:
        """Return the names of the record Structs and API types."""
        return tuple(dict.fromkeys(rows.type.__name__ for rows in self.rows))

    @property
    def key(self) -> str:
        """Describe the forms of the keys."""
        everywhere = " in every partition"
        forms = [f"`{r.form}`{everywhere if r.is_everywhere else ''}" for r in self.rows]
        return "; ".join(dict.fromkeys(forms))

    @property
    def partitioned_by(self) -> str:
        """Describe the partition rule of the rows that are not in every partition."""
        if self.spec.partitions == 1:
            return "one partition"
        rules = [f"`{r.by}`" if r.by else "the key" for r in self.rows if not r.is_everywhere]
        return "; ".join(dict.fromkeys(rules))
