"""Ports that tests give to programs, of which some listen only minutes later."""

import socket

import pytest

from tests.tools import ports


def test_a_port_is_given_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody who chooses here gets it again before this process has ended: the kernel sees to that."""
    held: list[socket.socket] = []
    monkeypatch.setattr(ports, "_PORTS", range(30_000, 30_048))
    monkeypatch.setattr(ports, "_taken", held)
    first, second = ports.free_ports(12), ports.free_ports(12)
    assert len({*first, *second}) == 24
    for each in held:
        each.close()
    with socket.create_server(("127.0.0.1", first[0])):
        assert first[0] not in ports.free_ports(48)
    for each in held:
        each.close()
