"""What takes more than one kubectl at a time: watches, waiting deletes, owners, namespaces, new kinds."""

import uuid

import pytest
import yaml

from pvbus.ports.cluster import Kind
from tests.e2e.kubectl.driver import CONFIG_MAP, WIDGET, Kubectl, Subject, eventually

pytestmark = [pytest.mark.kubectl, pytest.mark.timeout(1800)]  # the first one may have to build kubectl

both_kinds = pytest.mark.parametrize(
    "subject", [pytest.param(WIDGET, id="custom"), pytest.param(CONFIG_MAP, id="configmap")]
)


@both_kinds
def test_watch(kubectl: Kubectl, subject: Subject) -> None:
    """A watch shows what is there, then each change as it happens, with its event's type if asked."""
    kubectl.good("create -f -", stdin=subject.manifest())
    columns = f"-o custom-columns=N:.metadata.name,S:.{subject.holder}.size --no-headers"
    with (
        kubectl.follow(f"get {subject.resource} --watch {columns}") as plain,
        kubectl.follow(f"get {subject.resource} --watch --output-watch-events") as events,
        kubectl.follow(f"get {subject.resource} a --watch-only -o name") as only,
    ):
        plain.line(r"^a +1$")
        events.line(r"^EVENT +NAME ")
        events.line(r"^ADDED +a +1 ")
        kubectl.good("apply -f -", stdin=subject.manifest(name="b", size="5"))
        plain.line(r"^b +5$")
        events.line(r"^ADDED +b ")
        patch = f'{{"{subject.holder}":{{"size":"2"}}}}'
        kubectl.good(f"patch {subject.resource} a --type merge -p '{patch}'")
        plain.line(r"^a +2$")
        events.line(r"^MODIFIED +a ")
        only.line(f"^{subject.printed}/a$")
        kubectl.good(f"delete {subject.resource} b")
        events.line(r"^DELETED +b ")


@both_kinds
def test_watch_as_a_table(kubectl: Kubectl, subject: Subject) -> None:
    """The table of a watch has its header once, and rows that follow."""
    kubectl.good("create -f -", stdin=subject.manifest())
    with kubectl.follow(f"get {subject.resource} --watch") as watch:
        watch.line(r"^NAME .*AGE")
        watch.line(r"^a +1 ")
        kubectl.good("create -f -", stdin=subject.manifest(name="b"))
        assert "NAME" not in watch.line(r"^b +1 ")


@both_kinds
def test_delete_waits(kubectl: Kubectl, subject: Subject) -> None:
    """delete --wait comes back when the last finalizer went, and not before."""
    kubectl.good("create -f -", stdin=subject.manifest(metadata={"finalizers": ["example.com/hold"]}))
    with kubectl.follow(f"delete {subject.resource} a --wait") as delete:
        delete.line('"a" deleted')
        found = kubectl.get(subject)
        assert found is not None
        assert "deletionTimestamp" in found["metadata"]
        assert delete.is_running()
        remove = '[{"op":"remove","path":"/metadata/finalizers"}]'
        kubectl.good(f"patch {subject.resource} a --type json -p '{remove}'")
        assert delete.end() == 0
    assert kubectl.get(subject) is None


@both_kinds
def test_wait_sees_a_later_change(kubectl: Kubectl, subject: Subject) -> None:
    """wait comes back as soon as the value is there."""
    kubectl.good("create -f -", stdin=subject.manifest())
    path = f"{{.{subject.holder}.size}}"
    with kubectl.follow(f"wait --for=jsonpath='{path}'=2 {subject.resource}/a --timeout=20s") as wait:
        kubectl.good("apply -f -", stdin=subject.manifest(size="2"))
        wait.line("condition met")
        assert wait.end() == 0


def test_wait_sees_a_later_condition(kubectl: Kubectl) -> None:
    """wait --for=condition follows the status that another client writes."""
    kubectl.good("create -f -", stdin=WIDGET.manifest())
    with kubectl.follow("wait --for=condition=Ready widget/a --timeout=20s") as wait:
        status = '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'
        kubectl.good(f"patch widget a --subresource=status --type merge -p '{status}'")
        wait.line("condition met")
        assert wait.end() == 0


def owned_pair(kubectl: Kubectl, subject: Subject) -> None:
    """Make `a`, and `b` that belongs to it."""
    kubectl.good("create -f -", stdin=subject.manifest())
    uid = kubectl.good(f"get {subject.resource} a -o jsonpath={{.metadata.uid}}")
    owner = {"apiVersion": subject.api_version, "kind": subject.kind.kind, "name": "a", "uid": uid}
    kubectl.good("create -f -", stdin=subject.manifest(name="b", metadata={"ownerReferences": [owner]}))


@both_kinds
@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_cascade_takes_what_is_owned(kubectl: Kubectl, subject: Subject, cascade: str) -> None:
    """What belongs to a deleted object goes too."""
    owned_pair(kubectl, subject)
    kubectl.good(f"delete {subject.resource} a --cascade={cascade}")
    kubectl.good(f"wait --for=delete {subject.resource}/b --timeout=20s")
    assert kubectl.get(subject) is None
    assert kubectl.get(subject, "b") is None


@both_kinds
def test_cascade_orphan(kubectl: Kubectl, subject: Subject) -> None:
    """With --cascade=orphan what belonged to it stays, and belongs to nobody."""
    owned_pair(kubectl, subject)
    kubectl.good(f"delete {subject.resource} a --cascade=orphan")
    eventually(lambda: kubectl.get(subject) is None)
    left = kubectl.get(subject, "b")
    assert left is not None
    assert not left["metadata"].get("ownerReferences")
    assert "deletionTimestamp" not in left["metadata"]


def test_what_is_owned_by_nobody_goes(kubectl: Kubectl) -> None:
    """An object whose owner never was, or went before, is collected."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": str(uuid.UUID(int=1))}
    kubectl.good("create -f -", stdin=CONFIG_MAP.manifest(metadata={"ownerReferences": [owner]}))
    kubectl.good("wait --for=delete configmap/a --timeout=20s")


def test_namespace_with_its_content(kubectl: Kubectl) -> None:
    """Deleting a namespace deletes what is in it, waits for finalizers there, and takes nothing new."""
    hold = {"finalizers": ["example.com/hold"]}
    kubectl.good("create -f -", stdin=CONFIG_MAP.manifest())
    kubectl.good("create -f -", stdin=WIDGET.manifest(metadata=hold))
    with kubectl.follow(f"delete namespace {kubectl.namespace}") as delete:
        eventually(lambda: kubectl.get(CONFIG_MAP) is None)
        phase = kubectl.good(f"get namespace {kubectl.namespace} -o jsonpath={{.status.phase}}")
        assert phase == "Terminating"
        said = kubectl.run("create -f -", stdin=CONFIG_MAP.manifest(name="late"))
        assert said.code == 1
        assert "because it is being terminated" in said.err
        assert delete.is_running()
        kubectl.good("""patch widget a --type merge -p '{"metadata":{"finalizers":null}}'""")
        assert delete.end() == 0
    assert kubectl.get(WIDGET) is None
    assert kubectl.served.object(Kind("", "Namespace"), "", kubectl.namespace) is None
    said = kubectl.run("create -f -", stdin=CONFIG_MAP.manifest())
    assert "namespaces" in said.err
    assert "not found" in said.err


@both_kinds
def test_describe_with_events(kubectl: Kubectl, subject: Subject) -> None:
    """describe ends with the events of exactly this object; events --watch shows them as they come."""
    kubectl.good("create -f -", stdin=subject.manifest())
    uid = kubectl.good(f"get {subject.resource} a -o jsonpath={{.metadata.uid}}")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "made"},
        "involvedObject": {
            "apiVersion": subject.api_version,
            "kind": subject.kind.kind,
            "namespace": kubectl.namespace,
            "name": "a",
            "uid": uid,
        },
        "type": "Warning",
        "reason": "Made",
        "message": "It was made",
        "source": {"component": "tester"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 2,
    }
    with kubectl.follow("events --watch") as watch:
        kubectl.good("create -f -", stdin=yaml.safe_dump(event))
        watch.line(r"Warning +Made +\w+/a +It was made")
    described = kubectl.good(f"describe {subject.resource} a")
    assert "Events:" in described
    assert described.splitlines()[-1].split()[:2] == ["Warning", "Made"]
    assert "tester" in described.splitlines()[-1]


def test_a_new_kind(kubectl: Kubectl, tmp_path: object) -> None:
    """A definition can be used once it is established; deleting it deletes its objects, then the kind."""
    kubectl.environment(KUBECACHEDIR=str(tmp_path))  # discovery changes here, and others share the cache
    suffix = kubectl.namespace.replace("-", "")
    name = f"gadgets.{suffix}.example.com"
    versions = [
        {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {
                "openAPIV3Schema": {
                    "type": "object",
                    "properties": {"spec": {"type": "object", "properties": {"count": {"type": "integer"}}}},
                }
            },
        }
    ]
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": f"{suffix}.example.com",
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": versions,
        },
    }
    kubectl.good("apply -f -", stdin=yaml.safe_dump(definition))
    kubectl.good(f"wait --for=condition=established crd/{name} --timeout=20s")
    gadget = {
        "apiVersion": f"{suffix}.example.com/v1",
        "kind": "Gadget",
        "metadata": {"name": "a"},
        "spec": {"count": 1},
    }
    assert kubectl.good("apply -f -", stdin=yaml.safe_dump(gadget)) == (
        f"gadget.{suffix}.example.com/a created\n"
    )
    assert "count\t<integer>" in kubectl.good(f"explain gadgets.{suffix}.example.com.spec")
    kubectl.good(f"delete crd {name}")
    assert kubectl.served.object(Kind(f"{suffix}.example.com", "Gadget"), kubectl.namespace, "a") is None
    said = kubectl.run("apply -f -", stdin=yaml.safe_dump(gadget))
    assert said.code == 1
    assert "could not find the requested resource" in said.err  # kubectl has the kind in its cache still


def test_a_broken_definition_is_refused(kubectl: Kubectl) -> None:
    """A definition that is not structural is refused with the path of what is wrong."""
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "brokens.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "brokens", "kind": "Broken"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {}}}},
                }
            ],
        },
    }
    said = kubectl.run("create -f -", stdin=yaml.safe_dump(definition))
    assert said.code == 1
    where = "spec.validation.openAPIV3Schema.properties[spec].type: Required value"
    assert where in said.err
