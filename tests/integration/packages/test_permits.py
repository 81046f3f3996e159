"""Who may name which address, Secret and path of the server's machine, in clones and in Repositories."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pvbus.adapters.sources.git import GitRemote
from pvbus.adapters.sources.limits import SourceLimits
from pvbus.controlplane.packages.clone import MIRROR
from pvbus.controlplane.packages.gitcommand import Credentials, Git, GitError
from pvbus.core.errors import PermanentError
from pvbus.core.platform.packaging.pullsecrets import Login
from pvbus.core.platform.packaging.references import GitFolder
from pvbus.ports.cluster import Object
from tests.integration.apiserver.client import Api
from tests.integration.apiserver.test_access import RBAC, _add, _bound, _role, _rule
from tests.integration.packages.support import (
    KPTFILE,
    NAMESPACE,
    StoreWorld,
    bare,
    clone_of,
    git,
    push_files,
    refs,
    repository,
    revision,
)
from tests.integration.packages.test_server import REPOSITORIES, REVISIONS, Served, register, serving
from tests.integration.packages.test_upgrade import upgrade_of
from tests.tools.certificate import make_certificate
from tests.tools.gitserver import GitServer, git_server

PASSWORD = "marked-password-of-the-secret"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
MAY_NOT = 'cannot clone-address resource "packagerevisions" in API group "porch.kpt.dev"'
NO_PATH = "is a path of the server's machine that may not be read"


class Site(NamedTuple):
    """A served store and what is around it. people: name -> header."""

    served: Served
    git: Path
    allowed: Path
    data: Path
    people: dict[str, str]
    server: GitServer

    @property
    def api(self) -> Api:
        return self.served.api

    async def clone(self, who: str, number: int, **location: Any) -> tuple[int, str]:
        """Ask for a clone; return code and message."""
        wanted = {"ref": "app/v1", "directory": "app", **location}
        task = {"type": "clone", "clone": {"upstreamRef": {"type": "git", "git": wanted}}}
        return await self.create(who, REVISIONS, revision("edge", f"p-{number}", "ws", task))

    async def create(self, who: str, path: str, obj: Object) -> tuple[int, str]:
        reply = await self.api.call("POST", path, obj, token=self.people[who])
        return reply.code, str(reply.body.get("message", ""))


@pytest.fixture
def server(tmp_path: Path, blueprints: Path) -> Iterator[GitServer]:
    keystore, _ = make_certificate(tmp_path)
    with git_server(blueprints.parent, keystore=keystore) as server:
        server.password = PASSWORD
        yield server


@pytest.fixture
async def site(tmp_path: Path, blueprints: Path, edge: Path, server: GitServer) -> AsyncIterator[Site]:
    """`blue` and `edge` are registered; `allowed` has a repository and a link to one outside of it."""
    allowed = tmp_path / "allowed"
    own = bare(allowed / "own.git")
    push_files(own, {"app/Kptfile": KPTFILE.format(name="app")}, tag="app/v1")
    other = bare(tmp_path / "git" / "other.git")
    push_files(other, {"app/Kptfile": KPTFILE.format(name="app")}, tag="app/v1")
    (allowed / "link.git").symlink_to(other)
    (allowed / "beside.git").symlink_to(other)
    (allowed / "beside").mkdir()
    async with serving(tmp_path / "data", local_folders=(str(allowed),)) as served:
        await register(served.api, blueprints, edge)
        (allowed / "mirror.git").symlink_to(mirror(tmp_path))
        authority = (tmp_path / "ca.pem").read_text()
        secret = {"username": "joe", "password": PASSWORD, "ca.crt": authority}
        await served.api.create(SECRETS, {"metadata": {"name": "login"}, "stringData": secret})
        people = {
            "holder": f"Bearer {served.server.token}",
            "editor": _add(served.server, "editor", "editor"),
            "namespace admin": _add(served.server, "nora", "admin", NAMESPACE),
            "admin": _add(served.server, "admin", "admin"),
            "cloner": _add(served.server, "cloner", "editor", NAMESPACE),
            "elsewhere": _add(served.server, "elsewhere", "editor", NAMESPACE),
        }
        verb = _role("cloner", _rule("clone-address", "porch.kpt.dev", "packagerevisions"))
        for where, who in ((NAMESPACE, "cloner"), ("default", "elsewhere")):
            await served.api.create(f"{RBAC}/namespaces/{where}/roles", verb)
            binding = _bound("cloner", "cloner", who)
            await served.api.create(f"{RBAC}/namespaces/{where}/rolebindings", binding)
        yield Site(served, tmp_path / "git", allowed, tmp_path / "data" / "packages", people, server)


def mirror(folder: Path) -> Path:
    """The store's own copy of the repository `blue`."""
    return folder / "data" / "packages" / "repositories" / NAMESPACE / "blue" / MIRROR


def addresses(site: Site) -> list[tuple[str, int, str]]:
    """Addresses that no Repository has; code and words for who may name addresses."""
    own = mirror(site.data.parent.parent)
    assert (own / "HEAD").exists()
    other = site.git / "other.git"
    return [
        (str(site.allowed / "own.git"), 201, ""),
        (f"file://{site.allowed}/own.git", 201, ""),
        (str(site.allowed / "none.git"), 500, "there is no git repository at this address"),
        *((str(path), 400, NO_PATH) for path in (other, own, site.allowed / "mirror.git")),
        *((str(site.allowed / name), 400, NO_PATH) for name in ("link.git", "link", "beside")),
        (f"file://{other}", 400, NO_PATH),
        (f"{site.allowed}/../git/other.git", 400, NO_PATH),
        (os.path.relpath(other), 400, NO_PATH),
        ("~/other.git", 400, NO_PATH),
        ("/etc/passwd", 400, NO_PATH),
        ("/nowhere/at/all", 400, NO_PATH),
        (f"file://{site.allowed}/%2e%2e/git/other.git", 500, "there is no git repository at this address"),
        (f"file://localhost{other}", 400, "must have an absolute path"),
        (f"file:{other}", 400, "must have two slashes after file:"),
        (f"FILE://{other}", 400, "must be a path, or a URL of"),
        ("~nobody-has-this-name/x", 400, "names the home of a user"),
        ("ext::sh -c id", 400, "helper programs"),
        ("fd::7", 400, "helper programs"),
        ("https://[bad/x.git", 400, "is not a URL"),
        ("127.0.0.1:x.git", 500, ""),
        ("http://127.0.0.1:9/x.git", 500, "cannot reach the remote"),
    ]


async def test_an_address_that_is_not_registered_takes_a_verb_and_a_path_a_setting(site: Site) -> None:
    """An editor, an admin of the namespace and who has the verb in another one get 403 for all of them; even
    the holder of the data folder clones no path outside of the setting."""
    for number, (repo, code, words) in enumerate(addresses(site)):
        for who in ("editor", "namespace admin", "elsewhere"):
            answer = await site.clone(who, number, repo=repo)
            assert answer[0] == (400 if code == 400 and words != NO_PATH else 403), (who, repo, answer)
            assert answer[0] == 400 or (MAY_NOT in answer[1] and "register a Repository" in answer[1])
        asked = ("cloner", "admin", "holder") if code != 201 else ("cloner",)
        for who in asked:
            answer = await site.clone(who, number, repo=repo)
            assert (answer[0], words in answer[1]) == (code, True), (who, repo, answer)
    made = [ref for ref in refs(site.git / "edge.git") if "drafts" in ref]
    assert len(made) == 2


async def test_a_registered_address_takes_no_verb_in_its_namespace_and_directory(
    site: Site, blueprints: Path
) -> None:
    """Not that of another namespace, and not another directory of the same repository."""
    assert (await site.clone("editor", 1, repo=str(blueprints)))[0] == 201
    assert (await site.clone("editor", 2, repo=f"file://{blueprints}"))[0] == 201
    other = bare(site.git / "wide.git")
    kptfile = KPTFILE.format(name="app")
    push_files(other, {"in/app/Kptfile": kptfile, "out/app/Kptfile": kptfile, "inner/Kptfile": kptfile})
    narrow = repository("narrow", other, git={"directory": "in"})
    away = REPOSITORIES.replace(NAMESPACE, "default")
    narrow["metadata"].pop("namespace")
    await site.api.create(away, narrow)
    for directory in ("in/app", "out/app", "inner"):
        answer = await site.clone("editor", 3, repo=str(other), ref="main", directory=directory)
        assert answer[0] == 403, directory
    await site.api.create(REPOSITORIES, narrow)
    narrowed = (("in/app", 201), ("out/app", 403), ("inner", 403), ("/", 403))
    for number, (directory, code) in enumerate(narrowed, start=4):
        answer = await site.clone("editor", number, repo=str(other), ref="main", directory=directory)
        assert answer[0] == code, (directory, answer)


async def test_an_image_takes_the_verb_too(site: Site) -> None:
    task = {"type": "clone", "clone": {"upstreamRef": {"type": "oci", "oci": {"image": "r.example/x"}}}}
    for who, code in (("editor", 403), ("cloner", 501)):
        assert (await site.create(who, REVISIONS, revision("edge", "p", "ws", task)))[0] == code


async def test_a_secret_is_used_for_whoever_may_read_it_and_by_https_alone(site: Site) -> None:
    """What a listener gets: nothing from an editor, nobody's password in the clear."""
    login = {"secretRef": {"name": "login"}}
    https = site.server.url("blue%20prints.git")
    with git_server(site.git) as clear:
        clear.password = PASSWORD
        for number, who in enumerate(("editor", "namespace admin", "cloner", "elsewhere", "admin", "holder")):
            for repo in (clear.url("blue%20prints.git"), clear.url("x.git").replace("http:", "git:")):
                answer = await site.clone(who, number, repo=repo, **login)
                assert answer[0] == (403 if who in ("editor", "namespace admin", "elsewhere") else 400), (
                    answer
                )
        assert clear.asked == []
    code, message = await site.clone("cloner", 10, repo=https, **login)
    assert code == 403
    assert 'secrets "login" is forbidden: User "cloner" cannot get resource "secrets"' in message
    assert "register a Repository with this Secret" in message
    assert site.server.asked == []
    assert (await site.clone("admin", 11, repo=https, **login))[0] == 201
    assert any(site.server.logins)


async def test_who_may_register_a_path_of_the_servers_machine(site: Site, blueprints: Path) -> None:
    """People: in a folder of the setting; the holder of the data folder: any, but no copy of the store."""
    own = mirror(site.data.parent.parent)
    paths = {
        str(site.allowed / "own.git"): (201, 201),
        str(site.git / "other.git"): (422, 201),
        str(site.allowed / "link.git"): (422, 201),
        f"file://{site.git}/other.git": (422, 201),
        str(site.data / "example.git"): (422, 201),
        str(own): (422, 422),
        str(site.allowed / "mirror.git"): (422, 422),
        f"{site.allowed}/../data/packages/upstreams/x": (422, 422),
    }
    for number, (repo, codes) in enumerate(paths.items()):
        for who, code in zip(("admin", "holder"), codes, strict=True):
            wanted = repository(f"r-{who}-{number}", repo, git={"branch": f"{who}-{number}"})
            answer = await site.create(who, REPOSITORIES, wanted)
            assert (answer[0], code == 201 or NO_PATH in answer[1]) == (code, True), (who, repo, answer)
    assert (await site.create("editor", REPOSITORIES, repository("r", blueprints)))[0] == 403


async def test_a_repository_sends_its_secret_over_the_network_by_https_only(site: Site) -> None:
    wanted = repository("clear", "http://git.example.com/x.git", git={"secretRef": {"name": "login"}})
    code, message = await site.create("holder", REPOSITORIES, wanted)
    assert (code, "spec.git.secretRef: a password is sent by https or ssh only" in message) == (422, True)


REDIRECTED = ("https", "http")


@pytest.mark.parametrize("scheme", REDIRECTED)
def test_a_redirect_gets_no_password_of_either_runner_of_git(
    scheme: str, tmp_path: Path, blueprints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git drops a header from the redirected request, and not from the POST that follows it."""
    keystore, authority = make_certificate(tmp_path)
    monkeypatch.setenv("GIT_SSL_CAINFO", str(authority))
    target = git_server(blueprints.parent, keystore=keystore if scheme == "https" else None)
    with git_server(blueprints.parent, keystore=keystore) as first, target as second:
        second.password = ""
        first.redirect = second.url("")[:-1]
        url = first.url("blue%20prints.git")
        login = Credentials("joe", PASSWORD)
        with pytest.raises(GitError, match="redirects to another address, to which no password is sent"):
            Git(login, url).remote_refs(url, ["refs/heads/main"], tmp_path)
        remote = bare(tmp_path / "mirror")
        with pytest.raises(GitError, match="redirects to another address"):
            Git(login, url).fetch(remote, url)
        own = Login("joe", PASSWORD)
        reader = GitRemote(GitFolder(url), SourceLimits(), login=own, ca_file=str(authority))
        with pytest.raises(PermanentError, match="returned error: 302"):
            reader.refs()
        assert second.asked == []
        assert any(first.logins)
        # Without a password it is followed, and a password is for its own remote alone.
        assert Git(None, url).remote_refs(url, ["refs/heads/main"], tmp_path)
        first.logins.clear()
        first.redirect = ""
        with pytest.raises(GitError):
            Git(login, second.url("x.git")).remote_refs(url, ["refs/heads/main"], tmp_path)
        assert not any(first.logins + second.logins)


async def test_an_upgrade_reads_no_address_that_the_kptfile_of_a_package_names(
    fleet: StoreWorld, tmp_path: Path, edge: Path
) -> None:
    """An editor writes upstream and upstreamLock; an upgrade takes registered revisions by name."""
    foreign = bare(tmp_path / "git" / "foreign.git")
    commit = push_files(foreign, {"app/Kptfile": KPTFILE.format(name="app"), "app/stolen.txt": "marked\n"})
    draft = await fleet.create(revision("edge", "web", "ws", clone_of("blue.app.v1")))
    files = await fleet.files("edge.web.ws")
    kptfile = files["spec"]["resources"]["Kptfile"]
    known = git(tmp_path / "git" / "blue prints.git", "rev-parse", "app/v1")
    forged = kptfile.replace(str(tmp_path / "git" / "blue prints.git"), str(foreign)).replace(known, commit)
    assert forged.count(str(foreign)) == 2
    await fleet.put(files, {"Kptfile": forged})
    await fleet.publish(fleet.present("edge.web.ws"))
    push_files(tmp_path / "git" / "blue prints.git", {"app/new.txt": "new\n"}, tag="app/v2")
    await fleet.until(lambda: fleet.revision("blue.app.v2"))
    await fleet.create(revision("edge", "web", "next", upgrade_of("edge.web.ws")))
    upgraded = (await fleet.files("edge.web.next"))["spec"]["resources"]
    assert "new.txt" in upgraded
    assert "stolen.txt" not in upgraded
    assert str(foreign) not in upgraded["Kptfile"]
    assert draft
