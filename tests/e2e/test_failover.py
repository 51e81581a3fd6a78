"""Failover of the real process: providers that fail in every way, and one that dies and comes back again and again."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.e2e.world import client, read_message
from tests.support import manifests as m
from tests.support.fault_server import Fault, FaultServer, expected
from tests.support.net import free_port
from tests.support.process import SharedGateway
from tests.support.waiting import until, wait_until

NAMES = ("first", "second", "third")


def place(server: FaultServer) -> m.Manifest:
    return m.ip_backend(server.name, server.port)


def config(listener: int, *servers: FaultServer, **failover: Any) -> list[m.Manifest]:
    return [
        m.gateway(m.http_listener(listener)),
        m.policy(cidrs=["127.0.0.0/8"]),
        *map(place, servers),
        m.failover("any", *(server.name for server in servers), **failover),
        m.http_route("route", m.prefix_rule("/", "any")),
    ]


def post(body: bytes) -> bytes:
    return b"POST /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def ask(port: int, body: bytes) -> tuple[int, bytes, bytes]:
    with client(port) as sock:
        sock.sendall(post(body))
        head, answer = read_message(sock)
        return int(head.split(b" ", 2)[1]), head, answer


def test_a_provider_that_is_down_costs_a_few_attempts_and_serves_again_when_it_is_back(shared: SharedGateway):
    port = free_port()
    with (
        FaultServer("first") as first,
        FaultServer("second") as second,
        shared.serving(config(port, first, second)) as gateway,
    ):
        first.down()
        for number in range(200):
            body = b"%d" % number
            status, _, answer = ask(port, body)
            assert (status, answer) == (200, expected("second", body))
        assert gateway.metric("egress_failovers_total", backend="agents/first", reason="upstream_refused") <= 3
        first.up()
        wait_until(lambda: ask(port, b"x")[2] == expected("first", b"x"), "the first provider serves again")
        assert second.requests >= 200
        wait_until(lambda: "BackendReturned on Backend agents/first" in gateway.stderr, "its return is told")
        assert (
            "BackendPutAside on Backend agents/first: upstream_refused: a Failover asks others for 1 s"
            in gateway.stderr
        )


# --- many requests --------------------------------------------------------------------------------------------------
@dataclass
class Tally:
    """What became of the requests."""

    wanted: int
    answered: int = 0
    by: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    is_over: bool = False  # nobody falls ill any more


async def caller(port: int, number: int, tally: Tally) -> None:
    """POSTs over one connection at a time, each with a body of its own, until enough are answered."""
    reader = writer = None
    for count in itertools.count():
        if (tally.is_over and tally.answered >= tally.wanted) or len(tally.lost) >= 20:
            break
        body = b"%d-%d " % (number, count) + b"." * (count % 7 * 1000)
        if writer is None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert reader is not None
        writer.write(post(body))
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            answer = await reader.readexactly(int(length[1])) if length is not None else b""
            by = next((name for name in NAMES if answer == expected(name, body)), "")
            if b" 200 " not in head[:20] or not by:
                tally.lost.append(f"{head[:300]!r} {answer[:300]!r}")
            else:
                tally.answered += 1
                tally.by[by] += 1
            if b"\r\nconnection: close" in head.lower():
                writer.close()
                writer = None
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            tally.lost.append(repr(error))
            writer.close()
            writer = None
    if writer is not None:
        writer.close()


#: What the provider does, one after the other; None: it dies, and refuses connections.
DISEASES = (
    None, Fault.UNAVAILABLE, Fault.RESET_BEFORE_HEAD, None, Fault.STALL_BEFORE_HEAD, Fault.GARBAGE, Fault.THROTTLED,
    Fault.RESET_AFTER_HEAD, None, Fault.OVERLOADED, Fault.STALL_AFTER_HEAD, Fault.RESET_IN_HEAD,
)  # fmt: skip


async def fall_ill(server: FaultServer, tally: Tally, rounds: int) -> None:
    """Ill until it has harmed requests, then well until it serves again; each disease so many times."""
    for disease in DISEASES * rounds:
        failed, served, answered = server.seen[disease or Fault.NONE], server.seen[Fault.NONE], tally.answered
        if disease is None:
            await asyncio.to_thread(server.down)
            await until(lambda: tally.answered > answered + 100)  # noqa: B023
            await asyncio.to_thread(server.up)
        else:
            server.fault = disease
            await until(lambda: server.seen[disease] > failed)  # noqa: B023
            server.fault = Fault.NONE
        await until(lambda: server.seen[Fault.NONE] > served + 10)  # noqa: B023
    tally.is_over = True


async def drill(port: int, tally: Tally, ill: FaultServer, rounds: int) -> None:
    await asyncio.gather(fall_ill(ill, tally, rounds), *(caller(port, number, tally) for number in range(16)))


@pytest.mark.parametrize(("requests", "rounds"), [(4_000, 1), pytest.param(100_000, 8, marks=pytest.mark.nightly)])
def test_no_request_is_lost_while_one_of_three_providers_dies_and_returns(
    shared: SharedGateway, requests: int, rounds: int
):
    port, tally = free_port(), Tally(requests)
    with ExitStack() as stack:
        servers = [stack.enter_context(FaultServer(name)) for name in NAMES]
        gateway = stack.enter_context(shared.serving(config(port, *servers, firstByte="250ms")))
        asyncio.run(drill(port, tally, servers[0], rounds))
        assert tally.lost == []
        assert tally.answered >= requests
        assert min(tally.by[name] for name in NAMES[:2]) > 0
        left = gateway.metric("egress_failovers_total", backend="agents/first")
        assert left >= len(DISEASES) * rounds
        assert left < tally.answered / 10  # what is put aside is not asked
