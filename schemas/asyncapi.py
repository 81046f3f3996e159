"""The AsyncAPI 3 document of the bus, made from the topic table and the record types."""

from collections.abc import Iterable
from typing import Any

import pvbus
from pvbus.core.api import variants
from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.kernel.records import SCHEMA_VERSION
from pvbus.core.kernel.topics import TOPICS
from pvbus.core.kernel.topicspecs import Topic
from pvbus.core.variants.publishing import ATTRIBUTES

_CRDS = {
    "PackageVariant": f"packagevariants.{variants.CONFIG_GROUP}",
    "PackageVariantSet": f"packagevariantsets.{variants.CONFIG_GROUP}",
    "RolloutPolicy": f"rolloutpolicies.{PROMOTION_GROUP}",
    "Quarantine": f"quarantines.{PROMOTION_GROUP}",
    "RolloutStop": f"rolloutstops.{PROMOTION_GROUP}",
}


def document() -> dict[str, Any]:
    """Return the whole document; paths in it are relative to the folder of the schemas."""
    contracts = TOPICS
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "pvbus",
            "version": pvbus.__version__,
            "description": (
                "The bus of pvbus: compacted tables keyed by variant or set, and public events. Only "
                "channels tagged `public` are meant for other programs; the others may change with "
                f"any release. Version of the rows: {SCHEMA_VERSION}."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {contract.spec.name: _channel(contract) for contract in contracts},
        "operations": dict(_operations(contracts)),
        "components": {
            "messages": {
                name: _message(name, public=contract.public)
                for contract in contracts
                for name in contract.values
            },
            "messageTraits": {"cloudevent": _cloudevent()},
        },
    }


def _channel(contract: Topic) -> dict[str, Any]:
    spec = contract.spec
    configuration: dict[str, Any] = {"cleanup.policy": [spec.cleanup]}
    if spec.cleanup == "compact":
        configuration["delete.retention.ms"] = spec.tombstone_seconds * 1000
    if spec.retention_seconds is not None:
        configuration["retention.ms"] = spec.retention_seconds * 1000
    where = "One partition" if spec.partitions == 1 else f"Partition: crc32 of {contract.partitioned_by}"
    return {
        "address": spec.name,
        "description": f"{contract.description} Key: {contract.key}. {where}.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in contract.values},
        "tags": [{"name": "public" if contract.public else "internal"}],
        "bindings": {
            "kafka": {
                "topic": spec.name,
                "partitions": spec.partitions,
                "topicConfiguration": configuration,
                "bindingVersion": "0.5.0",
            }
        },
    }


def _operations(contracts: Iterable[Topic]) -> Iterable[tuple[str, dict[str, Any]]]:
    for contract in contracts:
        channel = {"$ref": f"#/channels/{contract.spec.name}"}
        for service in contract.producers:
            yield f"{_word(service)}-sends-{contract.spec.name}", {"action": "send", "channel": channel}
        for service in dict.fromkeys((*contract.owners, *contract.readers)):
            how = "acts upon its own partitions" if service in contract.owners else "reads all partitions"
            yield (
                f"{_word(service)}-receives-{contract.spec.name}",
                {"action": "receive", "channel": channel, "description": f"{service}: {how}."},
            )


def _word(service: str) -> str:
    return service.replace(" ", "-")


def _message(name: str, *, public: bool) -> dict[str, Any]:
    if name in _CRDS:
        file = f"./crds/{_CRDS[name]}.yaml"
        return {
            "name": name,
            "description": f"The object without managedFields, as {file} defines it.",
            "payload": {"type": "object", "required": ["apiVersion", "kind", "metadata"]},
        }
    message: dict[str, Any] = {"name": name, "payload": {"$ref": f"./events/v1/{name}.schema.json"}}
    if public:
        message["traits"] = [{"$ref": "#/components/messageTraits/cloudevent"}]
    return message


def _cloudevent() -> dict[str, Any]:
    return {
        "description": "CloudEvents 1.0, Kafka protocol binding, binary mode: attributes are headers.",
        "contentType": "application/json",
        "headers": {
            "type": "object",
            "required": [name for name in ATTRIBUTES if name != "ce_time"],
            "properties": {
                name: {"type": "string", "description": text} for name, text in ATTRIBUTES.items()
            },
        },
    }
