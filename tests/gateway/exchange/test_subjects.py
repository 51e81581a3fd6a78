"""Policies with subjects decide about traffic of their clients: in every protocol, and on every way in."""

from __future__ import annotations

import time
from typing import Any

import pytest

from egressproxy.model.forwarded_identity import ForwardedIdentity, sign
from egressproxy.model.secret import SecretBytes
from egressproxy.protocols.tls.client_hello import UNRECOGNIZED_NAME
from egressproxy.upstream.pool import Pool
from tests.e2e.world import terminate, tls_secret
from tests.gateway.backends.test_parent_identity import KEY
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import client_hello
from tests.gateway.exchange.test_interception import CA_KEY, CA_PEM, Trusting
from tests.gateway.h2 import Http2Peer, speak_http2
from tests.gateway.kit import ESTABLISHED, OK, OK_PASSED, SHARED, TlsClient, certificate, connect
from tests.gateway.listeners.test_bound_port import demanding
from tests.gateway.listeners.test_client_identity import PKI, ROBOT, Workload
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.http2 import Http2Origin
from tests.support.tokens import TokenIssuer

TEAM = [{"namespace": "team"}]
ROBOTS = [{"namespace": "team", "serviceAccount": "robot"}]
SECRET = m.secret("key", {"key": KEY})
TRUSTED = {"gateways": {"keyRefs": [{"name": "key"}]}, "certificate": {"trustDomains": ["cluster.local"]}}


def told(who: str, method: str, authority: str) -> bytes:
    """What a gateway before this one has signed of its client: NAMESPACE/ACCOUNT, or nothing."""
    if not who:
        return b""
    said = ForwardedIdentity("edge/gw", "192.0.2.7", *who.split("/"))
    return b"Via: 1.1 edge\r\nX-Egress-Identity: %b\r\n" % sign(
        SecretBytes(KEY.encode()), said, method.encode(), authority, time.time()
    )


def get(who: str, host: str = "a.example") -> bytes:
    fields = told(who, "GET", f"{host}:80")
    return f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n".encode() + fields + b"\r\n"


def tunnel(who: str, authority: str) -> bytes:
    return connect(authority)[:-2] + told(who, "CONNECT", authority) + b"\r\n"


def forward(*policies: m.Manifest, allow: tuple[str, ...] = (), **more: Any) -> list[m.Manifest]:
    return [m.gateway(m.forward_listener(3128)), m.policy(allow, identity=TRUSTED, **more), SECRET, *policies]


def of_subjects(subjects: list[Any] = TEAM, allow: tuple[str, ...] | None = ("a.example",), **more: Any) -> m.Manifest:
    return m.policy(allow, name=more.pop("name", "team"), subjects=subjects, **more)


def serve(talk: Conversation, request: bytes, host: str = "a.example", *, is_new: bool = True) -> None:
    talk.client >> request
    if is_new:
        talk.dialled(host, 80)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


def refuse(talk: Conversation, request: bytes, reason: str = "destination_not_allowed") -> None:
    talk.client >> request
    status, *_ = talk.client.answer()
    talk.no_dial()
    assert (status, talk.record()["reason"]) == (403, reason)


# --- HTTP/1 ----------------------------------------------------------------------------------------------------------
def test_what_a_policy_allows_it_allows_to_its_subjects_alone(converse: Start):
    talk = converse(forward(of_subjects()))
    talk.counts_octets = False
    refuse(talk, get(""))
    serve(talk, get("team/robot"))
    refuse(talk, get("other/robot"))
    serve(talk, get("team/other"), is_new=False)
    refuse(talk, get(""))


def test_what_it_denies_it_denies_to_them_alone(converse: Start):
    deny = {"deny": [{"hostnames": ["a.example"]}]}
    talk = converse(forward(of_subjects(ROBOTS, None, destinations=deny), allow=("a.example",), traffic=SHARED))
    talk.counts_octets = False
    serve(talk, get(""))
    refuse(talk, get("team/robot"), "destination_denied")
    serve(talk, get("team/other"), is_new=False)


def test_who_nobody_has_verified_is_no_subject(converse: Start):
    talk = converse(forward(of_subjects()))
    talk.counts_octets = False
    forged = get("team/robot").replace(b"X-Egress-Identity: ", b"X-Egress-Identity: x")
    refuse(talk, forged)
    refuse(talk, get("")[:-2] + b"X-Forwarded-Client-Cert: URI=" + ROBOT.encode() + b"\r\n\r\n")


def test_who_the_client_is_is_asked_of_each_request(converse: Start):
    """A gateway sends requests of several clients in one connection."""
    one = of_subjects(allow=("a.example",))
    other = of_subjects([{"namespace": "other"}], ("b.example",), name="other")
    talk = converse(forward(one, other))
    talk.counts_octets = False
    serve(talk, get("team/robot"))
    refuse(talk, get("other/robot"))
    serve(talk, get("other/robot", "b.example"), "b.example")
    refuse(talk, get("team/robot", "b.example"))


def test_a_route_of_a_reverse_proxy_is_another_for_its_subjects(converse: Start):
    target = {"group": m.GATEWAY_API, "kind": "HTTPRoute", "name": "route"}
    limit = {"maxBodyBytes": 1}
    narrow = of_subjects(TEAM, None, limits=limit, targetRefs=[target])
    objects = [
        m.gateway(m.http_listener(8080)), m.policy(identity=TRUSTED), m.backend("a", "a.example", 80),
        m.http_route("route", m.prefix_rule("/", "a")), SECRET, narrow,
    ]  # fmt: skip
    talk = converse(objects)
    talk.counts_octets = False
    post = b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\n"
    talk.client >> post + b"\r\nhi"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*?\r\n\r\nhi")
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.client >> post + told("team/robot", "POST", "a.example:80") + b"\r\nhi"
    assert talk.client.answer()[0] == 413


def test_a_limit_counts_for_its_subjects(converse: Start):
    limits = {"requests": [{"per": "Identity", "limit": 1, "window": "1h"}]}
    talk = converse(forward(of_subjects(TEAM, None, limits=limits), allow=("a.example",), traffic=SHARED))
    talk.counts_octets = False
    serve(talk, get("team/robot"))
    for _ in range(3):
        serve(talk, get(""), is_new=False)
    talk.client >> get("team/robot")
    assert talk.client.answer()[0] == 429
    serve(talk, get("team/other"), is_new=False)


def test_a_limit_for_everybody_is_one_for_all_variants(converse: Start):
    limits = {"requests": [{"per": "Gateway", "limit": 2, "window": "1h"}]}
    objects = forward(of_subjects(), allow=("a.example",), traffic=SHARED)
    objects[1]["spec"]["limits"] = limits
    talk = converse(objects)
    talk.counts_octets = False
    serve(talk, get(""))
    serve(talk, get("team/robot"), is_new=False)
    talk.client >> get("")
    assert talk.client.answer()[0] == 429


def test_no_connection_to_a_backend_passes_from_one_tenant_to_another(converse: Start):
    """A tenant is a namespace, and all whom nobody knows are one."""
    talk = converse(forward(of_subjects(), allow=("a.example",)))
    talk.counts_octets = False
    for who in ("", "team/robot", "third/robot"):
        serve(talk, get(who))
    serve(talk, get("third/other"), is_new=False)
    assert talk.open == 3


@pytest.mark.parametrize("place", ["gateway", "subjects"])
def test_they_do_where_a_policy_says_so(converse: Start, place: str):
    """Where it says so for some clients alone, these do among each other."""
    everybody, some = (SHARED, None) if place == "gateway" else (None, SHARED)
    subjects = [{"namespace": "team"}, {"namespace": "third"}]
    talk = converse(forward(of_subjects(subjects, traffic=some), allow=("a.example",), traffic=everybody))
    talk.counts_octets = False
    serve(talk, get(""))
    serve(talk, get("team/robot"), is_new=place == "subjects")
    serve(talk, get("third/robot"), is_new=False)


def test_where_nobody_is_known_there_are_no_tenants(converse: Start):
    """And no request waits for what only tenants need."""
    objects = forward(allow=("a.example",))
    del objects[1]["spec"]["identity"]
    talk = converse(objects)
    serve(talk, get(""))
    assert type(next(iter(talk.snapshot.clusters.values())).targets._new_pool("")) is Pool


@pytest.mark.parametrize("shares", [False, True])
def test_connections_of_http_2_are_of_one_tenant_too(converse: Start, shares: bool):
    routed = (m.backend("a", "a.example", 80, protocol="H2C"), m.http_route("r", m.prefix_rule("/", "a")))
    objects = [m.gateway(m.http_listener(8080)), m.policy(identity=TRUSTED, traffic=SHARED if shares else None)]
    talk = converse([*objects, *routed, SECRET])
    talk.counts_octets = False
    origins, count = [], 0
    for who, is_new in (("team/robot", True), ("third/robot", not shares), ("team/other", False)):
        request = b"GET / HTTP/1.1\r\nHost: a.example\r\n" + told(who, "GET", "a.example:80") + b"\r\n"
        talk.client >> request
        if is_new:
            origins.append(Http2Origin(talk, talk.dialled("a.example", 80)))
        origin = origins[0] if who != "third/robot" else origins[-1]
        count = len(origin.server.calls) + 1
        origin.waits_for(count)
        origin.responds(max(origin.server.calls))
        talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")
    assert talk.open == len(origins) == (1 if shares else 2)


def test_a_tenant_finds_room_where_idle_connections_of_others_are(converse: Start):
    """Also at the limit of a circuit breaker."""
    limits = {"circuitBreaker": {"maxConnections": 1}}
    routed = (m.backend("a", "a.example", 80), m.http_route("r", m.prefix_rule("/", "a")))
    talk = converse(forward(*routed, traffic=limits))
    talk.counts_octets = False
    serve(talk, get("team/robot"))
    serve(talk, get("third/robot"))
    assert talk.open == 1


def test_variants_share_rules_that_are_not_otherwise_for_them(converse: Start):
    """Their retry budgets, sessions and weights, too."""
    routed = (m.backend("a", "a.example", 80), m.http_route("r", m.prefix_rule("/", "a"), hostnames=["a.example"]))
    other = m.http_route("other", m.prefix_rule("/", "a"), hostnames=["b.example"])
    target = {"group": m.GATEWAY_API, "kind": "HTTPRoute", "name": "other"}
    talk = converse(forward(*routed, other, of_subjects(allow=None, mode="Report", targetRefs=[target])))
    listener = talk.ports[0].state.port.first
    (variant,) = listener.variants or ()
    rules = {payload.name: payload for _, payload in listener.http.every()}
    shared = {payload.name: payload is rules[payload.name] for _, payload in variant.http.every()}
    assert (shared["agents/r"], shared["agents/other"]) == (True, False)


@pytest.mark.parametrize(
    ("status", "step"), [(b"401 Unauthorized", b"NTLM TlRMTVNTUAACAAAA"), (b"200 OK", b"Negotiate oYGg")]
)
def test_a_connection_on_which_somebody_logs_in_is_for_nobody_else(converse: Start, status: bytes, step: bytes):
    """NTLM is about the connection: the next client on it would be the user of the one before (RFC 4559 section 6)."""
    talk = converse(forward(of_subjects()))
    talk.counts_octets = False
    talk.client >> get("team/robot")
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 %b\r\nWWW-Authenticate: %b\r\nContent-Length: 0\r\n\r\n" % (status, step)
    assert b"\r\nWWW-Authenticate: " + step in talk.client.take(rb"HTTP/1.1 %b\r\n.*?\r\n\r\n" % status)[0]
    serve(talk, get("team/other"))


# --- tunnels ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("who", ["", "other/robot"])
def test_a_tunnel_is_for_its_subjects(converse: Start, who: str):
    talk = converse(forward(of_subjects()))
    talk.counts_octets = False
    refuse(talk, tunnel(who, "a.example:443"))
    talk.client = talk.connect()
    talk.client >> tunnel("team/robot", "a.example:443")
    talk.dialled("a.example", 443)
    talk.client << ESTABLISHED
    talk.client.resets()
    assert talk.record()["namespace"] == "team"


def test_the_name_in_a_tunnel_is_checked_as_its_policy_says(converse: Start):
    """`sni: Any` is written for the team; for everybody else the name has to be that of the tunnel."""
    any_name = {"allow": [{"hostnames": ["a.example"], "sni": "Any"}]}
    talk = converse(forward(of_subjects(allow=None, destinations=any_name), allow=("b.example",)))
    talk.counts_octets = False
    talk.client >> tunnel("team/robot", "a.example:443")
    talk.dialled("a.example", 443)
    talk.client << ESTABLISHED
    hello = client_hello("other.example")
    talk.client >> hello
    talk.origin << hello
    talk.client.resets()
    talk.client = talk.connect()
    talk.client >> tunnel("team/robot", "b.example:443")
    talk.dialled("b.example", 443)
    talk.client << ESTABLISHED
    talk.client >> hello
    talk.client << UNRECOGNIZED_NAME
    talk.client.is_closed()
    assert talk.record()["reason"] == "sni_mismatch"


def test_a_tunnel_to_port_80_and_what_is_asked_in_it(converse: Start):
    talk = converse(forward(of_subjects(), of_subjects(ROBOTS, ("b.example",), name="robots")))
    talk.counts_octets = False
    refuse(talk, tunnel("", "a.example:80"))
    talk.client = talk.connect()
    talk.client >> tunnel("team/robot", "a.example:80")
    talk.client << ESTABLISHED
    serve(talk, b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
    assert talk.record()["service_account"] == "robot"
    talk.client = talk.connect()
    refuse(talk, tunnel("team/other", "b.example:80"))


def test_a_tunnel_to_port_80_that_carries_tls(converse: Start):
    talk = converse(
        forward(of_subjects(allow=None, destinations={"deny": [{"hostnames": ["a.example"]}]}), allow=("a.example",))
    )
    talk.counts_octets = False
    refuse(talk, tunnel("team/robot", "a.example:80"), "destination_denied")
    talk.client = talk.connect()
    talk.client >> tunnel("", "a.example:80")
    talk.client << ESTABLISHED
    hello = client_hello("a.example")
    talk.client >> hello
    talk.dialled("a.example", 80)
    talk.origin << hello
    talk.client.resets()


def test_a_reload_takes_what_is_allowed_from_an_open_tunnel_to_port_80(converse: Start):
    """Its requests are decided one by one, by the identity that opened it."""
    talk = converse(forward(of_subjects()))
    talk.counts_octets = False
    talk.client >> tunnel("team/robot", "a.example:80")
    talk.client << ESTABLISHED
    talk.reload(forward(of_subjects([{"namespace": "other"}])))
    talk.client >> b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    assert talk.client.answer()[0] == 403
    talk.no_dial()


# --- HTTP/2 ----------------------------------------------------------------------------------------------------------
def field(who: str, method: str, authority: str) -> list[tuple[bytes, bytes]]:
    lines = told(who, method, authority).split(b"\r\n")[:-1]
    return [(name.lower(), value) for name, _, value in (line.partition(b": ") for line in lines)]


def test_in_http2_each_stream_has_its_own(converse: Start):
    talk = converse(forward(of_subjects()))
    peer = speak_http2(talk)
    head = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a.example"), (b":path", b"/")]
    theirs = peer.asks([*head, *field("team/robot", "GET", "a.example:80")])
    others = peer.asks([*head, *field("other/robot", "GET", "a.example:80")])
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> OK
    assert peer.answer(theirs).status == 200
    assert peer.answer(others).status == 403


def test_and_each_tunnel(converse: Start):
    talk = converse(forward(of_subjects()))
    peer = speak_http2(talk)
    others = peer.connects(b"a.example:443", *field("other/robot", "CONNECT", "a.example:443"))
    assert peer.answer(others).status == 403
    theirs = peer.connects(b"a.example:443", *field("team/robot", "CONNECT", "a.example:443"))
    talk.dialled("a.example", 443)
    peer.says(theirs, client_hello("a.example"))
    talk.origin.take(rb"\x16\x03")
    peer.resets(theirs)


# --- tokens, and tunnels that are opened -----------------------------------------------------------------------------
def test_groups_and_claims_of_a_token(converse: Start):
    cluster = TokenIssuer()
    policies = [
        m.policy((), identity={"token": {"issuers": [cluster.written]}, "required": False}), cluster.config_map,
        of_subjects([{"group": "dev"}]),
        of_subjects([{"claim": {"name": "tier", "value": "gold"}, "namespace": "team"}], ("b.example",), name="gold"),
    ]  # fmt: skip
    talk = converse([m.gateway(m.forward_listener(3128)), *policies])
    talk.counts_octets = False

    def shown(request: bytes, **claims: Any) -> bytes:
        token = cluster.token(**claims)
        return request[:-2] + b"Proxy-Authorization: Bearer " + token.encode() + b"\r\n\r\n"

    refuse(talk, shown(get("")))
    refuse(talk, get(""))
    serve(talk, shown(get(""), groups=["more", "dev"]))
    refuse(talk, shown(get("", "b.example"), groups=["dev"]))
    refuse(talk, shown(get("", "b.example"), tier="tin"))
    serve(talk, shown(get("", "b.example"), tier=["iron", "gold"]), "b.example")
    serve(talk, shown(get("", "b.example"), groups=["dev"], tier="gold"), is_new=False)


def test_tunnels_are_opened_for_the_subjects_of_a_policy_alone(converse: Start):
    section = {"hostnames": ["*.example"], "caCertificateRef": {"name": "ca"}}
    theirs = of_subjects(allow=None, intercept=section)
    routed = (m.backend("a", "a.example", 443), m.http_route("r", m.prefix_rule("/", "a"), hostnames=["a.example"]))
    secret = tls_secret("ca", CA_PEM, CA_KEY.reveal())
    talk = converse(forward(theirs, *routed, secret, allow=("a.example",)))
    talk.counts_octets = False
    talk.client >> tunnel("", "a.example:443")
    talk.dialled("a.example", 443)
    talk.client << ESTABLISHED
    hello = client_hello("a.example")
    talk.client >> hello
    talk.origin << hello
    talk.client.resets()
    (variant,) = talk.ports[0].state.port.first.variants or ()
    assert variant.certificate_caches is not None
    leaves = variant.certificate_caches.match("a.example")
    assert leaves is not None
    talk.run(leaves.context("a.example"))  # minted already, so that nothing waits for a thread
    talk.client = talk.connect()
    talk.client >> tunnel("team/robot", "a.example:443")
    talk.client << ESTABLISHED
    tls = TlsClient(talk.client, Trusting(), "a.example").shakes_hands()
    tls >> b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.dialled("a.example", 443)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> OK
    assert tls.reads().startswith(b"HTTP/1.1 200 ")
    assert talk.record()["namespace"] == "team"


# --- streams ---------------------------------------------------------------------------------------------------------
def streams(mode: str) -> list[m.Manifest]:
    tls = {"mode": "Passthrough"} if mode == "Passthrough" else terminate("front")
    listener = {"name": "tls", "port": 8443, "protocol": "TLS", "tls": tls}
    target = {"group": m.GATEWAY_API, "kind": "TLSRoute", "name": "t"}
    deny = {"deny": [{"hostnames": ["a.example"]}]}
    made = [
        m.gateway(listener), m.policy(identity=TRUSTED), certificate(PKI, "a.example"), SECRET,
        m.backend("a", "a.example", 443, protocol="TCP"), m.tls_route("t", "a", hostnames=["a.example"]),
        of_subjects(TEAM, None, destinations=deny, targetRefs=[target]),
    ]  # fmt: skip
    return made if mode == "Passthrough" else demanding(made, PKI)


def test_a_stream_whose_tls_ends_here_is_that_of_the_clients_certificate(converse: Start):
    talk = converse(streams("Terminate"))
    talk.counts_octets = False
    other = TlsClient(talk.client, PKI, "a.example", Workload(ROBOT.replace("team", "other"))).shakes_hands()
    talk.dialled("a.example", 443)
    other >> b"inside"
    talk.origin << b"inside"
    talk.client.resets()
    assert (talk.record()["namespace"], talk.record()["reason"]) == ("other", "-")
    talk.client = talk.connect()
    TlsClient(talk.client, PKI, "a.example", Workload(ROBOT)).shakes_hands()
    assert talk.until(lambda: talk.client.is_gone)
    talk.no_dial()
    assert (talk.record()["namespace"], talk.record()["reason"]) == ("team", "destination_denied")


def test_a_stream_that_passes_through_is_nobodys(converse: Start):
    talk = converse(streams("Passthrough"))
    talk.counts_octets = False
    hello = client_hello("a.example")
    talk.client >> hello
    talk.dialled("a.example", 443)
    talk.origin << hello
    talk.client.resets()
    assert talk.record()["namespace"] == "-"


def test_requests_inside_of_tls_are_those_of_the_clients_certificate(converse: Start):
    listener = m.forward_listener(3128, tls=terminate("front"))
    policies = (m.policy((), identity=TRUSTED), of_subjects())
    objects = demanding([m.gateway(listener), *policies, SECRET, certificate(PKI, "a.example")], PKI)
    talk = converse(objects)
    talk.counts_octets = False
    tls = TlsClient(talk.client, PKI, "a.example", Workload(ROBOT), alpn=("h2",)).shakes_hands()
    peer = Http2Peer(tls)
    head = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a.example"), (b":path", b"/")]
    stream = peer.asks(head)
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> OK
    assert peer.answer(stream).status == 200
    talk.client = talk.connect()
    tls = TlsClient(talk.client, PKI, "a.example", Workload(ROBOT.replace("team", "other"))).shakes_hands()
    tls >> get("")
    assert tls.reads().startswith(b"HTTP/1.1 403 ")


# --- policies of another namespace -----------------------------------------------------------------------------------
def of_tenant(namespace: str, *allow: str, **sections: Any) -> list[m.Manifest]:
    """The policy of a team on the Gateway of another namespace, with its grant."""
    theirs = m.policy(allow, name="own", namespace=namespace, **sections)
    theirs["spec"]["targetRefs"][0]["namespace"] = "agents"
    source = {"group": m.OURS, "kind": "EgressPolicy", "namespace": namespace}
    spec = {"from": [source], "to": [{"group": m.GATEWAY_API, "kind": "Gateway", "name": "gw"}]}
    return [theirs, m.manifest(f"{m.GATEWAY_API}/v1", "ReferenceGrant", f"of-{namespace}", "agents", spec=spec)]


def test_two_teams_own_their_policies_for_one_gateway(converse: Start):
    owned = m.policy(None, identity=TRUSTED, destinations={"deny": [{"hostnames": ["bad.example"]}]}, traffic=SHARED)
    objects = [m.gateway(m.forward_listener(3128)), owned, SECRET]
    talk = converse([*objects, *of_tenant("team", "a.example", "bad.example"), *of_tenant("crew", "b.example")])
    talk.counts_octets = False
    serve(talk, get("team/robot"))
    refuse(talk, get("crew/robot"))
    assert talk.record()["rule"] == "EgressPolicy crew/own"
    refuse(talk, get(""))
    assert "rule" not in talk.record()
    refuse(talk, get("team/robot", "bad.example"), "destination_denied")
    refuse(talk, get("team/robot", "b.example"))
    serve(talk, get("crew/robot", "b.example"), "b.example")


def test_where_no_list_is_for_a_client_it_reads_so_and_the_log_says_whose_there_is(converse: Start):
    owned = m.policy(None, identity=TRUSTED)
    talk = converse([m.gateway(m.forward_listener(3128)), owned, SECRET, *of_tenant("team", "a.example")])
    talk.client >> get("crew/robot")
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "destination_not_allowed")
    assert error["message"] == "a.example is not allowed: no policy with destinations.allow is for this client"
    assert "in destinations.allow of policy team/own is for its subjects alone" in talk.record()["detail"]


def test_a_route_of_the_owner_to_wherever_serves_nothing_that_a_team_alone_allows(converse: Start):
    owned = m.policy(None, identity=TRUSTED, traffic=SHARED)
    anywhere = m.http_route("all", m.prefix_rule("/", "any"))
    talk = converse(
        [m.gateway(m.forward_listener(3128)), owned, SECRET, m.dynamic(), anywhere, *of_tenant("team", "a.example")]
    )
    talk.counts_octets = False
    refuse(talk, get("team/robot"))
    assert "only policies of another namespace have destinations.allow" in talk.record()["detail"]
