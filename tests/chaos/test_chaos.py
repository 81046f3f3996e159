"""`make chaos`, short: both worlds with each kind of fault, and the checker satisfied.

PVBUS_CHAOS_SEED sets another plan. `make test-kafka` runs it, and it needs a real API server, too;
`make test-rest` leaves it out.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.__main__ import main
from tests.chaos.judge import CHECKS
from tests.chaos.plan import LANES, Strike
from tests.chaos.striking import Death, Event, Striker
from tests.tools import clusterprograms, kafka
from tests.tools.installation import CHECKOUT, environment

SEED = os.environ.get("PVBUS_CHAOS_SEED", "20260701")
MINUTES = "0.8"
TARGETS = "24"
SECONDS_MAX = 1200


def require_programs() -> None:
    """Skip where Kafka or the API server cannot be had; in continuous integration fail."""
    try:
        kafka.java()
        kafka.libraries()
        clusterprograms.find_or_build()
    except (kafka.KafkaUnavailableError, clusterprograms.ClusterUnavailableError) as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.mark.campaign
@pytest.mark.kafka
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS_MAX)  # the API server may have to be built first
def test_after_each_kind_of_fault_in_both_worlds_nothing_is_broken(tmp_path: Path) -> None:
    """Every kind struck, every check had something to judge, and the exit code is that of nothing broken."""
    require_programs()
    command = [sys.executable, "-P", "-m", "tests.chaos", "--minutes", MINUTES, "--targets", TARGETS]
    done = subprocess.run(
        [*command, "--seed", SEED, "--folder", str(tmp_path / "chaos")],
        cwd=CHECKOUT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    lines = {line[:40].strip(): line[40:].split() for line in done.stdout.splitlines()}
    for kind in (kind for kinds in LANES.values() for kind in kinds):
        assert int(lines[str(kind)][0]) >= 1, kind
    for check in CHECKS:
        assert int(lines[check][0]) >= 1, check
    print(done.stdout[done.stdout.index("\nfault ") :])


@pytest.mark.parametrize(
    ("given_up", "kind", "began", "ended", "is_excused"),
    [
        (True, Strike.BROKERS_KILLED, 30.0, 45.0, True),
        (True, Strike.BROKER_FROZEN, 30.0, 0.0, True),  # it is still frozen
        (True, Strike.BROKERS_KILLED, 10.0, 35.0, False),  # over before this process began to wait
        (True, Strike.BROKERS_KILLED, 101.0, 0.0, False),
        (True, Strike.SERVER_KILLED, 30.0, 45.0, False),
        (False, Strike.BROKERS_KILLED, 30.0, 45.0, False),  # it had begun, or it ended for another reason
    ],
)
def test_only_a_start_without_brokers_may_end_by_itself(
    given_up: bool, kind: Strike, began: float, ended: float, is_excused: bool
) -> None:
    unused: Any = None
    striker = Striker(unused, unused, unused, unused)
    event = Event(kind, "")
    event.began, event.ended = began, ended
    striker.events.append(event)
    assert striker.is_excused(Death(100.0, "", given_up)) is is_excused


@pytest.mark.parametrize("arguments", [["--minutes", "0"], ["--targets", "1"], ["--cluster", "moon"]])
def test_a_wrong_option_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_the_help_says_what_a_run_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "each kind of fault" in " ".join(shown.split())
    assert "embedded" in shown
