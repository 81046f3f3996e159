"""The certificate of an aggregated API server, and its authority in the APIService."""

import base64
from pathlib import Path

import pytest
from cryptography import x509

from pvbus.controlplane.aggregated.apiservice import _with
from pvbus.controlplane.aggregated.serving import AUTHORITIES_MAX, context_of, from_files, joined, self_signed
from pvbus.core.errors import PermanentError
from tests.tools.authority import Authority

NAME = "pvbus-packages.pvbus-system.svc"


def bundle_of(*authorities: Authority) -> bytes:
    return b"".join(each.certificate.read_bytes() for each in authorities)


def names(bundle: bytes) -> list[str]:
    found = x509.load_pem_x509_certificates(bundle)
    return [each.subject.rfc4514_string().removeprefix("CN=") for each in found]


def test_an_authority_is_added_once_and_others_stay(tmp_path: Path) -> None:
    one, two = Authority(tmp_path, "one"), Authority(tmp_path, "two")
    both = joined(bundle_of(one), bundle_of(two))
    assert sorted(names(both)) == ["one", "two"]
    assert joined(both, bundle_of(one)) == both == joined(both, bundle_of(two))
    assert names(joined(b"", bundle_of(one))) == ["one"]
    assert names(joined(b"damaged", bundle_of(one))) == ["one"]


def test_what_has_expired_goes(tmp_path: Path) -> None:
    one, two = Authority(tmp_path, "one"), Authority(tmp_path, "two")
    (old,) = x509.load_pem_x509_certificates(bundle_of(one))
    assert names(joined(bundle_of(one), bundle_of(two), now=old.not_valid_after_utc)) == ["two"]


def test_the_bundle_has_a_limit_and_our_own_stays(tmp_path: Path) -> None:
    many = [Authority(tmp_path, f"a{number}") for number in range(AUTHORITIES_MAX + 2)]
    own = Authority(tmp_path, "own")
    bundle = joined(bundle_of(*many), bundle_of(own))
    assert len(names(bundle)) == AUTHORITIES_MAX
    assert "own" in names(bundle)


def api_service(namespace: str = "pvbus-system", **more: object) -> dict[str, object]:
    service = {"name": "pvbus-packages", "namespace": namespace}
    return {"metadata": {"name": "x"}, "spec": {"service": service, "version": "v1alpha1", **more}}


def test_the_api_service_gets_the_authority_and_no_more_than_that(tmp_path: Path) -> None:
    own = bundle_of(Authority(tmp_path, "own"))
    written = _with(api_service(insecureSkipTLSVerify=True), own, NAME)
    assert written == api_service(caBundle=base64.b64encode(joined(b"", own)).decode())
    assert _with(written, own, NAME) == written


def test_the_api_service_of_another_server_is_left_alone(tmp_path: Path) -> None:
    """On a cluster with Porch it is Porch's: kube-apiserver would not know it any more."""
    with pytest.raises(PermanentError, match="it is another server's"):
        _with(api_service("porch-system"), bundle_of(Authority(tmp_path, "own")), NAME)


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    one, two = authority.issue("one"), authority.issue("two")
    assert from_files(one.certificate, one.key).authority == b""
    for certificate, key, words in (
        (one.certificate, two.key, "is not the key of the certificate"),
        (tmp_path / "none", one.key, "no such file"),
        (one.key, one.key, "has no certificate in PEM"),
    ):
        with pytest.raises(PermanentError, match=f"the serving certificate cannot be used: .*{words}"):
            from_files(certificate, key)


def test_a_made_certificate_is_used_again_and_has_the_name_of_the_service(tmp_path: Path) -> None:
    made = self_signed(tmp_path, [NAME])
    assert self_signed(tmp_path, [NAME]) == made
    found = x509.load_pem_x509_certificate(made.content[0])
    hosts = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert NAME in hosts.get_values_for_type(x509.DNSName)
    assert self_signed(tmp_path, ["other.example.svc"]) != made
    context_of(made, made.authority.decode())
