"""Addresses and ports for tests, chosen so that test runs side by side do not meet."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

_LOWEST_PORT = 10_000
_PORTS_OF_A_BLOCK = 64
_chosen = random.SystemRandom()
_held: list[socket.socket] = []  # one per block of ports that is ours; the kernel lets go of it when this process ends


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port for a program that has to be told one: at which nobody listens, and that no other test is given.

    It is below those that the kernel hands out for outgoing connections, and of a block that this process alone takes
    from: between this call and the moment when the program listens, nobody else comes to have it.
    """
    for port in _ports:
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue  # somebody else's program
            return port
    raise AssertionError("the ports never end")


def _own_ports() -> Iterator[int]:
    """The ports of one block after the other, without end."""
    try:
        ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        ephemeral = 32_768
    if ephemeral < 2 * _LOWEST_PORT:
        ephemeral = 32_768  # nearly all ports are: no range is better than another
    starts = range(_LOWEST_PORT, ephemeral - _PORTS_OF_A_BLOCK, _PORTS_OF_A_BLOCK)
    ours: list[range] = []
    for start in _chosen.sample(starts, len(starts)):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0egressproxy-tests-ports-{start}")  # no file; known in this network namespace, as ports are
        except OSError:
            claim.close()  # another process has this block
            continue
        _held.append(claim)
        ours.append(range(start, start + _PORTS_OF_A_BLOCK))
        yield from ours[-1]
    assert ours, "other processes have claimed every block of ports"
    while True:
        for block in ours:
            yield from block


_ports = _own_ports()


def loopback_address() -> str:
    """Some address of 127.0.0.0/8 for a server of one's own, so that it may use ports like 80 and 443."""
    return f"127.{_chosen.randrange(1, 255)}.{_chosen.randrange(256)}.{_chosen.randrange(2, 255)}"


def refusing_address() -> str:
    """An address at which nobody listens, on any port but those of servers bound to every address."""
    return loopback_address()


def can_bind_low_ports() -> bool:
    """Whether this process may listen on port 80."""
    with socket.socket() as probe:
        try:
            probe.bind((loopback_address(), 80))
        except OSError:
            return False
        return True
