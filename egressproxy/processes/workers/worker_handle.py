"""WorkerHandle: the supervisor's view of one worker process: start, requests and replies, end."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any, Final

from egressproxy import build
from egressproxy.errors import NotAnswered
from egressproxy.net.file_lock import memory_file
from egressproxy.net.process import child_command, ending
from egressproxy.processes.workers import messages
from egressproxy.processes.workers.channel import FrameChannel
from egressproxy.processes.workers.data_plane import Configuration
from egressproxy.telemetry.counts import Counts, ProcessFigures, process_figures
from egressproxy.telemetry.event_aggregator import Notice

log = logging.getLogger("egressproxy")

#: The time limits of replies, in seconds, on a busy machine. A slower worker is replaced.
BEGIN_S: Final = 60.0
BUILD_S: Final = 120.0
SWAP_S: Final = 10.0
#: The time limit of a query of the admin API: longer than a DNS lookup.
ANSWER_S: Final = 30.0
#: From the end of its channel to the end of its process.
END_S: Final = 3.0

#: Signals that must not end a starting process, which ignores them as soon as it can.
HELD_BACK: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: The signals that faulthandler reports.
CRASHES: Final = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT))
#: The most calls that are shown, and bytes that are read, of faulthandler's output.
MAX_CALLS: Final = 8
MAX_BYTES: Final = 16 * 1024
#: A line of its traceback, in every version of Python.
_CALL: Final = re.compile(r'^  File "([^"\n]*)", line (\d+|\?\?\?) in (\S+)', re.MULTILINE)

NO_SOCKETS: Final[Mapping[tuple[str, int], socket.socket]] = {}


class WorkerEnded(Exception):
    """The process ended, or was killed, before it answered. The message begins with the process."""


class WorkerSilent(WorkerEnded):
    """The process was killed for a missing answer."""


class WorkerHandle:
    """Starts the process. Raises OSError if that fails. `has_ended` is set at the end of the process.

    `on_notices` gets the notices for Events, `on_question` the queries to all workers.
    """

    def __init__(
        self,
        number: int,
        on_notices: Callable[[Iterable[Notice]], None],
        on_question: Callable[[WorkerHandle, int, messages.Query], None] = lambda *_: None,
    ) -> None:
        self.number = number
        self._on_question = on_question
        self._on_notices = on_notices
        self.has_ended = asyncio.Event()
        self.configuration: Configuration | None = None  # in service
        self.built: Configuration | None = None  # built, or in service
        self.counts = Counts()
        self.answered_at = self.started_at = time.monotonic()
        self.latest_figures = ProcessFigures(number)
        self._parts: dict[int, Counts] = {}
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # pending replies by call number
        self._directing = asyncio.Lock()
        self._has_begun = False
        self._reaper: asyncio.Task[None] | None = None
        self._crash = ""
        self._crash_file = memory_file("egressproxy-crash")  # until the process has ended
        with ExitStack() as undone:
            undone.callback(os.close, self._crash_file)
            ours, theirs = map(undone.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
            self._process = _start(theirs.fileno(), self._crash_file)
            undone.pop_all()
            theirs.close()
        self._channel = FrameChannel(ours, self._on_frame, self._on_end)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        """Whether the process is ending or has ended."""
        return self._channel.has_ended

    @property
    def can_count(self) -> bool:
        """Whether the process answers at once."""
        return self._has_begun and not self.is_gone

    @property
    def is_serving(self) -> bool:
        """Whether the process runs with a configuration in service."""
        return self.configuration is not None and not self.is_gone

    def __str__(self) -> str:
        return f"worker {self.number} (process {self.pid})"

    # --- what it is asked ------------------------------------------------------------------------------------------
    async def begin(self, asked: messages.Begin, descriptors: Sequence[int]) -> None:
        """Start the worker. Raises ConfigRefused if it cannot open the access log or its Python misreads HTTP, and
        WorkerEnded.
        """
        await self._direct(asked, BEGIN_S, descriptors)
        self._has_begun = True

    async def build(self, configuration: Configuration) -> None:
        """Build a configuration. Raises ConfigRefused, WorkerEnded."""
        await self._direct(messages.Build(configuration), BUILD_S)
        self.built = configuration

    async def swap(self, configuration: Configuration, sockets: Mapping[tuple[str, int], socket.socket]) -> None:
        """Serve the built configuration, with these additional sockets. Raises WorkerEnded, or OSError without a
        change.
        """
        await self._direct(messages.Command.SWAP, SWAP_S, sockets=sockets)
        self.configuration = configuration

    async def drain(self, asked: messages.Drain) -> int:
        """Drain; returns the number of connections cut. Raises WorkerEnded."""
        cut: int = await self._direct(asked, asked.timeout_s + SWAP_S)
        return cut

    async def collect(self) -> None:
        """Update `counts`; returns also if the worker ends."""
        with suppress(WorkerEnded):
            await self._ask(messages.Command.COLLECT)

    async def answer(self, question: messages.Query) -> Any:
        """The answer to a query. Raises NotAnswered, also if the worker ends or is too slow."""
        try:
            return await asyncio.wait_for(self._ask(question), ANSWER_S)
        except TimeoutError:
            raise NotAnswered(f"{self} did not answer within {ANSWER_S:g} s") from None
        except WorkerEnded as error:
            raise NotAnswered(str(error)) from None

    def tell(self, message: messages.Message) -> None:
        """Send a message that has no reply. On a channel that has ended: nothing."""
        self._channel.send(messages.encode(message))

    def figures(self) -> ProcessFigures:
        if not self.has_ended.is_set():
            with suppress(OSError, IndexError):  # the process is just ending
                self.latest_figures = process_figures(self.number, self.pid)
        return self.latest_figures

    # --- its end ---------------------------------------------------------------------------------------------------
    def end(self) -> None:
        """Close the channel, which ends the process, and kill a process that does not end."""
        self._channel.close()
        self._on_end()

    def look(self) -> None:
        """Check for the end of the process, whose children may still hold the channel open."""
        if self._process.poll() is not None:
            self.end()

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def how_it_ended(self) -> str:
        """The end of the process as a predicate: "ended with status 1", "was ended by SIGKILL", …"""
        status = self._process.returncode
        if status is None:
            return "has not ended"
        return f"{ending(status)} ({self._crash})" if self._crash else ending(status)

    # --- what it answers -------------------------------------------------------------------------------------------
    async def _direct(
        self,
        request: messages.Request,
        timeout_s: float,
        descriptors: Sequence[int] = (),
        sockets: Mapping[tuple[str, int], socket.socket] = NO_SOCKETS,
    ) -> Any:
        """Send one request at a time. Raises the worker's refusal, and WorkerEnded, after killing it if needed."""
        async with self._directing:
            for (address, port), sock in sockets.items():
                self._channel.send(messages.encode(messages.Listen(address, port)), [sock.fileno()])
            try:
                return await asyncio.wait_for(self._ask(request, descriptors), timeout_s)
            except TimeoutError:
                self.kill()
                raise WorkerSilent(f"{self} did not answer within {timeout_s:g} s and is ended") from None

    async def _ask(self, request: messages.Request, descriptors: Sequence[int] = ()) -> Any:
        """The value of the reply. Raises the worker's refusal, or WorkerEnded."""
        number = next(self._numbers)
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._channel.send(messages.encode(messages.NumberedRequest(number, request)), descriptors)
            if self.has_ended.is_set():
                raise self._ended()
            return await reply
        finally:
            del self._waiting[number]

    def _on_frame(self, frame: bytes, _descriptors: Iterable[int]) -> None:
        match messages.decode(frame):
            case messages.Reply(number, value):
                self._replied(number, value)
            case messages.CountsReply() as counted:
                self._counted(counted)
            case messages.EventReport(notices):
                self._on_notices(notices)
            case messages.NumberedRequest(number, messages.Query() as question):
                self._on_question(self, number, question)

    def _replied(self, number: int, value: object) -> None:
        reply = self._waiting.get(number)
        if reply is None or reply.done():
            return
        if isinstance(value, Exception):
            reply.set_exception(value)
        else:
            reply.set_result(value)

    def _counted(self, message: messages.CountsReply) -> None:
        self.answered_at = time.monotonic()
        whole = self._parts.get(message.number)
        if whole is None:
            whole = self._parts[message.number] = message.part
        else:
            whole.series.update(message.part.series)
        if message.is_last:
            del self._parts[message.number]
            whole.keep_peaks(self.counts)
            self.counts = whole
            self._replied(message.number, None)

    def _on_end(self) -> None:
        if self._reaper is None:
            self._reaper = asyncio.get_running_loop().create_task(self._reap())

    async def _reap(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._wait)
        self._crash = crash(self._process.returncode, self._crash_file)
        os.close(self._crash_file)
        self.has_ended.set()
        for number in self._waiting:
            self._replied(number, self._ended())

    def _ended(self) -> WorkerEnded:
        return WorkerEnded(f"{self} {self.how_it_ended()}")

    def _wait(self) -> None:
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _start(descriptor: int, crash_file: int) -> subprocess.Popen[bytes]:
    main = f"from egressproxy.processes.workers.process import main; sys.exit(main({descriptor}))"
    command = child_command(f"{watching(crash_file)}; {main}")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        return subprocess.Popen(  # noqa: S603 (this program)
            command, stdin=subprocess.DEVNULL, pass_fds=(descriptor, crash_file)
        )  # fmt: skip
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def watching(descriptor: int) -> str:
    """The first statements of a new process, which write crashes to this descriptor."""
    return f"import faulthandler; faulthandler.enable({descriptor}, all_threads=False)"


def crash(status: int, descriptor: int) -> str:
    """The crash report with the remedy; "" for another end. `status` is that of `subprocess.Popen`.

    A process that crashes in compiled code raises and logs nothing. The module faulthandler writes its stack (files,
    functions and lines, no values) to a file in memory, so that it becomes part of one log message. The stack lacks
    compiled functions, which the latest function has called.
    """
    if -status not in CRASHES:
        return ""
    found = _CALL.findall(os.pread(descriptor, MAX_BYTES, 0).decode(errors="replace"))[:MAX_CALLS]
    calls = ", ".join(f"{os.path.basename(file)}:{line} in {function}" for file, line, function in found)
    where = f"; the latest calls in Python: {calls}" if calls else ""
    if build.name() == build.PURE:
        return f"compiled code of a library has crashed{where}"
    remedy = f"{build.PURE_VARIABLE}=1 in the environment runs the gateway without compiled modules of its own"
    return f"compiled code has crashed, the gateway's or a library's{where}; {remedy}"
