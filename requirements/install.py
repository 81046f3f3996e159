"""Makes `.venv` in the checkout, with what a lock file names: wheels only, each by its hash.

    python3 requirements/install.py run     to run pvbus
    python3 requirements/install.py dev     to test it, too

Only the standard library is used, as nothing else is there yet. What was installed is noted in the
environment, so a second call with the same lock files is over at once.
"""

import hashlib
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCKS = {"run": ("run.lock",), "dev": ("run.lock", "dev.lock")}


class SetupError(Exception):
    """What is missing, and how to get it."""


def main(arguments: list[str]) -> int:
    kind = arguments[0] if arguments else "run"
    if kind not in LOCKS:
        print(f"error: {kind} is neither run nor dev", file=sys.stderr)
        return 2
    try:
        install(kind)
    except SetupError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    return 0


def install(kind: str) -> None:
    """Install one kind; dev contains run."""
    if any(_is_installed(each) for each in (kind, "dev")):
        return
    _environment()
    for lock in LOCKS[kind]:
        _pip(lock)
    _link()
    _mark(kind).write_text(_digest(kind))


def _mark(kind: str) -> Path:
    return VENV / f"installed-{kind}"


def _is_installed(kind: str) -> bool:
    return _mark(kind).exists() and _mark(kind).read_text() == _digest(kind)


def _digest(kind: str) -> str:
    whole = hashlib.sha256(str(ROOT).encode())  # an environment does not survive a move
    for lock in LOCKS[kind]:
        whole.update((ROOT / "requirements" / lock).read_bytes())
    return whole.hexdigest()


def _python() -> Path:
    return VENV / "bin" / "python"


def _environment() -> None:
    """Make the environment, or keep one that works and stands where it was made."""
    if _python().exists() and _works([str(_python()), "-m", "pip", "--version"]):
        return
    try:
        import ensurepip  # noqa: F401
        import venv
    except ImportError as exc:
        name = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        raise SetupError(
            f"Python's module {exc.name} is missing: install it (Debian and Ubuntu: apt install {name})"
        ) from exc
    print(f"making .venv with {sys.executable}", flush=True)
    if VENV.exists():
        shutil.rmtree(VENV)
    try:
        venv.create(VENV, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        raise SetupError(f".venv cannot be made: {exc}") from exc


def _works(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _pip(lock: str) -> None:
    print(f"installing requirements/{lock}", flush=True)
    command = [
        *(str(_python()), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--require-hashes", "--only-binary", ":all:", "--no-deps"),
        *("--requirement", str(ROOT / "requirements" / lock)),
    ]
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        raise SetupError(f"requirements/{lock} could not be installed; pip's words are above")


def _link() -> None:
    """Make the checkout importable and the command callable; an edit needs no new installation."""
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    answer = subprocess.run([str(_python()), "-c", query], capture_output=True, text=True, check=True)
    (Path(answer.stdout.strip()) / "pvbus-checkout.pth").write_text(f"{ROOT}\n")
    command = VENV / "bin" / "pvbus"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(str(_python()))} -P -m pvbus.cli "$@"\n')
    command.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
