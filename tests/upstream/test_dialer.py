from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address, ip_address
from typing import Any

import pytest

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.net.loop import new_loop
from egressproxy.net.watched_socket import Socket
from egressproxy.upstream import dialer
from egressproxy.upstream.dialer import Dialer, abandon
from tests.support.builds import of_sources, skip_where_compiled
from tests.support.waiting import WAIT_S

LOCAL = IPv4Address("127.0.0.1")


class Origin(asyncio.Protocol):
    """Counts the connections to one listening socket."""

    def __init__(self) -> None:
        self.opened = 0
        self.lost = 0

    def __call__(self) -> Origin:
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.opened += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


@contextmanager
def deaf(address: str = "127.0.0.1") -> Iterator[tuple[Any, int]]:
    """An endpoint that never answers a SYN: its backlog is full."""
    listener = socket.socket()
    listener.bind((address, 0))
    listener.listen(0)
    port = listener.getsockname()[1]
    fillers = []
    for _ in range(3):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex((address, port))
        fillers.append(filler)
    try:
        yield ip_address(address), port
    finally:
        for sock in (*fillers, listener):
            sock.close()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def run() -> Any:
    def runs(main: Any) -> Any:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(asyncio.wait_for(main, WAIT_S))

    return runs


@pytest.fixture
def stagger(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Call it with the seconds after which the next address is tried beside a silent one."""
    skip_where_compiled()
    return partial(monkeypatch.setattr, dialer, "STAGGER_S")


async def serve(origin: Origin, host: str = "127.0.0.1") -> int:
    server = await asyncio.get_running_loop().create_server(origin, host, 0)
    return int(server.sockets[0].getsockname()[1])


async def settle(condition: Any) -> None:
    """Let the loop run until this holds."""
    while not condition():  # noqa: ASYNC110   what is waited for is the kernel's
        await asyncio.sleep(0.001)


def fault_of(caught: Any) -> UpstreamFault:
    fault = caught.value
    assert isinstance(fault, UpstreamFault)
    assert fault.retry is RetrySafety.SAFE
    assert "127.0.0" not in fault.message
    return fault


def test_a_connection_is_made_with_its_options_set(run: Any):
    async def main() -> None:
        port = await serve(Origin())
        transport, protocol, endpoint = await Dialer().dial([(LOCAL, port)], asyncio.Protocol, timeout_s=5)
        assert endpoint == (LOCAL, port)
        assert transport.get_protocol() is protocol
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        transport.abort()

    run(main())


def test_ipv6_is_dialled_too(run: Any):
    async def main() -> None:
        port = await serve(Origin(), "::1")
        transport, _, _ = await Dialer().dial([(ip_address("::1"), port)], asyncio.Protocol, timeout_s=5)
        transport.abort()

    run(main())


def test_a_refusal_says_so_and_is_safe_to_retry(run: Any):
    async def main() -> None:
        with pytest.raises(UpstreamFault) as caught:
            await Dialer().dial([(LOCAL, closed_port())], asyncio.Protocol, timeout_s=5)
        fault = fault_of(caught)
        assert (fault.reason, fault.status) == (Reason.CONNECT_REFUSED, 503)
        assert "127.0.0.1" in fault.detail

    run(main())


@of_sources
def test_the_last_descriptors_are_not_for_backends(run: Any, monkeypatch: pytest.MonkeyPatch):
    async def main() -> None:
        gc.collect()  # what other tests left must not give back lower numbers meanwhile
        port = await serve(Origin())
        transport, _, _ = await Dialer().dial([(LOCAL, port)], asyncio.Protocol, timeout_s=5)
        taken = transport.get_extra_info("socket").fileno()
        monkeypatch.setattr(dialer, "descriptors_for_traffic", lambda: taken + 1)
        with pytest.raises(UpstreamFault) as caught:
            await Dialer().dial([(LOCAL, port)], asyncio.Protocol, timeout_s=5)
        assert fault_of(caught).reason is Reason.CONNECT_FAILED
        assert "Too many open files" in caught.value.detail
        transport.abort()
        await asyncio.sleep(0)
        again, _, _ = await Dialer().dial([(LOCAL, port)], asyncio.Protocol, timeout_s=5)
        again.abort()

    run(main())


def test_no_answer_is_a_timeout_within_one_budget_for_all(run: Any, stagger: Callable[[float], None]):
    stagger(0.01)

    async def main() -> None:
        with deaf() as one, deaf() as two, deaf() as three:
            loop = asyncio.get_running_loop()
            started = loop.time()
            with pytest.raises(UpstreamFault) as caught:
                await Dialer().dial([one, two, three], asyncio.Protocol, timeout_s=1.0)
            assert 0.95 < loop.time() - started < 2.5, "one after the other would take three"
            fault = fault_of(caught)
            assert (fault.reason, fault.status) == (Reason.CONNECT_TIMEOUT, 504)

    run(main())


def test_the_next_address_is_tried_at_once_after_a_failure(run: Any, stagger: Callable[[float], None]):
    stagger(60)

    async def main() -> None:
        port = await serve(Origin())
        dialer = Dialer()
        transport, _, endpoint = await dialer.dial(
            [(LOCAL, closed_port()), (LOCAL, port)], asyncio.Protocol, timeout_s=5
        )
        assert endpoint == (LOCAL, port)
        transport.abort()

    run(main())


def test_the_next_address_is_tried_while_the_first_is_silent(run: Any, stagger: Callable[[float], None]):
    stagger(0.02)

    async def main() -> None:
        port = await serve(Origin())
        with deaf() as silent:
            dialer = Dialer()
            transport, _, endpoint = await dialer.dial([silent, (LOCAL, port)], asyncio.Protocol, timeout_s=5)
        assert endpoint == (LOCAL, port)
        transport.abort()

    run(main())


def test_the_first_address_wins_without_touching_the_second(run: Any):
    async def main() -> None:
        first, second = Origin(), Origin()
        ports = [await serve(first), await serve(second)]
        transport, _, endpoint = await Dialer().dial([(LOCAL, p) for p in ports], asyncio.Protocol, timeout_s=5)
        assert endpoint == (LOCAL, ports[0])
        await settle(lambda: first.opened == 1)
        assert second.opened == 0
        transport.abort()

    run(main())


def test_no_address_and_an_unreachable_one_fail(run: Any):
    async def main() -> None:
        for endpoints in ([], [(IPv4Address("255.255.255.255"), 80)]):
            with pytest.raises(UpstreamFault) as caught:
                await Dialer().dial(endpoints, asyncio.Protocol, timeout_s=5)
            fault = fault_of(caught)
            assert (fault.reason, fault.status) == (Reason.CONNECT_FAILED, 503)

    run(main())


def test_cancelling_closes_every_attempt(run: Any, stagger: Callable[[float], None]):
    stagger(0.001)

    async def main() -> None:
        import os

        with pytest.raises(UpstreamFault):  # the poller of this loop opens its descriptor
            await Dialer().dial([(LOCAL, closed_port())], asyncio.Protocol, timeout_s=5)
        await asyncio.sleep(0)  # descriptors are closed at the end of a turn
        gc.collect()  # those of the loops of other tests
        with deaf() as one, deaf() as two:
            before = len(os.listdir("/proc/self/fd"))
            dial = Dialer().dial([one, two], asyncio.Protocol, timeout_s=5)
            await settle(lambda: len(os.listdir("/proc/self/fd")) == before + 2)
            dial.cancel()
            await settle(lambda: len(os.listdir("/proc/self/fd")) == before)

    run(main())


def test_cancelling_at_any_moment_leaves_no_connection_open(run: Any):
    async def main() -> None:
        for turns in range(6):
            origin = Origin()
            port = await serve(origin)
            dial = Dialer().dial([(LOCAL, port)], asyncio.Protocol, timeout_s=5)
            for _ in range(turns):
                await asyncio.sleep(0)
            abandon(dial)
            await asyncio.sleep(0.01)
            assert origin.opened == origin.lost

    run(main())


def test_a_failing_protocol_factory_fails_the_dial(run: Any):
    def broken() -> asyncio.Protocol:
        raise ValueError("no")

    async def main() -> None:
        port = await serve(Origin())
        with pytest.raises(UpstreamFault):
            await Dialer().dial([(LOCAL, port)], broken, timeout_s=5)

    run(main())


def test_a_coroutine_that_is_no_task_may_wait_for_a_dial(run: Any):
    async def main() -> None:
        port = await serve(Origin())
        dialer, got = Dialer(), []

        async def life() -> None:
            transport, _, _ = await dialer.dial([(LOCAL, port)], asyncio.Protocol, timeout_s=5)
            got.append(transport)

        coroutine = life()
        future: Any = coroutine.send(None)
        future._asyncio_future_blocking = False

        def resume(_done: object) -> None:
            with pytest.raises(StopIteration):
                coroutine.send(None)

        future.add_done_callback(resume)
        await settle(lambda: got)
        got[0].abort()

    run(main())


@of_sources
def test_who_dials_again_when_told_that_it_is_too_late_starts_no_second_look(run: Any, monkeypatch: pytest.MonkeyPatch):
    async def main() -> None:
        looks: list[int] = []
        real = Dialer._look
        monkeypatch.setattr(Dialer, "_look", lambda dialer: (looks.append(1), real(dialer)))
        monkeypatch.setattr("egressproxy.upstream.dialer.LOOK_S", 0.01)
        dialer = Dialer()
        told = 0
        with deaf() as endpoint:

            def dial(_ended: object = None) -> None:
                nonlocal told, last
                told += 1
                last = dialer.dial([endpoint], asyncio.Protocol, timeout_s=0.001 if told < 6 else 5)
                last.add_done_callback(dial)

            last: Any = None
            dial()
            await settle(lambda: told == 6)
            looks.clear()
            loop = asyncio.get_running_loop()
            began = loop.time()
            await asyncio.sleep(0.2)
            assert len(looks) <= (loop.time() - began) / 0.01 + 2
            last.remove_done_callback(dial)
            last.cancel()

    run(main())


# --- many addresses --------------------------------------------------------------------------------------------------
class CountedSocket(Socket):
    """Counts those that are open at one time, and all."""

    open = most = made = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        kind = CountedSocket
        kind.made += 1
        kind.open += 1
        kind.most = max(kind.most, kind.open)

    def close(self) -> None:
        CountedSocket.open -= 1
        super().close()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[CountedSocket]:
    skip_where_compiled()
    monkeypatch.setattr(CountedSocket, "open", 0)
    monkeypatch.setattr(CountedSocket, "most", 0)
    monkeypatch.setattr(CountedSocket, "made", 0)
    monkeypatch.setattr(dialer, "Socket", CountedSocket)
    return CountedSocket


def many(port: int, count: int = 64) -> list[tuple[Any, int]]:
    return [(ip_address("127.0.1.1") + number, port) for number in range(count)]


def test_a_name_with_many_silent_addresses_has_four_attempts_at_once_and_eight_in_all(
    run: Any, stagger: Callable[[float], None], counted: type[CountedSocket]
):
    stagger(0.001)

    async def main() -> None:
        with deaf("0.0.0.0") as (_, port):
            with pytest.raises(UpstreamFault) as caught:
                await Dialer().dial(many(port), asyncio.Protocol, timeout_s=1.0)
            assert fault_of(caught).reason is Reason.CONNECT_TIMEOUT
            await settle(lambda: not counted.open)
        assert counted.made == 8
        assert counted.most <= 5  # one may be closing

    run(main())


def test_a_name_with_many_addresses_that_refuse_has_eight_attempts(run: Any, counted: type[CountedSocket]):
    async def main() -> None:
        with pytest.raises(UpstreamFault) as caught:
            await Dialer().dial(many(closed_port()), asyncio.Protocol, timeout_s=5)
        assert fault_of(caught).reason is Reason.CONNECT_REFUSED
        assert counted.made == 8

    run(main())


def test_silent_addresses_make_way_for_others_within_the_time(run: Any, stagger: Callable[[float], None]):
    stagger(0.01)

    async def main() -> None:
        with deaf() as one, deaf() as two, deaf() as three, deaf() as four:
            port = await serve(Origin())
            endpoints = [one, two, three, four, (LOCAL, port)]
            transport, _, endpoint = await Dialer().dial(endpoints, asyncio.Protocol, timeout_s=2)
        assert endpoint == (LOCAL, port)
        transport.abort()

    run(main())


def test_the_next_dial_goes_on_where_one_has_failed_and_begins_where_one_has_succeeded(
    run: Any, counted: type[CountedSocket]
):
    async def main() -> None:
        made, origin = Dialer(), Origin()
        port = await serve(origin, "127.0.1.13")
        endpoints = many(port, 20)
        with pytest.raises(UpstreamFault):
            await made.dial(endpoints, asyncio.Protocol, timeout_s=5)
        for attempts in (5, 1):
            counted.made = 0
            transport, _, endpoint = await made.dial(endpoints, asyncio.Protocol, timeout_s=5)
            assert endpoint == endpoints[12]
            assert counted.made == attempts
            transport.abort()

    run(main())


def test_who_gives_up_early_has_the_others_tried_next(
    run: Any, stagger: Callable[[float], None], counted: type[CountedSocket]
):
    stagger(0.001)

    async def main() -> None:
        made = Dialer()
        with deaf("127.0.1.1") as (_, port):
            serving = await asyncio.get_running_loop().create_server(Origin(), "127.0.1.5", port)
            endpoints = [*[(ip_address("127.0.1.1"), port)] * 4, *many(port, 20)[4:]]
            dial = made.dial(endpoints, asyncio.Protocol, timeout_s=0)
            await settle(lambda: counted.open == 4)
            dial.cancel()
            transport, _, endpoint = await made.dial(endpoints, asyncio.Protocol, timeout_s=5)
            assert endpoint == endpoints[4]
            transport.abort()
            serving.close()

    run(main())


def test_addresses_that_this_machine_has_no_way_to_do_not_count(run: Any):
    async def main() -> None:
        port = await serve(Origin())
        nowhere = [(IPv4Address("255.255.255.255") - number, 80) for number in range(1)] * 9
        endpoints = [*nowhere, (LOCAL, port)]
        transport, _, endpoint = await Dialer().dial(endpoints, asyncio.Protocol, timeout_s=5)
        assert endpoint == (LOCAL, port)
        transport.abort()

    run(main())
