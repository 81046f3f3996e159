"""The Kptfile: reading its parts, and edits that leave the rest alone."""

import pytest

from pvbus.core.api import kptfile
from pvbus.core.api.kptfile import (
    KptfileCondition,
    KptfileGit,
    KptfileGitLock,
    KptfileUpstream,
    UnmetGate,
    UpstreamLock,
)
from pvbus.core.errors import PermanentError

TEXT = """\
# a package
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: pkg # its name
  labels: {a: b}
info:
  description: Example
  readinessGates:
  # the first gate
  - conditionType: one
  - conditionType: two
status:
  conditions:
  - type: one
    status: 'True' # met
  - type: other
    status: "False"
    reason: Why
    message: not yet
"""


def test_the_parts_are_read_with_their_types() -> None:
    """Fields have the names and types of kpt's API; strict reading accepts them all."""
    parsed = kptfile.read(TEXT, strict=True)
    assert parsed.metadata.labels == {"a": "b"}
    assert parsed.info.description == "Example"
    assert parsed.status.conditions[1] == KptfileCondition(
        type="other", status="False", reason="Why", message="not yet"
    )


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("  name: pkg\n  creationTimestamp: null\n", None),
        ("  name: pkg\n  creationTimestamp: x\n", "metadata.creationTimestamp"),
        ("  name: pkg\nstatus:\n  conditions:\n  - type: a\n    lastTransitionTime: x\n",
         r"status.conditions\[0\].lastTransitionTime"),
    ],
)  # fmt: skip
def test_strict_reading_names_the_field_that_porch_would_not_know(line: str, field: str | None) -> None:
    """Lenient reading ignores it, strict reading refuses it, a null is no field."""
    text = f"apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n{line}"
    assert kptfile.read(text).metadata.name == "pkg"
    if field is None:
        kptfile.read(text, strict=True)
    else:
        with pytest.raises(PermanentError, match=f'unknown field "{field}"'):
            kptfile.read(text, strict=True)


def test_scalars_that_are_no_strings_are_read_as_go_reads_them() -> None:
    """A number in a configMap is its text; an unquoted True is the status True."""
    parsed = kptfile.read(
        "pipeline:\n  mutators:\n  - image: i\n    configMap:\n      replicas: 3\n"
        "status:\n  conditions:\n  - type: a\n    status: True\n"
    )
    assert parsed.pipeline.mutators[0].config_map == {"replicas": "3"}
    assert parsed.status.conditions[0].status == "True"


@pytest.mark.parametrize("text", ["a: [\n", "text\n", "", "info: text\n", "status:\n  conditions: {}\n"])
def test_what_is_no_kptfile_is_a_permanent_error(text: str) -> None:
    """The sentence begins with the name of the file."""
    with pytest.raises(PermanentError, match=r"^Kptfile: "):
        kptfile.read(text)


def test_known_content_is_the_same_in_another_order() -> None:
    """Gates and conditions are sets; keys, layout, comments and unknown fields do not count."""
    other = TEXT.replace(
        "  # the first gate\n  - conditionType: one\n  - conditionType: two\n",
        "  - {conditionType: two}\n  - {conditionType: one}\n",
    )
    assert kptfile.known_content(TEXT) == kptfile.known_content(other.replace("  labels", "  x: y\n  labels"))
    assert kptfile.known_content(TEXT) != kptfile.known_content(TEXT.replace("not yet", "now"))


def test_unmet_gates_are_those_without_a_true_condition() -> None:
    """A condition that is missing or not True keeps its gate unmet."""
    text = TEXT.replace("- conditionType: one", "- conditionType: other\n  - conditionType: one")
    assert kptfile.gates_met(kptfile.read(text)) == [
        UnmetGate("other", "False", "not yet"),
        UnmetGate("two", "", ""),
    ]


def test_a_condition_is_set_in_its_place_or_added_last() -> None:
    """Quotes, comments and order of the others stay."""
    text = kptfile.upsert_condition(TEXT, KptfileCondition(type="one", status="False", reason="No"))
    assert text == TEXT.replace("status: 'True' # met\n", "status: 'False' # met\n    reason: \"No\"\n")
    text = kptfile.upsert_condition(TEXT, KptfileCondition(type="new", status="True"))
    assert text == TEXT + '  - type: new\n    status: "True"\n'
    with pytest.raises(PermanentError, match="cannot be the status"):
        kptfile.upsert_condition(TEXT, KptfileCondition(type="new", status="Maybe"))


def test_gates_and_conditions_can_be_made_an_exact_set() -> None:
    """What stays keeps its place and comment; with nothing left the list goes."""
    assert kptfile.set_readiness_gates(TEXT, ["three", "one"]) == TEXT.replace("Type: two", "Type: three")
    assert "readinessGates" not in kptfile.set_readiness_gates(TEXT, [])
    assert kptfile.add_readiness_gates(TEXT, ["two", "one"]) == TEXT
    retained = kptfile.set_conditions(TEXT, [KptfileCondition(type="one", status="True")])
    assert retained == TEXT[: TEXT.index("  - type: other")]


def test_name_upstream_labels_and_annotations_are_set_in_the_text() -> None:
    """Other lines stay; an empty mapping and a missing part are taken away."""
    text = kptfile.set_name(TEXT, "new")
    assert text == TEXT.replace("name: pkg", "name: new")
    assert "labels" not in kptfile.set_labels(TEXT, {})
    assert "  labels: {a: c, d: e}\n" in kptfile.set_labels(TEXT, {"a": "c", "d": "e"})
    assert '  annotations:\n    k: "true"\n' in kptfile.set_annotations(TEXT, {"k": "true"})
    upstream = KptfileUpstream(type="git", git=KptfileGit(repo="r.git", directory="d", ref="d/v1"))
    lock = UpstreamLock(
        type="git", git=KptfileGitLock(repo="r.git", directory="d", ref="d/v1", commit="0123e4")
    )
    text = kptfile.set_upstream(TEXT, upstream, lock)
    assert text.startswith(TEXT)
    assert (kptfile.read(text).upstream, kptfile.read(text, strict=True).upstream_lock) == (upstream, lock)
    assert kptfile.set_upstream(text, None, None) == TEXT
