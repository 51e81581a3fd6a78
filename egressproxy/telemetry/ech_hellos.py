"""EchHellos: ClientHellos with Encrypted Client Hello (RFC 9849), by the name that they show in its place."""

from __future__ import annotations

from typing import Final

from egressproxy.telemetry.label_sets import OVERFLOW

#: Clients choose the names, so that there is a bound on them; whoever serves many sites by ECH has one.
MAX_NAMES: Final = 100


class EchHellos:
    """`counted` by Gateway, listener and outer name; "-" is none, OVERFLOW are all names beyond the first MAX_NAMES."""

    __slots__ = ("_names", "counted")

    def __init__(self) -> None:
        self._names: set[str] = set()
        self.counted: dict[tuple[str, str, str], int] = {}

    def count(self, gateway: str, listener: str, outer_name: str) -> None:
        """Count one."""
        if outer_name not in self._names:
            if len(self._names) < MAX_NAMES:
                self._names.add(outer_name)
            else:
                outer_name = OVERFLOW
        labels = gateway, listener, outer_name
        self.counted[labels] = self.counted.get(labels, 0) + 1

    def __repr__(self) -> str:
        return f"EchHellos({len(self._names)} names)"
