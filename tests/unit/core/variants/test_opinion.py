"""The second opinion on a set's expressions: its sample, its comparison, and the condition of the set."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pvbus.core.cel import CelConvertError, CelCostError, CelError, CelEvalError, CelOverloadError
from pvbus.core.cel.second_opinion import NoAnswerError, answer
from pvbus.core.kernel.records import TARGETS
from pvbus.core.variants.conditions.sets import set_conditions
from pvbus.core.variants.severity import DISPUTED
from pvbus.core.variants.unroll.opinion import (
    ANSWER_CHARACTERS_MAX,
    SAMPLE_TARGETS,
    Opinion,
    Question,
    Sample,
    opinion_of,
    sample_of,
)
from tests.simulation.parts import SITE, UnrollPart, site
from tests.unit.core.variants.unrolling import change, part

TABLE = json.loads((Path(__file__).parents[3] / "data/cel/cel-go-answers.json").read_text(encoding="utf-8"))
COSTLY = CelCostError("costs too much")
MISSING, OVERLOAD, NO_TEXT = CelEvalError("no such key: a"), CelOverloadError("o"), CelConvertError("an int")
REPO, LABEL = (
    "spec.targets[0].template.downstream.repoExpr",
    "spec.targets[0].template.labelExprs[0].valueExpr",
)


# ---------------------------------------------------------------- the sample


@pytest.mark.parametrize("count", [0, 1, 2, 3, 22, 23, 500])
def test_the_sample_is_the_first_the_last_and_some_by_digest(count: int) -> None:
    """It is the same in whatever order the targets came, and another one for another generation."""
    keys = [(0, f"site-{number:04}") for number in range(count)]
    sample = sample_of(keys, "uid 1")
    assert sample == sample_of(reversed(keys), "uid 1")
    assert len(sample) == len(set(sample)) == min(count, SAMPLE_TARGETS + 2)
    assert {*keys[:1], *keys[-1:]} <= {*sample}
    if count == 500:
        assert len({*sample} & {*sample_of(keys, "uid 2")}) < SAMPLE_TARGETS / 2


# ---------------------------------------------------------------- the comparison


def given(value: str | Exception) -> Any:
    def evaluate(text: str, variables: Mapping[str, Any]) -> str:
        if isinstance(value, Exception):
            raise value
        return value

    return evaluate


def compared(ours: str | Exception, theirs: str | Exception, *, path: str = LABEL) -> Opinion:
    sample = Sample(0, "spec.targets[0] with Site default/a", {"repository": {}, "repoDefault": "r"})
    question = Question({0: ((path, "'x'"),)}, (sample,))
    return opinion_of(question, sample, given(theirs), NoAnswerError, given(ours))


@pytest.mark.parametrize(
    ("reason", "ours", "theirs", "outcome"),
    [
        ("the same text", "a", "a", "agreed"),
        ("both fail, each in its words", MISSING, CelEvalError("'a'"), "agreed"),
        ("neither gives a text", NO_TEXT, NO_TEXT, "agreed"),
        ("another text", "a", "b", "disputed"),
        ("only ours fails", MISSING, "b", "disputed"),
        ("only theirs fails", "a", MISSING, "disputed"),
        ("only theirs gives no text", "a", NO_TEXT, "disputed"),
        ("they take a type for another one", OVERLOAD, "b", "not_comparable"),
        ("they have no answer", "a", NoAnswerError(), "not_comparable"),
        ("ours ends at its limit", COSTLY, "a", "left_out"),
    ],
)
def test_what_is_a_dispute(reason: str, ours: str | Exception, theirs: str | Exception, outcome: str) -> None:
    found = compared(ours, theirs)
    assert {name: number for name, number in found._asdict().items() if number and name != "disputes"} == {
        outcome: 1
    }, reason
    assert len(found.disputes) == (outcome == "disputed")


def test_a_dispute_names_field_target_and_both_answers() -> None:
    """Errors are marked as such; answers are short and have no secrets."""
    (dispute,) = compared("a" * 1_000, CelEvalError("no such key: token=s3cr3t-value")).disputes
    assert (dispute.path, dispute.target) == (LABEL, "spec.targets[0] with Site default/a")
    assert dispute.ours == f'"{"a" * (ANSWER_CHARACTERS_MAX - 4)}...'
    assert dispute.theirs == "the error no such key: token=***"


def test_an_expression_for_the_repository_does_not_see_it() -> None:
    """As in the service, where its result says which Repository that is."""
    sample = Sample(0, "a", {"repository": {"name": "r"}})
    for path, outcome in ((REPO, MISSING), (LABEL, "r")):
        asked: list[str | CelError] = []

        def theirs(text: str, variables: Mapping[str, Any], asked: list[Any] = asked) -> str:
            asked.append(variables.get("repository", {}).get("name", MISSING))
            return answer(text, variables)

        question = Question({0: ((path, "repository.name"),)}, (sample,))
        assert opinion_of(question, sample, theirs, NoAnswerError) == Opinion(agreed=1)
        assert asked == [outcome]


def test_what_cel_python_answers_is_what_cel_go_answers() -> None:
    """Of cel-go's 1,112 answers: there is no dispute, and enough of them can be compared."""
    found = Opinion()
    for row in TABLE["rows"]:
        sample = Sample(0, row["expression"], TABLE["inputs"])
        question = Question({0: ((LABEL, row["expression"]),)}, (sample,))
        found = found.plus(opinion_of(question, sample, answer, NoAnswerError))
    assert (found.disputed, found.disputes) == (0, ())
    assert found.agreed >= 300


@pytest.mark.parametrize(
    "text",
    [
        "target.labels['region'] == 'us-east' ? 'east-' + target.name : 'west'",
        "has(target.labels.env) && target.labels.env.startsWith('pr') ? 'p' : 'q'",
        "'region' in target.labels ? target.labels.region : repoDefault",
        "{'us-east': 'a', 'eu': 'b'}[target.labels.region]",
        "target.labels.exists(k, k.matches('^re.*n$')) ? repository.labels.tier : packageDefault",
        "target.labels.filter(k, k != 'n').map(k, target.labels[k])[0]",
        "upstream.labels['version'] + '-' + string(size(target.name))",
    ],
)
def test_what_people_write_can_be_compared(text: str) -> None:
    assert isinstance(answer(text, TABLE["inputs"]), str)


# ---------------------------------------------------------------- the set


class Answered:
    """A question that is answered once `opinion` is set."""

    seconds = 1.0

    def __init__(self, question: Question) -> None:
        self.question = question
        self.opinion: Opinion | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Asked:
    """Keeps the questions."""

    def __init__(self) -> None:
        self.questions: list[Answered] = []

    def ask(self, question: Question) -> Answered:
        self.questions.append(Answered(question))
        return self.questions[-1]

    def answer(self, theirs: Any) -> None:
        """Give an opinion on the last question."""
        last = self.questions[-1]
        found = Opinion()
        for sample in last.question.samples:
            found = found.plus(opinion_of(last.question, sample, theirs, NoAnswerError))
        last.opinion = found


def disputes(world: UnrollPart) -> list[str]:
    """Return the messages of the condition ExpressionDisputed, after the next roll-up."""
    world.now += 2
    world.run()
    assert world.rollup is not None
    conditions = set_conditions(world.rollup, namespace="default", name="alpha")
    return [condition.message for condition in conditions if condition.type == DISPUTED]


TARGET: dict[str, Any] = {
    "objectSelector": {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": {"env": "prod"}},
    "template": {
        "downstream": {"repo": "r1", "packageExpr": "target.name"},
        "labelExprs": [{"key": "fleet", "valueExpr": "repository.labels.fleet"}],
    },
}


def test_a_dispute_is_a_condition_until_a_generation_without_one() -> None:
    asked = Asked()
    world = part(TARGET, sites=("a", "b"), opinions=asked)
    assert disputes(world) == []
    (question,) = [each.question for each in asked.questions]
    assert [sample.name for sample in question.samples] == [
        "spec.targets[0] with Site default/a",
        "spec.targets[0] with Site default/b",
    ]
    asked.answer(lambda text, variables: answer(text, variables).replace("b", "B"))
    (message,) = disputes(world)
    assert message == (
        "cel-python, another implementation of CEL, gives other results than pvbus: "
        "spec.targets[0].template.downstream.packageExpr, spec.targets[0] with Site default/b: "
        'pvbus has "b", cel-python "B"'
    )
    assert world.rollup is not None
    others = [c for c in set_conditions(world.rollup, namespace="d", name="a") if c.type != DISPUTED]
    undisputed = msgspec.structs.replace(world.rollup, disputed=0, disputes=())
    assert others == [*set_conditions(undisputed, namespace="d", name="a")]
    change(world, TARGET, generation=2)
    assert disputes(world) == [message]  # until there is another opinion
    asked.answer(answer)
    assert disputes(world) == []
    assert len(asked.questions) == 2


def test_a_generation_asks_once_when_all_rows_are_handed_over() -> None:
    asked = Asked()
    world = part(TARGET, sites=("a", "b", "c"), opinions=asked, chunk_puts=2)
    template = {**TARGET["template"], "labels": {"new": "yes"}}
    change(world, {**TARGET, "template": template}, generation=2)
    rows = []
    while len(asked.questions) == 1:
        rows += [put.key for put in world.run_once().puts if put.topic == TARGETS]
    assert len(rows) == 3
    asked.answer(answer)
    assert disputes(world) == []
    assert len(asked.questions) == 2


def test_a_label_asks_nothing() -> None:
    asked = Asked()
    world = part(TARGET, sites=("a",), opinions=asked)
    world.tell(SITE, site("b", env="prod"))
    world.run()
    assert len(world.children) == 2
    assert len(asked.questions) == 1


@pytest.mark.parametrize("theirs", [answer, given("other")])
def test_a_restart_writes_nothing(theirs: Any) -> None:
    """Agreement is worth no row; a dispute stays as it is, and is not asked about again."""
    asked = Asked()
    world = part(TARGET, sites=("a",), opinions=asked)
    asked.answer(theirs)
    before = disputes(world)
    for _ in range(2):
        world.restart()
        world.steps.clear()
        assert disputes(world) == before
        if len(asked.questions) > 1:
            asked.answer(theirs)
        assert disputes(world) == before
        assert [put for step in world.steps for put in step.puts] == []
    if before:
        assert len(asked.questions) == 1


def test_a_question_that_nobody_needs_any_more_is_cancelled() -> None:
    asked = Asked()
    world = part(TARGET, sites=("a",), opinions=asked)
    change(world, TARGET, generation=2)
    world.run()
    world.controller.close(0)
    assert [each.is_cancelled for each in asked.questions] == [True, True]
