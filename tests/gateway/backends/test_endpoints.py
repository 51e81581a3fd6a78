"""Endpoints that fail take no requests: of routes, retries, sessions and tunnels, and after a reload."""

from __future__ import annotations

from copy import deepcopy
from ipaddress import ip_address
from typing import Any

import pytest

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.operators.explain.explain import explain
from egressproxy.operators.explain.hypothetical_request import HypotheticalRequest
from egressproxy.upstream.endpoint_health import HealthState
from tests.gateway.backends.test_retries import pods
from tests.gateway.conftest import Start
from tests.gateway.kit import ESTABLISHED, OK, OK_PASSED, connect, forward, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.http2 import Http2Origin

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
PODS = ("10.1.0.1", "10.1.0.2", "10.1.0.3")
PASSIVE = {"passive": {"consecutive5XxErrors": 2, "baseEjectionTime": "30s", "maxEjectionPercent": 70}}


def to_pods(traffic: dict[str, Any], *addresses: str, **rule: Any) -> list[m.Manifest]:
    """A route to a Service with these endpoints, under this `traffic`."""
    made = {"backendRefs": [{"name": "pods", "port": 80}], **rule}
    objects = [m.gateway(m.http_listener(8080)), m.policy(traffic=traffic), m.http_route("route", made)]
    return [*objects, *pods(*(addresses or PODS))]


def dialled(talk: Conversation) -> str:
    """The address that is dialled now. Accept with `accept`, or refuse with `refuse`."""
    dial = talk.pending_dial()
    assert dial is not None, f"nothing was dialled; the client got {talk.client.got[:300]!r}"
    return str(dial.endpoints[0][0])


def accept(talk: Conversation) -> None:
    talk.dialled(dialled(talk), 8080)


def refuse(talk: Conversation) -> None:
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "the upstream refused", status=503, retry=RetrySafety.SAFE)
    talk.refused(dialled(talk), 8080, fault)


def ask(talk: Conversation, down: set[str], ask: bytes = GET) -> tuple[str, int]:
    """A request on a client of its own, its endpoint's address and its status; those that are `down` refuse."""
    talk.client = talk.connect()
    talk.client >> ask
    if talk.pending_dial() is None:
        return "-", talk.client.answer()[0]
    tried = dialled(talk)
    if tried in down:
        refuse(talk)
        return tried, talk.client.answer()[0]
    accept(talk)
    talk.origin.take(rb"(GET|POST) .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    talk.origin.ends()
    return tried, int(talk.client.take(rb"HTTP/1\.1 (\d+) .*?\r\n\r\n")[1])


def test_an_endpoint_that_refuses_is_ejected_and_takes_no_request_until_its_time_is_over(converse: Start):
    talk = converse(to_pods({"healthCheck": PASSIVE}))
    got = [ask(talk, {PODS[0]}) for _ in range(6)]
    assert got.count((PODS[0], 503)) == 2
    assert PODS[0] not in {ask(talk, {PODS[0]})[0] for _ in range(9)}
    talk.after(31)
    got = [ask(talk, {PODS[0]}) for _ in range(9)]
    assert got.count((PODS[0], 503)) == 1  # one trial, then it is out for longer
    talk.after(31)
    assert PODS[0] not in {ask(talk, {PODS[0]})[0] for _ in range(9)}
    talk.after(31)
    assert [ask(talk, set())[0] for _ in range(9)].count(PODS[0]) == 3  # it is back


def test_with_retries_no_request_fails_while_an_endpoint_is_down_and_each_costs_one_attempt_at_most(converse: Start):
    retry = {"attempts": 1, "backoff": "0s"}
    talk = converse(to_pods({"healthCheck": PASSIVE}, retry=retry))
    attempts = 0
    for _ in range(12):
        talk.client = talk.connect()
        talk.client >> GET
        if dialled(talk) == PODS[0]:
            refuse(talk)
            attempts += 1
        accept(talk)
        talk.origin.take(rb"GET .*?\r\n\r\n")
        talk.origin >> OK
        talk.client << OK_PASSED
        talk.origin.ends()
    assert attempts == 2


def test_statuses_of_500_and_above_eject_too(converse: Start):
    talk = converse(to_pods({"healthCheck": PASSIVE}, *PODS[:2]))
    bad = 0
    for _ in range(8):
        talk.client = talk.connect()
        talk.client >> GET
        is_bad = dialled(talk) == PODS[0]
        accept(talk)
        talk.origin.take(rb"GET .*?\r\n\r\n")
        status = b"500 No" if is_bad else b"200 OK"
        talk.origin >> b"HTTP/1.1 " + status + b"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        talk.origin.ends()
        bad += talk.client.answer()[0] == 500
    assert bad == 2


def test_all_endpoints_out_is_a_503_at_once_that_says_why(converse: Start):
    passive = {"passive": {**PASSIVE["passive"], "maxEjectionPercent": 100}}
    talk = converse(to_pods({"healthCheck": passive}, *PODS[:1]))
    assert [ask(talk, set(PODS)) for _ in range(2)] == [(PODS[0], 503)] * 2
    talk.client = talk.connect()
    talk.client >> GET
    status, _, fields, body = talk.client.answer()
    talk.no_dial()
    assert (status, fields["Retry-After"], body["reason"]) == (503, "1", "no_healthy_endpoint")
    assert "no healthy endpoint: 1 ejected of 1" in body["message"]
    assert talk.record()["reason"] == "no_healthy_endpoint"


def test_in_panic_the_endpoints_that_are_out_are_used(converse: Start):
    health = {"passive": {**PASSIVE["passive"], "maxEjectionPercent": 100}, "panicThreshold": 50}
    talk = converse(to_pods({"healthCheck": health}, *PODS[:1]))
    assert [ask(talk, set(PODS)) for _ in range(5)] == [(PODS[0], 503)] * 5


def test_an_upload_that_its_client_stalls_says_nothing_about_the_endpoint(converse: Start):
    traffic = {"healthCheck": {"passive": {"consecutive5XxErrors": 1, "maxEjectionPercent": 100}}}
    talk = converse(to_pods({**traffic, "timeouts": {"idle": "5s"}}, *PODS[:1]))
    talk.client >> POST
    accept(talk)
    talk.origin.take(rb"POST .*?\r\n\r\n")
    talk.after(11)
    assert talk.client.answer()[0] == 504
    assert ask(talk, set()) == (PODS[0], 200)


@pytest.mark.parametrize(("upload_s", "state"), [(1.0, HealthState.EJECTED), (9.0, HealthState.HEALTHY)])
def test_an_answer_that_is_late_counts_where_the_endpoint_had_the_larger_part_of_the_time(
    converse: Start, upload_s: float, state: HealthState
):
    traffic = {"healthCheck": {"passive": {"consecutive5XxErrors": 1, "maxEjectionPercent": 100}}}
    talk = converse(to_pods({**traffic, "timeouts": {"backendRequest": "10s", "idle": "60s"}}, PODS[0]))
    talk.client >> POST
    accept(talk)
    talk.origin.take(rb"POST .*?\r\n\r\n")
    talk.after(upload_s)
    talk.client >> b"hello"
    talk.origin << b"hello"
    talk.after(11 - upload_s)
    assert talk.client.answer()[0] == 504
    assert healths(talk) == {f"{PODS[0]}:8080": state}


def test_an_idle_connection_that_the_server_closed_says_nothing_about_the_endpoint(converse: Start):
    talk = converse(
        to_pods({"healthCheck": {"passive": {"consecutive5XxErrors": 1, "maxEjectionPercent": 100}}}, PODS[0])
    )
    talk.client >> GET
    accept(talk)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.client >> GET
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin.ends()
    accept(talk)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED
    assert healths(talk) == {f"{PODS[0]}:8080": HealthState.HEALTHY}


def healths(talk: Conversation) -> dict[str, HealthState]:
    found = [each.host_set for each in talk.snapshot.clusters.values() if each.host_set is not None]
    return {health.address: health.state for endpoints in found for health in endpoints.healths()}


def test_a_session_leaves_an_endpoint_that_is_out_and_comes_back_to_none_in_particular(converse: Start):
    session = {"sessionName": "s", "type": "Header"}
    talk = converse(to_pods({"healthCheck": PASSIVE}, *PODS[:2], sessionPersistence=session))
    talk.client >> GET
    home = dialled(talk)
    accept(talk)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    token = talk.client.take(rb".*\r\ns: (\S+)\r\n.*hi")[1]
    talk.origin.ends()
    shown = GET.replace(b"\r\n\r\n", b"\r\ns: " + token + b"\r\n\r\n")
    assert [ask(talk, set(), shown)[0] for _ in range(3)] == [home] * 3
    talk.act(lambda: [eject(talk, home)])
    assert home not in {ask(talk, set(), shown)[0] for _ in range(4)}


def eject(talk: Conversation, address: str) -> None:
    """Two failures at this endpoint."""
    for cluster in talk.snapshot.clusters.values():
        for target in cluster.targets.known.values():
            if target.host == address and target.monitor is not None:
                for _ in range(2):
                    target.monitor.answered(target, f"{address}:8080", 500)


def test_health_outlives_a_reload_that_adds_an_endpoint_and_not_one_that_changes_the_policy(converse: Start):
    talk = converse(to_pods({"healthCheck": PASSIVE}))
    talk.act(lambda: eject(talk, PODS[0]))
    talk.reload(to_pods({"healthCheck": PASSIVE}, *PODS, "10.1.0.4"))
    assert healths(talk)[f"{PODS[0]}:8080"] is HealthState.EJECTED
    assert {ask(talk, set())[0] for _ in range(9)} == {*PODS[1:], "10.1.0.4"}
    other = {"passive": {**PASSIVE["passive"], "consecutive5XxErrors": 9}}
    talk.reload(to_pods({"healthCheck": other}))
    assert set(healths(talk).values()) == {HealthState.HEALTHY}


def test_a_consistent_hash_by_header_stays_with_one_endpoint_while_it_is_well(converse: Start):
    balancer = {"type": "ConsistentHash", "consistentHash": {"type": "Header", "header": {"name": "X-User"}}}
    talk = converse(to_pods({"loadBalancer": balancer, "healthCheck": PASSIVE}))
    asks = {
        user: GET.replace(b"\r\n\r\n", b"\r\nX-User: %b\r\n\r\n" % user) for user in (b"ann", b"bob", b"eve", b"joe")
    }
    homes = {user: ask(talk, set(), asks[user])[0] for user in asks}
    assert {user: ask(talk, set(), asks[user])[0] for user in asks} == homes
    talk.act(lambda: eject(talk, homes[b"ann"]))
    for user, home in homes.items():
        assert (ask(talk, set(), asks[user])[0] == home) is (home != homes[b"ann"])


@pytest.mark.parametrize(
    ("source", "field"),
    [({"type": "Cookie", "cookie": {"name": "user"}}, b"Cookie: a=1; user=ann"), ({"type": "SourceIP"}, b"X: y")],
)
def test_a_consistent_hash_by_cookie_or_by_address(converse: Start, source: dict[str, Any], field: bytes):
    talk = converse(to_pods({"loadBalancer": {"type": "ConsistentHash", "consistentHash": source}}))
    asked = GET.replace(b"\r\n\r\n", b"\r\n" + field + b"\r\n\r\n")
    assert len({ask(talk, set(), asked)[0] for _ in range(6)}) == 1


def test_the_circuit_breaker_refuses_what_is_too_much_at_once(converse: Start):
    talk = converse(to_pods({"circuitBreaker": {"maxParallelRequests": 1}}, *PODS[:1]))
    talk.client >> GET
    accept(talk)
    second = talk.connect()
    second >> GET
    status, _, fields, body = second.answer()
    talk.no_dial()
    assert (status, fields["Retry-After"], body["reason"]) == (503, "1", "circuit_open")
    assert "maxParallelRequests" in body["message"]
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED
    second = talk.connect()
    second >> GET
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    second << OK_PASSED


def test_the_circuit_breaker_of_a_name_counts_connections_and_waiting_requests(converse: Start):
    breaker = {"maxConnections": 1, "maxPendingRequests": 1}
    talk = converse(reverse(traffic={"circuitBreaker": breaker}))
    talk.client >> GET
    talk.dialled("a.example", 80)
    waiting = talk.connect(address="10.0.0.8")
    waiting >> GET
    refused = talk.connect(address="10.0.0.7")
    refused >> GET
    assert refused.answer()[3]["reason"] == "queue_full"
    talk.no_dial()
    for client in (talk.client, waiting):
        talk.origin.take(rb"GET .*?\r\n\r\n")
        talk.origin >> OK
        client << OK_PASSED


def test_no_more_retries_at_once_than_the_circuit_breaker_allows(converse: Start):
    retry = {"attempts": 1, "backoff": "0s"}
    talk = converse(to_pods({"circuitBreaker": {"maxParallelRetries": 1}}, *PODS[:2], retry=retry))
    clients = [talk.client, talk.connect()]
    for client in clients:
        client >> GET
    refuse(talk)  # of the first, which is retried
    refuse(talk)  # of the second, which is not
    assert clients[1].answer()[0] == 503
    accept(talk)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    clients[0] << OK_PASSED
    third = talk.connect()
    third >> GET
    talk.settle()
    if talk.dialer.dials:
        refuse(talk)  # retried on the connection that is there
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    third << OK_PASSED


def test_tunnels_go_to_endpoints_that_are_well_and_say_what_became_of_a_dial(converse: Start):
    routed = m.manifest(
        "gateway.networking.k8s.io/v1", "TLSRoute", "t", "agents",
        spec={"parentRefs": [{"name": "gw"}], "hostnames": ["a.example"],
              "rules": [{"backendRefs": [{"name": "pods", "port": 80}]}]},
    )  # fmt: skip
    talk = converse(forward(routed, *pods(*PODS[:2]), traffic={"healthCheck": PASSIVE}))
    refused = 0
    for _ in range(8):
        client = talk.connect()
        client >> connect("a.example:443")
        if dialled(talk) == PODS[0]:
            refuse(talk)
            refused += 1
            assert client.answer()[0] == 503
        else:
            accept(talk)
            client << ESTABLISHED
        client.leaves()
    assert refused == 2


def test_explain_shows_health_and_limits(converse: Start):
    talk = converse(to_pods({"healthCheck": PASSIVE, "circuitBreaker": {"maxConnections": 1}}, *PODS[:2]))
    talk.act(lambda: eject(talk, PODS[0]))
    talk.client >> GET
    accept(talk)
    asked = HypotheticalRequest.of([("url", "http://x:8080/")])
    shown = talk.run(explain(talk.snapshot, asked))["backends"][0]
    assert shown["loadBalancer"] == "RoundRobin"
    assert shown["endpoints"] == [
        {"address": f"{PODS[0]}:8080", "health": "ejected", "outForSeconds": 30.0},
        {"address": f"{PODS[1]}:8080", "health": "healthy"},
    ]
    assert shown["openCircuits"] == ["maxConnections"]
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_endpoints_that_speak_http_2_are_judged_and_limited_too(converse: Start):
    traffic = {"healthCheck": PASSIVE, "circuitBreaker": {"maxParallelRequests": 1}}
    objects = deepcopy(to_pods(traffic, *PODS[:2]))  # the Service is that of all tests
    service = next(each for each in objects if each["kind"] == "Service")
    service["spec"]["ports"][0]["appProtocol"] = "kubernetes.io/h2c"
    talk = converse(objects)
    origins: dict[str, Http2Origin] = {}

    def asked() -> tuple[str, int]:
        """A request, whose endpoint has it now; its stream."""
        talk.client = talk.connect()
        talk.client >> GET
        if talk.pending_dial() is not None:
            address = dialled(talk)
            origins[address] = Http2Origin(talk, talk.dialled(address, 8080))
        for address, origin in origins.items():
            before = len(origin.server.calls)
            origin.goes_on()
            if len(origin.server.calls) > before:
                return address, max(origin.server.calls)
        raise AssertionError(talk.client.got)

    first, other = asked(), asked()
    assert {first[0], other[0]} == set(PODS[:2])
    third = talk.connect()
    third >> GET
    assert third.answer()[3]["reason"] == "circuit_open"
    for address, stream in (first, other):
        origins[address].responds(stream)
    seen = []
    for _ in range(8):
        address, stream = asked()
        seen.append(address)
        origins[address].responds(stream, status=b"500" if address == PODS[0] else b"200")
    assert seen.count(PODS[0]) == 2
    assert healths(talk)[f"{PODS[0]}:8080"] is HealthState.EJECTED


def test_a_tunnel_to_a_name_whose_addresses_are_all_out_fails_at_once(converse: Start):
    passive = {"passive": {**PASSIVE["passive"], "maxEjectionPercent": 100}}
    objects = [m.backend("a", "a.example", 443, protocol="TCP"), m.tls_route("t", "a", hostnames=["a.example"])]
    talk = converse(forward(*objects, traffic={"healthCheck": passive}))
    reasons = []
    for _ in range(3):
        client = talk.connect()
        client >> connect("a.example:443")
        if talk.pending_dial() is not None:
            fault = UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503, retry=RetrySafety.SAFE)
            talk.refused("a.example", 443, fault)
        reasons.append(client.answer()[3]["reason"])
    assert reasons == ["upstream_refused", "upstream_refused", "no_healthy_endpoint"]


# --- names with several addresses ------------------------------------------------------------------------------------
A, B = ip_address("93.184.216.10"), ip_address("93.184.216.11")


def named(converse: Start, **traffic: Any) -> Conversation:
    talk = converse(reverse(traffic=traffic))
    talk.names.zone["a.example"] = (A, B)
    return talk


def test_an_address_of_a_name_that_answers_with_errors_is_not_dialled_and_its_connections_are_not_used(converse: Start):
    talk = named(converse, healthCheck=PASSIVE)
    for _ in range(2):
        talk.client >> GET
        if talk.pending_dial() is not None:
            talk.dialled("a.example", 80)  # at the first address
        talk.origin.take(rb"GET .*?\r\n\r\n")
        talk.origin >> b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"
        assert talk.client.answer()[0] == 503
    talk.client >> GET
    dial = talk.pending_dial()
    assert dial is not None
    assert [address for address, _ in dial.endpoints] == [B]
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.after(31)
    talk.act(lambda: [pool.idle.pop().close() for pool in talk.pools() if pool.idle])
    talk.client >> GET
    dial = talk.pending_dial()
    assert dial is not None
    assert {address for address, _ in dial.endpoints} == {A, B}  # a trial: the dialer has the other one, too
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_name_whose_addresses_are_all_out_fails_at_once(converse: Start):
    talk = named(converse, healthCheck={"passive": {**PASSIVE["passive"], "maxEjectionPercent": 100}})
    for _ in range(2):
        talk.client = talk.connect()
        talk.client >> GET
        fault = UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503, retry=RetrySafety.SAFE)
        talk.refused("a.example", 80, fault)
        assert talk.client.answer()[0] == 503
    talk.client = talk.connect()
    talk.client >> GET
    assert talk.client.answer()[3]["reason"] == "no_healthy_endpoint"
    talk.no_dial()
    talk.after(31)
    talk.client = talk.connect()
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED
