"""Retries (Gateway API, HTTPRouteRetry; EgressPolicy traffic.retries): what goes again, and what does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.filters.base import Filter
from egressproxy.gateway.backends.replayable_body import REPLAY_LIMIT
from egressproxy.gateway.backends.retries import Budget
from egressproxy.ir.policy import RetryBudgetIR
from egressproxy.model.exchange import Exchange
from tests.gateway.conftest import Start
from tests.gateway.kit import OK, OK_PASSED, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer, scripted_filter
from tests.support.waiting import WAIT_S

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
SENT = b"GET / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
POST_SENT = b"POST / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\nContent-Length: 5\r\n\r\n"
SERVICE = m.manifest("v1", "Service", "pods", "agents", spec={"ports": [{"port": 80}]})


def retrying(attempts: int | None = 2, codes: tuple[int, ...] = (), **more: Any) -> list[m.Manifest]:
    """One route to the backend `a` with this `retry`; without a pause, so that a conversation in memory goes on."""
    retry: dict[str, Any] = {"codes": list(codes), "backoff": more.pop("backoff", "0s")}
    if attempts is not None:
        retry["attempts"] = attempts
    return reverse(m.prefix_rule("/", "a", retry=retry, **more))


def pods(*addresses: str) -> list[m.Manifest]:
    endpoints = [{"addresses": [address]} for address in addresses]
    slices = {"addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 8080}]}
    labels = {"kubernetes.io/service-name": "pods"}
    metadata = {"name": "pods-1", "namespace": "agents", "labels": labels}
    return [
        SERVICE,
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, **slices},
    ]


def to_pods(*addresses: str, **rule: Any) -> list[m.Manifest]:
    """One route to a Service with these endpoints, port 8080."""
    made = {"backendRefs": [{"name": "pods", "port": 80}], **rule}
    return [m.gateway(m.http_listener(8080)), m.http_route("route", made), *pods(*addresses)]


def refuse(talk: Conversation, host: str = "a.example", port: int = 80) -> None:
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "the upstream refused", status=503, retry=RetrySafety.SAFE)
    talk.refused(host, port, fault)


def answers(talk: Conversation, status: int, body: bytes = b"no") -> None:
    """The origin has the request and answers it."""
    talk.origin.take(rb"(GET|POST|PUT) .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 %d Failed\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body


# --- connections that do not come about ------------------------------------------------------------------------------
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_refused_connection_is_tried_again_whatever_the_method(converse: Start, method: bytes):
    talk = converse(retrying())
    talk.client >> GET.replace(b"GET", method)
    refuse(talk)
    refuse(talk)
    talk.dialled("a.example", 80)
    talk.origin.take(method + rb" / .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED
    record = talk.record()
    assert (record["status"], record["attempts"], record["detail"]) == (200, 3, "retried after upstream_refused")


# --- connections that break ------------------------------------------------------------------------------------------
def test_a_connection_that_is_reset_before_an_answer_is_replaced(converse: Start):
    talk = converse(retrying())
    talk.client >> GET
    talk.dialled("a.example", 80).resets()
    talk.dialled("a.example", 80) << SENT
    talk.origin >> OK
    talk.client << OK_PASSED


def test_nothing_goes_again_once_the_client_has_a_head(converse: Start):
    talk = converse(retrying())
    talk.client >> GET
    talk.dialled("a.example", 80) << SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"
    talk.client << b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: 9\r\n\r\nhalf"
    talk.origin.leaves()
    talk.client.is_closed()
    talk.no_dial()


# --- codes -----------------------------------------------------------------------------------------------------------
def test_a_listed_status_is_retried_on_the_same_connection_where_the_answer_is_here(converse_on: Start):
    talk = converse_on(retrying(2, (500, 503)))
    talk.client >> GET
    talk.dialled("a.example", 80)
    answers(talk, 500)
    answers(talk, 503)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.open == 1
    assert talk.record()["detail"] == "retried after status 500, status 503"


def test_an_answer_that_is_not_here_is_not_waited_for(converse: Start):
    talk = converse(retrying(1, (500,)))
    talk.client >> GET
    talk.dialled("a.example", 80) << SENT
    first = talk.origin
    first >> b"HTTP/1.1 500 Failed\r\nContent-Length: 1000\r\n\r\nbegins"
    talk.dialled("a.example", 80) << SENT
    first.is_closed()
    talk.origin >> OK
    talk.client << OK_PASSED


# --- bodies ----------------------------------------------------------------------------------------------------------
def test_a_body_that_is_under_way_goes_on_at_the_next_backend(converse_on: Start):
    talk = converse_on(retrying(1, (503,)))
    talk.client >> POST + b"ab"
    talk.dialled("a.example", 80) << POST_SENT + b"ab"
    talk.origin >> b"HTTP/1.1 503 Failed\r\nContent-Length: 0\r\n\r\n"
    talk.dialled("a.example", 80) << POST_SENT + b"ab"
    talk.client >> b"cde"
    talk.origin << b"cde"
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_chunked_body_is_sent_again_with_its_trailers(converse: Start):
    talk = converse(retrying(1, (503,)))
    body = b"2\r\nab\r\n0\r\nX-Sum: 7\r\n\r\n"
    talk.client >> b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    talk.dialled("a.example", 80)
    for answer in (b"HTTP/1.1 503 Failed\r\nContent-Length: 0\r\n\r\n", OK):
        talk.origin.take(rb"POST / .*?\r\n\r\n")
        talk.origin << body
        talk.origin >> answer
    talk.client << OK_PASSED


def test_a_long_body_goes_again_while_no_backend_had_it(converse: Start):
    talk = converse(retrying())
    body = bytes(REPLAY_LIMIT * 3)
    talk.client >> POST.replace(b"5", b"%d" % len(body)) + body
    refuse(talk)
    talk.dialled("a.example", 80).take(rb"POST / .*?\r\n\r\n")
    talk.origin << body
    talk.origin >> OK
    talk.client << OK_PASSED


def test_the_client_is_not_asked_twice_to_go_on(converse: Start):
    talk = converse(retrying(1, (503,)))
    talk.client >> POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    talk.dialled("a.example", 80).take(rb"POST / .*Expect: 100-continue.*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 100 Continue\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 100 Continue\r\n.*?\r\n\r\n")
    talk.client >> b"abcde"
    talk.origin << b"abcde"
    talk.origin >> b"HTTP/1.1 503 Failed\r\nContent-Length: 0\r\n\r\n"
    talk.origin << POST_SENT + b"abcde"
    talk.origin >> OK
    talk.client << OK_PASSED


def test_an_attempt_that_was_answered_without_the_100_it_waited_for_is_followed_on_another_connection(converse: Start):
    talk = converse(retrying(1, (503,)))
    talk.client >> POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n") + b"abcde"
    first = talk.dialled("a.example", 80)
    first.take(rb"POST / .*Expect: 100-continue.*?\r\n\r\nabcde")
    first >> b"HTTP/1.1 503 Failed\r\nContent-Length: 0\r\n\r\n"
    talk.dialled("a.example", 80) << POST_SENT + b"abcde"
    first.is_closed()
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.idle == 1


class Upper(Filter):
    """A body filter that streams, and counts what it saw."""

    def __init__(self) -> None:
        self.seen = b""

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        self.seen += data
        return data.upper()


def test_a_body_filter_sees_the_body_once(converse: Start):
    upper = Upper()
    objects = retrying(1, (503,))
    objects[1] = m.policy(extensions=[scripted_filter("upper", "request-body")])
    talk = converse(objects, filters={"upper": upper})
    talk.client >> POST + b"abcde"
    talk.dialled("a.example", 80)
    for answer in (b"HTTP/1.1 503 Failed\r\nContent-Length: 0\r\n\r\n", OK):
        talk.origin.take(rb"POST / .*?\r\n\r\n")
        talk.origin << b"5\r\nABCDE\r\n0\r\n\r\n"
        talk.origin >> answer
    talk.client << OK_PASSED
    assert upper.seen == b"abcde"


# --- each attempt is a request of its own ----------------------------------------------------------------------------


class Slots(Filter):
    """Counts as a limit of concurrency does: taken when a request goes to the backend, free at its end."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}
        self.completed = 0

    def backend_request(self, x: Exchange) -> None:
        self.taken[x.backend] = self.taken.get(x.backend, 0) + 1

    def complete(self, x: Exchange) -> None:
        self.completed += 1


def test_filters_of_a_backend_that_was_left_are_completed_once(converse: Start):
    rule = {
        "backendRefs": [{"group": m.OURS, "kind": "Backend", "name": name} for name in ("a", "b")],
        "retry": {"attempts": 40, "codes": [503], "backoff": "0s"},
    }
    slots = {name: Slots() for name in ("a", "b", "all")}
    objects = [
        m.gateway(m.http_listener(8080)),
        m.policy(extensions=[scripted_filter("all", "backend-request")]),
        *(m.backend(n, f"{n}.example", 80, extensions=[scripted_filter(n, "backend-request")]) for n in ("a", "b")),
        m.http_route("route", rule),
    ]
    talk = converse(objects, filters=slots)
    talk.client >> GET
    while not (slots["a"].taken and slots["b"].taken):
        if talk.dialer.dials:
            talk.dialled(talk.names.name_of(talk.dialer.dials[0].endpoints[0][0]), 80)
        peer = next(origin for origin in talk.origins if origin.got)
        peer.take(rb"GET / .*?\r\n\r\n")
        is_last = slots["a"].taken and slots["b"].taken
        peer >> (OK if is_last else b"HTTP/1.1 503 Failed\r\nContent-Length: 0\r\n\r\n")
    talk.client << OK_PASSED
    assert [slots[name].completed for name in ("a", "b", "all")] == [1, 1, 1]


# --- endpoints -------------------------------------------------------------------------------------------------------
def test_the_endpoints_of_a_service_take_turns(converse: Start):
    talk = converse(to_pods("10.0.0.1", "10.0.0.2", "10.0.0.3"))
    hosts = []
    for _ in range(3):
        talk.client >> GET
        dial = talk.pending_dial()
        assert dial is not None
        hosts.append(str(dial.endpoints[0][0]))
        talk.dialled(hosts[-1], 8080)
        answers(talk, 200)
        talk.client.take(rb"HTTP/1.1 200 .*no")
    assert sorted(hosts) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


# --- time ------------------------------------------------------------------------------------------------------------
def test_an_attempt_that_takes_too_long_is_followed_by_another(converse: Start):
    talk = converse(retrying(1, timeouts={"backendRequest": "2s"}))
    talk.client >> GET
    first = talk.dialled("a.example", 80)
    first << SENT
    talk.after(2.2)
    first.is_closed()
    talk.dialled("a.example", 80) << SENT
    talk.after(1.5)
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.record()["detail"] == "retried after upstream_timeout"


def test_the_time_for_the_whole_request_ends_a_pause(converse: Start):
    talk = converse(retrying(9, (503,), backoff="30s", timeouts={"request": "5s"}))
    talk.client >> GET
    talk.dialled("a.example", 80)
    answers(talk, 503)
    talk.client.hears_nothing()
    talk.after(5.2)
    assert talk.client.answer()[0] == 504
    assert talk.record()["reason"] == "request_timeout"


def test_a_client_that_leaves_in_a_pause_ends_it(converse: Start):
    talk = converse(retrying(9, (503,), backoff="30s"))
    talk.client >> GET
    talk.dialled("a.example", 80)
    answers(talk, 503)
    talk.client.leaves()
    assert talk.record()["reason"] == "client_gone"


def test_a_time_shorter_than_a_tick_of_the_wheel_ends_an_attempt(converse_on: Start):
    talk = converse_on(retrying(1, timeouts={"backendRequest": "30ms"}))
    talk.client >> GET
    first = talk.dialled("a.example", 80)
    while not talk.dialer.dials:
        talk.run(_moment())
    talk.dialled("a.example", 80).take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 (200|504) ")  # a busy machine may be too late for the second one as well
    assert first.has_eof


async def _moment() -> None:
    await asyncio.sleep(0.002)


# --- parents ---------------------------------------------------------------------------------------------------------
FAR_SENT = b"GET http://far.example/ HTTP/1.1\r\nHost: far.example\r\nVia: 1.1 gw\r\n\r\n"


def through_parent(attempts: int, codes: tuple[int, ...] = (503,)) -> list[m.Manifest]:
    """One route to a backend behind a parent gateway, with this `retry`."""
    parent = m.backend("proxy", "proxy.example", 3128)
    rule = m.prefix_rule("/", "far", retry={"attempts": attempts, "codes": list(codes), "backoff": "0s"})
    far = m.backend("far", "far.example", 80, parent={"name": "proxy"})
    return [m.gateway(m.http_listener(8080)), parent, far, m.http_route("route", rule)]


def test_a_stale_connection_to_a_parent_is_replaced_and_the_request_goes_again_as_it_was(converse: Start):
    talk = converse(through_parent(1))
    talk.client >> GET
    talk.dialled("proxy.example", 3128) << FAR_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.client >> GET
    talk.origin << FAR_SENT
    talk.origin.resets()
    talk.dialled("proxy.example", 3128) << FAR_SENT
    talk.origin.resets()
    assert talk.client.answer()[0] == 503
    talk.no_dial()


# --- stale connections -----------------------------------------------------------------------------------------------
def warm(talk: Conversation, connections: int = 1) -> list[Peer]:
    """So many idle connections to a.example; the one that is used next stands last."""
    clients = [talk.client, *(talk.connect() for _ in range(connections - 1))]
    origins = []
    for client in clients:
        client >> GET
        origins.append(talk.dialled("a.example", 80))
    for client, origin in zip(clients, origins, strict=True):
        origin << SENT
        origin >> OK
        client << OK_PASSED
    return origins


def test_a_rule_that_says_nothing_of_retries_has_its_stale_connections_replaced(converse: Start):
    talk = converse(reverse(m.prefix_rule("/", "a", timeouts={"backendRequest": "90ms"})))
    warm(talk)
    talk.client >> GET
    talk.origin << SENT
    talk.origin.resets()
    talk.dialled("a.example", 80) << SENT
    talk.origin >> OK
    talk.client << OK_PASSED


# --- policies --------------------------------------------------------------------------------------------------------


def test_a_budget_is_a_share_of_the_requests_of_an_interval():
    now = [0.0]
    budget = Budget(RetryBudgetIR(20, 10, 0.1), lambda: now[0])
    budget.count_request()
    assert [budget.take(), budget.take()] == [True, False]  # one in ten seconds in any case
    for _ in range(9):
        budget.count_request()
    assert [budget.take(), budget.take()] == [True, False]  # two of ten
    now[0] = 15.0  # half of the interval before still counts: five requests, one retry
    for _ in range(5):
        budget.count_request()
    assert [budget.take(), budget.take()] == [True, False]
    now[0] = 60.0
    assert [budget.take(), budget.take()] == [True, False]


# --- mirrors ---------------------------------------------------------------------------------------------------------
def test_a_request_that_goes_again_is_mirrored_once(converse: Start):
    mirror = {"group": m.OURS, "kind": "Backend", "name": "b"}
    filters = [{"type": "RequestMirror", "requestMirror": {"backendRef": mirror}}]
    rule = m.prefix_rule("/", "a", retry={"attempts": 2, "codes": [503], "backoff": "0s"}, filters=filters)
    talk = converse(reverse(rule, objects=(m.backend("b", "b.example", 80),)))
    talk.client >> POST + b"ab"
    refuse(talk)
    backend = talk.dialled("a.example", 80)
    copy = talk.dialled("b.example", 80)
    backend << POST_SENT + b"ab"
    backend >> b"HTTP/1.1 503 Failed\r\nContent-Length: 0\r\n\r\n"
    talk.dialled("a.example", 80) << POST_SENT + b"ab"
    talk.client >> b"cde"
    talk.origin << b"cde"
    copy << POST_SENT.replace(b"a.ex", b"b.ex") + b"abcde"
    copy >> OK
    talk.origin >> OK
    talk.client << OK_PASSED


# --- short times without retries -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("timeouts", "reason"),
    [({"request": "60ms"}, "request_timeout"), ({"backendRequest": "60ms"}, "upstream_timeout")],
)
def test_a_time_below_a_second_ends_a_request_of_a_rule_without_retries(
    converse_on: Start, timeouts: dict[str, str], reason: str
):
    talk = converse_on(reverse(m.prefix_rule("/", "a", timeouts=timeouts)))
    talk.client >> POST + b"ab"
    talk.dialled("a.example", 80) << POST_SENT + b"ab"
    began = talk.loop.time()
    while not talk.client.got:
        talk.run(_moment())
        assert talk.loop.time() - began < WAIT_S
    assert talk.client.answer()[0] == 504
    assert talk.record()["reason"] == reason
    assert "attempts" not in talk.record()


def test_0s_is_no_limit_though_a_policy_has_one(converse: Start):
    rule = m.prefix_rule("/", "a", timeouts={"request": "0s", "backendRequest": "0s"})
    talk = converse(reverse(rule, traffic={"timeouts": {"request": "2s", "backendRequest": "1s", "idle": "0s"}}))
    talk.client >> GET
    talk.dialled("a.example", 80) << SENT
    talk.after(30)
    talk.origin >> OK
    talk.client << OK_PASSED


# --- a deny means the place ------------------------------------------------------------------------------------------


def test_a_client_that_was_held_back_at_the_end_of_its_body_is_heard_again(converse: Start):
    """Whether it is still there shows only where it is read."""
    talk = converse(reverse(traffic={"retries": {"attempts": 2, "codes": [503]}}))
    talk.client >> b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 100010\r\n\r\n" + b"x" * 10
    origin = talk.dialled("a.example", 80)
    origin.take(rb"POST .*?\r\n\r\n")
    origin.stalls()
    talk.client >> b"x" * 100_000
    talk.settle()
    assert talk.client.transport.is_paused
    origin.reads_on()
    talk.settle()
    assert not talk.client.transport.is_paused
    origin >> OK
    talk.client.take(rb"HTTP/1.1 200 OK.*hi")
