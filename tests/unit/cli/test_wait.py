"""`pvbus wait`: what is waited for is so only if an event of this very object and generation says it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pvbus.cli.main import run
from pvbus.core.api.variants import Condition, DownstreamTarget
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.records import LATEST, RESULTS, SETS, VARIANTS, ResultRow
from tests.tools.bustables import Row, write_tables

SET_OWNER = {
    "apiVersion": "config.porch.kpt.dev/v1alpha2",
    "kind": "PackageVariantSet",
    "name": "fleet",
    "uid": "uid-fleet",
    "controller": True,
}


def event(
    kind: str, name: str, type_: str, status: str, generation: int, reason: str = "R", uid: str = ""
) -> Row:
    condition = Condition(
        type=type_, status=status, reason=reason, message="words", observed_generation=generation
    )
    row = ConditionEvent(
        kind=kind, namespace="default", name=name, uid=uid or f"uid-{name}", condition=condition, id=name
    )
    return LATEST, f"{kind}|default/{name}|{type_}", row


def of_set(type_: str, status: str, generation: int, uid: str = "") -> Row:
    return event("PackageVariantSet", "fleet", type_, status, generation, uid=uid)


def of_variant(status: str, generation: int) -> Row:
    return event("PackageVariant", "web", "Ready", status, generation)


def lifecycle(name: str, reason: str) -> Row:
    return event("PackageRevision", name, "Published", "True", 0, reason=reason)


def stored(topic: str, name: str, generation: int, **metadata: Any) -> Row:
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "generation": generation, **metadata}
    return topic, f"default/{name}", msgspec.json.encode({"metadata": meta})


def made(variant: str, *revisions: str) -> Row:
    targets = tuple(DownstreamTarget(name=name) for name in revisions)
    return RESULTS, f"default/{variant}", ResultRow(uid=f"uid-{variant}", targets=targets)


FLEET = stored(SETS, "fleet", 2)
MEMBER = stored(VARIANTS, "web", 1, ownerReferences=[SET_OWNER])
READY = of_set("Ready", "True", 2)
CASES = {
    "the present generation is ready": ("default/fleet", [], [FLEET, READY], ""),
    "an event of the generation before": (
        "default/fleet",
        [],
        [FLEET, of_set("Ready", "True", 1)],
        "Ready still speaks of generation 1",
    ),
    "an event of a deleted object of this name": (
        "default/fleet",
        [],
        [FLEET, of_set("Ready", "True", 9, uid="former")],
        "no condition Ready has been published yet",
    ),
    "not ready": (
        "default/fleet",
        [],
        [FLEET, of_set("Ready", "False", 2)],
        "Ready=False (R): words",
    ),
    "an earlier generation is enough if it is named": (
        "default/fleet",
        ["--generation", "1"],
        [FLEET, of_set("Ready", "True", 1)],
        "",
    ),
    "a later one is not there yet": (
        "default/fleet",
        ["--generation", "3"],
        [FLEET, READY],
        "Ready still speaks of generation 2",
    ),
    "applied, and not ready yet": (
        "default/fleet",
        ["--for", "applied"],
        [FLEET, of_set("TargetsApplied", "True", 2), of_set("Ready", "False", 2)],
        "",
    ),
    "a variant": ("default/web", [], [MEMBER, of_variant("True", 1)], ""),
    "applied of a variant is ready": (
        "default/web",
        ["--for", "applied"],
        [MEMBER, of_variant("False", 1)],
        "Ready=False (R): words",
    ),
    "a draft is not published": (
        "default/web",
        ["--for", "published"],
        [MEMBER, of_variant("True", 1), made("web", "r.2"), lifecycle("r.2", "Draft")],
        "PackageRevision default/r.2 is Draft",
    ),
    "a revision of which no event tells yet": (
        "default/web",
        ["--for", "published"],
        [MEMBER, of_variant("True", 1), made("web", "r.2"), lifecycle("r.1", "Published")],
        "PackageRevision default/r.2 is not reported yet",
    ),
    "a published variant": (
        "default/web",
        ["--for", "published"],
        [MEMBER, of_variant("True", 1), made("web", "r.2"), lifecycle("r.2", "Published")],
        "",
    ),
    "a variant without a revision": (
        "default/web",
        ["--for", "published"],
        [MEMBER, of_variant("True", 1), made("web")],
        "PackageVariant default/web has no PackageRevision",
    ),
    "each variant of a set is published": (
        "default/fleet",
        ["--for", "published"],
        [FLEET, READY, MEMBER, made("web", "r.2"), lifecycle("r.2", "DeletionProposed")],
        "",
    ),
    "one of two variants of a set is a proposal": (
        "default/fleet",
        ["--for", "published"],
        [
            *(FLEET, READY, MEMBER, made("web", "r.2"), lifecycle("r.2", "Published")),
            stored(VARIANTS, "eu", 1, ownerReferences=[SET_OWNER]),
            *(made("eu", "e.1"), lifecycle("e.1", "Proposed")),
        ],
        "1 of 2 published; PackageRevision default/e.1 is Proposed",
    ),
    "a set that selects nothing has nothing published": (
        "default/fleet",
        ["--for", "published"],
        [FLEET, READY, stored(VARIANTS, "other", 1)],
        "the set has no variants",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "options", "rows", "missing"), CASES.values(), ids=CASES)
def test_what_is_waited_for_is_so_or_the_error_says_what_is_missing(
    name: str,
    options: list[str],
    rows: list[Row],
    missing: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_tables(tmp_path / "bus.db", rows)
    code = run(["wait", name, *options, "--data", str(tmp_path), "--timeout", "0"])
    captured = capsys.readouterr()
    if missing:
        assert code == 1
        assert captured.err.splitlines()[-1].endswith(f"after 0 s: {missing}")
    else:
        assert (code, captured.err.count("\n")) == (0, 1)
        assert captured.out.startswith("PackageVariant")


def test_an_object_that_does_not_exist_is_an_error_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tables(tmp_path / "bus.db", [FLEET, READY])
    assert run(["wait", "default/flete", "--data", str(tmp_path)]) == 1
    assert "default/flete: there is no PackageVariantSet or PackageVariant" in capsys.readouterr().err


def test_of_a_set_and_a_variant_with_one_name_the_option_chooses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [FLEET, READY, stored(VARIANTS, "fleet", 7)]
    write_tables(tmp_path / "bus.db", rows)
    at = ["default/fleet", "--data", str(tmp_path), "--timeout", "0"]
    assert run(["wait", *at]) == 2
    assert "--kind names one of them" in capsys.readouterr().err
    assert run(["wait", *at, "--kind", "set"]) == 0
    assert run(["wait", "pvs", *at]) == 0
    assert run(["wait", *at, "--kind", "variant"]) == 1
