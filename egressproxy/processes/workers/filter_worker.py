"""FilterWorker: a Worker that serves the filters of a configuration to Envoy, in place of the listeners."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection
from time import monotonic
from typing import Any

from egressproxy.envoy.ext_proc_server.gateways import unservable
from egressproxy.envoy.ext_proc_server.server import FilterServer
from egressproxy.envoy.ext_proc_server.tls_files import TlsFiles
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.processes.workers.data_plane import ConfigRefused, Configuration, bind_filters, process_limits
from egressproxy.processes.workers.worker import InProcess, Worker
from egressproxy.run_options import FilterListener, RunOptions
from egressproxy.telemetry.metrics import Metrics

#: Problems that are told of one configuration.
_MAX_TOLD = 20


class FilterWorker(Worker):
    """It listens once the first configuration is in service."""

    def __init__(
        self, at: FilterListener, listen: Callable[[FilterListener], socket.socket], *arguments: Any, **named: Any
    ) -> None:
        """`listen` binds `at`, or raises OSError; the rest is for Worker. Raises ConfigRefused, for TLS files, too."""
        super().__init__(*arguments, **named)
        try:
            tls = TlsFiles.of(at)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigRefused(f"cannot serve filters on {at}: {error}") from None
        self._at = at
        self._listen = listen
        self._has_begun = False
        self.gateway.binds_ports = False
        self._server = FilterServer(self.gateway, at, tls)
        self.metrics.add_counter(
            "egress_envoy_misconfigured_requests",
            "Requests that serve-filters has refused because Envoy is not configured as filters need it.",
            lambda: self._server.misconfigured,
        )

    async def prepare(self, asked: Configuration) -> Snapshot:
        snapshot = await super().prepare(asked)
        if problems := unservable(snapshot):
            more = [f"… and {len(problems) - _MAX_TOLD} more"] if len(problems) > _MAX_TOLD else []
            listed = "\n".join([*problems[:_MAX_TOLD], *more])
            raise ConfigRefused(f"filters that are served to Envoy cannot do everything that a gateway does:\n{listed}")
        return snapshot

    async def put_into_service(self, snapshot: Snapshot, own: tuple[tuple[str, int], ...]) -> None:
        await super().put_into_service(snapshot, own)
        if not self._has_begun:
            try:
                sock = self._listen(self._at)
            except OSError as error:
                raise ConfigRefused(f"cannot serve filters on {self._at}: {error}") from None
            self._has_begun = True
            self._server.start(sock)

    async def drain(self, timeout_s: float, elsewhere: Collection[tuple[str, int]] = (), idle_s: float = 0.0) -> int:
        ends_at = monotonic() + timeout_s
        if self.gateway.snapshot is not None:
            self.gateway.snapshot.filters.drain()
        cut = await self._server.drain(timeout_s)
        await asyncio.sleep(0)
        return cut + await super().drain(max(0.0, ends_at - monotonic()), elsewhere, idle_s)

    def hurry(self) -> None:
        self._server.hurry()
        super().hurry()


class FilterFleet(InProcess):
    """Serves the filters of a configuration to Envoy, in this process."""

    def __init__(self, options: RunOptions, at: FilterListener, metrics: Metrics) -> None:
        super().__init__(options, metrics)
        self._at = at

    def _made(self) -> Worker:
        options = self._options
        return FilterWorker(
            self._at, bind_filters, options.access_log, self._metrics, zone=options.zone,
            limits=process_limits(options), access_log_format=options.access_log_format,
        )  # fmt: skip
