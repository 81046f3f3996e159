"""`kubectl describe` shows what the services tell people of an object."""

import json

from pvbus.core.kernel.effects import Create, KindRef, Notice, Patch
from pvbus.core.variants.conditions.recording import Recorder
from pvbus.ports.cluster import Kind
from tests.e2e.kubectl.driver import Kubectl

WIDGET = Kind("example.com", "Widget")


def test_describe_shows_the_events_of_an_object_with_their_repetitions(kubectl: Kubectl) -> None:
    """kubectl looks for them by name, namespace, kind and uid; those of a former object stay out."""
    body = {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "a"},
        "spec": {"size": "1"},
    }
    kubectl.good("create -f -", stdin=json.dumps(body))
    widget = kubectl.served.object(WIDGET, kubectl.namespace, "a")
    assert widget is not None
    recorder = Recorder("pvbus-conditions-0")
    kind = KindRef("example.com", "Widget", "v1")
    writes = []
    for number, (uid, note) in enumerate(
        [(widget["metadata"]["uid"], "made")] * 2 + [(widget["metadata"]["uid"], "again"), ("other", "old")]
    ):
        notice = Notice(
            f"{number:016x}", kind, kubectl.namespace, "a", uid, "Ready", note, False, widget_time(number)
        )
        writes.append(recorder.admit(notice, float(number)))
    for write in writes:
        if isinstance(write, Create):
            kubectl.good("create -f -", stdin=json.dumps(write.object))
        elif isinstance(write, Patch):
            patch = json.dumps(write.patch)
            kubectl.good(f"patch events.v1.events.k8s.io {write.name} --type merge -p '{patch}'")
    said = kubectl.good("describe widget a").partition("Events:")[2]
    lines = [line.split() for line in said.splitlines() if "Ready" in line]
    assert sorted((line[0], line[-2], line[-1]) for line in lines) == [
        ("Normal", "pvbus.dev/conditions", "again"),
        ("Normal", "pvbus.dev/conditions", "made"),
    ], said
    assert "(x2 over" in said


def widget_time(number: int) -> str:
    return f"2026-01-01T00:00:{number:02}.000Z"
