"""Contracts as files agree with the code, and old data stays readable."""

import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest
import yaml

from pvbus.core.api.variants import Condition
from pvbus.core.kernel import eventrows, packagerows, promotionrows, records
from pvbus.core.kernel.codec import Row, encode_row
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.records import CONDITIONS, LATEST
from pvbus.core.kernel.topics import PARTITIONS, TOPICS, owned_topics, row_partition, row_types, topic_specs
from pvbus.core.variants.publishing import ATTRIBUTES, condition_headers
from schemas import generate

SCHEMAS = Path(generate.__file__).parent
EXAMPLES = sorted((SCHEMAS / "examples").glob("v*/*.json"))
SERVICES = ("ingest", "unroll", "render", "inject", "conditions", "promote", "rollout", "release")
ALL_TYPES = {type_.__name__: type_ for type_ in row_types()}


def test_regenerating_changes_no_file() -> None:
    assert generate.differences(generate.files()) == []


@pytest.mark.slow
def test_the_check_names_a_stale_a_missing_and_a_left_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(SCHEMAS, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(generate, "FOLDER", tmp_path)
    assert generate.main(["--check"]) == 0
    (tmp_path / "asyncapi.yaml").write_text("stale")
    (tmp_path / "events/v1/MetaRow.schema.json").unlink()
    (tmp_path / "crds/old.yaml").write_text("{}")
    assert generate.main(["--check"]) == 1
    reported = capsys.readouterr().err
    for path in ("asyncapi.yaml differs", "MetaRow.schema.json is missing", "crds/old.yaml is not generated"):
        assert path in reported
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_golden_example_decodes_and_encodes_to_the_same_json(file: Path) -> None:
    row = msgspec.json.decode(file.read_bytes(), type=ALL_TYPES[file.stem.split("-")[0]])
    assert json.loads(encode_row(row) or b"") == json.loads(file.read_bytes())


def test_every_field_of_every_value_of_a_topic_is_set_in_a_golden_example() -> None:
    """Files are `<Struct>.json`, and `<Struct>-<what was added>.json` once a release has gone out."""
    shown: dict[str, set[str]] = {name: set() for name in ALL_TYPES}
    for file in EXAMPLES:
        shown[file.stem.split("-")[0]] |= set(msgspec.json.decode(file.read_bytes()))
    for name, type_ in ALL_TYPES.items():
        fields = {field.encode_name for field in msgspec.structs.fields(type_)}
        assert fields <= shown[name], f"{name} misses an example of {sorted(fields - shown[name])}"


def test_topics_and_record_types_are_declared_for_each_other() -> None:
    """Every topic is in the table, every record type that is nobody's part is on a topic."""
    declared = {contract.spec.name: set(contract.values) for contract in TOPICS}
    modules = (records, eventrows, promotionrows, packagerows)
    types = {t for module in modules for t in vars(module).values() if isinstance(t, type)}
    rows = {t for t in types if issubclass(t, Row)}
    parts = {
        "Row",
        "ObjectOwner",
        "SeenCondition",
        "EvidenceSource",
        "RevisionFacts",
        "Root",
        "Counts",
        "ChildFailure",
        "Dispute",
        "Hold",
        "HoldingSet",
        "InjectedObject",
        "Coverage",
        "Refusal",
        "Verdict",
        "BoundCondition",
        "Carried",
        "Approval",
        "EventCause",
        "EventTask",
        "EventRollout",
        "LockedRevision",
        "LockedDependency",
        "EstablishedRevision",
    }
    mirrored = {"PackageVariant", "PackageVariantSet", "RolloutPolicy", "Quarantine", "RolloutStop"}
    elsewhere = mirrored | {"Rollout", "Target"}
    assert {row.__name__ for row in rows} - parts == set(ALL_TYPES) - elsewhere
    names = {
        value for key, value in vars(records).items() if key.isupper() and str(value).startswith("pvbus.")
    }
    assert names == set(declared)


def test_the_topics_of_one_lease_have_one_number_of_partitions() -> None:
    by_name = {spec.name: spec for spec in topic_specs()}
    for service in SERVICES:
        owned = owned_topics(service)
        assert owned
        assert len({by_name[topic].partitions for topic in owned}) == 1
        assert not set(owned) & {"pvbus.objects", "pvbus.injectables", "pvbus.meta"}


def test_every_topic_has_a_writer_and_a_consumer_and_a_consistent_policy() -> None:
    for contract in TOPICS:
        assert contract.producers, contract.spec.name
        assert contract.owners or contract.readers, contract.spec.name
        retained = contract.spec.retention_seconds
        assert (contract.spec.cleanup, retained is None) in {("compact", True), ("delete", False)}


def test_another_number_of_partitions_leaves_the_meta_topic_alone() -> None:
    counts = {spec.name: spec.partitions for spec in topic_specs(3)}
    assert counts.pop("pvbus.meta") == 1
    assert set(counts.values()) == {3}


def test_every_reference_of_the_asyncapi_document_leads_somewhere() -> None:
    text = (SCHEMAS / "asyncapi.yaml").read_text()
    document = yaml.safe_load(text)
    references = set(re.findall(r"\$ref: '?([^'\n]+)'?", text))
    assert references
    for reference in references:
        if reference.startswith("./"):
            assert (SCHEMAS / reference).exists(), reference
            continue
        node = document
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]


def test_a_condition_event_has_every_cloudevents_attribute_in_its_headers() -> None:
    event = ConditionEvent(
        kind="PackageVariant",
        namespace="default",
        name="fleet-edge-base",
        uid="u1",
        condition=Condition(type="Ready", status="True", last_transition_time="2026-02-03T04:05:06Z"),
    )
    headers = dict(condition_headers(event, event_id="e1", source="/pvbus/test"))
    assert list(headers) == list(ATTRIBUTES)
    assert headers["ce_subject"] == b"PackageVariant/default/fleet-edge-base/Ready"
    assert headers["ce_id"] == b"e1"
    assert headers["ce_time"] == b"2026-02-03T04:05:06Z"


def test_the_document_of_the_events_computes_partitions_as_the_code_does() -> None:
    """Programs in other languages take the rule from there."""
    text = (SCHEMAS.parent / "docs/events.md").read_text()
    found = re.search(r"\| `(\S+)` \| 0x([0-9a-f]{8}) \| (\d+) \|", text)
    assert found is not None
    name, digits, number = found.groups()
    assert int(digits, 16) % PARTITIONS == int(number) == partition(name, PARTITIONS)
    for kind in ("PackageVariant", "Repository"):
        assert row_partition(CONDITIONS, f"{kind}|{name}", PARTITIONS) == int(number)
        assert row_partition(LATEST, f"{kind}|{name}|Ready", PARTITIONS) == int(number)
