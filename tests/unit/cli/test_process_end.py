"""A command ends as soon as it is done."""

import subprocess
import sys

ENDS = """
import atexit, gc, sys
from pvbus.cli.__main__ import run
atexit.register(lambda: print(gc.get_freeze_count() > 0))
sys.argv[1:] = ["--version"]
run()
"""


def test_no_command_searches_what_it_has_read_for_cycles_at_its_end() -> None:
    """Of the objects of 2,000 targets that takes a tenth of a second."""
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"
