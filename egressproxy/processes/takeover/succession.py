"""Succession: the socket at which a successor gets this process's sockets (`run --takeover`).

There is one successor at a time. This process drains once the successor reports that it accepts connections. If the
successor fails before, this process simply goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from egressproxy import __version__
from egressproxy.model.unix_socket import SCHEME
from egressproxy.net.listening import UNIX_REMEDIES
from egressproxy.processes.listening_sockets import ListeningSockets, Place
from egressproxy.processes.takeover.messages import VERSIONS, Conversation, close_all, kill_of
from egressproxy.processes.takeover.wanted_lock import WantedLock
from egressproxy.processes.workers.data_plane import ConfigRefused
from egressproxy.processes.workers.kill_switch import KillSwitch

log = logging.getLogger("egressproxy")

#: The time limit from the successor's connection to `switch` in seconds, in which it starts its processes.
START_S: Final = 30.0
#: The time limit from `switch` to `serving`, in which it reads and builds its configuration.
SWITCH_S: Final = 120.0
#: The longest wait of a reload or a write for that, and the longest silence of the successor.
HOLD_S: Final = 20.0
QUIET_S: Final = 5.0
#: The pause of accepting successors without free descriptors.
PAUSE_S: Final = 1.0


class Succession:
    """Serves the path once `start` has been called. Belongs to the event loop.

    `taking` is held while a configuration is put into service, and here while a successor builds its own, for at most
    HOLD_S if another task waits. The kill switch never waits. `state_lock` returns the locked descriptor of the state
    folder. `succeeded` is called with the serving process and its inherited places: this process then drains, and no
    longer writes to the state folder.
    """

    def __init__(
        self, path: Path, sockets: ListeningSockets, taking: WantedLock, kill_switch: KillSwitch,
        state_lock: Callable[[], int | None], succeeded: Callable[[int, frozenset[Place]], None],
    ) -> None:  # fmt: skip
        self._path = path
        self._sockets = sockets
        self._taking = taking
        self._kill_switch = kill_switch
        self._state_lock = state_lock
        self._succeeded = succeeded
        self._listening: socket.socket | None = None
        self._asking: asyncio.Task[None] | None = None  # the current successor
        self._others: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"{SCHEME}{self._path}"

    def bind(self) -> None:
        """Bind the path: from the predecessor, or in place of a stale socket. Raises ConfigRefused."""
        try:
            self._listening = self._sockets.bind(self.address, 0)
        except OSError as error:
            remedy = UNIX_REMEDIES.get(error.errno or 0, "")
            raise ConfigRefused(f"--takeover {self._path}: {error.strerror or error}{remedy}") from None

    def start(self) -> None:
        assert self._listening is not None, "bind comes first"
        if self._listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._listening.fileno(), self._accept)

    def stop(self) -> None:
        """Stop serving the path. A successor keeps the sockets that it got."""
        if self._listening is not None and self._listening.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listening.fileno())
            self._listening.close()

    def close(self) -> None:
        self.stop()
        for task in (*self._others, *([self._asking] if self._asking else [])):
            task.cancel()

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            sock, _ = self._listening.accept()
            conversation = Conversation(sock)
        except BlockingIOError:
            return
        except OSError:  # no free descriptor: the successor waits
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listening.fileno())
            loop.call_later(PAUSE_S, self.start)
            return
        if not conversation.is_trusted:
            log.warning(
                "--takeover: process %d of user %d asks for the sockets and gets nothing: it is neither of this user"
                " nor of root",
                conversation.peer,
                conversation.peer_user,
            )
            conversation.close()
            return
        task = asyncio.create_task(self._serve(conversation))
        self._others.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._others.discard(task)
        if task is self._asking:
            self._asking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("internal error in a takeover; this process goes on", exc_info=error)

    async def _serve(self, successor: Conversation) -> None:
        try:
            if not await self._greet(successor):
                return
            self._asking = asyncio.current_task()
            if not await self._hand_over(successor):
                return
            while True:  # until one of the two processes has ended
                await self._kill_switch.follow(kill_of(await successor.expect("kill")))
        except (EOFError, TimeoutError):
            pass
        finally:
            successor.close()

    async def _greet(self, successor: Conversation) -> bool:
        """Whether the peer may be the successor."""
        kind, hello, descriptors = await successor.next(START_S)
        close_all(descriptors)
        theirs = hello.get("versions")
        common = [each for each in VERSIONS if isinstance(theirs, list) and each in theirs]
        why = ""
        if kind != "hello" or not common:
            release = hello.get("release", "?")
            why = f"it is of release {__version__} and this one of {release}, which have no way to do that: restart it"
        elif self._asking is not None:
            why = "another process takes it already"
        if why:
            log.warning("process %d asks for this one's place and gets nothing: %s", successor.peer, why)
            successor.say("refused", why=why)
            return False
        successor.say("hello", version=max(common), release=__version__, pid=os.getpid())
        log.info("process %d of release %s is to take this one's place", successor.peer, hello.get("release", "?"))
        return True

    async def _hand_over(self, successor: Conversation) -> bool:
        """Hand over to the successor; returns whether it serves. Otherwise this process is unchanged."""
        listeners = self._kill_switch.listeners
        try:
            await successor.expect("switch", START_S)
            async with self._taking:
                async with self._kill_switch.turn:
                    self._send_state(successor)
                    listeners.append(successor.say_kill)
                serving = await self._wait_serving(successor)
                taken = frozenset((str(address), int(port)) for address, port in serving["places"])
                async with self._kill_switch.turn:
                    self._sockets.leave_paths(taken)
                    self._kill_switch.leave(successor.peer)
                    self._succeeded(successor.peer, taken)
        except EOFError:
            log.warning("process %d has ended before it served: this one goes on", successor.peer)
            return False
        except (TimeoutError, KeyError, TypeError, ValueError) as error:
            why = "its report is invalid"
            if isinstance(error, TimeoutError):
                why = str(error) or f"it has not asked for the sockets within {START_S:g} s"
            log.warning("process %d is given up, and this one goes on: %s", successor.peer, why)
            successor.say("withdrawn", why=why)
            return False
        finally:
            if successor.say_kill in listeners:
                listeners.remove(successor.say_kill)
        self.stop()
        successor.say("done")
        return True

    async def _wait_serving(self, successor: Conversation) -> dict[str, Any]:
        """The message `serving` of the successor. Raises EOFError, and TimeoutError with a sentence."""
        loop = asyncio.get_running_loop()
        last = loop.time() + SWITCH_S
        too_long = f"it has not come to serve within {SWITCH_S:g} s"
        wanted = asyncio.create_task(self._taking.wait_wanted())
        hearing = asyncio.create_task(successor.next())
        heard_at = loop.time()
        try:
            while True:
                until = min(last, heard_at + QUIET_S)
                waited = (hearing,) if wanted.done() else (hearing, wanted)
                await asyncio.wait(waited, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED)
                if wanted.done() and loop.time() + HOLD_S < last:
                    last = loop.time() + HOLD_S
                    too_long = f"a reload or a write has waited for it for {HOLD_S:g} s"
                    log.info("a reload waits for process %d, for %g s at most", successor.peer, HOLD_S)
                if hearing.done():
                    kind, fields, descriptors = hearing.result()
                    close_all(descriptors)
                    if kind == "serving":
                        return fields
                    heard_at = loop.time()
                    hearing = asyncio.create_task(successor.next())
                elif loop.time() >= last:
                    raise TimeoutError(too_long)
                elif loop.time() >= heard_at + QUIET_S:
                    raise TimeoutError(f"it has said nothing for {QUIET_S:g} s")
        finally:
            wanted.cancel()
            hearing.cancel()

    def _send_state(self, successor: Conversation) -> None:
        for given in self._sockets.to_give():
            successor.say("socket", [given.descriptor], giver=given.giver, kept=given.is_kept)
        lock = self._state_lock()
        if lock is not None:
            successor.say("lock", [lock])
        killed = [
            {"identity": each.name, "why": each.why, "since": each.since} for each in self._kill_switch.killed.every
        ]
        successor.say("killed", identities=killed)
