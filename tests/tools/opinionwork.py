"""The process of second opinions with an evaluator that misbehaves: `-m tests.tools.opinionwork BYTES`.

An expression with the word `hang` waits for ever, one with `die` ends the process, one with `differ` has
another result than with cel-python.
"""

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from pvbus.core.cel.second_opinion import answer
from pvbus.runtime.opinion.work import main


def misbehaving(text: str, variables: Mapping[str, Any]) -> str:
    if "hang" in text:
        time.sleep(3600)
    if "die" in text:
        os._exit(3)
    return f"{answer(text, variables)}!" if "differ" in text else answer(text, variables)


if __name__ == "__main__":
    main(int(sys.argv[1]), misbehaving)
