"""The name of this gateway in Via."""

from __future__ import annotations

import secrets


def new_pseudonym() -> bytes:
    """Unique per run: a name that two gateways in a row shared would look like a loop (RFC 9110 section 7.6.3).

    The processes of one run share it: a request that comes back to another of them has gone in a circle all the same.
    """
    return b"egressproxy-" + secrets.token_hex(4).encode()
