"""The messages of a WebSocket, as filters get them: as bodies of requests, and as events of the answers.

A driver that can give messages to filters keeps `Messages` in the exchange of an upgrade, before filters see its head.
A filter that reads bodies then asks for messages, if the API is known, and need not refuse the upgrade.
`Filter.of_messages` says which filters get messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.message import RequestHead
from egressproxy.model.websocket_extensions import narrow_offers
from egressproxy.model.work import Work

T = TypeVar("T")


class ServerEvent(NamedTuple):
    """A message of the server, as filters get it. `data`: an event of a stream, or the whole body of an answer with an
    error `status` (0: none). `is_last`: the response ends.
    """

    data: bytes
    is_last: bool = False
    status: int = 0


class MessageKind(Enum):
    """The kind of a client's message: without content, with content alone, or the request for a response."""

    NO_CONTENT = 0
    CONTENT = 1
    ASKS_RESPONSE = 2


class MessageApi(ABC):
    """What the messages of one API mean. The methods raise Unreadable for unknown messages."""

    @abstractmethod
    def kind_of(self, message: bytes) -> Work[MessageKind]:
        """The kind of this message of a client."""

    def request_of(self, message: bytes) -> bytes:
        """The body of a request with the content of a message of a client."""
        return message

    def message_of(self, _message: bytes, body: bytes) -> bytes:
        """The message with what filters have left of its `request_of`."""
        return body

    def without_content(self, message: bytes) -> bytes:
        """A message of MessageKind.NO_CONTENT, as the server gets it."""
        return message

    def outside_response(self, _message: bytes, *, is_asked: bool) -> bytes | None:
        """For a message of the server that belongs to no response: what the client gets of it, b"" for nothing. None:
        it belongs to the one that `is_asked` for.
        """
        return None

    @abstractmethod
    def event_of(self, message: bytes, *, is_first: bool) -> ServerEvent:
        """What a message of the server is to filters. `is_first`: of its response."""

    @abstractmethod
    def reader(self) -> Callable[[bytes, bool], list[bytes]]:
        """A function for one stream, as filters leave it: from a piece, which may be the last, to the messages that are
        whole with that piece.
        """

    @abstractmethod
    def request_head(self, head: RequestHead) -> RequestHead:
        """The head of a request with the same content, of the head of the upgrade."""

    @abstractmethod
    def error(self, about: dict[str, object], retry_after_s: int) -> bytes:
        """The message that tells a client of an error; `about` is what our errors tell."""


class Messages:
    """`upgrade` is the head as its client has sent it. `api` and `head` are set once a filter has asked for messages;
    each message is a request with this head. `kept` has the objects of `kept`, by filter.
    """

    __slots__ = ("api", "head", "kept", "upgrade")

    def __init__(self, upgrade: RequestHead) -> None:
        self.upgrade = upgrade
        self.api: MessageApi | None = None
        self.head: RequestHead | None = None
        self.kept: dict[object, object] = {}


MESSAGES: Final[StateSlot[Messages]] = StateSlot("messages")


def are_read(exchange: Exchange) -> bool:
    """Whether filters get the messages of this upgrade."""
    messages = exchange.state.get(MESSAGES)
    return messages is not None and messages.api is not None


def kept(exchange: Exchange, own: object, kind: type[T]) -> T:
    """An object of this kind for this filter: one for all messages of a WebSocket, since the server may remember what
    earlier ones have said; else a new one.
    """
    messages = exchange.state.get(MESSAGES)
    if messages is None:
        return kind()
    found = messages.kept.setdefault(own, kind())
    assert isinstance(found, kind)
    return found


def ask_for_messages(exchange: Exchange, api: MessageApi) -> bool:
    """Ask for the messages of this upgrade. Returns whether filters get them. A body of the request itself would be
    for nobody (RFC 6455 section 4.1), and a server that ignores the upgrade would read it.
    """
    messages = exchange.state.get(MESSAGES)
    if messages is None or exchange.request.method != b"GET" or exchange.request.body != 0:
        return False
    messages.api = api
    narrow_offers(exchange.request.fields)
    if messages.head is None or exchange.backend == "-":  # later it may have a credential for the backend
        messages.head = api.request_head(exchange.request)
    return True
