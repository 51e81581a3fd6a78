"""Clients with a request that waits for a person, of this process: nobody expects them to move meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import Final

__all__ = ["WAITING_CLIENTS"]

#: How many requests of each client (address and port) wait.
WAITING_CLIENTS: Final[Counter[str]] = Counter()
