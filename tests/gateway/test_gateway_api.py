"""Which route serves a request, as Gateway API says it: from manifests to answers, each the name of its route."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.world import terminate
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import client_hello
from tests.gateway.kit import TlsClient, certificate
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.pki import Pki


def route(name: str, *hostnames: str, section: str = "", created: str = "", **match: Any) -> m.Manifest:
    """An HTTPRoute that redirects to its own name."""
    redirect = {"type": "RequestRedirect", "requestRedirect": {"hostname": f"{name}.answers"}}
    made = m.http_route(name, {"matches": [match or {}], "filters": [redirect]}, hostnames=hostnames, section=section)
    if created:
        made["metadata"]["creationTimestamp"] = f"{created}T00:00:00Z"
    return made


def who(talk: Conversation, host: str, path: str = "/") -> str:
    """The route that answers, or the status of an answer of the gateway's own."""
    talk.client >> b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (path.encode(), host.encode())
    status, _, fields, _ = talk.client.answer()
    return fields["location"].removeprefix("http://").partition(".")[0] if status == 302 else str(status)


def listeners(*hostnames: str) -> m.Manifest:
    """HTTP listeners of one port, a to z."""
    made = [m.http_listener(8080, name) for name, _ in zip("abcdefgh", hostnames, strict=False)]
    for listener, hostname in zip(made, hostnames, strict=True):
        listener.update({"hostname": hostname} if hostname else {})
    return m.gateway(*made)


def test_a_host_belongs_to_the_listener_with_the_most_specific_hostname_alone(converse: Start):
    gateway = listeners("", "*.example.com", "*.foo.example.com", "abc.foo.example.com")
    routes = [route(f"to-{name}", section=name, path={"value": f"/{name}"}) for name in "abcd"]
    talk = converse([gateway, *routes])
    for host, owner in (
        ("bar.com", "a"), ("abc.example.com", "b"), ("x.foo.example.com", "c"), ("abc.foo.example.com", "d"),
    ):  # fmt: skip
        answers = {name: who(talk, host, f"/{name}") for name in "abcd"}
        assert answers == {name: f"to-{name}" if name == owner else "404" for name in "abcd"}


def test_a_route_serves_the_hosts_that_it_has_in_common_with_its_listener(converse: Start):
    talk = converse(
        [
            listeners("very.specific.com", "*.wildcard.io"),
            route("one", "non.matching.com", "*.nonmatchingwildcard.io", "very.specific.com", path={"value": "/s1"}),
            route(
                "two", "non.matching.com", "wildcard.io", "foo.wildcard.io", "bar.wildcard.io", path={"value": "/s2"}
            ),
        ]
    )
    assert who(talk, "very.specific.com:1234", "/s1") == "one"
    assert who(talk, "foo.wildcard.io", "/s2") == "two"
    for host, path in (
        ("non.matching.com", "/s1"), ("foo.nonmatchingwildcard.io", "/s1"), ("very.specific.com", "/s2"),
        ("wildcard.io", "/s2"), ("baz.wildcard.io", "/s2"), ("foo.wildcard.io", "/s1"),
    ):  # fmt: skip
        assert who(talk, host, path) == "404", (host, path)


@pytest.mark.parametrize(
    ("listener", "less", "more"),
    [
        ("very.specific.com", "*.specific.com", "very.specific.com"),
        ("a.very.specific.com", "*.specific.com", "*.very.specific.com"),
        ("*.very.specific.com", "*.com", "*.specific.com"),
        ("very.specific.com", "", "*.com"),
    ],
)
def test_where_routes_share_the_hosts_of_a_listener_the_more_specific_hostname_goes_before_age_and_path(
    converse: Start, listener: str, less: str, more: str
):
    older = route("older", *filter(None, [less]), created="2024-01-01", path={"value": "/", "type": "PathPrefix"})
    longer = route("longer", *filter(None, [less]), created="2024-01-01", path={"value": "/long"})
    talk = converse([listeners(listener), older, longer, route("younger", more, created="2025-01-01")])
    host = listener.replace("*", "a")
    assert who(talk, host) == "younger"
    assert who(talk, host, "/long/path") == "younger"


def test_the_rules_of_a_less_specific_hostname_serve_what_the_more_specific_one_leaves(converse: Start):
    talk = converse(
        [
            listeners("very.specific.com"),
            route("wide", "*.specific.com"),
            route("exact", "very.specific.com", path={"value": "/a"}),
        ]
    )
    assert who(talk, "very.specific.com", "/a") == "exact"
    assert who(talk, "very.specific.com", "/b") == "wide"


def test_a_grpc_rule_without_a_backend_is_closed_and_its_requests_fall_through_to_nothing(converse: Start):
    grpc = m.manifest(
        "gateway.networking.k8s.io/v1", "GRPCRoute", "grpc", "agents",
        spec={"parentRefs": [{"name": "gw"}], "hostnames": ["grpc.example"], "rules": [
            {"matches": [{"method": {"service": "a.B", "method": "Get"}}]},
        ]},
    )  # fmt: skip
    talk = converse([listeners(""), grpc, route("wide", "*.example")])
    talk.client >> b"POST /a.B/Get HTTP/1.1\r\nHost: grpc.example\r\nContent-Length: 0\r\n\r\n"
    status, _, _, error = talk.client.answer()
    assert status == 500
    assert error["reason"] == "backend_invalid"
    assert talk.record()["route"] == "agents/grpc"
    assert error["rule"] == talk.record()["rule"] == "GRPCRoute agents/grpc"


def test_one_tls_port_terminates_for_one_name_and_passes_through_for_another(converse: Start):
    pki = Pki()
    passed = {
        "name": "passed",
        "port": 8443,
        "protocol": "TLS",
        "hostname": "b.example",
        "tls": {"mode": "Passthrough"},
    }
    ended = {"name": "ended", "port": 8443, "protocol": "TLS", "hostname": "a.example", "tls": terminate("front")}
    talk = converse(
        [
            m.gateway(passed, ended),
            certificate(pki, "a.example"),
            m.backend("raw", "raw.example", 443, protocol="TCP"),
            m.backend("plain", "plain.example", 9000, protocol="TCP"),
            m.tls_route("to-raw", "raw", hostnames=["b.example"], section="passed"),
            m.tls_route("to-plain", "plain", hostnames=["a.example"], section="ended"),
        ]
    )
    talk.counts_octets = False
    hello = client_hello("b.example")
    talk.client >> hello
    talk.dialled("raw.example", 443)
    talk.origin << hello
    second = talk.connect()
    inside = TlsClient(second, pki, "a.example").shakes_hands()
    inside >> b"inside"
    talk.dialled("plain.example", 9000)
    talk.origin << b"inside"
    talk.client.leaves()
    second.leaves()


def tcp_route(name: str, *refs: m.Manifest, year: int = 2024) -> m.Manifest:
    made = m.manifest(
        "gateway.networking.k8s.io/v1", "TCPRoute", name, "agents",
        spec={"parentRefs": [{"name": "gw"}], "rules": [{"backendRefs": list(refs)}]},
    )  # fmt: skip
    made["metadata"]["creationTimestamp"] = f"{year}-01-01T00:00:00Z"
    return made


def to(backend: str, weight: int = 1) -> m.Manifest:
    return {"group": "egressproxy.io", "kind": "Backend", "name": backend, "weight": weight}


TCP = [
    m.gateway({"name": "tcp", "port": 5432, "protocol": "TCP"}),
    m.backend("one", "one.example", 1, protocol="TCP"),
    m.backend("two", "two.example", 2, protocol="TCP"),
]


def test_of_two_tcp_routes_the_older_has_every_connection(converse: Start):
    talk = converse([*TCP, tcp_route("a-young", to("two"), year=2025), tcp_route("b-old", to("one"))])
    talk.client >> b"octets"
    talk.dialled("one.example", 1)
    talk.origin << b"octets"
    talk.client.leaves()


@pytest.mark.parametrize(("point", "chosen"), [(0.0, "one"), (0.69, "one"), (0.71, "two"), (0.99, "two")])
def test_each_connection_of_a_tcp_route_goes_by_weight(
    converse: Start, monkeypatch: pytest.MonkeyPatch, point: float, chosen: str
):
    monkeypatch.setattr("random.random", lambda: point)
    talk = converse([*TCP, tcp_route("route", to("one", 7), to("two", 3))])
    talk.client >> b"octets"
    talk.dialled(f"{chosen}.example", 1 if chosen == "one" else 2)
    talk.client.leaves()


@pytest.mark.parametrize(("point", "is_closed"), [(0.2, True), (0.9, False)])
def test_the_share_of_a_backend_that_is_not_there_is_closed(
    converse: Start, monkeypatch: pytest.MonkeyPatch, point: float, is_closed: bool
):
    monkeypatch.setattr("random.random", lambda: point)
    talk = converse([*TCP, tcp_route("route", to("absent", 5), to("two", 5))])
    talk.client >> b"octets"
    if is_closed:
        talk.client.is_closed()
        talk.no_dial()
        assert talk.record()["reason"] == "backend_invalid"
        assert talk.record()["rule"] == "TCPRoute agents/route"
    else:
        talk.dialled("two.example", 2)
        talk.client.leaves()


def test_a_host_that_belongs_to_another_listener_than_the_handshake_is_misdirected(converse: Start):
    """RFC 9110 section 15.5.20; the cases of Gateway API for HTTPS listeners of one port."""
    pki = Pki()
    hostnames = ("", "second.example", "*.wildcard.example", "fourth.wildcard.example")
    made = [
        {"name": f"l{index}", "port": 8443, "protocol": "HTTPS", "tls": terminate("front")}
        | ({"hostname": hostname} if hostname else {})
        for index, hostname in enumerate(hostnames)
    ]
    names = ("any.example", "second.example", "a.wildcard.example", "b.wildcard.example", "fourth.wildcard.example")
    routes = [route(f"r{index}", section=f"l{index}") for index in range(4)]
    owner = dict(zip(names, ("r0", "r1", "r2", "r2", "r3"), strict=True))
    objects = [m.gateway(*made), certificate(pki, *names), *routes]
    for name in names:
        talk = converse(objects)
        talk.counts_octets = False
        inside = TlsClient(talk.client, pki, name).shakes_hands()
        for host in names:
            inside >> b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % host.encode()
            head = inside.reads()
            expected = b"302" if owner[name] == owner[host] else b"421"
            assert head.split()[1] == expected, (name, host)
