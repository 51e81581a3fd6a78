"""AttemptTrail: the backends that an exchange has asked, for its client and the access log."""

from __future__ import annotations

from typing import Any, Final

from egressproxy.model.exchange import Exchange, StateSlot

#: The response field that tells of the attempts.
ATTEMPTS_FIELD: Final = b"X-Egress-Attempts"

#: The most attempts in the field; the log's `attempts` counts further ones.
MAX_ATTEMPTS: Final = 16


class AttemptTrail:
    """The attempts of an exchange: backend, outcome, duration. `is_shown`: the client gets X-Egress-Attempts."""

    __slots__ = ("_attempts", "is_shown")

    def __init__(self) -> None:
        self._attempts: list[tuple[str, str, float]] = []
        self.is_shown = False

    @classmethod
    def of(cls, exchange: Exchange) -> AttemptTrail | None:
        """The trail of this exchange, or None."""
        return exchange.state.get(_TRAIL)

    @classmethod
    def kept_by(cls, exchange: Exchange) -> AttemptTrail:
        """The trail of this exchange, created if there is none yet."""
        found = cls.of(exchange)
        if found is None:
            found = cls()
            exchange.keep(_TRAIL, found)
        return found

    def add(self, backend: str, outcome: str, seconds: float) -> None:
        """Record a finished attempt; `outcome` is a status (its digits) or a Reason."""
        if len(self._attempts) < MAX_ATTEMPTS:
            self._attempts.append((backend, outcome, seconds))

    @property
    def values(self) -> list[dict[str, Any]]:
        """The attempts for the access log: `backend`, `outcome` and `ms` of each."""
        return [
            {"backend": backend, "outcome": outcome, "ms": round(seconds * 1000, 3)}
            for backend, outcome, seconds in self._attempts
        ]

    @property
    def field(self) -> bytes:
        """The value of X-Egress-Attempts: a list of strings with parameters (RFC 9651 section 3.1)."""
        shown = (f'"{name}";outcome={outcome};ms={seconds * 1000:.0f}' for name, outcome, seconds in self._attempts)
        return ", ".join(shown).encode()

    def __len__(self) -> int:
        return len(self._attempts)


_TRAIL: Final[StateSlot[AttemptTrail]] = StateSlot("attempts")
