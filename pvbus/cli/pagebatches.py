"""One action of the page on many objects, each as if it came alone.

Each object is looked at, changed and refused by itself: what the API server refuses of one leaves the others
as they would be.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import msgspec

from pvbus.cli.fleet import silent, work_off
from pvbus.cli.pageactions import Action, Hold, Move, Retry, Take, Undo, Unhold
from pvbus.core.errors import UsageError
from pvbus.runtime.web.server import Hints

ACTIONS_MAX = 100
"""In one request. Names of the greatest length fit into the body that the server takes, and an answer comes
while a person still waits; a page that wants more sends one after the other."""

SUBJECTS: dict[type[Action], str] = {Take: "group", Undo: "resolution"}
"""The field that names what an action is about, where it is not `name`."""
_PLACEHOLDER = "namespace/name"
_ASKING = ("approve", "conflicts")
"""Commands that ask each time: a person has answered once for all."""

AnySingle = Hold | Unhold | Retry | Move | Take | Undo


class Batch(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="action", tag="many", forbid_unknown_fields=True
):
    """The same action on several objects. Each has the `seen` of its own look."""

    of: Annotated[tuple[AnySingle, ...], msgspec.Meta(min_length=1, max_length=ACTIONS_MAX)]


def command_of_each(batch: Batch, hints: Hints) -> str:
    """Return the command for one object, with "$name" in its place.

    Raises UsageError if the actions differ in more than their objects.
    """
    about = {_about(each, _PLACEHOLDER) for each in batch.of}
    if len(about) > 1:
        raise UsageError("the actions differ in more than their objects: send one after the other")
    action = about.pop()
    asks = action.words()[0] in _ASKING
    return action.command(hints).replace(_PLACEHOLDER, '"$name"', 1) + (" --yes" if asks else "")


def _about(action: Action, name: str) -> Action:
    return msgspec.structs.replace(action, **{SUBJECTS.get(type(action), "name"): name, "seen": ""})


async def answer_batch(
    batch: Batch, hints: Hints, answer: Callable[[Action], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    """Return the answer to each action, in their order, and the command for one. Raises as `answer` does."""
    command = command_of_each(batch, hints)

    async def answer_numbered(item: tuple[int, Action]) -> tuple[int, dict[str, Any]]:
        return item[0], await answer(item[1])

    items: Sequence[tuple[int, Action]] = list(enumerate(batch.of))
    answers, _ = await work_off(items, answer_numbered, "", silent)
    return {"each": command, "items": [found for _, found in sorted(answers, key=lambda each: each[0])]}
