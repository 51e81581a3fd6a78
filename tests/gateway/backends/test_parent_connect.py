"""Parents: what is said to an upstream gateway, for whom, and what it is shown to be let in."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.filters.base import Filter
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.parent_connect import proxy_authorization
from egressproxy.gateway.backends.upstream_call import proxy_credentials_fault
from egressproxy.ir.backend import BackendIR, Destination, ParentCredentials
from egressproxy.model.exchange import Exchange
from egressproxy.model.secret import SecretBytes
from tests.gateway.conftest import Start
from tests.gateway.kit import ESTABLISHED, GET, OK, OK_PASSED, connect, forward
from tests.support import manifests as m
from tests.support.builds import of_sources
from tests.support.conversation import Conversation, scripted_filter

_BEHIND = BackendIR("b", Destination.DYNAMIC)
CORP = {"name": "corp"}
LOGIN = {**CORP, "credentialsRef": {"name": "login"}, "allowPlaintext": True}
PASSWORD = "pass:word"
SHOWN = b"Proxy-Authorization: Basic " + base64.b64encode(b"robot:" + PASSWORD.encode()) + b"\r\n"
WANTED = (
    b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=corp\r\nContent-Length: 0\r\n\r\n"
)


def corp(**more: Any) -> list[m.Manifest]:
    """A corporate proxy, and the Secret with what it wants to be shown."""
    login = m.secret("login", {"username": "robot", "password": PASSWORD}, kind="kubernetes.io/basic-auth")
    return [m.backend("corp", "corp.example", 3128, **more), login]


def by_policy(parent: dict[str, Any], **more: Any) -> list[m.Manifest]:
    """No route: what the policy allows goes through the parent that it names."""
    return forward(*corp(), parent=parent, **more)


def by_backend(parent: dict[str, Any], **more: Any) -> list[m.Manifest]:
    """Routes to a Dynamic Backend that names the parent."""
    routes = (m.http_route("r", m.prefix_rule("/", "any")), m.tls_route("t", "any", hostnames=[]))
    return forward(*corp(), m.dynamic(parent=parent), *routes, **more)


WAYS = pytest.mark.parametrize("way", [by_policy, by_backend])
CREDENTIALS = pytest.mark.parametrize(("parent", "shown"), [(CORP, b""), (LOGIN, SHOWN)], ids=["open", "password"])


# --- every form of a request goes there -----------------------------------------------------------------------------
@WAYS
@CREDENTIALS
def test_a_tunnel(converse_on: Start, way: Any, parent: dict[str, Any], shown: bytes):
    talk = converse_on(way(parent))
    talk.client >> connect("a.example:22")
    talk.dialled("corp.example", 3128)
    talk.origin << b"CONNECT a.example:22 HTTP/1.1\r\nHost: a.example:22\r\nVia: 1.1 gw\r\n" + shown + b"\r\n"
    talk.origin >> b"HTTP/1.1 200 OK\r\n\r\n"
    talk.client << ESTABLISHED


@WAYS
@CREDENTIALS
def test_a_plain_request(converse_on: Start, way: Any, parent: dict[str, Any], shown: bytes):
    talk = converse_on(way(parent))
    for is_new in (True, False):
        talk.client >> GET
        if is_new:
            talk.dialled("corp.example", 3128)
        sent = talk.origin.take(rb"(GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n)(.*?)\r\n\r\n")[2] + b"\r\n"
        assert sorted(sent.splitlines()) == sorted((b"Via: 1.1 gw\r\n" + shown).splitlines())
        talk.origin >> OK
        talk.client << OK_PASSED


@WAYS
@CREDENTIALS
def test_a_request_for_an_https_url(converse: Start, way: Any, parent: dict[str, Any], shown: bytes):
    talk = converse(way(parent))
    talk.client >> GET.replace(b"http://", b"https://")
    talk.dialled("corp.example", 3128)
    talk.origin << b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\nVia: 1.1 gw\r\n" + shown + b"\r\n"
    talk.origin >> b"HTTP/1.1 200 OK\r\n\r\n"
    talk.until(lambda: bool(talk.origin.received))
    assert talk.origin.received.startswith(b"\x16\x03"), "TLS goes to the origin, within the parent's tunnel"
    assert base64.b64encode(b"robot:") not in talk.origin.received


@WAYS
@CREDENTIALS
def test_plain_http_within_a_tunnel(converse_on: Start, way: Any, parent: dict[str, Any], shown: bytes):
    talk = converse_on(way(parent))
    talk.client >> connect("a.example:80")
    talk.client << ESTABLISHED
    talk.client >> b"GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.dialled("corp.example", 3128)
    sent = talk.origin.take(rb"GET http://a.example/x HTTP/1.1\r\n.*?\r\n\r\n")[0]
    assert (SHOWN in sent) is bool(shown)
    talk.origin >> OK
    talk.client << OK_PASSED


@WAYS
@CREDENTIALS
def test_an_upgrade(converse: Start, way: Any, parent: dict[str, Any], shown: bytes):
    talk = converse(way(parent))
    talk.client >> GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    talk.dialled("corp.example", 3128)
    talk.origin << b"CONNECT a.example:80 HTTP/1.1\r\nHost: a.example:80\r\nVia: 1.1 gw\r\n" + shown + b"\r\n"
    talk.origin >> b"HTTP/1.1 200 OK\r\n\r\n"
    sent = talk.origin.take(rb"GET / HTTP/1.1\r\nHost: a.example\r\n.*?\r\n\r\n")[0]
    assert b"Upgrade: websocket" in sent
    assert b"Proxy-Authorization" not in sent
    talk.origin >> b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nframes"
    talk.client.take(rb"HTTP/1.1 101 .*?\r\n\r\nframes")


def test_a_407_to_an_upgrade_is_the_origins(converse: Start):
    talk = converse(by_policy(LOGIN))
    talk.client >> GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    talk.dialled("corp.example", 3128)
    talk.origin.take(rb"CONNECT .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 200 OK\r\n\r\n"
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> WANTED
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (502, "upstream_bad_response")


@pytest.mark.parametrize("kind", ["Fqdn", "Dynamic"])
def test_the_backend_of_a_route_that_names_no_parent(converse: Start, kind: str):
    backend = m.backend("b", "a.example", 80) if kind == "Fqdn" else m.dynamic("b")
    talk = converse([*by_policy(CORP), backend, m.http_route("r", m.prefix_rule("/", "b"), hostnames=["a.example"])])
    talk.client >> GET
    talk.dialled("corp.example", 3128)
    talk.origin.take(rb"GET http://a.example/ .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_an_ip_backend_and_one_with_a_parent_of_its_own_are_reached_as_they_say(converse: Start):
    own = m.backend("far", "far.example", 80, parent={"name": "other"})
    routes = [
        m.http_route("ip", m.prefix_rule("/", "ip"), hostnames=["a.example"]),
        m.http_route("far", m.prefix_rule("/", "far"), hostnames=["far.example"]),
    ]
    objects = [m.ip_backend("ip", 80, "10.0.0.7"), own, m.backend("other", "other.example", 3128), *routes]
    talk = converse(by_policy(CORP) + objects)
    talk.client >> GET
    talk.dialled("10.0.0.7", 80)
    talk.origin >> OK
    talk.client << OK_PASSED
    second = talk.connect()
    second >> GET.replace(b"a.example", b"far.example")
    talk.dialled("other.example", 3128)
    talk.origin >> OK
    second << OK_PASSED


def test_a_route_to_the_parent_itself_is_not_sent_through_it(converse: Start):
    talk = converse([*by_policy(CORP), m.http_route("r", m.prefix_rule("/", "corp"), hostnames=["corp.example"])])
    talk.client >> GET.replace(b"a.example", b"corp.example:3128")
    talk.dialled("corp.example", 3128)
    talk.origin.take(rb"GET / HTTP/1.1\r\n.*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


# --- what holds all the same -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("request_", [GET, GET.replace(b"http:", b"https:"), connect("a.example:443")])
def test_what_is_denied_does_not_get_to_the_parent(converse: Start, request_: bytes):
    talk = converse(by_policy(CORP, destinations={"allow": [{"hostnames": ["b.example"]}]}))
    talk.client >> request_
    talk.no_dial()
    assert talk.client.answer()[3]["reason"] == "destination_not_allowed"


@pytest.mark.parametrize("host", ["169.254.169.254", "10.0.0.1", "[::1]", "localhost"])
def test_an_address_that_a_client_names_is_judged_here(converse: Start, host: str):
    talk = converse(by_policy(CORP, mode="Open"))
    talk.client >> connect(f"{host}:443")
    talk.no_dial()
    assert talk.client.answer()[3]["reason"] == "resolved_denied"


def test_a_range_that_is_denied_is_not_asked_for(converse: Start):
    deny = {"allow": [{"cidrs": ["93.184.216.0/24"]}], "deny": [{"cidrs": ["93.184.216.34/32"]}]}
    talk = converse(by_policy(CORP, destinations=deny))
    talk.client >> connect("93.184.216.34:443")
    talk.no_dial()
    assert talk.client.answer()[3]["reason"] == "destination_denied"


def test_a_policy_of_the_parent_denies_what_would_go_through_it(converse: Start):
    target = {"group": m.OURS, "kind": "Backend", "name": "corp"}
    denying = m.manifest(
        f"{m.OURS}/v1alpha1", "EgressPolicy", "of-corp", "agents",
        spec={"targetRefs": [target], "destinations": {"deny": [{"hostnames": ["a.example"]}]}},
    )  # fmt: skip
    talk = converse([*by_policy(CORP), denying])
    for request in (GET, connect("a.example:443")):
        client = talk.connect()
        client >> request
        talk.no_dial()
        assert client.answer()[3]["rule"] == "EgressPolicy agents/of-corp"


def test_the_parents_own_name_may_be_denied(converse: Start):
    talk = converse(
        by_policy(
            CORP, destinations={"allow": [{"hostnames": ["a.example"]}], "deny": [{"hostnames": ["corp.example"]}]}
        )
    )
    talk.client >> connect("a.example:443")
    talk.no_dial()
    assert talk.client.answer()[3]["message"] == "corp.example is denied by policy agents/default"


# --- the addresses of a parent's name --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("address", "sections", "is_dialled"),
    [
        ("10.1.2.3", {}, True),
        ("fd00::3128", {}, True),
        ("10.1.2.3", {"addresses": {"allow": [{"cidrs": ["192.168.0.0/16"]}]}}, True),
        ("10.1.2.3", {"addresses": {"deny": [{"cidrs": ["10.0.0.0/8"]}]}}, False),
        ("10.1.2.3", {"addresses": {"only": [{"cidrs": ["192.168.0.0/16"]}]}}, False),
        ("127.0.0.1", {}, False),
        ("127.0.0.1", {"addresses": {"allow": [{"cidrs": ["127.0.0.0/8"], "hostnames": ["corp.example"]}]}}, True),
        ("169.254.169.254", {}, False),
        ("169.254.1.1", {}, False),
    ],
)  # fmt: skip
def test_the_name_of_a_parent_may_lead_into_the_network_and_not_to_this_machine(
    converse: Start, address: str, sections: dict[str, Any], is_dialled: bool
):
    from ipaddress import ip_address

    talk = converse(by_policy(CORP, **sections))
    talk.names.zone["corp.example"] = (ip_address(address),)
    talk.client >> connect("a.example:443")
    if is_dialled:
        talk.dialled("corp.example", 3128)
        talk.origin.take(rb"CONNECT a.example:443 .*?\r\n\r\n")
        talk.origin >> b"HTTP/1.1 200 OK\r\n\r\n"
        talk.client << ESTABLISHED
    else:
        talk.no_dial()
        assert talk.client.answer()[3]["reason"] == "resolved_denied"


def test_only_the_name_of_the_parent_may_lead_there(converse: Start):
    """Behind it or not, the same name as a destination is a client's."""
    from ipaddress import ip_address

    near = m.backend("near", "near.example", 80)
    direct = m.http_route("r", m.prefix_rule("/", "ip"), hostnames=["x.example"])
    talk = converse(
        forward(*corp(), near, direct, m.ip_backend("ip", 80, "10.0.0.9", parent=CORP), allow=("corp.example",))
    )
    talk.names.zone["corp.example"] = (ip_address("10.1.2.3"),)
    talk.client >> connect("corp.example:3128")
    talk.no_dial()
    assert talk.client.answer()[3]["reason"] == "resolved_denied"


# --- 407 ------------------------------------------------------------------------------------------------------------
def refused(talk: Conversation) -> tuple[dict[str, str], dict[str, Any]]:
    """The client's answer, and the line of the log."""
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"]) == (502, "parent_auth")
    assert not [name for name in fields if name.lower().startswith(("proxy-auth", "www-auth"))]
    record = talk.record()
    assert PASSWORD not in json.dumps(record) + json.dumps(error)
    return error, record


@pytest.mark.parametrize("request_", [GET, connect("a.example:22")])
def test_a_parent_that_wants_credentials_says_what_to_configure(converse_on: Start, request_: bytes):
    talk = converse_on(by_policy(CORP))
    talk.client >> request_
    talk.dialled("corp.example", 3128)
    talk.origin.take(rb".*?\r\n\r\n")
    talk.origin >> WANTED
    error, record = refused(talk)
    assert "agents/corp asks for credentials" in error["message"]
    assert "parent.credentialsRef" in error["remedy"]
    assert record["detail"] == "it was shown no credentials"


@of_sources
def test_a_407_of_an_origin_behind_the_parents_tunnel_is_not_the_parents():
    via = SimpleNamespace(behind=_BEHIND)
    assert proxy_credentials_fault(cast(Cluster, via)).reason is Reason.PARENT_AUTH
    via.behind = None
    assert proxy_credentials_fault(cast(Cluster, via)).reason is Reason.BAD_RESPONSE


@pytest.mark.parametrize("request_", [GET, connect("a.example:22")])
def test_credentials_that_are_not_accepted_are_named_by_their_secret(converse_on: Start, request_: bytes):
    talk = converse_on(by_policy(LOGIN))
    talk.client >> request_
    talk.dialled("corp.example", 3128)
    talk.origin.take(rb".*?\r\n\r\n")
    talk.origin >> WANTED.replace(b"Basic realm=corp", b"Negotiate, NTLM")
    error, record = refused(talk)
    assert error["remedy"] == "correct username and password in Secret agents/login, or have that proxy take Basic"
    assert "it was shown those of Secret agents/login (Basic" in record["detail"]


def test_a_parent_that_lets_nobody_in_is_told_to_the_operator(converse: Start):
    talk = converse(by_policy(LOGIN))
    talk.client >> connect("a.example:22")
    talk.dialled("corp.example", 3128)
    talk.origin.take(rb".*?\r\n\r\n")
    talk.origin >> WANTED
    refused(talk)
    (notice,) = talk.metrics.notices.take()
    assert (notice.reason, str(notice.regarding)) == ("ParentAuth", "Gateway agents/gw")
    assert "agents/corp does not accept the credentials" in notice.message
    assert "Secret agents/login" in notice.message
    assert PASSWORD not in notice.message


# --- a parent that cannot be reached, or used ----------------------------------------------------------------------
FORMS = pytest.mark.parametrize("request_", [GET, GET.replace(b"http://", b"https://"), connect("a.example:22")])


@FORMS
def test_a_parent_whose_name_does_not_exist_is_named_to_the_client_and_in_the_log(converse: Start, request_: bytes):
    talk = converse(by_policy(CORP))
    talk.names.faults["corp.example"] = lambda: UpstreamFault(Reason.DNS_NXDOMAIN, 'no "corp.example"', status=503)
    talk.client >> request_
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (503, "dns_nxdomain")
    assert error["message"] == 'no "corp.example" (parent proxy agents/corp)'
    assert talk.record()["detail"] == 'parent proxy agents/corp: no "corp.example"'


@FORMS
def test_a_parent_that_refuses_the_connection_is_named(converse: Start, request_: bytes):
    talk = converse(by_policy(CORP))
    talk.client >> request_
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503, detail="192.0.2.1 port 3128: nobody")
    talk.refused("corp.example", 3128, fault)
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (503, "upstream_refused")
    assert error["message"] == "refused (parent proxy agents/corp)"
    assert talk.record()["detail"] == "parent proxy agents/corp: 192.0.2.1 port 3128: nobody"


def test_of_a_chain_the_parent_that_failed_is_named(converse: Start):
    outer = m.backend("outer", "outer.example", 3128)
    inner = m.backend("inner", "inner.example", 3128, parent={"name": "outer"})
    talk = converse(forward(outer, inner, parent={"name": "inner"}))
    talk.client >> connect("a.example:22")
    talk.refused("outer.example", 3128, UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503))
    assert talk.client.answer()[3]["message"] == "refused (parent proxy agents/outer)"


def test_a_parent_that_cannot_be_used_is_what_the_client_and_the_operator_are_told(converse: Start):
    talk = converse(forward(parent={"name": "nowhere"}))
    talk.client >> connect("a.example:22")
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"], error["rule"]) == (500, "backend_invalid", "EgressPolicy agents/default")
    assert error["message"] == "the parent proxy of EgressPolicy agents/default cannot be used"
    assert "egressproxy check" in error["remedy"]
    assert "nowhere" not in json.dumps(error), "why is for the operator"
    (notice,) = talk.metrics.notices.take()
    assert notice.message.startswith(error["message"])
    detail = talk.record()["detail"]
    assert detail.count("EgressPolicy agents/default") == 1
    assert "agents/nowhere does not exist" in detail


# --- the secret stays a secret -------------------------------------------------------------------------------------
class Looking(Filter):
    """Remembers what it could see of the request."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def backend_request(self, x: Exchange) -> None:
        self.seen.append(x.request.fields.block)

    def response_headers(self, x: Exchange) -> None:
        self.seen.append(x.request.fields.block)


def test_no_filter_sees_what_the_parent_is_shown(converse: Start):
    looking = Looking()
    placed = [scripted_filter("looks", "backend-request"), scripted_filter("looks-again", "response-headers")]
    talk = converse(by_policy(LOGIN, extensions=placed), filters={"looks": looking, "looks-again": looking})
    for is_new in (True, False):
        talk.client >> GET
        if is_new:
            talk.dialled("corp.example", 3128)
        assert SHOWN in talk.origin.take(rb".*?\r\n\r\n")[0]
        talk.origin >> OK
        talk.client << OK_PASSED
    assert len(looking.seen) == 8, "two filters, in two phases, of two requests"
    assert not [block for block in looking.seen if b"authorization" in block.lower()]


def test_a_request_that_goes_again_shows_it_once(converse: Start):
    talk = converse(by_policy(LOGIN))
    talk.client >> GET
    talk.dialled("corp.example", 3128)
    talk.origin.take(rb".*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.client >> GET
    talk.origin.take(rb".*?\r\n\r\n")
    talk.origin.leaves()
    talk.dialled("corp.example", 3128)
    sent = talk.origin.take(rb".*?\r\n\r\n")[0]
    assert sent.count(b"Proxy-Authorization") == 1
    talk.origin >> OK
    talk.client << OK_PASSED


def test_what_a_client_says_to_us_is_not_what_the_parent_is_told(converse: Start):
    talk = converse(by_policy(LOGIN))
    talk.client >> GET[:-2] + b"Proxy-Authorization: Basic Y2xpZW50\r\nProxy_Authorization: Basic Y2xpZW50\r\n\r\n"
    talk.dialled("corp.example", 3128)
    sent = talk.origin.take(rb".*?\r\n\r\n")[0]
    assert SHOWN in sent
    assert b"Y2xpZW50" not in sent
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_copy_for_a_mirror_behind_the_parent_shows_it_and_the_request_beside_it_does_not(converse: Start):
    rule = m.prefix_rule("/", "ip")
    ref = {"group": m.OURS, "kind": "Backend", "name": "copy"}
    rule["filters"] = [{"type": "RequestMirror", "requestMirror": {"backendRef": ref}}]
    copy = m.backend("copy", "copy.example", 80, parent=LOGIN)
    objects = [m.ip_backend("ip", 80, "10.0.0.7"), copy, m.http_route("r", rule, hostnames=["a.example"])]
    talk = converse(forward(*corp(), *objects))
    talk.client >> GET
    talk.dialled("10.0.0.7", 80)
    talk.dialled("corp.example", 3128)
    origin, copied = talk.origins
    assert SHOWN in copied.take(rb"GET http://copy.example/ .*?\r\n\r\n")[0]
    assert b"Proxy-Authorization" not in origin.take(rb"GET / .*?\r\n\r\n")[0]
    copied >> WANTED
    origin >> OK
    talk.client << OK_PASSED
    talk.until(lambda: any(series.mirrored for series in talk.metrics._series.values()))
    assert [series.mirrored for series in talk.metrics._series.values() if series.mirrored] == [{"parent_auth": 1}]


def test_a_secret_that_changes_is_shown_from_the_next_request_on(converse: Start):
    talk = converse(by_policy(LOGIN))
    talk.client >> GET
    talk.dialled("corp.example", 3128)
    talk.origin.take(rb".*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED
    changed = [each for each in by_policy(LOGIN) if each["kind"] != "Secret"]
    talk.reload([*changed, m.secret("login", {"username": "robot", "password": "other"})])
    talk.client >> GET
    talk.dialled("corp.example", 3128)
    sent = talk.origin.take(rb".*?\r\n\r\n")[0]
    assert base64.b64encode(b"robot:other") in sent
    talk.origin >> OK
    talk.client << OK_PASSED


def test_it_is_in_no_text_that_is_made_of_a_configuration():
    credentials = ParentCredentials(SecretBytes(b"Basic c2VjcmV0"), "Secret agents/login")
    backend = BackendIR("b", Destination.DYNAMIC, parent_credentials=credentials)
    assert "c2VjcmV0" not in f"{backend!r} {backend} {proxy_authorization(backend)!r}"
    assert "Secret agents/login" in repr(backend)


def test_each_parent_of_a_chain_is_shown_its_own(converse: Start):
    inner = m.backend("inner", "inner.example", 3128, parent=LOGIN)
    second = m.secret("second", {"username": "s", "password": "t"})
    parent = {"name": "inner", "credentialsRef": {"name": "second"}, "allowPlaintext": True}
    talk = converse([*by_policy(parent), inner, second])
    talk.client >> GET
    talk.dialled("corp.example", 3128)
    assert SHOWN in talk.origin.take(rb"CONNECT inner.example:3128 .*?\r\n\r\n")[0]
    talk.origin >> b"HTTP/1.1 200 OK\r\n\r\n"
    sent = talk.origin.take(rb"GET http://a.example/ .*?\r\n\r\n")[0]
    assert b"Basic " + base64.b64encode(b"s:t") in sent
    assert SHOWN not in sent
    talk.origin >> OK
    talk.client << OK_PASSED
