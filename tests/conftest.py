"""Rules for the whole suite: what is collected, and that continuous integration skips nothing."""

import gc
import importlib
import logging
import os
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
from _pytest.nodeid import NodeId
from hypothesis import settings

from tests.tools.stalls import WATCHED, reason_for, stalls_found

settings.register_profile("pvbus", deadline=None)  # machines that run tests are shared
settings.load_profile("pvbus")

YOUNG_OBJECTS = 10_000
"""How many new objects the collector waits for, 700 by default: tests make and drop many, and it took a
twentieth of their time. With more, what one test leaves open is noticed only in a later one."""

LIBRARY_LEAKS = ("unclosed transport", "Unclosed AIOKafkaConnection", "loop is closed")
"""How a connection that aiokafka leaves shows in whichever test garbage is collected next: its transport, the
connection, or its writer. The library waits for none that it closes, and loses those it is still making."""

FIRST = (
    "tests/chaos/",
    "tests/contract/bus/test_kafka.py",
    "tests/integration/kafka/faults/",
    "tests/integration/kafka/test_acl_processes.py",
    "tests/e2e/kafka/",
    "tests/integration/kafka/test_processes.py",
    "tests/bench/",
    "tests/integration/cluster/test_namespaces.py",
    "tests/e2e/apicalls/",
    "tests/e2e/cluster/",
)
"""What takes minutes, the longest first: what begins last should be short, or the other workers wait for it.
Folders stay whole, as their tests share a Kafka."""

SHARED = Path(__file__).parent.parent.parent / "shared"


@pytest.hookimpl(trylast=True)  # xdist names groups before
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what reads the shared folder where there is none; with it, every such test counts.

    Among several workers the longest tests come first.
    """
    for item in items:
        if item.get_closest_marker("kafka"):
            for leak in LIBRARY_LEAKS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{leak}:ResourceWarning"))
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)
        if config.option.loadgroup:
            _keep_groups(items)
    if SHARED.is_dir() or os.environ.get("PVBUS_CONFORMANCE"):
        return
    needing = [item for item in items if item.get_closest_marker("shared")]
    if needing:
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if not item.get_closest_marker("shared")]


def _keep_groups(items: list[pytest.Item]) -> None:
    """Give the tests of a group the names by which they are shared out among workers: `test@group`.

    xdist 3.8 writes them where pytest 9.2 does not look. Then each worker builds what a group shares, and
    tests that need one port run at once.
    """
    for item in items:
        if item.get_closest_marker("xdist_group"):
            item._id = NodeId.parse(getattr(item, "_nodeid", ""))
            if "@" not in item.nodeid:
                raise pytest.UsageError(f"{item.name} has lost its group: xdist names it elsewhere")


def _turn(item: pytest.Item) -> int:
    """Sort long tests before the others; tests that are alike stay in the order they have."""
    if item.get_closest_marker("kafka") or item.get_closest_marker("cluster"):  # by files, all of them slow
        return next((n for n, each in enumerate(FIRST) if item.nodeid.startswith(each)), len(FIRST))
    return next((n for n, mark in enumerate(("long", "slow")) if item.get_closest_marker(mark)), 2)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep the garbage collector off what is collected: it would go over a million objects that stay."""
    gc.disable()
    try:
        _import_share(session.config)
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, 10, 10)


def _import_share(config: pytest.Config) -> None:
    """Import this worker's share of the test modules first.

    Every worker collects all tests. In a checkout whose tests never ran, each would rewrite the assertions of
    all modules, at the same time as the others; so each writes the bytecode of some, which the others read.
    """
    if not hasattr(config, "workerinput"):
        return
    number, count = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    ignored = [config.rootpath / path for path in config.option.ignore or ()]
    paths = [path for argument in config.args for path in sorted(Path(argument).rglob("test_*.py"))]
    for path in paths[number::count]:
        if not any(path.resolve().is_relative_to(folder) for folder in ignored):
            name = ".".join(path.resolve().relative_to(config.rootpath).with_suffix("").parts)
            with suppress(Exception, pytest.skip.Exception):  # the collection reports it
                importlib.import_module(name)


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Restore logging after each test: a command sets it up for its whole process, which tests share."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    renderer: Any = structlog.get_config()["processors"][-1]
    renderer.exception_formatter = structlog.dev.plain_traceback  # Rich's would stall for half a second


@pytest.fixture(autouse=True)
def no_stalls(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which what serves others computes for too long without a pause."""
    test = request.node.nodeid
    if not test.startswith(WATCHED) or reason_for(test):
        yield
        return
    with stalls_found() as stalls:
        yield
    assert not stalls, "\n".join(map(str, stalls))


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
