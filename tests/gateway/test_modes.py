"""Mode Report of a more specific object: it holds for what this object denies, and lifts no deny of a wider one."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.protocols.tls.client_hello import UNRECOGNIZED_NAME
from tests.gateway.backends.test_mirror import mirrored, results
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import CHANGE, client_hello, tls_routed, tunnel
from tests.gateway.kit import GET, OK, OK_PASSED, connect, reverse
from tests.gateway.listeners.test_stream_connection import plain_stream
from tests.support import manifests as m
from tests.support.conversation import Conversation

DENY_A = {"destinations": {"deny": [{"hostnames": ["a.example"]}]}}
DENY_RANGE = {"destinations": {"deny": [{"cidrs": ["93.184.216.0/24"]}]}}
PLAIN_GET = b"GET / HTTP/1.1\r\nHost: front.example\r\n\r\n"

ROUTE, BACKEND = ("HTTPRoute", "route"), ("Backend", "a")


def on(kind: str, name: str, **sections: Any) -> m.Manifest:
    """A policy for a route or a Backend."""
    ref = {"group": m.OURS if kind == "Backend" else m.GATEWAY_API, "kind": kind, "name": name}
    return m.policy(name=kind.lower(), targetRefs=[ref], **sections)


def forward_routed(*more: m.Manifest, **sections: Any) -> list[m.Manifest]:
    """A forward proxy with a route to a.example:80."""
    route = m.http_route("route", m.prefix_rule("/", "a"), hostnames=["a.example"])
    return [m.gateway(m.forward_listener(3128)), m.policy(**sections), m.backend("a", "a.example", 80), route, *more]


def refused(talk: Conversation, request: bytes) -> dict[str, Any]:
    talk.client >> request
    status, _, _, error = talk.client.answer()
    assert status == 403
    talk.no_dial()
    assert talk.series("denied") == 1
    return error


def passes(talk: Conversation, request: bytes, *would_deny: str) -> None:
    talk.client >> request
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.record().get("would_deny", []) == list(would_deny)


# --- a deny of the Gateway -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("deny", [DENY_A, DENY_RANGE])
@pytest.mark.parametrize("place", [ROUTE, BACKEND])
@pytest.mark.parametrize("mode", ["Report", "Open"])
def test_no_mode_of_a_route_or_backend_lifts_a_deny_of_the_gateway(
    converse: Start, deny: Any, place: tuple[str, str], mode: str
):
    talk = converse(reverse(objects=(on(*place, mode=mode),), **deny))
    error = refused(talk, PLAIN_GET)
    assert error["rule"] == "EgressPolicy agents/default"


@pytest.mark.parametrize("deny", [DENY_A, DENY_RANGE])
@pytest.mark.parametrize("place", [ROUTE, BACKEND])
def test_nor_does_it_for_what_a_client_of_the_forward_proxy_names(converse: Start, deny: Any, place: tuple[str, str]):
    talk = converse(forward_routed(on(*place, mode="Report"), **deny))
    refused(talk, GET)


@pytest.mark.parametrize("place", [("TLSRoute", "t"), BACKEND])
def test_nor_does_it_for_a_tunnel(converse: Start, place: tuple[str, str]):
    talk = converse([*tls_routed(**DENY_A), on(*place, mode="Report")])
    refused(talk, connect("a.example:443"))


def test_nor_does_it_for_a_stream(converse: Start):
    talk = converse([*plain_stream(**DENY_A), on("TCPRoute", "t", mode="Report")])
    talk.client >> b"select 1"
    talk.client.is_closed()
    assert talk.record()["reason"] == "destination_denied"
    talk.no_dial()


@pytest.mark.parametrize("place", [ROUTE, ("Backend", "b")])
def test_nor_does_it_for_a_mirror(converse: Start, place: tuple[str, str]):
    deny = {"destinations": {"deny": [{"hostnames": ["b.example"]}]}}
    talk = converse(mirrored(objects=(on(*place, mode="Report"),), **deny))
    talk.client >> GET
    a = talk.dialled("a.example", 80)
    a.take(rb"GET .*?\r\n\r\n")
    a >> OK
    talk.client << OK_PASSED
    talk.no_dial()
    assert results(talk) == {"destination_denied": 1}


@pytest.mark.parametrize("deny", [DENY_A, DENY_RANGE])
def test_what_the_gateway_only_reports_passes_and_is_noted(converse: Start, deny: Any):
    talk = converse(reverse(mode="Report", **deny))
    passes(talk, PLAIN_GET, "destination_denied" if deny is DENY_A else "resolved_denied")


@pytest.mark.parametrize("deny", [DENY_A, DENY_RANGE])
@pytest.mark.parametrize("place", [ROUTE, BACKEND])
def test_a_more_specific_policy_enforces_what_the_gateway_only_reports(
    converse: Start, deny: Any, place: tuple[str, str]
):
    talk = converse(reverse(objects=(on(*place, mode="Enforce"),), mode="Report", **deny))
    refused(talk, PLAIN_GET)


# --- a deny of the route or Backend ----------------------------------------------------------------------------------
@pytest.mark.parametrize("deny", [DENY_A, DENY_RANGE])
@pytest.mark.parametrize("place", [ROUTE, BACKEND])
def test_under_a_gateway_that_enforces_a_route_or_backend_may_report_its_own_denies(
    converse: Start, deny: Any, place: tuple[str, str]
):
    talk = converse(reverse(objects=(on(*place, mode="Report", **deny),), mode="Enforce"))
    passes(talk, PLAIN_GET, "destination_denied" if deny is DENY_A else "resolved_denied")


@pytest.mark.parametrize("deny", [DENY_A, DENY_RANGE])
def test_a_route_does_not_lift_what_its_backend_denies(converse: Start, deny: Any):
    talk = converse(reverse(objects=(on(*BACKEND, mode="Enforce", **deny), on(*ROUTE, mode="Report"))))
    refused(talk, PLAIN_GET)


def test_what_enforces_goes_before_what_reports(converse: Start):
    own = on(*ROUTE, mode="Report", destinations={"deny": [{"hostnames": ["a.example"]}]})
    wide = {"destinations": {"deny": [{"hostnames": ["*.example"]}]}}
    talk = converse(forward_routed(own, **wide))
    assert refused(talk, GET)["rule"] == "EgressPolicy agents/default"


@pytest.mark.parametrize("enforcing", ["parent.example", "a.example"])
def test_what_enforces_goes_before_what_reports_on_the_way_to_a_backend(converse: Start, enforcing: str):
    (reporting,) = {"parent.example", "a.example"} - {enforcing}
    own = on(*ROUTE, mode="Report", destinations={"deny": [{"hostnames": [reporting]}]})
    b = m.backend("b", "a.example", 443, tls=True, parent={"name": "parent"})
    objects = (b, m.backend("parent", "parent.example", 3128), own)
    deny = {"destinations": {"deny": [{"hostnames": [enforcing]}]}}
    talk = converse(reverse(m.prefix_rule("/", "b"), objects=objects, **deny))
    assert refused(talk, PLAIN_GET)["message"] == f"{enforcing} is denied by policy agents/default"


def test_one_route_reports_in_one_listener_and_is_refused_in_the_other(converse: Start):
    """What the mode of a listener makes of a deny holds in this listener alone."""
    ref = {"group": m.GATEWAY_API, "kind": "Gateway", "name": "gw", "sectionName": "strict"}
    objects = [
        m.gateway(m.http_listener(8080, "lenient", hostname="l.example"), m.http_listener(8080, "strict")),
        m.policy(mode="Report", **DENY_A),
        m.policy(name="strict", targetRefs=[ref], mode="Enforce"),
        m.backend("a", "a.example", 80),
        m.http_route("route", m.prefix_rule("/", "a")),
        on(*ROUTE, mode="Report"),
    ]
    talk = converse(objects)
    passes(talk, b"GET / HTTP/1.1\r\nHost: l.example\r\n\r\n", "destination_denied")
    talk.client >> PLAIN_GET
    assert talk.client.answer()[0] == 403


# --- what a tunnel carries -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("modes", [("Enforce", "Report"), ("Open", "Report"), ("Report", "Enforce")])
def test_a_tunnel_may_carry_another_name_only_where_gateway_and_route_report(converse: Start, modes: tuple[str, str]):
    talk = converse([*tls_routed(mode=modes[0]), on("TLSRoute", "t", mode=modes[1])])
    tunnel(talk)
    talk.client >> client_hello("b.example")
    talk.client << UNRECOGNIZED_NAME
    talk.client.is_closed()
    record = talk.record()
    assert record["reason"] == "sni_mismatch"
    assert "would_deny" not in record


@pytest.mark.parametrize("modes", [("Enforce", "Report"), ("Open", "Report"), ("Report", "Enforce")])
def test_on_a_tls_listener_a_second_hello_holds_for_the_stricter_mode(converse: Start, modes: tuple[str, str]):
    objects = [
        m.gateway({"name": "tls", "port": 8443, "protocol": "TLS", "tls": {"mode": "Passthrough"}}),
        m.policy(mode=modes[0]),
        m.backend("a", "a.example", 443, protocol="TCP"),
        m.tls_route("t", "a", hostnames=["a.example"]),
        on("TLSRoute", "t", mode=modes[1]),
    ]
    talk = converse(objects)
    talk.client >> client_hello("a.example") + CHANGE + client_hello("b.example")
    talk.dialled("a.example", 443)
    talk.until(lambda: talk.client.has_eof and talk.origin.has_eof)
    assert b"b.example" not in talk.origin.got
    assert talk.record()["reason"] == "sni_mismatch"
