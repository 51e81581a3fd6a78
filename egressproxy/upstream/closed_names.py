"""ClosedNames: the names that no allowed name may lead to by CNAME records. Pure.

A `deny` means the place, not the spelling: whoever owns the DNS of an allowed name could point it at a denied one.
Source: EgressPolicy `destinations.deny[].hostnames`; RFC 1034 section 3.6.2 (CNAME).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary

from egressproxy.ir.policy import AddressesIR, NameDenial, entry_text
from egressproxy.upstream.closed_ranges import Closing


class ClosedNames:
    """The compiled entries. A look-up costs one probe for each label."""

    __slots__ = ("_exact", "_suffixes")

    def __init__(self, denials: Iterable[NameDenial]) -> None:
        self._exact: dict[str, list[tuple[str, NameDenial]]] = {}
        self._suffixes: dict[str, list[tuple[str, NameDenial]]] = {}  # by what follows `*.`; "" is every name
        for denial in denials:
            for pattern in denial.hostnames:
                is_exact = not pattern.startswith("*")
                table, key = (self._exact, pattern) if is_exact else (self._suffixes, pattern[2:])
                table.setdefault(key, []).append((pattern, denial))

    def closing(self, names: Iterable[str], port: int) -> Closing | None:
        """Why one of these names (lower case, without trailing dot) is closed on this port; None if none is."""
        for name in names:
            for pattern, denial in self._matching(name):
                if not denial.ports or port in denial.ports:
                    policy = denial.policy
                    return Closing(
                        policy,
                        f"it leads through a name that is denied by policy {policy}",
                        "remove or narrow the entry of that name in destinations.deny of that policy",
                        f"leads through {name}, denied by {entry_text((pattern,), (), denial.ports)} in "
                        f"destinations.deny of EgressPolicy {policy}",
                        pattern,
                    )
        return None

    def _matching(self, name: str) -> Iterator[tuple[str, NameDenial]]:
        """The entries whose pattern matches, the most specific first."""
        yield from self._exact.get(name, ())
        suffix = name
        while suffix:
            suffix = suffix.partition(".")[2]
            yield from self._suffixes.get(suffix, ())


#: Many backends have the same rules, and the lists may be long.
_COMPILED: WeakKeyDictionary[AddressesIR, tuple[ClosedNames, ClosedNames]] = WeakKeyDictionary()


def names_closed_by(spec: AddressesIR) -> tuple[ClosedNames, ClosedNames]:
    """The names that these rules close, and those that they only report. Equal rules share them."""
    found = _COMPILED.get(spec)
    if found is None:
        closed = ClosedNames(denial for denial in spec.denied_names if not denial.reports)
        found = _COMPILED[spec] = closed, ClosedNames(denial for denial in spec.denied_names if denial.reports)
    return found
