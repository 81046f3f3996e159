"""When an install of a package counts as ready, and what is said of one that does not."""

from typing import Any, cast

import msgspec
import pytest

from pvbus.cli.installprogress import InstallObject, Judgement
from pvbus.cli.progress import Progress, Tally, Trouble
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.records import INSTALLS
from pvbus.ports.bus import Bus, Record

CROSSPLANE, CARVEL = "pkg.crossplane.io/v1", "packaging.carvel.dev/v1alpha1"


def condition(type_: str, status: str, observed: int = 0) -> dict[str, Any]:
    more = {"observedGeneration": observed} if observed else {}
    return {"type": type_, "status": status, "reason": "R", "message": "words", **more}


def provider(*conditions: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    head = {"name": "aws", "generation": 2, **metadata}
    return {
        "apiVersion": CROSSPLANE,
        "kind": "Provider",
        "metadata": head,
        "status": {"conditions": conditions},
    }


def packageinstall(*conditions: dict[str, Any], observed: int = 2) -> dict[str, Any]:
    return {
        "apiVersion": CARVEL,
        "kind": "PackageInstall",
        "metadata": {"name": "web", "namespace": "demo", "generation": 2},
        "status": {"observedGeneration": observed, "conditions": conditions},
    }


def judge(obj: dict[str, Any]) -> Judgement:
    return msgspec.convert(obj, InstallObject).judge()


INSTALLED, HEALTHY = condition("Installed", "True"), condition("Healthy", "True")
DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("case", "obj", "why"),
    [
        ("installed and healthy", provider(INSTALLED, HEALTHY), ""),
        ("nothing reported", provider(), "no conditions reported yet"),
        ("installed only", provider(INSTALLED), "no conditions reported yet"),
        ("not installed", provider(condition("Installed", "False"), HEALTHY), "not Installed (R): words"),
        ("not healthy", provider(INSTALLED, condition("Healthy", "Unknown")), "not Healthy (R): words"),
        (
            "an older spec",
            provider(condition("Installed", "True", 1), condition("Healthy", "True", 1)),
            "no conditions reported yet",
        ),
        (
            "this spec",
            provider(condition("Installed", "True", 2), condition("Healthy", "True", 2)),
            "",
        ),
        ("going", provider(INSTALLED, HEALTHY, **DELETED), "is being deleted"),
        ("reconciled", packageinstall(condition("ReconcileSucceeded", "True")), ""),
        ("never looked at", packageinstall(), "no conditions reported yet"),
        (
            "reconciled with an older spec",
            packageinstall(condition("ReconcileSucceeded", "True"), observed=1),
            "no conditions reported yet",
        ),
        ("at it", packageinstall(condition("Reconciling", "True")), "not installed (R): words"),
        ("failed", packageinstall(condition("ReconcileFailed", "True")), "not installed (R): words"),
        ("not succeeded", packageinstall(condition("ReconcileSucceeded", "False")), "not installed (R)"),
    ],
)
def test_an_install_is_judged_by_the_conditions_of_its_family(
    case: str, obj: dict[str, Any], why: str
) -> None:
    """Ready is what its family calls so, for the present spec; else the condition's own words say why."""
    judged = judge(obj)
    assert judged.why.startswith(why), case
    assert judged.is_ready is (not why), case


def test_the_advice_names_the_object() -> None:
    """A cluster-scoped install is named without a namespace."""
    assert judge(provider()).advice == "kubectl describe provider aws"
    assert judge(packageinstall()).advice == "kubectl describe packageinstall -n demo web"
    trouble = Trouble("Provider", Key("", "aws"), "w", see="kubectl describe provider aws")
    assert str(trouble) == "Provider aws: w\n    see: kubectl describe provider aws"


def test_only_installs_are_judged() -> None:
    """A revision is in the same topic as installs, and is none."""
    assert msgspec.convert(provider(), InstallObject).is_install
    for kind, version in (("ProviderRevision", CROSSPLANE), ("Provider", "meta.pkg.crossplane.io/v1")):
        other = {**provider(), "kind": kind, "apiVersion": version}
        assert not msgspec.convert(other, InstallObject).is_install


def test_one_install_short_is_not_complete() -> None:
    """The line names installs only where there are some."""
    assert Tally(installs=2, installs_ready=2).complete
    assert not Tally(installs=2, installs_ready=1).complete
    assert str(Tally(installs=2, installs_ready=1)).endswith("variants 0/0 ready, installs 1/2 ready")
    assert "installs" not in str(Tally())


class OneReader:
    """A bus whose reader gives these records once."""

    def __init__(self, *records: Record) -> None:
        self.records = list(records)
        self.topics: set[str] = set()

    def reader(self, positions: dict[tuple[str, int], int]) -> "OneReader":
        self.topics = {topic for topic, _ in positions}
        return self

    async def poll(self, *, timeout_seconds: float, max_records: int) -> list[Record]:
        given, self.records = self.records, []
        return given


def record(name: str, obj: dict[str, Any] | None) -> Record:
    value = None if obj is None else msgspec.json.encode(obj)
    return Record(INSTALLS, 0, 0, f"cluster|{name}".encode(), value)


async def test_installs_are_counted_from_the_bus() -> None:
    """Each object once, as it is last; one that is gone and what is no install do not count."""
    revision = {**provider(INSTALLED, HEALTHY), "kind": "ProviderRevision"}
    bus = OneReader(
        record("a", provider()),
        record("a", provider(INSTALLED, HEALTHY)),
        record("b", packageinstall()),
        record("c", provider()),
        record("c", None),
        record("d", revision),
    )
    progress = Progress(cast(Bus, bus), 1, has_installs=True)
    await progress.update(0)
    assert progress.tally == Tally(installs=2, installs_ready=1)


async def test_without_their_services_installs_do_not_count() -> None:
    """Nobody would ever install them, and `--once` would wait for it."""
    bus = OneReader()
    Progress(cast(Bus, bus), 1)
    assert INSTALLS not in bus.topics
