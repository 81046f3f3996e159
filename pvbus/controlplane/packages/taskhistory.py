"""The history of a draft's tasks: who changed their conditions, as the API server knows it.

It is in the Kptfile, where the API shows it, and in the commit that makes the change. Only the store writes
both: what a client writes into the history is replaced by what was there, and by what his request changes.
"""

import time
from collections.abc import Mapping
from contextlib import suppress

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.content import KptfileFacts, facts_of
from pvbus.controlplane.packages.render import Rendering
from pvbus.core.kernel import tasks
from pvbus.core.kernel.keys import TASK_HISTORY
from pvbus.core.kernel.objects import timestamp
from pvbus.core.variants.merge import copies
from pvbus.core.yaml import editor

_PATH = ("metadata", "annotations", TASK_HISTORY)


def recorded(stored: Mapping[str, str], made: Rendering, user: str) -> tuple[Rendering, tuple[str, ...]]:
    """Return a draft's next files with the history of its tasks, and the lines for git.

    A Kptfile that cannot be read has no history, and the one that replaces it begins anew; the commits have
    all of it.

    stored: the draft's files now
    made: the draft's next files
    user: the user whose request it is
    """
    before, after = (facts_of(texts.get(layout.KPTFILE, "")) for texts in (stored, made.texts))
    at = timestamp(time.time())
    found = tasks.changes(_state(before), _state(after), user, at)
    wanted = tasks.history(before.annotations, found)
    if after.annotations.get(TASK_HISTORY, "") != wanted:
        with suppress(editor.YamlError):
            made = made._replace(texts=copies.edit_kptfile(made.texts, _with_history(wanted)))
    return made, tuple(layout.one_line(f"Task {change.type}: {change}") for change in found)


def _state(facts: KptfileFacts) -> tasks.State:
    return tasks.State(facts.annotations, facts.conditions)


def _with_history(text: str) -> copies.Edit:
    if not text:
        return lambda kptfile: copies.without_annotations(kptfile, (TASK_HISTORY,))
    return lambda kptfile: editor.assign(kptfile, _PATH, text)
