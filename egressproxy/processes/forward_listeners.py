"""ForwardListener: the address of a forward proxy, for clients."""

from __future__ import annotations

from typing import NamedTuple

from egressproxy.ir.gateway import ListenerProtocol, every_listener
from egressproxy.model.unix_socket import is_unix
from egressproxy.model.work import at_once
from egressproxy.processes.packing import unpacking


class ForwardListener(NamedTuple):
    """A listener that clients use as their proxy, named `gateway/listener`. `signing_ca`: the CAs, as PEM, that sign
    the certificates in intercepted tunnels; "" without interception.
    """

    name: str
    address: str
    port: int
    is_tls: bool
    signing_ca: str


def forward_listeners(packed: bytes) -> list[ForwardListener]:
    """Those of a packed configuration that have an address of IP: no variable names a socket file."""
    chains: dict[str, dict[str, None]] = {}
    spec = at_once(unpacking(packed))
    for listener in every_listener(spec):
        found = chains.setdefault(f"{listener.gateway}/{listener.name}", {})
        found.update(dict.fromkeys(each.chain_pem for each in listener.policy.intercepts))
    return [
        ForwardListener(name, address, listener.port, listener.tls is not None, "".join(chains[name]))
        for listener in spec.listeners
        if listener.protocol is ListenerProtocol.FORWARD_PROXY
        for name in [f"{listener.gateway}/{listener.name}"]
        for address in [each for each in listener.addresses if not is_unix(each)][:1]
    ]
