"""Sources as text, digests of files, and the logins of pull secrets."""

import base64
import json
from typing import Any

import pytest

from pvbus.core.errors import PermanentError
from pvbus.core.platform.packaging.pullsecrets import Login, login_for, logins_of
from pvbus.core.platform.packaging.references import (
    INLINE_CHARACTERS_MAX,
    GitFolder,
    Image,
    Inline,
    digest_of_files,
    parse,
    reference_of,
    reference_problem,
    split_reference,
)

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("registry.example.org/package", Image("registry.example.org", "package")),
        ("registry.example.org/a/b_c/d-e.f:v1.0", Image("registry.example.org", "a/b_c/d-e.f", "v1.0")),
        ("localhost/x", Image("localhost", "x")),
        ("localhost:5000/x:y", Image("localhost:5000", "x", "y")),
        ("registry:5000/x", Image("registry:5000", "x")),
        ("[::1]:5000/x", Image("[::1]:5000", "x")),
        (f"xpkg.io/a/b:v1@{DIGEST}", Image("xpkg.io", "a/b", "v1", DIGEST)),
        (f"xpkg.io/a/b@{DIGEST}", Image("xpkg.io", "a/b", "", DIGEST)),
        ("git+https://host/team/repo.git", GitFolder("https://host/team/repo.git")),
        ("git+https://host/repo//a/b?ref=v1", GitFolder("https://host/repo", "a/b", "v1")),
        ("git+ssh://git@host/repo//a", GitFolder("ssh://git@host/repo", "a")),
        ("git+file:///srv/x.git//a/b?ref=a/b/v1", GitFolder("file:///srv/x.git", "a/b", "a/b/v1")),
    ],
)  # fmt: skip
def test_a_source_is_parsed_and_written_again(text: str, expected: object) -> None:
    assert parse(text) == expected
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "package",
        "team/package:v1",
        "registry.example.org/",
        "registry.example.org/Package",
        "registry.example.org/a//b",
        "registry.example.org/../b",
        "registry.example.org/a:",
        "registry.example.org/a:-v1",
        "registry.example.org/a:" + "v" * 129,
        "registry.example.org/a@sha256:abc",
        "registry.example.org/a@md5:" + "a" * 32,
        f"registry.example.org/a@{DIGEST}@{DIGEST}",
        "registry.example.org/a?b",
        "user@registry.example.org/a",
        "https://registry.example.org/a",
        "registry..example.org/a",
        "registry.example.org/" + "a" * 250,
        "registry.example.org/a\n",
        "git+https://host",
        "git+ftp://host/repo",
        "git+ext::sh -c x",
        "git+https://user:password@host/repo",
        "git+https://token@host/repo",
        "git+https://host/repo//a/../b",
        "git+https://host/repo?ref=--upload-pack=x",
        "git+https://host/repo?ref=a..b",
        "git+https://host/repo?ref=",
        "git+https://host/repo?depth=1",
        "git+https://host/repo?ref=a&ref=b",
        "git+https://host/re po",
        "git+https://host/repo#x",
        "inline:%%%",
        "inline:" + base64.urlsafe_b64encode(b"[1]").decode(),
        "inline:" + "A" * (INLINE_CHARACTERS_MAX + 1),
    ],
)
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(PermanentError) as caught:
        parse(text)
    assert caught.value.reason == "InvalidSource"
    assert "password" not in str(caught.value).replace("user and password", "")


@pytest.mark.parametrize("host", ["localhost", "localhost:5000", "127.0.0.1:1", "127.8.8.8", "[::1]:80"])
def test_registries_on_this_machine_are_spoken_to_by_plain_http(host: str) -> None:
    assert Image(host, "x").is_local


@pytest.mark.parametrize("host", ["localhost.example.org", "127.0.0.1.example.org", "10.0.0.1:5000", "a:80"])
def test_other_registries_are_not(host: str) -> None:
    assert not Image(host, "x").is_local


def test_digests_of_files_differ_whenever_the_files_do() -> None:
    sets = [{}, {"a": b""}, {"b": b""}, {"a": b"b"}, {"ab": b""}, {"a": b"", "b": b""}, {"a": b"b\0"}]
    assert len({digest_of_files(each) for each in sets}) == len(sets)
    assert digest_of_files({"a": b"1", "b": b"2"}) == digest_of_files({"b": b"2", "a": b"1"})


def test_files_in_a_source_have_to_be_texts() -> None:
    with pytest.raises(PermanentError, match="no text in UTF-8"):
        str(Inline({"a": b"\xff"}))


# Pull secrets


def secret(
    document: Any, type_: str = "kubernetes.io/dockerconfigjson", key: str = ".dockerconfigjson"
) -> Any:
    data = base64.b64encode(json.dumps(document).encode()).decode()
    return {"metadata": {"namespace": "demo", "name": "pull"}, "type": type_, "data": {key: data}}


AUTH = {"auth": base64.b64encode(b"joe:pass:word").decode()}
JOE = Login("joe", "pass:word")


def test_logins_of_all_kinds_of_secrets_are_read() -> None:
    named = {"username": "joe", "password": "pass:word"}
    assert logins_of(secret({"auths": {"a.io": AUTH, "b.io": named}})) == {"a.io": JOE, "b.io": JOE}
    assert logins_of(secret({"a.io": AUTH}, "kubernetes.io/dockercfg", ".dockercfg")) == {"a.io": JOE}
    data = {name: base64.b64encode(value.encode()).decode() for name, value in named.items()}
    assert logins_of({"metadata": {}, "type": "kubernetes.io/basic-auth", "data": data}) == {"": JOE}
    assert logins_of(secret({})) == {}


@pytest.mark.parametrize(
    "document",
    [
        3,
        {"auths": 3},
        {"auths": {"a.io": 3}},
        {"auths": {"a.io": {"auth": "$"}}},
        {"auths": {"a.io": {"auth": base64.b64encode(b"colonless").decode()}}},
        {"auths": {"a.io": {"username": "hush"}}},
    ],
)
def test_a_secret_that_cannot_be_used_is_named_without_its_values(document: Any) -> None:
    with pytest.raises(PermanentError, match="secret demo/pull") as caught:
        logins_of(secret(document))
    assert caught.value.reason == "InvalidSecret"
    assert "hush" not in str(caught.value)
    assert "colonless" not in str(caught.value)


def test_a_login_does_not_show_its_password() -> None:
    assert "pass" not in repr(JOE)


@pytest.mark.parametrize(
    ("key", "registry", "repository", "fits"),
    [
        ("a.io", "a.io", "x", True),
        ("https://a.io/v2/", "a.io", "x", True),
        ("a.io:5000", "a.io:5000", "x", True),
        ("a.io:5000", "a.io", "x", False),
        ("a.io", "a.io:5000", "x", True),
        ("a.io", "b.a.io", "x", False),
        ("a.io", "a.io.example.org", "x", False),
        ("*.a.io", "b.a.io", "x", True),
        ("*.a.io", "c.b.a.io", "x", False),
        ("*.a.io", "a.io", "x", False),
        ("a.io/team", "a.io", "team/x", True),
        ("a.io/team", "a.io", "team", True),
        ("a.io/team", "a.io", "teams/x", False),
        ("https://index.docker.io/v1/", "docker.io", "library/x", True),
        ("docker.io", "registry-1.docker.io", "x", True),
        ("", "any.io", "x", True),
    ],
)
def test_a_login_fits_its_registry_only(key: str, registry: str, repository: str, fits: bool) -> None:
    assert (login_for({key: JOE}, registry, repository) is not None) == fits


def test_the_most_exact_login_is_taken() -> None:
    logins = {
        "*.a.io": Login("glob", ""),
        "x.a.io": Login("host", ""),
        "x.a.io/team": Login("team", ""),
        "x.a.io/team/deep": Login("deep", ""),
    }
    for repository_, name in (("other", "host"), ("team/x", "team"), ("team/deep/x", "deep")):
        found = login_for(logins, "x.a.io", repository_)
        assert found is not None
        assert found.username == name
    assert login_for(logins, "y.a.io", "team") == Login("glob", "")


GIT = "git+file:///srv/p.git//pa"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{GIT}?ref=pa/v1.0.0", (GIT, "v1.0.0", "")),
        (f"{GIT}?ref=v1.0.0", (GIT, "v1.0.0", "")),
        (f"{GIT}:v1.0.0", (GIT, "v1.0.0", "")),
        (f"{GIT}?ref=pa/main", (GIT, "pa/main", "")),
        (f"{GIT}?ref=feature/x", (GIT, "feature/x", "")),
        (f"{GIT}?ref=a%23b", (GIT, "a#b", "")),
        ("git+https://host/p.git?ref=v1.0.0", ("git+https://host/p.git", "v1.0.0", "")),
    ],
)
def test_a_ref_of_git_is_a_version_like_a_tag(text: str, expected: tuple[str, str, str]) -> None:
    """The tag `folder/v1` is the folder's version v1; a branch of such a name stays what it is."""
    assert split_reference(text) == expected
    assert split_reference(reference_of(*expected[:2])) == expected
    assert reference_problem(text) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{GIT}?ref=", "is not a ref"),
        (f"{GIT}?ref=../x", "is not a ref"),
        (f"{GIT}?tag=v1", "the only option is ref="),
        (f"{GIT}?ref=v1&ref=v2", "is not a ref|the only option is ref="),
        (f"{GIT}:v1?ref=v2", "names a version before"),
        (f"{GIT}@{DIGEST}?ref=v2", "names a version before"),
        ("git+gopher://x//y?ref=v1", "write git"),
        ("registry.example.org/:v1", "no name before its tag"),
        ("registry.example.org/pa:", '"" is not a tag'),
        ("registry.example.org/pa@", '"" is not a digest'),
        ("registry.example.org/pa:v1@", '"" is not a digest'),
        ("registry.example.org/pa:v1+a", "is not a tag"),
        ("registry.example.org/pa@sha256:abc", "is not a digest"),
        (f"registry.example.org/pa@{DIGEST.upper()}", "is not a digest"),
        ("not a ref!!", "has ' ', which no image's name has"),
        ("registry.example.org/pa!", "has '!', which no image's name has"),
    ],
)
def test_a_reference_that_names_no_version_rightly_is_a_problem(text: str, words: str) -> None:
    """What is not understood is refused: the highest version would be taken instead."""
    problem = reference_problem(text)
    assert any(each in problem for each in words.split("|")), problem


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("Registry.example.org", "write registry.example.org"),
        ("registry.example.org:443", "write registry.example.org"),
        ("registry.example.org:0443", "write registry.example.org"),
        ("registry.example.org:05000", "does not begin with 0"),
        ("index.docker.io", "write docker.io"),
        ("registry-1.docker.io", "write docker.io"),
        ("LOCALHOST", "write localhost"),
    ],
)
def test_another_spelling_of_a_registry_is_refused(host: str, words: str) -> None:
    """ImageConfigs compare texts: by it an image would escape a demanded signature."""
    with pytest.raises(PermanentError, match=words):
        parse(f"{host}/team/pa" if "." in host else f"{host}:5000/team/pa")


@pytest.mark.parametrize("host", ["registry.example.org", "registry.example.org:5000", "127.0.0.1:443"])
def test_the_one_spelling_of_a_registry_is_read(host: str) -> None:
    assert str(parse(f"{host}/team/pa")) == f"{host}/team/pa"
