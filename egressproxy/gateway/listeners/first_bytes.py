"""What a client speaks that has not said it in any other way: its first bytes tell. Pure.

Sources: RFC 9112 section 3 (request line), RFC 8446 section 5.1 (records).
"""

from __future__ import annotations

import re
from enum import Enum

from egressproxy.protocols.tls.client_hello import may_start_tls

#: The longest line that is waited for; of one that is longer the reader of HTTP says what is wrong with it.
MAX_LINE = 8192
_METHOD = re.compile(rb"[A-Z][A-Z-]{0,31}(?: |\Z)")
_REQUEST_LINE = re.compile(rb"[^\r\n]+ HTTP/1\.[0-9]\r?\Z")


class Spoken(Enum):
    """OPAQUE is everything else, HTTP/2 without TLS among it, which names no host before its settings."""

    TLS = "tls"
    HTTP = "http"
    OPAQUE = "opaque"


def spoken(said: bytes) -> Spoken | None:
    """What a client speaks that has begun with these bytes; None where it has to say more."""
    if not said:
        return None
    if may_start_tls(said):
        return Spoken.TLS
    if _METHOD.match(said) is None:
        return Spoken.OPAQUE
    line, newline, _ = said.partition(b"\n")
    if not newline:
        return Spoken.HTTP if len(said) > MAX_LINE else None
    return Spoken.HTTP if _REQUEST_LINE.match(line) else Spoken.OPAQUE
