"""`pvbus resolve`: what it reads, what it prints, and what it says about a mistake."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.cli.main import run
from pvbus.core.platform.packaging.reading import split_reference
from tests.e2e.cli.command import REPOSITORY

Captured = pytest.CaptureFixture[str]
EXAMPLE = str(REPOSITORY / "examples" / "dependencies")
META = "meta.pkg.crossplane.io/v1"
PKG = "pkg.crossplane.io/v1"
DATA = "data.packaging.carvel.dev/v1alpha1"


def code(*arguments: str) -> int:
    """Run the command; return its exit code, however it ends."""
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(run(["resolve", *arguments]))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def write(folder: Path, *documents: dict[str, Any]) -> str:
    file = folder / "packages.yaml"
    file.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return str(file)


def carvel(name: str, version: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": DATA,
        "kind": "Package",
        "metadata": {"name": f"{name}.{version}"},
        "spec": {"refName": name, "version": version, **spec},
    }


def install(name: str, constraints: str = "", **more: Any) -> dict[str, Any]:
    selection = {"versionSelection": {"constraints": constraints}} if constraints else {}
    return {
        "apiVersion": "packaging.carvel.dev/v1alpha1",
        "kind": "PackageInstall",
        "metadata": {"name": name, "namespace": "demo"},
        "spec": {"packageRef": {"refName": name, **selection}},
        **more,
    }


def meta(name: str, version: str, *, digest: str = "", **spec: Any) -> dict[str, Any]:
    annotations = {"pvbus.dev/source": name, "pvbus.dev/version": version}
    return {
        "apiVersion": META,
        "kind": "Provider",
        "metadata": {
            "name": "x",
            "annotations": {**annotations, **({"pvbus.dev/digest": digest} if digest else {})},
        },
        "spec": spec,
    }


def wanted(package: str, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": PKG,
        "kind": "Provider",
        "metadata": {"name": "x"},
        "spec": {"package": package},
        **({"status": status} if status else {}),
    }


def test_the_example_of_the_document_prints_what_the_document_says(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command in docs/dependencies.md has the output that stands beneath it."""
    monkeypatch.chdir(REPOSITORY)
    document = (REPOSITORY / "docs" / "dependencies.md").read_text(encoding="utf-8")
    ((command, expected),) = re.findall(
        r"^```console\n\$ pvbus resolve (.*?)\n(.*?)^```$", document, re.M | re.S
    )
    assert code(*shlex.split(command)) == 0
    assert capsys.readouterr().out == expected


def test_the_documents_sentences_are_those_of_the_unit_tests() -> None:
    """Each reason that the document shows is the expectation of a test."""
    document = (REPOSITORY / "docs" / "dependencies.md").read_text(encoding="utf-8")
    tests = (REPOSITORY / "tests/unit/core/platform/solver/test_resolving.py").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```text\n(.*?)^```$", document, re.M | re.S)
    for line in block.splitlines():
        assert line in tests or line.replace("pkg needs", "pkg 1.0.0 needs") in tests, line


def test_explain_names_each_reason_and_each_state(tmp_path: Path, capsys: Captured) -> None:
    """A refusal has the sentence, its facts, and the state of the dependency; the exit code is 1."""
    needs = [{"package": {"refName": "dep", "version": ">=2.0.0"}}]
    file = write(tmp_path, carvel("pkg", "1.0.0", dependencies=needs), carvel("dep", "1.0.0"), install("pkg"))
    assert code("-f", file, "--explain") == 1
    out = capsys.readouterr().out
    assert "pkg 1.0.0 in demo needs dep >=2.0.0, but dep in demo has only 1.0.0" in out
    assert "  because you want pkg in demo\n" in out
    assert "pkg in demo: dep >=2.0.0: UnknownPackageVersion" in out


def test_the_output_for_programs_has_all(capsys: Captured) -> None:
    """JSON has installs, actions, cycles and components."""
    assert code("-f", EXAMPLE, "--platform", "crossplane=1.20.0", "-o", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["status"] for each in document["installs"]] == ["granted"] * 3
    assert len(document["actions"]) == 7
    assert document["cycles"] == []
    assert document["components"] == 2


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("mermaid", ["flowchart LR", '  n2 -->|"xpkg.example.org/acme/aws &lt;v3.0.0"| n0']),
        (
            "dot",
            [
                "digraph packages {",
                '  "pkg.test.carvel.dev in demo" [label="pkg.test.carvel.dev 1.0.0 in demo"];',
            ],
        ),
    ],
)
def test_the_graph_has_packages_and_needs(form: str, lines: list[str], capsys: Captured) -> None:
    """Both forms have a line per package and per dependency that a package meets."""
    assert code("-f", EXAMPLE, "--platform", "crossplane=1.20.0", "--graph", form) == 0
    out = capsys.readouterr().out.splitlines()
    assert all(line in out for line in lines)
    assert sum("->" in line for line in out) == 5


def test_what_is_installed_is_read_from_status_lock_and_owner(tmp_path: Path, capsys: Captured) -> None:
    """A status, a Lock and an install that another one created say what is there; the last is no wish."""
    file = write(
        tmp_path,
        meta("r.example/a", "v1.0.0", dependsOn=[{"provider": "r.example/b", "version": ">=v1.0.0"}]),
        meta("r.example/b", "v1.0.0"),
        wanted("r.example/a:v1.0.0", currentIdentifier="r.example/a:v1.0.0"),
        {
            "apiVersion": "pkg.crossplane.io/v1beta1",
            "kind": "Lock",
            "metadata": {"name": "lock"},
            "packages": [{"name": "b", "source": "r.example/b", "version": "v1.0.0"}],
        },
        carvel("c", "1.0.0"),
        {
            **install("c", status={"version": "1.0.0"}),
            "metadata": {
                "name": "c",
                "namespace": "demo",
                "annotations": {"kapp-controller.carvel.dev/owner": "PackageInstall/x"},
            },
        },
    )
    assert code("-f", file, "-o", "json", "--unneeded", "delete") == 0
    actions = {each["package"]: each["action"] for each in json.loads(capsys.readouterr().out)["actions"]}
    assert actions == {"r.example/a": "keep", "r.example/b": "keep", "c": "delete"}


def test_an_api_of_a_crd_or_a_provider_meets_a_dependency(tmp_path: Path, capsys: Captured) -> None:
    """A CustomResourceDefinition among the files is there; without it `--search` installs the provider."""
    gvk = {"apiVersion": "example.org/v1", "kind": "Thing"}
    documents = [
        carvel("pkg", "1.0.0", dependencies=[{"gvk": gvk}]),
        carvel("provider", "1.0.0", provides=[{"gvk": gvk}]),
        install("pkg"),
    ]
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.org"},
        "spec": {
            "group": "example.org",
            "names": {"kind": "Thing"},
            "versions": [{"name": "v1", "served": True}],
        },
    }
    assert code("-f", write(tmp_path, *documents)) == 1
    assert code("-f", write(tmp_path, *documents), "--search") == 0
    assert "provider in demo" in capsys.readouterr().out
    assert code("-f", write(tmp_path, *documents, crd)) == 0
    assert "provider in demo" not in capsys.readouterr().out


def test_a_digest_and_a_platform_are_read(tmp_path: Path, capsys: Captured) -> None:
    """A dependency by digest finds the version that has it, and a platform excludes a version."""
    digest = "sha256:" + "1" * 64
    file = write(
        tmp_path,
        meta("r/a", "v1.0.0", dependsOn=[{"package": "r/b", "version": digest}]),
        meta("r/a", "v2.0.0", crossplane={"version": ">=2.0.0"}),
        meta("r/b", "v1.0.0", digest=digest),
        meta("r/b", "v2.0.0"),
        wanted("r/a"),
    )
    for platform, expected in (("1.20.0", {"r/a": "v1.0.0", "r/b": "v1.0.0"}), ("2.1.0", {"r/a": "v2.0.0"})):
        assert code("-f", file, "--platform", f"crossplane={platform}", "-o", "json") == 0
        actions = json.loads(capsys.readouterr().out)["actions"]
        assert {each["package"]: each["after"] for each in actions} == expected


def test_the_kinds_and_spellings_of_both_proposals_are_read(tmp_path: Path, capsys: Captured) -> None:
    """X1, C1: a Package of Crossplane's design is a wish; so is Carvel's list within `packages`."""
    file = write(
        tmp_path,
        meta("r/a", "v1.0.0"),
        meta("r/a", "v2.0.0"),
        {**wanted("r/a:v1.0.0"), "apiVersion": "pkg.crossplane.io/v1beta1", "kind": "Package"},
        carvel("b", "1.0.0", dependencies={"packages": [{"package": {"refName": "c"}, "alias": "x"}]}),
        carvel("c", "1.0.0", installationType="OnePerNamespace"),
        install("b"),
    )
    assert code("-f", file, "-o", "json") == 0
    actions = json.loads(capsys.readouterr().out)["actions"]
    assert {each["package"]: each["after"] for each in actions} == {
        "r/a": "v1.0.0",
        "b": "1.0.0",
        "c": "1.0.0",
    }


BOTH = {"gvk": {"apiVersion": "v1", "kind": "A"}, "package": {"refName": "b"}}


@pytest.mark.parametrize(
    ("document", "field", "words"),
    [
        (carvel("a", "1.0.0", dependencies=[BOTH]), "spec.dependencies[0]", "exactly one of gvk, package"),
        (carvel("a", "1.0.0", dependencies=[{"name": "x"}]), "spec.dependencies[0]", "it has none"),
        (
            carvel("a", "1.0.0", dependencies=[{"or": []}]),
            "spec.dependencies[0].or",
            "at least one alternative",
        ),
        (
            carvel("a", "1.0.0", dependencies=[{"or": [{"package": {"refName": "b"}, "optional": True}]}]),
            "spec.dependencies[0].or[0].optional",
            "has no meaning",
        ),
        (
            carvel("a", "1.0.0", dependencies=[{"package": {"refName": "b", "version": "~>1.0.0"}}]),
            "spec.dependencies[0].package.version",
            "carvel",
        ),
        (
            carvel("a", "1.0.0", dependencies=[{"package": {"refName": "b", "contraints": "1"}}]),
            "spec.dependencies[0].package.contraints",
            "correct its name",
        ),
        (carvel("a", "1.0.0", dependencies={"items": []}), "spec.dependencies", "must be a list"),
        (carvel("a", "1.0", refName="a"), "spec.version", "major.minor.patch"),
        (carvel("", "1.0.0"), "spec.refName", "not empty"),
        (install("a", "1.0.0 ||"), "spec.packageRef.versionSelection.constraints", "ends with ||"),
        (
            install("a", spec={"packageRef": {"refName": "a"}, "dependencies": {"install": False}}),
            "spec.dependencies",
            "packages tree -f",
        ),
        (meta("r/a", "latest"), "metadata.annotations[pvbus.dev/version]", "no semantic version"),
        (
            {**meta("r/a", "v1.0.0"), "metadata": {"name": "x"}},
            "metadata.annotations[pvbus.dev/source]",
            "missing",
        ),
        (meta("r/a", "v1.0.0", dependsOn=[{"version": "1"}]), "spec.dependsOn[0]", "it has none"),
        (
            meta("r/a", "v1.0.0", dependsOn=[{"provider": "b", "version": ">>1"}]),
            "spec.dependsOn[0].version",
            "masterminds",
        ),
        (meta("r/a", "v1.0.0", dependsOn=[{"provider": ""}]), "spec.dependsOn[0].provider", "not empty"),
        (wanted(""), "spec.package", "not empty"),
        (wanted("r/a", currentIdentifier="r/a@sha256:1"), "status.currentIdentifier", "no tag"),
        (
            {**wanted("r/a"), "spec": {"package": "r/a", "skipDependencyResolution": True}},
            "spec.skipDependencyResolution",
            "--ignore-platforms",
        ),
        (
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}},
            "apiVersion",
            "is not read here",
        ),
    ],
)
def test_a_mistake_is_named_by_file_document_and_field(
    document: dict[str, Any], field: str, words: str, tmp_path: Path, capsys: Captured
) -> None:
    """What is accepted nowhere, or would mean nothing, is refused with exit code 2."""
    file = write(tmp_path, carvel("other", "1.0.0"), document)
    assert code("-f", file) == 2
    problem = capsys.readouterr().err.splitlines()[1]
    assert problem.startswith(f"{file}, document 2: {document['kind']} ")
    assert f": {field}: " in problem
    assert words in problem


def test_a_version_that_is_given_twice_is_refused(tmp_path: Path, capsys: Captured) -> None:
    """Two files of one version would make the answer depend on their order."""
    assert code("-f", write(tmp_path, carvel("a", "1.0.0"), carvel("a", "1.0.0"))) == 2
    assert "a 1.0.0 is given twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--platform", "crossplane"], "write NAME=VERSION"),
        (["--graph", "dot", "-o", "json"], "--graph excludes --output"),
    ],
)
def test_options_that_mean_nothing_are_refused(arguments: list[str], words: str, capsys: Captured) -> None:
    """The message says what to write."""
    assert code("-f", EXAMPLE, *arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("r.example:5000/a/b:v1", ("r.example:5000/a/b", "v1", "")),
        ("r.example:5000/a", ("r.example:5000/a", "", "")),
        ("a@sha256:1", ("a", "", "sha256:1")),
        ("r/a:v1@sha256:1", ("r/a", "v1", "sha256:1")),
    ],
)
def test_a_reference_is_split_at_its_tag_not_at_a_port(
    reference: str, expected: tuple[str, str, str]
) -> None:
    assert split_reference(reference) == expected


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
def test_each_version_of_a_packages_own_manifest_is_read(
    version: str, tmp_path: Path, capsys: Captured
) -> None:
    """Of every kind that the services read, and with what it needs."""
    network = {**meta("r.example/net", "v1.0.0"), "apiVersion": f"meta.pkg.crossplane.io/{version}"}
    needy = meta("r.example/a", "v1.0.0", dependsOn=[{"provider": "r.example/net"}])
    for kind in ("Provider", "Configuration", "Function"):
        of_kind = {**needy, "apiVersion": network["apiVersion"], "kind": kind}
        file = write(tmp_path, of_kind, network, wanted("r.example/a:v1.0.0"))
        assert code("-f", file, "-o", "json") == 0
        actions = json.loads(capsys.readouterr().out)["actions"]
        assert [(each["package"], each["after"]) for each in actions] == [
            ("r.example/net", "v1.0.0"),
            ("r.example/a", "v1.0.0"),
        ]


OVERRIDE = {"override": [{"name": "db", "versionSelection": {"constraints": "1.0.0"}}]}
NEEDY = [{"name": "db", "packageRef": {"refName": "b"}}]


def overriding(*installs: dict[str, Any]) -> list[dict[str, Any]]:
    return [carvel("a", "1.0.0", dependencies=NEEDY), carvel("b", "1.0.0"), carvel("b", "2.0.0"), *installs]


def dependent(namespace: str, dependencies: dict[str, Any] | None) -> dict[str, Any]:
    obj = install("a")
    obj["metadata"]["namespace"] = namespace
    if dependencies is not None:
        obj["spec"]["dependencies"] = dependencies
    return obj


@pytest.mark.parametrize(("dependencies", "version"), [(OVERRIDE, "1.0.0"), (None, "2.0.0")])
def test_an_override_in_a_file_counts(
    dependencies: Any, version: str, tmp_path: Path, capsys: Captured
) -> None:
    """As it does in the cluster: the dependency gets the range that the install names."""
    file = write(tmp_path, *overriding(dependent("demo", dependencies)))
    assert code("-f", file, "-o", "json") == 0
    actions = {each["package"]: each["after"] for each in json.loads(capsys.readouterr().out)["actions"]}
    assert actions == {"a": "1.0.0", "b": version}


@pytest.mark.parametrize(
    ("installs", "words"),
    [
        ([dependent("demo", {"override": [{"name": "bd"}]})], "has an item with name bd"),
        ([dependent("demo", {"managedBy": "User"})], "packages tree -f"),
        ([dependent("demo", OVERRIDE), dependent("test", None)], "another install of a does not"),
        ([dependent("demo", OVERRIDE), dependent("test", {})], "another install of a does not"),
    ],
)
def test_an_override_that_resolve_cannot_apply_is_refused(
    installs: list[dict[str, Any]], words: str, tmp_path: Path, capsys: Captured
) -> None:
    """It is named with its field; nothing is resolved without it."""
    assert code("-f", write(tmp_path, *overriding(*installs))) == 2
    assert words in capsys.readouterr().err
