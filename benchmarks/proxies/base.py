"""What a proxy of a comparison is: how it is started, on which port it serves what, and what it cannot do."""

from __future__ import annotations

import itertools
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.processes import Child, StartError, free_ports
from benchmarks.world import HOSTS, World, find_program

_numbers = itertools.count()


class Proxy(ABC):
    """One proxy, with a configuration that does what all others do. Each of `names` has a route.

    `start` raises StartError.
    """

    name: str
    #: Listeners in the order in which they are given ports.
    listeners: Sequence[str] = ("FORWARD", "REVERSE", "ADMIN")
    #: Why it has no figure in a workload, by the workload's name.
    unable: Mapping[str, str] = {}
    #: What is not like for like in its figure, by the workload's name.
    caveats: Mapping[str, str] = {}
    #: Whether it edits requests and responses as the others do; if not, it is sent where nobody looks.
    edits = True
    #: Whether it closes each connection without having said so in the response.
    closes_silently = False
    #: Whether `tunnel_port` takes no CONNECT.
    forwards_raw_tcp = False
    #: Whether it opens tunnels, with certificates of the CA in the file `opened_ca`.
    opens_tunnels = False
    opened_ca: Path
    #: Of clients that it knows: what each shows.
    tokens: Sequence[str] = ()

    def __init__(self, names: Sequence[str] = HOSTS, workers: int = 1) -> None:
        self.names = names
        self.workers = workers
        self.version = ""
        self.ports: dict[str, int] = {}
        self.child: Child | None = None
        self.core: int | None = None

    @property
    def host(self) -> str:
        """The destination that is asked for: neither the first nor the last of the names."""
        return self.names[len(self.names) * 137 // 200]

    def start(self, world: World, core: int | None) -> None:
        label = f"{self.name}-{next(_numbers)}"
        folder = world.folder / label
        folder.mkdir()
        folder.chmod(0o755)
        self.core = core
        self.ports = dict(zip(self.listeners, free_ports(len(self.listeners)), strict=True))
        command = self.prepare(world, folder)
        self.child = Child(label, command, folder, core, self.environment(world))
        self.child.wait_for(self.ports.values())

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop()

    def can_have_workers(self) -> bool:
        """Whether `workers` is heeded."""
        return False

    def can_know_clients(self) -> bool:
        """Whether there is a configuration with tokens and limits of clients."""
        return False

    def knowing(self, clients: int) -> Proxy:
        """A proxy, not started, that knows so many clients by their tokens, with a limit for each."""
        raise NotImplementedError

    def tracing(self, percent: int) -> Proxy:
        """A proxy, not started, that records so many of a hundred traces, and exports them by OTLP over HTTP."""
        raise NotImplementedError

    def tunnel_port(self) -> int:
        return self.ports["FORWARD"]

    def opening(self) -> Proxy:
        """The proxy that opens tunnels: this one, or one that has yet to be started."""
        return self

    def reverse_port(self, host: str) -> int:
        """Where the reverse proxy of a name listens."""
        return self.ports["REVERSE"]

    def environment(self, world: World) -> Mapping[str, str]:
        return {}

    @abstractmethod
    def prepare(self, world: World, folder: Path) -> list[str]:
        """Write the configuration; returns the command. Raises StartError where the program is missing."""


def debian_program(name: str) -> str:
    """Raises StartError."""
    path = find_program(name)
    if path is None:
        raise StartError(f"{name} is not installed; on Debian: apt-get install {name}")
    return path


def first_line(command: list[str]) -> str:
    """Of what a program says of its version. Raises StartError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartError(f"{command[0]}: {error}") from None
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if not lines:
        raise StartError(f"{command[0]} says no version")
    return lines[0]
