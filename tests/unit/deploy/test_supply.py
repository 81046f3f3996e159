"""What pvbus is made of: the bill of materials, licences, and what is said of known vulnerabilities."""

import json
import tomllib
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy import audit, licences, sbom
from deploy.licences import EXCEPTIONS, LOCKS, locked
from tests.tools.installation import CHECKOUT


def test_the_bill_is_valid_and_complete() -> None:
    """It follows the schema, and has each locked package with version, hashes and licence, and the image."""
    text = sbom.text()
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"container"', '"box"')) is not None
    document = json.loads(text)
    libraries = {part["name"]: part for part in document["components"] if part["type"] == "library"}
    packages = {package.name: package for package in locked(LOCKS["run"])}
    assert libraries.keys() == packages.keys()
    for name, part in libraries.items():
        assert part["version"] == packages[name].version
        (wheels,) = part["externalReferences"]
        assert sorted(hash_["content"] for hash_ in wheels["hashes"]) == sorted(set(packages[name].hashes))
        assert part["licenses"]
    (image,) = [part for part in document["components"] if part["type"] == "container"]
    assert f"@sha256:{image['hashes'][0]['content']}" in (CHECKOUT / "deploy" / "Dockerfile").read_text()


def test_the_bill_says_what_needs_what() -> None:
    """Each direct dependency of the project is in it, and nothing is named that it does not list."""
    document = json.loads(sbom.text())
    needs = {entry["ref"]: entry.get("dependsOn", []) for entry in document["dependencies"]}
    names = {reference.partition("@")[0] for reference in needs["pvbus"]}
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    direct = {Requirement(text).name.lower() for text in project["dependencies"]}
    assert {f"pkg:pypi/{name}" for name in direct} <= names
    assert any(need.startswith("pkg:pypi/yarl@") for need in needs["pkg:pypi/aiohttp@" + version("aiohttp")])
    assert {need for each in needs.values() for need in each} <= needs.keys()


def version(name: str) -> str:
    return next(package.version for package in locked(LOCKS["run"]) if package.name == name)


def test_the_same_lock_gives_the_same_bill() -> None:
    first, second = (json.loads(sbom.text()) for _ in range(2))
    for document in (first, second):
        del document["metadata"]["timestamp"]
    assert first == second


@pytest.mark.parametrize("lock", LOCKS)
def test_every_licence_is_allowed(lock: str) -> None:
    """Of what users run, and of what only developers do; the exceptions have reasons."""
    assert list(licences.problems([package.name for package in locked(LOCKS[lock])])) == []


def test_no_exception_is_left_over() -> None:
    names = {canonicalize_name(package.name) for lock in LOCKS.values() for package in locked(lock)}
    assert EXCEPTIONS.keys() | licences.STATED.keys() <= names
    assert all(licences.licence_of(name) == licence and why for name, (licence, why) in EXCEPTIONS.items())


@pytest.mark.parametrize(
    ("fields", "is_allowed"),
    [
        ("License-Expression: MIT OR GPL-3.0-only", True),
        ("License-Expression: Apache-2.0 AND MIT", True),
        ("License-Expression: Apache-2.0 AND GPL-3.0-only", False),
        ("License-Expression: (MIT OR GPL-3.0-only) AND GPL-2.0-only", False),
        ("License-Expression: AGPL-3.0-only", False),
        ("License: MIT License", True),
        ("License: GPLv3", False),
        ("Classifier: License :: OSI Approved :: MIT License", True),
        ("Classifier: License :: OSI Approved :: BSD License", False),
        ("Summary: says nothing", False),
    ],
)
def test_a_licence_that_is_not_allowed_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: str, is_allowed: bool
) -> None:
    """In each of the fields in which a package may say it; one that says none is not allowed."""
    folder = tmp_path / "made_up-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: made-up\nVersion: 1\n{fields}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert (list(licences.problems(["made-up"])) == []) is is_allowed


CHECKED = {"name": "a", "version": "1", "vulns": []}
VULNERABLE = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
SKIPPED = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "errors", "codes", "words"),
    [
        ([CHECKED], "", (0, 0), "1 locked packages checked, 0 known vulnerabilities"),
        ([CHECKED, VULNERABLE], "", (1, 1), "vulnerable: b 2: PYSEC-1, fixed in 3"),
        ([CHECKED, SKIPPED], "", (0, 1), "not checked for known vulnerabilities: c: not found"),
        ([VULNERABLE, SKIPPED], "", (1, 1), "1 locked packages checked, 1 known vulnerabilities"),
        ([], "", (0, 1), "0 locked packages checked"),
        (None, "ERROR: no route\n", (0, 1), "not checked for known vulnerabilities: ERROR: no route"),
        (None, "", (0, 1), "it printed nothing"),
    ],
)
def test_what_an_audit_says(
    packages: list[object] | None,
    errors: str,
    codes: tuple[int, int],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What could not be checked is said in words, and fails where it has to."""
    document = "" if packages is None else json.dumps({"dependencies": packages})
    answer = audit.answer_of(document, errors)
    assert (audit.report(answer, is_strict=False), audit.report(answer, is_strict=True)) == codes
    assert words in capsys.readouterr().out
