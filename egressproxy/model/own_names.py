"""The names of the gateway itself: the host under which it tells clients what they may do, and its name in Via."""

from __future__ import annotations

import secrets
from typing import Final

#: It is looked up nowhere and dialled by nobody: `.internal` is for private use (ICANN, 29 July 2024).
OWN_HOST: Final = "egress.internal"


def new_pseudonym() -> bytes:
    """Unique per run: two gateways in a row of one name would look like a loop (RFC 9110 section 7.6.3). All processes
    of a run share it: a request that comes back to another of them is in a loop, too.
    """
    return b"egressproxy-" + secrets.token_hex(4).encode()
