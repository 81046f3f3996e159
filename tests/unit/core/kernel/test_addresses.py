"""Which addresses requests may go to."""

import pytest

from pvbus.core.kernel.addresses import address_problem


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("169.254.169.254", "link-local"),
        ("169.254.170.2", "link-local"),
        ("::ffff:169.254.169.254", "link-local"),
        ("::169.254.169.254", "link-local"),
        ("64:ff9b::169.254.169.254", "link-local"),
        ("64:ff9b::a9fe:a9fe", "link-local"),
        ("2002:a9fe:a9fe::1", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fd00:ec2::254", "metadata"),
        ("fd20:ce::254", "metadata"),
        ("100.100.100.200", "metadata"),
        ("::ffff:100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("0.0.0.0", "no server"),
        ("::", "no server"),
        ("::ffff:0.0.0.0", "no server"),
        ("224.0.0.1", "no server"),
        ("ff02::1", "no server"),
        ("255.255.255.255", "no server"),
        ("127.0.0.1", "this machine"),
        ("127.9.9.9", "this machine"),
        ("::1", "this machine"),
        ("::ffff:127.0.0.1", "this machine"),
        ("64:ff9b::127.0.0.1", "this machine"),
        ("10.0.0.1", None),
        ("192.168.1.1", None),
        ("fd12::1", None),
        ("::ffff:10.0.0.1", None),
        ("64:ff9b::8.8.8.8", None),
        ("8.8.8.8", None),
        ("2606:4700::1111", None),
    ],
)
def test_addresses_that_no_server_may_have_are_refused(address: str, problem: str | None) -> None:
    found = address_problem(address, loopback=False)
    assert found is None if problem is None else found is not None and problem in found


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_this_machine_may_be_allowed(address: str) -> None:
    assert address_problem(address) is None
