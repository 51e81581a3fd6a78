"""Addresses on the command line: IP literals only, because a name may resolve differently when it is bound."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface

import click


def address(value: str) -> str:
    """An IP address, IPv6 with or without brackets, as its canonical text. Raises click.BadParameter."""
    bare = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    try:
        return str(ip_address(bare))
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not an IP address; give one such as 127.0.0.1, 0.0.0.0 or ::1"
        ) from None


def address_or_network(value: str) -> str:
    """An IP address, or a network such as 127.0.1.0/24, as its canonical text. Raises click.BadParameter."""
    if "/" not in value:
        return address(value)
    try:
        given = ip_interface(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a network; give one such as 127.0.1.0/24") from None
    if int(given.ip) != int(given.network.network_address):
        raise click.BadParameter(
            f"{value!r} has host bits set; give the network {given.network}, or the address without a prefix length"
        )
    return str(given.network)


def address_and_port(value: str) -> tuple[str, int] | None:
    """Host and port of `HOST:PORT` or `[HOST6]:PORT`; None for `off`. Raises click.BadParameter."""
    if value == "off":
        return None
    host, colon, port = value.rpartition(":")
    if not colon or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise click.BadParameter(f"{value!r} is not HOST:PORT; give one such as 127.0.0.1:15000 or [::1]:15000, or off")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise click.BadParameter(f"{port!r} is not a port; give a number from 0 to 65535 (0 lets the system choose)")
    return address(host), int(port)
