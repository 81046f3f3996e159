"""Runs kubectl against a served API and compares what it says, its exit code and the state it leaves."""

import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, Queue
from string import Template
from types import TracebackType
from typing import Any, NamedTuple

import yaml

from pvbus.controlplane.apiserver import jsonpath
from pvbus.ports.cluster import Kind, Object
from tests.tools.served import Served

COMMAND_SECONDS_MAX = 60


class Step(NamedTuple):
    """A command and what it must say.

    command: kubectl's arguments as a shell reads them; out: the whole of standard output, or a
    pattern for it after "~"; err: a pattern found in standard error, "" if that must be empty.
    `$r`, `$full`, `$holder` and `$ns` are the subject's resource, the name kubectl prints, the field
    with the data, and the namespace.
    """

    command: str
    out: str = ""
    code: int = 0
    err: str = ""
    stdin: str = ""


class Subject(NamedTuple):
    """A kind to try everything on. Its data is texts by key in the field `holder`."""

    kind: Kind
    api_version: str
    resource: str
    printed: str
    holder: str

    def manifest(self, name: str = "a", size: str = "1", **more: Any) -> str:
        metadata = {"name": name, **more.pop("metadata", {})}
        data = {"size": size, **more.pop("data", {})}
        head = {"apiVersion": self.api_version, "kind": self.kind.kind, "metadata": metadata}
        return yaml.safe_dump({**head, self.holder: data, **more})


WIDGET = Subject(Kind("example.com", "Widget"), "example.com/v1", "widgets", "widget.example.com", "spec")
CONFIG_MAP = Subject(Kind("", "ConfigMap"), "v1", "configmaps", "configmap", "data")


class Case(NamedTuple):
    """Steps, and paths with their values in the object `a` afterwards (None: no such object)."""

    name: str
    steps: tuple[Step, ...]
    after: Mapping[str, list[Any]] | None
    subject: Subject = CONFIG_MAP


class Said(NamedTuple):
    out: str
    err: str
    code: int


class Kubectl:
    """One kubectl binary, one namespace of its own."""

    def __init__(self, binary: Path, home: Path, kubeconfig: Path, namespace: str, served: Served) -> None:
        self._binary = binary
        self._environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(home),
            "KUBECONFIG": str(kubeconfig),
        }
        self.namespace = namespace
        self.served = served

    def environment(self, **more: str) -> None:
        self._environment.update(more)

    def run(self, command: str, *, stdin: str = "") -> Said:
        done = subprocess.run(
            self._arguments(command),
            input=stdin,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        return Said(done.stdout, _without_skew(done.stderr), done.returncode)

    def good(self, command: str, *, stdin: str = "") -> str:
        """Run a command that must succeed; return what it prints."""
        said = self.run(command, stdin=stdin)
        assert said.code == 0, f"kubectl {command}: {said}"
        return said.out

    def follow(self, command: str) -> "Following":
        """Start a command that goes on, such as a watch."""
        return Following(self._arguments(command), self._environment)

    def _arguments(self, command: str) -> list[str]:
        return [str(self._binary), "--namespace", self.namespace, *shlex.split(command)]

    def get(self, subject: Subject, name: str = "a") -> Object | None:
        return self.served.object(subject.kind, self.namespace, name)

    def check(self, step: Step, subject: Subject) -> None:
        names = {
            "r": subject.resource,
            "full": f"{subject.printed}/a",
            "printed": subject.printed,
            "holder": subject.holder,
            "ns": self.namespace,
        }
        command, out, err = (Template(t).safe_substitute(names) for t in (step.command, step.out, step.err))
        said = self.run(command, stdin=step.stdin)
        where = f"kubectl {command}\n{said.out}{said.err}"
        assert said.code == step.code, where
        if out.startswith("~"):
            assert re.fullmatch(out[1:], said.out, re.DOTALL), where
        else:
            assert said.out == out, where
        assert re.search(err, said.err, re.DOTALL) if err else not said.err, where


def _without_skew(text: str) -> str:
    """Leave out what kubectl says about its own version."""
    return re.sub(r"WARNING: version difference between client .*\n", "", text)


class Following:
    """A kubectl that is still running, and the lines it has printed."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))

    def line(self, pattern: str, *, seconds: float = 20.0) -> str:
        """Wait for a line that the pattern is found in."""
        seen: list[str] = []
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise AssertionError(f"no line like {pattern!r}, but {seen}") from None
            seen.append(line)
            if re.search(pattern, line):
                return line

    def end(self, *, seconds: float = 20.0) -> int:
        """Wait for the process to end by itself; return its exit code."""
        return self._process.wait(seconds)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def __enter__(self) -> "Following":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running():
            self._process.terminate()
        self._process.wait(10)
        self._reader.join(10)
        if self._process.stdout is not None:
            self._process.stdout.close()


def values(obj: Object, paths: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {path: jsonpath.find(path, obj) for path in paths}


def eventually(condition: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """Wait until the state of the world is as wanted."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the state did not come about in time"
        time.sleep(0.05)
