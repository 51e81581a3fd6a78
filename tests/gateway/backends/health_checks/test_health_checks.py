"""Health checks: what is asked, what is concluded, and when nobody is asked any more."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.gateway.backends.network import MAX_CHECKS
from egressproxy.model.per_client_quota import most_of
from egressproxy.upstream.endpoint_health import HealthState
from tests.gateway.backends.test_endpoints import PODS, ask, healths, to_pods
from tests.gateway.conftest import Start
from tests.gateway.kit import reverse, through_parent
from tests.support import manifests as m
from tests.support.conversation import Conversation, Dial, MemoryPeer, MemoryTransport
from tests.support.http2 import Http2Origin

CHECK = {"type": "HTTP", "interval": "10s", "timeout": "2s", "unhealthyThreshold": 2, "healthyThreshold": 2}
ASKED = b"GET / HTTP/1.1\r\nHost: %b\r\nUser-Agent: egressproxy-health-check\r\nAccept: */*\r\nVia: 1.1 gw\r\n\r\n"


def checking(**check: Any) -> dict[str, Any]:
    return {"healthCheck": {"active": {**CHECK, **check}}}


def accept(talk: Conversation, dial: Dial) -> MemoryPeer:
    """The end of the server for this dial."""
    talk.dialer.dials.remove(dial)
    peer = MemoryPeer(talk)
    talk.origins.append(peer)

    def accepted() -> None:
        protocol = dial.factory()
        address, port = dial.endpoints[0]
        transport = MemoryTransport(peer, protocol, (str(address), port))
        protocol.connection_made(transport)
        dial.future.set_result((transport, protocol, dial.endpoints[0]))

    talk.act(accepted)
    return peer


def refuse(talk: Conversation, dial: Dial) -> None:
    talk.dialer.dials.remove(dial)
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503, retry=RetrySafety.SAFE)
    talk.act(lambda: dial.future.set_exception(fault))


def dials(talk: Conversation, count: int = 1) -> list[Dial]:
    """So many checks that are dialled now, within two intervals and a half; those that were given up are none."""
    for _ in range(250):
        talk.dialer.dials[:] = [each for each in talk.dialer.dials if not each.future.done()]
        if len(talk.dialer.dials) >= count:
            break
        talk.after(0.1)
    assert len(talk.dialer.dials) >= count
    return list(talk.dialer.dials)


def round_of_checks(talk: Conversation, statuses: dict[str, int]) -> set[str]:
    """One interval: who was asked. Each answers with its status; 0 refuses the connection, -1 never answers."""
    asked: list[str] = []
    for _ in range(103):
        talk.after(0.1)
        for dial in list(talk.dialer.dials):
            address = str(dial.endpoints[0][0])
            asked.append(address)
            status = statuses.get(address, 200)
            if status == 0:
                refuse(talk, dial)
                continue
            peer = accept(talk, dial)
            if status > 0:
                peer.take(rb"GET .*?\r\n\r\n")
                peer >> b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status
    return set(asked)


def test_each_endpoint_is_asked_on_its_own_connection_within_an_interval_and_then_closed(converse: Start):
    talk = converse(to_pods(checking()))
    assert round_of_checks(talk, {}) == set(PODS)
    dial = dials(talk)[0]
    peer = accept(talk, dial)
    peer << ASKED % f"{dial.endpoints[0][0]}:8080".encode()
    peer >> b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    peer.is_closed()


def test_path_host_method_and_statuses_are_those_that_are_written(converse: Start):
    http = {"path": "/up?x=1", "hostname": "pods.test", "method": "HEAD", "expectedStatuses": [204]}
    talk = converse(to_pods(checking(http=http, unhealthyThreshold=1), PODS[0]))
    peer = accept(talk, dials(talk)[0])
    asked = peer.take(rb".*?\r\n\r\n")[0]
    assert asked.startswith(b"HEAD /up?x=1 HTTP/1.1\r\nHost: pods.test\r\n")
    peer >> b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    assert healths(talk) == {f"{PODS[0]}:8080": HealthState.UNHEALTHY}


@pytest.mark.parametrize("status", [0, -1, 500, 404])
def test_an_endpoint_that_fails_its_checks_takes_no_requests_and_comes_back(converse: Start, status: int):
    talk = converse(to_pods(checking(timeout="1s")))
    bad = {PODS[0]: status}
    for _ in range(4):
        assert round_of_checks(talk, bad) >= set(PODS[1:])
    assert PODS[0] not in {ask(talk, set())[0] for _ in range(9)}
    for _ in range(3):
        round_of_checks(talk, {})
    assert PODS[0] in {ask(talk, set())[0] for _ in range(9)}


def test_a_tcp_check_needs_a_connection_and_no_answer(converse: Start):
    talk = converse(to_pods(checking(type="TCP"), *PODS[:2]))
    for _ in range(10):
        dial = dials(talk)[0]
        if str(dial.endpoints[0][0]) == PODS[0]:
            refuse(talk, dial)
        else:
            peer = accept(talk, dial)
            assert peer.got == b""
            peer.is_closed()
    assert healths(talk) == {f"{PODS[0]}:8080": HealthState.UNHEALTHY, f"{PODS[1]}:8080": HealthState.HEALTHY}


def test_a_reload_without_the_checks_ends_them_and_what_is_in_progress(converse: Start):
    talk = converse(to_pods(checking(), PODS[0]))
    peer = accept(talk, dials(talk)[0])
    peer.take(rb"GET .*?\r\n\r\n")
    talk.reload(to_pods({}, PODS[0]))
    peer.is_closed()
    talk.after(30)
    talk.no_dial()
    assert talk.network.checks.total == 0


def test_a_reload_that_changes_nothing_does_not_ask_twice(converse: Start):
    talk = converse(to_pods(checking(), PODS[0]))
    talk.reload(to_pods(checking(), PODS[0]))
    for _ in range(3):
        assert len(dials(talk)) == 1
        refuse(talk, talk.dialer.dials[0])
        talk.after(8)
        talk.no_dial()


def test_each_address_of_a_name_is_asked_with_the_name_as_host(converse: Start):
    talk = converse(reverse(traffic=checking(unhealthyThreshold=1)))
    bad, good = ip_address("93.184.216.30"), ip_address("93.184.216.31")
    talk.names.zone["a.example"] = (bad, good)
    asked = set()
    for _ in range(6):
        dial = dials(talk)[0]
        if not dial.endpoints:  # the address that the name had at first
            refuse(talk, dial)
            continue
        (address, _port) = dial.endpoints[0]
        asked.add(address)
        peer = accept(talk, dial)
        peer << ASKED % b"a.example"
        peer >> b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % (500 if address == bad else 200)
    assert asked == {bad, good}
    checks = list(talk.dialer.dials)  # of the last interval, which nobody has answered
    talk.client = talk.connect()
    talk.client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    (dial,) = [each for each in talk.dialer.dials if each not in checks]
    assert [address for address, _ in dial.endpoints] == [good]
    refuse(talk, dial)
    assert talk.client.answer()[0] == 503
    talk.names.zone["a.example"] = (good,)
    talk.after(11)
    assert list(healths(talk)) == [f"{good}:80"]


def test_an_address_that_the_policy_closes_is_not_asked(converse: Start):
    talk = converse(reverse(traffic=checking()))
    talk.names.zone["a.example"] = (ip_address("127.0.0.1"),)
    talk.after(25)
    talk.no_dial()


def test_behind_a_parent_the_check_goes_through_its_connect(converse: Start):
    objects = through_parent(443)
    policy = next(each for each in objects if each["kind"] == "EgressPolicy")
    policy["spec"]["traffic"] = checking(unhealthyThreshold=1)
    backend = next(each for each in objects if each["metadata"]["name"] == "a")
    assert backend["spec"]["parent"] == {"name": "parent"}
    talk = converse(objects)
    dial = dials(talk)[0]
    assert talk.names.name_of(dial.endpoints[0][0]) == "parent.example"
    peer = accept(talk, dial)
    peer.take(rb"CONNECT a\.example:443 HTTP/1\.1\r\n.*?\r\n\r\n")
    peer >> b"HTTP/1.1 200 OK\r\n\r\n"
    peer.take(rb"GET / HTTP/1\.1\r\nHost: a\.example:443\r\n.*?\r\n\r\n")
    peer >> b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"
    assert healths(talk) == {"a.example:443": HealthState.UNHEALTHY}
    client = talk.connect()  # the first one may have waited for ten seconds, and then it is gone
    client >> b"GET http://a.example:443/ HTTP/1.1\r\nHost: a.example:443\r\n\r\n"
    assert client.answer()[3]["reason"] == "no_healthy_endpoint"


def test_a_check_goes_by_the_parent_that_can_be_connected_to(converse: Start):
    objects = [*through_parent(443), m.backend("other", "other.example", 3129)]
    policy = next(each for each in objects if each["kind"] == "EgressPolicy")
    policy["spec"]["traffic"] = checking(unhealthyThreshold=1)
    backend = next(each for each in objects if each["metadata"]["name"] == "a")
    backend["spec"]["parent"]["fallbacks"] = [{"name": "other"}]
    talk = converse(objects)
    refuse(talk, dials(talk)[0])
    dial = dials(talk)[0]
    assert talk.names.name_of(dial.endpoints[0][0]) == "other.example"
    peer = accept(talk, dial)
    peer.take(rb"CONNECT a\.example:443 HTTP/1\.1\r\n.*?\r\n\r\n")
    peer >> b"HTTP/1.1 200 OK\r\n\r\n"
    peer.take(rb"GET / HTTP/1\.1\r\nHost: a\.example:443\r\n.*?\r\n\r\n")
    peer >> b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    assert healths(talk) == {"a.example:443": HealthState.HEALTHY}


def test_the_number_of_checks_at_once_is_bounded_and_one_namespace_leaves_some_to_others(converse: Start):
    addresses = [f"10.2.{each // 250}.{each % 250 + 1}" for each in range(100)]
    talk = converse(to_pods(checking(timeout="60s"), *addresses))
    talk.after(12)
    assert len(talk.dialer.dials) == most_of(MAX_CHECKS) < MAX_CHECKS
    for dial in list(talk.dialer.dials):
        refuse(talk, dial)
    talk.after(0.3)
    assert len(talk.dialer.dials) == most_of(MAX_CHECKS)
    while talk.dialer.dials:
        refuse(talk, talk.dialer.dials[0])


# --- HTTP/2 --------------------------------------------------------------------------------------------------------
def over_http2(converse: Start, protocol: str, **check: Any) -> Conversation:
    return converse(
        [
            m.gateway(m.http_listener(8080)),
            m.policy(traffic=checking(unhealthyThreshold=1, **check)),
            m.backend("a", "a.example", 80, protocol=protocol),
            m.http_route("route", m.prefix_rule("/", "a")),
        ]
    )


def http2_origin(talk: Conversation) -> Http2Origin:
    return Http2Origin(talk, accept(talk, dials(talk)[0]))


@pytest.mark.parametrize(("status", "state"), [(b"200", HealthState.HEALTHY), (b"500", HealthState.UNHEALTHY)])
def test_a_backend_that_speaks_http_2_is_asked_in_it(converse: Start, status: bytes, state: HealthState):
    talk = over_http2(converse, "H2C", http={"path": "/up"})
    origin = http2_origin(talk)
    (seen,) = origin.waits_for(1).values()
    assert (seen.headers[b":method"], seen.headers[b":path"], seen.headers[b":authority"]) == (
        b"GET", b"/up", b"a.example",
    )  # fmt: skip
    origin.responds(1, status=status)
    assert set(healths(talk).values()) == {state}
    origin.peer.is_closed()


@pytest.mark.parametrize(
    ("message", "status", "state"),
    [
        (b"\x08\x01", 0, HealthState.HEALTHY),
        (b"\x08\x02", 0, HealthState.UNHEALTHY),  # NOT_SERVING
        (b"", 0, HealthState.UNHEALTHY),  # UNKNOWN
        (None, 5, HealthState.UNHEALTHY),  # the service is not known
        (None, 12, HealthState.UNHEALTHY),  # there is no health service
    ],
)
def test_a_grpc_service_has_to_say_that_it_serves(
    converse: Start, message: bytes | None, status: int, state: HealthState
):
    talk = over_http2(converse, "GRPC", type="GRPC", grpc={"service": "pkg.Echo"})
    origin = http2_origin(talk)
    (seen,) = origin.waits_for(1).values()
    assert seen.headers[b":path"] == b"/grpc.health.v1.Health/Check"
    assert seen.headers[b"te"] == b"trailers"
    assert seen.message == b"\x0a\x08pkg.Echo"
    origin.server.answer(1, message, status)
    origin.goes_on()
    assert set(healths(talk).values()) == {state}


def test_a_grpc_check_that_is_not_answered_in_time_has_failed(converse: Start):
    talk = over_http2(converse, "H2C", type="GRPC", timeout="1s")
    origin = http2_origin(talk)
    origin.waits_for(1)
    talk.after(1.5)
    assert set(healths(talk).values()) == {HealthState.UNHEALTHY}
    assert talk.network.checks.total == 0
