"""Look for known vulnerabilities of the locked packages: `python -m deploy.audit`, with pip-audit.

Exits with 1 and a line for each vulnerability. Where the database cannot be reached, or does not know a
package, it says what was not checked, and exits with 0; with `--strict` that is a failure, too.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from deploy.licences import LOCKS

SECONDS_MAX = 300  # 46 requests, of which each may take what TIMEOUT_SECONDS says and be repeated
TIMEOUT_SECONDS = 15


class Answer(NamedTuple):
    """vulnerable: a line for each vulnerability. checked: number of packages. unchecked: why not."""

    vulnerable: Sequence[str]
    checked: int
    unchecked: Sequence[str]


def ask() -> tuple[str, str]:
    """Return what pip-audit prints as JSON, and its errors. Its exit code says no more than these."""
    command = [
        *(sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--no-deps"),
        *("--requirement", str(LOCKS["run"]), "--format", "json", "--progress-spinner", "off"),
        *("--timeout", str(TIMEOUT_SECONDS)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        return "", f"no answer within {SECONDS_MAX} s"
    return done.stdout, done.stderr


def answer_of(document: str, errors: str) -> Answer:
    """Return what an answer of pip-audit means. One that cannot be read checked nothing."""
    try:
        packages = json.loads(document)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = errors.strip().splitlines()[-1:] or ["it printed nothing"]
        return Answer((), 0, last)
    vulnerable = [
        f"{package['name']} {package['version']}: {found['id']}, fixed in "
        f"{', '.join(found['fix_versions']) or 'no version yet'}"
        for package in packages
        for found in package.get("vulns", ())
    ]
    unchecked = [
        f"{package['name']}: {package['skip_reason']}" for package in packages if "skip_reason" in package
    ]
    return Answer(vulnerable, len(packages) - len(unchecked), unchecked)


def report(answer: Answer, *, is_strict: bool) -> int:
    """Print an answer; return the exit code."""
    for line in answer.vulnerable:
        print(f"vulnerable: {line}")
    if answer.unchecked:
        print(f"not checked for known vulnerabilities: {answer.unchecked[0]}", end="")
        print(f" (and {len(answer.unchecked) - 1} more)" if len(answer.unchecked) > 1 else "")
    print(f"{answer.checked} locked packages checked, {len(answer.vulnerable)} known vulnerabilities")
    nothing_known = not answer.checked and not answer.unchecked
    return 1 if answer.vulnerable or (is_strict and (answer.unchecked or nothing_known)) else 0


if __name__ == "__main__":
    sys.exit(report(answer_of(*ask()), is_strict="--strict" in sys.argv[1:]))
