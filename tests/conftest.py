"""Rules for the whole suite: what is collected, and that continuous integration skips nothing."""

import os
from pathlib import Path

import pytest

THREE_BROKERS = {"kafka_three", "three_to_break", "three_proxied"}
SHARED = Path(__file__).parent.parent.parent / "shared"


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what reads the shared folder where there is none; with it, every such test counts.

    Tests that start a Kafka run in two processes, those of one broker and those of three, so that there is
    one Kafka of each kind for most of them.
    """
    for item in items:
        if item.get_closest_marker("kafka"):
            item.add_marker(pytest.mark.xdist_group("three" if _has_three_brokers(item) else "one"))
    if SHARED.is_dir() or os.environ.get("PVBUS_CONFORMANCE"):
        return
    needing = [item for item in items if item.get_closest_marker("shared")]
    if needing:
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if not item.get_closest_marker("shared")]


def _has_three_brokers(item: pytest.Item) -> bool:
    used = set(getattr(item, "fixturenames", ()))
    if hasattr(item, "callspec"):
        used.add(item.callspec.params.get("kafka"))
    return bool(used & THREE_BROKERS)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In continuous integration a skipped test is a failure: what is not run proves nothing."""
    if not os.environ.get("CI") or os.environ.get("PVBUS_ALLOW_SKIPS"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    skipped = reporter.stats.get("skipped", [])
    if skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if skipped:
        reporter.write_line(f"{len(skipped)} tests were skipped, and CI is set: that is a failure", red=True)
