"""Resolved: the addresses of a name, with the names that led to them. A value."""

from __future__ import annotations

from collections.abc import Iterable

from egressproxy.model.authority import IPAddress


class Resolved(tuple[IPAddress, ...]):
    """Addresses in the order in which they should be tried; a tuple, which is what most readers want.

    `through`: the names on the way to them, in lower case: the name that was asked for where the search list completed
    it, and the targets of CNAME records.
    """

    through: tuple[str, ...]

    def __new__(cls, addresses: Iterable[IPAddress] = (), through: tuple[str, ...] = ()) -> Resolved:
        made = super().__new__(cls, addresses)
        made.through = through
        return made
