"""`pvbus propose` and `approve` of what a quarantine covers, or while all rollouts are stopped."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from pvbus.cli.fleet import silent
from pvbus.cli.proposalmoves import Asked, carry_out, plan_moves
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import OVERRIDE_QUARANTINE, Key
from pvbus.core.kernel.objectrows import QUARANTINE, STOP
from pvbus.core.promotion.protocol.proposals import APPROVE
from pvbus.core.promotion.protocol.quarantines import QUARANTINED, UNKNOWN
from pvbus.core.promotion.protocol.stops import FLEET_STOPPED, STOP_UNKNOWN
from pvbus.core.variants.revisions.content import content_digest, source_digest
from pvbus.ports.cluster import Kind, Object, Resource
from tests.unit.cli.test_proposals import Captured, Location

FILES = {"Kptfile": "kind: Kptfile\n", "a.yaml": "a: 1\n"}
V5, V6 = "blueprints/web@v5", "blueprints/web@v6"
STOPS: Object = {"entries": [{"name": "1", "by": "ann", "reason": "payments are down"}]}
RESOURCES = "PackageRevisionResources"
NAME = "edge.a.packagevariant-1"


def serve(location: Location) -> None:
    """Serve the kinds of promotion, and files. All drafts are made of V6, and have equal files, as V6 has."""
    for group, name, plural in (
        ("promotion.pvbus.dev", "Quarantine", "quarantines"),
        ("promotion.pvbus.dev", "RolloutStop", "rolloutstops"),
        ("porch.kpt.dev", RESOURCES, "packagerevisionresources"),
    ):
        location.server.serve(Resource(group, "v1alpha1", name, plural, namespaced=True))
    upstream = {"repo": "blueprints", "package": "web", "revision": 6}
    for obj in location.server.objects():
        if obj["kind"] == "PackageVariant":
            location.server.put({**obj, "spec": {"upstream": upstream}})
        elif obj["kind"] == "PackageRevision":
            lock = {"upstreamLock": {"git": {"directory": "web", "ref": "web/v6"}}}
            location.server.put({**obj, "status": lock})
            put_files(location, obj)
    blueprint = {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {"name": "blueprints.web.six", "namespace": "default"},
        "spec": {
            "lifecycle": "Published",
            "repository": "blueprints",
            "packageName": "web",
            "revision": 6,
            "workspaceName": "six",
        },
    }
    location.server.put(blueprint)
    put_files(location, blueprint)


def put_files(location: Location, revision: Object) -> None:
    location.server.put({**revision, "kind": RESOURCES, "spec": {"resources": FILES}})


def put(location: Location, kind: Kind, spec: Object) -> None:
    meta = {"name": "x", "namespace": "default"}
    location.server.put(
        {"apiVersion": f"{kind.group}/v1alpha1", "kind": kind.kind, "metadata": meta, "spec": spec}
    )


class Guarded(Location):
    @property
    def note(self) -> str:
        """What the revision of `a` says of an override."""
        stored = self.server.peek(Kind("porch.kpt.dev", "PackageRevision"), "default", NAME)
        assert stored is not None
        return str(stored["metadata"]["annotations"][OVERRIDE_QUARANTINE])

    def refuse_lists(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        listing = self.server.list

        async def refusing(resource: Resource, *args: Any, **options: Any) -> Any:
            if resource.kind == kind:
                raise PermanentError("forbidden")
            return await listing(resource, *args, **options)

        monkeypatch.setattr(self.server, "list", refusing)


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guarded:
    found = Guarded(tmp_path, monkeypatch)
    serve(found)
    return found


@pytest.mark.parametrize(
    ("reason", "spec", "is_refused"),
    [
        ("its upstream revision", {"upstreams": [{"revision": V6}]}, True),
        ("another one of other files", {"upstreams": [{"revision": V5, "files": "0" * 32}]}, False),
        (
            "another one of the same files",
            {"upstreams": [{"revision": V5, "files": source_digest(FILES)}]},
            True,
        ),
        ("its content", {"contents": [content_digest(FILES)]}, True),
        ("another content", {"contents": ["0" * 32]}, False),
        ("those of another set", {"sets": ["other"], "upstreams": [{"revision": V6}]}, False),
        (
            "one that has ended",
            {"upstreams": [{"revision": V6}], "released": {"reason": "false alarm"}},
            False,
        ),
    ],
)
def test_what_a_quarantine_covers_is_not_proposed(
    location: Guarded, capsys: Captured, reason: str, spec: Object, is_refused: bool
) -> None:
    put(location, QUARANTINE, spec)
    location.run("propose")
    shown = capsys.readouterr().out
    assert (location.lifecycles["a"] == "Draft") is is_refused, reason
    assert (QUARANTINED in shown) is is_refused, reason
    assert ("--override REASON" in shown) is is_refused, reason
    if is_refused:
        location.run("propose", "--override", "the customer waits")
        assert location.lifecycles["a"] == "Proposed", reason
        assert ": the customer waits (in spite of " in location.note, reason


def test_files_that_cannot_be_read_are_taken_for_the_quarantined_ones(location: Guarded) -> None:
    location.server.remove(Kind("porch.kpt.dev", RESOURCES), "default", "blueprints.web.six")
    put(location, QUARANTINE, {"upstreams": [{"revision": V5, "files": "0" * 32}]})
    assert location.run("propose") == 1
    assert location.lifecycles["a"] == "Draft"


@pytest.mark.parametrize(
    ("kind", "spec", "word"),
    [(QUARANTINE, {"upstreams": [{"revision": V6}]}, QUARANTINED), (STOP, STOPS, FLEET_STOPPED)],
)
def test_an_approval_needs_an_override_with_a_reason_which_is_recorded_before_it_is_published(
    location: Guarded, capsys: Captured, kind: Kind, spec: Object, word: str
) -> None:
    assert location.run("propose") == 1, "b has a conflict"
    put(location, kind, spec)
    assert location.run("approve", "--yes") == 1
    assert f"refused: 2 {word}" in capsys.readouterr().out
    assert location.run("approve", "--yes", "--override", " ") != 0, "a blank text is no reason"
    assert location.lifecycles["a"] == "Proposed"
    assert location.run("approve", "--yes", "--override", "the customer waits") == 0
    assert location.lifecycles["a"] == "Published"
    assert re.match(r"\S+ at \d{4}-\d\d-\d\dT\S+: the customer waits \(in spite of ", location.note)
    assert word in location.note
    written = [each.subresource for each in location.server.writes if each.name == NAME]
    assert written == ["", "", "approval"], "proposed, noted, published"


def test_a_stop_of_all_rollouts_keeps_no_draft_from_being_proposed(location: Guarded) -> None:
    put(location, STOP, STOPS)
    location.run("propose")
    assert location.lifecycles["a"] == "Proposed"


def test_an_override_passes_nothing_else_and_is_not_recorded_where_nothing_is_passed(
    location: Guarded,
) -> None:
    assert location.run("propose", "--override", "I may") == 1
    assert [location.lifecycles[name] for name in "abc"] == ["Proposed", "Draft", "Proposed"]
    noted = [each["metadata"].get("annotations") or {} for each in location.server.objects()]
    assert not [each for each in noted if OVERRIDE_QUARANTINE in each]


@pytest.mark.parametrize(("kind", "word"), [("Quarantine", UNKNOWN), ("RolloutStop", STOP_UNKNOWN)])
def test_what_cannot_be_listed_refuses_too(
    location: Guarded, capsys: Captured, monkeypatch: pytest.MonkeyPatch, kind: str, word: str
) -> None:
    assert location.run("propose") == 1
    location.refuse_lists(monkeypatch, kind)
    assert location.run("approve", "--yes") == 1
    assert f"refused: 2 {word}" in capsys.readouterr().out
    assert location.lifecycles["a"] == "Proposed"


def test_nothing_is_proposed_by_hand_where_quarantines_cannot_be_listed(
    location: Guarded, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    location.refuse_lists(monkeypatch, "Quarantine")
    assert location.run("propose") == 1
    assert UNKNOWN in capsys.readouterr().out
    assert [location.lifecycles[name] for name in "abc"] == 3 * ["Draft"]


def test_a_quarantine_that_comes_after_the_question_refuses_too(location: Guarded) -> None:
    assert location.run("propose") == 1
    asked = Asked(APPROVE, Key("default", "web"), (), "", False, True, "")
    plan = asyncio.run(plan_moves(location.server, asked))
    assert len(plan.due) == 2
    put(location, QUARANTINE, {"upstreams": [{"revision": V6}]})
    results, _ = asyncio.run(carry_out(location.server, asked, plan, silent))
    assert {each.reason for each in results} == {QUARANTINED}
    assert location.lifecycles["a"] == "Proposed"
