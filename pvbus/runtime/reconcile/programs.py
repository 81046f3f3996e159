"""Runs the programs that render templates: each with limits, in a folder of its own, without our secrets.

They are searched on this process's PATH, and inherit nothing else of it. A network they have only where the
system cannot take it from them.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakKeyDictionary

from pvbus.core.errors import PROGRAM_MISSING, PermanentError
from pvbus.core.kernel.effects import Execute, Executed
from pvbus.core.platform.packaging.archives import check_files

SECONDS_MAX = 60.0
"""A chart of hundreds of objects takes 1 s; the others of a process wait meanwhile if two are at it."""
FAILED = "ProgramFailed"
AT_ONCE_MAX = 2
"""Each may take as much memory as its limit."""
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def execute(effect: Execute) -> Executed:
    """Run a program. Raises PermanentError if there is none, or it did not end by itself."""
    program = shutil.which(effect.program)
    if program is None:
        raise PermanentError(f"PATH has no program {effect.program}", reason=PROGRAM_MISSING)
    check_files((path, len(data)) for path, data in effect.files.items())
    turns = _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE_MAX))
    async with turns:
        with tempfile.TemporaryDirectory(prefix="pvbus-template-", ignore_cleanup_errors=True) as folder:
            return await _run(effect, os.path.abspath(program), folder)


async def _run(effect: Execute, program: str, folder: str) -> Executed:
    # What runs packages' functions is only imported where it is used.
    from pvbus.controlplane.packages import programs
    from pvbus.controlplane.packages.functions import executable as bounds

    work, home = Path(folder, "files"), Path(folder, "home")
    environment = {**bounds.ENVIRONMENT, "HOME": str(home), "TMPDIR": str(home)}
    limits = programs.Limits(bounds.MEMORY_BYTES_MAX, bounds.FILE_BYTES_MAX)
    try:
        home.mkdir()
        await asyncio.to_thread(_put, work, effect.files)
        await asyncio.to_thread(programs.isolation)
        process = programs.start(
            [program, *effect.arguments], work, environment, with_input=True, limits=limits, isolated=True
        )
    except (OSError, ValueError) as error:
        raise PermanentError(f"{effect.program} cannot be started: {error}", reason=FAILED) from error
    try:
        done = await asyncio.to_thread(
            programs.run,
            process,
            effect.given,
            seconds_max=SECONDS_MAX,
            bytes_max=bounds.OUTPUT_BYTES_MAX,
        )
    except asyncio.CancelledError:
        programs.kill_group(process)  # its thread ends then, too
        raise
    if done.excess:
        text = f"{effect.program} wrote more than {bounds.OUTPUT_BYTES_MAX} bytes and was killed"
        raise PermanentError(text, reason=FAILED)
    if done.code is None:
        text = f"{effect.program} did not end within {SECONDS_MAX:g} s and was killed"
        raise PermanentError(text, reason=FAILED)
    return Executed(done.code, done.out, done.err)


def _put(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir()
    for path, data in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
