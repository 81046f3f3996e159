"""Second opinions from the process that gives them: what it answers, and what it may cost."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from pvbus.core.variants.conditions.sets import set_conditions
from pvbus.core.variants.severity import DISPUTED
from pvbus.core.variants.unroll.opinion import OUTCOMES, Opinion, Question, Sample
from pvbus.runtime.opinion.asking import WORK, AskedQuestion, OpinionProcess
from tests.unit.core.variants.unrolling import change, part

MISBEHAVING = "tests.tools.opinionwork"
MANY = {"labels": {f"k{number:03}": "v" for number in range(100)}}
LOOPS = "target.labels.exists(a, target.labels.all(b, b != '')) ? 'a' : 'b'"
"""Ours needs some steps for it, and cel-python 10,000."""


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[OpinionProcess]:
    process = OpinionProcess(**options)
    task = asyncio.create_task(process.run())
    try:
        yield process
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - the process tells nobody
            await asyncio.sleep(0.01)


async def opinion(asked: AskedQuestion) -> Opinion:
    await until(lambda: asked.opinion is not None)
    assert asked.opinion is not None
    return asked.opinion


def question(*texts: str, targets: int = 1, target: Any = None) -> Question:
    samples = (Sample(0, f"t{n}", {"target": target or {"name": f"t{n}"}}) for n in range(targets))
    return Question({0: tuple((f"p{n}", text) for n, text in enumerate(texts))}, tuple(samples))


def processes(work: str = MISBEHAVING) -> list[str]:
    """Return the processes of this one that give second opinions."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in listed if work.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


def counted() -> dict[str, float]:
    return {
        word: REGISTRY.get_sample_value("pvbus_second_opinions_total", {"outcome": word}) or 0
        for word in OUTCOMES
    }


async def test_every_outcome_is_counted_and_costly_targets_are_left_out() -> None:
    """A loop in a loop takes cel-python seconds: its target ends at its share, and the others go on."""
    before = counted()
    async with running() as process:
        usual = process.ask(question("target.name", "target.name + '-x'", "string(1.5)", targets=5))
        costly = question(LOOPS, "'a'", target=MANY)
        mixed = process.ask(
            costly._replace(samples=(*costly.samples, Sample(0, "t", {"target": {"labels": {}}})))
        )
        assert await opinion(usual) == Opinion(agreed=10, not_comparable=5)
        assert await opinion(mixed) == Opinion(agreed=2, left_out=2)
    after = counted()
    assert [after[word] - before[word] for word in OUTCOMES] == [12, 0, 2, 5]
    assert processes(WORK) == []


async def test_what_hangs_is_killed_and_the_next_question_is_answered() -> None:
    async with running(work=MISBEHAVING, seconds_max=4) as process:  # its start counts, on a busy machine too
        for text in ("'hang'", "'die'"):
            assert await opinion(process.ask(question(text, "'a'", targets=3))) == Opinion(left_out=6)
            assert processes() == []
        assert await opinion(process.ask(question("'a'"))) == Opinion(agreed=1)
    assert processes() == []


async def test_a_process_that_nobody_asks_ends() -> None:
    async with running(work=MISBEHAVING, idle_seconds=0.05) as process:
        for _ in range(2):
            assert await opinion(process.ask(question("'a'"))) == Opinion(agreed=1)
            await until(lambda: not processes())


async def test_a_service_that_ends_takes_a_hanging_process_along() -> None:
    async with running(work=MISBEHAVING) as process:
        process.ask(question("'hang'"))
        await until(lambda: bool(processes()))
    assert processes() == []


async def test_what_waits_is_bounded_and_so_is_a_target() -> None:
    """Nothing runs yet, so that all of it waits."""
    process = OpinionProcess(waiting_bytes_max=100_000)
    large = question("'a'", target={"labels": {"a": "x" * 40_000}})
    asked = [process.ask(large) for _ in range(4)]
    assert [each.opinion for each in asked] == [None, None, Opinion(left_out=1), Opinion(left_out=1)]
    asked[0].cancel()
    too_large = process.ask(question("'a'", target={"labels": {"a": "x" * 70_000}}))
    assert too_large.opinion == Opinion(left_out=1)
    task = asyncio.create_task(process.run())
    assert await opinion(asked[1]) == Opinion(agreed=1)
    assert asked[0].opinion is None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("text", ["'a' + target.nme", "target.labels.lable"])
async def test_what_fails_in_both_is_no_dispute(text: str) -> None:
    async with running() as process:
        assert await opinion(process.ask(question(text))) == Opinion(agreed=1)


async def test_a_set_has_the_condition_while_its_expressions_are_disputed() -> None:
    """From the set to its conditions, with an evaluator that is wrong about one expression."""
    target = {
        "objectSelector": {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": {"env": "prod"}},
        "template": {
            "downstream": {"repo": "r1", "packageExpr": "target.name"},
            "labelExprs": [{"key": "a", "valueExpr": "'differ-' + target.name"}],
        },
    }
    right = {**target, "template": {"downstream": {"repo": "r1", "packageExpr": "target.name"}}}
    async with running(work=MISBEHAVING) as process:
        world = part(target, sites=("s1", "s2"), opinions=process)

        def messages() -> list[str]:
            world.now += 2
            world.run()
            assert world.rollup is not None
            found = set_conditions(world.rollup, namespace="default", name="alpha")
            return [condition.message for condition in found if condition.type == DISPUTED]

        assert messages() == []
        await until(lambda: bool(messages()))
        path = "spec.targets[0].template.labelExprs[0].valueExpr"
        message = messages()[0]
        site = "s1" if "default/s1" in message else "s2"  # whichever was answered first
        assert f'{path}, spec.targets[0] with Site default/{site}: pvbus has "differ-{site}", ' in message
        assert f'cel-python "differ-{site}!"' in message
        change(world, right, generation=2)
        await until(lambda: not messages())
