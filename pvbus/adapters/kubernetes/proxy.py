"""Which proxy a connection uses: `proxy-url` of the kubeconfig, else the environment's, as kubectl.

Source: Go 1.24, golang.org/x/net/http/httpproxy: https_proxy and no_proxy in capital or small letters, the
first that is set; hosts of this machine never take a proxy.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def proxy_of_environment(url: str, environment: Mapping[str, str]) -> str:
    """Return the proxy for a URL, "" for none."""
    scheme = urlsplit(url).scheme
    proxy = _variable(environment, f"{scheme}_proxy")
    if not proxy or _is_excepted(url, _variable(environment, "no_proxy")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name.upper()) or environment.get(name) or ""


def _is_excepted(url: str, exceptions: str) -> bool:
    parts = urlsplit(url)
    host, port = (parts.hostname or "").rstrip("."), parts.port or (443 if parts.scheme == "https" else 80)
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(each.strip().lower(), host, port, address) for each in exceptions.split(","))


def _matches(pattern: str, host: str, port: int, address: "_Address | None") -> bool:
    """Return whether an entry of NO_PROXY means a host: `*`, an address, a network, or a domain."""
    if pattern in ("", "*"):
        return pattern == "*"
    if "/" in pattern:
        try:
            return address is not None and address in ipaddress.ip_network(pattern, strict=False)
        except ValueError:
            return False
    name, wanted_port = _split_port(pattern)
    if wanted_port and wanted_port != str(port):
        return False
    if (named := _address(name)) is not None or address is not None:
        return named is not None and named == address
    domain = name.removeprefix("*")
    if domain.startswith("."):
        return host.endswith(domain)
    return host == domain or host.endswith(f".{domain}")


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _split_port(pattern: str) -> tuple[str, str]:
    """Return name and port of `name:port`, `[address]:port` or a name alone."""
    if pattern.startswith("["):
        name, _, rest = pattern[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = pattern.rpartition(":")
    return (name, port) if name and ":" not in name else (pattern, "")


def _address(text: str) -> _Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
