"""Predecessor: the process that this one replaces (`run --takeover`)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

from egressproxy import __version__
from egressproxy.gateway.identity.killed_identities import KillChange, KilledIdentities, KilledIdentity
from egressproxy.processes.listening_sockets import ListeningSockets, Place
from egressproxy.processes.takeover.messages import VERSIONS, WORKING_S, Conversation, close_all, kill_of
from egressproxy.processes.workers.data_plane import ConfigRefused

log = logging.getLogger("egressproxy")

#: The time limit of its answer in seconds. A reload in progress comes first.
ANSWER_S: Final = 150.0


class Predecessor:
    """Call `find`, `switch` and `serving` in this order; then `kill` at any time."""

    def __init__(self, conversation: Conversation, path: Path) -> None:
        self._conversation = conversation
        self._path = path
        #: Descriptor of the lock of its state folder; its taker sets this to None.
        self.lock: int | None = None
        self.killed = KilledIdentities()
        self._working: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._conversation.peer

    async def wait_withdrawn(self) -> None:
        """Wait until the predecessor cancels the takeover; `serving` raises the reason."""
        await self._conversation.withdrawn.wait()

    @classmethod
    async def find(cls, path: Path) -> Predecessor | None:
        """The process that serves this path, or None. Raises ConfigRefused if a takeover is refused."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(ANSWER_S)
        try:
            sock.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            return None
        except OSError as error:
            sock.close()
            raise ConfigRefused(f"--takeover {path}: {error.strerror or error}") from None
        conversation = Conversation(sock)
        found = cls(conversation, path)
        if not conversation.is_trusted:
            conversation.close()
            raise ConfigRefused(
                f"--takeover {path}: process {found.pid} of user {conversation.peer_user} serves it, who is neither"
                " this user nor root: what it gives cannot be trusted"
            )
        conversation.say("hello", versions=VERSIONS, release=__version__, pid=os.getpid())
        try:
            kind, fields = "", dict[str, Any]()
            while kind != "hello":
                kind, fields, descriptors = await found._next_message()
                close_all(descriptors)
        except EOFError:
            return None  # just ended
        log.info("process %d of release %s serves; this one takes its place", found.pid, fields.get("release", "?"))
        return found

    async def switch(self, sockets: ListeningSockets) -> None:
        """Get the sockets, the lock and the killed identities of the predecessor, whose reloads wait until `serving`.

        If it ends meanwhile, this process goes on with the parts received. Raises ConfigRefused.
        """
        self._conversation.say("switch")
        self._working = asyncio.create_task(self._tell_working())
        try:
            while True:
                kind, fields, descriptors = await self._next_message()
                if kind == "socket" and len(descriptors) == 1:
                    try:
                        sockets.give(
                            descriptors.pop(), str(fields.get("giver") or f"of process {self.pid}"),
                            is_kept=fields.get("kept") is True,
                        )  # fmt: skip
                    except (OSError, ValueError) as error:
                        raise ConfigRefused(f"--takeover {self._path}: {error}") from None
                elif kind == "lock" and len(descriptors) == 1:
                    self.lock = descriptors.pop()
                elif kind == "killed":
                    self.killed = _killed(fields.get("identities"))
                    return
                close_all(descriptors)
        except EOFError:
            log.warning("process %d has ended while this one took its place", self.pid)

    async def _tell_working(self) -> None:
        while True:
            self._conversation.say("working")
            await asyncio.sleep(WORKING_S)

    async def serving(self, addresses: Iterable[Place], follow: Callable[[KillChange], Awaitable[None]]) -> None:
        """Report that this process accepts connections at these inherited places. Kill-switch changes since `switch`
        are passed to `follow`. Raises ConfigRefused if the predecessor has cancelled.
        """
        self._end_working()
        self._conversation.say("serving", places=list(addresses))
        try:
            while True:
                kind, fields, descriptors = await self._next_message()
                close_all(descriptors)
                if kind == "kill":
                    await follow(kill_of(fields))
                elif kind == "done":
                    return
        except EOFError:
            log.warning("process %d has ended while this one took its place", self.pid)

    def _end_working(self) -> None:
        if self._working is not None:
            self._working.cancel()
            self._working = None

    def kill(self, change: KillChange) -> None:
        """Have the predecessor cut this client's remaining exchanges. Ignored after the end of the predecessor."""
        self._conversation.say_kill(change)

    def close(self) -> None:
        self._end_working()
        self._conversation.close()
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    async def _next_message(self) -> tuple[str, dict[str, Any], list[int]]:
        """Raises ConfigRefused, EOFError."""
        try:
            kind, fields, descriptors = await self._conversation.next(ANSWER_S)
        except TimeoutError:
            raise ConfigRefused(
                f"--takeover {self._path}: process {self.pid} has not answered within {ANSWER_S:g} s"
            ) from None
        if kind in ("refused", "withdrawn"):
            close_all(descriptors)
            raise ConfigRefused(f"--takeover {self._path}: process {self.pid} keeps its place: {fields.get('why')}")
        return kind, fields, descriptors


def _killed(entries: Any) -> KilledIdentities:
    """The killed identities. Raises ConfigRefused for invalid data: without the list no client may be served."""
    try:
        every = [KilledIdentity(each["identity"], each["why"], float(each["since"])) for each in entries]
    except (KeyError, TypeError, ValueError) as error:
        why = f"the process before does not say who is out of service ({type(error).__name__}), so nobody is served"
        raise ConfigRefused(f"--takeover: {why}: restart the gateway without a takeover") from None
    return KilledIdentities(every, revision=1)
