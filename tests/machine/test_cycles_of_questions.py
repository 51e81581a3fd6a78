"""What was asked about a request is freed with it, without the garbage collector, however it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from egressproxy.errors import GatewayError
from egressproxy.gateway.backends.buffered_body import BufferedRequest
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.model.exchange import Exchange
from egressproxy.protocols.http1.upstream import UpstreamConnection
from egressproxy.protocols.http2.upstream import Http2Upstream
from egressproxy.protocols.http2.upstream_stream import UpstreamStream
from tests.envoy.ext_authz import test_filter as http
from tests.envoy.ext_authz import test_grpc_client as grpc
from tests.gateway.kit import OK
from tests.support.conversation import Conversation, conversation
from tests.support.leftovers import Leftovers, leftovers_of

left = leftovers_of(
    ClientConnection, UpstreamConnection, Http2Upstream, UpstreamStream, Pipeline, Exchange, BufferedRequest,
    GatewayError,
)  # fmt: skip
TIMES = {"timeouts": {"backendRequest": "50ms"}}


def serve(talk: Conversation) -> None:
    talk.dialled("a.example", 80)
    talk.origin.take(rb".*?\r\n\r\n.*")
    talk.origin >> OK


def http_allows(talk: Conversation) -> None:
    http.asked(talk)
    talk.origin >> http.ALLOWED
    serve(talk)


def http_denies(talk: Conversation) -> None:
    http.asked(talk)
    talk.origin >> b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"


def http_talks_nonsense(talk: Conversation) -> None:
    http.asked(talk)
    talk.origin >> b"nonsense\r\n\r\n"


def is_silent(talk: Conversation) -> None:
    talk.until(lambda: bool(talk.records))


def client_leaves(talk: Conversation) -> None:
    http.asked(talk)
    talk.client.resets()


def grpc_says(message: bytes | None, status: int = 0) -> Callable[[Conversation], None]:
    def answer(talk: Conversation) -> None:
        service = grpc.Service(talk)
        service.says(service.asked(), message, status)
        if message == grpc.ALLOWED:
            serve(talk)

    return answer


def grpc_leaves(talk: Conversation) -> None:
    service = grpc.Service(talk)
    service.asked()
    service.peer.leaves()


def grpc_is_not_heard_by_the_client(talk: Conversation) -> None:
    grpc.Service(talk).asked()
    talk.client.resets()


@pytest.mark.parametrize(
    ("written", "happens"),
    [
        (http.guarded(http.auth(forward=100)), http_allows),
        (http.guarded(), http_denies),
        (http.guarded(), http_talks_nonsense),
        (http.guarded(traffic=TIMES), is_silent),
        (http.guarded(), client_leaves),
        (grpc.guarded(body=100), grpc_says(grpc.ALLOWED)),
        (grpc.guarded(), grpc_says(grpc.DENIED)),
        (grpc.guarded(), grpc_says(b"\xff")),
        (grpc.guarded(), grpc_says(None, 14)),
        (grpc.guarded(), grpc_leaves),
        (grpc.guarded(traffic=TIMES), is_silent),
        (grpc.guarded(), grpc_is_not_heard_by_the_client),
    ],
)
def test_nothing_is_left_of_a_question(left: Leftovers, written: Any, happens: Callable[[Conversation], None]):
    talk = conversation(written, wire="sockets")
    talk.counts_octets = False
    talk.client >> http.POST
    happens(talk)
    talk.until(lambda: bool(talk.records))
    assert left.of(talk) == Counter()
    talk.close()
