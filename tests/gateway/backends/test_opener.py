"""How connections are opened: dials that fail, and parents."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.filters.base import Filter
from egressproxy.model.exchange import Exchange
from egressproxy.upstream.own_sockets import OwnSockets
from tests.gateway.conftest import Start
from tests.gateway.kit import (
    ESTABLISHED,
    GET,
    OK,
    OK_PASSED,
    TlsOrigin,
    connect,
    forward,
    reverse,
    through_parent,
)
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter

PARENT_CONNECT = b"CONNECT a.example:22 HTTP/1.1\r\nHost: a.example:22\r\nVia: 1.1 gw\r\n\r\n"


# --- failures ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("request_", [GET, connect("a.example:22")])
def test_a_refused_dial_is_a_503_and_nothing_stays_behind(converse: Start, request_: bytes):
    talk = converse(forward())
    talk.client >> request_
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "the upstream refused the connection", status=503)
    talk.refused("a.example", 22 if request_ is not GET else 80, fault)
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"]) == (503, "upstream_refused")
    assert "connection_refused" in fields["Proxy-Status"]
    assert talk.open == 0
    talk.client.is_open()


def test_a_name_that_does_not_exist_is_a_503(converse: Start):
    talk = converse(forward())
    talk.names.faults["a.example"] = lambda: UpstreamFault(Reason.DNS_NXDOMAIN, "no such name", status=503)
    talk.client >> GET
    status, _, fields, _ = talk.client.answer()
    assert status == 503
    assert "dns_error" in fields["Proxy-Status"]
    assert talk.open == 0


def test_a_connection_that_is_closed_at_once_is_no_answer(converse: Start):
    talk = converse(forward())
    talk.client >> GET
    dial = talk.pending_dial()
    assert dial is not None
    from tests.support.conversation import MemoryPeer, MemoryTransport

    talk.dialer.dials.clear()
    peer = MemoryPeer(talk)

    def accept() -> None:
        protocol = dial.factory()
        transport = MemoryTransport(peer, protocol, ("93.184.216.1", 80))
        protocol.connection_made(transport)
        dial.future.set_result((transport, protocol, dial.endpoints[0]))
        transport.lose(ConnectionResetError())

    talk.act(accept)
    assert talk.client.answer()[0] == 502
    assert talk.open == 0


# --- parents -------------------------------------------------------------------------------------------------------
METADATA = b"GET /latest HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"


def service(name: str, address: str, port: int) -> list[m.Manifest]:
    """A Service with one endpoint, and the Backend for it that goes through the parent."""
    ports = [{"name": "http", "port": port}]
    endpoints = {"addressType": "IPv4", "endpoints": [{"addresses": [address]}], "ports": ports}
    piece = m.manifest("discovery.k8s.io/v1", "EndpointSlice", name, "agents", **endpoints)
    piece["metadata"]["labels"] = {"kubernetes.io/service-name": name}
    made = m.backend(name, "-", port, parent={"name": "parent"})
    made["spec"]["destination"].pop("fqdn")
    made["spec"]["destination"] |= {"type": "Service", "service": {"name": name}}
    return [m.manifest("v1", "Service", name, "agents", spec={"ports": ports}), piece, made]


def behind_parent(backend: m.Manifest, *more: m.Manifest, rule: m.Manifest | None = None, **sections: Any) -> Any:
    """A reverse listener with one route to this backend."""
    route = rule or m.prefix_rule("/", backend["metadata"]["name"])
    objects = (m.backend("parent", "parent.example", 3128), backend, *more)
    return reverse(route, objects=objects, **sections)


@pytest.mark.parametrize("kind", ["Ip", "Ip with another port", "IPv6", "Service", "Fqdn"])
def test_a_parent_is_asked_for_the_backend_and_for_nothing_that_a_client_names(converse_on: Start, kind: str):
    through = {"parent": {"name": "parent"}}
    backend, asked = {
        "Ip": (m.ip_backend("b", 80, "10.0.0.7", **through), b"10.0.0.7"),
        "Ip with another port": (m.ip_backend("b", 8080, "10.0.0.7", **through), b"10.0.0.7:8080"),
        "IPv6": (m.ip_backend("b", 8080, "fd00::7", **through), b"[fd00::7]:8080"),
        "Service": (service("b", "10.0.0.7", 8080)[-1], b"10.0.0.7:8080"),
        "Fqdn": (m.backend("b", "b.example", 8080, **through), b"b.example:8080"),
    }[kind]
    talk = converse_on(behind_parent(backend, *(service("b", "10.0.0.7", 8080)[:-1] if kind == "Service" else ())))
    for is_new in (True, False):
        talk.client >> METADATA
        if is_new:
            talk.dialled("parent.example", 3128)
        talk.origin << b"GET http://%b/latest HTTP/1.1\r\nHost: %b\r\nVia: 1.1 gw\r\n\r\n" % (asked, asked)
        talk.origin >> OK
        talk.client << OK_PASSED


@pytest.mark.parametrize("hostname", ["Fqdn", "Dynamic"])
def test_a_hostname_that_a_route_writes_is_no_destination(converse: Start, hostname: str):
    """A proxy ignores Host in favour of the target, so the two agree (RFC 9112 section 3.2.2)."""
    rule = m.prefix_rule("/", "b")
    rule["filters"] = [{"type": "URLRewrite", "urlRewrite": {"hostname": "other.example"}}]
    backend = m.backend("b", "a.example", 80, parent={"name": "parent"})
    if hostname == "Dynamic":
        backend["spec"]["destination"] = {"type": "Dynamic"}
    parent = m.backend("parent", "parent.example", 3128)
    talk = converse(forward(parent, backend, m.http_route("r", rule, hostnames=["a.example"])))
    talk.client >> GET
    talk.dialled("parent.example", 3128)
    talk.origin << b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> OK
    talk.client << OK_PASSED


class Diverting(Filter):
    """Gives the request another Host and another path."""

    def __init__(self, host: bytes, path: bytes) -> None:
        self.host, self.path, self.seen = host, path, b""

    def backend_request(self, x: Exchange) -> None:
        self.seen = x.upstream_host
        x.upstream_host, x.request.path = self.host, self.path


@pytest.mark.parametrize("path", [b"@10.0.0.1/", b":81@10.0.0.1/", b".evil.example/"])
def test_what_a_filter_writes_is_no_destination(converse: Start, path: bytes):
    diverting = Diverting(b"169.254.169.254", path)
    backend = m.backend("b", "b.example", 80, parent={"name": "parent"})
    backend["spec"]["extensions"] = [scripted_filter("divert", "backend-request")]
    talk = converse(behind_parent(backend), filters={"divert": diverting})
    talk.client >> METADATA
    talk.dialled("parent.example", 3128)
    talk.origin << b"GET http://b.example/%b HTTP/1.1\r\nHost: b.example\r\nVia: 1.1 gw\r\n\r\n" % path
    assert diverting.seen == b"b.example"
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_question_about_the_whole_server_has_no_path_on_its_way_to_a_parent(converse: Start):
    """RFC 9112 section 3.2.4."""
    talk = converse(behind_parent(m.backend("b", "b.example", 80, parent={"name": "parent"})))
    talk.client >> b"OPTIONS * HTTP/1.1\r\nHost: x.example\r\n\r\n"
    talk.dialled("parent.example", 3128)
    talk.origin << b"OPTIONS http://b.example HTTP/1.1\r\nHost: b.example\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_copy_for_a_mirror_asks_a_parent_for_the_mirror_alone(converse: Start):
    rule = m.prefix_rule("/", "a")
    ref = {"group": m.OURS, "kind": "Backend", "name": "b"}
    rule["filters"] = [
        {"type": "RequestMirror", "requestMirror": {"backendRef": ref}},
        {"type": "URLRewrite", "urlRewrite": {"hostname": "other.example"}},
    ]
    mirror = m.ip_backend("b", 8080, "10.0.0.7", parent={"name": "parent"})
    talk = converse(behind_parent(mirror, rule=rule))
    talk.client >> METADATA
    talk.dialled("a.example", 80)
    talk.dialled("parent.example", 3128)
    origin, copied = talk.origins
    copied << b"GET http://10.0.0.7:8080/latest HTTP/1.1\r\nHost: 10.0.0.7:8080\r\nVia: 1.1 gw\r\n\r\n"
    origin << b"GET /latest HTTP/1.1\r\nHost: other.example\r\nVia: 1.1 gw\r\n\r\n"
    for each in (copied, origin):
        each >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("scheme", ["http", "https", "CONNECT"])
@pytest.mark.parametrize(
    ("address", "port", "is_asked"),
    [("127.0.0.1", 15900, False), ("::ffff:127.0.0.1", 15900, False), ("10.0.0.5", 15900, False), ("", 15900, False),
     ("10.0.0.6", 15900, True), ("127.0.0.1", 15901, True)],
)  # fmt: skip
def test_a_parent_on_this_machine_is_not_asked_for_a_name_on_the_port_of_the_admin_address(
    converse: Start, address: str, port: int, is_asked: bool, scheme: str
):
    """It resolves the name, perhaps to 127.0.0.1. One whose address is not known yet may be here."""
    talk = converse(everywhere_through_parent(cidrs=["0.0.0.0/0"]))
    admin, machine = [(ip_address("127.0.0.1"), 15900)], {ip_address("10.0.0.5")}
    talk.network.own = OwnSockets((), admin, machine.__contains__)
    if address:
        talk.names.zone["parent.example"] = (ip_address(address),)
    host = f"a.example:{port}"
    talk.client >> (connect(host) if scheme == "CONNECT" else absolute(scheme, host))
    if is_asked:
        fault = UpstreamFault(Reason.CONNECT_REFUSED, "the upstream refused the connection", status=503)
        talk.refused("parent.example", 3128, fault)
        assert talk.client.answer()[0] == 503
    else:
        talk.no_dial()
        status, _, _, error = talk.client.answer()
        assert (status, error["reason"]) == (403, "resolved_denied")
        assert "a parent on this machine" in error["message"]


def test_a_parent_behind_a_parent_is_not_left_out(converse: Start):
    backend = m.backend("b", "b.example", 80, parent={"name": "inner"})
    inner = m.backend("inner", "inner.example", 3128, parent={"name": "parent"})
    talk = converse(behind_parent(backend, inner))
    talk.client >> METADATA
    talk.dialled("parent.example", 3128)
    talk.origin << b"CONNECT inner.example:3128 HTTP/1.1\r\nHost: inner.example:3128\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> b"HTTP/1.1 200 OK\r\n\r\n"
    talk.origin << b"GET http://b.example/latest HTTP/1.1\r\nHost: b.example\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> OK
    talk.client << OK_PASSED


def test_plain_requests_go_to_a_parent_in_absolute_form(converse_on: Start):
    talk = converse_on(through_parent(80))
    for is_new in (True, False):
        talk.client >> GET
        if is_new:
            talk.dialled("parent.example", 3128)
        talk.origin << b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
        talk.origin >> OK
        talk.client << OK_PASSED


def test_a_tunnel_goes_through_a_parent_by_connect(converse_on: Start):
    talk = converse_on(through_parent(22, "TCP"))
    talk.client >> connect("a.example:22")
    talk.dialled("parent.example", 3128)
    talk.origin << PARENT_CONNECT
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbanner"
    talk.client << ESTABLISHED + b"banner"


def test_a_tunnel_carries_the_via_of_the_client_to_the_parent(converse: Start):
    """So that two gateways which are each other's parents do not ask each other for ever."""
    talk = converse(through_parent(22, "TCP"))
    talk.client >> b"CONNECT a.example:22 HTTP/1.1\r\nHost: a.example:22\r\nVia: 1.1 other\r\n\r\n"
    talk.dialled("parent.example", 3128)
    talk.origin << PARENT_CONNECT.replace(b"Via: 1.1 gw", b"Via: 1.1 other, 1.1 gw")


def test_what_comes_right_behind_a_parents_answer_is_not_lost(converse: Start):
    """Several reads may happen in the turn of the loop in which the parent has answered."""
    talk = converse(through_parent(22, "TCP"))
    talk.client >> connect("a.example:22")
    talk.dialled("parent.example", 3128)
    talk.origin << PARENT_CONNECT

    def reads() -> None:
        transport = talk.origin.transport
        transport.deliver(b"HTTP/1.1 200 OK\r\n\r\n")
        transport.deliver(b"one ")
        transport.deliver(b"two ")
        transport.deliver(None)

    talk.act(reads)
    talk.client << ESTABLISHED + b"one two "


def test_a_parent_that_leaves_right_behind_its_answer_leaves_no_tunnel_behind(converse: Start):
    talk = converse(through_parent(22, "TCP"))
    talk.client >> connect("a.example:22")
    talk.dialled("parent.example", 3128)
    talk.origin << PARENT_CONNECT

    def reads() -> None:
        talk.origin.transport.deliver(b"HTTP/1.1 200 OK\r\n\r\n")
        talk.origin.transport.lose(None)

    talk.act(reads)
    talk.until(lambda: bool(talk.records))
    assert talk.records
    talk.client.take(rb".*")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"407 Proxy Authentication Required", "parent_auth"),
        (b"403 Forbidden", "parent_refused"),
        (b"", "parent_refused"),
    ],
)
def test_a_parent_that_refuses_is_a_502_and_its_407_stays_with_us(converse_on: Start, answer: bytes, reason: str):
    talk = converse_on(through_parent(22, "TCP"))
    talk.client >> connect("a.example:22")
    talk.dialled("parent.example", 3128)
    talk.origin << PARENT_CONNECT
    if answer:
        talk.origin >> b"HTTP/1.1 " + answer + b"\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"
    else:
        talk.origin.ends()
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"]) == (502, reason)
    assert "Proxy-Authenticate" not in fields


def test_a_client_that_leaves_while_a_parent_is_asked_takes_the_connection_with_it(converse: Start):
    talk = converse(through_parent(22, "TCP"))
    talk.client >> connect("a.example:22")
    talk.dialled("parent.example", 3128)
    talk.origin << PARENT_CONNECT
    talk.client.leaves()
    assert talk.origin.is_gone
    assert talk.record()["reason"] == "client_gone"


def everywhere_through_parent(**more: Any) -> list[m.Manifest]:
    """Whatever is allowed goes, over a route to a Backend of type Dynamic, through a parent."""
    dynamic = m.backend("any", "-", 80, parent={"name": "parent"})
    dynamic["spec"]["destination"] = {"type": "Dynamic"}
    return [
        m.gateway(m.forward_listener(3128)),
        m.policy(mode="Open", **more),
        m.backend("parent", "parent.example", 3128),
        dynamic,
        m.http_route("r", m.prefix_rule("/", "any")),
        m.tls_route("t", "any", hostnames=[]),
    ]


def absolute(scheme: str, host: str) -> bytes:
    return f"GET {scheme}://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


@pytest.mark.parametrize("way", ["http", "https", "CONNECT"])
@pytest.mark.parametrize(
    "host", ["169.254.169.254", "10.0.0.1", "[::1]", "[::ffff:10.0.0.1]", "localhost", "x.localhost"]
)
def test_a_parent_is_not_asked_for_an_address_that_is_not_allowed(converse: Start, host: str, way: str):
    talk = converse(everywhere_through_parent())
    talk.client >> (connect(f"{host}:443") if way == "CONNECT" else absolute(way, host))
    talk.no_dial()
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "resolved_denied")


@pytest.mark.parametrize("host", ["a.example", "93.184.216.34", "localhost.example"])
def test_a_parent_is_asked_for_names_and_for_public_addresses(converse_on: Start, host: str):
    talk = converse_on(everywhere_through_parent())
    talk.counts_octets = False  # the parent is left without an answer at the end
    talk.client >> absolute("http", host)
    talk.dialled("parent.example", 3128)
    talk.origin << f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nVia: 1.1 gw\r\n\r\n".encode()
    talk.origin >> OK
    talk.client << OK_PASSED
    second = talk.connect()
    second >> absolute("https", host)
    talk.dialled("parent.example", 3128)
    talk.origin.take(f"CONNECT {host}:443 HTTP/1.1\r\n".encode().replace(b".", rb"\."))
    third = talk.connect()
    third >> connect(f"{host}:443")
    talk.dialled("parent.example", 3128)
    talk.origin.take(f"CONNECT {host}:443 HTTP/1.1\r\n".encode().replace(b".", rb"\."))


# --- certificates that nobody looks at -----------------------------------------------------------------------------
UNVERIFIED = {"mode": "Simple", "insecureSkipVerify": True}
NOT_VERIFIED = "certificate of backend agents/u not verified"


def unverified(port: int = 443, host: str = "u.example", **more: Any) -> m.Manifest:
    made = m.backend("u", host, port, tls=True, **more)
    made["spec"]["destination"]["ports"][0]["tls"] = UNVERIFIED
    return made


def served_twice(talk: Conversation, request: bytes, port: int, begins: bytes) -> None:
    """On a new connection to `u.example` and on a kept one: both are told as insecure."""
    for is_new in (True, False):
        talk.client >> request
        if is_new:
            talk.dialled("u.example", port)
            tls = TlsOrigin(talk.origin).shakes_hands()
        talk.until(lambda: bool(talk.origin.received))
        assert tls.reads().startswith(begins)
        tls >> OK
        talk.client << OK_PASSED
    assert [each["insecure"] for each in talk.log.lines] == [[NOT_VERIFIED]] * 2


@pytest.mark.parametrize("is_forward", [False, True])
def test_the_log_has_each_request_whose_backend_was_not_verified_as_insecure(converse: Start, is_forward: bool):
    rule = m.prefix_rule("/", "u")
    if is_forward:
        talk = converse(forward(unverified(), m.http_route("r", rule, hostnames=["a.example"])))
    else:
        talk = converse(reverse(rule, objects=(unverified(),)))
    talk.counts_octets = False
    served_twice(talk, GET if is_forward else METADATA, 443, b"GET ")


def test_the_log_has_a_request_of_https_to_a_destination_that_is_not_verified_as_insecure(converse: Start):
    dynamic = m.manifest("egressproxy.io/v1alpha1", "Backend", "any", "agents", spec={
        "destination": {"type": "Dynamic"}, "tls": UNVERIFIED,
    })  # fmt: skip
    talk = converse(forward(dynamic, m.http_route("r", m.prefix_rule("/", "any"), hostnames=["a.example"])))
    talk.counts_octets = False
    talk.client >> b"GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.dialled("a.example", 443)
    tls = TlsOrigin(talk.origin).shakes_hands()
    talk.until(lambda: bool(talk.origin.received))
    assert tls.reads().startswith(b"GET ")
    tls >> OK
    talk.client << OK_PASSED
    talk.client >> GET  # plain http has no certificate
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET .*")
    talk.origin >> OK
    talk.client << OK_PASSED
    assert [each.get("insecure") for each in talk.log.lines] == [["certificate of the destination not verified"], None]


def test_the_log_has_a_request_through_a_parent_that_is_not_verified_as_insecure(converse: Start):
    routed = m.http_route("r", m.prefix_rule("/", "a"), hostnames=["a.example"])
    behind = m.backend("a", "a.example", 80, parent={"name": "u"})
    talk = converse(forward(unverified(3128), behind, routed))
    talk.counts_octets = False
    served_twice(talk, GET, 3128, b"GET http://a.example/")


def test_the_log_has_a_tunnel_through_a_parent_that_is_not_verified_as_insecure(converse: Start):
    routed = m.tls_route("t", "a", hostnames=["a.example"])
    behind = m.backend("a", "a.example", 443, parent={"name": "u"}, protocol="TCP")
    talk = converse(forward(unverified(3128), behind, routed))
    talk.counts_octets = False
    talk.client >> connect("a.example:443")
    talk.dialled("u.example", 3128)
    tls = TlsOrigin(talk.origin).shakes_hands()
    talk.until(lambda: bool(talk.origin.received))
    assert tls.reads().startswith(b"CONNECT a.example:443")
    tls >> b"HTTP/1.1 200 OK\r\n\r\n"
    talk.client << ESTABLISHED
    talk.client.leaves()
    assert talk.record(0)["insecure"] == [NOT_VERIFIED]


def test_the_log_has_a_stream_that_goes_on_in_tls_that_is_not_verified_as_insecure(converse: Start):
    backend = unverified()
    backend["spec"]["destination"]["ports"][0]["protocol"] = "TCP"
    listener = {"name": "tcp", "port": 9000, "protocol": "TCP"}
    spec = {"parentRefs": [{"name": "gw"}], "rules": m.tls_route("t", "u", hostnames=())["spec"]["rules"]}
    route = m.manifest(f"{m.GATEWAY_API}/v1", "TCPRoute", "t", "agents", spec=spec)
    talk = converse([m.gateway(listener), m.policy(), backend, route])
    talk.counts_octets = False
    talk.client >> b"hello"
    talk.dialled("u.example", 443)
    tls = TlsOrigin(talk.origin).shakes_hands()
    talk.until(lambda: bool(talk.origin.received))
    assert tls.reads() == b"hello"
    talk.client.leaves()
    assert talk.record(0)["insecure"] == [NOT_VERIFIED]
