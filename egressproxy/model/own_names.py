"""The names of the gateway itself: the host under which it tells clients what they may do, and its name in Via."""

from __future__ import annotations

import re
import secrets
from typing import Final

#: It is looked up nowhere and dialled by nobody: `.internal` is for private use (ICANN, 29 July 2024).
OWN_HOST: Final = "egress.internal"

#: Proxies before this one whose names go on: more would be a way to send text.
MAX_PROXIES: Final = 10

_COMMENT: Final = re.compile(rb"\([^()]*\)")
_PROXY: Final = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+/)?[0-9A-Za-z.]+[ \t]+[0-9A-Za-z._~:\[\]-]+")


def new_pseudonym() -> bytes:
    """Unique per run: two gateways in a row of one name would look like a loop (RFC 9110 section 7.6.3). All processes
    of a run share it: a request that comes back to another of them is in a loop, too.
    """
    return b"egressproxy-" + secrets.token_hex(4).encode()


def proxies_of(via: bytes) -> bytes:
    """The protocols and names of the last MAX_PROXIES proxies of a Via value, without comments and without what is none
    (RFC 9110 section 7.6.3).
    """
    elements = [element.strip(b" \t") for element in _COMMENT.sub(b"", via).split(b",")]
    return b", ".join([each for each in elements if _PROXY.fullmatch(each)][-MAX_PROXIES:])
