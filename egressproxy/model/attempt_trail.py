"""AttemptTrail: who was asked for one request, how each attempt ended, and how long it took."""

from __future__ import annotations

from typing import Any, Final

from egressproxy.model.exchange import Exchange

#: The response field that tells of the attempts.
ATTEMPTS_FIELD: Final = b"X-Egress-Attempts"

#: Attempts that are shown; further ones are counted in `attempts` of the log alone.
MAX_ATTEMPTS: Final = 16
#: Under which an exchange keeps it, in `notes`.
_KEY: Final = "attempts"


class AttemptTrail:
    """The attempts of one exchange, in order. `is_shown`: the client is told of them, in X-Egress-Attempts."""

    __slots__ = ("_attempts", "is_shown")

    def __init__(self) -> None:
        self._attempts: list[tuple[str, str, float]] = []
        self.is_shown = False

    @classmethod
    def of(cls, x: Exchange) -> AttemptTrail | None:
        """That of this exchange; None where nobody has kept one."""
        found = x.notes.get(_KEY) if x.notes is not None else None
        return found if isinstance(found, cls) else None

    @classmethod
    def kept_by(cls, x: Exchange) -> AttemptTrail:
        """That of this exchange, made where there is none yet."""
        found = cls.of(x)
        if found is None:
            found = cls()
            x.keep(_KEY, found)
        return found

    def add(self, backend: str, outcome: str, seconds: float) -> None:
        """An attempt has ended: with a status (its digits), or a Reason."""
        if len(self._attempts) < MAX_ATTEMPTS:
            self._attempts.append((backend, outcome, seconds))

    @property
    def values(self) -> list[dict[str, Any]]:
        """For the access log: `backend`, `outcome` and `ms` of each."""
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
