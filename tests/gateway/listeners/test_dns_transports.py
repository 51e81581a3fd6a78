"""DNS over real sockets of loopback: the source of answers, and what a connection may do."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from egressproxy.gateway.listeners import dns_transports
from egressproxy.gateway.listeners.dns_transports import MAX_AT_ONCE, MAX_PENDING, DnsConnection, DnsDatagrams
from egressproxy.gateway.listeners.name_server import NameServer
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.net.listening import bind
from egressproxy.net.timers import TimerWheel
from tests.support.waiting import WAIT_S, until

QUERY = b"\0\7\1\0\0\1\0\0\0\0\0\0" + b"\1a\0\0\1\0\1"


class Echo:
    """In the place of a NameServer: answers with the query, or keeps what is to be answered."""

    def __init__(self) -> None:
        self.wheel = TimerWheel()
        self.metrics = None
        self.keeps = False
        self.kept: list[tuple[Callable[[bytes], None], bytes]] = []
        self.clients: list[str] = []

    def answer(self, wire: bytes, client: str, _port: Any, send: Callable[[bytes], None], *, is_tcp: bool) -> None:
        self.clients.append(client)
        if self.keeps:
            self.kept.append((send, wire))
        else:
            send(wire)


class State:
    """In the place of OpenConnections."""

    def __init__(self) -> None:
        self.is_closed = False
        self.port = None
        self.left = 0

    def admit(self, *_: object) -> None:
        pass

    def leave(self, _: object) -> None:
        self.left += 1


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.mark.parametrize(("address", "other"), [("0.0.0.0", "127.0.0.77"), ("::", "::1")])
def test_an_answer_leaves_from_the_address_that_was_asked(echo: Echo, address: str, other: str):
    """The socket is bound to every address: by its route alone an answer would leave from 127.0.0.1."""
    state = cast(OpenConnections, State())
    with bind(f"udp://{address}", 0) as sock, socket.socket(sock.family, socket.SOCK_DGRAM) as client:
        receive = DnsDatagrams(cast(NameServer, echo), sock).receive
        client.connect((other, sock.getsockname()[1]))  # so that datagrams of other addresses do not arrive
        client.settimeout(10)
        client.send(QUERY)
        while not echo.clients:
            receive(state)
        assert client.recv(4096) == QUERY
        name = client.getsockname()
        assert echo.clients == [f"[{name[0]}]:{name[1]}" if ":" in other else f"{name[0]}:{name[1]}"]
        receive(state)  # nothing is there
        cast(State, state).is_closed = True
        client.send(QUERY)
        receive(state)
        assert len(echo.clients) == 1


class Talk:
    """A client of a DnsConnection, over memory."""

    def __init__(self, echo: Echo) -> None:
        self.echo, self.state = echo, State()
        self.sent = b""
        self.is_closed = self.is_paused = False
        self.connection = DnsConnection(cast(NameServer, echo), cast(OpenConnections, self.state))
        self.connection.connection_made(cast(asyncio.BaseTransport, self))

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return "127.0.0.1", 7

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


@pytest.fixture
def talk(echo: Echo) -> Iterator[Talk]:
    made = Talk(echo)
    yield made
    made.connection.connection_lost(None)
    assert made.state.left == 1


FRAMED = len(QUERY).to_bytes(2) + QUERY


def test_queries_come_in_any_pieces(talk: Talk):
    for byte in FRAMED * 2:
        talk.connection.data_received(bytes((byte,)))
    assert talk.sent == FRAMED * 2
    talk.connection.data_received(FRAMED * 3 + FRAMED[:5])
    assert talk.sent == FRAMED * 5
    assert not talk.is_closed


@pytest.mark.parametrize("length", [0, 1233, 65535])
def test_a_length_that_no_query_has_ends_the_connection(talk: Talk, length: int):
    talk.connection.data_received(length.to_bytes(2))
    assert talk.is_closed


async def test_few_queries_of_a_connection_wait_at_once(echo: Echo):
    talk = Talk(echo)
    echo.keeps = True
    talk.connection.data_received(FRAMED * (MAX_PENDING + 3))
    assert (len(echo.kept), talk.is_paused, talk.connection.close_if_idle()) == (MAX_PENDING, True, False)
    send, wire = echo.kept[3]
    send(wire)
    await until(lambda: len(echo.kept) == MAX_PENDING + 1)
    assert talk.sent == FRAMED
    talk.connection.connection_lost(None)
    echo.kept[0][0](echo.kept[0][1])  # an answer that comes too late goes nowhere
    assert talk.sent == FRAMED


async def test_a_turn_of_the_loop_answers_few_queries(echo: Echo):
    """Each read may have thousands of them."""
    talk = Talk(echo)
    talk.connection.data_received(FRAMED * 40)
    assert (len(echo.clients), talk.is_paused) == (MAX_AT_ONCE, True)
    await until(lambda: len(echo.clients) == 40)
    assert (talk.sent, talk.is_paused) == (FRAMED * 40, False)
    talk.connection.connection_lost(None)


def test_a_client_that_does_not_read_is_not_read(talk: Talk):
    talk.connection.pause_writing()
    talk.connection.data_received(FRAMED)
    assert (talk.echo.clients, talk.is_paused) == ([], True)
    talk.connection.resume_writing()
    assert (talk.sent, talk.is_paused) == (FRAMED, False)


def test_bytes_of_half_a_query_win_no_time(talk: Talk):
    """As a slowloris sends them."""
    wheel = talk.echo.wheel
    begun = wheel.now
    for seconds in range(9):
        wheel.advance(begun + seconds)
        talk.connection.data_received(FRAMED[seconds : seconds + 1])
    assert not talk.is_closed
    wheel.advance(begun + dns_transports.IDLE_S + 0.2)
    assert talk.is_closed


def test_a_connection_waits_for_its_answers(talk: Talk):
    talk.echo.keeps = True
    talk.connection.data_received(FRAMED)
    talk.echo.wheel.advance(talk.echo.wheel.now + dns_transports.IDLE_S + 0.2)
    assert (talk.is_closed, talk.connection.eof_received()) == (False, True)
    talk.echo.kept[0][0](QUERY)
    assert (talk.sent, talk.is_closed) == (FRAMED, True)


def test_a_connection_of_a_listener_that_has_gone_ends_with_its_answer(talk: Talk):
    talk.state.is_closed = True
    talk.connection.data_received(FRAMED)
    assert (talk.sent, talk.is_closed) == (FRAMED, True)


def test_a_gateway_without_a_listener_of_dns_imports_none_of_it():
    loaded = (
        "[name for name in sys.modules if '.listeners.name_' in name or '.listeners.dns' in name or '.dns.' in name]"
    )
    program = f"import sys, egressproxy.doors.data_plane, egressproxy.processes.workers.worker; print({loaded})"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert ended.stdout == "[]\n"
