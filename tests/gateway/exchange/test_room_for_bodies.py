"""What a client may have held of its bodies: beyond that they wait, in the order in which they began."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from egressproxy.filters.base import BodyMode, Filter, Phase
from egressproxy.model.exchange import Exchange
from egressproxy.net import held_bytes
from tests.ai.backends.test_translation import provider
from tests.envoy.ext_authz.test_filter import auth, guarded
from tests.gateway.conftest import Start
from tests.gateway.h2 import Http2Peer, speak_http2
from tests.gateway.kit import forward
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter

LIMIT = 1_000_000
SIZE = 600_000
#: What is on its way on a stream when it has to wait.
WINDOW = 256 * 1024


class Whole(Filter):
    """Gets requests whole."""

    body_mode = BodyMode.BUFFER
    max_buffer_bytes = 100_000_000

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.fails = False

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        if self.fails:
            raise RuntimeError
        self.sizes.append(len(data))
        return data


class WholeAnswers(Filter):
    """Gets answers whole."""

    body_mode = BodyMode.BUFFER
    max_buffer_bytes = 100_000_000

    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        return data


class Upload:
    """A request of HTTP/2 whose body goes out as the windows allow."""

    def __init__(self, client: Http2Peer, body: int | bytes, path: bytes = b"/") -> None:
        self.client = client
        self.left = bytes(body)
        fields = (b"content-type", b"application/json"), (b"content-length", b"%d" % len(self.left))
        self.stream = client.ask(b"POST", path, b"a.example", *fields, ends=False)

    def goes_on(self) -> bool:
        """Send one frame, if it may. Returns whether it did."""
        h2 = self.client.h2
        if not self.left or self.stream not in h2.streams or h2.streams[self.stream].closed:
            return False
        most = min(len(self.left), h2.local_flow_control_window(self.stream), 16_384)
        if most <= 0:
            return False
        piece, self.left = self.left[:most], self.left[most:]
        self.says(piece)
        return True

    def says(self, piece: bytes) -> None:
        self.client.says(self.stream, piece, ends=not self.left)


class Tunnelled(Upload):
    """A request of HTTP/1 in a tunnel, which stays open."""

    def __init__(self, client: Http2Peer, request: bytes) -> None:
        self.client = client
        self.left = request
        self.stream = client.connects(b"a.example:80")

    def says(self, piece: bytes) -> None:
        self.client.says(self.stream, piece)


def send_all(*uploads: Upload) -> None:
    """Each in turn, until no window allows more."""
    uploads[0].client.settle()
    goes_on = True
    while goes_on:
        goes_on = False
        for each in uploads:
            goes_on = each.goes_on() or goes_on


def limited(phase: str = "request-body", **limits: int) -> Any:
    return forward(
        extensions=[scripted_filter("b", phase)],
        limits={"bufferedBytesPerClient": LIMIT, "bufferedBytesPerConnection": LIMIT, **limits},
    )


def held(talk: Conversation) -> int:
    return talk.connection_manager.clients.held_bytes


def serve_one(talk: Conversation) -> None:
    """A backend answers the first of the requests that it has got."""
    while talk.pending_dial() is not None:
        talk.dialled("a.example", 80)
    talk.settle()
    asked = next(each for each in talk.origins if each.received)
    asked.received.clear()
    asked >> b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    talk.settle()


def test_streams_of_http_2_wait_for_room_and_none_fails(converse: Start):
    body = Whole()
    talk = converse(limited(), filters={"b": body})
    client = speak_http2(talk)
    uploads = [Upload(client, SIZE) for _ in range(10)]
    send_all(*uploads)
    assert body.sizes == [SIZE], "the oldest goes on"
    assert held(talk) < LIMIT + SIZE + 10 * WINDOW
    assert talk.connection_manager.clients.bodies_waited >= 8
    for _ in range(10):
        serve_one(talk)
        send_all(*uploads)
        assert held(talk) < LIMIT + SIZE + 10 * WINDOW
    assert body.sizes == [SIZE] * 10
    assert [client.answer(each.stream).status for each in uploads] == [200] * 10
    assert held(talk) == 0


def test_connections_of_http_1_wait_for_room_too(converse: Start):
    body = Whole()
    talk = converse(limited(), filters={"b": body})
    head = b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n" % SIZE
    clients = [talk.client, *(talk.connect() for _ in range(3))]
    left = [SIZE] * 4
    for client in clients:
        client >> head

    def send() -> None:
        """As a kernel does: nothing comes of what is not read."""
        has_sent = True
        while has_sent:
            has_sent = False
            for number, client in enumerate(clients):
                if left[number] and not client.transport.is_paused:  # type: ignore[attr-defined]
                    piece = min(left[number], 65_536)
                    left[number] -= piece
                    client >> bytes(piece)
                    has_sent = True

    send()
    assert body.sizes == [SIZE]
    assert held(talk) < LIMIT + SIZE + 4 * 65_536
    for _ in range(4):
        serve_one(talk)
        send()
    assert body.sizes == [SIZE] * 4
    for client in clients:
        client.take(rb"HTTP/1.1 200 OK\r\n.*?ok")
    assert held(talk) == 0


def test_connections_without_a_limit_of_their_client_have_one_each(converse: Start):
    body = Whole()
    talk = converse(limited(bufferedBytesPerClient=0), filters={"b": body})
    clients = [speak_http2(talk), Http2Peer(talk.connect())]
    uploads = [[Upload(client, SIZE) for _ in range(4)] for client in clients]
    for each in uploads:
        send_all(*each)
    assert body.sizes == [SIZE, SIZE], "the oldest of each connection"


@pytest.mark.parametrize("how", ["client resets", "client leaves", "backend refuses", "filter fails", "time is over"])
def test_what_is_held_is_released_whatever_the_end_is(converse: Start, how: str):
    body = Whole()
    talk = converse(limited(), filters={"b": body})
    client = speak_http2(talk)
    first, *others = [Upload(client, SIZE) for _ in range(4)]
    send_all(first, *others)
    assert held(talk) > LIMIT
    if how == "client resets":
        for each in (first, *others):
            client.resets(each.stream)
    elif how == "client leaves":
        talk.client.leaves()
    elif how == "backend refuses":
        for _ in range(4):
            talk.dialled("a.example", 80).resets()
            send_all(first, *others)
    elif how == "filter fails":
        body.fails = True
        client.resets(first.stream)
        send_all(*others)
    else:
        for each in (first, *others[1:]):
            client.resets(each.stream)
        talk.after(130)
    talk.settle()
    assert held(talk) == 0
    assert not talk.connection_manager.clients.held, "an account without exchanges is no more"


def test_a_body_for_which_no_room_comes_is_a_503_that_says_so(converse: Start):
    body = Whole()
    talk = converse(limited(), filters={"b": body})
    client = speak_http2(talk)
    uploads = [Upload(client, SIZE) for _ in range(3)]
    send_all(*uploads)
    talk.dialled("a.example", 80)  # which never answers
    talk.after(500)
    assert not client.answer(uploads[1].stream).fields, "it waits"
    talk.after(200)
    answer = client.answer(uploads[1].stream)
    error = json.loads(answer.data)["error"]
    assert (answer.status, error["reason"]) == (503, "overloaded")
    assert f"({LIMIT} bytes" in error["message"]
    assert "limits.bufferedBytesPerClient" in str(error)


def test_what_is_on_its_way_has_a_bound_too(converse: Start, monkeypatch: pytest.MonkeyPatch):
    body, on_its_way = Whole(), 2 * 1024 * 1024
    monkeypatch.setattr(held_bytes, "ON_ITS_WAY", on_its_way)
    talk = converse(limited(), filters={"b": body})
    clients = [speak_http2(talk), *(Http2Peer(talk.connect()) for _ in range(2))]
    uploads = [[Upload(client, SIZE) for _ in range(8)] for client in clients]
    for each in uploads:
        send_all(*each)
    assert held(talk) < LIMIT + on_its_way + WINDOW
    answers = [
        client.answer(each.stream) for client, asked in zip(clients, uploads, strict=True) for each in asked
    ]  # fmt: skip
    refused = [answer.status for answer in answers if answer.fields]
    assert set(refused) == {503}
    assert len(refused) < 20


def test_a_body_that_is_held_has_a_bound(converse: Start):
    body = Whole()
    talk = converse(limited(maxBufferedBytes=SIZE), filters={"b": body})
    client = speak_http2(talk)
    short, long = Upload(client, SIZE), Upload(client, SIZE + 1)
    send_all(short)
    serve_one(talk)
    send_all(long)
    assert client.answer(short.stream).status == 200
    answer = client.answer(long.stream)
    assert (answer.status, json.loads(answer.data)["error"]["reason"]) == (413, "body_too_large")
    assert "limits.maxBufferedBytes" in json.loads(answer.data)["error"]["message"]


def test_bodies_that_flow_are_counted_nowhere(converse: Start):
    talk = converse(forward(limits={"bufferedBytesPerClient": 10, "maxBufferedBytes": 10}))
    client = speak_http2(talk)
    upload = Upload(client, SIZE)
    talk.dialled("a.example", 80)
    send_all(upload)
    assert len(talk.origin.received) > SIZE
    assert not talk.connection_manager.clients.held
    serve_one(talk)
    assert client.answer(upload.stream).status == 200


def test_answers_that_are_held_wait_for_room(converse: Start):
    talk = converse(limited("response-body"), filters={"b": WholeAnswers()})
    client = speak_http2(talk, window=100)
    client.opens_windows = False
    streams = [client.ask(b"GET", b"/", b"a.example") for _ in range(6)]
    for _ in streams:
        talk.dialled("a.example", 80)
    for origin in talk.origins:
        origin >> b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE
    left = [SIZE] * 6

    def send() -> None:
        has_sent = True
        while has_sent:
            has_sent = False
            for number, origin in enumerate(talk.origins):
                if left[number] and not origin.transport.is_paused:  # type: ignore[attr-defined]
                    left[number] -= 60_000
                    origin >> bytes(60_000)
                    has_sent = True

    send()
    assert held(talk) < LIMIT + SIZE + 6 * 60_000, "also while the client takes nothing of it"
    for stream in streams:
        client.h2.increment_flow_control_window(SIZE * 2)
        client.h2.increment_flow_control_window(SIZE * 2, stream)
        client.settle()
        send()
        assert held(talk) < LIMIT + SIZE + 6 * 60_000
    assert [len(client.answer(stream).data) for stream in streams] == [SIZE] * 6
    assert held(talk) == 0


TRANSLATED = [
    m.gateway(m.http_listener(8080)),
    m.policy(limits={"bufferedBytesPerClient": LIMIT}),
    provider("a", "AnthropicMessages"),
    m.http_route("route", m.prefix_rule("/", "a")),
]


def test_what_a_translation_holds_counts_too(converse: Start):
    talk = converse(TRANSLATED)
    client = speak_http2(talk)
    said = {"model": "m", "messages": [{"role": "user", "content": "x" * SIZE}]}
    uploads = [Upload(client, json.dumps(said).encode(), b"/v1/chat/completions") for _ in range(5)]
    send_all(*uploads)
    assert SIZE < held(talk) < LIMIT + SIZE + 5 * WINDOW
    assert [not upload.left for upload in uploads] == [True, False, False, False, False]
    talk.dialled("a.example", 80).resets()
    for _ in range(5):
        send_all(*uploads)
        while talk.pending_dial() is not None:
            talk.dialled("a.example", 80).resets()
    assert [client.answer(each.stream).status for each in uploads] == [502] * 5
    assert held(talk) == 0


def test_an_answer_to_be_translated_waits_for_room(converse: Start):
    talk = converse(TRANSLATED)
    client = speak_http2(talk)
    said = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
    uploads = [Upload(client, said, b"/v1/chat/completions") for _ in range(5)]
    send_all(*uploads)
    for _ in uploads:
        talk.dialled("a.example", 80)
    kind = b"Content-Type: application/json\r\n"
    for origin in talk.origins:
        origin >> b"HTTP/1.1 200 OK\r\n" + kind + b"Content-Length: %d\r\n\r\n" % SIZE
    for _ in range(10):
        for origin in talk.origins:
            if not origin.transport.is_paused:  # type: ignore[attr-defined]
                origin >> bytes(50_000)
    assert held(talk) < LIMIT + SIZE
    talk.client.leaves()
    assert held(talk) == 0


@pytest.mark.parametrize("most", [200_000, 2_000_000])
def test_a_body_for_which_there_is_no_room_is_not_kept_for_another_attempt(converse: Start, most: int):
    group = m.failover("any", "a", "b", maxReplayBytes=2_000_000)
    objects = [
        m.gateway(m.http_listener(8080)),
        m.policy(limits={"bufferedBytesPerClient": most}),
        m.backend("a", "a.example", 80),
        m.backend("b", "b.example", 80),
        group,
        m.http_route("route", m.prefix_rule("/", "any")),
    ]
    talk = converse(objects)
    client = speak_http2(talk)
    uploads = [Upload(client, SIZE), Upload(client, SIZE)]
    for _ in uploads:
        talk.dialled("a.example", 80)
    send_all(*uploads)
    assert [not upload.left for upload in uploads] == [True, True], "nobody waits"
    assert held(talk) <= most + SIZE
    for origin in list(talk.origins):
        origin >> b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"
    talk.settle()
    assert len(talk.dialer.dials) == (1 if most < SIZE else 2), "the oldest has room in any case"
    talk.client.leaves()
    assert held(talk) == 0


def test_what_an_authorization_server_is_shown_counts_too(converse: Start):
    talk = converse(guarded(auth(forward=60_000)))
    client = speak_http2(talk)
    uploads = [Upload(client, 60_000) for _ in range(4)]
    send_all(*uploads)
    assert held(talk) == 4 * 60_000
    talk.client.leaves()
    assert held(talk) == 0


def test_requests_in_tunnels_of_one_connection_wait_for_room_and_keep_none_from_going_on(converse: Start):
    body = Whole()
    talk = converse(limited(), filters={"b": body})
    client = speak_http2(talk)
    head = b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n" % SIZE
    uploads = [Tunnelled(client, head + bytes(SIZE)) for _ in range(8)]
    send_all(*uploads)
    assert body.sizes == [SIZE]
    client.resets(uploads.pop(3).stream)  # it waits
    for _ in uploads:
        serve_one(talk)
        send_all(*uploads)
        assert held(talk) < LIMIT + SIZE + 8 * WINDOW
    assert (body.sizes, held(talk)) == ([SIZE] * 7, 0)
    for each in uploads:  # and the tunnels go on
        each.left = head + bytes(SIZE)
    send_all(*uploads)
    for _ in uploads:
        serve_one(talk)
        send_all(*uploads)
    assert body.sizes == [SIZE] * 14


class Keeping(Filter):
    """Lets bodies through, and keeps all of them."""

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}

    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        self.kept[x.request_id] = self.kept.get(x.request_id, 0) + len(data)
        return data

    def held_bytes(self, x: Exchange, phase: Phase) -> int:
        return self.kept.get(x.request_id, 0)


METERED = {"name": "m", "type": "egressproxy.io/TokenMeter:v1", "phase": "request-headers", "config": {}}


@pytest.mark.parametrize("is_meter", [False, True])
def test_what_a_filter_keeps_of_a_body_that_flows_counts_too(converse: Start, is_meter: bool):
    limits = {"bufferedBytesPerClient": LIMIT}
    extensions = [METERED] if is_meter else [scripted_filter("b", "response-body")]
    talk = converse(forward(extensions=extensions, limits=limits), filters={"b": Keeping()})
    client = speak_http2(talk, window=100_000_000)
    client.h2.increment_flow_control_window(100_000_000)
    uploads = [Upload(client, b'{"model": "m", "messages": []}', b"/v1/chat/completions") for _ in range(5)]
    send_all(*uploads)
    for _ in uploads:
        talk.dialled("a.example", 80)
    kind = b"Content-Type: application/json\r\n"
    for origin in talk.origins:
        origin >> b"HTTP/1.1 200 OK\r\n" + kind + b"Content-Length: %d\r\n\r\n" % (2 * SIZE)
    for _ in range(20):
        for origin in talk.origins:
            if not origin.transport.is_paused:  # type: ignore[attr-defined]
                origin >> bytes(50_000)
    assert LIMIT < held(talk) < LIMIT + 2 * SIZE
    talk.client.leaves()
    assert held(talk) == 0


class Slow(Whole):
    """Takes its time with each body."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on: list[asyncio.Future[None]] = []

    def request_body(self, x: Exchange, data: bytes, last: bool) -> Any:
        return self.looking(data)

    async def looking(self, data: bytes) -> bytes:
        self.goes_on.append(asyncio.get_running_loop().create_future())
        self.sizes.append(len(data))
        await self.goes_on[-1]
        return data


def test_what_a_filter_looks_at_in_turns_is_held_meanwhile(converse: Start):
    body = Slow()
    talk = converse(limited(), filters={"b": body})
    client = speak_http2(talk)
    uploads = [Upload(client, SIZE) for _ in range(6)]
    for each in uploads:
        send_all(each)
    assert body.sizes == [SIZE] * 2, "the rest of the second was on its way; the others wait"
    assert 2 * SIZE <= held(talk) < LIMIT + SIZE + 6 * WINDOW
    for each in body.goes_on:
        talk.act(lambda done=each: done.set_result(None))
    assert 2 * SIZE <= held(talk) < LIMIT + SIZE + 6 * WINDOW, "until they are sent"
    talk.client.leaves()
    talk.settle()
    assert held(talk) == 0


class InTurns(Filter):
    """Gets requests as they come, and waits a turn with each piece."""

    def request_body(self, x: Exchange, data: bytes, last: bool) -> Any:
        return self.looking(data)

    async def looking(self, data: bytes) -> bytes:
        await asyncio.sleep(0)
        return data


def test_a_filter_in_turns_does_not_read_on_for_who_waits(converse: Start):
    body = Whole()
    limits = {"bufferedBytesPerClient": LIMIT}
    extensions = [scripted_filter("a", "request-body"), scripted_filter("b", "request-body")]
    talk = converse(forward(extensions=extensions, limits=limits), filters={"a": InTurns(), "b": body})
    clients = [talk.client, *(talk.connect() for _ in range(3))]
    size = 8 * SIZE
    for client in clients:
        client >> b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n" % size
    left = [size - 1] * 4
    for _ in range(size // 65_536):
        for number, client in enumerate(clients):
            if not client.transport.is_paused:  # type: ignore[attr-defined]
                piece = min(left[number], 65_536)
                left[number] -= piece
                client >> bytes(piece)
                talk.settle()
    assert left[0] < SIZE, "the oldest goes on"
    assert held(talk) < LIMIT + size + 4 * 65_536
    assert min(left[1:]) > size - LIMIT - 4 * 65_536


class Longer(Whole):
    """Makes each request a byte longer, and knows what it has made."""

    made = b""

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        self.made = data + b"!"
        return self.made


@pytest.mark.parametrize(
    ("rule", "traffic"),
    [({}, {}), ({"retry": {"attempts": 2}}, {}), ({}, {"hedging": {"hedgingDelay": "10s"}})],
    ids=["one attempt", "retries", "hedging"],
)
@pytest.mark.parametrize("filter_of_backend", [(), ("own",)], ids=["rule", "backend"])
def test_a_request_that_was_held_is_let_go_when_its_answer_begins(
    converse: Start, rule: dict[str, Any], traffic: dict[str, Any], filter_of_backend: tuple[str, ...]
):
    body = Longer()
    own = [scripted_filter(name, "request-body") for name in filter_of_backend]
    objects = [
        m.gateway(m.http_listener(8080)),
        m.policy(extensions=[scripted_filter("b", "request-body")], traffic=traffic),
        m.backend("a", "a.example", 80, extensions=own),
        m.http_route("route", m.prefix_rule("/", "a", **rule)),
    ]
    talk = converse(objects, filters={"b": body, "own": Whole()})
    talk.client >> b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % SIZE + bytes(SIZE)
    talk.dialled("a.example", 80)
    talk.origin.take(rb"(?s)PUT .*!")
    talk.origin >> b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
    talk.client.take(rb"(?s)HTTP/1.1 200 .*a\r\n")
    assert held(talk) == 0
    made, body.made = body.made, b""
    assert sys.getrefcount(made) == 2, "nobody else has it"
