"""Checks of Repository objects and of their immutable fields."""

from pvbus.controlplane.apiserver.hooks import Objects
from pvbus.controlplane.apiserver.identity import ADMINS_GROUP, current
from pvbus.controlplane.packages import answers
from pvbus.controlplane.packages.permits import LocalFolders
from pvbus.controlplane.packages.settings import spec_of, spec_problem, url_of
from pvbus.core.api.packages import RepositorySpec
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.core.kernel.packagepaths import label_problem
from pvbus.ports.cluster import Object


class RepositoryHooks:
    """The KindHooks of Repository. The store acts on the stored objects."""

    def __init__(self, objects: Objects, local: LocalFolders, own: LocalFolders) -> None:
        """Check paths against two lists of folders.

        local: where anybody may register a path
        own: where the holder of the data folder may, who reads this machine anyway
        """
        self._objects = objects
        self._local = local
        self._own = own

    async def on_create(self, obj: Object, *, user: str) -> Object:
        name = obj["metadata"]["name"]
        if problem := label_problem(name):
            raise answers.invalid(name, "metadata.name", problem, kind="Repository")
        self._check(obj)
        return obj

    async def on_update(self, old: Object, new: Object, *, subresource: str, user: str) -> Object:
        name = old["metadata"]["name"]
        before, after = self._spec(name, old), self._spec(name, new)
        for field, one, other in (
            ("spec.type", before.type, after.type),
            ("spec.git.repo", _git(before)[0], _git(after)[0]),
            ("spec.git.branch", _git(before)[1], _git(after)[1]),
            ("spec.git.directory", _git(before)[2], _git(after)[2]),
        ):
            if one != other:
                raise answers.invalid(name, field, "field is immutable", kind="Repository")
        if (before.git, before.sync) != (
            after.git,
            after.sync,
        ):  # an object stored before a check existed must stay deletable
            self._check_spec(name, after)
        return new

    async def on_delete(self, obj: Object, *, user: str) -> None:
        """Any Repository may be deleted: git is not changed."""

    async def on_removed(self, obj: Object) -> None:
        """Do nothing: the store watches Repositories and releases this one."""

    def _check(self, obj: Object) -> None:
        metadata = obj["metadata"]
        name = metadata["name"]
        spec = self._spec(name, obj)
        if spec.type == "git" and not _git(spec)[0]:
            raise answers.invalid(name, "spec.git.repo", "Required value", kind="Repository")
        self._check_spec(name, spec)
        self._check_path(name, spec)
        address, branch, directory = _git(spec)
        for other in self._objects.list(REPOSITORY, metadata.get("namespace", "")):
            other_name = other["metadata"]["name"]
            if other_name == name:
                continue
            present = _git(self._spec(other_name, other))
            if address and present[:2] == (address, branch) and _overlap(directory, present[2]):
                raise answers.invalid(
                    name,
                    "spec.git",
                    f'Repository "{other_name}" already has the directory "{present[2] or "/"}" of the '
                    "same repository and branch",
                    kind="Repository",
                )

    def _check_spec(self, name: str, spec: RepositorySpec) -> None:
        if found := spec_problem(spec):
            raise answers.invalid(name, *found, kind="Repository")

    def _check_path(self, name: str, spec: RepositorySpec) -> None:
        local = url_of(spec.git.repo)[1] if spec.git is not None and spec.git.repo else None
        folders = self._own if ADMINS_GROUP in current().user.groups else self._local
        if local is not None and (problem := folders.problem(local)):
            raise answers.invalid(name, "spec.git.repo", problem, kind="Repository")

    def _spec(self, name: str, obj: Object) -> RepositorySpec:
        try:
            return spec_of(obj)
        except PermanentError as exc:
            raise answers.invalid(name, "spec", str(exc), kind="Repository") from exc


def _git(spec: RepositorySpec) -> tuple[str, str, str]:
    """Return address, branch and directory, normalized for comparison."""
    if spec.git is None:
        return "", "", ""
    return spec.git.repo, spec.git.branch or "main", spec.git.directory.strip("/")


def _overlap(one: str, other: str) -> bool:
    return not one or not other or f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
