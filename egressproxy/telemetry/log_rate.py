"""LogRate: the bound of log lines that traffic can cause."""

from __future__ import annotations

from typing import Final

#: The burst of log lines, and the seconds after which one more is allowed.
LINES: Final = 20
LINE_S: Final = 1.0


class LogRate:
    """A token bucket that counts the lines that it leaves out."""

    __slots__ = ("_at", "_left_out", "_lines")

    def __init__(self) -> None:
        self._lines = float(LINES)
        self._at = 0.0
        self._left_out = 0

    def admit(self, now: float) -> int | None:
        """The number of lines left out before this one; None: leave this one out, too. `now`: seconds."""
        self._lines = min(float(LINES), self._lines + max(0.0, now - self._at) / LINE_S)
        self._at = now
        if self._lines < 1.0:
            self._left_out += 1
            return None
        self._lines -= 1.0
        left_out, self._left_out = self._left_out, 0
        return left_out
