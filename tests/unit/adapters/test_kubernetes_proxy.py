"""Which proxy the environment gives a connection, as Go's clients read it."""

from pathlib import Path

import pytest

from pvbus.adapters.kubernetes.connection import Connection, proxy_of_environment
from pvbus.adapters.kubernetes.library import Configuration

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("server", "environment", "proxy"),
    [
        ("https://api.example.dev", {}, ""),
        ("https://api.example.dev", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://api.example.dev", {"https_proxy": PROXY}, PROXY),
        ("https://api.example.dev", {"HTTPS_PROXY": "http://big", "https_proxy": PROXY}, "http://big"),
        ("https://api.example.dev", {"HTTP_PROXY": PROXY}, ""),
        ("http://api.example.dev", {"HTTP_PROXY": PROXY}, PROXY),
        ("https://api.example.dev", {"HTTPS_PROXY": "proxy:3128"}, PROXY),
        ("https://localhost:6443", {"HTTPS_PROXY": PROXY}, ""),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": PROXY}, ""),
        ("https://[::1]:6443", {"HTTPS_PROXY": PROXY}, ""),
    ],
)
def test_the_scheme_of_the_server_decides(server: str, environment: dict[str, str], proxy: str) -> None:
    assert proxy_of_environment(server, environment) == proxy


@pytest.mark.parametrize(
    ("server", "exceptions", "is_excepted"),
    [
        ("https://api.example.dev", "*", True),
        ("https://api.example.dev", "api.example.dev", True),
        ("https://API.example.dev", "api.EXAMPLE.dev", True),
        ("https://api.example.dev", "example.dev", True),
        ("https://api.example.dev", ".example.dev", True),
        ("https://api.example.dev", "*.example.dev", True),
        ("https://example.dev", ".example.dev", False),
        ("https://anexample.dev", "example.dev", False),
        ("https://api.example.dev", "other, example.dev", True),
        ("https://api.example.dev:6443", "example.dev:6443", True),
        ("https://api.example.dev", "example.dev:6443", False),
        ("https://api.example.dev", "example.dev:443", True),
        ("https://10.1.2.3", "10.0.0.0/8", True),
        ("https://11.1.2.3", "10.0.0.0/8", False),
        ("https://10.1.2.3", "10.1.2.3", True),
        ("https://10.1.2.3", "3", False),
        ("https://[fd00::1]", "fd00::/8", True),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", True),
        ("https://api.example.dev", "10.0.0.0/x,,", False),
    ],
)
def test_no_proxy_names_hosts_domains_and_networks(server: str, exceptions: str, is_excepted: bool) -> None:
    environment = {"HTTPS_PROXY": PROXY, "NO_PROXY": exceptions}
    assert (proxy_of_environment(server, environment) == "") is is_excepted


@pytest.mark.parametrize(
    ("proxy_url", "wanted"), [(None, "http://of-environment:1"), ("http://of-file:2", "http://of-file:2")]
)
async def test_the_kubeconfig_comes_before_the_environment(
    proxy_url: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As for kubectl, also where NO_PROXY names the server."""
    monkeypatch.setenv("HTTPS_PROXY", "http://of-environment:1")
    monkeypatch.setenv("NO_PROXY", "" if proxy_url is None else "*")
    configuration = Configuration(host="https://api.example.dev")
    configuration.proxy = proxy_url
    assert (await Connection(configuration).access()).options["proxy"] == wanted
