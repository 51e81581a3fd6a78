"""The process of one worker, which executes the supervisor's messages on an inherited socket, and ends with it.

It stays small: it never imports the code that reads and compiles manifests, serves the admin API or renders metrics.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from itertools import count, islice
from typing import Any, Final

from egressproxy import __version__
from egressproxy.errors import NotAnswered
from egressproxy.filters.filter_trace import show_failures
from egressproxy.filters.shared_counters import SharedCounters
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.model.admin_requests import MAX_PAGE, HoldPage
from egressproxy.net.file_lock import FileLock
from egressproxy.net.loop import new_loop
from egressproxy.net.process import close_memory, collect_seldom
from egressproxy.processes.workers import messages
from egressproxy.processes.workers.channel import FrameChannel
from egressproxy.processes.workers.data_plane import ConfigRefused, Configuration, settle_heap
from egressproxy.processes.workers.worker import Worker, begin_key_log
from egressproxy.telemetry.counts import Counts
from egressproxy.telemetry.diagnostics import Diagnostics
from egressproxy.telemetry.event_aggregator import NOTICES_S
from egressproxy.telemetry.json_lines import take_over
from egressproxy.telemetry.metrics import Metrics

log = logging.getLogger("egressproxy")

#: Signals that workers ignore when a terminal or service manager sends them to the whole group: the supervisor decides.
IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: The time limit of other workers' answers, in seconds.
ASK_ALL_S: Final = 5.0
#: The most series in one part of a report: some milliseconds of the loop's time.
SERIES_IN_PART: Final = 200
#: Source: prctl(2), <linux/prctl.h>.
PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15


def main(descriptor: int) -> int:
    """`descriptor`: the socket to the supervisor. Returns the exit status."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
    supervisor = os.getppid()
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_NAME, b"egress-worker", 0, 0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # end with the supervisor, even with a busy loop
    if os.getppid() != supervisor:
        return 1
    close_memory()
    collect_seldom()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(sock: socket.socket) -> int:
    return await WorkerProcess(sock).run()  # it needs the running loop


class WorkerProcess:
    """Executes messages in order. Long work is a task; the supervisor waits for its answer."""

    def __init__(self, sock: socket.socket) -> None:
        self._channel = FrameChannel(sock, self._on_frame, lambda: self._end(0))
        self._metrics = Metrics(__version__)
        self._metrics.notices.wake = self._notices_soon
        self._worker: Worker | None = None
        self._diagnostics: Diagnostics | None = None
        self._sockets: dict[tuple[str, int], socket.socket] = {}
        self._built: tuple[Configuration, Snapshot] | None = None
        self._is_new = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: dict[int, asyncio.Future[Any]] = {}  # queries to all workers
        self._numbers = count(1)
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Run until the supervisor ends it or is gone; returns the exit status."""
        status = await self._status
        if self._worker is not None:
            self._worker.close()
        if self._diagnostics is not None:
            self._diagnostics.stop()
        return status

    @property
    def worker(self) -> Worker:
        """The data plane, created by Begin."""
        assert self._worker is not None, "Begin comes first"
        return self._worker

    def _end(self, status: int) -> None:
        if not self._status.done():
            self._status.set_result(status)

    def _on_frame(self, frame: bytes, descriptors: list[int]) -> None:
        match messages.decode(frame):
            case messages.NumberedRequest(number, messages.Begin() as asked):  # at once: later messages need the worker
                self._send(messages.Reply(number, self._begin(asked, *descriptors)))
            case messages.NumberedRequest(number, messages.Command.COLLECT):
                self._start(self._report(number))
            case messages.NumberedRequest(number, request):
                self._start(self._answer(number, request))
            case messages.Command.FORGET:
                self._built = None
            case messages.Listen(address, port):
                self._sockets[address, port] = socket.socket(fileno=descriptors[0])
            case messages.Command.REOPEN_ACCESS_LOG:
                self.worker.access_log.reopen()
            case messages.Command.END_CONNECTIONS:
                self.worker.gateway.end_connections()
            case messages.Command.HURRY:
                self.worker.hurry()
            case messages.Reply(number, values):
                if (question := self._asked.get(number)) is not None and not question.done():
                    question.set_result(values)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """End the process after a bug; its replacement starts with the configuration in service."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("internal error; this worker ends", exc_info=error)
            self._end(1)

    def _send(self, message: messages.Message) -> None:
        self._channel.send(messages.encode(message))

    def _begin(self, asked: messages.Begin, turn: int, tally: int, errors: int) -> ConfigRefused | None:
        origin = f"worker {asked.worker}"
        if asked.log_format == "json":
            take_over(origin, FileLock(errors))  # a lock of the log alone: a process-wide lock does not exclude threads
        self._diagnostics = Diagnostics(
            asked.log_level, origin=origin, log_format=asked.log_format, turn=FileLock(errors)
        )
        self._diagnostics.start()
        sys.stdout = sys.stderr  # what a filter prints must not stand between the lines of the access log
        if asked.debug_filters:
            show_failures()
        try:
            begin_key_log(asked.tls_key_log)
            made: Callable[..., Worker] = Worker
            if asked.filters is not None:
                from egressproxy.processes.workers.filter_worker import FilterWorker

                # The socket has the name that `Supervisor._places` gives it.
                made = partial(FilterWorker, asked.filters, lambda at: self._listening(str(at), 0))
            self._worker = made(
                asked.access_log, self._metrics, asked.pseudonym, self._listening, FileLock(turn),
                SharedCounters(tally, asked.workers, asked.worker), asked.session_key, asked.zone,
                asked.limits, asked.access_log_format,
            )  # fmt: skip
        except ConfigRefused as error:
            return error
        for descriptor in (turn, tally, errors):
            os.close(descriptor)
        self._worker.holds_of_all = self._holds_of_all
        return None

    async def _holds_of_all(self, identity: str) -> tuple[bytes, ...]:
        """The held requests of this client in all workers. Raises NotAnswered after a timeout."""
        number = next(self._numbers)
        question = self._asked[number] = asyncio.get_running_loop().create_future()
        asked = messages.Query("holds", (None, HoldPage(MAX_PAGE, identity=identity)))
        self._send(messages.NumberedRequest(number, asked))
        values = None
        try:
            with suppress(TimeoutError):
                values = await asyncio.wait_for(question, ASK_ALL_S)
        finally:
            del self._asked[number]
        if isinstance(values, tuple):
            return values
        raise NotAnswered("not all workers have answered")

    async def _answer(self, number: int, request: messages.Request) -> None:
        value: Any = None
        try:
            match request:
                case messages.Build(configuration):
                    self._built = None
                    self._built = configuration, await self.worker.prepare(configuration)
                case messages.Command.SWAP:
                    await self._swap()
                case messages.Query(name, arguments):
                    value = await self.worker.answer(name, arguments)
                case messages.Drain(timeout_s, elsewhere, idle_s):
                    value = await self.worker.drain(timeout_s, elsewhere, idle_s)
                    self._tell_notices()
        except (ConfigRefused, NotAnswered) as error:
            value = error
        except Exception as error:
            if request is messages.Command.SWAP or isinstance(request, messages.Drain):
                raise
            # Neither a configuration nor a query must end the process.
            is_reload = isinstance(request, messages.Build)
            log.exception("internal error in %s", "a reload" if is_reload else "an answer")
            value = (ConfigRefused if is_reload else NotAnswered)(f"internal error ({type(error).__name__})")
        self._send(messages.Reply(number, value))
        if isinstance(request, messages.Drain):
            self._end(0)

    async def _swap(self) -> None:
        assert self._built is not None
        (configuration, snapshot), self._built = self._built, None
        await self.worker.put_into_service(snapshot, configuration.own)
        for sock in self._sockets.values():  # of a removed listener
            sock.close()
        self._sockets.clear()
        if self._is_new:
            self._is_new = False
            settle_heap()

    def _listening(self, address: str, port: int) -> socket.socket:
        try:
            return self._sockets.pop((address, port))
        except KeyError:
            raise OSError(errno.EBADF, "the supervisor has not sent its socket") from None

    async def _report(self, number: int) -> None:
        self._tell_notices()
        counts = self.worker.metrics.gather()
        rest = iter(counts.series.items())
        counts.series = dict(islice(rest, SERIES_IN_PART))
        while True:
            following = dict(islice(rest, SERIES_IN_PART))
            self._send(messages.CountsReply(number, counts, not following))
            if not following:
                return
            counts = Counts(following)
            await asyncio.sleep(0)

    def _notices_soon(self) -> None:
        asyncio.get_running_loop().call_later(NOTICES_S, self._tell_notices)

    def _tell_notices(self) -> None:
        if notices := self._metrics.notices.take():
            self._send(messages.EventReport(tuple(notices)))
