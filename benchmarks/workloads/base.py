"""What a workload is, and what one round of it gives."""

from __future__ import annotations

import http.client
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.generators import LoadError, Outcome
from benchmarks.processes import Child, StartError
from benchmarks.proxies.base import Proxy
from benchmarks.world import World

#: Until the work that a round leaves behind (closing, the log) is done, and counted in that round.
SETTLE_S = 0.15


@dataclass(frozen=True, slots=True)
class Round:
    """One round through one proxy: the figure of the workload, in its own unit, and what was seen beside it.

    `resident_mib` is the resident memory of the process tree; `extra` holds more figures by name.
    """

    figure: float
    outcome: Outcome | None = None
    resident_mib: float = 0.0
    extra: dict[str, float] = field(default_factory=dict)


class Workload(ABC):
    """`figure` names what is compared: the less, the better. `title` says what is done."""

    name: str
    title: str
    figure: str
    #: Rows say no throughput where this is empty, otherwise in which unit.
    per_second: str = ""
    #: Whether the figure compares a proxy with itself: then it is not divided by that of another.
    is_relative = False
    #: Of figures in tables.
    digits: int = 1
    #: More rounds than that say nothing new.
    most_rounds: int = 1000

    def choose(self, proxies: Sequence[Proxy]) -> list[Proxy]:
        """Those that take part; the others have no row."""
        return list(proxies)

    def cannot(self, proxy: Proxy) -> str:
        """Why a proxy that takes part has no figure; empty where it has."""
        return proxy.unable.get(self.name, "")

    def caveat(self, proxy: Proxy) -> str:
        """What is not like for like in its figure."""
        return proxy.caveats.get(self.name, "")

    @abstractmethod
    def check(self, proxy: Proxy, world: World) -> None:
        """One unit, looked at closely. Raises LoadError. What this workload needs for this proxy is made here."""

    @abstractmethod
    def measure(self, proxy: Proxy, world: World, seconds: float) -> Round:
        """One round. Raises LoadError for any error under load."""

    def warm_up(self, proxy: Proxy, world: World, seconds: float) -> None:
        """As a round, and nothing is counted."""
        self.measure(proxy, world, seconds)

    def before_round(self, world: World, seconds: float) -> None:  # noqa: B027
        """Called before each round goes through the proxies."""

    def describe(self, rounds: Sequence[Round]) -> str:
        """A remark for the row of these rounds."""
        return ""

    def close(self) -> None:  # noqa: B027
        """End what `check` began."""


class CpuTime:
    """CPU time of a proxy's process tree since this was made. That of processes that have ended since is not in it (our
    loader ends after some quiet minutes).
    """

    def __init__(self, proxy: Proxy) -> None:
        self._child = child_of(proxy)
        self._before = self._child.cpu_times()

    def seconds(self) -> float:
        """Raises LoadError where the proxy has ended."""
        if not self._child.is_running():
            raise LoadError(f"the proxy has ended: {self._child.complaint()}")
        return sum(spent - self._before.get(number, 0.0) for number, spent in self._child.cpu_times().items())

    def settled_seconds(self) -> float:
        """The same when what the round left behind is done, too."""
        time.sleep(SETTLE_S)
        return self.seconds()

    def resident_mib(self) -> float:
        return sum(each.resident for each in self._child.memory().values()) / 1024


def child_of(proxy: Proxy) -> Child:
    assert proxy.child is not None, f"{proxy.name} is not started"
    return proxy.child


@contextmanager
def fresh_copy(proxy: Proxy, world: World) -> Iterator[Proxy]:
    """The same proxy once more, just started: its memory knows nothing of earlier workloads."""
    copy = type(proxy)()
    try:
        copy.start(world, proxy.core)
        yield copy
    except StartError as error:
        raise LoadError(str(error)) from None
    finally:
        copy.stop()


def read_answer(connection: socket.socket, what: str) -> tuple[http.client.HTTPResponse, bytes]:
    """A whole response. Raises LoadError unless it is a 200."""
    answer = http.client.HTTPResponse(connection)
    try:
        answer.begin()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise LoadError(f"{what}: no answer: {error}") from None
    if answer.status != 200:
        raise LoadError(f"{what}: answered with {answer.status} {answer.reason}: {body[:200].decode('latin-1')}")
    return answer, body
