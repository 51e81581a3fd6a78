"""ForwardListener: where clients find their proxy."""

from __future__ import annotations

from typing import NamedTuple


class ForwardListener(NamedTuple):
    """A listener that clients use as their proxy, by `gateway/listener`. `signing_ca`: the CAs that sign what clients
    are shown in tunnels that are opened, PEM, "" where none are.
    """

    name: str
    address: str
    port: int
    is_tls: bool
    signing_ca: str
