"""The example `platform`: twelve packages of both families that depend on each other.

Crossplane's packages are folders of one git repository, their versions are tags `<folder>/<version>`.
Carvel's are Package objects whose content is inline. No registry is needed.

A package names what it depends on by its location, so the repository belongs to the folder that it was made
in. Two machines with the same folder get the same commits. An existing repository is left unchanged.
"""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from urllib.parse import quote

import msgspec

from pvbus.adapters.manifests import Manifest, objects_of
from pvbus.core.errors import PermanentError
from pvbus.core.platform.packaging.references import digest_of_files
from pvbus.runtime.process.settings import ServicesConfig

PUBLISHED = (
    ("network", "v1.0.0"),
    ("network", "v1.1.0"),
    ("network", "v2.0.0"),
    ("database", "v2.0.0"),
    ("database", "v3.0.0"),
    ("dns", "v0.3.0"),
    ("dns", "v0.4.0"),
    ("sizes", "v0.2.0"),
    ("cluster", "v1.0.0"),
    ("cluster", "v1.1.0"),
    ("shop", "v1.0.0"),
    ("shop", "v1.1.0"),
    ("shop", "v1.2.0"),
    ("legacy", "v0.1.0"),
    ("rival", "v1.0.0"),
)
"""The packages in the order in which they are committed: a package whose digest another one names comes
before it."""

PLATFORMS = "crossplane=2.0.0"
"""The platforms that the packages are told they run on, as no Crossplane is there."""
OBSERVE_SECONDS = 5.0
"""The time between two looks at the repository, so that a person who tags a version does not wait."""

_MADE_AT = 1_767_225_600  # as in `pvbus.examples.fleet`


def make(folder: Path, clusters: int = 0) -> list[Manifest]:
    """Create the missing repository below `folder`; return the objects to apply.

    clusters: has no meaning here; each example takes it.
    """
    import pygit2  # here: `pvbus up` without an example starts sooner

    path = folder / "platform.git"
    try:
        if not (path / "HEAD").exists():
            _publish(path)
    except (OSError, pygit2.GitError) as exc:
        raise PermanentError(f"the example's repository cannot be made in {folder}: {exc}") from exc
    return [manifest for file in _sorted(_files() / "manifests") for manifest in _manifests(file, path)]


def configured(config: ServicesConfig, folder: Path) -> ServicesConfig:
    """Return the settings with which the services can read the repository, and know of platforms.

    What the user has set stays.
    """
    folders = [each for each in (config.sources_local, str(folder.absolute())) if each]
    return msgspec.structs.replace(
        config,
        sources_local=",".join(folders),
        platforms=config.platforms or PLATFORMS,
        observe_seconds=min(config.observe_seconds, OBSERVE_SECONDS),
    )


def source_of(path: Path) -> str:
    """Return what packages of a repository begin with; `//<folder>` follows."""
    return f"git+file://{quote(str(path.absolute()))}"


def _files() -> Traversable:
    return files("pvbus.examples") / "platform_files"


def _sorted(folder: Traversable) -> list[Traversable]:
    return sorted(folder.iterdir(), key=lambda entry: entry.name)


def _manifests(file: Traversable, repository: Path) -> list[Manifest]:
    text = Template(file.read_text()).substitute(repository=source_of(repository))
    path = Path(file.name)
    return [Manifest(path, number, obj) for number, obj in objects_of(text, path)]


# ------------------------------------------------------------ the repository


def _publish(path: Path) -> None:
    """Create the repository: a commit and a tag for each version."""
    import pygit2

    staged = path.with_name(f".{path.name}")  # appears complete or not at all
    repository = pygit2.init_repository(str(staged), bare=True, initial_head="main")
    index = pygit2.Index()
    variables = {"repository": source_of(path)}
    parents: list[pygit2.Oid] = []
    packages: dict[str, dict[str, bytes]] = {}
    for number, (folder, version) in enumerate(PUBLISHED):
        package = packages.setdefault(folder, {})
        for name, text in _contents(_files() / "packages" / folder / version):
            package[name] = Template(text).substitute(variables).encode()
            blob = repository.create_blob(package[name])
            index.add(pygit2.IndexEntry(f"{folder}/{name}", blob, pygit2.enums.FileMode.BLOB))
        author = pygit2.Signature("pvbus example", "example@pvbus.dev", _MADE_AT + number, 0)
        message = f"{folder} {version}\n"
        tree = index.write_tree(repository)
        commit = repository.create_commit("refs/heads/main", author, author, message, tree, parents)
        repository.references.create(f"refs/tags/{folder}/{version}", commit)
        parents = [commit]
        variables[f"{folder}_{version.replace('.', '_')}"] = digest_of_files(package)
    staged.rename(path)


def _contents(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the files of a version that are not as in the version before it."""
    for entry in _sorted(folder):
        if entry.is_dir():
            yield from _contents(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry.read_text()
