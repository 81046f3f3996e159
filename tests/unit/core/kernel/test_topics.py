"""The topic table: keys of every form, the partition that they choose, and the topics of each service."""

from collections.abc import Sequence
from typing import Any

import pytest

from pvbus.core.kernel.keys import (
    CheckKey,
    ChildKey,
    ConditionKey,
    Key,
    MarkerKey,
    ObjectKey,
    StopKey,
    SubjectKey,
    TargetKey,
    WatchKey,
    partition,
    reconciled_partition,
)
from pvbus.core.kernel.packagerows import ScopedKey
from pvbus.core.kernel.records import (
    APPROVALS,
    CANDIDATES,
    CONDITIONS,
    DESIRED,
    DLQ,
    ESTABLISHED,
    INJECTABLES,
    INSTALLS,
    LATEST,
    LOCK,
    META,
    OBJECTS,
    POLICIES,
    PROMOTIONS,
    RELEASES,
    RESULTS,
    ROLLOUTS,
    SCHEMA_VERSION,
    SETRESULTS,
    SETS,
    SOURCES,
    TARGETS,
    UNROLL,
    VARIANTS,
    WATCHES,
    CheckRequest,
    ChildResult,
    SetResult,
    WatchRequest,
)
from pvbus.core.kernel.topics import (
    TOPICS,
    broadcast_of,
    child_of,
    inputs_of,
    memory_of,
    partition_key,
    row_partition,
    rows_of,
    topic_specs,
)
from pvbus.core.variants.conditions.controller import ConditionsController
from pvbus.core.variants.inject.controller import InjectController
from pvbus.core.variants.render.controller import RenderController
from pvbus.core.variants.unroll.controller import UnrollController

OKEY = "example.org/Site|default|edge"
_OKEY = "pkg.crossplane.io/Provider||aws"

_OKEY = "pkg.crossplane.io/Provider||aws"
KEYS: Sequence[tuple[str, str, object, str]] = [
    (META, "installation", "installation", "installation"),
    (OBJECTS, OKEY, ObjectKey("example.org", "Site", "default", "edge"), OKEY),
    (OBJECTS, "/ConfigMap|default|a", ObjectKey("", "ConfigMap", "default", "a"), "/ConfigMap|default|a"),
    (OBJECTS, "check|example.org/Site|default/s", CheckKey("example.org/Site", "default/s"), ""),
    (OBJECTS, "!sync|example.org/Site", MarkerKey("example.org", "Site"), ""),
    (INJECTABLES, OKEY, ObjectKey("example.org", "Site", "default", "edge"), OKEY),
    (SETS, "default/s", Key("default", "s"), "default/s"),
    (VARIANTS, "default/v", Key("default", "v"), "default/v"),
    (WATCHES, "example.org/Site|unroll-3", WatchKey("example.org/Site", "unroll-3"), "example.org/Site"),
    (
        WATCHES,
        "example.org/Site|inject-3|default|edge",
        WatchKey("example.org/Site", "inject-3", ("default", "edge")),
        "example.org/Site",
    ),
    (
        WATCHES,
        "check|example.org/Site|default/s",
        CheckKey("example.org/Site", "default/s"),
        "example.org/Site",
    ),
    (UNROLL, "default/s|v", ChildKey("default/s", "v"), "default/s"),
    (TARGETS, "default/v|s", TargetKey("default/v", "s"), "default/v"),
    (DESIRED, "default/v", Key("default", "v"), "default/v"),
    (RESULTS, "default/v", Key("default", "v"), "default/v"),
    (SETRESULTS, "default/s|v", ChildKey("default/s", "v"), "default/s"),
    (SETRESULTS, "default/s", Key("default", "s"), "default/s"),
    (CONDITIONS, "PackageVariant|default/v", SubjectKey("PackageVariant", "default/v"), "default/v"),
    (
        LATEST,
        "PackageVariant|default/v|Ready",
        ConditionKey("PackageVariant|default/v", "Ready"),
        "default/v",
    ),
    (PROMOTIONS, "default/v", Key("default", "v"), "default/v"),
    (RELEASES, "default/v", Key("default", "v"), "default/v"),
    *(
        (topic, "PackageRevision|default/r", SubjectKey("PackageRevision", "default/r"), "default/r")
        for topic in (PROMOTIONS, RELEASES)
    ),
    (POLICIES, "default/p", Key("default", "p"), "default/p"),
    (POLICIES, "stop|default|fleet", StopKey("default", "fleet"), "stop|default|fleet"),
    (POLICIES, OKEY, ObjectKey("example.org", "Site", "default", "edge"), OKEY),
    (CANDIDATES, "default/p|v", ChildKey("default/p", "v"), "default/p"),
    (ROLLOUTS, "default/p", Key("default", "p"), "default/p"),
    (ROLLOUTS, "default/p|v", ChildKey("default/p", "v"), "default/p"),
    (APPROVALS, "default/v|p", TargetKey("default/v", "p"), "default/v"),
    *(
        (topic, f"cluster|{_OKEY}", ScopedKey("cluster", _OKEY), "cluster")
        for topic in (INSTALLS, LOCK, ESTABLISHED)
    ),
    (SOURCES, "cluster|example.org/aws", ScopedKey("cluster", "example.org/aws"), "cluster"),
    (
        SOURCES,
        "cluster|example.org/aws|sha256:0f1e",
        ScopedKey("cluster", "example.org/aws|sha256:0f1e"),
        "cluster",
    ),
    (INSTALLS, "!sync|example.org/Site", MarkerKey("example.org", "Site"), ""),
    (DLQ, "what|ever|it|was", "what|ever|it|was", "what|ever|it|was"),
    (DLQ, "check|x", "check|x", "check|x"),
]


@pytest.mark.parametrize(("topic", "text", "key", "chooses"), KEYS, ids=[f"{k[0]} {k[1]}" for k in KEYS])
def test_a_key_is_decoded_encoded_and_placed(topic: str, text: str, key: object, chooses: str) -> None:
    """A key has these parts, encoding restores its text, and one part chooses the partition."""
    rows = rows_of(topic, text)
    assert rows is not None
    parsed = rows.parse(text)
    assert parsed == key
    assert type(parsed) is type(key)
    assert str(parsed) == text
    assert partition_key(topic, text) == (chooses or text)


def test_every_form_of_the_table_has_an_example() -> None:
    shown = {id(rows_of(topic, text)) for topic, text, _, _ in KEYS}
    assert {id(rows) for topic in TOPICS for rows in topic.rows} == shown


def type_of(topic: str, key: str) -> type | None:
    rows = rows_of(topic, key)
    return rows.type if rows is not None else None


def test_forms_of_one_topic_are_told_apart() -> None:
    assert type_of(SETRESULTS, "default/s") is SetResult
    assert type_of(SETRESULTS, "default/s|v") is ChildResult
    assert type_of(WATCHES, "a/B|unroll-0") is WatchRequest
    assert type_of(WATCHES, "check|a/B|default/s") is CheckRequest


@pytest.mark.parametrize(
    ("topic", "key"),
    [
        (SETS, "default/s|v"),
        (SETS, "check|example.org/Site"),
        (UNROLL, "default/s"),
        (UNROLL, "default/s|v|w"),
        (OBJECTS, "example.org/Site|edge"),
        (WATCHES, "example.org/Site|inject-3|default"),
        (WATCHES, "check|example.org/Site"),
        (LATEST, "PackageVariant|default/v"),
        (TARGETS, "!sync|example.org/Site"),
    ],
)
def test_a_key_of_another_form_is_refused(topic: str, key: str) -> None:
    """It is no record of the topic; the whole key chooses the partition, so that it can be withdrawn."""
    assert rows_of(topic, key) is None
    assert partition_key(topic, key) == key


def test_what_a_set_and_its_variants_own_is_in_one_partition_each() -> None:
    """A lease needs no other partition for a set, and none for a variant."""
    for n in (3, 12):
        skey, vkey = "default/s", "default/v"
        of_set = [(SETS, skey), (UNROLL, f"{skey}|v"), (SETRESULTS, skey), (SETRESULTS, f"{skey}|v")]
        of_variant = [(VARIANTS, vkey), (TARGETS, f"{vkey}|s"), (DESIRED, vkey), (RESULTS, vkey)]
        of_variant += [(LATEST, f"PackageVariant|{vkey}|Ready"), (CONDITIONS, f"PackageVariant|{vkey}")]
        assert {partition(partition_key(*row), n) for row in of_set} == {reconciled_partition(skey, n)}
        found = {partition(partition_key(*row), n) for row in of_variant}
        assert found == {reconciled_partition(vkey, n), reconciled_partition(f"PackageVariant|{vkey}", n)}
        assert len(found) == 1


def test_all_rows_of_a_scope_are_in_one_partition() -> None:
    """One lease writes a lock, so every decision sees all decisions before it."""
    for n in (3, 12):
        okey, source = "cluster|pkg.crossplane.io/Provider||aws", "cluster|xpkg.example.org/acme/aws"
        rows = [(topic, okey) for topic in (INSTALLS, LOCK, ESTABLISHED)]
        rows += [(SOURCES, source), (SOURCES, f"{source}|sha256:0f1e")]
        found = {row_partition(*row, n) for row in rows}
        assert found == {reconciled_partition(key, n) for key in ("cluster", source)}
        assert len(found) == 1


def test_the_child_that_a_row_of_unroll_speaks_of() -> None:
    assert child_of(UNROLL, "default/s|v") == "v"
    assert child_of(TARGETS, "default/v|s") == "v"
    assert child_of(SETRESULTS, "default/s") == ""


ROLES = {
    "ingest": ({WATCHES}, set(), {OBJECTS, INJECTABLES, SETS, VARIANTS, POLICIES, INSTALLS}),
    "unroll": ({SETS, SETRESULTS}, {UNROLL}, {OBJECTS, WATCHES}),
    "render": ({TARGETS, VARIANTS}, {DESIRED}, set()),
    "inject": ({VARIANTS, DESIRED, APPROVALS}, {RESULTS}, {OBJECTS, INJECTABLES, WATCHES}),
    "conditions": ({DESIRED, RESULTS, SETRESULTS, VARIANTS, SETS}, {LATEST}, {OBJECTS}),
    "promote": ({VARIANTS, DESIRED, RELEASES, APPROVALS}, {PROMOTIONS}, {OBJECTS, WATCHES, POLICIES}),
    "rollout": ({POLICIES, CANDIDATES}, {ROLLOUTS}, set()),
    "release": ({VARIANTS, DESIRED, PROMOTIONS, APPROVALS}, {RELEASES}, {POLICIES}),
    "resolve": ({INSTALLS, ESTABLISHED}, {SOURCES, LOCK}, {WATCHES}),
    "establish": ({INSTALLS, LOCK}, {ESTABLISHED}, set()),
}


@pytest.mark.parametrize(("service", "roles"), ROLES.items(), ids=ROLES)
def test_a_service_takes_these_topics(service: str, roles: tuple[set[str], ...]) -> None:
    """What a lease consumes, what it restores, and what every worker reads whole."""
    assert tuple(map(set, (inputs_of(service), memory_of(service), broadcast_of(service)))) == roles


@pytest.mark.parametrize(
    "controller", [UnrollController, RenderController, InjectController, ConditionsController]
)
def test_controllers_take_their_topics_from_the_table(controller: Any) -> None:
    name = controller.name
    assert (controller.inputs, controller.memory) == (inputs_of(name), memory_of(name))
    assert controller.broadcast == broadcast_of(name)


NAMES = {
    1: {
        *(META, OBJECTS, INJECTABLES, SETS, VARIANTS, WATCHES, UNROLL, TARGETS, DESIRED, RESULTS, SETRESULTS),
        *(
            PROMOTIONS,
            RELEASES,
            POLICIES,
            CANDIDATES,
            ROLLOUTS,
            APPROVALS,
            INSTALLS,
            SOURCES,
            LOCK,
            ESTABLISHED,
        ),
        *(CONDITIONS, LATEST, DLQ),
    },
}
"""The topics of each version of the tables."""


def test_other_topics_have_another_version() -> None:
    """An installation of the same version would be told that it has lost the new topic."""
    assert {topic.name for topic in TOPICS} == NAMES[SCHEMA_VERSION]
    assert list(NAMES.values()).count(NAMES[SCHEMA_VERSION]) == 1


def test_a_topic_that_is_not_ours_has_keys_of_any_form() -> None:
    """Tests, and buses that others use, too: the whole key chooses the partition."""
    assert partition_key("toy.in", "a|b|c") == "a|b|c"
    assert "toy.in" not in {spec.name for spec in topic_specs()}
