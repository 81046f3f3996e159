"""A fleet of packages whose repository the package store changes in batches: many changes in each push.

The changes are those of pvbus's services: clones, saved files, proposals, approvals of a wave, upgrades, what
a rollback and `pvbus undo` lead to, deletions. In between a person pushes, and a remote refuses.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages import layout, queueing
from pvbus.controlplane.packages.gitcommand import RefUpdate
from pvbus.controlplane.packages.gitrepo import BareMirror
from pvbus.core.kernel.keys import APPROVE_TOGETHER, RESTORES, revision_name
from pvbus.core.variants.revisions.making import CAUSE, edit_task, upgrade_task
from pvbus.ports.cluster import Object
from tests.integration.packages.support import (
    CONFIG,
    KPTFILE,
    StoreWorld,
    bare,
    clone_of,
    git,
    push_files,
    repository,
    revision,
)
from tests.integration.packages.test_faults import refuse

PACKAGES = ("api", "db", "web", "cache", "queue", "proxy", "gone", "sites/berlin/dns", "sites/oslo/ntp")
FIRST, NEXT, AGAIN = "packagevariant-1", "packagevariant-2", "packagevariant-3"
ROLLBACK = "rollback-1-5b1e07c2"

GATHER_SECONDS = 2.0
"""How long a push waits for the rest of a batch, as a machine may be busy: a batch that is divided fails."""

TEXTS = {"own.txt": "ü\r\nno line break", "empty.txt": "", "notes/\u00fc.md": "# deeper\n"}


class BatchedFleet:
    """The repositories `blue` of blueprints and `edge` of their clones, and the requests of clients.

    remote, blueprints: their git repositories
    repositories: their Repositories
    pushes: the refs that each push to `edge` has moved, also those of a person
    """

    def __init__(self, world: StoreWorld, folder: Path, name: str, directory: str) -> None:
        """Make the git repositories.

        name: what tells the Repositories from those of other fleets
        directory: the folder of the packages in `edge`
        """
        self.world = world
        self.remote = bare(folder / "edge.git")
        self.blueprints = bare(folder / "blue.git")
        self.directory = directory
        blue, edge = f"blue-{name}", f"edge-{name}"
        self.repositories = (
            repository(blue, self.blueprints),
            repository(edge, self.remote, deployment=True, git={"directory": directory}),
        )
        self.pushes: list[frozenset[str]] = []
        self._edge, self._app = edge, f"{blue}.app"
        self._file = folder / "pushes"

    # ------------------------------------------------------------ the repositories

    async def begin(self) -> None:
        """Publish the first blueprint and register both Repositories."""
        git(self.remote, "config", "core.logAllRefUpdates", "always")
        self.publish_blueprint("v1", CONFIG)
        await self.register_with(self.world)

    async def register_with(self, world: StoreWorld) -> None:
        """Register both Repositories with a package store, and wait until it has read them."""
        for each in self.repositories:
            spec = {key: value for key, value in each["spec"].items() if key != "type"}
            await world.add_repository(each["metadata"]["name"], spec["git"]["repo"], **spec)

    def publish_blueprint(self, tag: str, settings: str) -> None:
        """Publish a revision of the blueprint by hand."""
        files = {"app/Kptfile": KPTFILE.format(name="app"), "app/settings.yaml": settings}
        push_files(self.blueprints, files, tag=f"app/{tag}")

    def note_pushes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Note what the package store pushes, and let a push wait for the rest of its batch."""
        push = BareMirror.push

        def noted(mirror: BareMirror, updates: Sequence[RefUpdate], bases: Iterable[str] = ()) -> None:
            push(mirror, updates, bases)
            self.pushes.append(frozenset(update.ref for update in updates))

        monkeypatch.setattr(BareMirror, "push", noted)
        monkeypatch.setattr(queueing, "GATHER_SECONDS", GATHER_SECONDS)

    def add_hook(self) -> None:
        """Let the remote itself write a line with the refs of each push, in its post-receive hook."""
        hook = self.remote / "hooks" / "post-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(
            f"#!/bin/sh\nwhile read old new ref; do printf '%s ' \"$ref\"; done >>'{self._file}'\n"
            f"echo >>'{self._file}'\n"
        )
        hook.chmod(0o755)

    def noted_by_hook(self) -> list[frozenset[str]]:
        """Return the refs of each push, as the hook has written them."""
        return [frozenset(line.split()) for line in self._file.read_text().splitlines()]

    def reflog(self, ref: str) -> list[str]:
        """Return what git of the remote says about each move of a ref, the first one first."""
        lines = (self.remote / "logs" / ref).read_text().splitlines()
        return [line.partition("\t")[2] for line in lines]

    def ref(self, kind: str, package: str, identifier: str) -> str:
        """Return the name of a package's ref. kind: its prefix"""
        return f"{kind}{layout.join(self.directory, package)}/{identifier}"

    # ------------------------------------------------------------ what clients ask for

    async def in_one_push(self, *requests: Awaitable[object]) -> list[object]:
        """Send requests at once, of which all changes go in one push. Return the answers and errors."""
        before = len(self.pushes)
        answers = await asyncio.gather(*requests, return_exceptions=True)
        assert len(self.pushes) == before + 1, (self.pushes[before:], answers)
        return answers

    def name(self, package: str, workspace: str) -> str:
        return revision_name(self._edge, package, workspace)

    def lifecycle(self, package: str, workspace: str) -> str:
        found: str = self.world.present(self.name(package, workspace))["spec"]["lifecycle"]
        return found

    async def create(self, package: str, workspace: str, task: Object, **annotations: str) -> Object:
        wanted = revision(self._edge, package, workspace, task, annotations=annotations)
        return await self.world.create(wanted, user="ada@example.com")

    async def clone(self, package: str) -> Object:
        return await self.create(package, FIRST, clone_of(f"{self._app}.v1"), **{CAUSE: "a new target"})

    async def upgrade(self, package: str) -> Object:
        source = self.world.present(self.name(package, FIRST))
        return await self.create(package, NEXT, upgrade_task(source, f"{self._app}.v1", f"{self._app}.v2"))

    async def roll_back(self, package: str) -> Object:
        """Make the draft by which release publishes the first revision again."""
        source = self.world.present(self.name(package, FIRST))
        name: str = source["metadata"]["name"]
        cause = {CAUSE: f"rollback to {name}", RESTORES: name}
        return await self.create(package, ROLLBACK, edit_task(source), **cause)

    async def undo(self, package: str) -> Object:
        """Make the draft that follows from `pvbus undo` of a set: an upgrade to the former blueprint."""
        source = self.world.present(self.name(package, NEXT))
        return await self.create(package, AGAIN, upgrade_task(source, f"{self._app}.v2", f"{self._app}.v1"))

    async def save(self, package: str, workspace: str, texts: dict[str, str]) -> Object:
        files = await self.world.files(self.name(package, workspace))
        return await self.world.put(files, texts, user="bob@example.com")

    async def move(self, package: str, workspace: str, lifecycle: str) -> Object:
        obj = self.world.present(self.name(package, workspace))
        return await self.world.update(obj, lifecycle=lifecycle, user="eve@example.com")

    async def approve(self, package: str, workspace: str, *group: str) -> Object:
        """Approve a proposal. group: the packages that are approved with it"""
        obj = self.world.present(self.name(package, workspace))
        if group:
            names = ",".join(self.name(each, workspace) for each in group)
            annotations = {**obj["metadata"].get("annotations", {}), APPROVE_TOGETHER: names}
            obj = {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}
        user = f"owner-of-{package.rpartition('/')[2]}@example.com"
        return await self.world.update(obj, lifecycle=layout.PUBLISHED, subresource="approval", user=user)

    async def delete(self, package: str, workspace: str) -> None:
        await self.world.delete(self.name(package, workspace))

    def push_by_hand(self, package: str, workspace: str) -> None:
        """Push a commit to a proposal, as a person with git does."""
        folder, ref = layout.join(self.directory, package), self.ref(layout.PROPOSALS, package, workspace)
        branch = ref.removeprefix(layout.HEADS)
        push_files(self.remote, {f"{folder}/by-hand.txt": "by hand\n"}, branch=branch)
        self.pushes.append(frozenset({ref}))

    # ------------------------------------------------------------ the story

    async def live(self) -> None:
        """Make all kinds of changes in batches."""
        await self._publish_first()
        await self._upgrade()
        await self._go_back()
        await self._remove()

    async def _publish_first(self) -> None:
        """Publish eight clones; the ninth gets a commit of a person while its approval is in the batch."""
        _check(await self.in_one_push(*map(self.clone, PACKAGES)))
        _check(await self.in_one_push(*(self.save(each, FIRST, TEXTS) for each in PACKAGES)))
        _check(await self.in_one_push(*(self.move(each, FIRST, layout.PROPOSED) for each in PACKAGES)))
        group, alone = ("api", "db", "web"), ("cache", "queue", "gone", "sites/berlin/dns", "sites/oslo/ntp")
        self.push_by_hand("proxy", FIRST)
        answers = await self.in_one_push(
            self.approve("proxy", FIRST),
            *(self.approve(each, FIRST, *group) for each in group),
            *(self.approve(each, FIRST) for each in alone),
        )
        assert isinstance(answers[0], StatusError)
        assert answers[0].code == 409
        _check(answers[1:])
        assert {self.lifecycle(each, FIRST) for each in (*group, *alone)} == {layout.PUBLISHED}
        assert self.lifecycle("proxy", FIRST) == layout.PROPOSED

    async def _upgrade(self) -> None:
        """Follow the next blueprint. The remote refuses one of the approvals, and the others go."""
        self.publish_blueprint("v2", CONFIG.replace("size: small", "size: large\n  colour: red"))
        await self.world.until(lambda: self.world.revision(f"{self._app}.v2"))
        upgraded = ("api", "db", "web", "cache", "queue", "sites/berlin/dns", "sites/oslo/ntp")
        _check(await self.in_one_push(*map(self.upgrade, upgraded)))
        proposed = tuple(each for each in upgraded if each != "queue")
        _check(await self.in_one_push(*(self.move(each, NEXT, layout.PROPOSED) for each in proposed)))
        refuse(self.remote, "/cache/v2")
        before, group = len(self.pushes), ("api", "db")
        answers = await asyncio.gather(
            self.approve("cache", NEXT),
            *(self.approve(each, NEXT, *group) for each in group),
            *(self.approve(each, NEXT) for each in ("web", "sites/berlin/dns")),
            return_exceptions=True,
        )
        (self.remote / "hooks" / "pre-receive").unlink()
        assert "is frozen" in str(answers[0])
        _check(answers[1:])
        moved = [push for push in self.pushes[before:] if self.ref(layout.TAGS, "api", "v2") in push]
        assert [self.ref(layout.TAGS, "db", "v2") in push for push in moved] == [True]
        assert self.lifecycle("cache", NEXT) == layout.PROPOSED

    async def _go_back(self) -> None:
        """Roll two packages back, and follow the former blueprint again with a third one."""
        _check(await self.in_one_push(self.roll_back("api"), self.roll_back("db"), self.undo("web")))
        drafts = (("api", ROLLBACK), ("db", ROLLBACK), ("web", AGAIN))
        _check(await self.in_one_push(*(self.move(*each, layout.PROPOSED) for each in drafts)))
        _check(await self.in_one_push(*(self.approve(*each) for each in drafts)))
        numbers = [self.world.present(self.name(*each))["spec"]["revision"] for each in drafts]
        assert numbers == [3, 3, 3]

    async def _remove(self) -> None:
        """Propose deletions, and carry out some of them, beside rejections and deletions of open ones."""
        branch = "main"
        published = [(each, FIRST) for each in ("api", "db", "web", "gone", "sites/berlin/dns")]
        folders = [("cache", branch), ("gone", branch)]
        wanted = layout.DELETION_PROPOSED
        _check(await self.in_one_push(*(self.move(*each, wanted) for each in (*published, *folders))))
        _check(
            await self.in_one_push(
                *(self.delete(*each) for each in (("db", FIRST), ("web", FIRST), ("gone", FIRST))),
                *(self.delete(*each) for each in (("gone", branch), ("queue", NEXT))),
                self.move("sites/berlin/dns", FIRST, layout.PUBLISHED),
                self.move("sites/oslo/ntp", NEXT, layout.DRAFT),
            )
        )
        await self.world.until(lambda: self.world.revision(self.name("gone", branch)) is None)


def _check(answers: Iterable[object]) -> None:
    """Raise the first error among answers."""
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
