"""Loading in a process of its own: what it takes of time and memory, the traffic does not feel.

The process is started by this constructor (early, so that it works while its parent still imports), and ends with its
answer, with its parent, or after a bounded time. Whatever else it does is a LoadingFailed: nothing is served of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from egressproxy.loading.request import write_request
from egressproxy.loading.result import Loaded, read_answer
from egressproxy.model.api_write import Write

__all__ = ["Loading", "LoadingFailed", "schema"]

log = logging.getLogger(__name__)

#: For the whole of a loading; the process ends itself after that, too.
LIMIT_S = 120.0
#: A hundred times what ten thousand routes need.
MAX_ANSWER = 512 * 1024 * 1024
#: What is kept of its standard error.
MAX_WORDS = 64 * 1024
_PIECE = 256 * 1024


class LoadingFailed(Exception):
    """The process that loads did not answer: not a fault of the configuration, as far as one can tell.

    The message repeats nothing of what it said: that may hold anything, and goes to the log alone.
    """


class Loading:
    """One loading, under way from the start. `memory` is that of the configuration in service, `state` the folder of
    objects that were written through the API.
    """

    def __init__(
        self, paths: Sequence[Path], bind: tuple[str, ...], memory: bytes = b"", state: Path | None = None
    ) -> None:
        """Raises OSError if no process can be started."""
        self._request = memoryview(write_request(paths, bind, memory, state, None))
        self._process = subprocess.Popen(  # noqa: S603 (this program)
            _command("child"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # a signal from the terminal is its parent's
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def result(self) -> Loaded:
        """Raises ConfigError with every problem, or LoadingFailed; one who waits no longer ends it."""
        data = await self._answered()
        try:
            return read_answer(data)
        except ValueError:
            raise LoadingFailed("the process that reads the configuration gave no whole answer") from None

    async def answer(
        self, paths: Sequence[Path], bind: tuple[str, ...], memory: bytes, state: Path, write: Write
    ) -> bytes:
        """The answer to another request than that of the start, unread (`loading.answer`). Raises LoadingFailed."""
        self._request = memoryview(write_request(paths, bind, memory, state, write))
        return await self._answered()

    async def _answered(self) -> bytes:
        loop = asyncio.get_running_loop()
        try:
            data = await loop.run_in_executor(None, self._talk)
        finally:
            self.end()
        status = self._process.returncode
        if status:
            raise LoadingFailed(f"the process that reads the configuration {_ending(status)}; the log has its words")
        return data

    def wait(self) -> None:
        """After `end`, for one that nobody asked: it is gone then."""
        process = self._process
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()

    def end(self) -> None:
        """Nobody wants the result any more."""
        if self._process.returncode is None:
            self._process.kill()

    def _talk(self) -> bytes:
        """Give it the request, take its answer, log its words and see its end, in a thread. Raises LoadingFailed."""
        deadline = time.monotonic() + LIMIT_S
        answer, words = _Heap(MAX_ANSWER), _Heap(MAX_WORDS)
        try:
            self._exchange(answer, words, deadline)
            self._process.wait(max(deadline - time.monotonic(), 0))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise LoadingFailed(f"the configuration was not read within {LIMIT_S:.0f} s") from None
        finally:
            self._process.kill()
            self._process.wait()
            for line in words.whole().decode(errors="replace").splitlines():
                log.warning("while loading: %s", line)
        return answer.whole()

    def _exchange(self, answer: _Heap, words: _Heap, deadline: float) -> None:
        """Until it has closed all of its pipes."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdin, process.stdout, process.stderr, selectors.DefaultSelector() as selector:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            selector.register(process.stdout, selectors.EVENT_READ, answer)
            selector.register(process.stderr, selectors.EVENT_READ, words)
            while selector.get_map():
                ready = selector.select(max(deadline - time.monotonic(), 0))
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    if key.data is None:
                        if self._say(key.fd):
                            selector.unregister(process.stdin)
                            process.stdin.close()
                    elif not key.data.take(os.read(key.fd, _PIECE)):
                        selector.unregister(key.fileobj)
                if answer.is_full:
                    raise LoadingFailed(f"the configuration is larger than {MAX_ANSWER >> 20} MiB")

    def _say(self, stdin: int) -> bool:
        """Write on; whether that was all."""
        try:
            self._request = self._request[os.write(stdin, self._request) :]
        except BrokenPipeError:
            return True  # its status will tell
        return not self._request

    def __repr__(self) -> str:
        return f"Loading({self._process.pid}, {self._process.returncode})"


class _Heap:
    """What was read, up to a limit."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._pieces: list[bytes] = []

    @property
    def is_full(self) -> bool:
        return self._left <= 0

    def take(self, piece: bytes) -> bool:
        """False at the end."""
        if not self.is_full:
            self._pieces.append(piece)
            self._left -= len(piece)
        return bool(piece)

    def whole(self) -> bytes:
        return b"".join(self._pieces)


def schema() -> bytes:
    """JSON Schema of every kind, from a process that ends with it; for a thread. Raises OSError where it fails."""
    try:
        done = subprocess.run(  # noqa: S603 (this program)
            _command("schema"), stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"the schema was not made within {LIMIT_S:.0f} s") from None
    if done.returncode:
        log.error("the schema cannot be made: %s", done.stderr.decode(errors="replace")[-MAX_WORDS:])
        raise OSError(f"the process that makes the schema {_ending(done.returncode)}; the log has its words")
    return done.stdout


def _command(module: str) -> list[str]:
    """This interpreter, with the modules of this process, and nothing of the environment that changes either."""
    start = f"import sys; sys.path[:] = {[*sys.path, _ROOT]!r}; from egressproxy.loading.{module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", start]


_ROOT = str(Path(__file__).resolve().parents[2])


def _ending(status: int) -> str:
    if status > 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
