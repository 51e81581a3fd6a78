"""The gateway of `run` without any configuration: an open forward proxy on loopback, and nowhere else.

Open and reachable from the network would be a relay for anyone, so no option changes where it listens.
"""

from __future__ import annotations

from typing import Final

from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.gateway import ConfigIR, ListenerIR, ListenerProtocol
from egressproxy.ir.policy import Mode, PolicyIR
from egressproxy.ir.route import WeightedBackend

__all__ = ["BUILTIN", "BUILTIN_PORT", "BUILTIN_WARNING"]

#: That of Squid, which most clients' documentation names.
BUILTIN_PORT: Final = 3128

_POLICY: Final = PolicyIR(mode=Mode.OPEN)

BUILTIN: Final = ConfigIR(
    (
        ListenerIR(
            gateway="default/egressproxy",
            name="forward",
            addresses=("127.0.0.1",),
            port=BUILTIN_PORT,
            protocol=ListenerProtocol.FORWARD_PROXY,
            policy=_POLICY,
            default_backend=WeightedBackend(BackendIR("-", Destination.DYNAMIC), policy=_POLICY),
        ),
    ),
    1,
)
BUILTIN_WARNING: Final = f"no configuration: every public destination is allowed, on 127.0.0.1:{BUILTIN_PORT}"
