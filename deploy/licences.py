"""The licences of what is installed with pvbus: what each package says of itself, and which are allowed.

A package says it in one of three fields of its metadata, older ones in words of their own: `WORDS` has the
SPDX expression for them, `STATED` for those that say nothing a program can read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCKS = {name: ROOT / "requirements" / f"{name}.lock" for name in ("run", "dev")}

ALLOWED = frozenset(
    {
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "MIT",
        "MIT-0",
        "PSF-2.0",
    }
)
"""They ask for their text and notices to stay, and for nothing else."""

EXCEPTIONS: Mapping[str, tuple[str, str]] = {
    "certifi": (
        "MPL-2.0",
        "only changes of its own files would have to be published, and nobody changes them",
    ),
    "axe-playwright-python": (
        "MIT AND MPL-2.0",
        "axe-core, which it carries, is as certifi; only tests use it",
    ),
    "hypothesis": ("MPL-2.0", "as certifi; only tests use it"),
    "pathspec": ("MPL-2.0", "as certifi; only the build uses it"),
    "pygit2": (
        "GPL-2.0-only WITH GCC-exception-2.0",
        "its exception permits to distribute the unchanged library with programs of any licence",
    ),
}
"""Packages with another licence, and why it does no harm to them who use or distribute pvbus."""

WORDS: Mapping[str, str] = {
    "Apache 2": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "GPLv2 with linking exception": "GPL-2.0-only WITH GCC-exception-2.0",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "PSFL": "PSF-2.0",
    "Python Software Foundation License": "PSF-2.0",
}

STATED: Mapping[str, str] = {
    "axe-playwright-python": "MIT AND MPL-2.0",  # its own LICENSE, and the head of axe.min.js
    "cel-python": "Apache-2.0",
    "colorama": "BSD-3-Clause",  # its classifier says BSD only
    "google-re2": "BSD-3-Clause",  # as colorama
    "jinja2": "BSD-3-Clause",  # as colorama
}
"""As the file LICENSE in the wheel has it, read by a person."""


class Locked(Requirement):
    """A line of a lock file: name, exact version, marker; `hashes`: of each wheel that may be installed."""

    def __init__(self, line: str) -> None:
        super().__init__(line.partition(" --hash=")[0].strip())
        self.hashes: Sequence[str] = re.findall(r"--hash=sha256:([0-9a-f]{64})", line)

    @property
    def version(self) -> str:
        return str(self.specifier).removeprefix("==")

    @property
    def is_for_this_machine(self) -> bool:
        return self.marker is None or self.marker.evaluate()


def locked(lock: Path) -> list[Locked]:
    """Return the packages of a lock file that this machine installs."""
    lines = lock.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    packages = [Locked(line) for line in lines if line and not line.lstrip().startswith("#")]
    return [package for package in packages if package.is_for_this_machine]


def licence_of(name: str) -> str:
    """Return the SPDX expression of an installed package, "" if it says none that is known."""
    described = metadata.metadata(name)
    if expressions := described.get_all("License-Expression"):
        return str(expressions[0])
    if stated := STATED.get(canonicalize_name(name)):
        return stated
    classifiers = [entry for entry in described.get_all("Classifier") or () if "License ::" in entry]
    texts = [*(described.get_all("License") or ()), *(entry.rpartition(" :: ")[2] for entry in classifiers)]
    known = {WORDS.get(text, text) for text in texts}
    return next((text for text in sorted(known) if text in ALLOWED or text in WORDS.values()), "")


def problems(names: Sequence[str]) -> Iterator[str]:
    """Yield a line for each installed package whose licence is not allowed."""
    for name in names:
        licence = licence_of(name)
        allowed, _ = EXCEPTIONS.get(canonicalize_name(name), ("", ""))
        choices = [set(choice.split(" AND ")) for choice in licence.split(" OR ")]
        if licence == allowed != "" or any(choice <= ALLOWED for choice in choices):
            continue
        said = licence or "its metadata says none that is known"
        yield f"{name}: {said}; allowed are {', '.join(sorted(ALLOWED))}, and EXCEPTIONS with their reasons"
