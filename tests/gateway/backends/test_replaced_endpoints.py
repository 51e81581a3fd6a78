"""Addresses of a Service that come and go while it is in service."""

from __future__ import annotations

from ipaddress import ip_address

from egressproxy.gateway.snapshot import replace_endpoints
from egressproxy.ir.backend import EndpointAddress
from tests.gateway.backends.test_retries import pods
from tests.gateway.backends.test_session_persistence import ask, cookie_of, persistent
from tests.gateway.conftest import Start
from tests.support import manifests as m
from tests.support.conversation import Conversation

ONE, TWO, THREE = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def reverse(*addresses: str, **policy: object) -> list[m.Manifest]:
    rule = {"backendRefs": [{"name": "pods", "port": 80}]}
    return [m.gateway(m.http_listener(8080)), m.policy(**policy), m.http_route("route", rule), *pods(*addresses)]


def lead_to(talk: Conversation, *addresses: str) -> bool:
    """Replace the endpoints of the only Service; returns whether that could be done."""
    (spec,) = talk.snapshot.clusters
    port = spec.backend.endpoints[0].port if spec.backend.endpoints else 80
    found = tuple(EndpointAddress(ip_address(each), port) for each in addresses)
    answers: list[bool] = []
    updates = {(spec.backend.name, spec.backend.port): found}
    talk.act(lambda: answers.append(replace_endpoints(talk.snapshot.clusters, updates)))
    return answers[0]


def asked(talk: Conversation, times: int) -> set[str]:
    """The addresses that had so many requests."""
    return {ask(talk)[0] for _ in range(times)}


def test_requests_go_to_the_new_addresses_and_connections_to_others_are_kept(converse: Start):
    talk = converse(reverse(ONE, TWO))
    assert asked(talk, 4) == {ONE, TWO}
    one, two = sorted(talk.origins, key=lambda peer: peer.address)
    assert lead_to(talk, TWO, THREE)
    assert asked(talk, 4) == {TWO, THREE}
    assert len(talk.origins) == 3  # the connection to the second address was used again
    one.is_closed()
    two.is_open()


def test_the_next_configuration_keeps_connections_to_replaced_endpoints(converse: Start):
    talk = converse(reverse(ONE))
    assert asked(talk, 1) == {ONE}
    assert lead_to(talk, ONE, TWO)
    assert asked(talk, 2) == {ONE, TWO}
    talk.reload(reverse(ONE, TWO))
    assert asked(talk, 4) == {ONE, TWO}
    assert len(talk.origins) == 2


def test_a_backend_of_another_name_follows_its_service(converse: Start):
    service = {"type": "Service", "service": {"name": "pods"}, "ports": [{"number": 80, "tls": {"mode": "None"}}]}
    backend = m.manifest("egressproxy.io/v1alpha1", "Backend", "models", "agents", spec={"destination": service})
    route = m.http_route("route", m.prefix_rule("/", "models"))
    talk = converse([m.gateway(m.http_listener(8080)), m.policy(), route, backend, *pods(ONE)])
    assert asked(talk, 1) == {ONE}
    (spec,) = talk.snapshot.clusters
    for name in ("agents/models", "agents/pods"):
        found = {(name, 80): (EndpointAddress(ip_address(TWO), spec.backend.endpoints[0].port),)}
        talk.act(lambda found=found: replace_endpoints(talk.snapshot.clusters, found))  # type: ignore[misc]
        assert asked(talk, 1) == {ONE if name == "agents/models" else TWO}


def test_pods_that_an_x_backend_selects_come_and_go(converse: Start):
    spec = {"type": "EndpointSelector", "port": {"number": 8080}, "endpointSelector": {"matchLabels": {"app": "web"}}}
    group = "gateway.networking.x-k8s.io"
    backend = m.manifest(f"{group}/v1alpha1", "XBackend", "models", "agents", spec=spec)
    pod = m.manifest("v1", "Pod", "one", "agents", status={"podIP": ONE})
    pod["metadata"]["labels"] = {"app": "web"}
    route = m.http_route("route", {"backendRefs": [{"group": group, "kind": "XBackend", "name": "models"}]})
    talk = converse([m.gateway(m.http_listener(8080)), m.policy(), route, backend, pod])
    assert asked(talk, 1) == {ONE}
    found = tuple(EndpointAddress(ip_address(each), 0) for each in (ONE, TWO))
    talk.act(lambda: replace_endpoints(talk.snapshot.clusters, {("agents app=web", 0): found}))
    assert asked(talk, 4) == {ONE, TWO}
    assert len(talk.origins) == 2  # the connection to the first was used again
    assert {each.port for cluster in talk.snapshot.clusters.values() for each in cluster.endpoints} == {8080}


def test_a_service_may_lose_all_of_its_addresses(converse: Start):
    talk = converse(reverse(ONE))
    assert lead_to(talk)
    talk.client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    status, _, _, body = talk.client.answer()
    assert (status, body["reason"]) == (503, "no_endpoint")
    assert lead_to(talk, TWO)
    assert asked(talk, 1) == {TWO}


def test_sessions_stay_with_endpoints_that_stay(converse: Start):
    talk = converse(persistent(ONE, TWO, sessionName="sid", type="Cookie"))
    place, answer = ask(talk)
    cookie, _ = cookie_of(answer)
    assert lead_to(talk, place, THREE)
    assert {ask(talk, cookie=cookie)[0] for _ in range(4)} == {place}
    assert lead_to(talk, THREE)
    place, answer = ask(talk, cookie=cookie)
    assert place == THREE
    assert cookie_of(answer)[0] != cookie


def test_watched_endpoints_are_those_that_are_there(converse: Start):
    passive = {"consecutive5XxErrors": 1, "baseEjectionTime": "30s"}
    talk = converse(reverse(ONE, TWO, traffic={"healthCheck": {"passive": passive}}))
    assert asked(talk, 4) == {ONE, TWO}
    assert lead_to(talk, TWO, THREE)
    assert asked(talk, 4) == {TWO, THREE}
    (cluster,) = talk.snapshot.clusters.values()
    assert {health.address for health in cluster.host_set.healths()} == {f"{TWO}:8080", f"{THREE}:8080"}


def test_an_address_that_a_deny_closes_asks_for_a_whole_configuration(converse: Start):
    talk = converse(reverse(ONE, addresses={"deny": [{"cidrs": [f"{THREE}/32"]}]}))
    assert not lead_to(talk, ONE, THREE)
    assert asked(talk, 2) == {ONE}
