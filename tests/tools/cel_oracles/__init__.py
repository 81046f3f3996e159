"""Other implementations of CEL, as oracles for our evaluator.

`cel-python` and `cel-cpp` (Google's C++ evaluator) run behind our type check and evaluate with their own
code. Only their successes count: an error may mean that they lack a part of cel-go.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from pvbus.core import cel
from tests.tools.cel_oracles.answers import NoAnswer, Oracle
from tests.tools.cel_oracles.cel_cpp import CppOracle
from tests.tools.cel_oracles.cel_python import PythonOracle

__all__ = ["ORACLES", "CppOracle", "NoAnswer", "Oracle", "PythonOracle", "evaluating_with"]

ORACLES: dict[str, Oracle] = {oracle.name: oracle for oracle in (CppOracle(), PythonOracle())}


@contextmanager
def evaluating_with(oracle: Oracle) -> Iterator[None]:
    """Let pvbus evaluate with an oracle instead of its own evaluator: for benchmarks."""
    with mock.patch.object(cel, "evaluation", oracle.program):
        cel._compiled.cache_clear()
        try:
            yield
        finally:
            cel._compiled.cache_clear()
