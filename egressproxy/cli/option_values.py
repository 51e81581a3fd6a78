"""Values on the command line. Addresses are IP literals only, because a name may resolve differently when it is bound;
errors about numbers name the range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from ipaddress import ip_address, ip_interface
from typing import TypeVar

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
        raise click.BadParameter(f"{value!r} is not HOST:PORT; give one such as 127.0.0.1:15900 or [::1]:15900, or off")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise click.BadParameter(f"{port!r} is not a port; give a number from 0 to 65535 (0 lets the system choose)")
    return address(host), int(port)


_Number = TypeVar("_Number", int, float)


def whole_number(least: int, most: int) -> Callable[[object], int]:
    """Returns a reader of integers from `least` to `most`, which raises click.BadParameter."""
    return _reader(int, "a whole number", least, most, f"give one from {least:,} to {most:,}")


#: Kubernetes' suffixes of quantities, as far as they are for memory.
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "k": 10**3, "M": 10**6, "G": 10**9}
_SIZE = re.compile(r"([0-9]{1,15})(Ki|Mi|Gi|k|M|G)?", re.ASCII)


def memory_size(least: int) -> Callable[[object], int]:
    """Returns a reader of bytes with or without a unit: 0, or `least` or more. It raises click.BadParameter."""

    def read(value: object) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value))
        if match is None:
            raise click.BadParameter(f"{str(value)!r} is no size of memory; give bytes, or a size such as 512Mi or 2Gi")
        size = int(match[1]) * _UNITS.get(match[2] or "", 1)
        if 0 < size < least:
            raise click.BadParameter(f"{value} is too small; give {least >> 20}Mi or more, or 0 for no limit")
        return size

    return read


def seconds(most: int) -> Callable[[object], float]:
    """Returns a reader of times from 0 to `most` seconds, fractions included, which raises click.BadParameter."""
    remedy = f"give seconds from 0 to {most:,}, such as 10 or 2.5, without a unit"
    return _reader(float, "a number", 0, most, remedy)


def _reader(
    read: Callable[[str], _Number], what: str, least: float, most: float, remedy: str
) -> Callable[[object], _Number]:
    def bounded(value: object) -> _Number:
        try:
            number = read(str(value))
        except ValueError:
            number = None
        if number is None or math.isnan(number):
            raise click.BadParameter(f"{str(value)!r} is not {what}; {remedy}")
        if not least <= number <= most:
            raise click.BadParameter(f"{value} is too {'small' if number < least else 'large'}; {remedy}")
        return number

    return bounded
