"""`pvbus packages pull`: what it shows of a package, and what it says of one that cannot be used."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.cli.main import run
from pvbus.core.platform.packaging.references import Inline, digest_of_files
from tests.tools.fakeregistry import always, fake_registry, refusal
from tests.tools.images import CRD, META, PACKAGE, basic, pull_secret, xpkg_of

Captured = pytest.CaptureFixture[str]
NEEDY = (
    b"apiVersion: meta.pkg.crossplane.io/v1\nkind: Configuration\nmetadata: {name: app}\n"
    b"spec: {dependsOn: [{provider: xpkg.example.org/aws, version: '>=1.0.0'}], created: 2026-01-01}\n"
)
BUNDLE = {
    ".imgpkg/images.yml": b"apiVersion: imgpkg.carvel.dev/v1alpha1\nkind: ImagesLock\n"
    b"images: [{image: 'r.example.org/app@sha256:11'}]\n",
    "config/a.yaml": CRD,
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PVBUS_SOURCES_CACHE", str(tmp_path / "cache"))


async def pull(*arguments: str) -> int:
    return await asyncio.to_thread(run, ["packages", "pull", *arguments])


async def test_an_image_is_shown(capsys: Captured) -> None:
    async with fake_registry() as registry:
        digest = registry.add(xpkg_of(), "v1.2.0")
        assert await pull(f"{registry.source()}:v1.2.0") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"SOURCE   {registry.source()}:v1.2.0",
        f"DIGEST   {digest}",
        "LAYOUT   Crossplane package (xpkg)",
        "META     Configuration network (meta.pkg.crossplane.io/v1)",
        "OBJECT   CustomResourceDefinition networks.example.org",
        f"SIZE     {len(PACKAGE['package.yaml'])} bytes in 1 file",
    ]


async def test_what_a_package_needs_is_shown(capsys: Captured) -> None:
    async with fake_registry() as registry:
        digest = registry.add(xpkg_of({"package.yaml": NEEDY}))
        assert await pull(f"{registry.source()}@{digest}") == 0
        assert "NEEDS    xpkg.example.org/aws >=1.0.0" in capsys.readouterr().out
        assert await pull(f"{registry.source()}@{digest}", "-o", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["digest"] == digest
    assert document["files"] == {"package.yaml": len(NEEDY)}
    assert document["meta"]["spec"]["created"] == "2026-01-01"
    assert document["defect"] == ""


async def test_a_bundle_is_shown_with_its_images(capsys: Captured) -> None:
    assert await pull(str(Inline(BUNDLE))) == 0
    out = capsys.readouterr().out
    assert f"DIGEST   {digest_of_files(BUNDLE)}" in out
    assert "LAYOUT   Carvel bundle (imgpkg)" in out
    assert "IMAGE    r.example.org/app@sha256:11" in out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (CRD, "has 0 manifests of meta.pkg"),
        (META + b"---\n" + META, "has 2 manifests of meta.pkg"),
        (META + b"spec: {dependsOn: [{provider: a/b, version: '>>2'}]}\n", "spec.dependsOn[0].version"),
        (META + b"---\n" + CRD + b"---\n" + CRD, "networks.example.org twice"),
    ],
)
async def test_a_package_that_the_resolver_refuses_fails_and_says_why(
    capsys: Captured, content: bytes, words: str
) -> None:
    async with fake_registry() as registry:
        digest = registry.add(xpkg_of({"package.yaml": content}), "v1")
        assert await pull(f"{registry.source()}:v1") == 1
    out = capsys.readouterr().out
    assert words in out
    assert digest in out


async def test_a_source_without_a_tag_is_bad_usage_and_the_tags_are_named(capsys: Captured) -> None:
    async with fake_registry() as registry:
        registry.add(xpkg_of(), *(f"v1.{number}" for number in range(10, 20)))
        assert await pull(registry.source()) == 2
        assert "name a tag or a digest; it has v1.12" in capsys.readouterr().err
        assert await pull(f"{registry.source()}:v9") == 1
        assert "there is no v9; it has v1.12" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["network", "git+ftp://x/y", "inline:%"])
async def test_what_is_no_source_is_bad_usage(capsys: Captured, source: str) -> None:
    assert await pull(source) == 2
    assert capsys.readouterr().err.startswith("error: ")


async def test_a_source_that_does_not_answer_or_refuses_fails(capsys: Captured) -> None:
    async with fake_registry() as registry:
        registry.faults.append(always("/v2/", 403, "DENIED"))
        assert await pull(f"{registry.source()}:v1") == 1
        assert "not allowed without a login" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["docker", "secret", "text"])
async def test_a_login_is_taken_from_a_file(tmp_path: Path, capsys: Captured, form: str) -> None:
    async with fake_registry() as registry:
        registry.add(xpkg_of(), "v1")

        async def locked(request: Any) -> Any:
            if request.headers.get("Authorization") == basic("joe", "right"):
                return None
            return refusal(401, "UNAUTHORIZED", WWW_Authenticate='Basic realm="test"')

        registry.faults.append(locked)
        config = {"auths": {registry.address: {"username": "joe", "password": "right"}}}
        secret = {"kind": "Secret", **pull_secret(registry.address, "joe", "right")}
        text = {**secret, "data": None, "stringData": {".dockerconfigjson": json.dumps(config)}}
        document = {"docker": config, "secret": secret, "text": text}[form]
        (tmp_path / "login").write_text(yaml.safe_dump(document))
        if form == "docker":
            (tmp_path / "login").write_text(json.dumps(config))
        assert await pull(f"{registry.source()}:v1", "--login", str(tmp_path / "login")) == 0
        assert await pull(f"{registry.source()}:v1") == 1
        assert "refused without a login" in capsys.readouterr().err


async def test_a_file_without_a_login_is_bad_usage(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "login").write_text("[]")
    assert await pull("r.example.org/x:v1", "--login", str(tmp_path / "login")) == 2
    assert "neither a Docker configuration nor a Secret" in capsys.readouterr().err


def commit(folder: Path) -> None:
    for arguments in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "--all"],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "-m", "x"],
    ):
        subprocess.run(["git", *arguments], cwd=folder, check=True)


async def test_a_folder_of_a_crossplane_package_is_read_as_the_services_do(
    tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "r/.github").mkdir(parents=True)
    (tmp_path / "r/.github/build.yaml").write_text("on: push")
    (tmp_path / "r/crossplane.yaml").write_bytes(META)
    (tmp_path / "r/crd.yaml").write_bytes(CRD)
    commit(tmp_path / "r")
    assert await pull(f"git+file://{tmp_path}/r?ref=main") == 0
    out = capsys.readouterr().out
    assert "LAYOUT   folder of a Crossplane package" in out
    assert "META     Configuration network" in out
    assert out.count("OBJECT") == 1


async def test_a_folder_of_git_is_shown(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "r/app").mkdir(parents=True)
    (tmp_path / "r/app/a.yaml").write_bytes(CRD)
    commit(tmp_path / "r")
    assert await pull(f"git+file://{tmp_path}/r//app?ref=main") == 0
    out = capsys.readouterr().out
    assert f"DIGEST   {digest_of_files({'a.yaml': CRD})}" in out
    assert "OBJECT   CustomResourceDefinition networks.example.org" in out
    assert await pull(f"git+file://{tmp_path}/r//app?ref=HEAD") == 0
    assert await pull(f"git+file://{tmp_path}/r//app:main") == 0
    assert await pull(f"git+file://{tmp_path}/r//app:main?ref=main") == 2
