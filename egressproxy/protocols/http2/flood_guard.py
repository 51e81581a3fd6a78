"""FloodGuard: how many frames that cost us something, and bring nothing, a peer may send.

h2 bounds none of them: resets (CVE-2023-44487, CVE-2025-8671), pings, settings, empty frames, tiny windows. A peer that
sends more than its allowance, which grows with time and with what it lets us do, is told ENHANCE_YOUR_CALM.
"""

from __future__ import annotations

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

#: Frames at once, and in a second on the average.
BURST = 1000.0
PER_SECOND = 100.0
#: What each frame that we send lets a peer send: it answers each with a window, or two.
PER_FRAME_SENT = 2.0

_NAMES = {
    DATA: "empty DATA frames",
    HEADERS: "empty HEADERS frames",
    PRIORITY: "PRIORITY frames",
    RST_STREAM: "resets",
    SETTINGS: "SETTINGS frames",
    PING: "PING frames",
    WINDOW_UPDATE: "WINDOW_UPDATE frames",
    CONTINUATION: "CONTINUATION frames",
}


class Flood(Exception):
    """A peer has used its allowance up."""


class FloodGuard:
    """One for each connection. `now` is monotonic seconds."""

    __slots__ = ("_at", "_left")

    def __init__(self, now: float) -> None:
        self._left = BURST
        self._at = now

    def frame_came(self, kind: int, size: int, now: float) -> None:
        """A frame of this type, with `size` bytes behind its header, has come. Raises Flood."""
        if size and kind in (DATA, HEADERS):
            return
        self._left -= 1.0
        if self._left >= 0.0:
            return
        self._left = min(self._left + (now - self._at) * PER_SECOND, BURST)
        self._at = now
        if self._left < 0.0:
            raise Flood(f"too many {_NAMES.get(kind, 'frames of unknown types')}")

    def stream_failed(self, now: float) -> None:
        """We had to reset a stream, since the peer broke a rule on it. Raises Flood."""
        self.frame_came(RST_STREAM, 0, now)

    def frame_sent(self) -> None:
        """We have sent a frame with content."""
        if self._left < BURST:
            self._left += PER_FRAME_SENT
