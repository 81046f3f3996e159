"""Tables and the values in them read as kubectl users know them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from pvbus.controlplane.apiserver import builtin, jsonpath
from pvbus.controlplane.apiserver.kinds import Column, from_crd
from pvbus.controlplane.apiserver.printing import age, duration, table

NOW = datetime(2026, 1, 2, tzinfo=UTC)
OLD = "2026-01-01T00:00:00Z"


def meta(name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "creationTimestamp": OLD, **more}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-0.5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (121, "2m1s"),
        (599, "9m59s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (49 * 3600, "2d1h"),
        (8 * 86400, "8d"),
        (729 * 86400, "729d"),
        (731 * 86400, "2y1d"),
        (8 * 365 * 86400, "8y"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    """Ages are short: two units at most, fewer as they grow."""
    assert duration(seconds) == text


def test_age() -> None:
    """An age comes from an RFC 3339 time; what is none says so."""
    assert age(OLD, NOW) == "24h"
    assert age("2026-01-01T12:00:00.5+00:00", NOW) == "11h"
    assert age(None, NOW) == "<unknown>"
    assert age("yesterday", NOW) == "<invalid>"


OBJ: dict[str, Any] = {
    "spec": {"git": {"repo": "url"}, "list": [1, 2, 3], "a.b": "dot", "flag": False},
    "status": {"conditions": [{"type": "Stalled", "status": "False"}, {"type": "Ready", "status": "True"}]},
}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (".spec.git.repo", ["url"]),
        ("{.spec.git.repo}", ["url"]),
        ("$.spec.git['repo']", ["url"]),
        (".spec['git','oci']['repo','registry']", ["url"]),
        (r".spec.a\.b", ["dot"]),
        (".spec['a.b']", ["dot"]),
        (".spec.list[0]", [1]),
        (".spec.list[-1]", [3]),
        (".spec.list[9]", []),
        (".spec.list[0,2]", [1, 3]),
        (".spec.list[1:]", [2, 3]),
        (".spec.list[*]", [1, 2, 3]),
        (".spec.flag", [False]),
        (".spec.none.at.all", []),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[?(@.type == 'Ready')].status", ["True"]),
        (".status.conditions[?(@.type!='Ready')].status", ["False"]),
        (".status.conditions[?(@.reason)].status", []),
        (".status.conditions[*].type", ["Stalled", "Ready"]),
        (".status.conditions", [OBJ["status"]["conditions"]]),
    ],
)
def test_jsonpath(path: str, values: list[Any]) -> None:
    """The dialect of printer columns."""
    assert jsonpath.find(path, OBJ) == values


@pytest.mark.parametrize("path", [".a[", ".a[b]", "a"])
def test_jsonpath_errors(path: str) -> None:
    """A path that cannot be read is an error, not an empty column by accident."""
    with pytest.raises(ValueError, match="unrecognized JSONPath"):
        jsonpath.find(path, {"a": 1})


def rows(kind: Any, *objects: dict[str, Any]) -> list[list[Any]]:
    version = kind.preferred_version.name
    return [row["cells"] for row in table(kind, version, objects, now=NOW)["rows"]]


def titles(kind: Any, *, wide: bool = False) -> list[str]:
    definitions = table(kind, kind.preferred_version.name, [], now=NOW)["columnDefinitions"]
    return [column["name"] for column in definitions if wide or column["priority"] == 0]


def test_built_in_kinds() -> None:
    """Columns and cells of the kinds that are not described by paths."""
    assert titles(builtin.CONFIG_MAP) == ["Name", "Data", "Age"]
    config = {"metadata": meta(), "data": {"x": "1"}, "binaryData": {"y": ""}}
    assert rows(builtin.CONFIG_MAP, config) == [["a", 2, "24h"]]
    assert titles(builtin.SECRET) == ["Name", "Type", "Data", "Age"]
    assert rows(builtin.SECRET, {"metadata": meta()}) == [["a", "Opaque", 0, "24h"]]
    assert titles(builtin.NAMESPACE) == ["Name", "Status", "Age"]
    assert rows(builtin.NAMESPACE, {"metadata": meta(), "status": {"phase": "Active"}}) == [
        ["a", "Active", "24h"]
    ]
    assert titles(builtin.CRD) == ["Name", "Created At"]
    assert rows(builtin.CRD, {"metadata": meta()}) == [["a", OLD]]


def test_events() -> None:
    """An event shows when it was last seen and on what, in either of its versions."""
    assert titles(builtin.EVENT) == ["Last Seen", "Type", "Reason", "Object", "Message"]
    core = {
        "metadata": meta("e"),
        "type": "Normal",
        "reason": "Made",
        "message": "made it\n",
        "involvedObject": {"kind": "ConfigMap", "name": "x"},
        "firstTimestamp": OLD,
        "lastTimestamp": "2026-01-01T23:59:00Z",
        "count": 3,
        "source": {"component": "c", "host": "h"},
    }
    expected = ["60s", "Normal", "Made", "configmap/x", "", "c, h", "made it", "24h", 3, "e"]
    assert rows(builtin.EVENT, core) == [expected]
    newer = {
        "metadata": meta("e"),
        "regarding": {"kind": "ConfigMap", "name": "x"},
        "note": "n",
        "eventTime": OLD,
    }
    assert rows(builtin.NEW_EVENT, newer) == [["24h", "", "", "configmap/x", "", "", "n", "24h", 1, "e"]]


def test_package_revisions() -> None:
    """Porch's columns."""
    assert titles(builtin.PACKAGE_REVISION) == [
        "Name", "Package", "WorkspaceName", "Revision", "Latest", "Lifecycle", "Repository",
    ]  # fmt: skip
    spec = {"packageName": "p/q", "workspaceName": "w", "revision": 2, "repository": "r"}
    labels = {"kpt.dev/latest-revision": "true"}
    published = {"metadata": meta(labels=labels), "spec": {**spec, "lifecycle": "Published"}}
    assert rows(builtin.PACKAGE_REVISION, published) == [["a", "p/q", "w", 2, True, "Published", "r"]]
    assert titles(builtin.PACKAGE_REVISION_RESOURCES)[-2:] == ["Repository", "Files"]
    resources = {"metadata": meta(), "spec": {**spec, "resources": {"Kptfile": "", "x.yaml": ""}}}
    assert rows(builtin.PACKAGE_REVISION_RESOURCES, resources) == [["a", "p/q", "w", 2, "r", 2]]


def custom(*columns: Column) -> Any:
    kind = from_crd(
        {
            "spec": {
                "group": "example.com",
                "scope": "Namespaced",
                "names": {"plural": "things", "kind": "Thing"},
                "versions": [{"name": "v1", "served": True, "storage": True}],
            }
        }
    )
    version = kind.versions[0]._replace(columns=columns)
    return kind._replace(versions=(version,))


def test_custom_columns() -> None:
    """Values of another type than the column's are left out; objects in text columns are JSON."""
    kind = custom(
        Column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
        Column("Git", "string", ".spec.git", priority=1),
        Column("First", "integer", ".spec.list[0]"),
        Column("Flag", "boolean", ".spec.flag"),
        Column("Wrong", "integer", ".spec.git.repo"),
        Column("Missing", "string", ".spec.missing"),
        Column("Made", "date", ".metadata.creationTimestamp"),
    )
    assert titles(kind) == ["Name", "Ready", "First", "Flag", "Wrong", "Missing", "Made"]
    assert "Git" in titles(kind, wide=True)
    assert rows(kind, {"metadata": meta(), **OBJ}) == [
        ["a", "True", '{"repo":"url"}', 1, False, None, None, "24h"]
    ]
    assert titles(custom()) == ["Name", "Age"]


def test_what_rows_carry() -> None:
    """A row holds nothing, the metadata or the whole object, as asked for."""
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(), "data": {}}
    for include, expected in (
        ("None", None),
        ("Object", obj),
        (
            "Metadata",
            {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta()},
        ),
    ):
        made = table(builtin.CONFIG_MAP, "v1", [obj], now=NOW, include=include)  # type: ignore[arg-type]
        assert made["rows"][0].get("object") == expected
    later = table(builtin.CONFIG_MAP, "v1", [obj], now=NOW, resource_version="7", continue_="c", watch=True)
    assert later["metadata"] == {"resourceVersion": "7", "continue": "c"}
    assert later["columnDefinitions"] == []
