"""Worker: the data plane of one process: its gateway, what it counts and what it logs. With one worker it lives in the
process that was started; with several, each has a process of its own (`process`).
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from egressproxy.filters.catalog import Catalog
from egressproxy.filters.shared_counters import SharedCounters
from egressproxy.gateway.backends.connector import UPSTREAM_LIMITS
from egressproxy.gateway.exchange.recent_decisions import decisions
from egressproxy.gateway.explain.decision_diff import DENIED, flips
from egressproxy.gateway.explain.explain import explain
from egressproxy.gateway.explain.hypothetical_request import HypotheticalRequest, HypotheticalRequestError
from egressproxy.gateway.gateway import GatewayServer
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.ir.packing import unpacking
from egressproxy.model.secret import SecretBytes
from egressproxy.net.cooperative import in_slices
from egressproxy.net.listening import BindError
from egressproxy.net.listening import bind as bind_socket
from egressproxy.processes.workers.fleet import ConfigRefused, Configuration, Guarded, NotAnswered, NotBound
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http1.self_test import Misread, check_codec
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.loop_lag import LAG_BUCKETS_S, LoopLag
from egressproxy.telemetry.metrics import Counts, Metrics
from egressproxy.telemetry.process_figures import ProcessFigures, process_figures

__all__ = ["REFUSALS", "InProcess", "Worker", "access_log_failed"]

#: What makes a configuration unusable although it was compiled. FilterBuildError is a ValueError.
REFUSALS = (BindError, ssl.SSLError, ValueError, OSError)


#: Requests that a guarded reload names.
MAX_SHOWN = 20


class Worker:
    """Made on the event loop. Raises OSError where the access log cannot be opened, Misread where this Python reads
    messages otherwise than they are meant.
    """

    def __init__(
        self,
        access_log: str | None,
        metrics: Metrics,
        pseudonym: bytes = b"",
        bind: Callable[[str, int], socket.socket] = bind_socket,
        turn: AbstractContextManager[object] | None = None,
        tally: SharedCounters | None = None,
        session_key: bytes = b"",
    ) -> None:
        check_codec(HeadLimits(), UPSTREAM_LIMITS)
        self.access_log = AccessLog(access_log, turn=turn)
        self.metrics = metrics
        self.gateway = GatewayServer(
            Catalog(counters=tally), self.metrics, self.access_log, pseudonym, bind, session_key
        )
        lag = LoopLag()
        self.gateway.wheel.watch = lag.tick
        self.metrics.add_counter(
            "egress_access_log_dropped_total", "Access log lines that could not be written.",
            lambda: self.access_log.dropped,
        )  # fmt: skip
        self.metrics.add_counter(
            "egress_access_log_suppressed_total", "Access log lines of denials that were left out in a flood.",
            lambda: self.access_log.suppressed,
        )  # fmt: skip
        self.metrics.add_histogram(
            "egress_event_loop_lag_seconds", "How late the event loop was, ten times a second.",
            LAG_BUCKETS_S, lag.counted,
        )  # fmt: skip
        self.metrics.add_peak(
            "egress_event_loop_lag_max_seconds", "Longest delay since the last scrape.", lag.take_worst
        )

    async def prepare(self, octets: bytes, generation: int) -> Snapshot:
        """Build a configuration (see `fleet.Configuration`) beside what is in service. Raises one of REFUSALS."""
        gc.collect()  # what is garbage now would be frozen with the rest, for good
        gc.disable()  # a collection over the many new objects would stop the loop
        try:
            spec = replace(await in_slices(unpacking(octets)), generation=generation)
            return await self.gateway.prepare(spec)
        finally:
            gc.freeze()
            gc.enable()

    async def guard(self, fresh: Snapshot) -> None:
        """Raises Guarded where a recent denial would be none under this configuration."""
        before = self.gateway.snapshot
        if before is None:
            return
        denied = (each for each in decisions(self.gateway.conductor.accounting.recent) if each.reason in DENIED)
        found = await in_slices(flips(before, fresh, denied))
        opened = [str(flip) for flip in found if flip.opens]
        if opened:
            more = [f"… and {len(opened) - MAX_SHOWN} more"] if len(opened) > MAX_SHOWN else []
            what = "a request that was" if len(opened) == 1 else f"{len(opened)} requests that were"
            raise Guarded("\n".join([f"it would allow {what} denied lately:", *opened[:MAX_SHOWN], *more]))

    async def explain(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        """See `fleet.Fleet`."""
        if self.gateway.snapshot is None:
            raise NotAnswered("nothing is in service yet")
        try:
            found = await explain(self.gateway.snapshot, HypotheticalRequest.of(pairs))
        except HypotheticalRequestError as error:
            raise NotAnswered(str(error)) from None
        return json.dumps(found).encode()

    async def decisions(self) -> bytes:
        """See `fleet.Fleet`."""
        found = tuple(self.gateway.conductor.accounting.recent)
        return await asyncio.to_thread(lambda: json.dumps([each._asdict() for each in decisions(found)]).encode())

    def close(self) -> None:
        self.access_log.close()


class InProcess:
    """The fleet of one: a worker in this process."""

    def __init__(self, access_log: str | None, metrics: Metrics, session_key: bytes = b"") -> None:
        self._target = access_log
        self._session_key = SecretBytes(session_key)
        self._metrics = metrics
        metrics.add_gauge("egress_workers", "Worker processes that serve.", lambda: 1)
        metrics.add_counter("egress_worker_restarts", "Workers that had to be replaced.", lambda: 0)
        self._worker: Worker | None = None

    @property
    def worker(self) -> Worker:
        assert self._worker is not None, "not started"
        return self._worker

    async def start(self) -> None:
        try:
            self._worker = Worker(self._target, self._metrics, session_key=self._session_key.reveal())
        except OSError as error:
            raise ConfigRefused(access_log_failed(self._target, error)) from None
        except Misread as error:
            raise ConfigRefused(str(error)) from None

    async def apply(self, configuration: Configuration) -> None:
        try:
            snapshot = await self.worker.prepare(configuration.octets, configuration.generation)
            if configuration.is_guarded:
                await self.worker.guard(snapshot)
            await self.worker.gateway.put_into_service(snapshot, configuration.own)
        except BindError as error:
            raise NotBound(str(error), error.listeners) from None
        except REFUSALS as error:
            raise ConfigRefused(str(error)) from None

    def announcement(self) -> str:
        return ""

    def why_not_ready(self) -> str:
        return ""

    def reopen_access_log(self) -> None:
        self.worker.access_log.reopen()

    async def explain(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        return await self.worker.explain(pairs)

    async def decisions(self) -> list[bytes]:
        return [await self.worker.decisions()]

    async def counts(self) -> Counts:
        return self._metrics.gather()

    def figures(self) -> list[ProcessFigures]:
        return [process_figures(1, os.getpid())]

    async def drain(self, timeout_s: float) -> int:
        return await self.worker.gateway.drain(timeout_s)

    def hurry(self) -> None:
        self.worker.gateway.hurry()

    async def stop(self) -> None:
        if self._worker is not None:
            self._worker.close()


def access_log_failed(target: str | None, error: OSError) -> str:
    remedy = "--access-log takes a file in a folder that is there, - for standard output, or off"
    return f"access log {target}: {error.strerror} ({remedy})"
