"""offline: a snapshot that serves no traffic, to ask what a configuration would do. Opens no socket."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address

from egressproxy.filters.catalog import Catalog
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.build import build
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.ir.gateway import ConfigIR
from egressproxy.model.unix_socket import is_unix
from egressproxy.net.timers import TimerWheel
from egressproxy.telemetry.metrics import Metrics
from egressproxy.upstream.own_sockets import OwnSockets


def offline(config: ConfigIR) -> Snapshot:
    """A snapshot built as for a process that serves; its listeners count as ours. Call it on an event loop.

    Raises FilterBuildError, ssl.SSLError or ValueError. The files of Python filters are run.
    """
    network = Network(asyncio.get_running_loop(), TimerWheel(), b"")
    snapshot = build(config, Catalog(), network, Metrics(""), None)
    network.own = OwnSockets((ip_address(address), port) for address, port in snapshot.ports if not is_unix(address))
    return snapshot
