"""Who may go where: refusals in every form they take."""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import Any

import pytest

from egressproxy.errors import BadRequest, Denied, Reason
from egressproxy.gateway.enforcement import enforce
from egressproxy.gateway.exchange.admission import admit_http, read_authority, route_tunnel
from egressproxy.ir.policy import Mode
from egressproxy.model.authority import Authority
from egressproxy.model.exchange import Exchange
from tests.gateway.backends.test_retries import pods
from tests.gateway.conftest import Start
from tests.gateway.kit import GET, GET_SENT, OK, OK_PASSED, connect, exchange, forward, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation


def test_a_denial_answers_what_by_whom_why_and_what_to_add(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> b"GET http://evil.example/secret?key=1 HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    status, phrase, fields, error = talk.client.answer()
    assert status == 403
    assert phrase == b"Denied: evil.example is not allowed by policy agents/default"
    assert fields["Proxy-Status"].startswith("egressproxy; error=http_request_denied; details=")
    assert fields["X-Egress-Request-Id"] == error["request_id"] == "test-1"
    assert error["rule"] == "EgressPolicy agents/default"
    assert "evil.example" in error["remedy"]
    assert "key" not in str(error)
    record = talk.record()
    assert (record["reason"], record["rule"]) == ("destination_not_allowed", "EgressPolicy agents/default")
    talk.no_dial()
    exchange(talk)


def test_nothing_said_allows_nothing(converse_on: Start):
    talk = converse_on([m.gateway(m.forward_listener(3128))])
    talk.client >> GET
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "no_policy")


def test_report_mode_lets_pass_and_counts(converse_on: Start):
    talk = converse_on(forward(allow=("b.example",), mode="Report"))
    exchange(talk)
    assert talk.record()["would_deny"] == ["destination_not_allowed"]
    assert talk.series("would_deny") == 1
    assert talk.series("denied") == 0


def test_a_deny_beats_a_route(converse_on: Start):
    talk = converse_on(
        [
            m.gateway(m.forward_listener(3128)),
            m.policy(destinations={"allow": [{"hostnames": ["a.example"]}], "deny": [{"hostnames": ["a.example"]}]}),
            m.backend("a", "a.example", 80),
            m.http_route("route", m.prefix_rule("/", "a"), hostnames=["a.example"]),
        ]
    )
    talk.client >> GET
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "destination_denied")
    talk.client >> b"CONNECT a.example:80 HTTP/1.1\r\nHost: a.example\r\n\r\n"
    assert talk.client.answer()[0] == 403


def test_a_new_deny_holds_for_the_next_request_of_an_old_connection(converse_on: Start):
    talk = converse_on(forward())
    exchange(talk)
    talk.reload(forward(allow=("b.example",)))
    talk.client >> GET
    assert talk.client.answer()[0] == 403


def test_an_exchange_keeps_what_it_started_with_through_a_reload(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.reload(forward(allow=("b.example",), traffic={"timeouts": {"connect": "3s"}}))
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.until(lambda: talk.origin.has_eof)
    assert talk.origin.has_eof, "its pool is retired"


def test_a_private_address_behind_an_allowed_name_is_not_dialled(converse_on: Start):
    talk = converse_on(forward())
    talk.names.zone["a.example"] = (ip_address("169.254.169.254"),)
    talk.client >> GET
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "resolved_denied")
    assert "169.254" not in str(error) + str(fields)
    talk.no_dial()


def test_trace_is_refused(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> GET.replace(b"GET", b"TRACE")
    status, _, fields, _ = talk.client.answer()
    assert status == 405
    assert fields["Allow"] == "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"


def test_a_tunnel_through_a_listener_that_is_no_forward_proxy_says_where_to_ask(converse_on: Start):
    talk = converse_on(reverse())
    talk.client >> connect("a.example:443")
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"]) == (405, "method_not_allowed")
    assert "CONNECT" not in fields["Allow"]
    assert "egressproxy.io/forward-proxy" in error["remedy"]


@pytest.mark.parametrize("via", [b"1.1 gw", b"1.1 other, 1.1 gw", b"1.0 gw (comment)"])
@pytest.mark.parametrize("method", [b"GET http://a.example/", b"CONNECT a.example:443"])
def test_a_request_that_was_here_before_is_a_loop(converse_on: Start, via: bytes, method: bytes):
    talk = converse_on(forward())
    talk.client >> method + b" HTTP/1.1\r\nHost: a.example\r\nVia: " + via + b"\r\n\r\n"
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"]) == (508, "loop_detected")
    assert "proxy_loop_detected" in fields["Proxy-Status"]


@pytest.mark.parametrize(
    ("said", "goes_on"),
    [
        (b"1.1 other (text, of (any) kind), HTTP/2 front.example:8080", b"HTTP/2 front.example:8080, "),
        (b"1.1 other (text)", b"1.1 other, "),
        (b"text without a protocol that nobody asked for", b""),
        (b", ".join(b"1.1 p%d" % number for number in range(12)), b"".join(b"1.1 p%d, " % n for n in range(2, 12))),
    ],
)
def test_of_via_the_names_of_proxies_alone_go_on(converse_on: Start, said: bytes, goes_on: bytes):
    talk = converse_on(forward())
    talk.client >> b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nVia: " + said + b"\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.origin << b"GET / HTTP/1.1\r\nHost: a.example\r\nVia: " + goes_on + b"1.1 gw\r\n\r\n"
    talk.origin >> OK
    talk.client << OK_PASSED


def test_max_forwards_counts_down_and_ends_here(converse_on: Start):
    talk = converse_on(forward())
    options = b"OPTIONS http://a.example HTTP/1.1\r\nHost: a.example\r\nMax-Forwards: %d\r\n\r\n"
    talk.client >> options % 0
    talk.client.take(rb"HTTP/1.1 200 OK\r\nAllow: [^\r]*\r\nContent-Length: 0\r\n\r\n")
    talk.no_dial()
    talk.client >> options % 5
    talk.dialled("a.example", 80)
    talk.origin << b"OPTIONS * HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\nMax-Forwards: 4\r\n\r\n"
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_forward_proxy_wants_an_absolute_url(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    assert talk.client.answer()[0] == 400
    exchange(talk)


def test_a_reverse_listener_without_a_route_is_a_404(converse_on: Start):
    talk = converse_on(reverse(m.prefix_rule("/api", "a")))
    talk.client >> b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n"
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (404, "no_route")


def test_an_answer_of_ours_to_an_upload_closes_and_says_so(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> b"POST http://b.example/ HTTP/1.1\r\nHost: b.example\r\nContent-Length: 10\r\n\r\nabc"
    status, _, fields, _ = talk.client.answer()
    assert (status, fields["Connection"]) == (403, "close")
    talk.until(lambda: talk.client.has_eof)
    talk.client.ends()


def test_a_redirect_to_an_upload_closes_and_says_so(converse_on: Start):
    """A filter's answer before the body is read ends the connection as an error does (RFC 9112 section 9.3)."""
    filters = [{"type": "RequestRedirect", "requestRedirect": {"hostname": "b.example", "statusCode": 302}}]
    rule = {"matches": [{"path": {"type": "PathPrefix", "value": "/"}}], "filters": filters}
    talk = converse_on(reverse(rule))
    talk.client >> b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"
    head = talk.client.take(rb"HTTP/1.1 302 (.*?)\r\n\r\n")
    assert b"Connection: close" in head[1]
    talk.client.ends()


def test_the_answer_to_head_has_no_body(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> GET.replace(b"GET", b"HEAD").replace(b"a.example", b"b.example")
    talk.client.take(rb"HTTP/1.1 403 .*?\r\n\r\n")
    talk.client.hears_nothing()
    exchange(talk)


# --- a deny means the place ----------------------------------------------------------------------------------------
DENY_B = {"destinations": {"deny": [{"hostnames": ["b.example"]}]}}
TO_B = m.prefix_rule("/", "b")
PUBLIC = "93.184.0.0/16"
B = m.backend("b", "b.example", 80)
PLAIN_GET = b"GET / HTTP/1.1\r\nHost: front.example\r\n\r\n"


def on(kind: str, name: str, section: str = "", **sections: Any) -> m.Manifest:
    """A policy for anything."""
    group = m.OURS if kind == "Backend" else m.GATEWAY_API
    ref = {"group": group, "kind": kind, "name": name, **({"sectionName": section} if section else {})}
    return m.manifest(f"{m.OURS}/v1alpha1", "EgressPolicy", "p", "agents", spec={"targetRefs": [ref], **sections})


@pytest.mark.parametrize(
    "place", [("Gateway", "gw"), ("Gateway", "gw", "http"), ("HTTPRoute", "route"), ("Backend", "b")]
)
@pytest.mark.parametrize("mode", [None, "Open"])
def test_a_deny_holds_for_the_backend_that_a_reverse_route_leads_to(
    converse_on: Start, place: tuple[str, ...], mode: str | None
):
    more = {"mode": mode} if mode else {}
    talk = converse_on(reverse(TO_B, objects=(B, on(*place, **DENY_B, **more))))
    talk.client >> PLAIN_GET
    status, phrase, _, error = talk.client.answer()
    assert (status, phrase) == (403, b"Denied: b.example is denied by policy agents/p")
    assert (error["reason"], error["rule"]) == ("destination_denied", "EgressPolicy agents/p")
    record = talk.record()
    assert (record["reason"], record["rule"]) == ("destination_denied", "EgressPolicy agents/p")
    assert record["detail"] == (
        'backend agents/b leads to b.example:80; denied by {hostnames: ["b.example"]} in destinations.deny'
    )
    assert talk.series("denied") == 1
    talk.no_dial()


def test_a_deny_of_another_port_leaves_the_backend(converse_on: Start):
    deny = {"destinations": {"deny": [{"hostnames": ["a.example"], "ports": [443]}]}}
    talk = converse_on(reverse(**deny))
    talk.client >> PLAIN_GET
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_deny_of_the_port_that_is_dialled_holds_for_a_plain_url(converse_on: Start):
    """`http://api.example` is served by a TLS backend: what is dialled is port 443."""
    talk = converse_on(
        [
            m.gateway(m.forward_listener(3128)),
            m.policy(destinations={"deny": [{"hostnames": ["api.example"], "ports": [443]}]}),
            m.backend("api", "api.example", 443, tls=True),
            m.http_route("route", m.prefix_rule("/", "api"), hostnames=["api.example"]),
        ]
    )
    talk.client >> b"GET http://api.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n"
    assert talk.client.answer()[3]["message"] == "api.example is denied on port 443 by policy agents/default"
    talk.no_dial()


def test_a_deny_holds_for_a_parent(converse_on: Start):
    deny = {"destinations": {"deny": [{"hostnames": ["parent.example"]}]}}
    b = m.backend("b", "b.example", 443, tls=True, parent={"name": "parent"})
    talk = converse_on(reverse(TO_B, objects=(b, m.backend("parent", "parent.example", 3128)), **deny))
    talk.client >> PLAIN_GET
    assert talk.client.answer()[3]["message"] == "parent.example is denied by policy agents/default"
    talk.no_dial()


@pytest.mark.parametrize(
    ("sections", "status"),
    [
        ({"destinations": {"deny": [{"hostnames": ["parent.example"]}]}}, 403),
        ({"destinations": {"deny": [{"hostnames": ["b.example"]}]}}, 403),
        ({"addresses": {"deny": [{"cidrs": [PUBLIC]}]}}, 403),
        ({"addresses": {"only": []}}, 403),
        ({"regions": {"allowed": ["eu"]}}, 403),
        ({"limits": {"requests": [{"per": "Backend", "limit": 1}]}}, 500),
        ({"extensions": [{"name": "x", "type": "egressproxy.io/HeaderPolicy:v1", "phase": "backend-request"}]}, 500),
    ],
)
@pytest.mark.parametrize("is_chain", [False, True])
def test_a_policy_of_a_parent_restricts_what_is_reached_through_it(
    converse_on: Start, sections: dict[str, Any], status: int, is_chain: bool
):
    """A filter or a limit cannot run there: what is behind the parent is closed."""
    last = m.backend("parent", "parent.example", 3128)
    near = m.backend("near", "near.example", 3128, parent={"name": "parent"})
    b = m.backend("b", "b.example", 443, tls=True, parent={"name": "near" if is_chain else "parent"})
    talk = converse_on(reverse(TO_B, objects=(b, near, last, on("Backend", "parent", **sections))))
    for name in ("near.example", "parent.example"):
        talk.names.zone[name] = (ip_address("93.184.216.34"),)
    talk.client >> PLAIN_GET
    assert talk.client.answer()[0] == status
    talk.no_dial()


@pytest.mark.parametrize(
    ("sections", "status"),
    [
        ({"destinations": {"deny": [{"hostnames": ["front.example"]}]}}, 403),
        ({"destinations": {"deny": [{"cidrs": ["10.0.0.0/8"]}]}}, 403),
        ({"addresses": {"deny": [{"cidrs": ["10.0.0.0/8"]}]}}, 403),
        ({"regions": {"allowed": ["eu"]}}, 403),
        ({"limits": {"maxBodyBytes": 1}}, 413),
    ],
)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_policy_of_a_service_holds_for_a_backend_that_stands_for_it(
    converse_on: Start, sections: dict[str, Any], status: int, is_wrapped: bool
):
    b = m.backend("b", "-", 80)
    del b["spec"]["destination"]["fqdn"]
    b["spec"]["destination"] |= {"type": "Service", "service": {"name": "pods"}}
    limited = m.policy(name="limited", targetRefs=[{"group": "", "kind": "Service", "name": "pods"}], **sections)
    rule = TO_B if is_wrapped else {"backendRefs": [{"name": "pods", "port": 80}]}
    talk = converse_on(reverse(rule, objects=(b, *pods("10.0.0.7"), limited)))
    talk.client >> b"POST / HTTP/1.1\r\nHost: front.example\r\nContent-Length: 2\r\n\r\nhi"
    assert talk.client.answer()[0] == status
    talk.no_dial()


def test_a_policy_of_a_parent_opens_and_sets_nothing_for_what_is_behind_it(converse_on: Start):
    parent = m.backend("parent", "parent.example", 3128)
    b = m.backend("b", "b.example", 80, parent={"name": "parent"})
    of_b = m.policy(name="of-b", targetRefs=[{"group": m.OURS, "kind": "Backend", "name": "b"}], **DENY_B)
    lax = on("Backend", "parent", mode="Report", addresses={"allow": [{"cidrs": ["127.0.0.0/8"]}]})
    talk = converse_on(reverse(TO_B, objects=(b, parent, of_b, lax)))
    assert refused(talk, PLAIN_GET)["reason"] == "destination_denied"


def test_of_several_backends_the_denied_ones_alone_are_closed(converse_on: Start):
    rule = {"backendRefs": [*m.prefix_rule("/", "a")["backendRefs"], *TO_B["backendRefs"]]}
    talk = converse_on(reverse(rule, objects=(B,), **DENY_B))
    talk.counts_octets = False
    statuses = []
    for _ in range(20):
        talk.client >> PLAIN_GET
        talk.settle()
        if talk.client.received:
            statuses.append(talk.client.answer()[0])
            continue
        if 200 not in statuses:
            talk.dialled("a.example", 80)
        talk.origin.take(rb"GET .*?\r\n\r\n")
        talk.origin >> OK
        talk.client << OK_PASSED
        statuses.append(200)
    assert 8 <= statuses.count(403) <= 12, "each keeps its share"


def test_report_mode_lets_a_denied_backend_pass_and_notes_it_once(converse_on: Start):
    deny = {"destinations": {"deny": [{"hostnames": ["a.example"]}]}}
    talk = converse_on(reverse(mode="Report", **deny))
    for number in range(2):
        talk.client >> PLAIN_GET
        if number == 0:
            talk.dialled("a.example", 80)
        talk.origin.take(rb"GET .*?\r\n\r\n")
        talk.origin >> OK
        talk.client << OK_PASSED
        assert talk.record()["would_deny"] == ["destination_denied"]
    assert (talk.series("would_deny"), talk.series("denied")) == (2, 0)


REPORTING = [("Gateway", "gw", "http"), ("HTTPRoute", "route"), ("Backend", "b")]


@pytest.mark.parametrize("reporting", REPORTING)
@pytest.mark.parametrize("entry", [{"hostnames": ["b.example"]}, {"hostnames": ["front.example"]}, {"cidrs": [PUBLIC]}])
def test_a_more_specific_report_mode_lifts_no_wider_deny(
    converse_on: Start, reporting: tuple[str, ...], entry: dict[str, Any]
):
    """Whether the deny means the host that was asked for, that of the backend, or where this leads."""
    objects = (B, on(*reporting, mode="Report"))
    talk = converse_on(reverse(TO_B, objects=objects, destinations={"deny": [entry]}))
    talk.names.zone["b.example"] = (ip_address("93.184.216.34"),)
    assert refused(talk, PLAIN_GET)["rule"] == "EgressPolicy agents/default"
    assert "would_deny" not in talk.record()


@pytest.mark.parametrize("reporting", REPORTING)
def test_report_mode_lifts_what_its_own_level_denies(converse_on: Start, reporting: tuple[str, ...]):
    objects = (B, on(*reporting, mode="Report", **DENY_B))
    talk = converse_on(reverse(TO_B, objects=objects, destinations={"deny": [{"hostnames": ["c.example"]}]}))
    talk.client >> PLAIN_GET
    talk.dialled("b.example", 80)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.record()["would_deny"] == ["destination_denied"]


@pytest.mark.parametrize("request_", [GET, b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n"])
@pytest.mark.parametrize("entry", [{"hostnames": ["a.example"]}, {"cidrs": [PUBLIC]}])
def test_a_listener_in_report_mode_lifts_nothing_that_its_gateway_denies(
    converse_on: Start, request_: bytes, entry: dict[str, Any]
):
    objects = [
        m.gateway(m.forward_listener(3128)),
        m.policy(destinations={"allow": [{"hostnames": ["*.example"]}], "deny": [entry]}),
        on("Gateway", "gw", "forward", mode="Report"),
    ]
    talk = converse_on(objects)
    talk.names.zone["a.example"] = (ip_address("93.184.216.34"),)
    assert refused(talk, request_)["rule"] == "EgressPolicy agents/default"


CONNECTS = [f"CONNECT a.example:{port} HTTP/1.1\r\nHost: a.example:{port}\r\n\r\n".encode() for port in (443, 80)]


@pytest.mark.parametrize("request_", [GET, *CONNECTS])
@pytest.mark.parametrize("mode", ["Report", "Open"])
@pytest.mark.parametrize("has_route", [False, True])
def test_a_listener_of_another_mode_opens_nothing_that_its_gateway_does_not_allow(
    converse_on: Start, mode: str, request_: bytes, has_route: bool
):
    """The route is one to wherever the request says, and names nothing."""
    objects = dynamic(allow=("ok.example",)) if has_route else forward(allow=("ok.example",))
    talk = converse_on([*objects, on("Gateway", "gw", "forward", mode=mode)])
    error = refused(talk, request_)
    assert (error["reason"], error["rule"]) == ("destination_not_allowed", "EgressPolicy agents/default")


@pytest.mark.parametrize("mode", ["Report", "Open"])
@pytest.mark.parametrize("gateway_says", [{"allow": None}, {"allow": ("ok.example",), "mode": "Report"}])
def test_a_listener_of_another_mode_opens_what_its_gateway_leaves_to_it(
    converse_on: Start, mode: str, gateway_says: dict[str, Any]
):
    section = on("Gateway", "gw", "forward", mode=mode, destinations={"allow": []})
    talk = converse_on([m.gateway(m.forward_listener(3128)), m.policy(**gateway_says), section])
    exchange(talk)
    assert ("would_deny" in talk.record()) is (mode == "Report")


def test_what_a_backend_denies_in_enforce_mode_holds_on_a_gateway_in_report_mode(converse_on: Start):
    deny = {"destinations": {"deny": [{"hostnames": ["a.example"]}]}, "mode": "Enforce"}
    talk = converse_on([*dynamic("a.example", mode="Report"), on("Backend", "any", **deny)])
    assert refused(talk, GET)["rule"] == "EgressPolicy agents/p"


def test_a_new_deny_holds_for_the_pooled_connection_of_a_backend(converse_on: Start):
    talk = converse_on(reverse())
    talk.client >> PLAIN_GET
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.reload(reverse(destinations={"deny": [{"hostnames": ["a.example"]}]}))
    talk.client >> PLAIN_GET
    assert talk.client.answer()[0] == 403


# --- a denied range ------------------------------------------------------------------------------------------------
RANGE = "203.0.113.0/24"
DENY_RANGE = {"deny": [{"cidrs": [RANGE]}]}
ANYWHERE = {"allow": [{"hostnames": ["*.example"]}, {"cidrs": ["0.0.0.0/0", "::/0"]}]}
#: Documentation addresses are special: opened, so that nothing but the deny closes them.
OPENED = {"allow": [{"cidrs": ["203.0.113.0/24", "64:ff9b::/96"]}]}


def closed_range(place: str, **more: Any) -> list[m.Manifest]:
    """A forward proxy that allows everything but a range, in the words of `place`."""
    destinations, addresses = dict(ANYWHERE), dict(OPENED)
    if place == "destinations.deny":
        destinations |= DENY_RANGE
    elif place == "addresses.deny":
        addresses |= DENY_RANGE
    else:
        addresses["only"] = [{"cidrs": ["93.184.0.0/16"]}]
    return [m.gateway(m.forward_listener(3128)), m.policy(destinations=destinations, addresses=addresses, **more)]


@pytest.mark.parametrize("place", ["destinations.deny", "addresses.deny", "addresses.only"])
@pytest.mark.parametrize("request_", [GET, b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n"])
@pytest.mark.parametrize("address", ["203.0.113.7", "64:ff9b::203.0.113.7"])
def test_a_name_that_leads_into_a_closed_range_is_denied(converse_on: Start, place: str, request_: bytes, address: str):
    talk = converse_on(closed_range(place))
    talk.names.zone["a.example"] = (ip_address(address),)
    error = refused(talk, request_)
    assert (error["reason"], error["rule"]) == ("resolved_denied", "EgressPolicy agents/default")
    assert "of that policy" in error["remedy"]
    assert "203.0.113" not in str(error)
    detail = talk.record()["detail"]
    assert f"in {place}" in detail
    assert RANGE in detail or place == "addresses.only"


@pytest.mark.parametrize("place", ["destinations.deny", "addresses.deny", "addresses.only"])
@pytest.mark.parametrize("host", ["203.0.113.7", "[64:ff9b::cb00:7107]"])
def test_a_literal_in_a_closed_range_is_denied(converse_on: Start, place: str, host: str):
    talk = converse_on(closed_range(place))
    reason = refused(talk, f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())["reason"]
    assert reason == ("destination_denied" if place == "destinations.deny" else "resolved_denied")


def test_of_several_addresses_those_that_no_deny_closes_are_dialled(converse_on: Start):
    talk = converse_on(closed_range("destinations.deny"))
    talk.names.zone["a.example"] = (ip_address("203.0.113.7"), ip_address("93.184.216.34"))
    exchange(talk)
    assert talk.record()["upstream"].startswith("93.184.216.34") or not talk.is_memory


def test_a_denied_range_of_one_port_leaves_the_others(converse_on: Start):
    deny = {**ANYWHERE, "deny": [{"cidrs": [RANGE], "ports": [443]}]}
    talk = converse_on([m.gateway(m.forward_listener(3128)), m.policy(destinations=deny, addresses=OPENED)])
    talk.names.zone["a.example"] = (ip_address("203.0.113.7"),)
    exchange(talk)
    refused(talk, b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n")


@pytest.mark.parametrize("mode", ["Report", "Open"])
@pytest.mark.parametrize("place", ["destinations.deny", "addresses.deny"])
def test_report_mode_lets_pass_what_destinations_deny_and_no_mode_what_addresses_deny(
    converse_on: Start, place: str, mode: str
):
    talk = converse_on(closed_range(place, mode=mode))
    talk.names.zone["a.example"] = (ip_address("203.0.113.7"),)
    if (mode, place) == ("Report", "destinations.deny"):
        exchange(talk)
        assert talk.record()["would_deny"] == ["resolved_denied"]
    else:
        refused(talk, GET)


@pytest.mark.parametrize("destination", ["Ip", "Service", "parent"])
def test_a_deny_holds_for_the_addresses_that_an_operator_wrote(converse_on: Start, destination: str):
    ip = m.ip_backend("b", 80, "10.0.0.7")
    deny = {"destinations": {"deny": [{"cidrs": ["10.0.0.0/8"]}]}}
    if destination == "Service":
        objects: tuple[m.Manifest, ...] = tuple(pods("10.0.0.7"))
        rule: m.Manifest = {"backendRefs": [{"name": "pods", "port": 80}]}
    elif destination == "Ip":
        objects, rule = (ip,), TO_B
    else:
        objects = (m.backend("c", "c.example", 443, tls=True, parent={"name": "b"}), ip)
        rule = m.prefix_rule("/", "c")
    talk = converse_on(reverse(rule, objects=objects, **deny))
    error = refused(talk, PLAIN_GET)
    assert (error["reason"], error["rule"]) == ("resolved_denied", "EgressPolicy agents/default")


def test_of_the_endpoints_of_a_service_those_that_no_deny_closes_are_dialled(converse: Start):
    rule = {"backendRefs": [{"name": "pods", "port": 80}]}
    deny = {"addresses": {"deny": [{"cidrs": ["10.0.0.7/32"]}]}}
    talk = converse(reverse(rule, objects=tuple(pods("10.0.0.7", "10.0.0.8")), **deny))
    for number in range(4):
        talk.client >> PLAIN_GET
        if number == 0:
            talk.dialled("10.0.0.8", 8080)
        talk.origin.take(rb"GET .*?\r\n\r\n")
        talk.origin >> OK
        talk.client << OK_PASSED


def test_only_leaves_what_an_operator_wrote(converse: Start):
    rule = {"backendRefs": [{"name": "pods", "port": 80}]}
    talk = converse(reverse(rule, objects=tuple(pods("10.0.0.7")), addresses={"only": []}))
    talk.client >> PLAIN_GET
    talk.dialled("10.0.0.7", 8080)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_range_that_is_closed_meanwhile_is_not_reached_over_an_old_connection(converse_on: Start):
    talk = converse_on(closed_range("destinations.deny", mode="Report"))
    talk.names.zone["a.example"] = (ip_address("203.0.113.7"),)
    exchange(talk)
    talk.reload(closed_range("destinations.deny"))
    refused(talk, GET)


# --- a route to a Dynamic backend permits what it names ----------------------------------------------------------
def dynamic(*hostnames: str, allow: tuple[str, ...] | None = ("ok.example",), **sections: Any) -> list[m.Manifest]:
    """A forward proxy with a route to wherever the request says, which adds a field to everything."""
    added = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"add": [{"name": "X-Team", "value": "red"}]}}
    return [
        m.gateway(m.forward_listener(3128)),
        m.policy(allow, **sections),
        m.dynamic(),
        m.http_route("all", m.prefix_rule("/", "any", filters=[added]), hostnames=hostnames),
    ]


def absolute(authority: str, scheme: str = "http") -> bytes:
    return f"GET {scheme}://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode()


def refused(talk: Conversation, request: bytes) -> dict[str, Any]:
    """The error of the one answer to this request, for which nothing is dialled."""
    talk.client >> request
    status, _, _, error = talk.client.answer()
    talk.no_dial()
    assert status == 403
    return error


def passes(talk: Conversation, authority: str) -> None:
    """One exchange with this host on a new connection, through the filter of the route."""
    host, _, port = authority.partition(":")
    talk.client >> absolute(authority)
    talk.dialled(host, int(port or 80))
    assert b"X-Team: red" in talk.origin.take(rb"GET .*?\r\n\r\n")[0]
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_filter_for_everything_opens_nothing(converse_on: Start, scheme: str):
    talk = converse_on(dynamic())
    error = refused(talk, absolute("other.example", scheme))
    assert (error["reason"], error["rule"]) == ("destination_not_allowed", "EgressPolicy agents/default")
    assert talk.record()["detail"].startswith("HTTPRoute agents/all leads to a Dynamic backend, and permits by itself")


def test_what_destinations_allow_is_served_by_the_route_with_its_filter(converse_on: Start):
    talk = converse_on(dynamic())
    passes(talk, "ok.example")
    assert talk.record()["route"] == "agents/all"


def test_without_any_policy_a_route_without_hostnames_permits_nothing(converse_on: Start):
    objects = dynamic()
    talk = converse_on([each for each in objects if each["kind"] != "EgressPolicy"])
    assert refused(talk, absolute("ok.example"))["reason"] == "no_policy"


@pytest.mark.parametrize(
    ("hostnames", "allow", "host", "is_permitted"),
    [
        (("a.example",), ("ok.example",), "a.example", True),
        (("a.example",), (), "a.example", True),
        (("a.example",), None, "a.example", True),
        (("*.a.example",), None, "b.a.example", True),
        (("*.a.example",), ("b.a.example",), "b.a.example", True),
        (("*.a.example",), ("b.a.example",), "c.a.example", False),
        (("*.a.example",), (), "b.a.example", False),
        (("*.a.example", "c.a.example"), ("b.a.example",), "c.a.example", True),
        (("a.example",), None, "a.example:443", True),
        (("a.example",), None, "a.example:8080", True),
        (("*.a.example",), None, "b.a.example:8080", True),
        (("*.a.example",), ("c.a.example",), "b.a.example:8080", False),
    ],
)
def test_a_route_permits_the_hosts_that_it_names(
    converse: Start, hostnames: tuple[str, ...], allow: tuple[str, ...] | None, host: str, is_permitted: bool
):
    talk = converse(dynamic(*hostnames, allow=allow))
    if is_permitted:
        passes(talk, host)
    else:
        refused(talk, absolute(host))


def test_a_port_of_the_dynamic_backend_is_the_one_that_is_permitted(converse: Start):
    objects = dynamic("a.example", allow=None)
    objects[1] = m.policy(destinations={"allow": [{"hostnames": ["a.example"], "ports": [8082]}]})
    next(each for each in objects if each["kind"] == "Backend")["spec"]["destination"]["ports"] = [{"number": 8080}]
    talk = converse(objects)
    passes(talk, "a.example:8080")
    passes(talk, "a.example:8082")
    refused(talk, absolute("a.example:8081"))
    assert "the hosts that it names, on port 8080;" in talk.record()["detail"]


def test_two_dynamic_backends_with_other_ports_permit_nothing_by_themselves(converse: Start):
    objects = dynamic("a.example", allow=())
    other = m.dynamic("other")
    for number, backend in enumerate((objects[2], other)):
        backend["spec"]["destination"]["ports"] = [{"number": 8080 + number}]
    objects[-1]["spec"]["rules"][0]["backendRefs"] += m.prefix_rule("/", "other")["backendRefs"]
    talk = converse([*objects, other])
    for _ in range(4):
        refused(talk, absolute("a.example:8080"))


def test_an_address_is_never_a_name_of_a_route(converse: Start):
    talk = converse(dynamic("*.example"))
    refused(talk, absolute("93.184.216.34"))


def test_one_dynamic_backend_of_several_asks_for_the_permission(converse: Start):
    objects = dynamic()
    objects[-1]["spec"]["rules"][0]["backendRefs"] += TO_B["backendRefs"]
    talk = converse([*objects, B])
    for _ in range(4):
        refused(talk, absolute("other.example"))


def test_a_route_of_its_own_for_the_host_goes_before_the_one_for_everything(converse: Start):
    objects = [*dynamic(), B, m.http_route("own", TO_B, hostnames=["b.example"])]
    talk = converse(objects)
    talk.client >> absolute("b.example")
    talk.dialled("b.example", 80)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("listener_mode", ["Enforce", "Report", "Open"])
@pytest.mark.parametrize("route_mode", [None, "Enforce", "Report", "Open"])
def test_of_the_modes_of_listener_and_route_the_stricter_one_decides(
    converse: Start, listener_mode: str, route_mode: str | None
):
    objects = dynamic(mode=listener_mode)
    if route_mode is not None:
        objects.append(on("HTTPRoute", "all", mode=route_mode))
    talk = converse(objects)
    modes = {listener_mode, route_mode or listener_mode}
    if "Enforce" in modes:
        refused(talk, absolute("other.example"))
    else:
        passes(talk, "other.example")
        assert ("would_deny" in talk.record()) is ("Report" in modes)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_tunnel_to_port_80_opens_no_more_than_a_request(converse_on: Start, is_named: bool):
    talk = converse_on(dynamic("other.example") if is_named else dynamic())
    talk.client >> b"CONNECT other.example:80 HTTP/1.1\r\nHost: other.example:80\r\n\r\n"
    if not is_named:
        assert talk.client.answer()[0] == 403
        talk.no_dial()
        return
    talk.client << b"HTTP/1.1 200 Connection established\r\n\r\n"
    talk.client >> b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n"
    talk.dialled("other.example", 80)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize(
    ("hostnames", "allow", "asked", "is_permitted"),
    [
        ((), (), b"ok.example", False),
        ((), ("ok.example",), b"ok.example", True),
        ((), ("ok.example",), b"other.example", False),
        (("ok.example",), (), b"ok.example", True),
    ],
)
def test_on_a_reverse_listener_the_host_opens_no_more_than_policy_allows(
    converse_on: Start, hostnames: tuple[str, ...], allow: tuple[str, ...] | None, asked: bytes, is_permitted: bool
):
    objects = dynamic(*hostnames, allow=allow)
    objects[0] = m.gateway(m.http_listener(8080))
    talk = converse_on(objects)
    request = b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % asked
    if not is_permitted:
        refused(talk, request)
        return
    talk.client >> request
    talk.dialled("ok.example", 80)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_the_hostname_of_a_listener_is_none_of_the_route(converse: Start):
    objects = dynamic(allow=())
    objects[0] = m.gateway(m.http_listener(8080, hostname="ok.example"))
    talk = converse(objects)
    refused(talk, b"GET / HTTP/1.1\r\nHost: ok.example\r\n\r\n")


# --- the parts by themselves ---------------------------------------------------------------------------------------
def test_enforce_raises_but_in_report_mode():
    denied = Denied(Reason.NO_POLICY, "no")
    x = Exchange("-", "-", "-", 0.0)
    enforce(x, Mode.ENFORCE, None)
    with pytest.raises(Denied):
        enforce(x, Mode.ENFORCE, denied)
    enforce(x, Mode.REPORT, denied)
    enforce(x, Mode.REPORT, denied)
    enforce(x, Mode.REPORT, Denied(Reason.DESTINATION_DENIED, "no"))
    assert x.would_deny == [Reason.NO_POLICY, Reason.DESTINATION_DENIED], "each reason once for one exchange"


@pytest.mark.parametrize("raw", [b"", b"a b", b"a:0", b"0x7f.1", b"[::1", b"a@b", b"a/b"])
def test_a_bad_authority_is_a_bad_request(raw: bytes):
    with pytest.raises(BadRequest) as caught:
        read_authority(raw, 80)
    assert caught.value.reason is Reason.BAD_HOST


@pytest.mark.parametrize("decide", [route_tunnel, admit_http])
def test_a_decision_takes_values_and_returns_what_is_to_be_noted(converse: Start, decide: Any):
    reporting = converse(forward(mode="Report"))
    listener = reporting.ports[0].state.port.first
    made = decide(listener, Authority("b.example", 80))
    assert (made[1] if decide is route_tunnel else made) == (Reason.DESTINATION_NOT_ALLOWED,)
    made = decide(listener, Authority("a.example", 80))
    assert (made[1] if decide is route_tunnel else made) == ()
    assert reporting.records == []
    with pytest.raises(Denied):
        decide(converse(forward()).ports[0].state.port.first, Authority("b.example", 80))


def test_who_asks_for_a_path_that_no_rule_has_is_not_told_to_open_the_host(converse: Start):
    objects = [
        m.gateway(m.forward_listener(3128)),
        m.policy(("other.example",)),
        m.backend("a", "a.example", 80),
        m.http_route("a", m.prefix_rule("/v1", "a"), hostnames=["a.example"]),
    ]
    talk = converse(objects)
    for url, is_advised in (("http://a.example/v2", True), ("http://c.example/v2", False)):
        talk.client >> f"GET {url} HTTP/1.1\r\nHost: {url.split('/')[2]}\r\n\r\n".encode()
        status, _, _, error = talk.client.answer()
        assert (status, error["reason"]) == (403, "destination_not_allowed")
        assert ("add a rule for this request (path, method, headers" in error["remedy"]) is is_advised
        assert ("hostnames: [" in error["remedy"]) is not is_advised
        talk.client >> f"GET http://egress.internal/check?url={url} HTTP/1.1\r\nHost: egress.internal\r\n\r\n".encode()
        assert json.dumps(error["remedy"]).encode() in talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n(\{.*\})\n")[1]


def test_a_request_of_http_1_0_without_host_is_for_the_server_itself(converse_on: Start):
    """As the health checks of load balancers ask (RFC 9112 section 3.3)."""
    talk = converse_on(reverse())
    talk.client >> b"GET / HTTP/1.0\r\n\r\n"
    talk.dialled("a.example", 80)
    assert b"\r\nHost: a.example\r\n" in talk.origin.take(rb"GET / .*?\r\n\r\n")[0]
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 OK\r\n.*hi")
    assert talk.record()["authority"] == "127.0.0.1:80"


@pytest.mark.parametrize("objects", [forward(), reverse()])
def test_an_empty_host_says_nothing(converse_on: Start, objects: list[m.Manifest]):
    talk = converse_on(objects)
    talk.client >> b"GET / HTTP/1.1\r\nHost:\r\n\r\n"
    assert talk.client.answer()[0] == 400


def test_a_forward_proxy_has_no_server_of_its_own(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> b"GET / HTTP/1.0\r\n\r\n"
    assert talk.client.answer()[0] == 400
