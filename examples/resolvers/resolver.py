"""Resolves one condition of one package revision, whenever all that the condition comes after is True.

    python resolver.py default/edge.web.packagevariant-1 Deployed ./deploy.sh asia-01

COMMAND runs when the condition may be set and is neither True nor False. It is True if the command ends well,
else False; neither is written if something that it comes after is not True then. When that is so later, the
condition becomes Unknown, and the command runs again once it may be set again: so it must be one that may be
repeated. PVBUS names the command `pvbus` where it is not on PATH.
"""

import json
import os
import shlex
import subprocess
import sys
from typing import Any

PVBUS = shlex.split(os.environ.get("PVBUS", "pvbus"))
SET = ("True", "False")


class Resolver:
    def __init__(self, revision: str, type_: str, command: list[str]) -> None:
        self.revision, self.type, self.command = revision, type_, command

    def follow(self) -> int:
        """Look at each state of the condition; return the exit code of a watch that ended by itself."""
        while True:
            arguments = ["condition", "get", self.revision, self.type, "--watch", "-o", "json"]
            with subprocess.Popen([*PVBUS, *arguments], stdout=subprocess.PIPE, text=True) as watch:
                assert watch.stdout is not None
                is_old = False
                for line in watch.stdout:
                    (condition,) = json.loads(line)["conditions"]
                    is_old = self.looked_at(condition)
                    if is_old:  # what the watch has shown meanwhile is the past: begin with the present
                        watch.terminate()
                        break
            if not is_old:
                return watch.returncode

    def looked_at(self, condition: dict[str, Any]) -> bool:
        """Do what a state of the condition asks for; return whether anything was done."""
        is_set, is_engaged = condition.get("status") in SET, bool(condition.get("engaged", True))
        if is_set and not is_engaged:
            why = ", ".join(condition["waitsFor"])
            self.report("Unknown", "--reason", "NotEngaged", "--message", f"it comes after {why}")
        elif is_engaged and not is_set:
            done = subprocess.run(self.command, check=False)
            self.report("True" if done.returncode == 0 else "False", "--in-order")
        return is_set != is_engaged

    def report(self, status: str, *options: str) -> None:
        """Set the condition. One that is refused is looked at again: the revision has changed."""
        arguments = ["condition", "set", self.revision, f"{self.type}={status}", *options]
        subprocess.run([*PVBUS, *arguments], check=False)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(f"usage: {sys.argv[0]} NAMESPACE/REVISION TYPE COMMAND...")
    sys.exit(Resolver(sys.argv[1], sys.argv[2], sys.argv[3:]).follow())
