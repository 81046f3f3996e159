"""From objects to rows: what reaches the bus, what must not, and what objects without a schema can hold."""

from typing import Any

import msgspec
import pytest

from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import (
    CRD,
    REPOSITORY,
    REVISION,
    SET,
    VARIANT,
    Emission,
    injectable_row,
    presence_row,
    rows_of,
    topics_of,
)
from pvbus.core.kernel.records import OBJECTS, SETS, VARIANTS, InjectableRow, ObjectRow

SECRET = Kind("", "Secret")
CONFIG_MAP = Kind("", "ConfigMap")
SITE = Kind("example.org", "Site")
HIDDEN = "c2VjcmV0"
LAST_APPLIED = {"kubectl.kubernetes.io/last-applied-configuration": HIDDEN, "team": "blue"}


def obj(**fields: Any) -> dict[str, Any]:
    metadata = {"name": "a", "namespace": "default", "uid": "u", "annotations": LAST_APPLIED}
    return {"metadata": {**metadata, "managedFields": [{"manager": HIDDEN}]}, **fields}


def value_of(row: Emission) -> bytes:
    assert row.value is not None
    return row.value


@pytest.mark.parametrize("kind", [SECRET, CONFIG_MAP, SITE, CRD, REPOSITORY, REVISION, VARIANT, SET])
def test_content_and_the_last_applied_configuration_are_not_in_rows_of_objects(kind: Kind) -> None:
    content = {"data": {"password": HIDDEN}, "stringData": {"p": HIDDEN}, "spec": {"x": HIDDEN}}
    found = rows_of(kind, obj(**content), (OBJECTS,))
    assert [row.topic for row in found] == [OBJECTS]
    assert HIDDEN.encode() not in value_of(found[0])
    assert msgspec.json.decode(value_of(found[0]), type=ObjectRow).annotations == {"team": "blue"}


def test_rows_of_sets_have_no_copy_of_what_was_applied() -> None:
    """The set itself is there, once."""
    value = value_of(rows_of(SET, obj(spec={"x": 1}), (SETS,))[0])
    assert HIDDEN.encode() not in value
    row = msgspec.json.decode(value)
    assert row["metadata"]["annotations"] == {"team": "blue"}
    assert row["spec"] == {"x": 1}


def test_rows_of_variants_hold_all_annotations() -> None:
    """Their writers send the row back with PUT: what is missing there is removed from the object."""
    value = value_of(rows_of(VARIANT, obj(spec={"x": 1}), (VARIANTS,))[0])
    row = msgspec.json.decode(value)
    assert row["metadata"]["annotations"] == LAST_APPLIED
    assert "managedFields" not in row["metadata"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(SECRET, msgspec.UNSET), (CONFIG_MAP, b'{"k":"v"}'), (SITE, b'{"x":1}')],
)
def test_injectables_hold_one_field_and_never_data_of_a_secret(kind: Kind, expected: Any) -> None:
    found = obj(data={"k": "v"}, stringData={"p": HIDDEN}, status={"y": HIDDEN})
    if kind != SECRET:
        found["spec"] = {"x": 1}
    row = injectable_row(kind, "default", "a", found)
    assert HIDDEN.encode() not in value_of(row)
    content = msgspec.json.decode(value_of(row), type=InjectableRow).content
    assert (content if content is msgspec.UNSET else bytes(content)) == expected
    assert HIDDEN.encode() not in value_of(presence_row(kind, "default", exists=True))


ODD = ["x", 7, True, None, [], {}, ["x", None, 3], {"x": ["y"]}, [{"name": 5, "served": True}], [[]]]


@pytest.mark.parametrize("kind", [CRD, REPOSITORY, REVISION, VARIANT])
@pytest.mark.parametrize("odd", ODD)
def test_fields_of_a_wrong_type_count_as_absent(kind: Kind, odd: Any) -> None:
    """A definition without a schema allows any value; the rows still have the types of the bus."""
    git = {"git": {"repo": odd, "directory": odd, "ref": odd, "commit": odd}}
    spec = {
        **dict.fromkeys(["repository", "packageName", "workspaceName", "revision", "lifecycle"], odd),
        **dict.fromkeys(["deployment", "downstream", "versions", "readinessGates", "tasks"], odd),
    }
    nested = {
        "downstream": {"repo": odd, "package": odd},
        "versions": [{"name": odd, "served": True}],
        "readinessGates": [{"conditionType": odd}],
        "tasks": [{"clone": {"upstreamRef": {"upstreamRef": {"name": odd}}}}],
    }
    status = {"upstreamLock": git, "selfLock": git, "conditions": [{"type": odd, "status": odd}]}
    for fields in (
        {"spec": odd, "status": odd},
        {"spec": spec, "status": dict.fromkeys(status, odd)},
        {"spec": {**spec, **nested}, "status": status},
    ):
        row = rows_of(kind, obj(**fields), topics_of(kind, requested=False))[-1]
        assert msgspec.json.decode(value_of(row), type=ObjectRow).uid == "u"


@pytest.mark.parametrize(
    ("lifecycle", "commit", "counts"),
    [
        ("Draft", "", True),
        ("Proposed", "not-pushed", True),
        ("Draft", "c0ffee" * 6 + "c0ff", False),
        ("Published", "", False),
    ],
)
def test_the_version_of_a_revision_counts_where_nothing_else_names_its_content(
    lifecycle: str, commit: str, *, counts: bool
) -> None:
    """Porch's database cache has no commit of a draft: only the version says that its files were saved."""
    digests = set()
    for version in ("1", "2"):
        spec, status = {"lifecycle": lifecycle}, {"selfLock": {"git": {"commit": commit}}}
        found = obj(spec=spec, status=status)
        found["metadata"]["resourceVersion"] = version
        digests.add(rows_of(REVISION, found, (OBJECTS,))[0].digest)
    assert (len(digests) == 2) == counts
