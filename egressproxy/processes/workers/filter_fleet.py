"""FilterFleet: serves the filters of a configuration to Envoy, in this process, in place of its listeners."""

from __future__ import annotations

import asyncio
import ssl
from time import monotonic

from egressproxy.ext_proc_server.gateways import unservable
from egressproxy.ext_proc_server.server import FilterServer
from egressproxy.processes.workers.fleet import ConfigRefused, Configuration
from egressproxy.processes.workers.worker import InProcess
from egressproxy.run_options import FilterListener, RunOptions
from egressproxy.telemetry.metrics import Metrics

__all__ = ["FilterFleet"]

#: Problems that are told of one configuration.
_MAX_TOLD = 20


class FilterFleet(InProcess):
    """See `fleet.Fleet`. It listens once the first configuration is in service."""

    def __init__(self, options: RunOptions, at: FilterListener, metrics: Metrics) -> None:
        super().__init__(options, metrics)
        self._at = at
        self._server: FilterServer | None = None

    async def start(self) -> None:
        """See `fleet.Fleet`."""
        await super().start()
        self.worker.gateway.binds_ports = False

    async def apply(self, configuration: Configuration) -> None:
        """See `fleet.Fleet`. Raises ConfigRefused, too, for rules that cannot be served to Envoy."""
        snapshot = await self.worker.prepare(configuration)
        if problems := unservable(snapshot):
            more = [f"… and {len(problems) - _MAX_TOLD} more"] if len(problems) > _MAX_TOLD else []
            told = "\n".join([*problems[:_MAX_TOLD], *more])
            raise ConfigRefused(f"filters that are served to Envoy cannot do everything that a gateway does:\n{told}")
        await self.worker.gateway.put_into_service(snapshot, configuration.own)
        if self._server is None:
            try:
                server = FilterServer(self.worker.gateway, self._at)
                server.start()
            except (OSError, ssl.SSLError, ValueError) as error:
                raise ConfigRefused(f"cannot serve filters on {self._at}: {error}") from None
            self._server = server

    async def drain(self, timeout_s: float) -> int:
        """See `fleet.Fleet`."""
        ends_at = monotonic() + timeout_s
        cut = await self._server.drain(timeout_s) if self._server is not None else 0
        await asyncio.sleep(0)
        return cut + await super().drain(max(0.0, ends_at - monotonic()))

    def hurry(self) -> None:
        """See `fleet.Fleet`."""
        if self._server is not None:
            self._server.hurry()
        super().hurry()
