"""One action of the page on many objects: each is looked at, done and refused by itself."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pvbus.cli.pagebatches import ACTIONS_MAX
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import HOLD
from pvbus.ports.cluster import Object
from tests.unit.cli.test_pageactions import ANN, BOB, REVISION, VARIANT, Account, Page, serving


@pytest.fixture
async def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Page]:
    async with serving(tmp_path, monkeypatch) as served:
        yield served


def holds(*names: str, **more: Any) -> list[dict[str, Any]]:
    return [{"action": "hold", "kind": "variant", "name": f"default/{name}", **more} for name in names]


def proposals(*names: str) -> list[dict[str, Any]]:
    move = {"action": "move", "move": "propose", "kind": "variant"}
    return [{**move, "name": f"default/{name}"} for name in names]


async def send(page: Page, path: str, requests: list[dict[str, Any]]) -> Any:
    status, answer = await page.send(path, {"action": "many", "of": requests})
    assert status == 200, answer
    return answer


async def test_each_object_has_its_own_question_and_result(page: Page) -> None:
    """A look writes nothing; what does not exist is refused, and the others are done."""
    await page.sign_in(ANN)
    before = len(page.cluster.writes)
    looked = await send(page, "/api/look", holds("a", "none", "c"))
    assert len(page.cluster.writes) == before
    assert [each.get("question", "")[:28] for each in looked["items"]] == [
        "Put PackageVariant default/a",
        "",
        "Put PackageVariant default/c",
    ]
    done = await send(page, "/api/act", holds("a", "none", "c", reason="fair"))
    assert [each["ok"] for each in done["items"]] == [True, False, True]
    assert "there is no PackageVariant default/none" in done["items"][1]["lines"][0]
    assert [page.annotations(VARIANT, name).get(HOLD) for name in "abc"] == ["true", None, "true"]


async def test_the_api_server_refuses_each_object_by_itself(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may change one of two variants changes one, and reads why the other stays."""

    def refuse(self: Account, verb: str, obj: Object) -> None:
        if (name := obj["metadata"]["name"]) != "a":
            raise PermanentError(f'x: 403 Forbidden: User "bob" cannot {verb} {name}', reason="Forbidden")

    monkeypatch.setattr(Account, "refuse", refuse)
    await page.sign_in(BOB)
    done = await send(page, "/api/act", holds("a", "b"))
    assert [each["ok"] for each in done["items"]] == [True, False]
    assert done["items"][1]["lines"] == ['You may not do this as bob: User "bob" cannot update b']


async def test_what_changed_since_the_look_is_refused_for_that_object_alone(page: Page) -> None:
    await page.sign_in(ANN)
    looked = await send(page, "/api/look", proposals("a", "b", "c"))
    due = [each for each in looked["items"] if "question" in each]
    refused = next(each for each in looked["items"] if "question" not in each)
    assert len(due) == 2
    assert not refused["ok"], "a conflict refuses it, which is not nothing to do"
    named = [
        {**request, "seen": each["seen"]}
        for request, each in zip(proposals("a", "b", "c"), looked["items"], strict=True)
        if "question" in each
    ]
    done = await send(page, "/api/act", [{**named[0], "seen": "c0ffee"}, named[1]])
    assert [each["ok"] for each in done["items"]] == [False, True]
    assert "changed meanwhile" in done["items"][0]["lines"][0]
    assert page.peek(REVISION, "edge.a.packagevariant-1")["spec"]["lifecycle"] == "Draft"


@pytest.mark.parametrize(
    ("requests", "command"),
    [
        (holds("a", "c", reason="it's fair"), "pvbus hold default/a --reason 'it'\"'\"'s fair' --data d"),
        (proposals("a"), "pvbus propose pv/default/a --data d"),
        (
            [{"action": "move", "move": "approve", "kind": "variant", "name": "default/a"}],
            "pvbus approve pv/default/a --data d --yes",
        ),
        (
            [{"action": "take", "group": "3f0c", "side": "local"}],
            "pvbus conflicts take local 3f0c -A --data d --bus b --yes",
        ),
    ],
)
async def test_the_command_is_one_that_a_shell_takes_for_each(
    page: Page, requests: list[dict[str, Any]], command: str
) -> None:
    """In a loop over the names it is the command of each; what a person has confirmed is not asked again."""
    await page.sign_in(ANN)
    looked = await send(page, "/api/look", requests)
    name = requests[0].get("name") or requests[0]["group"]
    words = await words_of(f"for name in {name}; do printf '%s\\n' {looked['each']}; done")
    assert words == await words_of(f"printf '%s\\n' {command}")


async def words_of(script: str) -> str:
    """Return the arguments that a shell makes of a command, one a line."""
    done = await asyncio.to_thread(subprocess.run, ["sh", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.mark.parametrize(
    "requests",
    [
        [],
        holds("a") + proposals("b"),
        holds("a", reason="x") + holds("b", reason="y"),
        holds(*["a"] * (ACTIONS_MAX + 1)),
        [{"action": "many", "of": holds("a")}],
        [{"action": "confirm", "name": "default/web"}],
        holds("$(reboot)"),
    ],
    ids=["none", "two actions", "two reasons", "too many", "nested", "not for many", "hostile"],
)
async def test_what_is_no_batch_is_refused_whole(page: Page, requests: list[dict[str, Any]]) -> None:
    await page.sign_in(ANN)
    for path in ("/api/look", "/api/act"):
        status, _ = await page.send(path, {"action": "many", "of": requests})
        assert status == 400
    assert page.cluster.writes == []
