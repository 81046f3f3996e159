"""upsert-resource v0.2.0."""

import pytest

from pvbus.controlplane.packages.functions import files
from pvbus.controlplane.packages.functions.item import Item
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.functions.upsert_resource import upsert_resource
from pvbus.controlplane.packages.render import render
from pvbus.core.errors import PermanentError
from tests.unit.packages.support import after, config, config_map, text

SERVICE = text("""
    apiVersion: v1 # head
    kind: Service
    metadata:
      name: a
      annotations:
        mine: stays not
    spec:
      # about the port
      port: 80 # old
      kept: 1 # kept
    """)


def test_an_object_is_replaced_where_it_is() -> None:
    """Equal fields keep their text; the annotations are those of the configuration."""
    own = config("{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {port: 8080, kept: 1}}")
    assert after(upsert_resource, own, SERVICE) == [
        text("""
            apiVersion: v1 # head
            kind: Service
            metadata:
              name: a
            spec:
              # about the port
              port: 8080 # old
              kept: 1 # kept
            """)
    ]


@pytest.mark.parametrize(
    ("reason", "own", "replaces"),
    [
        ("another version of the group", "{apiVersion: v2, kind: Service, metadata: {name: a}}", True),
        ("another group", "{apiVersion: x.org/v1, kind: Service, metadata: {name: a}}", False),
        ("another kind", "{apiVersion: v1, kind: Secret, metadata: {name: a}}", False),
        ("another name", "{apiVersion: v1, kind: Service, metadata: {name: b}}", False),
        (
            "default is not the empty namespace",
            "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: default}}",
            False,
        ),
        (
            "in this file",
            "{apiVersion: v1, kind: Service, metadata: {name: a, annotations: "
            "{config.kubernetes.io/target-path: 0.yaml}}}",
            True,
        ),
        (
            "in another file",
            "{apiVersion: v1, kind: Service, metadata: {name: a, annotations: "
            "{config.kubernetes.io/target-path: 1.yaml}}}",
            False,
        ),
    ],
)
def test_which_object_is_the_same(reason: str, own: str, replaces: bool) -> None:
    texts = after(upsert_resource, config(own), SERVICE)
    assert len(texts) == (1 if replaces else 2), reason
    assert (texts[0] == SERVICE) is not replaces
    assert "target-path" not in texts[-1]


def test_every_one_of_several_is_replaced_and_each_of_a_list_is_used() -> None:
    own = config("""
        apiVersion: v1
        kind: List
        items:
        - {apiVersion: v1, kind: Service, metadata: {name: a}}
        - {apiVersion: v1, kind: Secret, metadata: {name: b, annotations: {c: d}}}
        """)
    bare = "apiVersion: v1 # head\nkind: Service\nmetadata:\n  name: a\n"
    added = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: b\n  annotations:\n    c: d\n"
    assert after(upsert_resource, own, SERVICE, SERVICE) == [bare, bare, added]


def rendered(target: str, **more: str) -> dict[str, str]:
    """Render a package that upserts a Secret with a target path."""
    resources = {
        "Kptfile": text("""
            apiVersion: kpt.dev/v1
            kind: Kptfile
            metadata:
              name: p
            pipeline:
              mutators:
              - image: upsert-resource:v0.2.0
                configPath: fn.yaml
            """),
        "fn.yaml": text(f"""
            apiVersion: v1
            kind: List
            metadata:
              name: fn
            items:
            - apiVersion: v1
              kind: Secret
              metadata:
                name: b
                annotations:
                  config.kubernetes.io/target-path: {target}
            """),
        **more,
    }
    result = render(resources, registry=FunctionRegistry())
    assert result.rendered or "outside of the package" in result.message
    return dict(result.resources)


SECRET = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: b\n"


def test_a_new_object_goes_to_its_target_path() -> None:
    assert rendered("x/new.yaml")["x/new.yaml"] == SECRET
    assert rendered("old.yaml", **{"old.yaml": SERVICE})["old.yaml"] == f"{SERVICE}---\n{SECRET}"
    assert rendered("''")["secret_b.yaml"] == SECRET


@pytest.mark.parametrize("target", ["../x.yaml", "/x.yaml", "a/../../x.yaml"])
def test_a_target_path_outside_of_the_package_is_refused(target: str) -> None:
    assert set(rendered(target)) == {"Kptfile", "fn.yaml"}


def test_an_unpacked_object_stays_where_files_put_it() -> None:
    """A second run finds what the first one added."""
    own = config(
        "{apiVersion: v1, kind: Secret, metadata: {name: b, annotations: "
        "{config.kubernetes.io/target-path: x.yaml}}}"
    )
    (added,) = upsert_resource((), own).items
    placed = files.placed(added, "")
    assert upsert_resource([placed], own).items == (placed,)


@pytest.mark.parametrize("own", [None, {"kind": "List", "items": {"a": "b"}}, {"kind": "List", "items": [1]}])
def test_a_configuration_it_cannot_use_fails(own: dict[str, object] | None) -> None:
    with pytest.raises(PermanentError, match="functionConfig"):
        upsert_resource((), own)


def test_an_empty_list_changes_nothing() -> None:
    given = Item(text=SERVICE, value={"kind": "Service"})
    assert upsert_resource([given], {"kind": "List"}).items == (given,)


def test_a_config_map_is_itself_the_object() -> None:
    """As in the catalog: `configMap` of the Kptfile cannot name what to upsert."""
    (added,) = upsert_resource((), config_map(a="b")).items
    assert (added.kind, added.name) == ("ConfigMap", "function-input")
