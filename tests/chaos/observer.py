"""Reads a world while it is disturbed, and gives the checker what it saw in the order of its time."""

import asyncio
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException

from pvbus.examples import fleet as example
from pvbus.ports.cluster import Kind, Object
from tests.chaos.judge import Branch, Edit, Judge
from tests.chaos.timeline import Timeline
from tests.chaos.world import ChaosWorld
from tests.tools.faultyapi import FaultyApi
from tests.tools.topicreader import ReadRecord, TopicReader

TOPICS, GIT, NOW = "topics", "git", "now"
TRANSACTION_SECONDS = 25.0
"""A record has the time of its send, and is seen when its transaction has ended: after this at the latest."""
LOOK_SECONDS = 3.0
READ_SECONDS_MAX = 20.0
DRAFTS = "refs/heads/drafts/"


class Observer:
    """See the module. Use: `run` in a task; `judge_now` when nothing happens any more."""

    def __init__(
        self, world: ChaosWorld, api: FaultyApi, reader: TopicReader, judge: Judge, git: Path
    ) -> None:
        self.judge = judge
        self._world = world
        self._api = api
        self._reader = reader
        self._git = git
        self._writes_seen = 0
        self._ends: Mapping[tuple[str, int], int] = {}
        self._times: dict[tuple[str, int], float] = {}
        self._timeline = Timeline(TOPICS, NOW, *([GIT] if world.has_drafts else []))
        self._reading = asyncio.Lock()
        self.failed_looks = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._world.watch(self._object))
            tasks.create_task(self._look())

    def edited(self, edit: Edit) -> None:
        """Take a person's edit, which the API server has answered."""
        self._timeline.put(time.time(), partial(self.judge.edited, edit))

    def _object(self, at: float, kind: Kind, key: str, obj: Object | None) -> None:
        self._timeline.put(at, partial(self.judge.object, kind, key, obj))

    async def _look(self) -> None:
        while True:
            await self.look()
            self._drain()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Read topics, git and the writes of the services once."""
        now = time.time()
        self._take_writes()
        self._timeline.read_until(NOW, now)
        if self._world.has_drafts:
            await self._look_at_git()
        try:
            await self._read_topics()
        except (TimeoutError, KafkaException):  # brokers are away
            self.failed_looks += 1

    def _drain(self, *, all_facts: bool = False) -> None:
        def begin(at: float) -> None:
            self.judge.now = at

        self._timeline.drain(begin, all_facts=all_facts)

    def _take_writes(self) -> None:
        fresh = self._api.writes[self._writes_seen :]
        self._writes_seen += len(fresh)
        for write in fresh:
            self._timeline.put(write.received, partial(self.judge.sent, write))
            self._timeline.put(write.answered, partial(self.judge.answered, write))

    async def _read_topics(self) -> None:
        async with self._reading:  # one reader at a time, and each goes on where the last one ended
            now = time.time()
            reading = await asyncio.to_thread(
                lambda: self._reader.all(since=self._ends, seconds_max=READ_SECONDS_MAX)
            )
            for record in reading.records:
                self._timeline.put(self._time_of(record), partial(self.judge.record, record))
            self._timeline.put(now, partial(self.judge.ends, reading.ends))
            self._ends = {**self._ends, **reading.ends}
            self._timeline.read_until(TOPICS, now - TRANSACTION_SECONDS)

    def _time_of(self, record: ReadRecord) -> float:
        """The time of a record, and not before that of the one before it in its partition."""
        tp = (record.topic, record.partition)
        found = max(record.timestamp_ms / 1000, self._times.get(tp, 0.0))
        self._times[tp] = found
        return found

    # ------------------------------------------------------------ git

    async def _look_at_git(self) -> None:
        now = time.time()
        with suppress(subprocess.CalledProcessError):  # a ref went between two looks of git itself
            seen = await asyncio.to_thread(self._branches)
            self._timeline.put(now, partial(self.judge.branches, seen))
            self._timeline.read_until(GIT, now)

    def _branches(self) -> dict[Branch, str]:
        found = {}
        for remote in self._remotes():
            listed = _git(remote, "for-each-ref", "--format=%(objectname) %(refname)", DRAFTS)
            for line in listed.splitlines():
                commit, _, ref = line.partition(" ")
                package, _, workspace = ref.removeprefix(DRAFTS).rpartition("/")
                found[Branch(remote.stem, package, workspace)] = commit
        return found

    def _remotes(self) -> list[Path]:
        named = (self._git / f"edge-{region}.git" for region in example.REGIONS)
        return [remote for remote in named if remote.exists()]

    def _files(self) -> dict[Branch, frozenset[str]]:
        found = {}
        for branch, commit in self._branches().items():
            remote = self._git / f"{branch.repository}.git"
            listed = _git(remote, "ls-tree", "-r", "--name-only", f"{commit}:{branch.package}")
            found[branch] = frozenset(listed.splitlines())
        return found

    # ------------------------------------------------------------ the end

    async def judge_now(self) -> None:
        """Read and judge everything, when all is settled. Raises TimeoutError."""
        self._take_writes()
        await self._read_topics()
        if self._world.has_drafts:
            await self._look_at_git()
        self._drain(all_facts=True)
        self.judge.now = time.time()
        async with self._reading:
            again = await asyncio.to_thread(self._reader.all)
        self.judge.replayed(again.records)
        if self._world.has_drafts:
            self.judge.files(await asyncio.to_thread(self._files))
        self.judge.finish()


def _git(remote: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=remote, capture_output=True, text=True, check=True)
    return done.stdout
