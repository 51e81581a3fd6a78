"""A request that has waited for a person goes on for the client that has sent it, if that is still believed."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

import bcrypt
import jwt.api_jwt
import pytest

from egressproxy.gateway.identity import authenticator, checked_credentials
from egressproxy.operators.approval.approval_hold import holds
from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.gateway.identity.test_tokens import CLUSTER, basic, bearer
from tests.gateway.kit import GET_SENT, OK, OK_PASSED, connect, forward, reverse
from tests.operators.approval.test_approval_hold import TYPE, decide
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.tokens import TokenIssuer

CI = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
TOKENS = {"token": {"issuers": [CLUSTER.written]}}
USERS = {"basic": {"secretRef": {"name": "users"}}}
ROBOT_AT = {"cidrs": ["10.0.0.9/32"], "namespace": "team", "serviceAccount": "robot"}
POST = b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\n%b\r\n{}"


def held(*objects: Any, identity: Any = TOKENS, **config: Any) -> list[Any]:
    extension = {"name": "hold", "type": TYPE, "config": config}
    return forward(*objects, identity=identity, extensions=[extension])


def goes_on(talk: Conversation) -> None:
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED


def the_hold(talk: Conversation) -> Any:
    """Once its client is known: credentials are checked in threads."""
    assert talk.until(lambda: bool(waiting_now(talk)))
    (hold,) = waiting_now(talk)
    talk.no_dial()
    return hold


def waiting_now(talk: Conversation) -> list[Any]:
    found: list[Any] = holds(talk.snapshot.filters.of_type(TYPE), None)["holds"]
    return found


def approve(talk: Conversation) -> None:
    assert decide(talk, the_hold(talk)["id"], approves=True) == 1


def refused(talk: Conversation) -> tuple[int, str]:
    status, phrase, _, error = talk.client.answer()
    talk.no_dial()
    assert error["reason"] == "credentials_refused"
    return status, phrase.decode()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Called with seconds: from then on it is so much later for everything that believes a credential."""
    moved, wall = [0.0], time.time

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=moved[0])

    monkeypatch.setattr(jwt.api_jwt, "datetime", Later)
    for module in (authenticator, checked_credentials):
        monkeypatch.setattr(module, "time", lambda: wall() + moved[0])
    return lambda seconds: moved.__setitem__(0, seconds)


def test_a_token_that_expired_meanwhile_is_refused(converse: Start, later: Any):
    talk = converse(held(CLUSTER.config_map))
    talk.client >> bearer(CLUSTER.token())
    hold = the_hold(talk)
    later(3 * 3600)
    assert decide(talk, hold["id"], approves=True) == 1
    assert refused(talk) == (407, "the token expired 2 h ago")


def test_a_token_that_still_holds_is_checked_and_goes_on(converse: Start, later: Any):
    talk = converse(held(CLUSTER.config_map))
    talk.client >> bearer(CLUSTER.token())
    later(1800)
    approve(talk)
    goes_on(talk)


def test_a_tunnel_and_a_stream_of_http2_are_not_opened_with_one_that_expired(converse: Start, later: Any):
    talk = converse(held(CLUSTER.config_map))
    token = f"Proxy-Authorization: Bearer {CLUSTER.token()}\r\n".encode()
    talk.client >> connect("a.example:443")[:-2] + token + b"\r\n"
    hold = the_hold(talk)
    later(2 * 3600)
    decide(talk, hold["id"], approves=True)
    assert refused(talk)[0] == 407
    later(0)
    talk = converse(held(CLUSTER.config_map))
    client = speak_http2(talk)
    stream = client.ask(b"GET", b"/", b"a.example", (b"proxy-authorization", b"Bearer " + CLUSTER.token().encode()))
    hold = the_hold(talk)
    later(2 * 3600)
    decide(talk, hold["id"], approves=True)
    assert talk.until(lambda: not talk.snapshot.authenticators.checks.is_busy)
    assert client.answer(stream).status == 407
    talk.no_dial()


def test_so_it_is_where_its_body_has_waited(converse: Start, later: Any):
    talk = converse(held(CLUSTER.config_map, tools=["pay"]))
    token = f"Proxy-Authorization: Bearer {CLUSTER.token()}\r\nContent-Type: application/json\r\n".encode()
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay"}}'
    talk.client >> (POST % token).replace(b"Length: 2", b"Length: %d" % len(body))[:-2] + body
    hold = the_hold(talk)
    later(2 * 3600)
    decide(talk, hold["id"], approves=True)
    assert refused(talk)[0] == 407


def test_a_key_that_a_reload_takes_away_meanwhile(converse: Start):
    talk = converse(held(CLUSTER.config_map))
    talk.client >> bearer(CLUSTER.token())
    hold = the_hold(talk)
    talk.reload(held(m.config_map("keys", {"jwks.json": TokenIssuer().jwks()})))
    assert decide(talk, hold["id"], approves=True) == 1
    assert refused(talk) == (407, "the signature of the token is wrong")


def test_a_password_that_a_reload_changes_meanwhile(converse: Start):
    for after, is_right in ((b"other", False), (b"secret", True)):
        talk = converse(held(m.secret("users", {"ci": CI}), identity=USERS))
        talk.client >> basic("ci", "secret")
        hold = the_hold(talk)
        changed = m.secret("users", {"ci": bcrypt.hashpw(after, bcrypt.gensalt(4)).decode()})
        talk.reload(held(changed, identity=USERS))
        assert decide(talk, hold["id"], approves=True) == 1
        if is_right:
            goes_on(talk)
        else:
            assert refused(talk) == (407, "the user name or the password is wrong")


def test_an_address_that_is_somebody_elses_meanwhile(converse: Start):
    identity = {"address": {"clients": [ROBOT_AT]}}
    talk = converse(held(identity=identity))
    talk.client >> b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"
    hold = the_hold(talk)
    other = {"address": {"clients": [{**ROBOT_AT, "serviceAccount": "other"}]}}
    talk.reload(held(identity=other))
    assert decide(talk, hold["id"], approves=True) == 1
    assert refused(talk) == (
        403, "Denied: who may ask here has changed while the request waited: send it again",
    )  # fmt: skip


def test_a_listener_that_begins_to_ask_meanwhile(converse: Start):
    """The request has shown nothing: it is asked for it."""
    talk = converse(held(CLUSTER.config_map, identity={}))
    talk.client >> b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"
    hold = the_hold(talk)
    talk.reload(held(CLUSTER.config_map))
    assert decide(talk, hold["id"], approves=True) == 1
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"]) == (407, "credentials_required")
    assert fields["Proxy-Authenticate"]
    talk.no_dial()


def test_a_field_that_counts_no_more_meanwhile(converse: Start):
    """The listeners of a port have their fields the other way round: what was shown in one says nothing any more."""
    field = {"token": {**TOKENS["token"], "header": "X-Agent-Token"}}
    hold = [{"name": "hold", "type": TYPE, "config": {}}]

    def listeners(of_a: Any, of_b: Any) -> list[Any]:
        both = [m.http_listener(8080, name=name, hostname=f"{name}.example") for name in "ab"]
        objects = reverse(objects=(CLUSTER.config_map,), extensions=hold)
        objects[0] = m.gateway(*both)
        for name, identity in (("a", of_a), ("b", of_b)):
            policy = m.policy(name=name, identity=identity)
            policy["spec"]["targetRefs"][0]["sectionName"] = name
            objects.append(policy)
        return objects

    talk = converse(listeners(field, TOKENS))
    shown = f"X-Agent-Token: {CLUSTER.token()}\r\n\r\n".encode()
    talk.client >> b"GET / HTTP/1.1\r\nHost: a.example\r\n" + shown
    held_request = the_hold(talk)
    talk.reload(listeners(TOKENS, field))
    assert decide(talk, held_request["id"], approves=True) == 1
    assert refused(talk)[0] == 403
