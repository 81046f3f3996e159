"""Whom an aggregated API server believes, by the ConfigMap of kube-apiserver and the peer's certificate."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from multidict import CIMultiDict, CIMultiDictProxy

from pvbus.controlplane.aggregated.trust import (
    Peer,
    Trust,
    peer_of,
    trust_of,
    user_of_certificate,
    user_of_headers,
)
from pvbus.controlplane.apiserver.identity import User
from pvbus.core.errors import PermanentError
from tests.tools.authority import Authority

PROXY = "front-proxy-client"


class Certificates:
    def __init__(self, folder: Path) -> None:
        self.proxies, self.users = Authority(folder, "proxies"), Authority(folder, "users")
        self.strangers = Authority(folder, "strangers")

    def data(self, **more: Any) -> dict[str, str]:
        lists = {
            "requestheader-allowed-names": [PROXY],
            "requestheader-username-headers": ["X-Remote-User"],
            "requestheader-uid-headers": ["X-Remote-Uid"],
            "requestheader-group-headers": ["X-Remote-Group"],
            "requestheader-extra-headers-prefix": ["X-Remote-Extra-"],
            **more,
        }
        return {
            "client-ca-file": self.users.certificate.read_text(),
            "requestheader-client-ca-file": self.proxies.certificate.read_text(),
            **{key: json.dumps(value) for key, value in lists.items()},
        }

    def peer(self, authority: Authority, name: str, *groups: str) -> Peer:
        pem = authority.issue(name, groups).certificate.read_bytes(), authority.certificate.read_bytes()
        chain = [x509.load_pem_x509_certificate(each).public_bytes(Encoding.DER) for each in pem]
        return peer_of(tuple(chain))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def trust(made: Certificates) -> Trust:
    return trust_of(made.data())


def headers(*pairs: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


ANN = headers(("X-Remote-User", "ann"), ("X-Remote-Group", "team"))


def test_kube_apiserver_names_the_user_in_headers(made: Certificates, trust: Trust) -> None:
    """Name, uid, every group, and extra facts, whose keys are escaped and in lower case."""
    given = headers(
        ("x-remote-user", "ann"),
        ("X-Remote-Uid", "7"),
        ("X-Remote-Group", "one"),
        ("X-Remote-Group", "two"),
        ("X-Remote-Extra-Example.com%2fScope", "a"),
        ("X-Remote-Extra-Example.com%2fScope", "b"),
    )
    user = user_of_headers(trust, made.peer(made.proxies, PROXY), given)
    assert user == User("ann", ("one", "two", "system:authenticated"), "7", {"example.com/scope": ("a", "b")})


@pytest.mark.parametrize(
    ("signer", "name", "given", "reason"),
    [
        ("users", PROXY, ANN, "a user's certificate is no proxy's, whatever its name"),
        ("strangers", PROXY, ANN, "a proxy of another cluster"),
        ("proxies", "other", ANN, "its name is not allowed"),
        ("proxies", PROXY, headers(), "it names nobody"),
        ("proxies", PROXY, headers(("X-Remote-User", "")), "it names nobody"),
        ("proxies", PROXY, headers(("X-Other-User", "ann")), "another header"),
    ],
)
def test_headers_of_anybody_else_do_not_count(
    made: Certificates, trust: Trust, signer: str, name: str, given: CIMultiDictProxy[str], reason: str
) -> None:
    assert user_of_headers(trust, made.peer(getattr(made, signer), name), given) is None, reason


def test_no_list_of_names_allows_each_name(made: Certificates) -> None:
    trust = trust_of(made.data(**{"requestheader-allowed-names": []}))
    assert user_of_headers(trust, made.peer(made.proxies, "any"), ANN) is not None


def test_without_a_proxy_authority_no_header_counts(made: Certificates) -> None:
    data = made.data() | {"requestheader-client-ca-file": ""}
    trust = trust_of(data)
    assert trust.proxies is None
    assert user_of_headers(trust, made.peer(made.proxies, PROXY), ANN) is None
    assert trust.pem == made.users.certificate.read_text().strip()


def test_a_certificate_of_the_cluster_is_a_user(made: Certificates, trust: Trust) -> None:
    user = user_of_certificate(trust, made.peer(made.users, "ann", "one", "two"))
    assert user is not None
    assert (user.name, user.groups) == ("ann", ("one", "two", "system:authenticated"))
    assert list(user.extra) == ["authentication.kubernetes.io/credential-id"]
    assert user_of_certificate(trust, made.peer(made.proxies, PROXY)) is None
    assert user_of_certificate(trust, made.peer(made.strangers, "ann")) is None
    assert user_of_certificate(trust, made.peer(made.users, "ann")._replace(name="")) is None


def test_a_connection_outlives_its_certificate_and_its_right_does_not(
    made: Certificates, trust: Trust
) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    assert user_of_certificate(trust, made.peer(made.users, "ann")._replace(not_after=past)) is None
    proxy = made.peer(made.proxies, PROXY)._replace(not_after=past)
    assert user_of_headers(trust, proxy, ANN) is None


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("client-ca-file", "nonsense", "client-ca-file has no certificates in PEM form"),
        ("requestheader-allowed-names", "[", "requestheader-allowed-names is no list in JSON"),
        ("requestheader-group-headers", '{"a":1}', "requestheader-group-headers is no list of texts"),
        ("requestheader-group-headers", "[1]", "requestheader-group-headers is no list of texts"),
    ],
)
def test_a_damaged_config_map_is_named(made: Certificates, key: str, value: str, words: str) -> None:
    with pytest.raises(PermanentError, match=words.replace("[", r"\[")):
        trust_of(made.data() | {key: value})


def test_an_empty_config_map_trusts_nobody(made: Certificates) -> None:
    trust = trust_of({})
    assert trust.pem == ""
    assert user_of_certificate(trust, made.peer(made.users, "ann")) is None
