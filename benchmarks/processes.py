"""Programs under measurement: started pinned to a core, counted in CPU time and memory, ended by their process id."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

#: Ten thousand routes take their time on a busy machine.
START_S = 90.0
STOP_S = 10.0
FIRST_PORT = 21_000
PORTS = 11_000
CPUCLOCK_SCHED = 2
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)


class StartError(Exception):
    """A program could not be started, or ended at once; the message holds the end of what it said."""


def cores() -> tuple[int | None, int | None]:
    """The core of the proxies and that of everything else; (None, None) with one core: nothing is pinned."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)


def pin(core: int | None) -> None:
    """Keep this process, and what it starts from now on, on one core."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def free_ports(count: int) -> list[int]:
    """TCP ports of 127.0.0.1 that were free a moment ago, below the range of outgoing connections.

    Two runs at a time begin at different places: proxies that share ports (SO_REUSEPORT) would not notice each other.
    """
    found: list[int] = []
    first = os.getpid() * 61 % PORTS
    for step in range(PORTS):
        port = FIRST_PORT + (first + step) % PORTS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise StartError(f"there are no {count} free TCP ports from {FIRST_PORT} to {FIRST_PORT + PORTS - 1}")


def allow_descriptors() -> None:
    """As many open files as the system lets this process, and what it starts, have: tunnels come by the thousand."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one process, in KiB: resident pages, and the same with shared pages divided among those who share them."""

    resident: int
    proportional: int


class Child:
    """A running program. Its standard output and error go to `name.out` and `name.err` in `folder`.

    It dies with us, however we end; `stop` sends SIGTERM to it alone, and SIGKILL to its tree where that does not help.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        folder: Path,
        core: int | None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Raises StartError where the program is missing."""
        self.name = name
        self._errors = folder / f"{name}.err"

        def prepare() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            pin(core)

        with open(folder / f"{name}.out", "wb") as out, open(self._errors, "wb") as errors:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=errors,
                    cwd=folder,
                    env={**os.environ, **(environment or {})},
                    start_new_session=True,  # Ctrl-C is ours: we stop what we started
                    preexec_fn=prepare,
                )
            except OSError as error:
                raise StartError(f"{name}: {command[0]}: {error.strerror}") from None

    def wait_for(self, ports: Iterable[int]) -> None:
        """Until it listens on all of them. Raises StartError where it ends before, or takes longer than 30 s."""
        deadline = time.monotonic() + START_S
        for port in ports:
            while True:
                if self._process.poll() is not None:
                    raise StartError(f"{self.name} ended with status {self._process.returncode}: {self.complaint()}")
                with socket.socket() as probe:
                    probe.settimeout(1.0)
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if time.monotonic() > deadline:
                    raise StartError(f"{self.name} does not listen on port {port}: {self.complaint()}")
                time.sleep(0.05)

    def complaint(self) -> str:
        lines = self._errors.read_text("utf-8", "replace").strip().splitlines()
        return " / ".join(lines[-5:]) or "it said nothing"

    def cpu_s(self) -> float:
        """User and system time of the processes of the tree since each began, in seconds."""
        return sum(self.cpu_times().values())

    def cpu_times(self) -> dict[int, float]:
        """The same for each process, by its id; exact to the microsecond.

        A process's clock is (~pid << 3) | CPUCLOCK_SCHED (clock_getcpuclockid(3)); /proc/PID/stat counts in 1/100 s.
        """
        found = {}
        for number in self._tree():
            try:
                found[number] = time.clock_gettime((~number << 3) | CPUCLOCK_SCHED)
            except OSError:
                continue  # it has ended
        return found

    def memory(self) -> dict[int, Memory]:
        """Of every process of the tree, by its id (/proc/PID/smaps_rollup)."""
        found = {}
        for number in self._tree():
            try:
                lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()[1:]
            except OSError:
                continue
            sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
            found[number] = Memory(sizes.get("Rss", 0), sizes.get("Pss", 0))
        return found

    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        if self._process.poll() is not None:
            return
        tree = self._tree()
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            for number in tree:
                try:
                    os.kill(number, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process.wait()

    def _tree(self) -> list[int]:
        """This process and its descendants."""
        found, waiting = [], [self._process.pid]
        while waiting:
            number = waiting.pop()
            found.append(number)
            for path in Path(f"/proc/{number}/task").glob("*/children"):
                try:
                    waiting.extend(int(child) for child in path.read_text().split())
                except OSError:
                    continue
        return found
