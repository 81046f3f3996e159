"""The life of a variant beside a model of it: whatever people and events do, in any order.

The package store's rules are those of `pvbus plan`, with its merges and versions.
"""

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pvbus.adapters.memory.objects import RESOURCES, REVISION
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.core.kernel.conflicts import ABSENT, CONFLICTS, reported
from pvbus.core.kernel.records import RESULTS
from pvbus.core.variants.inject.later import MERGED, base_name
from pvbus.core.yaml import editor
from pvbus.ports.cluster import Kind, Object
from pvbus.runtime.preview.packages import StoreRules
from tests.kit.cluster import resource_of
from tests.simulation.inject_world import NAMESPACE, POINT, SITES, InjectWorld, package, site, variant

KEY = f"{NAMESPACE}/v"
KPTFILE = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: app\n"
UPSTREAMS = {"repo": "blue", "package": "app"}
ANY = {**UPSTREAMS, "workspaceName": "*"}
OTHER = {"apiVersion": "v1", "kind": "Person", "name": "other", "uid": "other", "controller": True}

OWN = st.sampled_from("abcde")
EVENTS = st.one_of(
    st.tuples(st.just("edit"), OWN),
    st.tuples(st.just("edit"), OWN),
    st.tuples(st.just("publish_upstream"), st.sets(st.sampled_from("abc"), min_size=1), st.booleans()),
    st.tuples(st.just("publish_upstream"), st.sets(st.sampled_from("abc"), min_size=1), st.just(False)),
    st.tuples(st.just("settle")),
    st.tuples(st.just("settle")),
    st.tuples(st.sampled_from(["propose", "reject", "approve"])),
    st.tuples(st.sampled_from(["restart", "delete_draft", "take_over", "leave", "delete_variant"])),
    st.tuples(st.just("return_variant")),
    st.tuples(st.sampled_from(["go_on", "go_on", "go_and_return"])),
    st.tuples(st.just("pin"), st.integers(0, 9)),
    st.tuples(st.just("change_site"), st.booleans()),
    st.tuples(st.just("publish")),
    st.tuples(st.sampled_from(["copy", "publish_copy", "drop_copy", "restore_copy"])),
    st.tuples(st.just("fix"), OWN),
    st.tuples(st.just("edit_copy"), OWN),
)


def settings_of(data: dict[str, str]) -> str:
    lines = "".join(f"  {key}: {value}\n" for key, value in data.items())
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\ndata:\n  always: yes-\n{lines}"


def repository(name: str) -> Object:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "config.porch.kpt.dev/v1alpha1", "kind": "Repository", "metadata": metadata}


class Life:
    """open: a person's values in the draft, or None.

    copies: those in the drafts that a person made of a published revision, by name; values_of: those of all
    published revisions. base: those of the revision that the draft was made from, or has merged."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        world = InjectWorld([SITES, site("s"), repository("edge"), repository("blue")])
        world.cluster.rules = StoreRules(world.cluster, FunctionRegistry({}), is_embedded=True)
        self.world = world
        self.upstream = {"a": "u0", "b": "u0", "c": "u0"}
        self.published = 0
        self.values = 0
        self.uids = 1
        self.open: dict[str, str] | None = None
        self.base: dict[str, str] = {}
        self.merged = ""
        self.copied = 0
        self.copies: dict[str, dict[str, str]] = {}
        self.values_of: dict[str, dict[str, str]] = {}
        self.taken: dict[str, Object] = {}
        self.put_upstream()
        world.cluster.put(variant(upstream=ANY, injectors=[{"name": "s"}]))
        self.settle()

    def run(self, steps: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(steps)

    def value(self, who: str) -> str:
        self.values += 1
        return f"{who}{self.values}"

    # ------------------------------------------------------------ what is there

    def put_upstream(self) -> None:
        self.published += 1
        git = {"repo": "blue-url", "directory": "app", "ref": f"app/v{self.published}"}
        lock = {"type": "git", "git": {**git, "commit": f"c{self.published}"}}
        files = {"Kptfile": KPTFILE, "settings.yaml": settings_of(self.upstream), "site.yaml": POINT}
        for obj in package(
            "blue", "app", f"v{self.published}", lifecycle="Published", revision=self.published,
            files=files, status={"selfLock": lock},
        ):  # fmt: skip
            self.world.cluster.put(obj)

    def mine(self) -> dict[str, Object]:
        uid = f"uid-v-{self.uids}" if self.uids > 1 else "uid-v"
        return {name: obj for name, obj in self.world.revisions().items() if uid in self.world.owners(name)}

    def drafts(self, *lifecycles: str) -> list[str]:
        wanted = lifecycles or ("Draft", "Proposed")
        return [name for name, obj in self.mine().items() if obj["spec"]["lifecycle"] in wanted]

    def last(self) -> str | None:
        """Return the last published revision that counts: one of the variant, or a person's."""
        mine = self.mine()
        numbers = {
            name: obj["spec"].get("revision", 0)
            for name, obj in self.world.revisions().items()
            if obj["spec"]["lifecycle"] == "Published" or (name in mine and name not in self.drafts())
        }
        return max(numbers, key=lambda name: numbers[name], default=None)

    def tip(self) -> str | None:
        return next(iter(self.drafts()), None) or (self.last() if self.mine() else None)

    @property
    def retained(self) -> dict[str, str]:
        """A person's values in the last published revision, whichever that is now."""
        return dict(self.values_of.get(self.last() or "", {}))

    def data(self, name: str) -> dict[str, str]:
        found: dict[str, str] = editor.values(self.world.files(name)["settings.yaml"])[0]["data"]
        return found

    # ------------------------------------------------------------ upstream and injected object

    def publish_upstream(self, changed: set[str], removed: bool) -> None:
        for field in sorted(changed):
            self.upstream[field] = self.value("u")
        if removed:
            del self.upstream[min(changed)]
        self.put_upstream()

    def pin(self, number: int) -> None:
        number = min(number, self.published)
        if self.world.variant() is not None:
            self.world.change(upstream={**UPSTREAMS, "revision": number} if number else ANY)

    def change_site(self, exists: bool) -> None:
        if exists:
            self.world.cluster.put(site("s", self.value("region")))
        else:
            self.world.cluster.remove(Kind("example.com", "Site"), NAMESPACE, "s")

    # ------------------------------------------------------------ people

    def edit(self, field: str) -> None:
        for name in self.drafts("Draft"):
            value = self.value("m")
            self.run(self._edit(name, field, value))
            if self.open is None:
                self.begin()
            assert self.open is not None
            self.open[field] = value

    def begin(self) -> None:
        """There is a new draft."""
        self.open, self.base, self.merged = self.retained, self.retained, ""

    async def _edit(self, name: str, field: str, value: str) -> None:
        resource = await resource_of(self.world.cluster, RESOURCES)
        files = await self.world.cluster.get(resource, NAMESPACE, name)
        assert files is not None
        texts = files["spec"]["resources"]
        (document,) = editor.parse(texts["settings.yaml"])
        texts["settings.yaml"] = editor.assign(document, ("data", field), value).text
        await self.world.cluster.update(resource, files)

    def propose(self) -> None:
        for name in self.drafts("Draft"):
            self.world.touch(name, lifecycle="Proposed")

    def reject(self) -> None:
        for name in self.drafts("Proposed"):
            self.world.touch(name, lifecycle="Draft")

    def approve(self) -> None:
        for name in self.drafts("Proposed"):
            values = self.retained
            if self.open is not None:  # what is only in the report is given up by approving
                data = self.data(name)
                values = {field: value for field, value in self.open.items() if data.get(field) == value}
                self.open = None
            numbers = [obj["spec"].get("revision", 0) for obj in self.world.revisions().values()]
            self.world.touch(name, lifecycle="Published", revision=max(0, *numbers) + 1)
            self.values_of[name] = values

    # ------------------------------------------------------------ a person's copies

    def copy(self) -> None:
        last = self.last()
        if last is None or self.world.revisions()[last]["spec"]["lifecycle"] != "Published":
            return
        self.copied += 1
        source = self.world.revisions()[last]
        made = {
            "apiVersion": source["apiVersion"],
            "kind": source["kind"],
            "metadata": {"namespace": NAMESPACE},
            "spec": {
                **{key: source["spec"][key] for key in ("packageName", "repository")},
                "workspaceName": f"copy-{self.copied}",
                "tasks": [{"type": "edit", "edit": {"sourceRef": {"name": last}}}],
            },
        }
        self.run(self._create(made))
        self.copies[f"edge.app.copy-{self.copied}"] = dict(self.values_of.get(last, {}))

    async def _create(self, obj: Object) -> None:
        resource = await resource_of(self.world.cluster, REVISION)
        await self.world.cluster.create(resource, obj)

    def edit_copy(self, field: str) -> None:
        for name, values in self.copies.items():
            values[field] = self.value("m")
            self.run(self._edit(name, field, values[field]))

    def publish_copy(self) -> None:
        for name in list(self.copies)[:1]:
            numbers = [obj["spec"].get("revision", 0) for obj in self.world.revisions().values()]
            self.world.touch(name, lifecycle="Published", revision=max(0, *numbers) + 1)
            self.values_of[name] = self.copies.pop(name)

    def drop_copy(self) -> None:
        self.propose_deletion("Published", "DeletionProposed")

    def restore_copy(self) -> None:
        self.propose_deletion("DeletionProposed", "Published")

    def propose_deletion(self, before: str, after: str) -> None:
        for name, lifecycle in self.world.lifecycles().items():
            if name.startswith("edge.app.copy-") and lifecycle == before:
                self.world.touch(name, lifecycle=after)

    def publish(self) -> None:
        """Settle, and publish the draft."""
        self.settle()
        self.propose()
        self.approve()

    def fix(self, field: str) -> None:
        """Publish an edited copy, whatever drafts there are."""
        self.copy()
        self.edit_copy(field)
        self.publish_copy()

    def delete_draft(self) -> None:
        for name in self.drafts():
            self.world.cluster.remove(REVISION, NAMESPACE, name)
            self.open = None

    def take_over(self) -> None:
        for name in self.drafts():
            self.world.disown(name, OTHER)
            self.open = None
            self.taken[name] = self.world.revisions()[name]

    def leave(self) -> None:
        for name in self.taken:
            self.world.cluster.remove(REVISION, NAMESPACE, name)
        self.taken.clear()

    def delete_variant(self) -> None:
        if self.world.variant() is not None:
            self.world.change(deleted=True)
            self.run(self.world.settle())
            assert self.world.variant() is None
            assert not self.mine()
            self.open = None

    def return_variant(self) -> None:
        if self.world.variant() is None:
            self.uids += 1
            again = variant(upstream=ANY, injectors=[{"name": "s"}])
            again["metadata"]["uid"] = f"uid-v-{self.uids}"
            self.world.cluster.put(again)

    def go_on(self) -> None:
        """Upstream's next revision is taken and approved: the package has one more revision."""
        self.settle()
        self.publish_upstream({"a"}, removed=False)
        self.settle()
        self.propose()
        self.approve()

    def go_and_return(self) -> None:
        self.settle()
        self.delete_variant()
        self.return_variant()
        self.settle()

    def restart(self) -> None:
        self.world.restart(observe=False)

    # ------------------------------------------------------------ what holds

    def settle(self) -> None:
        """Let inject do all it wants to do, compare, and see that it wants nothing more."""
        self.run(self.world.settle())
        assert len(self.drafts()) <= 1
        assert not self.drafts("DeletionProposed"), "no person proposes a deletion here"
        self.compare()
        done = len(self.world.writes())
        self.world.restart()
        self.world.controller.load(RESULTS, 0, KEY, None)
        self.run(self.world.settle())
        assert self.world.writes()[done:] == []

    def compare(self) -> None:
        tip = self.tip()
        if tip is None:
            return
        is_open = bool(self.drafts())
        if is_open and self.open is None:
            self.begin()
        if is_open:
            self.follow(tip)
        expected = self.open if self.open is not None else self.retained
        annotations = self.world.revisions()[tip]["metadata"].get("annotations") or {}
        conflicts = reported(annotations.get(CONFLICTS, ""))
        listed = {conflict.local for conflict in conflicts}
        data = self.data(tip)
        for field, value in expected.items():
            assert value in (data.get(field), *listed), f"{value} of {field} is lost: {data}, {listed}"
        # A value that a person has changed since is settled; the list of a proposal is not written any more.
        is_settled = all(
            conflict.field and data.get(conflict.field.rpartition(".")[2], ABSENT) != conflict.new
            for conflict in conflicts
        )
        assert (self.world.reported("UpgradeConflict")[0] == "True") is (is_open and not is_settled)
        assert self.drafts("Proposed") or not (conflicts and is_settled), "a draft's list has what is open"
        if self.drafts("Draft") and self.world.reported()[0] == "True":
            self.compare_content(tip, data)

    def follow(self, draft: str) -> None:
        """Take over what the variant has merged; a ready draft has merged the last published revision."""
        assert self.open is not None
        obj = self.mine()[draft]
        merged = (obj["metadata"].get("annotations") or {}).get(MERGED, "")
        if merged != self.merged:
            edited = {field: value for field, value in self.open.items() if self.base.get(field) != value}
            self.base = self.values_of[merged]
            self.open, self.merged = {**self.base, **edited}, merged
        if self.world.reported()[0] == "True" and self.last() is not None:
            numbers = {name: one["spec"].get("revision", 0) for name, one in self.world.revisions().items()}
            assert numbers[base_name(obj)] >= numbers[self.last() or ""]

    def compare_content(self, tip: str, data: dict[str, str]) -> None:
        """A ready draft has the value of the wanted upstream wherever no person set one."""
        ref = self.world.revisions()[tip]["status"]["upstreamLock"]["git"]["ref"].removeprefix("app/")
        upstream = self.data(f"blue.app.{ref}")
        for field in set(upstream) - set(self.open or {}):
            assert data.get(field, upstream[field]) == upstream[field]
        sites = self.world.all(Kind("example.com", "Site"))
        regions = [one["spec"]["region"] for one in sites]
        injected = editor.values(self.world.files(tip)["site.yaml"])[0]["spec"]["region"]
        assert not regions or injected == regions[0]

    def nothing_of_others_is_touched(self) -> None:
        for name, before in self.taken.items():
            assert self.world.revisions()[name] == before
        touched = {write.name for write in self.world.writes()} - {"v"}
        assert all(name.startswith("edge.app.") for name in touched)


def lives(examples: int, events: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(st.lists(EVENTS, min_size=events, max_size=2 * events))
    def one_life(happening: list[tuple[Any, ...]]) -> None:
        life = Life()
        try:
            for name, *arguments in happening:
                getattr(life, name)(*arguments)
                life.nothing_of_others_is_touched()
            life.return_variant()
            life.settle()
        finally:
            life.runner.close()

    one_life()


@pytest.mark.slow
def test_a_variant_lives_as_its_model_says() -> None:
    lives(25, 20)


@pytest.mark.long
@pytest.mark.timeout(600)  # beside others' work
def test_many_variants_live_as_their_model_says() -> None:
    """Twice as many events in a life. PVBUS_TEST_LIVES sets how many lives."""
    lives(int(os.environ.get("PVBUS_TEST_LIVES", "25")), 40)
