"""What a signature is of: the digest of a package's files, and what an update leaves of its conditions."""

from collections.abc import Mapping
from typing import Any

import pytest

from pvbus.core.kernel.keys import CONDITION_ORDER, GATE_STEPS, SIGNATURES, SURVIVES, TASK_HISTORY, TASKS
from pvbus.core.variants.revisions.content import content_digest
from pvbus.core.variants.revisions.signatures import (
    INPUTS_CHANGED,
    NOT_REPRODUCIBLE,
    ROUNDS_MAX,
    SIGNATURE_LOOP,
    Signature,
    Update,
    annotation_of,
    changed_files,
    judge,
    signatures_in,
    signed_digest,
    survives_of,
)

KPTFILE = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: app\ninfo:\n  description: d\n"
APP = "kind: App\nmetadata:\n  name: a\nspec:\n  replicas: 1\n  ports:\n  - port: 80\n    name: x\n"
FILES = {"Kptfile": KPTFILE, "app.yaml": APP, "docs/a.md": "text"}


def annotations(key: str, value: str = "'{}'") -> str:
    return KPTFILE.replace("  name: app\n", f"  name: app\n  annotations:\n    {key}: {value}\n")


@pytest.mark.parametrize(
    ("changes", "counts", "reason"),
    [
        ({"Kptfile": f"{KPTFILE}status:\n  conditions:\n  - type: A\n    status: 'True'\n"}, False, "status"),
        ({"Kptfile": f"{KPTFILE}  readinessGates:\n  - conditionType: A\n"}, False, "a gate"),
        ({"Kptfile": annotations(GATE_STEPS)}, False, "the steps of gates"),
        ({"Kptfile": annotations(TASKS)}, False, "a question"),
        ({"Kptfile": annotations(TASK_HISTORY)}, False, "the history of answers"),
        ({"Kptfile": annotations(CONDITION_ORDER)}, False, "the order of conditions"),
        ({"Kptfile": annotations(SIGNATURES)}, False, "the signatures themselves"),
        ({"Kptfile": annotations(SURVIVES)}, False, "a wish for the next signature"),
        ({"Kptfile": f"# a remark\n{KPTFILE.replace('name: app', 'name:   app')}"}, False, "layout"),
        ({"Kptfile": annotations("example.dev/other")}, True, "an annotation of others"),
        ({"Kptfile": KPTFILE.replace("description: d", "description: e")}, True, "the description"),
        ({"Kptfile": f"{KPTFILE}upstreamLock:\n  type: git\n"}, True, "the upstream that it is made of"),
        ({"Kptfile": f"{KPTFILE}pipeline:\n  mutators: []\n"}, True, "the pipeline"),
        ({"Kptfile": f"{KPTFILE}---\nkind: Other\n"}, True, "a second document"),
        ({"Kptfile": "{"}, True, "one that cannot be read"),
        ({"Kptfile": ""}, True, "one that is empty"),
        ({"db/Kptfile": f"{KPTFILE}status: {{}}\n"}, True, "that of a sub-package: the store writes none"),
        ({"app.yaml": f"# a remark\n{APP}"}, True, "each byte of another file"),
        ({"docs/a.md": "texT"}, True, "a file that is no object"),
        ({"docs/b.md": ""}, True, "an empty file"),
        ({"docs/a.md": None, "docs/b.md": "text"}, True, "the name of a file"),
        ({"docs/a.md": "\U0010ff80"}, True, "a byte that is no text"),
    ],
)
def test_what_counts_of_a_package(changes: Mapping[str, str | None], counts: bool, reason: str) -> None:
    changed = {path: text for path, text in {**FILES, **changes}.items() if text is not None}
    assert (signed_digest(changed) != signed_digest(FILES)) is counts, reason
    assert bool(changed_files(FILES, changed)) is counts, reason


def test_the_digest_stays_the_same_in_later_releases() -> None:
    """It is stored in packages: another one voids all that was ever signed."""
    assert signed_digest(FILES) == "57ecebbc9e411ea6ab5d1dda81402e0c"


def test_signing_changes_no_content_that_was_proposed() -> None:
    assert content_digest({**FILES, "Kptfile": annotations(SIGNATURES)}) == content_digest(FILES)


def test_a_second_document_of_the_kptfile_is_content_of_a_proposal() -> None:
    assert content_digest({**FILES, "Kptfile": f"{KPTFILE}---\nkind: A\n"}) != content_digest(FILES)


@pytest.mark.parametrize(
    ("survives", "changes", "holds"),
    [
        (["docs/*"], {"docs/deep/b.md": "b"}, True),
        (["docs/a.md"], {"docs/a.md": None}, True),
        (["docs/a.md"], {"docs/b.md": "b"}, False),
        (["app.yaml#/spec/replicas"], {"app.yaml": APP.replace("replicas: 1", "replicas: 2")}, True),
        (["app.yaml#/spec/replicas"], {"app.yaml": APP.replace("  replicas: 1\n", "")}, True),
        (["app.yaml#/spec/replicas"], {"app.yaml": APP.replace("name: a", "name: b")}, False),
        (["app.yaml#/spec/replicas"], {"app.yaml": f"{APP}---\nkind: Other\n"}, False),
        (["app.yaml#/spec/replicas"], {"app.yaml": "{"}, False),
        (["*.yaml#/spec/ports/0/port"], {"app.yaml": APP.replace("port: 80", "port: 81")}, True),
        (["*.yaml#/spec/ports/0/port"], {"app.yaml": APP.replace("name: x", "name: y")}, False),
        (
            ["Kptfile#/metadata/annotations/example.dev~1time"],
            {"Kptfile": annotations("example.dev/time", "'2030'")},
            True,
        ),
        (["Kptfile#/info"], {"Kptfile": KPTFILE.replace("name: app", "name: other")}, False),
    ],
)
def test_what_survives(survives: list[str], changes: Mapping[str, str | None], holds: bool) -> None:
    changed = {path: text for path, text in {**FILES, **changes}.items() if text is not None}
    assert (signed_digest(changed, survives) == signed_digest(FILES, survives)) is holds
    assert (not changed_files(FILES, changed, survives)) is holds


@pytest.mark.parametrize(
    "text",
    [
        '{"A": ["*"]}',
        '{"A": ["**"]}',
        '{"A": ["Kptfile"]}',
        '{"A": ["?ptfile"]}',
        '{"A": ["*.yaml", "*.md"]}',
        '{"A": ["*#"]}',
        '{"A": ["*#/"]}',
        '{"A": "docs"}',
        "[",
    ],
)
def test_entries_that_leave_nothing_to_sign_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=SURVIVES):
        survives_of({SURVIVES: text}, "A", FILES)


def test_entries_are_of_their_type() -> None:
    wishes = {SURVIVES: '{"A": ["docs/*"], "B": ["*"]}'}
    assert survives_of(wishes, "A", FILES) == ("docs/*",)
    assert survives_of(wishes, "C", FILES) == ()
    assert survives_of({}, "A", FILES) == ()


A = {"type": "A", "status": "True", "message": "seen"}
OTHER = {**FILES, "app.yaml": APP.replace("1", "2")}
SIGNED = {SIGNATURES: annotation_of({"A": Signature(content=signed_digest(FILES), by="ann")})}


def update(**fields: Any) -> Update:
    given: dict[str, Any] = {
        "before": FILES,
        "asked": OTHER,
        "after": OTHER,
        "present": [A],
        "conditions": [A],
        "annotations": SIGNED,
        "user": "bob",
    }
    return Update(**{**given, **fields})


NEW = {**A, "message": "seen anew"}
BY_BOB = Signature(content=signed_digest(OTHER), by="bob")
BY_ANN = Signature(content=signed_digest(FILES), by="ann")


@pytest.mark.parametrize(
    ("given", "status", "reason", "signature", "why"),
    [
        ({"after": FILES, "asked": FILES}, "True", None, BY_ANN, "nothing has changed"),
        ({}, "Unknown", INPUTS_CHANGED, None, "the content has changed"),
        ({"conditions": [NEW]}, "True", None, BY_BOB, "it is set with the new content"),
        ({"present": []}, "True", None, BY_BOB, "it is new"),
        (
            {"conditions": [NEW], "may_sign": False},
            "Unknown",
            INPUTS_CHANGED,
            None,
            "a merge brings it along",
        ),
        ({"asked": FILES}, "Unknown", NOT_REPRODUCIBLE, None, "the pipeline alone has changed it"),
        ({"asked": FILES, "is_rendered": False}, "Unknown", INPUTS_CHANGED, None, "it ran the first time"),
        ({"annotations": {}}, "Unknown", INPUTS_CHANGED, None, "it was set before there were signatures"),
        (
            {"before": OTHER},
            "Unknown",
            INPUTS_CHANGED,
            None,
            "it is not of what is stored, as somebody has pushed",
        ),
        (
            {"annotations": {}, "after": FILES, "asked": FILES},
            "True",
            None,
            Signature(content=signed_digest(FILES)),
            "a condition from before is bound to what is stored",
        ),
    ],
)
def test_what_an_update_leaves_of_a_condition(
    given: dict[str, Any], status: str, reason: str | None, signature: Signature | None, why: str
) -> None:
    judged = judge(update(**given))
    (condition,) = judged.conditions
    assert (condition["status"], condition.get("reason")) == (status, reason), why
    assert judged.signatures.get("A") == signature, why
    assert judged.void == (() if status == "True" else ("A",))
    assert condition["message"].endswith("app.yaml") or reason != NOT_REPRODUCIBLE, why


def test_what_the_pipeline_alone_changed_is_named_with_the_remedy_and_the_remedy_heals_it() -> None:
    not_reproducible = update(asked=FILES)
    (condition,) = judge(not_reproducible).conditions
    assert condition["message"].endswith(f"name its field in {SURVIVES}: app.yaml")
    wish = ("app.yaml#/spec/replicas",)
    signature = Signature(content=signed_digest(FILES, wish), by="ann", survives=wish)
    grown = {**FILES, "app.yaml": APP.replace("replicas: 1", "replicas: 2")}
    signed = {SIGNATURES: annotation_of({"A": signature})}
    judged = judge(not_reproducible._replace(after=grown, annotations=signed))
    assert (judged.conditions, judged.void, judged.signatures) == ([A], (), {"A": signature})
    other = {**grown, "docs/a.md": "other"}
    assert judge(not_reproducible._replace(after=other, annotations=signed)).void == ("A",)


class Draft:
    """A draft that signers change and sign, one update after another. Its content is one number."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {**FILES, "app.yaml": "size: 0"}
        self.conditions: list[dict[str, str]] = []
        self.record = ""

    def sign(self, type_: str, user: str, size: int | None = None) -> dict[str, str]:
        """Set a condition, with other content if it is given; return the condition as it is stored."""
        after = self.files if size is None else {**self.files, "app.yaml": f"size: {size}"}
        present = self.conditions
        others = [each for each in present if each["type"] != type_]
        wanted = [*others, {"type": type_, "status": "True", "message": f"by {user}: {size}"}]
        judged = judge(
            update(
                before=self.files,
                asked=after,
                after=after,
                present=present,
                conditions=wanted,
                annotations={SIGNATURES: self.record},
                user=user,
            )
        )
        self.files, self.record = after, annotation_of(judged.signatures)
        self.conditions = [dict(each) for each in judged.conditions]
        return self.of(type_)

    def of(self, type_: str) -> dict[str, str]:
        return next(each for each in self.conditions if each["type"] == type_)

    def dispute(self, rounds: int) -> None:
        """Two signers want different sizes, each anew when the other one has changed it."""
        for number in range(rounds):
            self.sign("Small", "ann", 2 * number + 1)
            self.sign("Large", "bob", 2 * number + 2)


def test_two_signers_that_undo_each_other_are_named_after_three_rounds() -> None:
    draft = Draft()
    draft.dispute(2)
    assert draft.of("Small")["reason"] == INPUTS_CHANGED
    assert draft.of("Large")["status"] == "True"
    draft.dispute(1)
    small = draft.of("Small")
    assert (small["status"], small["reason"]) == ("Unknown", SIGNATURE_LOOP)
    assert "ann and bob undo each other, 3 times now" in small["message"]
    assert small["message"].endswith("app.yaml")
    again = draft.sign("Small", "ann", 99)
    assert (again["status"], again["reason"]) == ("Unknown", SIGNATURE_LOOP), "it waits for a person"
    assert draft.of("Large")["status"] == "Unknown"


@pytest.mark.parametrize(
    ("reason", "user", "size"),
    [("somebody else decides", "eve", 7), ("its signer accepts the content as it is", "ann", None)],
)
def test_a_loop_ends_when_a_person_decides(reason: str, user: str, size: int | None) -> None:
    draft = Draft()
    draft.dispute(3)
    assert draft.sign("Small", user, size)["status"] == "True", reason
    assert draft.sign("Small", user, 8)["status"] == "True", reason


def test_a_signer_who_looks_again_at_what_another_one_changes_is_in_no_loop() -> None:
    draft = Draft()
    for number in range(2 * ROUNDS_MAX):
        assert draft.sign("Tested", "ann")["status"] == "True"
        draft.sign("Large", "bob", number + 1)
        assert draft.of("Tested")["reason"] == INPUTS_CHANGED


@pytest.mark.parametrize(
    "condition",
    [
        {"type": "A", "status": "False"},
        {"type": "A", "status": "Unknown"},
        {"type": "Rendered", "status": "True"},
        {"type": "validator.pvbus.dev/replicas", "status": "True"},
        {"type": "config.injection.Cluster.c", "status": "True"},
    ],
)
def test_what_is_no_signature_stays(condition: dict[str, str]) -> None:
    judged = judge(update(present=[condition], conditions=[condition]))
    assert (judged.conditions, judged.signatures) == ([condition], {})


def test_the_message_has_the_former_value_and_some_files() -> None:
    many = {**FILES, **{f"f{number}": "" for number in range(9)}}
    (condition,) = judge(update(asked=many, after=many)).conditions
    assert condition["message"] == (
        "it was True by ann (seen); the content has changed since: f0, f1, f2, f3, f4 and 4 more"
    )


def test_a_record_that_cannot_be_read_signs_nothing_that_changes() -> None:
    assert signatures_in({SIGNATURES: "{"}) == {}
    (condition,) = judge(update(annotations={SIGNATURES: "[1]"})).conditions
    assert condition["status"] == "Unknown"
