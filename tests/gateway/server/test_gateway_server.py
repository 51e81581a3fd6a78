"""Putting configurations into service, and taking the gateway out of it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import ClassVar

import pytest

from egressproxy.filters.base import Filter, FilterContext, FilterType, Phase
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.settings import FilterConfig
from egressproxy.gateway.server.gateway_server import ARRIVE_S, GatewayServer
from egressproxy.ir.gateway import ConfigIR
from egressproxy.model.exchange import Exchange
from egressproxy.net.listening import BindError
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.metrics import Metrics
from tests.support import manifests as m
from tests.support.conversation import compiled_spec
from tests.support.net import free_port
from tests.support.waiting import WAIT_S


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayServer]:
    made = GatewayServer(Catalog(), Metrics("0"), AccessLog("off"))
    yield made
    await made.drain(0)


def listening_on(*ports: int) -> ConfigIR:
    return compiled_spec([m.gateway(*(m.forward_listener(port, f"l{port}") for port in ports)), m.policy(["a.test"])])


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_a_port_that_cannot_be_bound_leaves_everything_as_it_was(gateway: GatewayServer):
    kept, free = free_port(), free_port()
    before = await gateway.apply(listening_on(kept))
    with socket.create_server(("127.0.0.1", 0)) as taken:  # noqa: SIM117 (its port is in the pattern)
        with pytest.raises(BindError, match=f"port {taken.getsockname()[1]}: .*ss -ltnp"):
            await gateway.apply(listening_on(kept, free, taken.getsockname()[1]))
    assert gateway.snapshot is before
    assert is_listening(kept)
    assert not is_listening(free), "what was bound on the way is let go"
    await gateway.apply(listening_on(kept, free))
    assert is_listening(free)


async def test_equal_parts_live_on_and_a_listener_that_goes_is_closed(gateway: GatewayServer):
    one, two = free_port(), free_port()
    first = await gateway.apply(listening_on(one, two))
    second = await gateway.apply(listening_on(one))
    assert list(first.clusters.values()) == list(second.clusters.values())
    assert is_listening(one)
    assert not is_listening(two)
    again = await gateway.apply(listening_on(one, two))
    assert is_listening(two)
    assert len(again.ports) == 2


async def test_a_drained_gateway_listens_no_more():
    made = GatewayServer(Catalog(), Metrics("0"), AccessLog("off"))
    port = free_port()
    await made.apply(listening_on(port))
    assert await made.drain(1.0) == 0
    assert not is_listening(port)


DENIED = b"GET http://b.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n"


def all_of(client: socket.socket) -> bytes:
    """What has come, to the end. Raises ConnectionResetError."""
    client.settimeout(WAIT_S)
    return b"".join(iter(lambda: client.recv(65536), b""))


async def test_connections_that_the_kernel_has_accepted_when_the_drain_begins_are_served():
    """To close the socket would reset them, with what they have asked for."""
    made = GatewayServer(Catalog(), Metrics("0"), AccessLog("off"))
    port = free_port()
    await made.apply(listening_on(port))
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    for client in clients:
        client.sendall(DENIED)
    assert await made.drain(WAIT_S) == 0
    for client in clients:
        with client:
            answer = all_of(client)
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert b"\r\nConnection: close\r\n" in answer


async def test_a_request_that_is_on_its_way_on_an_idle_connection_when_the_drain_begins_is_served():
    made = GatewayServer(Catalog(), Metrics("0"), AccessLog("off"))
    port = free_port()
    await made.apply(listening_on(port))
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setblocking(False)
        client.sendall(DENIED)
        async with asyncio.timeout(WAIT_S):
            assert b"\r\nConnection: close\r\n" not in await asyncio.get_running_loop().sock_recv(client, 65536)
        client.sendall(DENIED)
        assert await made.drain(WAIT_S) == 0
        answer = all_of(client)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"\r\nConnection: close\r\n" in answer


async def test_a_connection_whose_answer_was_under_way_when_the_drain_began_may_ask_once_more():
    """Its head did not say that the connection ends, so the client sends its next request on it."""
    answering: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
            answering.put_nowait(writer)

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as origin:
        made = GatewayServer(Catalog(), Metrics("0"), AccessLog("off"))
        port, where = free_port(), origin.sockets[0].getsockname()[1]
        routed = [m.ip_backend("a", where), m.http_route("route", m.prefix_rule("/", "a"))]
        await made.apply(compiled_spec([m.gateway(m.http_listener(port)), m.policy(), *routed]))
        get = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"
        async with asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(get)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"\r\nConnection: close\r\n" not in head
            draining = asyncio.create_task(made.drain(WAIT_S))
            await asyncio.sleep(2 * ARRIVE_S)  # idle connections have gone
            (await answering.get()).write(b"hi")
            assert await reader.readexactly(2) == b"hi"
            writer.write(get)
            assert b"\r\nConnection: close\r\n" in await reader.readuntil(b"\r\n\r\n")
            (await answering.get()).write(b"hi")
            assert await reader.read() == b"hi"
            assert await draining == 0
            writer.close()


async def test_what_waits_is_left_to_another_process_that_accepts_there():
    made = GatewayServer(Catalog(), Metrics("0"), AccessLog("off"))
    port = free_port()
    await made.apply(listening_on(port))
    bound = made._bound["127.0.0.1", port]
    with socket.socket(fileno=os.dup(bound._sock.fileno())) as other:
        bound.pause_accepting()
        with socket.create_connection(("127.0.0.1", port)):
            bound.resume_accepting()
            assert await made.drain(WAIT_S, elsewhere={("127.0.0.1", port)}) == 0
            other.accept()[0].close()


async def test_an_idle_connection_may_ask_once_more_for_as_long_as_it_is_told(monkeypatch: pytest.MonkeyPatch):
    """Also for a tunnel: its listener is still configured."""
    made = GatewayServer(Catalog(), Metrics("0"), AccessLog("off"))
    port = free_port()
    await made.apply(listening_on(port))
    loop = asyncio.get_running_loop()
    slept: list[float] = []
    sleep = asyncio.sleep
    with socket.create_connection(("127.0.0.1", port)) as client, socket.create_connection(("127.0.0.1", port)) as idle:
        client.setblocking(False)
        client.sendall(DENIED)
        async with asyncio.timeout(WAIT_S):
            await loop.sock_recv(client, 65536)

        async def count(seconds: float) -> None:
            slept.append(seconds)
            if sum(slept) >= 0.5 and len(slept) < 100:
                slept.extend([0.0] * 100)
                client.sendall(b"CONNECT b.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n")
            await sleep(0.001)

        monkeypatch.setattr("egressproxy.gateway.server.gateway_server.asyncio.sleep", count)
        assert await made.drain(WAIT_S, idle_s=1.0) == 0
        answer = all_of(client)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert all_of(idle) == b""
    assert 1.0 <= sum(slept) < 2.0, "then it is closed"


@dataclass(frozen=True, slots=True)
class NoConfig(FilterConfig):
    """Nothing."""


class Closing(Filter):
    closed: ClassVar[list[str]] = []

    def __init__(self, context: FilterContext) -> None:
        self.name = context.name

    def request_headers(self, x: Exchange) -> None:
        pass

    def close(self) -> None:
        self.closed.append(self.name)


async def test_filters_of_a_configuration_that_does_not_come_into_service_are_closed(gateway: GatewayServer):
    kind = FilterType("test/Closing:v1", frozenset(Phase), NoConfig, Closing)
    gateway.catalog = Catalog([kind])
    Closing.closed.clear()

    def configured(*names: str) -> ConfigIR:
        extensions = [{"name": name, "type": kind.name, "phase": "request-headers"} for name in names]
        manifests = [m.gateway(m.forward_listener(free_port())), m.policy(["a.example"], extensions=extensions)]
        return compiled_spec(manifests, gateway.catalog)

    await gateway.apply(configured("a"))
    await gateway.prepare(configured("a", "guarded"))
    assert Closing.closed == []
    await gateway.apply(configured("a", "b"))
    assert Closing.closed == ["guarded"]
    await gateway.apply(configured("b"))
    assert Closing.closed == ["guarded", "a"]
    await gateway.prepare(configured("b", "late"))
    await gateway.drain(0)
    assert sorted(Closing.closed) == ["a", "b", "guarded", "late"]
