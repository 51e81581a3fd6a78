"""Backends of type Failover: where a request goes when a backend fails, and what it takes along."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address
from typing import Any

import pytest
from h2.errors import ErrorCodes

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.gateway.backends.replayable_body import REPLAY_LIMIT
from egressproxy.model.fields import Fields
from tests.gateway.backends.test_retries import pods
from tests.gateway.conftest import Start
from tests.gateway.kit import OK, OK_PASSED
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.http2 import Http2Origin

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde"
NAMES = ("a", "b", "c")


def config(*endpoints: str | m.Manifest, rule: dict[str, Any] | None = None, **failover: Any) -> list[m.Manifest]:
    """One route to the Failover `any`, with these endpoints of a, b and c (a.example:80 …)."""
    return [
        m.gateway(m.http_listener(8080)),
        *(m.backend(name, f"{name}.example", 80) for name in NAMES),
        m.failover("any", *(endpoints or NAMES), **failover),
        m.http_route("route", m.prefix_rule("/", "any", **(rule or {}))),
    ]


def refuse(talk: Conversation, name: str) -> None:
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "the upstream refused", status=503, retry=RetrySafety.SAFE)
    talk.refused(f"{name}.example", 80, fault)


def asked(talk: Conversation, name: str, method: bytes = b"GET", *, is_new: bool = True) -> bytes:
    """The backend of this name has the request; gives its head."""
    if is_new:
        talk.dialled(f"{name}.example", 80)
    return talk.origin.take(method + rb" .*?\r\n\r\n")[0]


def answer(talk: Conversation, status: int, *fields: bytes) -> None:
    talk.origin >> b"HTTP/1.1 %d Said\r\n%bContent-Length: 2\r\n\r\nno" % (
        status,
        b"".join(f + b"\r\n" for f in fields),
    )


def served_by(talk: Conversation, name: str, *, is_new: bool = True) -> None:
    """A request from its head to its end, by this backend alone."""
    talk.client >> GET
    asked(talk, name, is_new=is_new)
    talk.origin >> OK
    talk.client << OK_PASSED


def passed(talk: Conversation, status: int) -> dict[str, str]:
    """The client has an answer with this status and a body of two bytes, or none; gives its fields."""
    head = talk.client.take(rb"HTTP/1.1 %d .*?\r\n\r\n(no|hi)?" % status)[0].decode()
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n"))}


# --- which one -------------------------------------------------------------------------------------------------------


def test_equal_priorities_share_the_requests_by_weight(converse: Start):
    def endpoint(name: str, weight: int) -> m.Manifest:
        return {"backendRef": {"group": m.OURS, "kind": "Backend", "name": name}, "priority": 1, "weight": weight}

    talk = converse(config(endpoint("a", 3), endpoint("b", 1), endpoint("c", 0)))
    route = next(iter(talk.snapshot.ports.values())).first.http.matches("x", b"GET", b"/", Fields())
    group = next(iter(route)).payload.failovers
    assert group is not None
    made = next(iter(group.values()))
    chosen = [made.choose((), 0.0).name for _ in range(4000)]
    assert set(chosen) == {"agents/a", "agents/b"}
    assert 2700 < chosen.count("agents/a") < 3300


def test_a_refused_connection_goes_to_the_next_priority_with_its_own_host(converse: Start):
    talk = converse(config())
    talk.client >> POST
    refuse(talk, "a")
    head = asked(talk, "b", b"POST")
    assert b"\r\nHost: b.example\r\n" in head
    talk.origin << b"abcde"
    talk.origin >> OK
    talk.client << OK_PASSED
    record = talk.record()
    assert (record["backend"], record["status"], record["attempts"]) == ("agents/b", 200, 2)
    assert [(each["backend"], each["outcome"]) for each in record["attempts_detail"]] == [
        ("agents/a", "upstream_refused"), ("agents/b", "200"),
    ]  # fmt: skip
    assert talk.series("failovers") == 1


# --- the first byte --------------------------------------------------------------------------------------------------
def wait_for_dial(talk: Conversation) -> None:
    """The timer of an attempt is one of the loop, which conversations in memory do not wait for."""
    for _ in range(1000):
        if talk.dialer.dials:
            return
        talk.run(asyncio.sleep(0.01))


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("said", [b"", HEAD, HEAD + b"5\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"])
def test_a_first_token_that_stalls_goes_to_the_next_backend(converse: Start, said: bytes):
    talk = converse(config(firstByte="60ms"))
    talk.client >> POST
    asked(talk, "a", b"POST")
    if said:
        talk.origin >> said
    wait_for_dial(talk)
    talk.client.hears_nothing()
    asked(talk, "b", b"POST")
    talk.origin << b"abcde"
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.record()["attempts_detail"][0]["outcome"] == "upstream_timeout"


@pytest.mark.parametrize("said", [HEAD, HEAD + b"5\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"])
def test_an_answer_that_ends_before_its_first_byte_goes_to_the_next_backend(converse: Start, said: bytes):
    talk = converse(config(firstByte="5s"))
    talk.client >> POST
    asked(talk, "a", b"POST")
    talk.origin >> said
    talk.origin.resets()
    asked(talk, "b", b"POST")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_stream_flows_from_its_first_byte_on_and_has_no_such_limit_any_more(converse: Start):
    talk = converse(config(firstByte="50ms"))
    talk.client >> GET
    asked(talk, "a")
    talk.origin >> HEAD
    talk.client.hears_nothing()
    talk.origin >> b"3\r\none\r\n"
    talk.client << STREAM + b"3\r\none\r\n"
    talk.run(asyncio.sleep(0.1))
    talk.origin >> b"3\r\ntwo\r\n0\r\n\r\n"
    talk.client << b"3\r\ntwo\r\n0\r\n\r\n"
    talk.no_dial()


@pytest.mark.parametrize(
    ("said", "passed"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 204 No Content\r\nVia: 1.1 gw\r\n\r\n"),
        (HEAD + b"0\r\n\r\n", STREAM + b"0\r\n\r\n"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: 0\r\n\r\n",
        ),
    ],
)
def test_an_answer_without_a_body_is_not_waited_for(converse: Start, said: bytes, passed: bytes):
    talk = converse(config(firstByte="5s"))
    talk.client >> GET
    asked(talk, "a")
    talk.origin >> said
    talk.client << passed


def test_a_client_that_is_slow_with_its_body_says_nothing_of_the_backend(converse: Start):
    talk = converse(config(firstByte="60ms"))
    talk.client >> POST[:-3]
    asked(talk, "a", b"POST")
    talk.origin << b"ab"
    talk.run(asyncio.sleep(0.2))
    talk.no_dial()
    talk.client >> b"cde"
    talk.origin << b"cde"
    talk.origin >> OK
    talk.client << OK_PASSED
    served_by(talk, "a", is_new=False)


def test_the_first_byte_is_waited_for_from_the_end_of_the_body_on(converse: Start):
    talk = converse(config(firstByte="200ms"))
    talk.client >> POST[:-3]
    asked(talk, "a", b"POST")
    talk.run(asyncio.sleep(0.15))
    talk.client >> b"cde"
    talk.run(asyncio.sleep(0.1))
    talk.no_dial()
    wait_for_dial(talk)
    asked(talk, "b", b"POST")
    talk.origin << b"abcde"
    talk.origin >> OK
    talk.client << OK_PASSED


def test_an_attempt_that_is_too_slow_because_of_its_client_does_not_put_the_backend_aside(converse: Start):
    talk = converse(config(rule={"timeouts": {"backendRequest": "2s"}}))
    talk.client >> POST[:-3]
    asked(talk, "a", b"POST")
    talk.after(2.5)
    asked(talk, "b", b"POST")
    talk.client >> b"cde"
    talk.origin << b"abcde"
    talk.origin >> OK
    talk.client << OK_PASSED
    served_by(talk, "a")


# --- bounds ----------------------------------------------------------------------------------------------------------
def test_a_body_that_is_longer_than_what_is_kept_stays_with_the_backend_that_has_it(converse: Start):
    talk = converse(config(maxReplayBytes=4))
    talk.client >> POST
    asked(talk, "a", b"POST")
    talk.origin << b"abcde"
    answer(talk, 503)
    passed(talk, 503)
    talk.no_dial()


def test_a_body_longer_than_that_of_other_retries_is_kept(converse: Start):
    talk = converse(config())
    body = b"x" * (4 * REPLAY_LIMIT)
    talk.client >> POST.replace(b"5\r\n\r\nabcde", b"%d\r\n\r\n" % len(body)) + body
    for name in ("a", "b"):
        asked(talk, name, b"POST")
        talk.origin << body
        if name == "a":
            answer(talk, 529)
    talk.origin >> OK
    talk.client << OK_PASSED


# --- what an attempt takes along -------------------------------------------------------------------------------------
def credential(name: str) -> m.Manifest:
    config = {
        "secretRef": {"name": name, "key": "token"},
        "header": f"x-{name}",
        "template": "{}",
        "allowPlaintext": True,
    }
    kind = "egressproxy.io/CredentialInjector:v1"
    return {"name": name, "type": kind, "phase": "backend-request", "config": config}


def test_each_attempt_has_the_credential_of_its_backend_and_no_other(converse: Start):
    objects = [
        m.gateway(m.http_listener(8080)),
        *(m.backend(name, f"{name}.example", 80, extensions=[credential(name)]) for name in ("a", "b")),
        *(m.secret(name, {"token": f"of-{name}"}) for name in ("a", "b")),
        m.failover("any", "a", "b"),
        m.http_route("route", m.prefix_rule("/", "any", rewrite="/under")),
    ]
    talk = converse(objects)
    talk.client >> GET
    head = asked(talk, "a")
    assert head.startswith(b"GET /under/ HTTP/1.1\r\n")
    assert (b"x-a: of-a" in head, b"x-b" in head) == (True, False)
    answer(talk, 429)
    head = asked(talk, "b")
    assert head.startswith(b"GET /under/ HTTP/1.1\r\n")
    assert (b"x-a" in head, b"x-b: of-b" in head) == (False, True)
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_name_that_leads_to_a_denied_address_ends_the_request(converse: Start):
    talk = converse(config("a", "b"))
    talk.names.zone["a.example"] = (IPv4Address("10.0.0.7"),)
    talk.client >> GET
    assert talk.client.answer()[3]["reason"] == "resolved_denied"
    talk.no_dial()


# --- the trail -------------------------------------------------------------------------------------------------------


def test_an_error_names_the_attempts_too(converse: Start):
    talk = converse(config("a", attemptsHeader=True))
    talk.client >> GET
    refuse(talk, "a")
    status, _, fields, _ = talk.client.answer()
    assert status == 503
    assert fields["X-Egress-Attempts"].startswith('"agents/a";outcome=upstream_refused;ms=')


# --- endpoints of one backend ----------------------------------------------------------------------------------------
def to_pods(*addresses: str, **traffic: Any) -> list[m.Manifest]:
    """A Failover from a Service with these endpoints, port 8080, to b; under this `traffic`."""
    of_pods = {"backendRef": {"name": "pods", "port": 80}}
    of_b = {"backendRef": {"group": m.OURS, "kind": "Backend", "name": "b"}, "priority": 1}
    return [*pods(*addresses), *config(of_pods, of_b), m.policy(traffic=traffic)]


def refuse_pod(talk: Conversation) -> str:
    dial = talk.pending_dial()
    assert dial is not None
    address = str(dial.endpoints[0][0])
    talk.refused(address, 8080, UpstreamFault(Reason.CONNECT_REFUSED, "no", status=503, retry=RetrySafety.SAFE))
    return address


def test_a_backend_whose_endpoints_are_all_ejected_is_not_asked(converse: Start):
    passive = {"consecutive5XxErrors": 1, "baseEjectionTime": "300s", "maxEjectionPercent": 100}
    talk = converse(to_pods("10.1.0.1", healthCheck={"passive": passive}))
    talk.client >> GET
    refuse_pod(talk)
    asked(talk, "b")
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.after(70)  # longer than any hold-off, and than connections are kept
    talk.client = talk.connect()
    served_by(talk, "b")
    assert "attempts" not in talk.record()


# --- coming back -----------------------------------------------------------------------------------------------------
def test_when_the_hold_off_is_over_one_request_tries_the_backend_and_the_others_follow_its_success(converse: Start):
    talk = converse(config("a", "b"))
    talk.client >> GET
    refuse(talk, "a")
    asked(talk, "b")
    talk.origin >> OK
    talk.client << OK_PASSED
    second = talk.origin
    talk.after(1.2)
    others = talk.connect()
    talk.client >> GET
    trial = talk.pending_dial()
    assert trial is not None
    others >> GET
    second.take(rb"GET .*?\r\n\r\n")
    second >> OK
    others << OK_PASSED
    asked(talk, "a")
    talk.origin >> OK
    talk.client << OK_PASSED
    served_by(talk, "a", is_new=False)


def test_a_session_moves_from_a_backend_that_is_put_aside(converse: Start):
    rule = {"sessionPersistence": {"sessionName": "sid", "type": "Header"}}
    talk = converse(config("a", "b", rule=rule))
    talk.client >> GET
    asked(talk, "a")
    answer(talk, 200)
    token = passed(talk, 200)["sid"].encode()
    asks = GET.replace(b"Host: x", b"Host: x\r\nsid: " + token)
    talk.client >> asks
    asked(talk, "a", is_new=False)
    answer(talk, 503, b"Retry-After: 60")
    asked(talk, "b")
    talk.origin >> OK
    moved = passed(talk, 200)["sid"].encode()
    assert moved != token
    for shown in (token, moved):
        talk.client >> GET.replace(b"Host: x", b"Host: x\r\nsid: " + shown)
        asked(talk, "b", is_new=False)
        talk.origin >> OK
        passed(talk, 200)


# --- with backends that speak HTTP/2 ---------------------------------------------------------------------------------
def over_http2(**failover: Any) -> list[m.Manifest]:
    """As `config`, where a speaks HTTP/2."""
    made = config(**failover)
    made[1] = m.backend("a", "a.example", 80, protocol="H2C")
    return made


def http2_asked(talk: Conversation) -> Http2Origin:
    """The backend a has the request, and its whole body."""
    talk.client >> POST
    origin = Http2Origin(talk, talk.dialled("a.example", 80))
    (seen,) = origin.waits_for(1).values()
    assert bytes(seen.data) == b"abcde"
    return origin


def goes_on_to_b(talk: Conversation) -> None:
    assert b"\r\nHost: b.example\r\n" in asked(talk, "b", b"POST")
    talk.origin << b"abcde"
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("code", [ErrorCodes.INTERNAL_ERROR, ErrorCodes.ENHANCE_YOUR_CALM])
def test_a_stream_that_is_reset_goes_to_the_next_backend(converse: Start, code: ErrorCodes):
    talk = converse(over_http2())
    origin = http2_asked(talk)
    origin.server.h2.reset_stream(1, code)
    origin.goes_on()
    goes_on_to_b(talk)


def test_a_stream_without_a_first_byte_goes_to_the_next_backend_and_is_reset(converse: Start):
    talk = converse(over_http2(firstByte="60ms"))
    origin = http2_asked(talk)
    origin.responds(1, None, is_last=False)
    talk.client.hears_nothing()
    wait_for_dial(talk)
    goes_on_to_b(talk)
    origin.goes_on()
    assert origin.server.calls[1].reset == ErrorCodes.CANCEL


# --- calls of gRPC ---------------------------------------------------------------------------------------------------
def calls(**failover: Any) -> list[m.Manifest]:
    """A GRPCRoute to the Failover `any`, of a and b."""
    refs = [{"group": m.OURS, "kind": "Backend", "name": "any"}]
    spec = {"parentRefs": [{"name": "gw"}], "rules": [{"backendRefs": refs}]}
    return [
        m.gateway(m.http_listener(8080)),
        *(m.backend(name, f"{name}.example", 80, protocol="GRPC") for name in ("a", "b")),
        m.failover("any", "a", "b", **failover),
        m.manifest("gateway.networking.k8s.io/v1", "GRPCRoute", "route", "agents", spec=spec),
    ]


# --- parents --------------------------------------------------------------------------------------------------------
def behind_a_parent(port: int, *, tls: bool) -> list[m.Manifest]:
    """The backends a and b, which are reached through the proxy, in a rule that retries as well."""
    backends = (m.backend(name, f"{name}.example", port, tls=tls, parent={"name": "proxy"}) for name in ("a", "b"))
    retry = {"attempts": 3, "codes": [503], "backoff": "0s"}
    return [
        m.gateway(m.http_listener(8080)),
        *backends,
        m.backend("proxy", "proxy.example", 3128),
        m.failover("any", "a", "b"),
        m.http_route("route", m.prefix_rule("/", "any", retry=retry)),
    ]


@pytest.mark.parametrize("status", [403, 503])
def test_a_tunnel_that_a_parent_refuses_is_asked_for_to_each_backend_once(converse: Start, status: int):
    talk = converse(behind_a_parent(443, tls=True))
    talk.client >> GET
    for name in ("a", "b"):
        talk.dialled("proxy.example", 3128).take(b"CONNECT %b.example:443 .*?\r\n\r\n" % name.encode())
        answer(talk, status)
    assert talk.client.answer()[0] == 502
    talk.no_dial()
    assert (talk.record()["reason"], talk.record()["attempts"]) == ("parent_refused", 2)
