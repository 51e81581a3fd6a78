"""ForwardListener: the address of a forward proxy, for clients."""

from __future__ import annotations

from typing import NamedTuple


class ForwardListener(NamedTuple):
    """A listener that clients use as their proxy, named `gateway/listener`. `signing_ca`: the CAs, as PEM, that sign
    the certificates in intercepted tunnels; "" without interception.
    """

    name: str
    address: str
    port: int
    is_tls: bool
    signing_ca: str
