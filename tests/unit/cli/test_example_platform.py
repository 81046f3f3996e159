"""The example `platform`: its repository, its packages and its manifests."""

import shutil
from pathlib import Path

import pygit2
import pytest

from pvbus.core.platform.packaging.reading import Problem, carvel_package, install_of
from pvbus.core.platform.packaging.references import digest_of_files
from pvbus.core.platform.packaging.xpkg import candidate_of, package_meta
from pvbus.core.platform.solver.model import PackageNeed
from pvbus.examples import platform


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("platform")
    platform.make(folder)
    return folder


def content(folder: Path, package: str, version: str) -> dict[str, bytes]:
    """Return the files of a version, as the tag has them."""
    repository = pygit2.Repository(str(folder / "platform.git"))
    commit = repository.references[f"refs/tags/{package}/{version}"].peel(pygit2.Commit)
    found: dict[str, bytes] = {}

    def read(tree: pygit2.Tree, prefix: str) -> None:
        for entry in tree:
            if isinstance(entry, pygit2.Tree):
                read(entry, f"{prefix}{entry.name}/")
            elif isinstance(entry, pygit2.Blob):
                found[f"{prefix}{entry.name}"] = entry.data

    package_tree = commit.tree[package]
    assert isinstance(package_tree, pygit2.Tree)
    read(package_tree, "")
    return found


def test_the_same_folder_gets_the_same_commits(tmp_path: Path) -> None:
    """The commits are a function of the content and of the folder that packages name."""
    heads = set()
    for _ in range(2):
        platform.make(tmp_path / "a")
        repository = pygit2.Repository(str(tmp_path / "a" / "platform.git"))
        heads.add(str(repository.references["refs/heads/main"].target))
        shutil.rmtree(tmp_path / "a")
    assert len(heads) == 1


def test_what_a_person_published_stays(tmp_path: Path) -> None:
    """A second call leaves the repository and its tags alone."""
    first = platform.make(tmp_path)
    repository = pygit2.Repository(str(tmp_path / "platform.git"))
    head = repository.references["refs/heads/main"].target
    repository.references.create("refs/tags/dns/v0.5.0", head)
    assert [each.object for each in platform.make(tmp_path)] == [each.object for each in first]
    assert repository.references["refs/tags/dns/v0.5.0"].target == head


@pytest.mark.parametrize(("package", "version"), platform.PUBLISHED)
def test_every_version_can_be_installed(folder: Path, package: str, version: str) -> None:
    """Its manifest has no problem, and it brings an object at least."""
    files = content(folder, package, version)
    row = package_meta(files)
    assert row.defect == ""
    assert row.objects
    assert candidate_of(version, digest_of_files(files), row).defect == ""


def test_shop_names_the_content_of_dns(folder: Path) -> None:
    """The digest in its manifest is that of version v0.3.0, which is not the newest."""
    shop = candidate_of("v1.0.0", "", package_meta(content(folder, "shop", "v1.0.0")))
    needs = [each.need for each in shop.requirements if isinstance(each.need, PackageNeed)]
    (digest,) = [each.digest for each in needs if each.digest]
    assert digest == digest_of_files(content(folder, "dns", "v0.3.0"))
    assert digest != digest_of_files(content(folder, "dns", "v0.4.0"))


def test_two_packages_bring_the_same_object(folder: Path) -> None:
    """`rival` has a Composition of `shop`, and nothing else is in two packages."""
    last = dict(platform.PUBLISHED)
    owners: dict[str, list[str]] = {}
    for package, version in last.items():
        for okey in package_meta(content(folder, package, version)).objects:
            owners.setdefault(okey, []).append(package)
    shared = {okey.rpartition("|")[2]: found for okey, found in owners.items() if len(found) > 1}
    assert shared == {"shops": ["shop", "rival"]}


def test_its_manifests_are_read_without_a_problem(folder: Path) -> None:
    """Packages and installs have the fields of their families."""
    objects = [manifest.object for manifest in platform.make(folder)]
    packages = [
        each for each in objects if each["apiVersion"].startswith("data.") and each["kind"] == "Package"
    ]
    installs = [each for each in objects if each["kind"] in ("Configuration", "PackageInstall")]
    assert (len(packages), len(installs)) == (6, 3)
    for each in packages:
        assert not isinstance(carvel_package(each), Problem), each["metadata"]["name"]
    for each in installs:
        assert not isinstance(install_of(each), Problem), each["metadata"]["name"]
