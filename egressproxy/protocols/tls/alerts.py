"""Fatal alerts of TLS, for a client whose ClientHello was read and who is refused: it can say why, where a mere close
looks like a broken network.

In plain text, and so only before anything was encrypted: to a client that has sent a ClientHello, and has heard of its
server no more than a HelloRetryRequest. Never to one that has not begun as TLS.
Sources: RFC 8446 sections 6 and 6.2, RFC 6066 section 3.
"""

from __future__ import annotations

from typing import Final


def _fatal(description: int) -> bytes:
    """The record. Its version is that of TLS 1.2, as in every record of TLS 1.3 (RFC 8446 section 5.1)."""
    return b"\x15\x03\x03\x00\x02\x02" + bytes((description,))


#: Policy refuses the destination.
ACCESS_DENIED: Final = _fatal(49)
#: There is no such server here, or not behind this tunnel.
UNRECOGNIZED_NAME: Final = _fatal(112)
#: The ClientHello names no server (TLS 1.3 alone knows it: RFC 8446 section 9.2).
MISSING_EXTENSION: Final = _fatal(109)
