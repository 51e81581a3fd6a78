"""The gateway of `run` without any configuration: an open forward proxy on loopback, and nowhere else.

Open and reachable from the network would be a relay for anyone, so no option changes the address where it listens.
"""

from __future__ import annotations

from typing import Final

from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.gateway import ConfigIR, ListenerIR, ListenerProtocol
from egressproxy.ir.policy import AddressesIR, Mode, PolicyIR
from egressproxy.ir.route import WeightedBackend

#: Without a configuration there is no policy that could allow an address.
_REMEDY: Final = (
    "let the client go there without the gateway (NO_PROXY, or --no-proxy of `run -- CMD`), or serve a configuration"
    " that allows it: `egressproxy init` writes one"
)
_POLICY: Final = PolicyIR(mode=Mode.OPEN, addresses=AddressesIR(remedy=_REMEDY))


def open_proxy(port: int) -> ConfigIR:
    """The configuration of an open proxy on this port."""
    listener = ListenerIR(
        gateway="default/egressproxy",
        name="forward",
        addresses=("127.0.0.1",),
        port=port,
        protocol=ListenerProtocol.FORWARD_PROXY,
        policy=_POLICY,
        default_backend=WeightedBackend(BackendIR("-", Destination.DYNAMIC), policy=_POLICY),
    )
    return ConfigIR((listener,), 1)


def open_proxy_warning(port: int) -> str:
    return f"no configuration: every public destination is allowed, on 127.0.0.1:{port}"
