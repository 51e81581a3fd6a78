"""Plays what it reads from standard input, JSON in each line, and answers each with a line that says all it saw.

Two processes play the same, one on the compiled modules and one on their sources (`test_builds`): `python -m
tests.differential.player`. The first line that it writes names the build. No clock is read, and nothing is patched.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from itertools import pairwise
from typing import Any

from h2.errors import ErrorCodes

from egressproxy import build
from egressproxy.errors import GatewayError, Reason
from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.policy import (
    AddressAllowance,
    AddressBound,
    AddressDenial,
    AddressesIR,
    DestinationRule,
    DestinationsIR,
    SniCheck,
)
from egressproxy.ir.route import (
    HttpRouteIR,
    HttpRuleIR,
    MatchIR,
    MatchType,
    PathMatchType,
    ValueMatch,
    WeightedBackend,
)
from egressproxy.ir.telemetry import CollectorIR, TracingIR
from egressproxy.model.authority import parse_authority
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.work import at_once
from egressproxy.protocols.http1.chunked import ChunkedDecoder, EndOfMessage
from egressproxy.protocols.http1.codec import RequestReader, ResponseReader
from egressproxy.protocols.http1.framing import HeadLimits, Malformed
from egressproxy.protocols.http1.writer import interim_bytes, request_bytes, response_bytes
from egressproxy.protocols.http2.frames import CONTINUATION, DATA, HEADERS, FrameReader
from egressproxy.protocols.http2.head_fields import request_code
from egressproxy.protocols.http2.heads import RequestFieldsReader
from egressproxy.protocols.http2.state_machine import H2StateMachine
from egressproxy.protocols.tls.client_hello import ClientHelloReader, may_start_tls
from egressproxy.routing.destinations import DestinationPolicy
from egressproxy.routing.hosts import HostEntry, HostMap
from egressproxy.routing.table import HttpTable
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.series import Series
from egressproxy.telemetry.tracing.otlp import Encoder
from egressproxy.telemetry.tracing.tracer import OwnTracer
from egressproxy.upstream.address_policy import AddressPolicy
from egressproxy.upstream.own_sockets import OwnSockets
from egressproxy.upstream.pool import Pool, PoolTicket
from tests.gateway.kit import forward
from tests.support.conversation import conversation

#: The attributes of heads: compiled code has no list of them.
OF_REQUEST = (
    "authority", "body", "connection_close", "expect_continue", "host", "http_1_0", "max_forwards", "method",
    "path", "proxy_authorization", "scheme", "target", "te_trailers", "upgrade", "via",
)  # fmt: skip
OF_RESPONSE = ("body", "connection_close", "http_1_0", "is_interim", "phrase", "status", "upgrade", "via")

Played = dict[str, Any]
Seen = list[Any]


def said(value: object) -> Any:
    """A value as JSON has it: bytes as text, all else by its repr where JSON has no such type."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str | int | float | bool) or value is None else repr(value)


def told(error: Exception) -> Seen:
    """Everything that an error says."""
    seen: Seen = [type(error).__name__, str(error)]
    if isinstance(error, GatewayError):
        seen += [error.reason.value, error.message, error.status, error.close, error.retry.value, error.remedy]
    elif isinstance(error, Malformed):
        seen += [error.reason.value, error.message, error.status]
    return seen


def tried(seen: Seen, call: Callable[[], Any]) -> Any:
    """The result of a call; what it raises is noted, and None returned."""
    try:
        return call()
    except Exception as error:  # the two builds have to fail in the same way
        seen.append(told(error))
        return None


def octets(text: str) -> bytes:
    return text.encode("latin-1")


def segments(asked: Played) -> list[bytes]:
    data = octets(asked["data"])
    places = [0, *sorted({cut for cut in asked["cuts"] if 0 < cut < len(data)}), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


# --- HTTP/2 --------------------------------------------------------------------------------------------------------
def frames(asked: Played) -> Seen:
    """What a client says on a connection of HTTP/2, cut at `cuts`, under `limits`: what comes of it, and what goes out.
    Requests are read, and refused.
    """
    limits = HeadLimits(*asked["limits"])
    machine, came = H2StateMachine(limits, client_side=False), FrameReader(has_preface=True)
    reader, seen = RequestFieldsReader(limits, is_forward=asked["whole"]), []
    machine.begin(1 << 20)
    for segment in segments(asked):
        before = len(seen)
        came.feed(segment)
        while tried(seen, came.next):
            tried(seen, lambda: seen.append(_received(machine, reader, came)))
            seen.append([machine.head_size, machine.is_head_open, machine.send_window, machine.receive_window])
        seen.append([came.has_partial_head, said(machine.take_frames())])
        if any(each[:1] == ["RemoteProtocolError"] for each in seen[before:]):
            break
    return seen


def _received(machine: H2StateMachine, reader: RequestFieldsReader, frame: FrameReader) -> Seen:
    kind, flags, number, payload = frame.kind, frame.flags, frame.stream_id, frame.payload
    if kind == DATA:
        machine.receive_data(flags, number, payload)
        return ["data"]
    if kind == HEADERS:
        fields = machine.receive_headers(flags, number, payload)
    elif kind == CONTINUATION:
        fields = machine.receive_continuation(flags, number, payload)
    else:
        return [machine.receive_control_frame(kind, flags, number, payload)]
    if fields is None:
        return ["head"]
    seen: Seen = [[[said(name), said(value)] for name, value in fields]]
    head = tried(seen, lambda: reader.read(fields, ends_stream=machine.ends_stream))
    if head is not None:
        seen += [said(getattr(head, name)) for name in OF_REQUEST]
        seen += [said(head.fields.block), said(request_code(head, b"a.example", b"gw", is_secure=True))]
    machine.reset_stream(number, ErrorCodes.REFUSED_STREAM)
    return seen


# --- the codec -----------------------------------------------------------------------------------------------------
def event_of(event: object) -> Seen:
    if isinstance(event, RequestHead):
        copied = event.copy()
        return [
            "request", [said(getattr(event, name)) for name in OF_REQUEST], said(event.fields.block),
            [said(getattr(copied, name)) for name in OF_REQUEST] == [said(getattr(event, name)) for name in OF_REQUEST],
            said(request_bytes(event, event.host, b"gw")), repr(event),
        ]  # fmt: skip
    if isinstance(event, ResponseHead):
        seen = ["response", [said(getattr(event, name)) for name in OF_RESPONSE], said(event.fields.block), repr(event)]
        if event.is_interim:
            return [*seen, said(interim_bytes(event, b"gw"))]
        if b"date" not in event.fields:
            event.fields.add(b"Date", b"that of no clock")
        ways = [(close, old) for close in (False, True) for old in (False, True)]
        return seen + [
            said(response_bytes(event, b"gw", close=close, http_1_0=old, has_body=True)) for close, old in ways
        ]
    if isinstance(event, EndOfMessage):
        return ["end", None if event.trailers is None else said(event.trailers.block)]
    return ["piece", said(event)]


def requests(asked: Played) -> Seen:
    """`data` cut at `cuts`, under `limits`; `whole`: bodies are taken whole where they are there."""
    reader, seen = RequestReader(HeadLimits(*asked["limits"])), []
    for segment in segments(asked):
        reader.feed(segment)
        for _ in range(100):
            if asked["whole"] and (body := reader.take_whole_body()) is not None:
                seen.append(["whole", said(body)])
            before = len(seen)
            event = tried(seen, reader.next)
            if event is None:
                if len(seen) > before:
                    tried(seen, reader.next)  # it says the same again
                break
            seen.append(event_of(event))
            if isinstance(event, RequestHead) and (event.method == b"CONNECT" or event.upgrade):
                return [*seen, reader.buffered(), said(reader.take_rest()), repr(reader)]
        seen.append([reader.buffered(), said(reader.first_byte), reader.has_partial_head, reader.is_untouched])
    return [*seen, repr(reader)]


def responses(asked: Played) -> Seen:
    """Beside what `requests` has: the `method` of the request, and how the upstream ended (`eof`: clean 1, reset 2)."""
    reader, seen = ResponseReader(HeadLimits(*asked["limits"])), []
    reader.expect(octets(asked["method"]))
    for segment in [*segments(asked), b""]:
        if segment:
            reader.feed(segment)
        elif asked["eof"]:
            reader.feed_eof(asked["eof"] == 1)
        for _ in range(100):
            if asked["whole"]:
                seen.append(["settled", reader.settle_length()])
                if (body := reader.take_whole_body()) is not None:
                    seen.append(["whole", said(body)])
            before = len(seen)
            event = tried(seen, reader.next)
            if event is None:
                if len(seen) > before:
                    tried(seen, reader.next)
                break
            seen.append(event_of(event))
            if isinstance(event, ResponseHead) and not event.is_interim:
                seen.append(["begun", tried(seen, reader.has_begun_body)])
        seen.append([reader.buffered(), reader.needs_more])
    reader.expect(b"GET")
    tried(seen, reader.next)
    return [*seen, repr(reader)]


def chunks(asked: Played) -> Seen:
    """A chunked body; `at` is the segment behind which a copy goes on beside it."""
    decoder = ChunkedDecoder(HeadLimits(*asked["limits"]), frozenset(map(octets, asked["named"])))
    seen, left = [], b""
    for number, segment in enumerate(segments(asked)):
        left += segment
        kinds = (bytes, bytearray) if number % 2 else (bytearray, bytes)
        if number == asked["at"]:
            copied = decoder.copy()
            seen.append(["copied", _decoded(copied, kinds[1](left), seen)[0]])
        event, at = _decoded(decoder, kinds[0](left), seen)
        seen.append([event, at])
        left = left[at:]
    return seen


def _decoded(decoder: ChunkedDecoder, buffer: bytes | bytearray, seen: Seen) -> tuple[Any, int]:
    event, at = tried(seen, lambda: decoder.decode(buffer, 0)) or (None, 0)
    return event if event is None else event_of(event), at


def fields(asked: Played) -> Seen:
    """Operations on a field section: `[name of the method, arguments …]`."""
    made, seen = Fields(octets(asked["block"])), []
    for name, *arguments in asked["does"]:
        values = [octets(argument) for argument in arguments]
        result = tried(seen, lambda name=name, values=values: getattr(made, name)(*values))
        seen.append([said(each) for each in result] if isinstance(result, list) else said(result))
    return [*seen, said(made.block), len(made), [[said(name), said(value)] for name, value in made], repr(made)]


# --- routing -------------------------------------------------------------------------------------------------------
def _match(written: Played) -> MatchIR:
    def values(name: str) -> tuple[ValueMatch, ...]:
        return tuple(ValueMatch(each[0], each[1], MatchType(each[2])) for each in written[name])

    return MatchIR(
        written["path"], PathMatchType(written["type"]), written["method"], values("headers"), values("query"),
        written["preflight"], written["any_service"],
    )  # fmt: skip


def routes(asked: Played) -> Seen:
    """A table of `routes`, and what each of the requests of `asks` finds there."""
    seen: Seen = []
    made = []
    for number, (hosts, created, matches) in enumerate(asked["routes"]):
        rules = tuple(HttpRuleIR(matches=(_match(each),)) for each in matches)
        route = HttpRouteIR(f"agents/r{number}", tuple(hosts), rules, created)
        made.append((route, [f"{number}.{index}" for index in range(len(rules))]))
    table: HttpTable[str] | None = tried(seen, lambda: at_once(HttpTable.building(made, {"own.test": "own"})))
    if table is None:
        return seen
    seen.append([list(each) for each in table.every()])
    for host, method, path, lines in asked["asks"]:
        request = (host, octets(method), octets(path), Fields.of((octets(a), octets(b)) for a, b in lines))
        found = tried(seen, lambda request=request: table.match(*request))
        seen.append(found and [found[0], said(found[1])])
        seen.append(tried(seen, lambda request=request: [repr(each) for each in table.matches(*request)]))
        seen.append([table.sole(host), table.depends_on_fields(host), [repr(each) for each in table.rules_of(host)]])
    return seen


def hosts(asked: Played) -> Seen:
    """A map of host names, and what is found for each of `asks`."""
    made = at_once(HostMap.building(HostEntry(names, number) for number, names in enumerate(asked["entries"])))
    return [
        [made.match(host), made.exact(host), made.get(host), list(made.after_exact(host))] for host in asked["asks"]
    ] + [list(made.values())]


# --- what may be reached -------------------------------------------------------------------------------------------
def _networks(texts: list[str]) -> tuple[Any, ...]:
    return tuple(map(ip_network, texts))


def addresses(asked: Played) -> Seen:
    """What a policy of addresses says of each host, its addresses and port."""
    spec = AddressesIR(
        tuple(
            tuple(AddressAllowance(_networks(each["cidrs"]), tuple(each["hostnames"])) for each in group)
            for group in asked["allow"]
        ),
        "team/egress",
        tuple(
            AddressDenial(_networks(cidrs), tuple(ports), "team/closing", reports=reports)
            for cidrs, ports, reports in asked["deny"]
        ),
        tuple(AddressBound(_networks(cidrs), "team/only") for cidrs in asked["only"]),
    )
    own = OwnSockets([(ip_address("10.0.0.1"), 8080)], [(ip_address("127.0.0.1"), 9000)], lambda _: False)
    policy = AddressPolicy(spec, own)
    seen: Seen = [policy.reports]
    for host, texts, port in asked["asks"]:
        these = tuple(map(ip_address, texts))
        seen.append(repr(tried(seen, lambda host=host, these=these, port=port: policy.check(host, these, port))))
        seen.append([policy.would_deny(these, port), *(policy.verdict(host, each, port) for each in these)])
        for each in these:
            tried(seen, lambda each=each, port=port: policy.check_operator(each, port))
    return seen


def _rule(written: Played) -> DestinationRule:
    sni = SniCheck.ANY if written["any"] else SniCheck.MATCH
    return DestinationRule(
        tuple(written["hostnames"]), tuple(written["ports"]), _networks(written["cidrs"]), sni, "team/egress",
        is_firm=written["firm"],
    )  # fmt: skip


def destinations(asked: Played) -> Seen:
    """What a policy of destinations says of each authority."""
    spec = DestinationsIR(
        tuple(tuple(map(_rule, group)) for group in asked["allow"]), tuple(map(_rule, asked["deny"])), asked["firm"]
    )
    policy = DestinationPolicy(spec, ("team/egress",))
    seen: Seen = [policy.denies, policy.is_firm, policy.has_allow_list]
    for text in asked["asks"]:
        authority = parse_authority(text.encode())
        for ask in (policy.decide, policy.decide_firm, policy.explicit_deny):
            denied = ask(authority)
            seen.append(None if denied is None else [*told(denied), denied.rule, denied.policy, denied.entry])
        seen.append([policy.sni_check(authority).value, policy.entry(authority), repr(policy.grounds(authority))])
    return seen


# --- pool and timers -----------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Connection:
    number: int
    leaves: bool = False

    def is_leaving(self) -> bool:
        return self.leaves

    def __repr__(self) -> str:
        return f"c{self.number}"


@dataclass
class PoolGame:
    """Clients and connections of one pool, all by their numbers."""

    pool: Pool[Connection]
    loop: asyncio.AbstractEventLoop
    claims: list[PoolTicket[Connection]] = field(default_factory=list)
    open: list[Connection] = field(default_factory=list)

    def ask(self, client: int, _: int) -> object:
        claim: PoolTicket[Connection] = PoolTicket(f"client-{client}")
        self.claims.append(claim)
        found = self.pool.take_kept(claim) if self.pool.is_counting else self.pool.take()
        if found is not None:
            return found
        if self.pool.may_open(claim):
            made = Connection(len(self.open))
            self.open.append(made)
            self.pool.opened(claim, made)
            return made
        return self.pool.wait(claim, self.loop).done()

    def leave(self, number: int, _: int) -> object:
        return self.pool.leave(self.claims[number % len(self.claims)]) if self.claims else None

    def too_late(self, number: int, _: int) -> object:
        claim = self.claims[number % len(self.claims)] if self.claims else None
        if claim is None or claim.given is None or claim.given.done():
            return None
        self.pool.too_late(claim)
        error = claim.given.exception()
        return told(error) if isinstance(error, Exception) else None

    def release(self, number: int, how: int) -> object:
        return self.pool.release(self.open[number % len(self.open)], reusable=how > 0) if self.open else None

    def lost(self, number: int, _: int) -> object:
        return self.pool.lost(self.open.pop(number % len(self.open))) if self.open else None  # type: ignore[func-returns-value]

    def go(self, number: int, _: int) -> object:
        if self.open:
            self.open[number % len(self.open)].leaves = True
        return None

    def retire(self, _: int, __: int) -> object:
        return self.pool.retire()

    def state(self) -> Seen:
        pool = self.pool
        given = [
            [repr(claim), claim.given.done() and claim.given.exception() is None and repr(claim.given.result())]
            for claim in self.claims
            if claim.given is not None
        ]
        return [repr(pool), pool.is_counting, pool.is_empty, pool.is_all_idle, repr(pool.idle), repr(pool.kept), given]


def pool(asked: Played) -> Seen:
    """A pool with these `settings`, on which `does` is done: `[what, number, how]`."""
    loop = asyncio.new_event_loop()
    try:
        game, seen = PoolGame(Pool("a", *asked["settings"]), loop), []
        for name, number, how in asked["does"]:
            seen.append(said(tried(seen, lambda name=name, number=number, how=how: getattr(game, name)(number, how))))
            seen.append(game.state())
        return seen
    finally:
        loop.close()


# --- ClientHellos and lines of the log ------------------------------------------------------------------------------
def hellos(asked: Played) -> Seen:
    """What a ClientHelloReader makes of each segment."""
    reader, seen = ClientHelloReader(), []
    for segment in segments(asked):
        seen += [may_start_tls(segment), said(tried(seen, lambda segment=segment: reader.feed(segment))), reader.size]
    reader.forget()
    return [*seen, len(reader.data)]


class Lines:
    """What an access log writes."""

    def __init__(self) -> None:
        self.dropped = 0
        self.written = 0
        self.all: list[str] = []

    def put(self, chunk: bytes, lines: int) -> None:
        self.all.append(chunk.decode())
        self.written += lines

    def reopen(self) -> None: ...

    def close(self, timeout_s: float) -> None: ...


def lines(asked: Played) -> Seen:
    """The line of an exchange with these values, and of its copy."""
    seen: Seen = []
    x = Exchange("192.0.2.1:5000", "a/gw", "l", 100.0, started_wall=1_790_000_000.0625, request_id="test-1")
    x.authority = parse_authority(octets(asked["host"]), 443)
    for name, value in (*asked["texts"].items(), *asked["numbers"].items()):
        setattr(x, name, value)
    x.method, x.path = octets(asked["octets"]["method"]), octets(asked["octets"]["path"])
    x.grpc_status, x.ended_at, x.is_tunnel = asked["grpc_status"], 100.0 + asked["took_s"], asked["is_tunnel"]
    if asked["would_deny"]:
        x.note_denials(Reason.NO_ROUTE)
    written = Lines()
    log = AccessLog(written)
    copy = x.copy()
    copy.ended_at = x.ended_at  # as accounting does
    for each in (x, copy):
        tried(seen, lambda each=each: log.record(each))
        log.flush()
    return [*seen, *written.all, written.written, repr(x)]


class Spans:
    """In place of an exporter: the spans of one exchange, as they are encoded."""

    def __init__(self) -> None:
        self.data = b""

    def put_exchange(self, spans: Any) -> None:
        self.data = Encoder({}, "1").encoded(spans).data


def traces(asked: Played) -> Seen:
    """The context that goes on with a head of these fields, and the span of its exchange."""
    collector = CollectorIR(WeightedBackend(BackendIR("a/otel", Destination.FQDN, "otel.example", 4318)))
    names = ("share", "parent_share", "continues", "keeps_errors")
    spans: Any = Spans()
    tracer = OwnTracer(TracingIR(collector, **{name: asked[name] for name in names}), spans)
    tracer.contexts._span_ids = [b"%016x" % number for number in range(1, 4)]
    tracer._lines = [b"\r\ntraceparent: 00-" + b"7" * 32 + b"-" + b"7" * 16 + b"-0%d" % (2 + (asked["share"] > 0.4))]
    x = Exchange("192.0.2.1:5000", "a/gw", "l", 100.0, started_wall=1_790_000_000.0625)
    x.request = RequestHead(b"GET", b"/", Fields(octets(asked["block"])))
    x.path, x.status, x.ended_at = octets(asked["path"]), asked["status"], 100.25
    x.series = Series(("a/gw", *"------"))
    seen: Seen = []
    tried(seen, lambda: tracer.start(x, x.request))
    trace = x.trace
    if trace is not None:
        seen.append(trace.log_text)
        tried(seen, lambda: trace.end(x))
    return [*seen, said(x.request.fields.block), spans.data.hex(), repr(sorted((x.series.exemplars or {}).items()))]


# --- whole exchanges -----------------------------------------------------------------------------------------------
def exchanges(asked: Played) -> Seen:
    """A client says `data`, cut at `cuts`, origins answer with `answers`: what all of them hear, and the log."""
    seen: Seen = []
    talk = conversation(forward())
    try:
        for segment in segments(asked):
            if not talk.client.is_gone:
                talk.client >> segment
            talk.settle()
            while (dial := talk.pending_dial()) is not None:
                address, port = dial.endpoints[0]
                talk.dialled(talk.names.name_of(address), port)
                talk.settle()
        for answer in asked["answers"]:
            for origin in [each for each in talk.origins if not each.is_gone]:
                origin >> octets(answer)
                talk.settle()
        seen += [["heard", said(peer.got), peer.is_gone] for peer in (talk.client, *talk.origins)]
    finally:
        tried(seen, talk.close)
    kept = ("status", "reason", "method", "host", "path", "route", "bytes_in", "bytes_out")
    return seen + [[line.get(name) for name in kept] for line in talk.records]


PLAYS: dict[str, Callable[[Played], Seen]] = {
    "requests": requests,
    "responses": responses,
    "chunks": chunks,
    "fields": fields,
    "frames": frames,
    "routes": routes,
    "hosts": hosts,
    "addresses": addresses,
    "destinations": destinations,
    "pool": pool,
    "hellos": hellos,
    "lines": lines,
    "traces": traces,
    "exchanges": exchanges,
}


def main() -> None:
    print(json.dumps(build.name()), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        seen: Seen = []
        answer = tried(seen, lambda asked=asked: PLAYS[asked["play"]](asked))
        print(json.dumps(seen if answer is None else answer), flush=True)


if __name__ == "__main__":
    main()
