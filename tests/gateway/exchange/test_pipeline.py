"""The order of phases, as lists of results and actions: no transport, no loop, no clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.errors import ClientGone, Denied, GatewayError, GatewayFault, Reason
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.filter_step import FilterAnswered, FilterStep
from egressproxy.gateway.backends.network import Network, NetworkReports
from egressproxy.gateway.builders.snapshot_builder import build
from egressproxy.gateway.exchange import pipeline as p
from egressproxy.gateway.exchange.body_filter import BodyFilter
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.gateway.snapshot import Port
from egressproxy.model.exchange import WAITED, Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.net.timers import TimerWheel
from egressproxy.protocols.http1.codec import RequestReader
from egressproxy.protocols.tls.client_hello import ClientHello
from egressproxy.telemetry.metrics import Metrics
from tests.gateway.exchange.test_interception import opening
from tests.gateway.kit import forward, reverse
from tests.support import manifests as m
from tests.support.conversation import compiled_spec
from tests.support.manifests import Manifest

MADE = LocalResponse(200, (), b"of a filter")
LAST = {p.RESPOND, p.RESPOND_SELF, p.SEND, p.SWITCH, p.READ_HTTP, p.REFUSE_TLS, p.INTERCEPT, p.TUNNEL}
Results = dict[str, Callable[[Pipeline, Exchange], Any]]


@cache
def network() -> Network:
    loop = asyncio.new_event_loop()
    loop.close()  # nothing runs on it
    return Network(loop, TimerWheel(), b"gw", NetworkReports(Metrics("0").count_dns))


def port_of(objects: Iterable[Manifest]) -> Port:
    (port,) = build(compiled_spec(objects), Catalog(), network(), Metrics("0"), None).ports.values()
    return port


def head_of(port: Port, text: bytes) -> RequestHead:
    reader = RequestReader(port.head_limits)
    reader.feed(text + b"\r\n\r\n")
    head = reader.next()
    assert isinstance(head, RequestHead)
    return head


class Played:
    """One exchange whose driver leaves the results that a test has written down."""

    def __init__(self, port: Port, results: Results | None = None) -> None:
        self.port = port
        self.results: Results = {p.CALL: answered(200), **(results or {})}
        self.pipeline = Pipeline()
        self.exchange = Exchange("192.0.2.1:4000", port.first.gateway, port.first.name, 0.0)
        self.error: GatewayError | None = None

    def request(self, text: bytes) -> list[str]:
        self.exchange.request = head_of(self.port, text)
        self.exchange.method = self.exchange.request.method
        return self._play(self.pipeline.request(self.exchange, self.exchange.request, self.port, "", None))

    def tunnel(self, authority: str, *, is_inside: bool = False) -> list[str]:
        self.exchange.request = head_of(self.port, f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}".encode())
        return self._play(
            self.pipeline.tunnel(self.exchange, self.exchange.request, self.port.first, is_inside=is_inside)
        )

    def stream(self, hello: ClientHello | None) -> list[str]:
        return self._play(self.pipeline.stream(self.exchange, OpenConnections(self.port), hello))

    def _play(self, actions: Iterator[str]) -> list[str]:
        taken = []
        try:
            for action in actions:
                taken.append(action)
                if action in self.results:
                    self.results[action](self.pipeline, self.exchange)
        except GatewayError as error:
            self.error = error
        return taken


def answered(status: int) -> Callable[[Pipeline, Exchange], None]:
    """CALL: a backend has answered."""

    def call(pipeline: Pipeline, exchange: Exchange) -> None:
        pipeline.choose(exchange)
        assert pipeline.backend is not None
        pipeline.response_chain = pipeline.backend.chain
        exchange.response = ResponseHead(status, b"", Fields())

    return call


def filtered(*at: int) -> Callable[[Pipeline, Exchange], None]:
    """FILTER: the phases with these numbers, from 0, are answered by a filter."""
    seen: list[int] = []

    def run(pipeline: Pipeline, _exchange: Exchange) -> None:
        pipeline.answer = MADE if len(seen) in at else None
        seen.append(1)

    return run


def edits(*sections: str) -> Manifest:
    modified = {"set": [{"name": "x-a", "value": "b"}]}
    types = {"request": "RequestHeaderModifier", "response": "ResponseHeaderModifier"}
    filters = [{"type": types[each], f"{types[each][0].lower()}{types[each][1:]}": modified} for each in sections]
    return m.prefix_rule("/", "a", filters=filters)


GET = b"GET http://a.example/ HTTP/1.1\r\nHost: a.example"
TO_US = b"GET / HTTP/1.1\r\nHost: a.example"


def test_a_request_without_filters_is_admitted_called_and_sent():
    played = Played(port_of(forward()))
    assert played.request(GET) == [p.ENTER_GATE, p.CALL, p.SEND]
    assert (played.exchange.backend, played.exchange.scheme) == ("-", b"http")


def test_filters_run_in_the_order_of_their_phases():
    seen = []
    played = Played(
        port_of(reverse(edits("request", "response"))), {p.FILTER: lambda pipeline, _: seen.append(pipeline.steps)}
    )
    assert played.request(TO_US) == [p.ENTER_GATE, p.FILTER, p.CALL, p.FILTER, p.SEND]
    route, backend = played.pipeline.route, played.pipeline.backend
    assert route is not None
    assert backend is not None
    assert seen == [route.chain.request_headers, backend.chain.response_headers]


@pytest.mark.parametrize(
    ("at", "actions"),
    [
        ((0,), [p.ENTER_GATE, p.FILTER, p.RESPOND]),
        ((1,), [p.ENTER_GATE, p.FILTER, p.CALL, p.FILTER, p.RESPOND]),
    ],
)
def test_the_response_of_a_filter_ends_it(at: tuple[int, ...], actions: list[str]):
    played = Played(port_of(reverse(edits("request", "response"))), {p.FILTER: filtered(*at)})
    assert played.request(TO_US) == actions
    assert played.pipeline.answer is MADE


def test_the_response_of_a_backend_filter_is_sent_without_phases_of_the_response():
    def call(pipeline: Pipeline, exchange: Exchange) -> None:
        answered(200)(pipeline, exchange)
        pipeline.answer = MADE

    assert Played(port_of(reverse(edits("response"))), {p.CALL: call}).request(TO_US) == [
        p.ENTER_GATE,
        p.CALL,
        p.RESPOND,
    ]


def test_a_switch_of_protocols_is_no_response_to_send():
    assert Played(port_of(reverse()), {p.CALL: answered(101)}).request(TO_US)[-1] == p.SWITCH


@pytest.mark.parametrize(
    ("left", "actions"), [(b"0", [p.ENTER_GATE, p.RESPOND]), (b"1", [p.ENTER_GATE, p.CALL, p.SEND])]
)
def test_max_forwards_ends_at_the_last_hop(left: bytes, actions: list[str]):
    played = Played(port_of(reverse()))
    assert played.request(b"OPTIONS / HTTP/1.1\r\nHost: a.example\r\nMax-Forwards: " + left) == actions
    assert played.exchange.request.max_forwards in (0, -1)


@pytest.mark.parametrize("line", [b"GET", b"TRACE"])
def test_who_asks_is_learnt_before_any_route_is_looked_up(line: bytes):
    def refuse(_pipeline: Pipeline, _exchange: Exchange) -> None:
        raise GatewayFault(Reason.METHOD_NOT_ALLOWED, "refused", status=405)

    played = Played(port_of(reverse()), {p.IDENTIFY: refuse})
    assert played.request(line + TO_US[3:] + b"\r\nVia: 1.1 other") == [p.IDENTIFY]
    assert (played.error is not None, played.pipeline.route) == (True, None)


def test_what_is_denied_is_never_admitted():
    played = Played(port_of(forward()))
    assert played.request(b"GET http://b.example/ HTTP/1.1\r\nHost: b.example") == []
    assert isinstance(played.error, Denied)
    assert played.tunnel("b.example:443") == []


def test_a_request_that_has_waited_is_decided_once_more():
    def wait(_pipeline: Pipeline, exchange: Exchange) -> None:
        exchange.keep(WAITED, True)

    played = Played(port_of(reverse(edits("request"))), {p.FILTER: wait})
    assert played.request(TO_US) == [p.ENTER_GATE, p.FILTER, p.ADMIT_AGAIN, p.CALL, p.SEND]


def test_a_filter_that_excludes_every_backend_refuses_the_request():
    def exclude(_pipeline: Pipeline, exchange: Exchange) -> None:
        exchange.exclude_backend("agents/a")

    played = Played(port_of(reverse(edits("request"))), {p.FILTER: exclude})
    assert played.request(TO_US) == [p.ENTER_GATE, p.FILTER]
    assert isinstance(played.error, Denied)


def test_a_filter_that_excludes_the_backend_of_a_tunnel_refuses_it():
    def exclude(_pipeline: Pipeline, exchange: Exchange) -> None:
        exchange.exclude_backend("agents/a")

    routed = m.backend("a", "a.example", 443), m.tls_route("t", "a", hostnames=["a.example"])
    edit = {"request": {"set": [{"name": "x-a", "value": "1"}]}}
    extension = {"name": "f", "type": "egressproxy.io/HeaderPolicy:v1", "phase": "request-headers", "config": edit}
    played = Played(port_of(forward(*routed, extensions=[extension])), {p.FILTER: exclude})
    assert played.tunnel("a.example:443") == [p.ENTER_GATE, p.FILTER]
    assert isinstance(played.error, Denied)


def test_the_body_is_filtered_before_a_backend_is_called():
    extension = {"name": "guard", "type": "egressproxy.io/PromptGuard:v1", "phase": "request-headers"}
    port = port_of([m.gateway(m.http_listener(8080)), m.policy(extensions=[extension]), *reverse()[2:]])
    text = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a.example\r\nContent-Length: "
    assert p.FILTER_BODY not in Played(port).request(text + b"0")
    actions = Played(port).request(text + b"9")
    assert actions.index(p.FILTER_BODY) == actions.index(p.CALL) - 1


def test_a_tunnel_is_admitted_and_opened():
    played = Played(port_of(forward()))
    assert played.tunnel("a.example:443") == [p.ENTER_GATE, p.TUNNEL]
    assert (played.exchange.is_tunnel, played.exchange.kind) == (True, "tunnel")


@pytest.mark.parametrize("is_inside", [False, True])
def test_connect_is_served_by_forward_listeners_alone_and_not_in_a_tunnel(is_inside: bool):
    played = Played(port_of(forward() if is_inside else reverse()))
    assert played.tunnel("a.example:443", is_inside=is_inside) == []
    assert played.error is not None
    assert played.error.status == 405


def test_a_tunnel_whose_host_is_to_be_opened_is_intercepted():
    played = Played(port_of(opening()))
    assert played.tunnel("a.example:443") == [p.ENTER_GATE, p.INTERCEPT]
    assert played.pipeline.certificates is not None


def spoken(http: bool) -> Results:
    def accept(pipeline: Pipeline, _exchange: Exchange) -> None:
        pipeline.speaks_http = http

    return {p.ACCEPT: accept}


def test_the_first_byte_decides_in_a_tunnel_to_port_80():
    port = port_of(forward())
    assert Played(port, spoken(http=True)).tunnel("a.example:80") == [p.ENTER_GATE, p.ACCEPT, p.READ_HTTP]
    assert Played(port, spoken(http=False)).tunnel("a.example:80") == [p.ENTER_GATE, p.ACCEPT, p.START_CLOCK, p.TUNNEL]


def test_tls_that_policy_refuses_behind_the_200_is_told_by_an_alert():
    route = m.http_route("r", m.prefix_rule("/", "a"), hostnames=["b.example"])
    played = Played(port_of(forward(m.backend("a", "a.example", 80), route)), spoken(http=False))
    assert played.tunnel("b.example:80") == [p.ENTER_GATE, p.ACCEPT, p.REFUSE_TLS]
    assert played.error is None
    assert isinstance(played.pipeline.denied, Denied)


def tls_port() -> Port:
    listener = {"name": "tls", "port": 8443, "protocol": "TLS", "tls": {"mode": "Passthrough"}}
    route = m.tls_route("r", "a", hostnames=["a.example"])
    return port_of([m.gateway(listener), m.policy(), m.backend("a", "a.example", 443), route])


@pytest.mark.parametrize("has_ech", [False, True])
def test_a_stream_goes_by_the_name_in_its_client_hello(has_ech: bool):
    played = Played(tls_port())
    actions = played.stream(ClientHello("a.example", (), (), has_ech=has_ech))
    assert actions == [*([p.NOTE_ECH] if has_ech else []), p.IDENTIFY, p.ENTER_GATE, p.TUNNEL]
    other = Played(tls_port())
    assert other.stream(ClientHello("b.example", (), (), has_ech=False)) == [p.IDENTIFY]
    assert other.error is not None


GONE = ClientGone()
STEP = SimpleNamespace(spec=SimpleNamespace(name="filter", source="-"))
ANSWERED = FilterAnswered(MADE, cast("FilterStep", STEP))
FAULT = GatewayFault(Reason.INTERNAL, "internal error")


@pytest.mark.parametrize(
    ("error", "is_lost", "status", "filters_answer", "action"),
    [
        (FAULT, False, 0, False, p.RESPOND_ERROR),
        (FAULT, False, 0, True, p.RESPOND_ERROR),
        (FAULT, False, 200, False, p.BREAK_OFF),
        (FAULT, False, 200, True, p.END_EVENTS),
        (FAULT, True, 0, False, p.BREAK_OFF),
        (FAULT, True, 200, True, p.BREAK_OFF),
        (GONE, False, 0, False, p.BREAK_OFF),
        (GONE, False, 200, True, p.BREAK_OFF),
        (ANSWERED, False, 0, False, p.RESPOND_INSTEAD),
        (ANSWERED, False, 200, True, p.END_EVENTS),
        (ANSWERED, True, 0, False, p.BREAK_OFF),
    ],
)
def test_what_an_error_becomes(error: GatewayError, is_lost: bool, status: int, filters_answer: bool, action: str):
    played = Played(port_of(forward()))
    played.exchange.status = status
    if filters_answer:
        played.pipeline.response_filter = cast("BodyFilter", object())
    assert played.pipeline.end(played.exchange, error, is_lost=is_lost) == action


def test_a_stream_that_fails_is_refused_until_it_is_open():
    played = Played(tls_port())
    played.stream(ClientHello("a.example", (), (), has_ech=False))
    assert played.pipeline.end(played.exchange, FAULT, is_lost=False) == p.REFUSE
    assert played.pipeline.end(played.exchange, GONE, is_lost=False) == p.BREAK_OFF
    played.exchange.status = 200
    assert played.pipeline.end(played.exchange, FAULT, is_lost=False) == p.BREAK_OFF


@given(
    st.sampled_from(["a.example", "b.example", "egress.internal"]),
    st.sampled_from([b"GET", b"POST", b"OPTIONS", b"TRACE"]),
    st.sampled_from([b"", b"\r\nVia: 1.1 other", b"\r\nMax-Forwards: 0", b"\r\nContent-Length: 4", b"\r\nUpgrade: x"]),
    st.sampled_from([200, 101, 503]),
    st.sets(st.integers(0, 2)),
    st.booleans(),
)
def test_equal_results_give_equal_actions(
    host: str, method: bytes, more: bytes, status: int, at: set[int], waits: bool
):
    """Every list ends with one last action or with an error, and nothing follows a last action."""
    port = every_phase()

    def play() -> tuple[list[str], Reason | None]:
        run = filtered(*at)

        def filter_head(pipeline: Pipeline, exchange: Exchange) -> None:
            run(pipeline, exchange)
            if waits and pipeline.answer is None:
                exchange.keep(WAITED, True)

        played = Played(port, {p.CALL: answered(status), p.FILTER: filter_head})
        actions = played.request(b"%b http://%b/ HTTP/1.1\r\nHost: %b%b" % (method, host.encode(), host.encode(), more))
        return actions, played.error.reason if played.error is not None else None

    actions, reason = play()
    assert play() == (actions, reason)
    assert (reason is None) is (bool(actions) and actions[-1] in LAST)
    assert not LAST & set(actions[:-1])
    assert actions.count(p.ENTER_GATE) <= 1 >= actions.count(p.CALL)


@cache
def every_phase() -> Port:
    backend = m.backend("a", "a.example", 80)
    return port_of(forward(backend, m.http_route("r", edits("request", "response"), hostnames=["a.example"])))
