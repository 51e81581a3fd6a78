"""Addresses and ports for tests, chosen so that test runs side by side do not meet."""

from __future__ import annotations

import random
import socket

__all__ = ["can_bind_low_ports", "free_port", "loopback_address", "refusing_address"]


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def loopback_address() -> str:
    """Some address of 127.0.0.0/8 for a server of one's own, so that it may use ports like 80 and 443."""
    chosen = random.SystemRandom()
    return f"127.{chosen.randrange(1, 255)}.{chosen.randrange(256)}.{chosen.randrange(2, 255)}"


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
