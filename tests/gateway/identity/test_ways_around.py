"""Ways around: what an attacker, or a mode, might be taken to lift; and where a credential might turn up again."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from egressproxy.filters.base import Filter, Phase
from egressproxy.model.exchange import Exchange
from tests.gateway.backends.test_parent_identity import KEY, signed
from tests.gateway.conftest import Start
from tests.gateway.identity.test_tokens import CLUSTER, bearer, identity, is_refused, is_served, shows, tokens
from tests.gateway.kit import ESTABLISHED, GET, GET_SENT, OK, connect, forward
from tests.support import manifests as m
from tests.support.conversation import scripted_filter
from tests.support.http2_client import Http2Client


@pytest.mark.parametrize("mode", ["Report", "Open"])
def test_no_mode_lets_strangers_in(converse: Start, mode: str):
    talk = converse(forward(CLUSTER.config_map, identity=identity(), mode=mode))
    is_refused(talk, GET)
    is_refused(talk, bearer(CLUSTER.token(aud="other")))
    is_refused(talk, connect("a.example:443"))
    is_served(talk, bearer(CLUSTER.token()))


class Looks(Filter):
    runs_in = frozenset((Phase.REQUEST_HEADERS, Phase.BACKEND_REQUEST))

    def __init__(self) -> None:
        self.seen: set[tuple[str, str, tuple[bytes, ...]]] = set()

    def request_headers(self, x: Exchange) -> None:
        shown = x.request.proxy_authorization.decode()
        self.seen.add((x.identity.namespace, shown, tuple(name for name, _ in x.request.fields)))

    backend_request = request_headers


@pytest.mark.parametrize("field", ["Proxy-Authorization", "X-Agent-Token"])
def test_filters_see_who_it_is_and_not_what_was_shown(converse: Start, field: str):
    looks = Looks()
    token = {"issuers": [CLUSTER.written], **({"header": field} if field != "Proxy-Authorization" else {})}
    placed = [scripted_filter("looks"), scripted_filter("looks", "backend-request") | {"name": "again"}]
    talk = converse(forward(CLUSTER.config_map, identity={"token": token}, extensions=placed), filters={"looks": looks})
    is_served(talk, shows(field.encode(), f"Bearer {CLUSTER.token()}"))
    assert looks.seen == {("team", "", ())}


def test_a_filter_does_not_run_for_a_stranger(converse: Start):
    looks = Looks()
    talk = converse(
        forward(CLUSTER.config_map, identity=identity(), extensions=[scripted_filter("looks")]),
        filters={"looks": looks},
    )
    is_refused(talk, GET)
    assert not looks.seen
    talk.no_dial()


def test_a_destination_is_not_told_to_a_stranger(converse: Start):
    """Nobody learns by asking what policy allows."""
    talk = converse(tokens())
    for host in (b"a.example", b"denied.example"):
        assert is_refused(talk, GET.replace(b"a.example", host))[0].startswith("authentication is required")


def test_the_body_of_a_request_that_is_refused_is_no_next_request(converse: Start):
    talk = converse(tokens())
    smuggled = bearer(CLUSTER.token())
    talk.client >> b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n" % len(smuggled)
    assert talk.client.answer()[0] == 407
    talk.client >> smuggled
    talk.no_dial()
    assert len(talk.records) == 1


def test_an_upgrade_is_asked_for_by_a_known_client(converse: Start):
    talk = converse(tokens())
    is_refused(talk, shows(b"Connection", "Upgrade", shows(b"Upgrade", "websocket")))


def test_the_head_of_an_answer_to_head_has_the_challenge(converse: Start):
    talk = converse(tokens())
    talk.client >> GET.replace(b"GET", b"HEAD")
    head = talk.client.take(rb"HTTP/1.1 407 .*?\r\n\r\n")[0]
    assert b"Proxy-Authenticate: " in head
    talk.client.hears_nothing()


def test_what_a_tunnel_shows_is_worth_nothing_on_another_connection(converse: Start):
    talk = converse(tokens())
    talk.client >> bearer(CLUSTER.token(), connect("a.example:80"))
    talk.client << ESTABLISHED
    talk.client = talk.connect()
    is_refused(talk, GET)


def test_a_tunnel_on_a_stream_of_http2_is_of_its_own_client(converse: Start):
    talk = converse(tokens())
    talk.counts_octets = False
    client = Http2Client()
    known = client.request(
        [
            (b":method", b"CONNECT"),
            (b":authority", b"a.example:80"),
            (b"proxy-authorization", b"Bearer " + CLUSTER.token().encode()),
        ],
        ends=False,
    )
    talk.client >> client.outgoing()

    def is_answered() -> bool:
        client.take(bytes(talk.client.received))
        talk.client.received.clear()
        return bool(client.of(known).fields)

    assert talk.until(is_answered)
    assert client.of(known).status == 200
    stranger = client.request([(b":method", b"CONNECT"), (b":authority", b"a.example:80")], ends=False)
    client.h2.send_data(known, b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
    talk.client >> client.outgoing()
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.settle()
    client.take(bytes(talk.client.received))
    assert client.of(stranger).status == 407
    assert [
        record["namespace"] for record in talk.records if record["status"] == 200 and record["kind"] == "request"
    ] == ["team"]


def test_a_gateway_that_has_signed_for_its_client_need_show_nothing_else(converse: Start):
    keys = {"gateways": {"keyRefs": [{"name": "key"}]}}
    talk = converse(forward(CLUSTER.config_map, m.secret("key", {"key": KEY}), identity=identity(**keys)))

    def asked(**more: Any) -> bytes:
        return GET[:-2] + signed(b"GET", "a.example:80", **more) + b"\r\n"

    talk.client >> asked()
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> OK
    record = talk.record()
    assert (record["namespace"], record["identity_source"]) == ("team", "gateway")
    talk.client.received.clear()
    is_refused(talk, asked(key="x" * 32))
    is_refused(talk, GET)


@pytest.mark.parametrize(
    "claims", [{"aud": "other"}, {"exp": 1_700_000_000}, {"head": {"kid": "unknown"}}, {"iss": "x"}], ids=range(4)
)
def test_a_refusal_leaves_no_cycle_behind(converse: Start, claims: dict[str, Any]):
    """A flood of wrong tokens would be kept until the garbage collector finds it."""
    talk = converse(tokens())
    is_refused(talk, bearer(CLUSTER.token(**claims)))
    gc.collect()
    gc.disable()
    try:
        is_refused(talk, bearer(CLUSTER.token(jti="2", **claims)))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [type(each).__qualname__ for each in gc.garbage]
        assert "Exchange" not in left
        assert "Credential" not in left
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
