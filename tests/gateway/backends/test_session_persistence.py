"""Session persistence (Gateway API, SessionPersistence; GEP-1619): a client comes back to the endpoint that had it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.gateway.backends import session_persistence
from tests.gateway.backends.test_retries import pods
from tests.gateway.conftest import Start
from tests.gateway.kit import TlsClient, certificate, https
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer
from tests.support.pki import Pki

PODS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
COOKIE = re.compile(r"(egress-session-[0-9a-f]{10}|sid)=([A-Za-z0-9_-]{59})((?:; [^;]+)*)")


def persistent(*addresses: str, match: dict[str, Any] | None = None, **persistence: Any) -> list[m.Manifest]:
    rule: dict[str, Any] = {"backendRefs": [{"name": "pods", "port": 80}], "sessionPersistence": persistence}
    if match is not None:
        rule["matches"] = [{"path": match}]
    return [m.gateway(m.http_listener(8080)), m.http_route("route", rule), *pods(*(addresses or PODS))]


def ask(
    talk: Conversation, path: str = "/", client: Peer | None = None, **fields: str
) -> tuple[str, dict[str, list[str]]]:
    """One request: the address that had it, and the fields of the answer."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    client = client or talk.client
    client >> f"GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode()
    if talk.dialer.dials:
        address, port = talk.dialer.dials[0].endpoints[0]
        talk.dialled(talk.names.name_of(address), port)
        talk.origin.address = str(address)  # type: ignore[attr-defined]
    origin = next(peer for peer in talk.origins if peer.got)
    origin.take(rb"GET .*?\r\n\r\n")
    origin >> b"HTTP/1.1 204 No Content\r\n\r\n"
    head = client.take(rb"HTTP/1.1 204 No Content\r\n(.*?)\r\n\r\n")[1].decode()
    answer: dict[str, list[str]] = {}
    for line in head.split("\r\n"):
        name, _, value = line.partition(": ")
        answer.setdefault(name.lower(), []).append(value)
    return origin.address, answer  # type: ignore[attr-defined]


def cookie_of(answer: dict[str, list[str]]) -> tuple[str, str]:
    """`name=token` and the attributes of the one cookie that was set."""
    (line,) = answer["set-cookie"]
    found = COOKIE.fullmatch(line)
    assert found is not None, line
    return f"{found[1]}={found[2]}", found[3]


def refuse(talk: Conversation) -> str:
    dial = talk.pending_dial()
    assert dial is not None
    address, port = dial.endpoints[0]
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503, retry=RetrySafety.SAFE)
    talk.refused(str(address), port, fault)
    return str(address)


# --- the cookie ------------------------------------------------------------------------------------------------------
def test_a_cookie_leads_back_to_its_endpoint_and_is_set_once(converse: Start):
    talk = converse(persistent())
    first, answer = ask(talk)
    cookie, attributes = cookie_of(answer)
    assert attributes == "; Path=/; HttpOnly; SameSite=Lax"
    for _ in range(6):
        again, answer = ask(talk, Cookie=f"theme=dark; {cookie}; lang=en")
        assert again == first
        assert "set-cookie" not in answer


@pytest.mark.parametrize(
    ("cookie", "path"), [({"name": "sid"}, "/"), ({"name": "sid", "path": "/shop"}, "/shop"), ({"path": "/a/"}, "/a/")]
)
def test_a_cookie_of_todays_form_has_the_path_that_the_rule_says(converse: Start, cookie: dict[str, Any], path: str):
    talk = converse(persistent(cookie=cookie))
    first, answer = ask(talk)
    shown, attributes = cookie_of(answer)
    assert shown.startswith(f"{cookie.get('name', 'egress-session-')}")
    assert attributes == f"; Path={path}; HttpOnly; SameSite=Lax"
    again, answer = ask(talk, Cookie=shown)
    assert (again, "set-cookie" in answer) == (first, False)


def test_without_the_cookie_the_endpoints_take_turns(converse: Start):
    talk = converse(persistent())
    assert {ask(talk)[0] for _ in range(3)} == set(PODS)


def test_the_backend_gets_the_cookie_as_the_client_sent_it(converse: Start):
    talk = converse(persistent("10.0.0.1"))
    cookie, _ = cookie_of(ask(talk)[1])
    talk.client >> f"GET / HTTP/1.1\r\nHost: x\r\nCookie: a=b; {cookie}\r\n\r\n".encode()
    talk.origin.take(rb"GET / HTTP/1.1\r\nHost: x\r\nCookie: a=b; " + cookie.encode() + rb"\r\nVia: 1.1 gw\r\n\r\n")
    talk.origin >> b"HTTP/1.1 204 No Content\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 204")


def test_the_token_shows_no_address(converse: Start):
    talk = converse(persistent("172.31.99.201"))
    token = cookie_of(ask(talk)[1])[0].partition("=")[2]
    raw = session_persistence.urlsafe_b64decode(token + "=")
    assert bytes((172, 31, 99, 201)) not in raw
    assert b"172.31.99.201" not in raw


@pytest.mark.parametrize("at", [0, 12, 25, 40, 57])
def test_a_token_that_was_changed_says_nothing(converse: Start, at: int):
    talk = converse(persistent())
    first, answer = ask(talk)
    name, _, token = cookie_of(answer)[0].partition("=")
    changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
    second, answer = ask(talk, Cookie=f"{name}={changed}")
    assert second != first  # the next in turn
    assert cookie_of(answer)


@pytest.mark.parametrize("value", ["", "x", "A" * 59, "A" * 60, "é" * 59, '"' * 59])
def test_what_is_no_token_is_left_alone(converse: Start, value: str):
    talk = converse(persistent(sessionName="sid"))
    _, answer = ask(talk, Cookie=f"sid={value}")
    assert cookie_of(answer)


def test_of_several_cookies_of_the_name_the_valid_one_counts(converse: Start):
    talk = converse(persistent(sessionName="sid"))
    first, answer = ask(talk)
    cookie, _ = cookie_of(answer)
    again, answer = ask(talk, Cookie=f"xsid=1; sid={'B' * 59}; {cookie}")
    assert again == first
    assert "set-cookie" not in answer


def test_rules_do_not_share_their_sessions(converse: Start):
    rules = [
        {
            "matches": [{"path": {"type": "PathPrefix", "value": prefix}}],
            "backendRefs": [{"name": "pods", "port": 80}],
            "sessionPersistence": {"sessionName": "sid"},
        }
        for prefix in ("/a", "/b")
    ]
    talk = converse([m.gateway(m.http_listener(8080)), m.http_route("route", *rules), *pods(*PODS)])
    cookie, _ = cookie_of(ask(talk, "/a")[1])
    _, answer = ask(talk, "/b", Cookie=cookie)
    assert cookie_of(answer)[0] != cookie


def test_a_generated_name_is_that_of_the_rule_after_a_reload_too(converse: Start):
    talk = converse(persistent())
    first, answer = ask(talk)
    cookie, _ = cookie_of(answer)
    talk.reload(persistent("10.0.0.9", *PODS))
    again, answer = ask(talk, Cookie=cookie)
    assert again == first
    assert "set-cookie" not in answer


@pytest.mark.parametrize(
    ("match", "path", "written"),
    [
        ({"type": "PathPrefix", "value": "/shop/"}, "/shop/cart?x=1", "/shop"),
        ({"type": "Exact", "value": "/shop/cart"}, "/shop/cart?x=1", "/shop/cart"),
        ({"type": "RegularExpression", "value": "/shop/[a-z]+/x"}, "/shop/cart/x", "/shop"),
        ({"type": "RegularExpression", "value": "/sh(op|ip)/x"}, "/ship/x", "/"),
        ({"type": "RegularExpression", "value": "/shop/?x"}, "/shopx", "/"),
        ({"type": "PathPrefix", "value": "/a;b"}, "/a;b", "/"),
    ],
)
def test_the_cookie_is_for_the_path_that_the_rule_matched(
    converse: Start, match: dict[str, Any], path: str, written: str
):
    talk = converse(persistent(match=match))
    _, answer = ask(talk, path)
    assert cookie_of(answer)[1].startswith(f"; Path={written}; ")


def test_over_tls_the_cookie_is_secure(converse: Start):
    pki = Pki()
    objects = persistent("10.0.0.1")
    talk = converse([https(""), certificate(pki, "x"), *objects[1:]])
    talk.counts_octets = False
    client = TlsClient(talk.client, pki, "x").shakes_hands()
    client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    talk.dialled("10.0.0.1", 8080).take(rb"GET .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 204 No Content\r\n\r\n"
    assert b"; HttpOnly; SameSite=Lax; Secure\r\n" in client.reads()


def test_an_upgrade_sets_the_cookie_and_is_led_back_by_it(converse: Start):
    talk = converse(persistent("10.0.0.1"))
    upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    talk.client >> upgrade
    talk.dialled("10.0.0.1", 8080).take(rb"GET .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 101 Switching Protocols\r\nSet-Cookie: egress-session-.*?\r\n\r\n")
    talk.client >> b"\x81\x00"
    talk.origin << b"\x81\x00"


# --- time ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds, as sessions see them."""
    now = [1_800_000_000.0]
    monkeypatch.setattr(session_persistence, "_now_ms", lambda: int(now[0] * 1000))
    return now


def test_a_permanent_cookie_says_when_it_ends(converse: Start, clock: list[float]):
    talk = converse(persistent(absoluteTimeout="5m", cookieConfig={"lifetimeType": "Permanent"}))
    assert cookie_of(ask(talk)[1])[1].endswith("; Max-Age=300")


def test_a_session_cookie_does_not_though_its_session_ends(converse: Start, clock: list[float]):
    talk = converse(persistent(absoluteTimeout="5m"))
    first, answer = ask(talk)
    cookie, attributes = cookie_of(answer)
    assert "Max-Age" not in attributes
    assert "Expires" not in attributes
    clock[0] += 299
    assert ask(talk, Cookie=cookie) == (first, {"via": ["1.1 gw"]})
    clock[0] += 1
    again, answer = ask(talk, Cookie=cookie)
    assert again != first
    assert cookie_of(answer)[0] != cookie


def test_a_session_that_is_used_does_not_become_idle_and_ends_in_the_end(converse: Start, clock: list[float]):
    talk = converse(persistent(idleTimeout="1m", absoluteTimeout="2m", cookieConfig={"lifetimeType": "Permanent"}))
    first, answer = ask(talk)
    cookie, _ = cookie_of(answer)
    clock[0] += 5
    assert "set-cookie" not in ask(talk, Cookie=cookie)[1]  # young enough
    clock[0] += 45
    again, answer = ask(talk, Cookie=cookie)
    assert again == first
    cookie, attributes = cookie_of(answer)
    assert attributes.endswith("; Max-Age=70")  # renewed; it ends when it would have
    clock[0] += 50
    again, answer = ask(talk, Cookie=cookie)
    assert again == first
    cookie, _ = cookie_of(answer)
    clock[0] += 20
    assert ask(talk, Cookie=cookie)[0] != first


def test_a_session_that_was_idle_for_too_long_is_over(converse: Start, clock: list[float]):
    talk = converse(persistent(idleTimeout="1m"))
    first, answer = ask(talk)
    clock[0] += 60
    assert ask(talk, Cookie=cookie_of(answer)[0])[0] != first


# --- a header --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("named", [{"sessionName": "X-Session"}, {"header": {"name": "X-Session"}}])
def test_a_header_leads_back_as_a_cookie_does(converse: Start, named: dict[str, Any]):
    talk = converse(persistent(type="Header", **named))
    first, answer = ask(talk)
    (token,) = answer["x-session"]
    assert "set-cookie" not in answer
    again, answer = ask(talk, X_Session=token)
    assert again == first
    assert "x-session" not in answer
    assert ask(talk, X_Session=token[:-1])[0] != first


# --- what happens to endpoints ---------------------------------------------------------------------------------------
def test_a_session_whose_endpoint_is_gone_from_the_configuration_begins_anew(converse: Start):
    talk = converse(persistent())
    first, answer = ask(talk)
    cookie, _ = cookie_of(answer)
    talk.reload(persistent(*[pod for pod in PODS if pod != first]))
    second, answer = ask(talk, Cookie=cookie)
    assert second != first
    cookie, _ = cookie_of(answer)
    assert ask(talk, Cookie=cookie)[0] == second


def test_a_session_whose_endpoint_refuses_moves_to_another_one(converse: Start):
    talk = converse(persistent())
    first, answer = ask(talk)
    cookie, _ = cookie_of(answer)
    talk.origin.leaves()
    talk.client >> f"GET / HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n".encode()
    assert refuse(talk) == first
    dial = talk.pending_dial()
    assert dial is not None
    second = str(dial.endpoints[0][0])
    assert second != first
    talk.dialled(second, 8080).take(rb"GET .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 204 No Content\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 204 No Content\r\nSet-Cookie: egress-session-.*?\r\n\r\n")


def test_a_session_stays_with_a_backend_whose_weight_became_0(converse: Start):
    def weighted(a: int, b: int) -> list[m.Manifest]:
        refs = [
            {"group": m.OURS, "kind": "Backend", "name": name, "weight": weight}
            for name, weight in (("a", a), ("b", b))
        ]
        return [
            m.gateway(m.http_listener(8080)),
            m.backend("a", "a.example", 80),
            m.backend("b", "b.example", 80),
            m.http_route("route", {"backendRefs": refs, "sessionPersistence": {}}),
        ]

    talk = converse(weighted(1, 0))
    first, answer = ask(talk)
    cookie, _ = cookie_of(answer)
    talk.reload(weighted(0, 1))
    assert ask(talk)[0] != first
    assert ask(talk, Cookie=cookie)[0] == first
    assert talk.record()["backend"] == "agents/a"


def test_backends_of_one_name_in_two_groups_are_two(converse: Start):
    theirs = m.backend("b", "theirs.example", 80)
    theirs["apiVersion"] = "gateway.networking.k8s.io/v1alpha1"
    refs = [{"group": group, "kind": "Backend", "name": "b"} for group in (m.OURS, m.GATEWAY_API)]
    talk = converse([
        m.gateway(m.http_listener(8080)),
        m.http_route("route", {"backendRefs": refs, "sessionPersistence": {}}),
        m.backend("b", "ours.example", 80),
        theirs,
    ])  # fmt: skip
    cookies = {}
    while len(cookies) < 2:
        address, answer = ask(talk)
        cookies[address] = cookie_of(answer)[0]
    for address, cookie in (*cookies.items(), *cookies.items()):
        assert ask(talk, Cookie=cookie)[0] == address


def test_gateways_with_other_keys_do_not_take_each_others_tokens(converse: Start):
    one, two = converse(persistent("10.0.0.1")), converse(persistent("10.0.0.1"))
    cookie, _ = cookie_of(ask(one)[1])
    assert cookie_of(ask(two, Cookie=cookie)[1])[0] != cookie
