"""LoaderProcess: loads in a separate process, so that its time and memory are not taken from the traffic.

The constructor starts the process (early, so that it imports in parallel with its parent). It waits for requests after
its imports (`processes.loader.main`). Anything but an answer raises LoadingFailed and ends the process.
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

#: Whether one process serves many requests, each in a fork. On macOS system libraries may not survive a fork, so each
#: request starts a process.
IS_KEPT: Final = sys.platform == "linux"
#: A hundred times what ten thousand routes need.
MAX_ANSWER = 512 * 1024 * 1024
#: The most bytes of its standard error that are kept.
MAX_WORDS = 64 * 1024
_PIECE = 256 * 1024


class LoadingFailed(Exception):
    """The loader process did not answer, which is probably no fault of the configuration.

    The message never quotes its output, which may contain secrets, and goes to the log alone.
    """


class LoaderEnded(LoadingFailed):
    """The process was killed from outside, for lack of memory or by an administrator. A retry may succeed."""


class LoaderProcess:
    """A process that serves one request after the other. Call `ask` in a thread, the rest in the starting thread."""

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
        """Whether the process is ready for the next request."""
        return self._process.poll() is None

    def ask(self, function: str, request: bytes) -> bytes:
        """The answer of `function` (see `main`). Raises LoadingFailed, or OSError without descriptors; the process has
        ended then.
        """
        deadline = time.monotonic() + LIMIT_S
        answer, words = io.BytesIO(), io.BytesIO()
        status, has_said = None, False
        try:
            self._signal(signal.SIGCONT)  # a stopped process could not answer
            self._exchange(function, memoryview(request), answer, words, deadline)
            status, has_said = self._status(deadline)
        except (TimeoutError, subprocess.TimeoutExpired):
            raise LoadingFailed(f"the configuration was not read within {LIMIT_S:.0f} s") from None
        finally:
            if status != 0 or not self._is_kept:
                with suppress(BlockingIOError):  # a fork still has it
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
        """End the process during a request, which fails then."""
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """End the process and release its resources; not during a request."""
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
        """Send the request and read the answer, until the process and its forks have closed all pipes."""
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            asked, asking = _pipe(stack)
            answers, answering = _pipe(stack)
            errors, erring = _pipe(stack)
            theirs = (asked, answering, erring)
            with suppress(OSError):  # the process is gone, which its status shows
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
                        selector.unregister(self._control)  # the result of the request: its pipes end, too
                        if self._is_gone():
                            self._signal(signal.SIGKILL)  # a leftover fork could wait for ever
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
        """The exit status of the request and true, or of the process itself and false."""
        left_s = max(deadline - time.monotonic(), 0.01)
        self._control.settimeout(left_s)
        try:
            packed = self._control.recv(STATUS.size)
        except ConnectionError:
            packed = b""
        if len(packed) == STATUS.size:
            status: int = STATUS.unpack(packed)[0]
            return status, True
        return self._process.wait(left_s), False

    def __repr__(self) -> str:
        return f"LoaderProcess({self._process.pid}, {self._process.returncode})"


def _pipe(stack: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """The reading and the writing end of a pipe; both are closed with the stack. Raises OSError."""
    reading, writing = os.pipe()
    return stack.enter_context(open(reading, "rb", 0)), stack.enter_context(open(writing, "wb", 0))


def _rest(descriptor: int, request: memoryview) -> memoryview:
    """Write a piece of the request; returns what is left of it."""
    try:
        return request[os.write(descriptor, request) :]
    except BrokenPipeError:
        return request[:0]  # the exit status shows the failure
