"""Interceptions: how tunnels that are opened began, and how many certificates were minted for them."""

from __future__ import annotations

from collections import Counter


class Interceptions:
    """`results` counts the handshakes with clients, by a closed list of words: "ok", or the Reason of what went wrong.

    `minted` counts certificates; a name whose certificate is kept needs no other.
    """

    __slots__ = ("minted", "results")

    def __init__(self) -> None:
        self.results: Counter[str] = Counter()
        self.minted = 0
