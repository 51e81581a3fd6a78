"""Fault drills: a provider fails in every state that HTTP/1.1 and HTTP/2 have, before clients of each version.

Whatever happens, a client gets the right answer, or an error that cannot be taken for a whole one; a request goes again
exactly where that does no harm; the endpoint is blamed for what is its fault; and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import ssl
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any

import pytest
from h2.exceptions import H2Error

from egressproxy.model.exchange import Exchange
from egressproxy.protocols.http1.upstream import UpstreamConnection
from egressproxy.protocols.http2.upstream import Http2Upstream
from egressproxy.protocols.http2.upstream_stream import UpstreamStream
from egressproxy.upstream.dialer import Dialer
from egressproxy.upstream.endpoint_health import OutlierDetection
from tests.gateway.faults import CONNECTIONS, HANDSHAKES, HTTP1, HTTP2, Again, Expected, Seen
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.fault_proxy import FaultProxy, When, expected
from tests.support.http1_reading import read_responses
from tests.support.http2_client import Http2Client, head
from tests.support.pki import Pki
from tests.support.waiting import WAIT_S


@dataclass
class Case:
    """One fault before one client."""

    number: int
    client: str
    method: bytes
    has_retries: bool
    is_warm: bool
    is_tls: bool
    wanted: Expected
    proxy: FaultProxy
    spare: FaultProxy | None = None  # the next of a Failover
    grpc_status: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def goes_again(self) -> bool:
        again, idempotent = self.wanted.again, self.method == b"GET"
        if self.spare is not None:
            return self.wanted.is_left_out  # to the same one
        if self.proxy.is_http2 and self.wanted.fault.name == "garbage-at-accept":
            again = Again.IDEMPOTENT  # what breaks a connection says nothing of the one request on it
        if again is Again.UNSENT:
            return self.has_retries
        if again is Again.UNSEEN:
            return self.has_retries or idempotent
        if again is Again.STALE and self.is_warm and idempotent:
            return True
        return again is not Again.NEVER and self.has_retries and idempotent

    @property
    def leaves(self) -> bool:
        """Whether it goes on to the next backend of a Failover: until a byte of content has come."""
        wanted = self.wanted
        is_before_content = wanted.seen is Seen.ERROR or (wanted.seen is Seen.CUT and not wanted.sends_content)
        return self.spare is not None and is_before_content and not wanted.is_left_out

    @property
    def seen(self) -> Seen:
        """What the client has to see."""
        return Seen.RIGHT if self.goes_again or self.leaves else self.wanted.seen

    @property
    def requests(self) -> int:
        """How many the provider has to see."""
        return self.is_warm + (self.wanted.fault.when is not When.ACCEPT) + self.goes_again

    @property
    def proxies(self) -> list[FaultProxy]:
        return [self.proxy, self.spare] if self.spare is not None else [self.proxy]

    @property
    def path(self) -> str:
        return f"/c{self.number}/M"

    def __str__(self) -> str:
        where = " Failover" if self.spare is not None else ""
        how = where + "".join(
            f" {word}" for word, holds in (("retries", self.has_retries), ("warm", self.is_warm), ("tls", self.is_tls))
            if holds
        )  # fmt: skip
        version = "2" if self.proxy.is_http2 else "1"
        return f"{self.client} -> HTTP/{version}{how} {self.method.decode()} {self.wanted.fault}"


#: Of each client: whether the rule has retries, the connection has served before, and is in TLS.
WAYS = {
    "h1": ((False, False, False), (True, True, False), (True, False, True)),
    "h1.0": ((False, False, False),),
    "h2": ((False, True, False), (True, False, False)),
    "grpc": ((False, True, False), (True, False, False)),
}


def cases(
    table: Iterable[Expected], contexts: dict[bool, ssl.SSLContext], numbers: Iterator[int], *, is_http2: bool
) -> Iterator[Case]:
    """Each fault of the table before each client."""
    for wanted, (client, ways) in itertools.product(table, WAYS.items()):
        if (client == "h1.0" and wanted.seen is not Seen.CUT) or (client == "grpc" and not is_http2):
            continue
        for (has_retries, is_warm, is_tls), method in itertools.product(ways, wanted.methods):
            is_tls = is_tls or wanted.in_tls
            if client == "grpc" and method == b"GET":
                continue
            if (is_warm and wanted.fault.when is When.ACCEPT) or (is_tls and not wanted.may_be_in_tls):
                continue
            number = next(numbers)
            proxy = FaultProxy(f"c{number}", is_http2, contexts[is_http2] if is_tls else None)
            yield Case(number, client, method, has_retries, is_warm, is_tls, wanted, proxy)


def failover_cases(contexts: dict[bool, ssl.SSLContext], numbers: Iterator[int]) -> Iterator[Case]:
    """POSTs to a Failover whose first endpoint meets each fault."""
    for table, is_http2 in (
        (CONNECTIONS, False),
        (HANDSHAKES, False),
        (HANDSHAKES, True),
        (HTTP1, False),
        (HTTP2, True),
    ):
        for wanted, client in itertools.product(table, ("h1", "grpc") if is_http2 else ("h1", "h2")):
            number = next(numbers)
            proxy = FaultProxy(f"c{number}", is_http2, contexts[is_http2] if wanted.in_tls else None)
            spare = FaultProxy(f"s{number}", is_http2)
            yield Case(number, client, b"POST", False, False, wanted.in_tls, wanted, proxy, spare)


def config(found: list[Case], pki: Pki) -> list[m.Manifest]:
    objects = [
        m.gateway(m.http_listener(8080)),
        m.policy(
            cidrs=["127.0.0.0/8"],
            traffic={"healthCheck": {"passive": {"consecutive5XxErrors": 1, "maxEjectionPercent": 0}}},
        ),
        m.config_map("ca", {"ca.crt": pki.ca_pem}),
    ]
    for case in found:
        rule: dict[str, Any] = {}
        if case.has_retries:
            rule["retry"] = {"attempts": 1, "backoff": "0s"}
        if case.wanted.stalls:
            brief = "2s" if case.spare is None else "5s"  # behind the first byte
            rule["timeouts"] = {"backendRequest": brief, "request": "20s"}
        name, version = case.proxy.name, "HTTP2" if case.proxy.is_http2 else "HTTP11"
        secured = {"tls": True, "ca": "ca"} if case.is_tls else {}
        if case.proxy.is_http2 and not case.is_tls:
            version = "H2C"
        objects.append(m.backend(name, f"{name}.faults.test", case.proxy.port, protocol=version, **secured))
        leads_to = name
        if case.spare is not None:
            version, leads_to = "H2C" if case.proxy.is_http2 else "HTTP11", f"f{case.number}"
            objects += [
                m.backend(case.spare.name, f"{name}.faults.test", case.spare.port, protocol=version),
                m.failover(leads_to, name, case.spare.name, firstByte="3s" if case.wanted.stalls else "20s"),
            ]
        objects.append(m.http_route(name, m.prefix_rule(f"/{name}", leads_to, **rule)))
    return objects


# --- clients ---------------------------------------------------------------------------------------------------------
async def ask(case: Case, port: int) -> Seen | str:
    """One request on a connection of its own; what its client sees, or what it should never see."""
    body = case.wanted.body if case.method == b"POST" else b""
    said = b"\0" + len(body).to_bytes(4, "big") + body if case.client == "grpc" else body
    by = case.spare if case.spare is not None and case.leaves else case.proxy
    right = expected(by.name, said)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        if case.client.startswith("h1"):
            return await _ask_http1(case, reader, writer, body, right)
        return await _ask_http2(case, reader, writer, body, right)
    finally:
        writer.close()


async def _ask_http1(
    case: Case, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes, right: bytes
) -> Seen | str:
    version = "1.0" if case.client == "h1.0" else "1.1"
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    writer.write(f"{case.method.decode()} {case.path} HTTP/{version}\r\nHost: x\r\n{length}\r\n".encode() + body)
    got, end = b"", None
    while end is None:
        try:
            piece = await reader.read(65536)
            end = None if piece else True
        except ConnectionError:
            piece, end = b"", False
        got += piece
        reading = read_responses(got, case.method, eof=end)
        finals = [each for each in reading.messages if each.head.status >= 200]  # type: ignore[union-attr]
        if finals and finals[-1].is_whole:
            final = finals[-1]
            status = final.head.status  # type: ignore[union-attr]
            if len(finals) > 1 or reading.rest:
                return f"more than one answer: {got!r}"
            return _judged(status, final.body, right)
        if reading.error is not None or end is not None:
            return Seen.CUT if finals else f"no answer at all: {got!r}"
    raise AssertionError("unreachable")


async def _ask_http2(
    case: Case, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes, right: bytes
) -> Seen | str:
    client, fields = Http2Client(), head(case.method, case.path.encode(), b"x")
    if case.client == "grpc":
        fields += [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
        body = b"\0" + len(body).to_bytes(4, "big") + body
    stream = client.request(fields, b"" if body else None, ends=not body)
    answer = client.of(stream)
    while not answer.is_whole and answer.reset is None:
        while body and (room := min(client.h2.local_flow_control_window(stream), 16384)):
            client.h2.send_data(stream, body[:room], end_stream=len(body) <= room)
            body = body[room:]
        writer.write(client.outgoing())
        piece = await reader.read(65536)
        if not piece or client.goaways:
            return f"the connection of the client has ended: {client.goaways}"
        client.take(piece)
    if not answer.is_whole:
        return Seen.CUT if answer.fields else f"no answer but RST_STREAM {answer.reset}"
    said = bytes(answer.data)
    if case.client != "grpc":
        return _judged(answer.status, said, right)
    told = dict(answer.trailers if answer.trailers is not None else answer.fields).get(b"grpc-status", b"")
    if told == b"0":
        framed = b"\0" + len(right).to_bytes(4, "big") + right
        return Seen.RIGHT if said == framed else f"a wrong answer with status 0: {said!r}"
    if not told:
        return f"no grpc-status: {answer}"
    case.grpc_status = int(told)
    return Seen.ERROR if answer.trailers is None else Seen.CUT


def _judged(status: int, body: bytes, right: bytes) -> Seen | str:
    if status == 200 and body == right:
        return Seen.RIGHT
    if status >= 500 and b"request_id" in body:
        return Seen.ERROR
    return f"{status} with {body!r}"


# --- the drill -------------------------------------------------------------------------------------------------------
async def play(case: Case, port: int, room: asyncio.Semaphore, blamed: Counter[str]) -> None:
    async with room:
        for proxy in case.proxies:
            proxy.start()
        if case.is_warm:
            warmed = await ask(case, port)
            if warmed is not Seen.RIGHT:
                case.failures.append(f"before the fault: {warmed}")
        case.proxy.script.append(case.wanted.fault)
        try:
            seen = await asyncio.wait_for(ask(case, port), WAIT_S)
        except (TimeoutError, H2Error, AssertionError) as error:
            seen = f"{error!r}"
        wanted = case.seen
        if seen is not wanted:
            case.failures.append(f"saw {seen}, not {wanted}")
        if case.client == "grpc" and wanted is not Seen.RIGHT and case.grpc_status != case.wanted.grpc_status:
            case.failures.append(f"told status {case.grpc_status}, not {case.wanted.grpc_status}")
        if len(case.proxy.requests) != case.requests:
            case.failures.append(f"the provider saw {len(case.proxy.requests)} requests, not {case.requests}")
        if case.spare is not None and len(case.spare.requests) != case.leaves:
            case.failures.append(f"the next provider saw {len(case.spare.requests)} requests")
        case.proxy.script.clear()
        blames = blamed[f"127.0.0.1:{case.proxy.port}"]
        if blames != (case.wanted.is_blamed_warm if case.is_warm else case.wanted.is_blamed):
            case.failures.append(f"the endpoint was blamed {blames} times")


TABLES = {
    "connections": ((CONNECTIONS, False), (CONNECTIONS, True), (HANDSHAKES, False), (HANDSHAKES, True)),
    "http1": ((HTTP1, False),),
    "http2": ((HTTP2, True),),
    "failover": (),
}


def kept() -> list[object]:
    """What a finished exchange must not leave behind."""
    kinds = (UpstreamStream, Http2Upstream, UpstreamConnection, Exchange)
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


@pytest.mark.parametrize("tables", TABLES.values(), ids=TABLES)
def test_a_provider_that_fails_in_every_state(
    tables: tuple[tuple[list[Expected], bool], ...], monkeypatch: pytest.MonkeyPatch
):
    gc.collect()
    before = kept()  # by other tests of this process
    pki, numbers = Pki(), itertools.count()
    contexts = {False: pki.server_context("*.faults.test"), True: pki.server_context("*.faults.test")}
    found = [case for table, is_http2 in tables for case in cases(table, contexts, numbers, is_http2=is_http2)]
    if not tables:
        found = [*failover_cases(contexts, numbers)]
    blamed: Counter[str] = Counter()
    failed = OutlierDetection.failed

    def count(self: OutlierDetection, health: Any, now: float) -> bool:
        blamed[health.address] += 1
        return failed(self, health, now)

    monkeypatch.setattr(OutlierDetection, "failed", count)
    talk = Conversation(config(found, pki), {}, is_memory=False)
    talk.counts_octets = False
    talk.network.dialer = Dialer()  # every name is 127.0.0.1, and each provider has a port of its own
    for case in found:
        talk.names.zone[f"{case.proxy.name}.faults.test"] = (IPv4Address("127.0.0.1"),)
    port = talk.ports[0]._sock.getsockname()[1]

    async def drill() -> None:
        room = asyncio.Semaphore(64)
        await asyncio.gather(*(play(case, port, room, blamed) for case in found))
        for case in found:
            for proxy in case.proxies:
                proxy.close()

    try:
        talk.run(drill())
        failures = [f"{case}: {failure}" for case in found for failure in case.failures]
        assert not failures, f"{len(failures)} of {len(found)}:\n" + "\n".join(failures)
    finally:
        for case in found:
            for proxy in case.proxies:
                proxy.close()
        talk.close()
    del talk
    gc.collect()
    of_others = set(map(id, before))
    assert Counter(type(each).__name__ for each in kept() if id(each) not in of_others) == Counter()
