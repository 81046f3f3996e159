"""Where requests may go: which addresses no receiver, registry or other server may have.

The services run where metadata services of clouds give credentials to whoever asks, and where programs of the
same machine trust loopback. The name in a URL says nothing: it resolves to any address, and to another one
later. So the address of each connection is judged.
"""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

METADATA = frozenset(
    {
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure
        "192.0.0.192",  # Oracle
        "fd00:ec2::254",  # AWS
        "fd20:ce::254",  # Google
    }
)
"""Beside those at link-local addresses, such as 169.254.169.254."""
_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_COMPATIBLE = IPv6Network("::/96")


def address_problem(address: str, *, loopback: bool = True) -> str | None:
    """Return why no request may go to an IP address, None if one may.

    loopback: whether this machine itself may be meant. Private addresses may be: those of a cluster are. An
    address within an IPv6 address counts, too.
    """
    ip = ip_address(address)
    reached = _embedded(ip) if isinstance(ip, IPv6Address) else ip
    if str(reached).partition("%")[0] in METADATA:
        return f"{address} is the address of a cloud's metadata"
    if reached.is_link_local:
        return f"{address} is a link-local address, such as those of a cloud's metadata"
    if reached.is_unspecified or reached.is_multicast or (reached.is_reserved and not reached.is_loopback):
        return f"{address} is the address of no server"
    if reached.is_loopback and not loopback:
        return f"{address} is this machine"
    return None


def _embedded(ip: IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address to which an IPv6 address leads, or the address."""
    if any(ip in network for network in _NAT64) or (ip in _COMPATIBLE and int(ip) > 0xFFFF):
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None) or ip
