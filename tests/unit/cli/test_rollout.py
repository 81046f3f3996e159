"""`pvbus rollout plan`: what it reads, what it shows, and what it says about a mistake."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli.main import run
from pvbus.ports.cluster import Resource

Captured = pytest.CaptureFixture[str]
WAVES = [{"count": 1, "hold": "10m"}, {"percent": 50, "checks": []}, {"percent": 100}]
QUARANTINES = Resource("promotion.pvbus.dev", "v1alpha1", "Quarantine", "quarantines", namespaced=True)
POLICIES = Resource("promotion.pvbus.dev", "v1alpha1", "RolloutPolicy", "rolloutpolicies", namespaced=True)


def policy(name: str = "edge", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "promotion.pvbus.dev/v1alpha1",
        "kind": "RolloutPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"revisions": {"all": True}, "approval": "Always", "waves": WAVES, **spec},
    }


def revision(package: str, *, number: int = 0, lifecycle: str = "Proposed") -> dict[str, Any]:
    return {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {"name": f"edge.{package}.v{number or 9}", "namespace": "default"},
        "spec": {"repository": "edge", "packageName": package, "lifecycle": lifecycle, "revision": number},
    }


def owned(name: str, **more: Any) -> dict[str, Any]:
    """Return a revision of the package and of the variant of this name."""
    made = revision(name, **more)
    made["metadata"]["ownerReferences"] = [{"kind": "PackageVariant", "name": name, "uid": f"uid-{name}"}]
    return made


FLEET = [revision(name) for name in "abcd"] + [
    revision(name, number=1, lifecycle="Published") for name in "abc"
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.yaml"


def write(file: Path, *objects: dict[str, Any]) -> str:
    file.write_text(yaml.safe_dump_all(objects))
    return str(file)


def document(captured: Captured) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(captured.readouterr().out)
    return found


def test_every_target_is_in_its_wave_with_what_the_wave_waits_for(file: Path, capsys: Captured) -> None:
    errors = {"name": "errors", "query": {"expression": "errors", "min": 0, "max": 0.5}}
    ready = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "expression": "object.ok"}
    checks = [errors, {"name": "node", "object": ready}, {"name": "boss", "person": {"question": "Well?"}}]
    waves = [{"count": 1, "hold": "10m"}, {"percent": 50, "checks": checks}, {"percent": 100}]
    window = {"days": ["Mon"], "start": "00:00", "end": "24:00"}
    name = write(file, policy(waves=waves, canaries=["edge/c"], windows=[window]), *FLEET)
    assert run(["rollout", "plan", "-f", name]) == 0
    shown = capsys.readouterr().out
    assert "RolloutPolicy default/edge: 4 targets, approval Always" in shown
    assert "wave 1 (count 1, 1 of 4): edge/c\n" in shown
    assert "before the next: hold 10m" in shown
    assert "wave 2 (50 %, 2 of 4): edge/a\n" in shown
    assert "before the next: errors: errors at least 0 and at most 0.5 for 5m" in shown
    assert "before the next: node: Node node-1: object.ok" in shown
    assert "before the next: boss: a person: Well?" in shown
    assert "wave 3 (100 %, 4 of 4): edge/b, edge/d\n" in shown
    assert "only Mon 00:00-24:00 UTC" in shown
    assert "ends Completed, after at least" in shown


def test_a_plan_says_which_canary_it_waits_for(file: Path, capsys: Captured) -> None:
    name = write(file, policy(canaries=["edge/c", "edge/x"]), *FLEET)
    assert run(["rollout", "plan", "-f", name]) == 0
    shown = capsys.readouterr().out
    assert "waits for its canaries (CanaryMissing): canary edge/x: no PackageVariant of this name" in shown
    assert "change spec.canaries" in shown
    assert "wave 1" not in shown
    name = write(file, policy(canaries=["edge/c"], approval="Initial"), *FLEET)
    assert run(["rollout", "plan", "-f", name]) == 0
    shown = capsys.readouterr().out
    assert "waits for its canaries (CanaryNotReady): canary edge/c: NotInitial" in shown
    name = write(file, policy("a", canaries=["edge/c"]), policy("b", priority=1), *FLEET)
    assert run(["rollout", "plan", "-f", name, "default/a"]) == 0
    assert "canary edge/c: policy b has it" in capsys.readouterr().out


def test_a_plan_whose_canary_runs_the_revision_goes_on_without_it(file: Path, capsys: Captured) -> None:
    fleet = [revision("a"), revision("c", number=1, lifecycle="Published")]
    assert run(["rollout", "plan", "-f", write(file, policy(canaries=["edge/c"]), *fleet)]) == 0
    shown = capsys.readouterr().out
    assert "wave 1 (count 1, 1 of 1): edge/a" in shown
    assert "ends Completed" in shown


def test_a_canary_that_fails_stops_whatever_the_budget_is(file: Path, capsys: Captured) -> None:
    name = write(file, policy(canaries=["edge/c"], budgets={"maxFailing": 4}), *FLEET)
    assert run(["rollout", "plan", "-f", name, "--failing", "edge/c"]) == 0
    assert "ends Stopped: canary edge/c fails" in capsys.readouterr().out


def test_validate_warns_of_a_misspelt_canary(file: Path, capsys: Captured) -> None:
    variant = {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "PackageVariant",
        "metadata": {"name": "web-north", "namespace": "default"},
        "spec": {
            "upstream": {"repo": "blueprints", "package": "web", "revision": 1},
            "downstream": {"repo": "edge", "package": "web"},
        },
    }
    name = write(file, policy(canaries=["web-nroth"]), variant)
    with pytest.raises(SystemExit) as end:
        run(["validate", name])
    assert end.value.code == 0
    words = '"web-nroth" is no PackageVariant of these files, so nothing would be approved'
    assert f'{words}: did you mean "web-north"?' in capsys.readouterr().out


def test_a_failing_target_shows_the_rollback_and_what_cannot_go_back(file: Path, capsys: Captured) -> None:
    name = write(file, policy(budgets={"onFailure": "RollBack"}), *FLEET)
    assert run(["rollout", "plan", "-f", name, "--failing", "edge/d"]) == 0
    shown = capsys.readouterr().out
    assert "ends RolledBack: 1 target fails, 0 may" in shown
    assert "back to the revision before: edge/a\n" in shown
    assert "no revision to go back to: edge/d\n" in shown
    assert run(["rollout", "plan", "-f", name, "--failing", "edge/x"]) == 2
    assert "edge/x: no such target of these policies" in capsys.readouterr().err


def test_a_policy_that_stops_leaves_the_later_waves_planned(file: Path, capsys: Captured) -> None:
    name = write(file, policy(), *FLEET)
    assert run(["rollout", "plan", "-f", name, "--failing", "edge/a", "-o", "json"]) == 0
    (found,) = document(capsys)["policies"]
    states = [target["state"] for wave in found["waves"] for target in wave["targets"]]
    assert (found["end"]["state"], states) == ("Stopped", ["failed", "planned", "planned", "planned"])


def test_what_is_left_out_is_named_with_its_reason(file: Path, capsys: Captured) -> None:
    name = write(file, policy(approval="Initial"), *FLEET)
    assert run(["rollout", "plan", "-f", name]) == 0
    shown = capsys.readouterr().out
    assert "wave 1 (count 1, 1 of 1): edge/d\n" in shown
    assert "left out edge/a (edge.a.v9): NotInitial: edge.a.v1 is published" in shown


def test_a_manual_policy_says_that_a_person_begins(file: Path, capsys: Captured) -> None:
    assert run(["rollout", "plan", "-f", write(file, policy(approval="Manual"), *FLEET)]) == 0
    shown = capsys.readouterr().out
    assert "before wave 1: a person approves it" in shown
    assert shown.count("before the next: a person approves the next wave") == 2


def test_a_wrong_policy_is_refused_by_plan_and_validate_with_all_its_problems(
    file: Path, capsys: Captured
) -> None:
    name = write(file, policy(waves=[{"percent": 50}], delay="soon"), *FLEET)
    assert run(["rollout", "plan", "-f", name]) == 1
    shown = capsys.readouterr().out
    assert "RolloutPolicy default/edge is not accepted:" in shown
    with pytest.raises(SystemExit, match="1"):
        run(["validate", name])
    validated = capsys.readouterr().out
    for problem in ("spec.delay", "spec.waves[0].percent"):
        assert problem in shown
        assert problem in validated


def test_a_field_that_the_schema_refuses_is_named(file: Path, capsys: Captured) -> None:
    assert run(["rollout", "plan", "-f", write(file, policy(approval="Sometimes"), *FLEET)]) == 1
    assert "spec.approval" in capsys.readouterr().err


def test_of_two_policies_the_loser_says_so_and_unselected_packages_are_counted(
    file: Path, capsys: Captured
) -> None:
    name = write(file, policy("a"), policy("b", priority=1, revisions={"repositories": ["edge"]}), *FLEET)
    assert run(["rollout", "plan", "-f", name]) == 0
    assert "belong to b: the highest priority wins" in capsys.readouterr().out
    name = write(file, policy(revisions={"repositories": ["core"]}), *FLEET)
    assert run(["rollout", "plan", "-f", name]) == 0
    shown = capsys.readouterr().out
    assert "RolloutPolicy default/edge: 0 targets" in shown
    assert "4 packages with a proposed revision: no policy" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to plan"),
        (["--data", "a", "--kubeconfig", "b"], "two live systems"),
        (["default/x", "-f", "FILE"], "there is no RolloutPolicy default/x; there is default/edge"),
        (["x", "-n", "a", "-f", "FILE"], "there is no RolloutPolicy a/x; there is default/edge"),
    ],
)
def test_bad_usage_says_what_to_give(
    file: Path, capsys: Captured, arguments: list[str], message: str
) -> None:
    name = write(file, policy(), *FLEET)
    assert run(["rollout", "plan", *(name if each == "FILE" else each for each in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_files_without_a_policy_say_so(file: Path, capsys: Captured) -> None:
    assert run(["rollout", "plan", "-f", write(file, *FLEET)]) == 2
    assert "there is no RolloutPolicy: give one with -f FILE" in capsys.readouterr().err


class Connection:
    """Makes the command connect to a cluster in memory."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kubeconfig = tmp_path / "kubeconfig"
        self.kubeconfig.write_text("{}")
        self.cluster = MemoryCluster(now=lambda: "2026-01-01T00:00:00Z")

        async def connect(path: Path) -> MemoryCluster:
            return self.cluster

        monkeypatch.setattr(HttpCluster, "connect", connect)


def test_a_file_replaces_the_live_policy_of_its_name(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    live = Connection(tmp_path, monkeypatch)
    for each in FLEET:
        live.cluster.put(each)
    assert run(["rollout", "plan", "--kubeconfig", str(live.kubeconfig)]) == 1
    assert "does not serve RolloutPolicy" in capsys.readouterr().err
    arguments = ["rollout", "plan", "--kubeconfig", str(live.kubeconfig), "-o", "json"]
    assert run([*arguments, "-f", write(file, policy())]) == 0
    assert len(document(capsys)["policies"][0]["waves"][2]["targets"]) == 2
    live.cluster.serve(POLICIES)
    live.cluster.put(policy(waves=[]))
    assert run(arguments) == 0
    assert len(document(capsys)["policies"][0]["waves"]) == 1
    assert run([*arguments, "-f", write(file, policy())]) == 0
    assert len(document(capsys)["policies"][0]["waves"]) == 3


READY = {
    "type": "Ready",
    "status": "True",
    "reason": "NoErrors",
    "message": "",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def variant(name: str, **annotations: str) -> dict[str, Any]:
    """Return a ready variant of the set web that is opted in."""
    owners = [
        {
            "apiVersion": "config.porch.kpt.dev/v1alpha2",
            "kind": "PackageVariantSet",
            "name": "web",
            "uid": "u",
        }
    ]
    opted_in = {"config.porch.kpt.dev/auto-lifecycle-mgmt": "true"}
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "PackageVariant",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "ownerReferences": owners,
            "annotations": {**opted_in, **annotations},
        },
        "spec": {
            "upstream": {"repo": "blueprints", "package": "web", "revision": 1},
            "downstream": {"repo": "edge", "package": name},
        },
        "status": {"conditions": [dict(READY)]},
    }


def set_of(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha2",
        "kind": "PackageVariantSet",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "upstream": {"repo": "blueprints", "package": "web", "revision": number},
            "targets": [{"repositories": [{"name": "edge"}]}],
        },
    }


def test_a_file_with_another_upstream_shows_the_drafts_that_follow_and_what_keeps_them(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    live = Connection(tmp_path, monkeypatch)
    live.cluster.serve(POLICIES)
    for name in "abc":
        live.cluster.put(variant(name, **({"pvbus.dev/hold": "true"} if name == "b" else {})))
        live.cluster.put(owned(name, number=1, lifecycle="Published"))
    live.cluster.put(set_of(1))
    live.cluster.put(policy())
    arguments = ["rollout", "plan", "--kubeconfig", str(live.kubeconfig)]
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert "0 targets" in shown
    assert "as if no attempt were under way: the targets are on the bus: name it with --bus" in shown
    changed = write(file, set_of(2))
    assert run([*arguments, "-f", changed]) == 0
    shown = capsys.readouterr().out
    assert "wave 1 (count 1, 1 of 2): a\n" in shown
    assert "left out b (draft of web@v2 for b): OnHold" in shown
    assert "ends Completed" in shown
    spec = {"upstreams": [{"revision": "blueprints/web@v2"}], "reason": "TooManyFailing", "sets": ["web"]}
    bad = {
        "apiVersion": "promotion.pvbus.dev/v1alpha1",
        "kind": "Quarantine",
        "metadata": {"name": "web-1-1", "namespace": "default"},
        "spec": spec,
    }
    live.cluster.serve(QUARANTINES)
    live.cluster.put(bad)
    assert run([*arguments, "-f", changed]) == 0
    shown = capsys.readouterr().out
    assert "0 targets" in shown
    names = ", ".join(f"{name} (draft of web@v2 for {name})" for name in "abc")
    assert f"left out {names}: Quarantined: quarantine web-1-1 covers it" in shown


def test_what_no_variant_owns_is_in_no_wave_where_variants_are_known(file: Path, capsys: Captured) -> None:
    """Nor does it stand for the variant of its package: services look at what the variant owns alone."""
    by_hand = revision("a")
    by_hand["metadata"] |= {"name": "edge.a.mine", "creationTimestamp": "2030-01-01T00:00:00Z"}
    name = write(file, policy(waves=[]), variant("a"), owned("a"), by_hand, revision("x"))
    assert run(["rollout", "plan", "-f", name]) == 0
    shown = capsys.readouterr().out
    assert "RolloutPolicy default/edge: 1 target, approval Always" in shown
    assert "1 of 1): a\n" in shown
    assert "2 packages with a proposed revision: no policy" in shown


def test_a_plan_says_that_all_rollouts_are_stopped(file: Path, capsys: Captured) -> None:
    stop = {
        "apiVersion": "promotion.pvbus.dev/v1alpha1",
        "kind": "RolloutStop",
        "metadata": {"name": "fleet", "namespace": "default"},
        "spec": {"entries": [{"name": "1", "by": "ann", "reason": "an incident"}]},
    }
    assert run(["rollout", "plan", "-f", write(file, policy(), stop, *FLEET)]) == 0
    shown = capsys.readouterr().out
    assert "first: all rollouts are stopped: ann: an incident (pvbus rollout lift default/fleet 1" in shown


def application(namespace: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name, "namespace": namespace},
    }


def proven_by(name: str, namespace: str = "") -> dict[str, Any]:
    """Return the fields of a policy whose targets are proven by an Application."""
    rule = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "name": name,
        "binding": "Commit",
        "revision": "object.status.sync.revision",
        "good": "object.status.health.status == 'Healthy'",
    }
    return {"evidence": {"object": {**rule, **({"namespace": namespace} if namespace else {})}}}


@pytest.mark.parametrize(
    ("spec", "objects", "words"),
    [
        (
            proven_by("target.labels['site']"),
            [],
            "EvidenceShared: Application x is the evidence of 2 targets (a, b)",
        ),
        (
            proven_by("'one'", "'argocd'"),
            [],
            "EvidenceShared: Application argocd/one is the evidence of 2 targets",
        ),
        (
            proven_by("target.name"),
            [application("east", "a"), application("west", "a")],
            "EvidenceAmbiguous: Application a exists in several namespaces (east, west)",
        ),
        (
            proven_by("target.labels['none']"),
            [],
            "EvidenceInvalid: a: spec.evidence.object.name cannot be evaluated",
        ),
        (proven_by("target.name"), [application("east", "a"), application("west", "c")], ""),
        (proven_by("target.name", "'east'"), [application("east", "a"), application("west", "a")], ""),
    ],
)
def test_evidence_that_would_never_be_known_is_said_before_a_rollout(
    file: Path, capsys: Captured, spec: dict[str, Any], objects: list[dict[str, Any]], words: str
) -> None:
    """By plan and by validate: one object for two targets, or one name in several namespaces."""
    fleet = []
    for name in "ab":
        found = variant(name)
        found["metadata"]["labels"] = {"site": "x"}
        del found["status"]
        fleet += [found, owned(name)]
    name = write(file, policy(**spec), *fleet, *objects)
    assert run(["rollout", "plan", "-f", name]) == 0
    shown = capsys.readouterr().out
    assert words in shown
    assert bool(words) == ("  evidence Evidence" in shown)
    with pytest.raises(SystemExit) as end:
        run(["validate", name])
    assert end.value.code == 0
    assert words in capsys.readouterr().out


def test_an_object_that_does_not_depend_on_the_target_is_shared(file: Path, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as end:
        run(["validate", write(file, policy(**proven_by("'one'")), set_of(1))])
    assert end.value.code == 0
    assert "EvidenceShared: Application 'one' is the evidence of every target" in capsys.readouterr().out
