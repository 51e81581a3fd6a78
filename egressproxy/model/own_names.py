"""The names of the gateway itself: the host of its self-service pages for clients, and its name in Via."""

from __future__ import annotations

import re
import secrets
from typing import Final

#: The gateway never resolves or dials this name: `.internal` is for private use (ICANN, 29 July 2024).
OWN_HOST: Final = "egress.internal"

#: The most earlier proxies in the forwarded Via; more would be a covert channel.
MAX_PROXIES: Final = 10

_COMMENT: Final = re.compile(rb"\([^()]*\)")
_PROXY: Final = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+/)?[0-9A-Za-z.]+[ \t]+[0-9A-Za-z._~:\[\]-]+")


def new_pseudonym() -> bytes:
    """A pseudonym for Via, unique per run: two gateways of one name in a chain would look like a loop (RFC 9110 section
    7.6.3). All processes of a run share it, so a request that returns to another worker is a loop, too.
    """
    return b"egressproxy-" + secrets.token_hex(4).encode()


def proxies_of(via: bytes) -> bytes:
    """The protocols and names of the last MAX_PROXIES proxies of a Via value (RFC 9110 section 7.6.3), without comments
    and invalid entries.
    """
    elements = [element.strip(b" \t") for element in _COMMENT.sub(b"", via).split(b",")]
    return b", ".join([each for each in elements if _PROXY.fullmatch(each)][-MAX_PROXIES:])
