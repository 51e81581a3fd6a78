"""API keys on listeners: where they are read, that they go nowhere, what they are for, and how they end."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from egressproxy.gateway.identity import authenticator
from egressproxy.gateway.listeners import transparent_connection
from egressproxy.identity.api_keys import has_key, new_record
from egressproxy.model.authority import parse_authority
from egressproxy.model.forwarded_identity import ForwardedIdentity, sign
from egressproxy.model.secret import SecretBytes
from egressproxy.protocols.socks5.messages import ReplyCode
from egressproxy.protocols.socks5.server import reply
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_interception import SENT, Trusting, inside, opening, start
from tests.gateway.h2 import Http2Peer, speak_http2
from tests.gateway.identity.test_held_requests import refused, the_hold
from tests.gateway.identity.test_tokens import CLUSTER, basic, bearer, is_refused, is_served, shows
from tests.gateway.kit import ESTABLISHED, GET, GET_SENT, OK, OK_PASSED, TlsClient, connect, forward, reverse
from tests.gateway.listeners.test_socks_connection import asks, login
from tests.operators.approval.test_approval_hold import TYPE, decide
from tests.support import manifests as m
from tests.support.collector import Seen, traced
from tests.support.conversation import Conversation

# Not random: parameters of tests have them.
KEY, OTHER, FREE = (f"egk_{letter * 43}" for letter in "abc")
IDENTITY = {"apiKeys": {"secretRefs": [{"name": "keys"}]}}
REVERSE_GET = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"


def keys(**records: Any) -> Any:
    """A Secret; `records` are keys, or records of them."""
    found = {name: new_record(each) if isinstance(each, str) else each for name, each in records.items()}
    return m.secret("keys", {name: json.dumps(each) for name, each in found.items()})


def proxy(*more: Any, secret: Any = None, allow: tuple[str, ...] = ("a.example",), **sections: Any) -> list[Any]:
    return forward(secret or keys(ci=KEY), *more, allow=allow, identity={**IDENTITY, **sections})


def server(*rules: Any, secret: Any = None, objects: tuple[Any, ...] = (), **sections: Any) -> list[Any]:
    secret = secret or keys(ci=KEY)
    return reverse(
        *rules,
        objects=(secret, *objects),
        identity=IDENTITY,
        traffic={"connections": {"shareTenants": True}},
        **sections,
    )


def open_tunnel(talk: Conversation, request: bytes) -> None:
    talk.client >> request
    talk.client << ESTABLISHED


# --- where they are read -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("request_", [bearer(KEY), basic("any", KEY)])
def test_a_forward_proxy_reads_proxy_authorization(converse: Start, request_: bytes):
    talk = converse(proxy())
    record = is_served(talk, request_)
    assert (record["identity"], record["identity_source"]) == ("agents/keys#ci", "key")
    is_served(talk, request_, is_new=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"Authorization", f"Bearer {KEY}"),
        (b"x-api-key", KEY),
        (b"api-key", KEY),
        (b"x-goog-api-key", KEY),
    ],
)
def test_a_server_reads_the_fields_of_providers_and_sends_none_of_them_on(converse: Start, field: bytes, value: str):
    talk = converse(server())
    request = shows(field, value, REVERSE_GET)
    assert is_served(talk, request)["identity"] == "agents/keys#ci"
    assert is_served(talk, request, is_new=False)["identity_source"] == "key"


def test_a_server_reads_the_query_of_google(converse: Start):
    talk = converse(server())
    request = REVERSE_GET.replace(b"/ HTTP", b"/v1?alt=sse&key=%b HTTP" % KEY.encode())
    record = is_served(talk, request, sent=GET_SENT.replace(b"/ HTTP", b"/v1?alt=sse HTTP"))
    assert record["identity_source"] == "key"
    assert KEY not in json.dumps(talk.records)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\r\n\r\n", b"\r\nAuthorization: Basic %b\r\n\r\n" % base64.b64encode(f"{KEY}:".encode())),
        (b"\r\n\r\n", b"\r\nAuthorization: Basic %b\r\n\r\n" % base64.b64encode(f"us:{KEY}".encode()).rstrip(b"=")),
        (b"/ HTTP", b"/?%%6Bey=%b HTTP" % KEY.encode()),
    ],
    ids=["user of Basic", "Basic without padding", "escaped name"],
)
def test_a_key_that_is_spelled_otherwise_goes_to_no_provider(converse: Start, old: bytes, new: bytes):
    robot = {"cidrs": ["0.0.0.0/0"], "namespace": "team", "serviceAccount": "robot"}
    identity = {**IDENTITY, "address": {"clients": [robot]}}
    talk = converse(reverse(objects=(keys(ci=KEY),), identity=identity))
    assert is_served(talk, REVERSE_GET.replace(old, new, 1))["identity_source"] == "key"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\r\n\r\n", b"\r\nAuthorization: Token %b\r\n\r\n"),
        (b"\r\n\r\n", b"\r\nAuthorization: Bearer %b, x\r\n\r\n"),
        (b"\r\n\r\n", b"\r\nX-Note: egk%%255F%b\r\n\r\n"),
        (b"\r\n\r\n", b"\r\nSec-WebSocket-Protocol: realtime, openai-insecure-api-key.%b\r\n\r\n"),
        (b"\r\n\r\n", b"\r\nVia: 1.1 %b\r\n\r\n"),
        (b"\r\n\r\n", b"\r\nX-Request-Id: %b\r\n\r\n"),
        (b"\r\n\r\n", b"\r\nUser-Agent: %b\r\n\r\n"),
        (b"a.example", b"%b.example"),
        (b"/ HTTP", b"http://%b.example/ HTTP"),
        (b"/ HTTP", b"/?token=%b HTTP"),
        (b"/ HTTP", b"/%b/v1 HTTP"),
        (b"/ HTTP", b"/%%65%b HTTP"),
    ],
)
def test_a_key_where_none_is_read_goes_to_no_provider_and_into_no_log(converse: Start, old: bytes, new: bytes):
    talk = converse(traced(server()))
    mark = 1 if b"%%65" in new else 4 if b"255F" in new else 0
    request = REVERSE_GET.replace(old, new % KEY.encode()[mark:], 1)
    both = shows(b"x-api-key", KEY, request)
    for each in (request, both):
        assert is_refused(talk, each, 401)[0] == "an API key stands where the gateway reads none"
        assert KEY[4:] not in f"{talk.records} {Seen(talk).spans}"


@pytest.mark.parametrize("before", [b"", b"a", b"ab", b"user:"])
def test_a_key_is_known_in_base64(before: bytes):
    assert has_key(b"\r\nX-Note: is=%b; a" % base64.urlsafe_b64encode(before + KEY.encode()))
    assert not has_key(b"\r\nX-Note: is=%b; a" % base64.b64encode(before + b"egk_short" + b"/" * 40))


def test_what_is_no_key_of_ours_is_the_providers(converse: Start):
    talk = converse(server(secret=keys(ci=KEY)))
    both = shows(b"x-api-key", KEY, shows(b"Authorization", "Bearer sk-proj-1", REVERSE_GET))
    sent = b"GET / HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer sk-proj-1\r\nVia: 1.1 gw\r\n\r\n"
    is_served(talk, both, sent=sent)
    phrase, fields = is_refused(talk, shows(b"Authorization", "Bearer sk-proj-1", REVERSE_GET), 401)
    assert phrase.startswith("authentication is required: show an API key in Authorization")
    assert fields["WWW-Authenticate"] == 'Bearer realm="egressproxy"'


def test_two_credentials_at_once_are_refused(converse: Start):
    talk = converse(server(secret=keys(ci=KEY, other=OTHER)))
    same = shows(b"x-api-key", KEY, shows(b"Authorization", f"Bearer {KEY}", REVERSE_GET))
    is_served(talk, same)
    two = shows(b"x-api-key", KEY, shows(b"Authorization", f"Bearer {OTHER}", REVERSE_GET))
    assert is_refused(talk, two, 401)[0] == "two API keys at once: show one"


def test_a_token_and_a_key_are_two_credentials(converse: Start):
    tokens = {"token": {"issuers": [CLUSTER.written]}}
    talk = converse(proxy(CLUSTER.config_map, **tokens))
    assert is_served(talk, bearer(CLUSTER.token()))["identity_source"] == "token"
    assert is_served(talk, bearer(KEY), is_new=False)["identity_source"] == "key"
    assert is_refused(talk, shows(b"x-api-key", KEY, bearer(CLUSTER.token())))[0].startswith("two credentials")


def test_a_forward_proxy_refuses_a_key_that_would_have_gone_to_the_server(converse: Start):
    talk = converse(proxy(required=False))
    phrase, fields = is_refused(talk, shows(b"x-api-key", KEY))
    assert phrase == "the API key is for the gateway, and stands in a field of the server"
    assert "Proxy-Authenticate" in fields
    assert is_served(talk, shows(b"x-api-key", KEY, bearer(KEY)))["identity_source"] == "key"


@pytest.mark.parametrize("shown", [f"Bearer {OTHER}", "Bearer egk_cut", "Bearer x.y.z", "Bearer sk-1", "Basic YTpi"])
def test_a_wrong_key_is_refused_and_the_log_has_none(converse: Start, shown: str):
    talk = converse(proxy(required=False))
    is_refused(talk, shows(b"Proxy-Authorization", shown))
    assert shown.split()[1] not in json.dumps(talk.records)


def test_trailers_show_no_key(converse: Start):
    talk = converse(server())
    without_credentials = talk.snapshot.ports[next(iter(talk.snapshot.ports))].without_credentials
    assert without_credentials is not None
    coded = f"\r\nX-Code: {base64.b64encode(KEY.encode()).decode()}\r\nX-Part: {KEY.replace('_', '%5f')}"
    trailers = f"\r\nX-Api_Key: {KEY}\r\nX-Sum: 1\r\nX-Note: is {KEY}{coded}".encode()
    assert without_credentials(trailers) == b"\r\nX-Sum: 1"
    assert without_credentials(b"") == b""


@pytest.mark.parametrize("models", [None, ["o9"]])
def test_a_key_whose_models_change_while_its_request_waits(converse: Start, models: list[str] | None):
    def held(**members: Any) -> list[Any]:
        extension = {"name": "hold", "type": TYPE, "config": {}}
        return forward(keys(ci=new_record(KEY, **members)), identity=IDENTITY, extensions=[extension])

    talk = converse(held())
    talk.client >> bearer(KEY)
    hold = the_hold(talk)
    talk.reload(held(models=models, name="ci"))
    assert decide(talk, hold["id"], approves=True) == 1
    if models is None:
        talk.dialled("a.example", 80)
    else:
        assert "who may ask here has changed while the request waited" in refused(talk)[1]


# --- in tunnels --------------------------------------------------------------------------------------------------
def test_a_request_in_a_tunnel_may_show_the_key_that_has_opened_it(converse: Start):
    talk = converse(proxy())
    open_tunnel(talk, bearer(KEY, connect("a.example:80")))
    assert is_served(talk, shows(b"x-api-key", KEY, REVERSE_GET))["identity"] == "agents/keys#ci"
    assert is_served(talk, REVERSE_GET, is_new=False)["identity"] == "agents/keys#ci"


def test_a_key_in_a_tunnel_names_the_client_that_nothing_else_has_named(converse: Start):
    talk = converse(proxy(required=False))
    open_tunnel(talk, connect("a.example:80"))
    is_served(talk, shows(b"x-api-key", KEY, REVERSE_GET))
    assert talk.record()["identity"] == "agents/keys#ci"
    is_served(talk, REVERSE_GET, is_new=False)
    assert "identity" not in talk.record()
    phrase, fields = is_refused(talk, shows(b"x-api-key", OTHER, REVERSE_GET), 401)
    assert phrase == "the API key is unknown, or revoked"
    assert "WWW-Authenticate" in fields


def test_another_key_than_the_tunnels_is_refused(converse: Start):
    talk = converse(proxy(secret=keys(ci=KEY, other=OTHER)))
    open_tunnel(talk, bearer(KEY, connect("a.example:80")))
    phrase, _ = is_refused(talk, shows(b"x-api-key", OTHER, REVERSE_GET), 401)
    assert phrase == "the API key is not the credential that has opened the tunnel: show one"


def opened(secret: Any) -> list[Any]:
    return opening(secret, identity={**IDENTITY, "required": False})


@pytest.mark.parametrize("way", ["connect", "redirected"])
def test_tls_that_ends_at_the_gateway_has_keys_in_its_requests(
    converse: Start, monkeypatch: pytest.MonkeyPatch, way: str
):
    dialled = parse_authority(b"93.184.216.99:443")
    monkeypatch.setattr(transparent_connection, "destination_of", lambda _transport: dialled)
    objects, others = opened(keys(ci=KEY)), opened(keys(other=OTHER))
    if way == "connect":
        talk = start(converse, objects)
        tls = inside(talk, alpn=("h2", "http/1.1"))
    else:
        listener = m.gateway({"name": "other", "port": 1080, "protocol": f"{m.OURS}/transparent"})
        objects[0] = others[0] = listener
        talk = start(converse, objects)
        tls = TlsClient(talk.client, Trusting(), "a.example", alpn=("h2", "http/1.1")).shakes_hands()
    client = Http2Peer(tls)
    shown = (b"authorization", b"Bearer " + KEY.encode())
    stream = client.ask(b"GET", b"/", b"a.example", shown, scheme=b"https")
    talk.dialled("a.example", 443)
    talk.origin << SENT
    talk.origin >> OK
    assert client.answer(stream).status == 200
    assert talk.record()["identity"] == "agents/keys#ci"
    talk.reload(others)
    assert client.answer(client.ask(b"GET", b"/", b"a.example", shown, scheme=b"https")).status == 401


def test_a_redirected_request_shows_its_key_as_on_other_listeners(converse: Start, monkeypatch: pytest.MonkeyPatch):
    dialled = parse_authority(b"93.184.216.99:80")
    monkeypatch.setattr(transparent_connection, "destination_of", lambda _transport: dialled)
    listener = {"name": "other", "port": 1080, "protocol": f"{m.OURS}/transparent"}
    talk = converse([m.gateway(listener), m.policy(["a.example"], identity=IDENTITY), keys(ci=KEY)])
    assert is_served(talk, shows(b"x-api-key", KEY, REVERSE_GET))["identity"] == "agents/keys#ci"


# --- their end ---------------------------------------------------------------------------------------------------
def test_a_revoked_key_is_refused_at_once_and_others_go_on(converse: Start):
    talk = converse(proxy(secret=keys(ci=KEY, other=OTHER)))
    is_served(talk, bearer(KEY))
    talk.reload(proxy(secret=keys(other=OTHER)))
    assert is_refused(talk, bearer(KEY))[0] == "the API key is unknown, or revoked"
    is_served(talk, bearer(OTHER), is_new=False)


def test_a_key_that_is_revoked_closes_its_tunnels_alone(converse: Start):
    talk = converse(proxy(secret=keys(ci=KEY, other=OTHER)))
    open_tunnel(talk, bearer(KEY, connect("a.example:80")))
    is_served(talk, REVERSE_GET)
    talk.reload(proxy(secret=keys(ci=KEY)))
    is_served(talk, REVERSE_GET, is_new=False)
    talk.reload(proxy(secret=keys(other=OTHER)))
    assert "changed since the tunnel was opened" in is_refused(talk, REVERSE_GET, 403)[0]


def test_a_key_inside_a_tunnel_is_revoked_at_once(converse: Start):
    talk = converse(proxy(required=False))
    open_tunnel(talk, connect("a.example:80"))
    inside = shows(b"x-api-key", KEY, REVERSE_GET)
    is_served(talk, inside)
    talk.reload(proxy(secret=keys(other=OTHER), required=False))
    is_refused(talk, inside, 401)


def test_a_new_key_closes_no_tunnel_of_others(converse: Start):
    robot = {"cidrs": ["0.0.0.0/0"], "namespace": "team", "serviceAccount": "robot"}
    more = {"address": {"clients": [robot]}, "token": {"issuers": [CLUSTER.written]}}
    talk = converse(proxy(CLUSTER.config_map, **more))
    open_tunnel(talk, connect("a.example:80"))
    assert is_served(talk, REVERSE_GET)["identity_source"] == "address"
    talk.reload(proxy(CLUSTER.config_map, secret=keys(ci=KEY, other=OTHER), **more))
    is_served(talk, REVERSE_GET, is_new=False)


def test_an_expired_key_is_refused_on_a_connection_that_has_shown_it(converse: Start, monkeypatch: pytest.MonkeyPatch):
    talk = converse(proxy(secret=keys(ci=new_record(KEY, notAfter="2100-01-01T00:00:00Z"))))
    is_served(talk, bearer(KEY))
    monkeypatch.setattr(authenticator, "time", lambda: 4102444800.0 + 120)
    assert is_refused(talk, bearer(KEY))[0] == "the API key expired 2 min ago"


def test_a_revoked_key_is_refused_on_an_open_http_2_connection(converse: Start):
    talk = converse(server(secret=keys(ci=KEY)))
    client = speak_http2(talk)
    shown = (b"x-api-key", KEY.encode())
    stream = client.ask(b"GET", b"/", b"a.example", shown)
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    assert client.answer(stream).status == 200
    talk.reload(server(secret=keys(other=OTHER)))
    assert client.answer(client.ask(b"GET", b"/", b"a.example", shown)).status == 401


def test_a_key_that_is_revoked_while_its_request_waits(converse: Start):
    def held(secret: Any) -> list[Any]:
        extension = {"name": "hold", "type": TYPE, "config": {}}
        return forward(secret, identity={**IDENTITY, "required": False}, extensions=[extension])

    for begins, status in ((lambda _: bearer(KEY), 407), (in_a_tunnel, 403)):
        talk = converse(held(keys(ci=KEY)))
        talk.client >> begins(talk)
        hold = the_hold(talk)
        talk.reload(held(keys(other=OTHER)))
        assert decide(talk, hold["id"], approves=True) == 1
        assert refused(talk)[0] == status


def in_a_tunnel(talk: Conversation) -> bytes:
    open_tunnel(talk, connect("a.example:80"))
    return shows(b"x-api-key", KEY, REVERSE_GET)


def test_socks_takes_a_key_as_password(converse: Start):
    listener = {"name": "socks", "port": 1080, "protocol": f"{m.OURS}/socks5"}
    objects = [m.gateway(listener), m.policy(["a.example"], identity=IDENTITY), keys(ci=KEY)]
    for key, answer in ((KEY, None), (OTHER, ReplyCode.NOT_ALLOWED)):
        talk = converse(objects)
        talk.client >> b"\x05\x02\x00\x02"
        talk.client << b"\x05\x02"
        talk.client >> login(b"any", key.encode())
        talk.client << b"\x01\x00"
        talk.client >> asks("a.example", 22)
        if answer is None:
            talk.dialled("a.example", 22)
        talk.client << reply(answer)


# --- what they are for -------------------------------------------------------------------------------------------
def test_a_key_is_for_its_routes_alone(converse: Start):
    rules = m.http_route("other", m.prefix_rule("/other", "a"))
    only = keys(ci=new_record(KEY, routes=["route"]))
    talk = converse(server(secret=only, objects=(rules,)))
    is_served(talk, shows(b"x-api-key", KEY, REVERSE_GET))
    phrase, _ = is_refused(talk, shows(b"x-api-key", KEY, REVERSE_GET.replace(b"/ HTTP", b"/other HTTP")), 403)
    assert phrase == "Denied: the API key of this client is not for the route agents/other"


def test_a_key_with_routes_opens_no_tunnel_without_one(converse: Start):
    talk = converse(proxy(secret=keys(ci=new_record(KEY, routes=["route"]))))
    phrase, _ = is_refused(talk, bearer(KEY, connect("a.example:443")), 403)
    assert phrase == "Denied: the API key of this client is not for destinations without a route"
    assert talk.record()["rule"] == "API key agents/keys#ci"


def test_a_key_with_models_is_refused_where_nothing_reads_them(converse: Start):
    talk = converse(proxy(secret=keys(ci=new_record(KEY, models=["gpt-*"]))))
    assert "nobody sees which are asked" in is_refused(talk, bearer(KEY, connect("a.example:443")), 403)[0]
    assert "no filter that reads them" in is_refused(talk, bearer(KEY), 403)[0]
    assert talk.record()["reason"] == "model_denied"


@pytest.mark.parametrize("config", [{}, {"unreadable": "Allow"}])
def test_a_key_is_for_its_models_alone(converse: Start, config: Any):
    extension = {"name": "models", "type": "egressproxy.io/ModelPolicy:v1", "config": config}
    talk = converse(server(secret=keys(ci=new_record(KEY, models=["gpt-*"]), all=OTHER), extensions=[extension]))

    def asks_for(model: str, key: str, path: bytes = b"/v1/chat/completions") -> bytes:
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]}).encode()
        head = b"POST %b HTTP/1.1\r\nHost: a.example\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        return shows(b"Authorization", f"Bearer {key}", head % (path, len(body))) + body

    is_new = True
    for request in (asks_for("gpt-5", KEY), asks_for("o9", OTHER)):
        talk.client >> request
        if is_new:
            talk.dialled("a.example", 80)
        is_new = False
        sent = talk.origin.take(rb"POST .*?\r\n\r\n\{.*\}")[0]
        assert b"egk_" not in sent
        talk.origin >> OK
        talk.client << OK_PASSED
    assert "is not for model 'o9'" in is_refused(talk, asks_for("o9", KEY), 403)[0]
    record = talk.record()
    assert (record["reason"], record["rule"].startswith("API key ")) == ("model_denied", True)
    talk.client >> asks_for("o9", KEY, b"/elsewhere")
    assert talk.client.answer()[0] == 403


def test_the_key_of_another_gateway_restricts_the_clients_that_it_signs(converse: Start):
    shared = SecretBytes(b"k" * 32)
    said = ForwardedIdentity("edge/gw", "192.0.2.7", "team", "robot", "system:serviceaccount:team:robot")
    identity = {**IDENTITY, "gateways": {"keyRefs": [{"name": "shared"}]}}
    secrets = m.secret("shared", {"key": "k" * 32}), keys(ci=new_record(KEY, routes=["other"]), all=OTHER)
    talk = converse(forward(*secrets, identity=identity))
    for key, status in ((KEY, 403), (OTHER, 200)):
        talk.client = talk.connect()
        value = sign(shared, said, b"GET", "a.example:80", time.time())
        talk.client >> bearer(key, GET[:-2] + b"Via: 1.1 edge\r\nX-Egress-Identity: %b\r\n\r\n" % value)
        if status == 200:
            talk.dialled("a.example", 80)
            talk.origin.take(rb"GET / .*?\r\n\r\n")
            talk.origin >> OK
        talk.client.take(rb"HTTP/1.1 %d .*?\r\n\r\n" % status)
        assert talk.record()["identity"] == "system:serviceaccount:team:robot"


def test_groups_of_a_key_are_subjects_of_policies(converse: Start):
    secret = keys(ci=new_record(KEY, groups=["gold"]), other=OTHER)
    denied = m.policy(name="no-a", destinations={"deny": [{"hostnames": ["a.example"]}]}, subjects=[{"group": "gold"}])
    talk = converse(proxy(denied, secret=secret))
    is_refused(talk, bearer(KEY), 403)
    is_served(talk, bearer(OTHER))


def test_the_limits_of_a_key_are_those_of_its_group(converse: Start):
    secret = keys(
        one=new_record(KEY, name="ci", groups=["small"]), two=new_record(OTHER, name="ci", groups=["small"]), free=FREE
    )
    limits = {"requests": [{"per": "Identity", "limit": 2, "window": "1h"}]}
    talk = converse(proxy(m.policy(name="small", subjects=[{"group": "small"}], limits=limits), secret=secret))
    is_served(talk, bearer(KEY))
    is_served(talk, bearer(OTHER), is_new=False)
    for key in (KEY, OTHER):  # of one client
        is_refused(talk, bearer(key), 429)
    for _ in range(3):
        is_served(talk, bearer(FREE), is_new=False)


def test_two_keys_of_a_name_are_one_client(converse: Start):
    secret = keys(one=new_record(KEY, name="ci"), two=new_record(OTHER, name="ci"))
    talk = converse(proxy(secret=secret))
    assert is_served(talk, bearer(KEY))["identity"] == "agents/keys#ci"
    assert is_served(talk, bearer(OTHER), is_new=False)["identity"] == "agents/keys#ci"


def test_a_malformed_record_is_left_out_alone(converse: Start):
    talk = converse(proxy(secret=keys(bad={"hash": "x"}, ci=KEY)))
    is_served(talk, bearer(KEY))


def test_a_missing_secret_closes_the_place(converse: Start):
    talk = converse(forward(identity=IDENTITY))
    talk.client >> bearer(KEY)
    assert talk.client.answer()[0] == 403
