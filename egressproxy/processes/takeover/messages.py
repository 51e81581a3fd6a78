"""The messages of a process and its successor: JSON objects in the frames of a FrameChannel, with descriptors.

They may be of two releases. So the frames stay as they are (a length of four bytes, a number of descriptors of one, all
in network order, and the JSON), a reader ignores fields and types that it does not know, and both name the versions
that they speak. A version is one set of meanings; a field that may be missing takes no new one.

    successor                                    predecessor
    hello {versions, release, pid}          ->
                                            <-   hello {version, release, pid}, or refused {why}
    switch                                  ->                       (from here on reloads wait at the predecessor)
                                            <-   socket {giver, kept} with the descriptor, for each
                                            <-   lock with the descriptor of the state folder's lock, if it has one
                                            <-   killed {identities}: the last of these
    working                                 ->   every second, until it serves
                                            <-   kill {name, kills, why}   as often as need be, until `done`
    serving {places}                        ->                       (from here on the predecessor drains)
                                            <-   done
    kill {name, kills, why}                 ->   as often as need be, until the predecessor has ended

A predecessor that will not wait any longer says `withdrawn {why}`, and goes on as before. Where the channel of a
successor ends before `serving`, it goes on as well.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from egressproxy.model.kill_switch import KillChange
from egressproxy.net.listening import peer_of
from egressproxy.processes.workers.channel import FrameChannel

VERSIONS: Final = (1,)
#: How often a successor says that it works, in seconds.
WORKING_S: Final = 1.0


class Conversation:
    """One end of the channel. `next` gives the messages of the other end in their order."""

    def __init__(self, sock: socket.socket) -> None:
        self.peer, self.peer_user = peer_of(sock)
        self.withdrawn = asyncio.Event()  # the other end has said so
        self._heard: asyncio.Queue[tuple[dict[str, Any], list[int]] | None] = asyncio.Queue()
        self._channel = FrameChannel(sock, self._on_frame, self._ended)

    @property
    def is_trusted(self) -> bool:
        """Whether the other end is a process of the same user, or root's."""
        return self.peer_user in (os.geteuid(), 0)

    def say(self, kind: str, descriptors: Sequence[int] = (), **fields: Any) -> None:
        self._channel.send(json.dumps({"type": kind, **fields}).encode(), descriptors)

    async def next(self, within_s: float | None = None) -> tuple[str, dict[str, Any], list[int]]:
        """The type of the next message, its fields, and its descriptors, which are the caller's to close.

        Raises EOFError where the other end is gone or has sent something else, and TimeoutError.
        """
        message = await asyncio.wait_for(self._heard.get(), within_s)
        if message is None:
            self._heard.put_nowait(None)
            raise EOFError
        fields, descriptors = message
        return fields["type"], fields, descriptors

    async def expect(self, kind: str, within_s: float | None = None) -> dict[str, Any]:
        """The fields of the next message of this type; others are left out. Raises EOFError and TimeoutError."""
        async with asyncio.timeout(within_s):
            while True:
                received, fields, descriptors = await self.next()
                close_all(descriptors)
                if received == kind:
                    return fields

    def say_kill(self, change: KillChange) -> None:
        """Tell a change of the kill switch, for `kill_of`."""
        self.say("kill", name=change.name, kills=change.kills, why=change.why)

    def close(self) -> None:
        self._channel.close()
        while not self._heard.empty():
            if (message := self._heard.get_nowait()) is not None:
                close_all(message[1])
        self._heard.put_nowait(None)

    def _on_frame(self, frame: bytes, descriptors: list[int]) -> None:
        try:
            message = json.loads(frame)
            if not isinstance(message, dict) or not isinstance(message.get("type"), str):
                raise ValueError("no message")
        except ValueError:
            close_all(descriptors)
            self._channel.close()
            self._ended()
            return
        if message["type"] == "withdrawn":
            self.withdrawn.set()
        self._heard.put_nowait((message, descriptors))

    def _ended(self) -> None:
        self._heard.put_nowait(None)


def kill_of(fields: Mapping[str, Any]) -> KillChange:
    """The change that a message `kill` tells."""
    return KillChange(str(fields.get("name")), fields.get("kills") is True, str(fields.get("why")))


def close_all(descriptors: Sequence[int]) -> None:
    """Close what was sent and is not wanted."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
