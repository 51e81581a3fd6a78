"""The gateway of `run` without any configuration: an open forward proxy on loopback, and nowhere else.

Open and reachable from the network would be a relay for anyone, so no option changes where it listens.
"""

from __future__ import annotations

from typing import Final

from egressproxy.spec.backend import BackendSpec, Destination
from egressproxy.spec.gateway import ConfigSpec, ListenerProtocol, ListenerSpec
from egressproxy.spec.policy import Mode, PolicySpec
from egressproxy.spec.route import WeightedBackend

__all__ = ["BUILTIN", "BUILTIN_PORT", "BUILTIN_WARNING"]

#: That of Squid, which most clients' documentation names.
BUILTIN_PORT: Final = 3128

_POLICY: Final = PolicySpec(mode=Mode.OPEN)

BUILTIN: Final = ConfigSpec(
    (
        ListenerSpec(
            gateway="default/egressproxy",
            name="forward",
            addresses=("127.0.0.1",),
            port=BUILTIN_PORT,
            protocol=ListenerProtocol.FORWARD_PROXY,
            policy=_POLICY,
            default_backend=WeightedBackend(BackendSpec("-", Destination.DYNAMIC), policy=_POLICY),
        ),
    ),
    1,
)
BUILTIN_WARNING: Final = f"no configuration: every public destination is allowed, on 127.0.0.1:{BUILTIN_PORT}"
