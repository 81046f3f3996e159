"""Runs mutations: `python -m tests.mutants [--workers N] [--list] [NAME...]`. A NAME may be that of a table.

The code is copied to a scratch folder per worker, never changed in the checkout. There a mutation is put
in, its tests run, and it is taken out again. Exits with 1 when a mutation survives, when the text that one
replaces is not found exactly once, when one has no tests, or when its tests fail (or cannot run) without it.
"""

import argparse
import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from py_compile import PycInvalidationMode

from tests.mutants.mutation import Mutation, read_tables

ROOT = Path(__file__).parent.parent.parent
COPIED = ("pvbus", "services", "schemas", "deploy", "docs", "tests", "pyproject.toml", "Makefile")
TIMEOUT_SECONDS = 300.0
BASELINE_SECONDS = 3600.0
"""For all the named tests, one after the other, without a mutation."""
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--tb=line")
GOOD = ("killed", "equivalent", "pending")
FAILED, PASSED = 1, 0  # pytest's codes; others say that it could not run


class Sandbox:
    """A copy of the checkout in which the code can be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=ignored)
            elif source.exists():
                shutil.copy2(source, folder / name)
        # By its hash, as a changed file may be as old and as long as the one before.
        mode = PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder, quiet=2, workers=0, invalidation_mode=mode)

    def run(self, tests: Iterable[str], limit_seconds: float = TIMEOUT_SECONDS) -> tuple[int, str]:
        """Run tests of the copy; return pytest's code and its last lines."""
        named = [f"tests/{test}" for test in tests]
        command = [sys.executable, *PYTEST, *self._hypothesis(named), *named]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=limit_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return FAILED, f"no end within {limit_seconds:.0f} s"
        return done.returncode, "\n".join((done.stdout + done.stderr).strip().splitlines()[-4:])

    def _environment(self) -> dict[str, str]:
        """Return the environment of each process: none replaces the bytecode, as Python would note a file's
        time in it."""
        ours = {"PYTHONPATH": str(self.folder), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**os.environ, **ours}

    def _hypothesis(self, named: Iterable[str]) -> tuple[str, ...]:
        """Return pytest's arguments on Hypothesis. It takes longer to start than a test takes to run, so it
        is left out where no named file speaks of it."""
        files = [self.folder / test.partition("::")[0] for test in named]
        if all(file.is_file() and "hypothesis" not in file.read_text() for file in files):
            return ("-p", "no:hypothesispytest")
        return ("--hypothesis-seed=0",)

    def uses_itself(self) -> bool:
        """Whether what is imported here is the copy, and not an installed pvbus."""
        code = "import pvbus, tests; print(pvbus.__path__[0]); print(tests.__path__[0])"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        return all(Path(line).is_relative_to(self.folder) for line in done.stdout.split())

    def verdict(self, mutation: Mutation) -> tuple[str, str]:
        """Put a mutation in, run its tests, and take it out: `killed`, or what is wrong, and why."""
        problem = find_problem(mutation, self.folder)
        if problem:
            return "INVALID", problem
        path = self.folder / mutation.file
        text = path.read_text()
        path.write_text(text.replace(mutation.old, mutation.new))
        try:
            code, output = self.run(mutation.killed_by)
        finally:
            path.write_text(text)
        if code == FAILED:
            return "killed", ""
        return ("SURVIVED", "") if code == PASSED else ("INVALID", f"the tests cannot run: {output}")


def find_problem(mutation: Mutation, root: Path) -> str:
    """Return what is wrong with a mutation as it is written, "" when nothing is."""
    path = root / mutation.file
    if not path.is_file():
        return f"{mutation.file}: no such file"
    count = path.read_text().count(mutation.old)
    if count != 1:
        return f"{mutation.file}: the text to replace is found {count} times: {mutation.old!r}"
    if mutation.old == mutation.new:
        return "it changes nothing"
    if bool(mutation.killed_by) == bool(mutation.equivalent):
        return "it needs either tests that kill it, or a reason why it is equivalent"
    return ""


class Run:
    """Runs mutations in sandboxes, and collects the verdicts."""

    def __init__(self, mutations: Sequence[Mutation], workers: int) -> None:
        self.verdicts: dict[str, tuple[str, str]] = {}
        self._waiting = [m for m in mutations if not m.equivalent and not m.pending]
        for mutation in mutations:
            if mutation.pending:
                self.verdicts[mutation.name] = ("pending", mutation.pending)
            elif mutation.equivalent:
                problem = find_problem(mutation, ROOT)
                self.verdicts[mutation.name] = (
                    ("INVALID", problem) if problem else ("equivalent", mutation.equivalent)
                )
        self._lock = threading.Lock()
        self._workers = min(workers, max(len(self._waiting), 1))

    def run(self) -> str:
        """Run all; return what is wrong with the tests themselves, "" when nothing is."""
        with tempfile.TemporaryDirectory(prefix="pvbus-mutants-") as folder:
            boxes = [Sandbox(Path(folder, str(i))) for i in range(self._workers)]
            if not boxes[0].uses_itself():
                return "the copy is not what Python imports there: PYTHONPATH is overridden"
            named = sorted({test for m in self._waiting for test in m.killed_by})
            if named:
                print(f"{len(named)} tests without a mutation ...", flush=True)
                code, output = boxes[0].run(named, BASELINE_SECONDS)
                if code != PASSED:
                    return f"the tests fail without any mutation:\n{output}"
            threads = [threading.Thread(target=self._work, args=(box,)) for box in boxes]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return ""

    def _work(self, box: Sandbox) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    return
                mutation = self._waiting.pop(0)
            verdict, why = box.verdict(mutation)
            with self._lock:
                self.verdicts[mutation.name] = (verdict, why)
                print(f"{verdict:10} {mutation.name:40} {mutation.file} {why}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="mutations, or tables of them, to run; all by default"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="print the names, and run nothing")
    options = parser.parse_args(arguments)
    known = {mutation.name: mutation for mutation in read_tables()}
    tables = {mutation.table for mutation in known.values()}
    unknown = [name for name in options.names if name not in known and name not in tables]
    if unknown:
        print(f"no such mutation: {', '.join(unknown)}; see --list")
        return 1
    named = set(options.names) or tables
    chosen = [mutation for name, mutation in known.items() if name in named or mutation.table in named]
    if options.list:
        print("\n".join(f"{m.name:40} {m.file}" for m in chosen))
        return 0
    run = Run(chosen, options.workers)
    problem = run.run()
    if problem:
        print(problem)
        return 1
    words = [verdict for verdict, _ in run.verdicts.values()]
    bad = [name for name, (verdict, _) in run.verdicts.items() if verdict not in GOOD]
    for name in bad:
        print(f"{run.verdicts[name][0]}: {name}: {known[name].old!r} -> {known[name].new!r}")
    left_out = words.count("equivalent") + words.count("pending")
    print(
        f"{words.count('killed')} of {len(words) - left_out} killed, "
        f"{words.count('equivalent')} equivalent, {words.count('pending')} pending"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
