"""Kafka ACLs of each program, generated from the topic table.

A role is a service; `sink`; `operator`, which creates the topics and inspects the bus with the commands;
`web`, the page of `pvbus run web`; or `consumer`, a program of somebody else that reads the public topics.
The list is the least that works. Read or Write implies Describe in Kafka, and a transactional producer needs
no right on the cluster. At start every worker compares all topics with their declarations, so it may Describe
even those that it never opens, and read their settings; the sink compares none. The page learns partition
counts from the settings.
"""

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pvbus.adapters.kafka.settings import KafkaSettings
from pvbus.core.kernel.records import (
    CONDITIONS,
    DESIRED,
    PROMOTIONS,
    RELEASES,
    RESULTS,
    TARGETS,
)
from pvbus.core.kernel.topics import ALL_SERVICES, SINK, TOPICS
from pvbus.core.kernel.topicspecs import Topic
from pvbus.core.web import model
from pvbus.runtime.process.installation import GROUP as INSTALLATION_GROUP

OPERATOR, WEB, CONSUMER = "operator", "web", "consumer"
ROLES = (*ALL_SERVICES, SINK, OPERATOR, WEB, CONSUMER)
EXPLAINED = (TARGETS, DESIRED, RESULTS, PROMOTIONS, RELEASES, CONDITIONS)
"""What the page reads beside its model, when somebody looks at one variant or set, or what is left of it. The
topic of injected content, which may hold secrets, is not among them."""
PRINCIPAL = "User:pvbus-{role}"


class Access(NamedTuple):
    """One operation of a role on some resources of a type.

    role: the program that needs the operation
    resource: `topic`, `group` or `transactional-id`
    names: the names of the resources, or their prefixes
    pattern: `literal`, or `prefixed` if the names are prefixes
    operation: Kafka's name of the operation
    """

    role: str
    resource: str
    names: tuple[str, ...]
    pattern: str
    operation: str


def access_lists(settings: KafkaSettings, roles: Sequence[str] = ROLES) -> list[Access]:
    """Return the permissions of the roles; all others are denied."""
    return [access for role in roles for access in access_of(role, settings)]


def access_of(role: str, settings: KafkaSettings) -> Iterator[Access]:
    """Yield the permissions of one role."""

    def some(
        resource: str, operation: str, names: Sequence[str], pattern: str = "literal"
    ) -> Iterator[Access]:
        if names:
            yield Access(role, resource, tuple(map(settings.named, names)), pattern, operation)

    everything = [topic.name for topic in TOPICS]
    if role == OPERATOR:
        for operation in ("Create", "Read", "DescribeConfigs"):
            yield from some("topic", operation, everything)
        yield from some("group", "Describe", [_group(service) for service in (*ALL_SERVICES, SINK)])
        yield from some("group", "Describe", [f"{_group(CONSUMER)}-"], "prefixed")
        return
    if role == WEB:
        for operation in ("Read", "DescribeConfigs"):
            yield from some("topic", operation, [*model.TOPICS, *EXPLAINED])
        return
    if role == CONSUMER:
        yield from some("topic", "Read", [topic.name for topic in TOPICS if topic.public])
        yield from some("group", "Read", [f"{_group(role)}-"], "prefixed")
        return
    read = [topic.name for topic in TOPICS if _reads(role, topic)]
    written = [topic.name for topic in TOPICS if _writes(role, topic)]
    if role == SINK:
        everything = [*read, *written]
    yield from some("topic", "Read", read)
    yield from some("topic", "Write", written)
    yield from some("topic", "Describe", [name for name in everything if name not in {*read, *written}])
    yield from some("topic", "DescribeConfigs", everything)
    groups = [_group(role)] if role == SINK else [_group(role), INSTALLATION_GROUP]
    yield from some("group", "Read", groups)
    yield from some("transactional-id", "Write", [f"{group}-" for group in groups], "prefixed")


def _group(role: str) -> str:
    return f"pvbus-{role}"


def _reads(service: str, topic: Topic) -> bool:
    return service in topic.owners or service in topic.readers


def _writes(service: str, topic: Topic) -> bool:
    """Return whether a service writes a topic; one without a producing service, the first to start writes."""
    if service == SINK:
        return service in topic.producers
    return service in topic.producers or not set(topic.producers) & set(ALL_SERVICES)


def principal_of(role: str, template: str) -> str:
    return template.replace("{role}", role)


def commands(lists: Sequence[Access], bootstrap: str, principal: str, *options: str) -> Iterator[str]:
    """Yield the lines of a shell script that grants the permissions.

    Each command starts a Java of its own, so there are as few as can be: one for the same right of several
    roles, and one for a role's right on topics and on groups.

    options: added to each command
    """
    resources: dict[tuple[str, str, str], list[str]] = {}
    for access in lists:
        right = resources.setdefault((access.operation, access.pattern, access.role), [])
        for name in access.names:
            right += [f"--{access.resource}", name]
    granted: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (operation, pattern, role), names in resources.items():
        granted.setdefault((operation, pattern, tuple(names)), []).append(role)
    shown: list[str] = []
    for (operation, pattern, named), roles in granted.items():
        if roles != shown:
            yield f"# {', '.join(roles)}"
            shown = roles
        words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, *options, "--add"]
        for each in dict.fromkeys(principal_of(role, principal) for role in roles):
            words += ["--allow-principal", each]
        words += ["--operation", operation, *named]
        if pattern != "literal":
            words += ["--resource-pattern-type", pattern]
        yield shlex.join(words)


def bindings(lists: Sequence[Access], principal: str) -> list[dict[str, str]]:
    """Return one dict of plain values for each ACL."""
    return [
        {
            "role": access.role,
            "principal": principal_of(access.role, principal),
            "resourceType": access.resource,
            "resourceName": name,
            "patternType": access.pattern,
            "operation": access.operation,
            "permission": "Allow",
        }
        for access in lists
        for name in access.names
    ]
