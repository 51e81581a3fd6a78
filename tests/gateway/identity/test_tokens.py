"""Bearer tokens on listeners: who a client is, what it is told, and where its credential goes (nowhere)."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest

from tests.gateway.conftest import Start
from tests.gateway.kit import ESTABLISHED, GET, GET_SENT, OK, OK_PASSED, connect, forward, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.tokens import TokenIssuer

CLUSTER = TokenIssuer()


def identity(**more: Any) -> dict[str, Any]:
    return {"token": {"issuers": [CLUSTER.written]}, **more}


def tokens(**more: Any) -> list[Any]:
    return forward(CLUSTER.config_map, identity=identity(**more))


def shows(field: bytes, value: str, request: bytes = GET) -> bytes:
    return request.replace(b"\r\n\r\n", b"\r\n%b: %b\r\n\r\n" % (field, value.encode()))


def bearer(token: str, request: bytes = GET) -> bytes:
    return shows(b"Proxy-Authorization", f"Bearer {token}", request)


def basic(user: str, password: str, request: bytes = GET) -> bytes:
    return shows(b"Proxy-Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode(), request)


def is_served(talk: Conversation, request: bytes, *, is_new: bool = True, sent: bytes = GET_SENT) -> dict[str, Any]:
    count = len(talk.records)
    talk.client >> request
    if is_new:
        talk.dialled("a.example", 80)
    talk.origin << sent
    talk.origin >> OK
    talk.client << OK_PASSED
    return talk.record(count)


def is_refused(talk: Conversation, request: bytes, status: int = 407) -> tuple[str, dict[str, str]]:
    """The phrase and the fields of the answer."""
    talk.client >> request
    got, phrase, fields, error = talk.client.answer()
    assert got == status, (got, phrase)
    assert error["reason"] == talk.record()["reason"]
    return phrase.decode(), fields


def test_a_service_account_is_known_by_its_token(converse: Start):
    talk = converse(tokens())
    record = is_served(talk, bearer(CLUSTER.token()))
    assert (record["namespace"], record["service_account"]) == ("team", "robot")
    assert record["identity"] == "system:serviceaccount:team:robot"
    assert record["identity_source"] == "token"


def test_a_token_may_come_as_a_password(converse: Start):
    talk = converse(tokens())
    assert is_served(talk, basic("anything", CLUSTER.token()))["service_account"] == "robot"


def test_who_shows_nothing_is_asked_and_may_answer_on_the_same_connection(converse: Start):
    """So does git: it sends nothing before the 407, and asks again on its connection."""
    talk = converse(tokens())
    talk.client >> GET
    head = talk.client.take(
        rb"HTTP/1.1 407 authentication is required: show a token in Proxy-Authorization\r\n(.*?)\r\n\r\n.*"
    )[1]
    assert b'Proxy-Authenticate: Basic realm="egressproxy", charset="UTF-8"\r\n' in head
    assert b'Proxy-Authenticate: Bearer realm="egressproxy"\r\n' in head
    assert talk.record()["reason"] == "credentials_required"
    is_served(talk, bearer(CLUSTER.token()))


def test_a_listener_that_requires_nobody_serves_strangers_and_refuses_what_is_wrong(converse: Start):
    talk = converse(tokens(required=False))
    assert is_served(talk, GET)["namespace"] == "-"
    assert is_refused(talk, bearer(CLUSTER.unsigned() + "x"))
    assert is_served(talk, GET, is_new=False)["namespace"] == "-"


def test_the_verdict_holds_for_a_connection_until_another_credential_is_shown(converse: Start):
    talk = converse(tokens())
    one, two = CLUSTER.token(), CLUSTER.token("system:serviceaccount:team:other")
    assert is_served(talk, bearer(one))["service_account"] == "robot"
    assert is_served(talk, bearer(one), is_new=False)["service_account"] == "robot"
    assert is_served(talk, bearer(two), is_new=False)["service_account"] == "other"
    assert is_served(talk, bearer(one), is_new=False)["service_account"] == "robot"
    is_refused(talk, GET)


@pytest.mark.parametrize(
    ("claims", "phrase"),
    [
        ({"exp": -200}, "the token expired 3 min ago"),
        ({"exp": -90_000}, "the token expired 1 d ago"),
        ({"exp": None}, "the token has no claim exp"),
        ({"aud": "somebody-else"}, "the token is for another audience"),
        ({"aud": None}, "the token has no claim aud"),
        ({"aud": []}, "the token has no claim aud"),
        ({"nbf": +200}, "the token is not valid yet: compare the clocks"),
        ({"iat": +200}, "the token is not valid yet: compare the clocks"),
        ({"iss": "https://another.example"}, "the issuer of the token is not trusted here"),
        ({"iss": None}, "the issuer of the token is not trusted here"),
        ({"sub": "alice"}, "the token is that of no service account"),
        ({"sub": "system:serviceaccount:team:robot:more"}, "the token is that of no service account"),
        ({"groups": ["g"] * 257}, "the claim groups of the token has more than 256 values"),
    ],
)
def test_a_token_that_does_not_hold(converse: Start, claims: dict[str, Any], phrase: str):
    """Times are seconds from now."""
    now = int(time.time())
    claims = {name: now + value if isinstance(value, int) else value for name, value in claims.items()}
    talk = converse(tokens())
    said, fields = is_refused(talk, bearer(CLUSTER.token(**claims)))
    assert said == phrase
    assert fields["Proxy-Authenticate"].endswith('error="invalid_token"')
    assert talk.record()["reason"] == "credentials_refused"


def test_clocks_may_be_half_a_minute_apart(converse: Start):
    talk = converse(tokens())
    now = int(time.time())
    is_served(talk, bearer(CLUSTER.token(exp=now - 20)))
    is_served(talk, bearer(CLUSTER.token(nbf=now + 20, iat=now + 20)), is_new=False)


@pytest.mark.parametrize(
    "value",
    [
        "Bearer",
        "Bearer ",
        "Bearer a.b",
        "Bearer a.b.c.d.e",
        "Bearer a.b.c, Bearer a.b.c",
        "Bearer a.b.c d.e.f",
        "Bearer " + "[" * 4000 + ".b.c",
        "Bearer W1tbW1tb.W1tbW1tb.c",
        "Bearer e30.e30.",
        "Bearer " + "a" * 17000 + ".b.c",
        "Basic",
        "Basic !!!",
        "Basic YQ==",
        "Basic " + base64.b64encode(b"user:password").decode(),
        "Basic " + base64.b64encode(b"user:a\nb").decode(),
        "Digest username=a",
        "Negotiate abc",
        ", ",
    ],
    ids=range(18),
)
def test_what_is_no_token(converse: Start, value: str):
    talk = converse(tokens())
    is_refused(talk, shows(b"Proxy-Authorization", value))


def test_a_token_of_arrays_in_arrays_is_malformed(converse: Start):
    talk = converse(tokens())
    deep = base64.urlsafe_b64encode(b"[" * 6000).decode().rstrip("=")
    assert is_refused(talk, bearer(f"{deep}.{deep}.c"))[0] == "the token is malformed"


def test_a_reverse_listener_asks_with_401_and_takes_the_field_out(converse: Start):
    talk = converse(reverse(objects=(CLUSTER.config_map,), identity=identity()))
    request = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    _, fields = is_refused(talk, request, 401)
    assert fields["WWW-Authenticate"] == 'Bearer realm="egressproxy"'
    is_served(talk, shows(b"Authorization", f"Bearer {CLUSTER.token()}", request))
    is_refused(talk, shows(b"Proxy-Authorization", f"Bearer {CLUSTER.token()}", request), 401)
    twice = shows(b"Authorization", f"Bearer {CLUSTER.token()}", request)
    is_refused(talk, shows(b"Authorization", f"Bearer {CLUSTER.token()}", twice), 401)


def test_a_field_of_its_own_carries_the_token(converse: Start):
    written = {"header": "X-Agent-Token", "issuers": [CLUSTER.written]}
    talk = converse(forward(CLUSTER.config_map, identity={"token": written}))
    token = CLUSTER.token()
    is_served(talk, shows(b"x-agent-token", token))
    is_served(talk, shows(b"X-Agent-Token", f"Bearer {token}", shows(b"X_Agent_Token", "a")), is_new=False)
    is_refused(talk, bearer(token))
    twice, _ = is_refused(talk, shows(b"X-Agent-Token", token, shows(b"X-Agent-Token", token)))
    assert twice == "the field x-agent-token stands more than once"
    other = b"Authorization: Bearer of-the-origin\r\n"
    sent = GET_SENT.replace(b"Via", other + b"Via")
    is_served(
        talk, shows(b"X-Agent-Token", token, shows(b"Authorization", "Bearer of-the-origin")), is_new=False, sent=sent
    )


def test_a_token_in_its_field_makes_it_none_elsewhere(converse: Start):
    """Whoever has shown it before, on this connection or on another."""
    written = {"header": "X-Agent-Token", "issuers": [CLUSTER.written]}
    users = m.secret("users", {".htpasswd": "ci:$2b$04$" + "a" * 53})
    talk = converse(
        forward(CLUSTER.config_map, users, identity={"token": written, "basic": {"secretRef": {"name": "users"}}})
    )
    token = CLUSTER.token()
    is_served(talk, shows(b"X-Agent-Token", f"Bearer {token}"))
    assert is_refused(talk, bearer(token))[0] == "tokens are not taken here: show a user name and a password"
    is_served(talk, shows(b"X-Agent-Token", f"Bearer {token}"), is_new=False)
    talk.client = talk.connect()
    assert is_refused(talk, bearer(token))[0] == "tokens are not taken here: show a user name and a password"


def test_no_spelling_of_the_field_of_a_token_is_passed_on(converse: Start):
    written = {"header": "X-Agent-Token", "issuers": [CLUSTER.written]}
    talk = converse(forward(CLUSTER.config_map, identity={"token": written, "required": False}))
    is_served(talk, shows(b"X_Agent_Token", CLUSTER.token()))


def test_a_tunnel_has_the_client_of_its_connect(converse: Start):
    talk = converse(tokens())
    talk.client >> connect("a.example:80")
    talk.client.answer()
    talk.client >> bearer(CLUSTER.token(), connect("a.example:80"))
    talk.client << ESTABLISHED
    inside = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    assert is_served(talk, inside)["service_account"] == "robot"
    # what is shown inside is neither asked for nor passed on
    assert (
        is_served(talk, bearer(CLUSTER.token("system:serviceaccount:x:y"), inside), is_new=False)["namespace"] == "team"
    )


def test_a_tunnel_whose_rules_have_changed_ends(converse: Start):
    talk = converse(tokens())
    talk.client >> bearer(CLUSTER.token(), connect("a.example:80"))
    talk.client << ESTABLISHED
    other = TokenIssuer("https://other.example")
    talk.reload(forward(other.config_map, identity={"token": {"issuers": [other.written]}}))
    phrase, _ = is_refused(talk, b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", 403)
    assert phrase == "Denied: who may ask here has changed since the tunnel was opened: open another"
    talk.client.is_closed()


def test_a_reload_with_the_same_rules_remembers_and_another_one_asks_again(converse: Start):
    talk = converse(tokens())
    token = CLUSTER.token()
    is_served(talk, bearer(token))
    before = next(iter(talk.snapshot.ports.values())).first.authenticator
    talk.reload(tokens(required=True))  # as before, in other words
    assert next(iter(talk.snapshot.ports.values())).first.authenticator is before
    is_served(talk, bearer(token), is_new=False)
    other = TokenIssuer("https://other.example")
    talk.reload(forward(other.config_map, identity={"token": {"issuers": [other.written]}}))
    assert is_refused(talk, bearer(token))[0] == "the issuer of the token is not trusted here"


def test_pipelined_requests_are_each_of_their_own_client(converse: Start):
    talk = converse(tokens())
    talk.client >> bearer(CLUSTER.token()) + GET + bearer(CLUSTER.token("system:serviceaccount:team:other"))
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.client.answer()[0] == 407
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    assert [record["service_account"] for record in talk.records] == ["robot", "-", "other"]
