"""The Kptfile: reading its parts, and edits that leave the rest alone."""

import pytest

from pvbus.controlplane.packages import content
from pvbus.core.api import kptfile
from pvbus.core.api.packages import GitLock, PackageCondition
from pvbus.core.errors import PermanentError
from pvbus.core.variants.merge import copies
from tests.unit.core.api.strictkptfile import UnmetGate, read_strictly, unmet_gates

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
    parsed = read_strictly(TEXT)
    assert parsed.metadata.labels == {"a": "b"}
    assert parsed.info.description == "Example"
    assert parsed.status.conditions[1] == PackageCondition(
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
        read_strictly(text)
    else:
        with pytest.raises(PermanentError, match=f'unknown field "{field}"'):
            read_strictly(text)


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
    assert unmet_gates(kptfile.read(text)) == [
        UnmetGate("other", "False", "not yet"),
        UnmetGate("two", "", ""),
    ]


def test_a_condition_is_set_in_its_place_or_added_last() -> None:
    """Quotes, comments and order of the others stay."""
    text = kptfile.upsert_condition(TEXT, PackageCondition(type="one", status="False", reason="No"))
    assert text == TEXT.replace("status: 'True' # met\n", "status: 'False' # met\n    reason: \"No\"\n")
    text = kptfile.upsert_condition(TEXT, PackageCondition(type="new", status="True"))
    assert text == TEXT + '  - type: new\n    status: "True"\n'
    with pytest.raises(PermanentError, match="cannot be the status"):
        kptfile.upsert_condition(TEXT, PackageCondition(type="new", status="Maybe"))


def edited(*edits: copies.Edit) -> str:
    return copies.edit_kptfile({kptfile.FILE: TEXT}, *edits)[kptfile.FILE]


def gates(*types: str) -> copies.Edit:
    return content.with_gates([{"conditionType": name} for name in types])


def test_gates_and_conditions_can_be_made_an_exact_set() -> None:
    """What stays keeps its place and comment; with nothing left the list goes."""
    assert edited(gates("three", "one")) == TEXT.replace("Type: two", "Type: three")
    assert "readinessGates" not in edited(gates())
    assert kptfile.add_readiness_gates(TEXT, ["two", "one"]) == TEXT
    retained = edited(content.with_conditions([{"type": "one", "status": "True"}], []))
    assert retained == TEXT[: TEXT.index("  - type: other")]


def test_name_upstream_labels_and_annotations_are_set_in_the_text() -> None:
    """Other lines stay; an empty mapping is taken away."""
    assert edited(copies.named("new")) == TEXT.replace("name: pkg", "name: new")
    assert "labels" not in edited(content.with_metadata("labels", {}, exact=True))
    text = edited(content.with_metadata("labels", {"a": "c", "d": "e"}, exact=True))
    assert "  labels: {a: c, d: e}\n" in text
    text = edited(content.with_metadata("annotations", {"k": "true"}, exact=True))
    assert '  annotations:\n    k: "true"\n' in text
    lock = {"repo": "r.git", "directory": "d", "ref": "d/v1", "commit": "0123e4"}
    text = edited(copies.derived_from({"type": "git", "git": lock}))
    assert text.startswith(TEXT)
    parsed = read_strictly(text)
    assert parsed.upstream == kptfile.KptfileUpstream(
        type="git", git=kptfile.KptfileGit(repo="r.git", directory="d", ref="d/v1")
    )
    assert parsed.upstream_lock == kptfile.UpstreamLock(type="git", git=GitLock(**lock))
