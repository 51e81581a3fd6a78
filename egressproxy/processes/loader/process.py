"""Loading in a process of its own, so that its time and memory are not taken from the traffic.

The process is started by this constructor (early, so that it works while its parent still imports), and waits for
requests when it has imported what they take (`processes.loader.main`). Anything but an answer raises LoadingFailed and
ends the process: nothing of it is served.
"""

from __future__ import annotations

import io
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from typing import IO, Final

from egressproxy.net.process import child_command, ending
from egressproxy.processes.loader.request import LIMIT_S, STATUS

log = logging.getLogger(__name__)

#: Whether one process serves many requests, each by a copy of itself. Elsewhere the system's own libraries may not
#: survive a copy (macOS), and each request has a process of its own.
IS_KEPT: Final = sys.platform == "linux"
#: A hundred times what ten thousand routes need.
MAX_ANSWER = 512 * 1024 * 1024
#: What is kept of its standard error.
MAX_WORDS = 64 * 1024
_PIECE = 256 * 1024


class LoadingFailed(Exception):
    """The process that loads did not answer: not a fault of the configuration, as far as one can tell.

    The message repeats nothing of what it said: that may hold anything, and goes to the log alone.
    """


class LoaderEnded(LoadingFailed):
    """Somebody else ended it: a system that is short of memory, an administrator. Another one may well answer."""


class LoaderProcess:
    """It serves one request after the other. `ask` belongs into a thread, the rest to the one that started it."""

    def __init__(self, *, is_kept: bool = IS_KEPT) -> None:
        """Raises OSError if no process can be started."""
        self._is_kept = is_kept
        self._control, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 (this program)
                    child_command(f"from egressproxy.processes.loader.main import main; main({is_kept=})"),
                    stdin=theirs.fileno(),  # that, and nothing else of what this process has open
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    process_group=0,  # a signal from the terminal is its parent's
                )
        except OSError:
            self._control.close()
            raise
        assert self._process.stderr is not None
        self._errors = self._process.stderr
        os.set_blocking(self._errors.fileno(), False)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def is_waiting(self) -> bool:
        """Whether the process is there for the next request."""
        return self._process.poll() is None

    def ask(self, function: str, request: bytes) -> bytes:
        """What `function` (see `main`) answers. Raises LoadingFailed, OSError for descriptors; it has ended then."""
        deadline = time.monotonic() + LIMIT_S
        answer, words = io.BytesIO(), io.BytesIO()
        status, has_said = None, False
        try:
            self._signal(signal.SIGCONT)  # a process that was stopped meanwhile could answer nobody
            self._exchange(function, memoryview(request), answer, words, deadline)
            status, has_said = self._status(deadline)
        except (TimeoutError, subprocess.TimeoutExpired):
            raise LoadingFailed(f"the configuration was not read within {LIMIT_S:.0f} s") from None
        finally:
            if status != 0 or not self._is_kept:
                with suppress(BlockingIOError):  # a copy has it still
                    words.write(os.read(self._errors.fileno(), MAX_WORDS))
                self.close()
            for line in words.getvalue().decode(errors="replace").splitlines():
                log.warning("while loading: %s", line)
        if status:
            is_foreign = not has_said if self._is_kept and status > 0 else status < 0 and -status != signal.SIGALRM
            failed = LoaderEnded if is_foreign else LoadingFailed
            raise failed(f"the process that reads the configuration {ending(status)}; the log has its words")
        return answer.getvalue()

    def end(self) -> None:
        """End it in the midst of a request, which fails then."""
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """End it, and give back what it takes here; not in the midst of a request."""
        self.end()
        self._process.wait()
        self._control.close()
        self._errors.close()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its copies."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # macOS: of a group that has ended, but for its status
                os.killpg(self._process.pid, number)

    def _exchange(
        self, function: str, request: memoryview, answer: io.BytesIO, words: io.BytesIO, deadline: float
    ) -> None:
        """Give it the request and take its answer, until those who serve it have closed all of their ends."""
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            asked, asking = _pipe(stack)
            answers, answering = _pipe(stack)
            errors, erring = _pipe(stack)
            theirs = (asked, answering, erring)
            with suppress(OSError):  # it is gone: its status will tell
                socket.send_fds(self._control, [function.encode()], [each.fileno() for each in theirs])
            for each in theirs:
                each.close()
            files = {each.fileno(): each for each in (asking, answers, errors)}
            os.set_blocking(asking.fileno(), False)
            selector.register(asking, selectors.EVENT_WRITE)
            selector.register(answers, selectors.EVENT_READ, (answer, MAX_ANSWER))
            selector.register(errors, selectors.EVENT_READ, (words, MAX_WORDS))
            if self._is_kept:
                selector.register(self._control, selectors.EVENT_READ)
            while not files.keys().isdisjoint(selector.get_map()):
                ready = selector.select(max(deadline - time.monotonic(), 0))
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    if key.fileobj is self._control:
                        selector.unregister(self._control)  # how the request ended: its pipes end, too
                        if self._is_gone():
                            self._signal(signal.SIGKILL)  # a copy that it has left behind could wait for ever
                        continue
                    if key.data is None:
                        request = _rest(asking.fileno(), request)
                        is_over = not request
                    else:
                        heap, limit = key.data
                        piece = os.read(key.fd, _PIECE)
                        is_over = not piece
                        if heap.tell() < limit:
                            heap.write(piece)
                    if is_over:
                        selector.unregister(key.fileobj)
                        files[key.fd].close()
                if answer.tell() >= MAX_ANSWER:
                    raise LoadingFailed(f"the configuration is larger than {MAX_ANSWER >> 20} MiB")

    def _is_gone(self) -> bool:
        try:
            return not self._control.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return True

    def _status(self, deadline: float) -> tuple[int, bool]:
        """How the request ended and that the process has said so, or how the process itself has ended."""
        left_s = max(deadline - time.monotonic(), 0.01)
        self._control.settimeout(left_s)
        try:
            said = self._control.recv(STATUS.size)
        except ConnectionError:
            said = b""
        if len(said) == STATUS.size:
            status: int = STATUS.unpack(said)[0]
            return status, True
        return self._process.wait(left_s), False

    def __repr__(self) -> str:
        return f"LoaderProcess({self._process.pid}, {self._process.returncode})"


def _pipe(stack: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """To read and to write; both are closed with the stack. Raises OSError."""
    reading, writing = os.pipe()
    return stack.enter_context(open(reading, "rb", 0)), stack.enter_context(open(writing, "wb", 0))


def _rest(descriptor: int, request: memoryview) -> memoryview:
    """Write a piece of the request; returns what is left of it."""
    try:
        return request[os.write(descriptor, request) :]
    except BrokenPipeError:
        return request[:0]  # its status will tell
