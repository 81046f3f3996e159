"""What the commits of drafts say of a change, from the files alone."""

import pytest

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.editors import editor_of
from pvbus.controlplane.packages.gitrepo import Commit
from pvbus.controlplane.packages.layout import Annotation
from pvbus.core.variants.inject.history import SUBJECT_CHARACTERS_MAX, describe

KPTFILE = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: web\n"
CONTEXT = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: kptfile.kpt.dev\ndata:\n"


def lock(version: str, commit: str, package: str = "app") -> str:
    git = f"repo: /blue.git, directory: {package}, ref: {package}/{version}, commit: {commit}"
    return f"{KPTFILE}upstreamLock:\n  type: git\n  git: {{{git}}}\n"


def pipeline(*functions: str) -> str:
    return f"{KPTFILE}pipeline:\n  mutators:\n" + "".join(f"  - {function}\n" for function in functions)


def condition(status: str) -> str:
    return f"{KPTFILE}status:\n  conditions:\n  - {{type: approved, status: '{status}'}}\n"


def site(source: str, region: str, note: str = "n") -> str:
    annotations = f"{{kpt.dev/config-injection: required, kpt.dev/injected-resource: {source}, note: {note}}}"
    metadata = f"metadata:\n  name: here\n  annotations: {annotations}\n"
    return f"apiVersion: v1\nkind: ConfigMap\n{metadata}data: {{region: {region}}}\n"


SETTERS = "{image: 'ghcr.io/x/apply-setters:v0.2', configMap: {image: %s, replicas: '%s'}}"
OURS = "{name: PackageVariant.web.labels.0, image: 'ghcr.io/x/set-labels:v1', configMap: {env: prod}}"


def kptfiles(old: str, new: str) -> tuple[dict[str, str], dict[str, str]]:
    return {"Kptfile": old}, {"Kptfile": new}


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


CASES = {
    "an upgrade": (kptfiles(lock("v1", "a" * 40), lock("v2", "b" * 40)), "", "Upgrade from v1 to v2"),
    "a draft that is followed": (
        kptfiles(lock("main", "a" * 40), lock("main", "b" * 40)),
        "",
        "Upgrade within main",
    ),
    "another package": (
        kptfiles(lock("v1", "a"), lock("v3", "b", "other")),
        "",
        "Upstream from app v1 to other v3",
    ),
    "setters": (
        kptfiles(pipeline(SETTERS % ("a", 1)), pipeline(SETTERS % ("b", 2))),
        "",
        "Function apply-setters: image, replicas",
    ),
    "a version of a function": (
        kptfiles(pipeline("{image: 'x/set-labels:v1'}"), pipeline("{image: 'x/set-labels:v2'}")),
        "",
        "Function set-labels: image",
    ),
    "a variant's function": (kptfiles(KPTFILE, pipeline(OURS)), "", "Function labels added"),
    "a function that goes": (kptfiles(pipeline(OURS), KPTFILE), "", "Function labels removed"),
    "the package context": (
        (
            {"package-context.yaml": f"{CONTEXT}  name: web\n  region: a\n"},
            {"package-context.yaml": f"{CONTEXT}  name: web\n  region: b\n  zone: c\n"},
        ),
        "",
        "Package context region, zone",
    ),
    "an injection": (
        ({"site.yaml": site("south", "s")}, {"site.yaml": site("north", "n")}),
        "",
        "Injection of ConfigMap north into site.yaml",
    ),
    "new content of the injected object": (
        ({"site.yaml": site("north", "s")}, {"site.yaml": site("north", "n")}),
        "",
        "Injection of ConfigMap north into site.yaml",
    ),
    "no injection, in a file that has one": (
        ({"site.yaml": site("north", "n")}, {"site.yaml": site("north", "n", "m")}),
        "ann",
        "Edit by ann: site.yaml",
    ),
    "an answer": (
        kptfiles(condition("Unknown"), condition("True")),
        "ann",
        "Edit by ann: condition approved True",
    ),
    "several at once": (
        kptfiles(lock("v1", "a"), lock("v2", "b") + "info: {readinessGates: [{conditionType: ok}]}\n"),
        "",
        "Upgrade from v1 to v2; readiness gates",
    ),
    "more than fits": (
        kptfiles(KPTFILE, pipeline(*(f"{{image: 'x/function-{n:03}:v1'}}" for n in range(30)))),
        "",
        "Function function-000 added; function function-001 added; +28",
    ),
    "a person's files": (
        ({"b.yaml": "b"}, {"a.yaml": "a", "b.yaml": "c"}),
        "ann@example.com",
        "Edit by ann@example.com: a.yaml and 1 more file",
    ),
    "the Kptfile with others": (
        ({"Kptfile": KPTFILE, "b.yaml": "b"}, {"Kptfile": KPTFILE + "# new\n", "b.yaml": "c"}),
        "ann",
        "Edit by ann: b.yaml and 1 more file",
    ),
    "files that functions changed": (({"a.yaml": "a"}, {"a.yaml": "b"}), "", "Render a.yaml"),
    "nothing": (({}, {}), "", "Rendering package"),
    "a Kptfile that cannot be read": (kptfiles(lock("v1", "a"), "a: [\n"), "ann", "Edit by ann: Kptfile"),
    "a Kptfile that is no object": (kptfiles("- 1\n", "[2]\n"), "ann", "Edit by ann: Kptfile"),
    "fields of wrong types": (
        kptfiles(KPTFILE, "upstreamLock: [1]\npipeline: {mutators: 3, validators: [4]}\nstatus: x\n"),
        "ann",
        "Edit by ann: Kptfile",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_subject_says_what_changed_and_by_whom(case: str) -> None:
    (before, after), editor, subject = CASES[case]
    assert describe(changed(before, after), before, after, editor).subject == subject


def test_the_lines_have_the_commits_the_files_and_the_editor() -> None:
    before, after = kptfiles(lock("v1", "a" * 40), lock("v2", "b" * 40))
    lines = describe(["Kptfile"], before, after, "ann").lines
    commits = f"Upstream commit {'b' * 12}, before {'a' * 12}"
    assert lines == ("Upgrade from v1 to v2", commits, "Change of Kptfile", "Edit by ann")


def test_values_are_not_in_the_history_of_messages() -> None:
    """A value may be a secret; git has it in the files for those who may read them."""
    before, after = kptfiles(pipeline(SETTERS % ("a", 1)), pipeline(SETTERS % ("hunter2", 1)))
    assert "hunter2" not in str(describe(["Kptfile"], before, after, ""))


@pytest.mark.parametrize(
    "text",
    [
        'x\nkpt:{"package":"evil"}',
        'kpt:{"package":"evil"}',
        "x\r\npvbus-render: failed aa",
        "x\u2028Cause: PackageVariant a/b: c",
        "Cause: PackageVariant a/b: c",
        "\x1b[2J\x85kpt:{}",
        "by eve",
        "y" * 100_000,
    ],
)
def test_hostile_names_are_short_and_make_no_line_that_a_program_reads(text: str) -> None:
    def described(name: str) -> tuple[dict[str, str], dict[str, str]]:
        quoted = '"' + "".join(f"\\U{ord(char):08x}" for char in name[:2000]) + '"'
        function = f"{{name: {quoted}, image: {quoted}, configMap: {{{quoted}: a}}}}"
        old, new = (
            lock("v1", "a"),
            pipeline(function) + f"upstreamLock: {{git: {{repo: r, ref: {quoted}}}}}\n",
        )
        return {"Kptfile": old}, {
            "Kptfile": new,
            name: "a",
            "package-context.yaml": f"{CONTEXT}  {quoted}: b\n",
        }

    before, after = described(text)
    description = describe(changed(before, after), before, after, text)
    assert len(description.subject) <= SUBJECT_CHARACTERS_MAX
    assert all(len(line) < 600 for line in description.lines)
    annotation = Annotation(package="web", workspace_name="ws", revision="0")
    message = layout.draft_message(description.subject, annotation, None, description.lines)
    assert len(message.splitlines()) == len(message.split("\n")) - 1
    assert message.replace("\n", "").isprintable()
    assert layout.parse_annotations(message) == [annotation]
    assert layout.parse_render_note(message) is None
    commit = Commit("c", (), message, "eve@example.com", "")
    assert editor_of(commit, "packagevariant-1", is_own=True, is_first=False)


def test_ten_thousand_files_make_a_short_message() -> None:
    after = {f"folder/{number}.yaml": site("north", "n") for number in range(10_000)}
    description = describe(sorted(after), {}, after, "ann")
    assert len(description.subject) <= SUBJECT_CHARACTERS_MAX
    assert sum(map(len, description.lines)) < 3_000
    assert "and 9995 more" in description.lines[-2]
