"""CertificateSigner: the thread in which TLS contexts of leaves are made, and the process that it asks for
certificates.

Both begin with the first name and end when none was asked for a while: the libraries that sign take 11 MB, and leaves
are kept for hours. A data plane has one Minter, and so one thread and one process, for all CAs.
"""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import IO, Any, Final, TypeVar

from egressproxy.model.certificate import Leaf
from egressproxy.model.secret import SecretBytes
from egressproxy.net.process import child_command, ending

T = TypeVar("T")

#: Without a name for so long, thread and process end.
IDLE_S: float = 30.0
#: A leaf takes a millisecond, the start of the process a fifth of a second: what takes longer than this has failed.
ANSWER_S: Final = 20.0
#: It ends with its input: what takes longer is killed.
ENDING_S: Final = 2.0

_COMMAND: Final = child_command("from egressproxy.gateway.leaf_certificates.signing_process import main; main()")


class CannotSign(Exception):
    """No leaf was minted; the message says why, and holds nothing of a key."""


class SigningProcess:
    """The process, from the client's side. It runs from the first `mint` until `end`. For one thread."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None

    def mint(self, chain_pem: str, key_pem: SecretBytes, name: str, now_s: float) -> Leaf:
        """A leaf for this DNS name, signed by this CA; blocks. Raises CannotSign."""
        asked = {"chain": chain_pem, "key": key_pem.reveal().decode(), "name": name, "now": now_s}
        line = json.dumps(asked).encode() + b"\n"
        try:
            answer = self._ask(line)
        except CannotSign:  # it may have been ended by somebody else since the last name
            answer = self._ask(line)
        if "error" in answer:
            raise CannotSign(answer["error"])
        return Leaf(answer["chain"], SecretBytes(answer["key"].encode()), answer["expires_at"])

    def _ask(self, line: bytes) -> dict[str, Any]:
        try:
            if self._running is None:
                self._running = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 (this program)
            running = self._running
            asks, answers = pipe_of(running.stdin), pipe_of(running.stdout)
            asks.write(line)
            asks.flush()
            poll = select.poll()
            poll.register(answers, select.POLLIN)
            hangs = not poll.poll(ANSWER_S * 1000)
            answer = b"" if hangs else answers.readline()
        except OSError as error:
            self.end()
            raise CannotSign(f"the process that mints cannot be asked: {error.strerror}") from None
        if not answer.endswith(b"\n"):
            raise CannotSign(f"the process that mints {self.end(hangs=hangs)}")
        try:
            document: dict[str, Any] = json.loads(answer)
        except ValueError:  # what follows on the pipe may be the answer to this name: the next one is not to have it
            raise CannotSign(f"the process that mints wrote what is no answer, and {self.end(hangs=True)}") from None
        return document

    def end(self, *, hangs: bool = False) -> str:
        """End it where it runs, at once where it `hangs`. Returns what became of it, as a predicate."""
        running, self._running = self._running, None
        if running is None:
            return "was not started"
        with suppress(OSError):  # the process may have left requests unread
            pipe_of(running.stdin).close()
        pipe_of(running.stdout).close()
        try:
            status = running.wait(0.0 if hangs else ENDING_S)
        except subprocess.TimeoutExpired:
            running.kill()  # the process has no state to lose
            status = running.wait()
        return ending(status)


def pipe_of(pipe: IO[bytes] | None) -> IO[bytes]:
    """Of a process that was started with pipes."""
    assert pipe is not None
    return pipe


class _SigningThread(Thread):
    """Does one piece of work after the other, and ends where none has come for a while and `may_end` says so."""

    def __init__(self, may_end: Callable[[], bool]) -> None:
        super().__init__(name="minting", daemon=True)
        self.work: SimpleQueue[Callable[[SigningProcess], None]] = SimpleQueue()
        self._may_end = may_end

    def run(self) -> None:
        process = SigningProcess()
        while True:
            try:
                work = self.work.get(timeout=IDLE_S)
            except Empty:
                if self._may_end():
                    break
                continue
            work(process)
            del work  # the closure holds the waiting future
        process.end()


class CertificateSigner:
    """Has leaves made by its thread, which runs while there is something to make."""

    __slots__ = ("_lock", "_thread")

    def __init__(self) -> None:
        self._lock = Lock()
        self._thread: _SigningThread | None = None

    def do(self, work: Callable[[SigningProcess], T]) -> Future[T]:
        """Have this done in the thread, which is started where there is none."""
        done: Future[T] = Future()

        def do(process: SigningProcess) -> None:
            try:
                done.set_result(work(process))
            except BaseException as error:
                done.set_exception(error)

        with self._lock:
            if self._thread is None:
                self._thread = _SigningThread(self._may_end)
                self._thread.start()
            self._thread.work.put(do)
        return done

    def _may_end(self) -> bool:
        """Whether nobody has given the thread work meanwhile: nobody can any more then."""
        with self._lock:
            assert self._thread is not None
            if not self._thread.work.empty():
                return False
            self._thread = None
            return True
