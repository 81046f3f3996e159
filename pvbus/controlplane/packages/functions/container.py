"""Runs an image as a function in a container engine: podman, docker or nerdctl.

The container has no network, no mount of this machine, a read-only root, and no user of this machine.
Source: kpt v1.0.0-beta.62 pkg/fn/runtime (no network, user nobody, images without a registry).
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from uuid import uuid4

from pvbus.controlplane.packages import programs
from pvbus.controlplane.packages.functions import executable
from pvbus.controlplane.packages.functions.executable import Ended
from pvbus.controlplane.packages.functions.item import FunctionOutput, Item, Value
from pvbus.core.api.packages import qualified
from pvbus.core.errors import PermanentError, TransientError, UsageError

CPUS = 1
PROCESSES_MAX = 256
SCRATCH_BYTES_MAX = 256 * 1024**2
_NOBODY = "65534:65534"
_REMOVE_SECONDS = 30.0
_ENGINE_FAILED = 125
"""The exit code of podman and docker if they could not start the container: the image cannot be pulled, or
the daemon does not answer. nerdctl has no such code."""
_IMAGE_CHARACTERS_MAX = 512
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?/)?[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
    r"(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)

_COMMON = (
    "--rm",
    "--interactive",
    "--pull=missing",
    "--network=none",
    "--read-only",
    f"--tmpfs=/tmp:rw,nosuid,nodev,size={SCRATCH_BYTES_MAX}",
    f"--user={_NOBODY}",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    f"--memory={executable.MEMORY_BYTES_MAX}",
    f"--memory-swap={executable.MEMORY_BYTES_MAX}",
    f"--cpus={CPUS}",
    f"--pids-limit={PROCESSES_MAX}",
)
ENGINES = {
    # Without these, podman passes on the proxy variables of this process, and both store all output.
    "podman": ("--http-proxy=false", "--log-driver=none"),
    "docker": ("--log-driver=none",),
    "nerdctl": (),
}


def engine_of(choice: str) -> str:
    """Return the engine to use; `auto` is the first that is there. Raises: UsageError if there is none."""
    wanted = tuple(ENGINES) if choice == "auto" else (choice,)
    found = next((engine for engine in wanted if shutil.which(engine)), None)
    if found is None:
        raise UsageError(
            f"PVBUS_FUNCTION_ENGINE={choice}: {' or '.join(wanted)} is not on PATH: install it, or unset the "
            "setting"
        )
    return found


def command_of(engine: str, image: str, name: str) -> list[str]:
    """Return the command that runs an image. Raises: PermanentError if it is no valid image."""
    if len(image) > _IMAGE_CHARACTERS_MAX or not _IMAGE.fullmatch(image):
        raise PermanentError(
            f"{image[:_IMAGE_CHARACTERS_MAX]!r} is not an image that a container engine can run: expected "
            "[REGISTRY/]NAME[:TAG][@sha256:DIGEST]",
            reason="InvalidPipeline",
        )
    return [engine, "run", f"--name={name}", *_COMMON, *ENGINES[engine], "--", image]


def run_container(
    engine: str, image: str, items: Sequence[Item], config: Value | None, *, timeout_seconds: float
) -> FunctionOutput:
    """Run an image on the items; block until it ends. The time includes the image's first pull.

    Raises: PermanentError if the function fails, TransientError if the engine does.
    """
    name = f"pvbus-function-{uuid4().hex}"
    command = command_of(engine, qualified(image), name)

    def run(text: str) -> Ended:
        with tempfile.TemporaryDirectory(prefix="pvbus-function-", ignore_cleanup_errors=True) as folder:
            try:
                process = programs.start(command, folder, dict(os.environ), with_input=True)
                ended = executable.finish(process, text, timeout_seconds)
            except OSError as exc:
                raise TransientError(f"cannot start {engine}: {exc.strerror}") from exc
            except PermanentError:
                _remove(engine, name)
                raise
        if ended.code == _ENGINE_FAILED:
            raise TransientError(f"{engine} cannot run {qualified(image)}: {ended.err.strip()[-2000:]}")
        return ended

    return executable.evaluate(run, items, config)


def _remove(engine: str, name: str) -> None:
    """Kill a container: the end of the engine's command does not end it."""
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run((engine, "rm", "--force", name), capture_output=True, timeout=_REMOVE_SECONDS)
