"""Users and passwords on listeners: who is right, who is wrong, and that nobody waits long for anybody else's check."""

from __future__ import annotations

import base64
import gc
import threading
import time
from typing import Any

import argon2
import bcrypt
import pytest

from egressproxy.gateway.identity import authenticator, authenticators, checked_credentials
from egressproxy.gateway.identity.checked_credentials import GUESSES_S, MAX_GUESSES, MAX_OF_CLIENT, THREADS, WRONG_S
from egressproxy.identity import passwords
from egressproxy.identity.credentials import CredentialRefused
from egressproxy.identity.passwords import PasswordVerifier, hash_problem
from egressproxy.model.secret import SecretBytes
from tests.gateway.conftest import Start
from tests.gateway.identity.test_tokens import CLUSTER, basic, bearer, is_refused, is_served
from tests.gateway.kit import GET, forward
from tests.support import manifests as m
from tests.support.conversation import Conversation

ARGON2 = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1).hash("opensesame:é")
BCRYPT = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
USERS = m.secret("users", {"alice": ARGON2, ".htpasswd": f"ci:{BCRYPT.replace('$2b$', '$2y$')}\nteam.robot:{BCRYPT}\n"})


def users(*more: Any, **sections: Any) -> list[Any]:
    return forward(USERS, *more, identity={"basic": {"secretRef": {"name": "users"}}, **sections})


def test_users_are_known_by_their_name(converse: Start):
    talk = converse(users())
    talk.client >> GET
    status, phrase, fields, _ = talk.client.answer()
    assert (status, phrase) == (
        407,
        b"authentication is required: show a user name and a password in Proxy-Authorization",
    )
    assert fields["Proxy-Authenticate"] == 'Basic realm="egressproxy", charset="UTF-8"'
    record = is_served(talk, basic("alice", "opensesame:é"))
    assert (record["identity"], record["identity_source"], record["namespace"]) == ("agents/users#alice", "basic", "-")
    assert is_served(talk, basic("ci", "secret"), is_new=False)["identity"] == "agents/users#ci"


def test_a_user_may_be_a_service_account(converse: Start):
    record = is_served(converse(users()), basic("team.robot", "secret"))
    assert (record["namespace"], record["service_account"]) == ("team", "robot")
    assert record["identity"] == "system:serviceaccount:team:robot"


@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", "wrong"), ("nobody", "secret"), ("", "secret"), ("ci", ""), ("CI", "secret"), ("ci", "secret" * 20)],
)
def test_wrong_users_and_wrong_passwords_are_told_the_same(converse: Start, user: str, password: str):
    talk = converse(users())
    for _ in range(2):  # the second is remembered
        assert is_refused(talk, basic(user, password))[0] == "the user name or the password is wrong"


def test_who_was_wrong_is_not_told_to_show_what_was_shown(converse: Start):
    talk = converse(users())
    talk.client >> basic("alice", "wrong")
    error = talk.client.answer()[3]
    assert error["remedy"] == "show the right user name and password in Proxy-Authorization"


def test_a_wrong_password_is_no_invalid_token(converse: Start):
    talk = converse(users(CLUSTER.config_map, token={"issuers": [CLUSTER.written]}))
    for request in (basic("ci", "wrong"), basic("ci", "wrong"), bearer("x")):
        talk.client >> request
        head = talk.client.take(rb"HTTP/1.1 407 .*?\r\n\r\n.*")[0]
        assert b"Proxy-Authenticate: Basic" in head
        assert (b"invalid_token" in head) is (request == bearer("x"))


def test_what_is_missing_and_how_to_show_it_are_two_sentences(converse: Start):
    talk = converse(users(CLUSTER.config_map, token={"issuers": [CLUSTER.written]}))
    talk.client >> GET
    error = talk.client.answer()[3]
    assert error["message"] == (
        "authentication is required: show a token, or a user name and a password, in Proxy-Authorization"
    )
    assert error["remedy"] == (
        "write the proxy's URL as http://any:TOKEN@GATEWAY or http://USER:PASSWORD@GATEWAY, or send the field "
        "Proxy-Authorization: Bearer TOKEN or Proxy-Authorization: Basic BASE64(USER:PASSWORD)"
    )


def test_a_name_that_is_not_there_costs_the_check_of_a_hash(monkeypatch: pytest.MonkeyPatch):
    checked: list[bytes] = []
    monkeypatch.setattr(passwords, "_matches", lambda hashed, password: bool(checked.append(hashed)) or True)
    verifier = PasswordVerifier({"ci": SecretBytes(BCRYPT.encode())}, "agents/users")
    with pytest.raises(CredentialRefused, match="the user name or the password is wrong"):
        verifier.verify(b"nobody", b"secret")
    assert checked == [BCRYPT.encode()]


def test_tokens_and_users_on_one_listener(converse: Start):
    talk = converse(users(CLUSTER.config_map, token={"issuers": [CLUSTER.written]}))
    assert is_served(talk, basic("ci", "secret"))["identity"] == "agents/users#ci"
    assert is_served(talk, basic("ci", CLUSTER.token()), is_new=False)["service_account"] == "robot"
    assert is_served(talk, bearer(CLUSTER.token()), is_new=False)["service_account"] == "robot"
    is_refused(talk, basic("ci", CLUSTER.unsigned() + "x"))


def test_two_credentials_at_once_are_refused(converse: Start):
    token = {"header": "X-Token", "issuers": [CLUSTER.written]}
    talk = converse(users(CLUSTER.config_map, token=token))
    both = basic("ci", "secret").replace(b"\r\n\r\n", b"\r\nX-Token: %b\r\n\r\n" % CLUSTER.token().encode())
    assert is_refused(talk, both)[0] == "two credentials at once: show one"
    assert is_served(talk, basic("ci", "secret"))["identity"] == "agents/users#ci"


def test_a_password_that_was_changed_holds_no_more(converse: Start):
    talk = converse(users())
    is_served(talk, basic("ci", "secret"))
    other = m.secret("users", {"ci": bcrypt.hashpw(b"other", bcrypt.gensalt(4)).decode()})
    talk.reload(forward(other, identity={"basic": {"secretRef": {"name": "users"}}}))
    is_refused(talk, basic("ci", "secret"))
    is_served(talk, basic("ci", "other"), is_new=False)


class Gate:
    """Holds every check until it is opened, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.count = 0
        verify = authenticators._Verifier.verify

        def held(own: Any, shown: Any, now: float) -> Any:
            self.count += 1
            assert self.opened.wait(30)
            return verify(own, shown, now)

        monkeypatch.setattr(authenticators._Verifier, "verify", held)


def test_connections_that_show_the_same_password_share_one_check(converse: Start, monkeypatch: pytest.MonkeyPatch):
    gate = Gate(monkeypatch)
    talk = converse(users())
    clients = [talk.client, *(talk.connect() for _ in range(39))]
    for client in clients:
        client >> basic("nobody", "secret")
    gate.opened.set()
    assert {client.answer()[0] for client in clients} == {407}
    assert gate.count == 1


def test_a_flood_of_wrong_passwords_is_bounded_for_its_client_alone(converse: Start, monkeypatch: pytest.MonkeyPatch):
    gate = Gate(monkeypatch)
    talk = converse(users())
    flood = [talk.connect() for _ in range(THREADS + MAX_OF_CLIENT + 3)]
    for number, client in enumerate(flood):
        client >> basic("alice", f"guess {number}")
    other = talk.connect(address="10.0.0.77")
    other >> basic("ci", "secret")
    for client in flood[-3:]:
        status, phrase, fields, _ = client.answer()
        assert (status, phrase, fields["Retry-After"]) == (503, b"too many credentials are being checked", "1")
    gate.opened.set()
    talk.dialled("a.example", 80)  # the other client is served, before most of the flood was looked at
    assert {client.answer()[0] for client in flood[:-3]} == {407}


def guesses(talk: Conversation, number: int) -> None:
    for each in range(number):
        assert is_refused(talk, basic("alice", f"guess {each}"))[0] == "the user name or the password is wrong"


def test_who_guesses_passwords_has_to_wait(converse: Start, monkeypatch: pytest.MonkeyPatch):
    """With the cost that htpasswd takes by itself a thousand could be tried in a second."""
    talk = converse(users(CLUSTER.config_map, token={"issuers": [CLUSTER.written]}))
    is_served(talk, basic("ci", "secret"))
    guesses(talk, MAX_GUESSES)
    talk.client >> basic("alice", "opensesame:é")
    status, phrase, fields, error = talk.client.answer()
    assert (status, phrase) == (429, b"this client has shown too many wrong passwords")
    assert 0 < int(fields["Retry-After"]) <= GUESSES_S
    assert error["reason"] == "credentials_refused"
    assert is_served(talk, basic("ci", "secret"), is_new=False)["identity"] == "agents/users#ci", (
        "who is known has not to wait"
    )
    assert is_served(talk, bearer(CLUSTER.token()), is_new=False)["service_account"] == "robot"
    other = talk.connect(address="10.0.0.77")
    other >> basic("alice", "wrong")
    assert other.answer()[0] == 407
    monkeypatch.setattr(checked_credentials, "monotonic", lambda: time.monotonic() + GUESSES_S)
    assert is_served(talk, basic("alice", "opensesame:é"), is_new=False)["identity"] == "agents/users#alice"


def test_a_client_with_one_wrong_password_does_not_guess(converse: Start, monkeypatch: pytest.MonkeyPatch):
    """A job that was set up wrong asks again and again, and others share its address."""
    talk = converse(users())
    ahead_s = 0.0
    for module in (authenticator, checked_credentials):
        monkeypatch.setattr(module, "time", lambda: time.time() + ahead_s)
    for _ in range(MAX_GUESSES + 2):
        ahead_s += WRONG_S
        is_refused(talk, basic("alice", "wrong"))
    is_served(talk, basic("ci", "secret"))


def test_a_reload_gives_no_more_guesses(converse: Start):
    talk = converse(users())
    guesses(talk, MAX_GUESSES)
    talk.reload(users(address={"clients": [{"cidrs": ["10.9.9.9/32"], "namespace": "a", "serviceAccount": "b"}]}))
    talk.client >> basic("ci", "secret")
    assert talk.client.answer()[0] == 429


def test_a_client_that_leaves_while_its_password_is_checked_leaves_nothing_behind(
    converse: Start, monkeypatch: pytest.MonkeyPatch
):
    gate = Gate(monkeypatch)
    talk = converse(users())
    for number in range(5):
        client = talk.connect()
        client >> basic("ci", f"secret {number}")
        client.leaves()
    gate.opened.set()
    talk.until(lambda: not talk.snapshot.authenticators.checks.is_busy)
    assert gate.count == THREADS, "what nobody waits for any more is not begun"


@pytest.mark.parametrize(
    "value",
    [
        b"secret", b"", b"$1$abc$def", b"$5$rounds=5000$a$b", b"{SHA}abc", b"$apr1$a$b", b"$2b$15$" + b"a" * 53,
        b"$2b$03$" + b"a" * 53, b"$2b$10$" + b"a" * 52, b"$argon2id$v=19$m=1048577,t=1,p=1$YQ$YQ",
        b"$argon2id$v=19$m=64,t=99,p=1$YQ$YQ", b"$argon2id$v=16$m=64,t=1,p=1$YQ$YQ", b"*",
    ],
    ids=range(13),
)  # fmt: skip
def test_what_is_no_hash_or_takes_too_much(value: bytes):
    problem = hash_problem(value)
    assert problem
    assert not value or value.decode() not in problem


def test_what_is_one():
    assert hash_problem(ARGON2.encode()) == hash_problem(BCRYPT.encode()) == ""


def test_a_hash_that_is_one_in_form_alone_lets_nobody_in():
    for hashed in (b"$argon2id$v=19$m=64,t=1,p=1$YQ$YQ", b"$argon2i$v=19$m=64,t=1,p=1$c29tZXNhbHQ$YQ"):
        assert not hash_problem(hashed)
        with pytest.raises(CredentialRefused):
            PasswordVerifier({"a": SecretBytes(hashed)}, "agents/users").verify(b"a", b"")


def test_nothing_of_a_password_is_logged(converse: Start, capsys: pytest.CaptureFixture[str]):
    talk = converse(users())
    is_refused(talk, basic("alice", "wrong-password-4711"))
    shown = base64.b64encode(b"alice:wrong-password-4711").decode()
    said = f"{talk.records} {capsys.readouterr()} {talk.snapshot} {talk.snapshot.authenticators}"
    assert "4711" not in said
    assert shown not in said


def test_nothing_that_is_kept_leads_to_a_password(converse: Start):
    """An error has the frames that it went through, and these what was shown."""
    talk = converse(users())
    is_refused(talk, basic("alice", "wrong-password-4711"))
    is_served(talk, basic("ci", "secret"))
    knows = next(iter(talk.snapshot.ports.values())).first.authenticator
    assert knows is not None
    checked = knows._credentials
    assert checked._wrong
    assert checked._known
    for kept in (*checked._wrong.values(), *checked._known.values()):
        assert not any(isinstance(each, BaseException) for each in gc.get_referents(kept))
        assert b"4711" not in repr(gc.get_referents(kept)).encode()
        assert b"secret" not in repr(gc.get_referents(kept)).encode()


@pytest.mark.parametrize("user", ["-", "team/robot", "uid-1000", "team robot#bob"])
def test_no_user_has_the_name_of_nobody_or_of_another_client(converse: Start, user: str):
    """Nobody's policies and switches would hold for the first, and for the second the limits of a service account."""
    named = m.secret("users", {".htpasswd": f"{user}:{BCRYPT}\n"})
    talk = converse(forward(named, identity={"basic": {"secretRef": {"name": "users"}}}))
    assert is_served(talk, basic(user, "secret"))["identity"] == f"agents/users#{user}"


def test_a_user_of_another_secret_is_another_client_whatever_the_name(converse: Start):
    """The limits, MCP sessions and waiting requests of one must not be those of the other."""
    others = m.policy(["a.example"], name="others", identity={"basic": {"secretRef": {"name": "others"}}})
    others["spec"]["targetRefs"][0]["sectionName"] = "b"
    made = [m.gateway(m.forward_listener(3128, "a"), m.forward_listener(3129, "b")), others, USERS]
    made += [m.policy(["a.example"], identity={"basic": {"secretRef": {"name": "users"}}})]
    talk = converse([*made, m.secret("others", {"ci": BCRYPT})])
    assert is_served(talk, basic("ci", "secret"))["identity"] == "agents/users#ci"
    talk.client = talk.connect(1)
    assert is_served(talk, basic("ci", "secret"))["identity"] == "agents/others#ci"
