"""The contracts as data: topics, CustomResourceDefinitions, OpenAPI schemas.

`schemas/topics.yaml` is the one file that is read; it is found in a source checkout or, packaged,
beside this module. The rest is generated from the types, so it cannot differ from the files in
`schemas/` (a test compares them).
"""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from pvbus.core.api import crds as generated
from pvbus.core.api.variants import PackageVariant, PackageVariantSet
from pvbus.core.errors import UsageError
from pvbus.core.records import RECORDS
from pvbus.ports.bus import TopicSpec

_PLACES = (
    Path(__file__).parents[2] / "schemas" / "topics.yaml",
    Path(__file__).parents[1] / "_schemas" / "topics.yaml",
)
_HOUR_SECONDS = 3600
_OBJECTS: dict[str, type[msgspec.Struct]] = {
    "PackageVariant": PackageVariant,
    "PackageVariantSet": PackageVariantSet,
}


class TopicContract(msgspec.Struct, frozen=True, kw_only=True):
    """One topic: what is on it, who writes it, who acts upon it and who reads it.

    values: names of record Structs and of API types. owners: services whose claim i covers
    partition i; readers: those that read all partitions.
    """

    spec: TopicSpec
    description: str
    values: tuple[str, ...]
    key: str
    partitioned_by: str
    producers: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    public: bool = False


class _Defaults(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    partitions: int
    tombstone_hours: int


class _Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    description: str
    values: tuple[str, ...]
    key: str
    partitioned_by: str
    cleanup: str
    partitions: int | None = None
    retention_hours: int | None = None
    producers: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    public: bool = False


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    defaults: _Defaults
    topics: dict[str, _Entry]


@cache
def topic_contracts() -> tuple[TopicContract, ...]:
    """Return every topic in the order of the file, with the default number of partitions."""
    found = next((place for place in _PLACES if place.exists()), None)
    if found is None:
        raise UsageError("schemas/topics.yaml is missing: install pvbus again")
    file = msgspec.yaml.decode(found.read_bytes(), type=_File)
    return tuple(_contract(name, entry, file.defaults) for name, entry in file.topics.items())


def topics(partitions: int | None = None) -> list[TopicSpec]:
    """Return every topic; `partitions` replaces the default number (one-partition topics stay)."""
    specs = [contract.spec for contract in topic_contracts()]
    if partitions is None:
        return specs
    return [
        spec if spec.partitions == 1 else msgspec.structs.replace(spec, partitions=partitions)
        for spec in specs
    ]


def owned_topics(service: str) -> list[str]:
    """Return the topics of which partition i makes up claim i of a service."""
    return [contract.spec.name for contract in topic_contracts() if service in contract.owners]


def value_types(topic: str) -> dict[str, type[msgspec.Struct]]:
    """Return the types of a topic's values by name, whole API objects included."""
    contract = next(contract for contract in topic_contracts() if contract.spec.name == topic)
    known = {**_OBJECTS, **{name: type_ for rows in RECORDS.values() for name, type_ in rows.items()}}
    return {name: known[name] for name in contract.values}


def crds() -> list[dict[str, Any]]:
    """Return the CustomResourceDefinitions, ready to be applied."""
    return generated.crds()


def open_api() -> dict[str, dict[str, Any]]:
    """Return the OpenAPI v3 schemas of PackageRevision and PackageRevisionResources, by kind."""
    return generated.open_api()


def _contract(name: str, entry: _Entry, defaults: _Defaults) -> TopicContract:
    retention = entry.retention_hours
    return TopicContract(
        spec=TopicSpec(
            name=name,
            partitions=entry.partitions or defaults.partitions,
            cleanup=entry.cleanup,
            retention_seconds=None if retention is None else retention * _HOUR_SECONDS,
            tombstone_seconds=defaults.tombstone_hours * _HOUR_SECONDS,
        ),
        description=entry.description,
        values=entry.values,
        key=entry.key,
        partitioned_by=entry.partitioned_by,
        producers=entry.producers,
        owners=entry.owners,
        readers=entry.readers,
        public=entry.public,
    )
