"""Types that worker threads decode are known before the threads are."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.packages import store
from tests.kit.objects import MemoryObjects

CHECKOUT = Path(__file__).parents[3]
FIRST_USES = """
import sys, threading, types
import msgspec
from pvbus.core.kernel.codec import prepare_types

sys.setswitchinterval(1e-6)
found = []
for number in range(100):
    lines = ["from __future__ import annotations", "import msgspec"]
    for level in range(8):
        below = f"S{level - 1} | None" if level else "int"
        fields = [f"    a{field}: {below} = None" for field in range(6)]
        lines += [f"class S{level}(msgspec.Struct, frozen=True, kw_only=True):", *fields]
    module = types.ModuleType(f"made{number}")
    sys.modules[module.__name__] = module
    exec("\\n".join(lines), module.__dict__)
    found.append(module.S7)
if sys.argv[1] == "prepared":
    prepare_types()
for struct in found:
    start = threading.Barrier(8)
    def work():
        start.wait()
        msgspec.convert({"a0": {"a1": {}}}, struct)
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def test_prepared_types_may_be_used_by_many_threads_at_once() -> None:
    """A hundred types, each first used by eight threads at the same moment: the process lives."""
    command = [sys.executable, "-c", FIRST_USES, "prepared"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_store_prepares_before_it_has_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads are the first that decode: the types are prepared before the pool exists."""
    order: list[str] = []
    pool: Any = ThreadPoolExecutor

    def prepared() -> None:
        order.append("types")

    def made(*arguments: object, **named: object) -> object:
        order.append("threads")
        return pool(*arguments, **named)

    monkeypatch.setattr(store, "prepare_types", prepared)
    monkeypatch.setattr(store, "ThreadPoolExecutor", made)
    store.PackageStore(MemoryObjects(), tmp_path, render=lambda _: pytest.fail("nothing is rendered"))
    assert order == ["types", "threads"]
