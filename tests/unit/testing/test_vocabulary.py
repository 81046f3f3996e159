"""The check of names finds whole names, and leaves prose and longer names alone."""

import pytest

from tests.tools.verbs import effect_types, misnamed_verbs
from tests.tools.vocabulary import private_words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("told = 1", ["told"]),
        ("def f(place: int) -> None: ...", ["place"]),
        ("class _Keeper: ...", ["_Keeper"]),
        ("self._claims[0].kick()", ["_claims", "kick"]),
        ("class Seen: ...", ["Seen"]),
        ("seen = is_told_so('told')  # nobody told", []),
        ("def load() -> None: ...", []),
    ],
)
def test_a_word_of_our_own_is_found_as_a_name(text: str, found: list[str]) -> None:
    assert [name for _, name, _ in private_words("pvbus/x.py", text)] == found


def test_a_set_claims_the_name_of_a_variant() -> None:
    assert list(private_words("pvbus/core/variants/render/controller.py", "claims = []")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("async def _merged(a): ...", ["_merged"]),
        ("def brought(a) -> Generator[Effect, Any, None]: ...", ["brought"]),
        ("class A:\n    def _carried_out(self) -> Reconciliation: ...", ["_carried_out"]),
        ("def merged(a: str) -> str: ...", []),
        ("async def merge_upstream() -> None: ...", []),
        ("async def feed() -> None: ...", []),
        ("async def committed() -> int: ...", []),
        ("def restored(order) -> Ending: return _release(order)", ["restored"]),
        ("class A:\n    def done(self): self.x.y = 1", ["done"]),
        ("class A:\n    def done(self): del self.busy[1]", ["done"]),
        ("class A:\n    def done(self): self._put()\n    def _put(self): self.rows.append(1)", ["done"]),
        ("class A:\n    def done(self): put()\n    def put(self): self.rows.append(1)", []),
        ("class A:\n    def done(self): return [*self.rows].append(1)", []),
        ("def cleaned(a, rest): rest.append(1)", ["cleaned"]),
        ("def cleaned(a, rest): _drop(rest)\ndef _drop(b): b.x = 1", ["cleaned"]),
        ("def cleaned(a, rest): _drop(b=rest)\ndef _drop(a=0, b=0): b.x = 1", ["cleaned"]),
        ("def cleaned(a, rest): _drop(a)\ndef _drop(b): return b.x", []),
        ("def cleaned(a):\n    a = dict(a)\n    a['x'] = 1\n    return a", []),
        ("def cleaned(a):\n    b = {}\n    b['x'] = 1\n    return b", []),
    ],
)
def test_a_function_with_effects_is_not_named_by_a_participle(text: str, found: list[str]) -> None:
    """What is pure may be: it returns what is merged. So may what the field itself calls so."""
    assert [name for _, name in misnamed_verbs(text, frozenset({"Ending", "Reconciliation"}))] == found


def test_a_name_for_the_type_of_effects_is_known() -> None:
    assert list(effect_types("Ending = Generator[Effect, Any, str]\nOther = Iterator[Effect]\n")) == [
        "Ending"
    ]
