"""The caller's token is exchanged: RFC 8693 and ID-JAG by the letter, and nobody gets what is another's."""

from __future__ import annotations

import asyncio
import gc
import time
from urllib.parse import parse_qsl

import pytest

from egressproxy.errors import Denied, GatewayError, GatewayFault, Reason
from egressproxy.filters.calls import CallFailed
from egressproxy.filters.credentials import exchanged_tokens
from egressproxy.filters.credentials.config import machine_field
from egressproxy.filters.credentials.token_exchange import TokenExchangeInjector
from egressproxy.filters.settings import backend_refs, secret_refs
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity, CallerToken
from egressproxy.model.exchange import CALLERS_OWN, BackendOrigin
from egressproxy.model.fields import Fields
from egressproxy.model.message import ResponseHead
from egressproxy.model.secret import SecretBytes
from egressproxy.telemetry.event_aggregator import EventAggregator
from egressproxy.telemetry.filter_meter import FilterMetrics
from tests.filters.credentials.kit import EC_KEY, ENDPOINT, LABEL, Endpoint, claims, exchange, injector, pem, sent
from tests.support.waiting import until

ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
SUBJECT = "accVkjcJyb4BWCxGsndESCJQbdFMogUC5PbRDqceLTC"
CONFIG = {
    "tokenEndpoint": ENDPOINT, "clientId": "rs08", "clientSecretRef": {"name": "idp", "key": "secret"},
    "resource": ["https://backend.example.com/api"],
}  # fmt: skip
SECRETS = {"idp/secret": "long-secure-random-secret\n"}
GRANT = {"tokenEndpoint": ENDPOINT}
SECRET = b"long-secure-random-secret"


def issued(token="issued-1", **more):
    told = {
        "access_token": token,
        "issued_token_type": ACCESS_TOKEN,
        "token_type": "Bearer",
        "expires_in": 3600,
        **more,
    }
    return 200, {name: value for name, value in told.items() if value is not None}


def caller(token: str = SUBJECT, *at: str) -> CallerIdentity:
    return CallerIdentity(
        name=f"https://as.example#{token}",
        source="token",
        token=CallerToken(SecretBytes(token.encode()), frozenset(at or ("agents/idp",))),
    )


def of(identity, *lines, target=b"/v1/x"):
    x = exchange(*lines, target=target)
    x.identity = identity
    return x


def made(
    *answers, calls=None, secrets=SECRETS, metrics=None, notices=None, **more
) -> tuple[TokenExchangeInjector, Endpoint]:
    idp = Endpoint(*answers)
    config = {"tokenExchange": {**CONFIG, **more}}
    return injector(config, secrets, {LABEL: idp, **(calls or {})}, metrics=metrics, notices=notices), idp


def authorization(x):
    return x.request.fields.get_all(b"authorization")


async def failed(filter_, identity, kind=GatewayFault, reason=Reason.CREDENTIAL_MISSING, status=502) -> GatewayError:
    x = of(identity)
    with pytest.raises(kind) as caught:
        await sent(filter_, x)
    error = caught.value
    assert (error.reason, error.status) == (reason, status)
    told = f"{error!r} {error.message} {error.detail} {error.remedy}".encode()
    for secret in (SECRET, identity.token.value.reveal() if identity.token else SECRET):
        assert secret not in told
        assert secret not in x.request.fields.block
    assert authorization(x) == []
    return error


REFUSED = (Denied, Reason.CREDENTIAL_NOT_FOR_CALLER, 403)


async def test_the_example_of_the_rfc():
    """RFC 8693 section 2.3."""
    token = (
        "eyJhbGciOiJFUzI1NiIsImtpZCI6IjllciJ9.eyJhdWQiOiJodHRwczovL2JhY2tlbmQuZXhhbXBsZS5jb20iLCJpc3MiOiJodHRwczovL2Fz"
        "LmV4YW1wbGUuY29tIiwiZXhwIjoxNDQxOTE3NTkzLCJpYXQiOjE0NDE5MTc1MzMsInN1YiI6ImJkY0BleGFtcGxlLmNvbSIsInNjb3BlIjoi"
        "YXBpIn0.40y3ZgQedw6rxf59WlwHDD9jryFOr0_Wh3CGozQBihNBhnXEQgU85AI9x3KmsPottVMLPIWvmDCMy5-kdXjwhw"
    )
    endpoint = {**ENDPOINT, "path": "/as/token.oauth2"}
    filter_, idp = made(issued(token, expires_in=60), tokenEndpoint=endpoint, subjectTokenType="AccessToken")
    x = await sent(filter_, of(caller(), (b"authorization", b"Bearer the-clients"), (b"x-api-key", b"k")))
    method, path, fields, body = idp.asked[0]
    assert (method, path) == (b"POST", b"/as/token.oauth2")
    assert fields.get(b"authorization") == b"Basic cnMwODpsb25nLXNlY3VyZS1yYW5kb20tc2VjcmV0"
    assert fields.get(b"content-type") == b"application/x-www-form-urlencoded"
    assert body == (
        b"grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange"
        b"&resource=https%3A%2F%2Fbackend.example.com%2Fapi"
        b"&subject_token=accVkjcJyb4BWCxGsndESCJQbdFMogUC5PbRDqceLTC"
        b"&subject_token_type=urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Aaccess_token"
    )
    assert authorization(x) == [b"Bearer " + token.encode()]
    assert x.request.fields.get(b"x-api-key") is None
    assert CALLERS_OWN in x.state


async def test_the_id_jag_of_an_enterprise():
    """MCP Enterprise-Managed Authorization, sections 4 and 5."""
    idp, chat = (
        Endpoint(issued("eyJhbGciOiJIUzI1NiIsI...", issued_token_type=ID_JAG, token_type="N_A", expires_in=300)),
        Endpoint((200, {"token_type": "Bearer", "access_token": "2YotnFZFEjr1zCsicMWpAA", "expires_in": 86400})),
    )
    chat.backend = "agents/chat-auth"
    config = {
        "tokenEndpoint": {**ENDPOINT, "path": "/oauth2/token"}, "authentication": "ClientSecretPost",
        "clientId": "2ec954a1d60620116d36d9ceb7", "clientSecretRef": {"name": "idp", "key": "secret"},
        "audience": ["https://auth.chat.example/"], "resource": ["https://mcp.chat.example/"],
        "scopes": ["chat.read", "chat.history"],
        "jwtBearer": {
            "tokenEndpoint": {"backendRef": {**ENDPOINT["backendRef"], "name": "chat-auth"}, "path": "/oauth2/token"},
            "clientId": "https://client.example.com/client.json",
        },
    }  # fmt: skip
    filter_ = injector(
        {"tokenExchange": config}, {"idp/secret": "a26d84873504215a34a86d52ef5cd64f4b76"},
        {LABEL: idp, "Backend chat-auth": chat},
    )  # fmt: skip
    x = await sent(filter_, of(caller("eyJraWQiOiJzMTZ0cVNtODhwREo4VGZCXzdrSEtQ...")))
    assert idp.form == [
        ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"), ("requested_token_type", ID_JAG),
        ("audience", "https://auth.chat.example/"), ("resource", "https://mcp.chat.example/"),
        ("scope", "chat.read chat.history"), ("subject_token", "eyJraWQiOiJzMTZ0cVNtODhwREo4VGZCXzdrSEtQ..."),
        ("subject_token_type", "urn:ietf:params:oauth:token-type:id_token"),
        ("client_id", "2ec954a1d60620116d36d9ceb7"), ("client_secret", "a26d84873504215a34a86d52ef5cd64f4b76"),
    ]  # fmt: skip
    assert chat.form == [
        ("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"), ("assertion", "eyJhbGciOiJIUzI1NiIsI..."),
        ("client_id", "https://client.example.com/client.json"),
    ]  # fmt: skip
    assert authorization(x) == [b"Bearer 2YotnFZFEjr1zCsicMWpAA"]
    for other in (issued("jag"), issued("jag", issued_token_type="urn:ietf:params:oauth:token-type:jwt")):
        idp.answers = [other]  # an access token, which the second server must not see
        await failed(filter_, caller(f"tok-{other[1]['issued_token_type']}"))
    idp.answers = [issued("same", issued_token_type=ID_JAG, token_type="N_A")]
    chat.answers = [(200, {"token_type": "Bearer", "access_token": "same"})]
    assert "assertion that it was shown" in (await failed(filter_, caller("other"))).detail
    assert len(chat.asked) == 2


async def test_every_field_of_the_request():
    filter_, idp = made(
        issued("jwt", issued_token_type="urn:ietf:params:oauth:token-type:jwt", token_type="N_A"),
        authentication="PrivateKeyJwt", clientSecretRef=None, privateKeyRef={"name": "idp", "key": "pem"},
        assertionAudience="https://as.example", requestedTokenType="Jwt", audience=["a", "b"], scopes=["x", "y"],
        actorToken={"secretRef": {"name": "actor"}}, secrets={"idp/pem": pem(EC_KEY), "actor/": "ACTOR-T\n"},
    )  # fmt: skip
    assert authorization(await sent(filter_, of(caller()))) == [b"Bearer jwt"]
    form = list(idp.form)
    assert form[:-3] == [
        ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
        ("requested_token_type", "urn:ietf:params:oauth:token-type:jwt"), ("audience", "a"), ("audience", "b"),
        ("resource", "https://backend.example.com/api"), ("scope", "x y"), ("subject_token", SUBJECT),
        ("subject_token_type", "urn:ietf:params:oauth:token-type:jwt"), ("actor_token", "ACTOR-T"),
        ("actor_token_type", "urn:ietf:params:oauth:token-type:jwt"),
    ]  # fmt: skip
    assert form[-3] == ("client_id", "rs08")
    assert claims(dict(form)["client_assertion"], EC_KEY)[1]["aud"] == "https://as.example"
    config = filter_._context.config
    assert [ref.name for ref in secret_refs(config)] == ["idp", "actor"]
    assert [where for where, _ in backend_refs(config)] == ["tokenExchange.tokenEndpoint.backendRef"]


async def test_an_actor_token_in_a_file_is_of_the_machine_and_is_read_each_time(tmp_path):
    file = tmp_path / "token"
    file.write_text("first\n")
    filter_, idp = made(issued(), actorToken={"tokenFile": str(file)})
    assert machine_field(filter_._context.config) == "tokenExchange.actorToken.tokenFile"
    await sent(filter_, of(caller("a")))
    file.write_text("second\n")
    await sent(filter_, of(caller("b")))
    assert [dict(parse_qsl(body.decode()))["actor_token"] for *_, body in idp.asked] == ["first", "second"]


async def test_one_exchange_for_each_token_however_many_ask():
    filter_, idp = made(issued("for-a"), issued("for-b"))
    idp.opened = asyncio.Event()
    a, b = caller("a"), caller("b")
    first = [asyncio.create_task(sent(filter_, of(a))) for _ in range(20)]
    await until(lambda: idp.asked)
    second = [asyncio.create_task(sent(filter_, of(caller("b")))) for _ in range(20)]
    await until(lambda: len(idp.asked) == 2)
    first[0].cancel()  # who leaves takes the exchange of the others not along
    idp.opened.set()
    assert {each for task in first[1:] for each in authorization(await task)} == {b"Bearer for-a"}
    assert {each for task in second for each in authorization(await task)} == {b"Bearer for-b"}
    for identity, value in ((a, b"for-a"), (b, b"for-b"), (caller("a"), b"for-a")):
        x = of(identity)
        assert filter_.backend_request(x) is None  # nothing waits any more
        assert authorization(x) == [b"Bearer " + value]
    assert len(idp.asked) == 2
    assert not filter_._is_ready  # nothing is left for whoever comes next
    assert filter_._lines.reveal() == b""


@pytest.mark.parametrize("identity", [ANONYMOUS, CallerIdentity("a", "b", name="x", source="certificate")])
async def test_a_caller_without_a_token_is_refused(identity):
    filter_, idp = made(issued())
    error = await failed(filter_, identity, *REFUSED)
    assert "has shown none" in error.message
    assert idp.asked == []


async def test_only_backends_that_the_policy_names_are_sent_tokens():
    filter_, idp = made(issued())
    await failed(filter_, caller(SUBJECT, "agents/other", "egress/idp"), *REFUSED)
    assert idp.asked == []


async def test_a_backend_that_may_not_have_the_credential_costs_no_exchange():
    filter_, idp = made(issued())
    x = of(caller())
    x.backend_origin = BackendOrigin("api.example", 80, False)
    with pytest.raises(Denied) as caught:
        filter_.backend_request(x)
    assert caught.value.reason is Reason.PLAINTEXT_CREDENTIAL
    assert idp.asked == []
    filter_._endpoint.is_verified = False
    assert "verified TLS" in (await failed(filter_, caller())).detail
    assert idp.asked == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((302, b""), "answered with 302"),
        ((500, {"error": "server_error"}), "500 (server_error)"),
        ((401, {"error": "invalid_client", "error_description": SUBJECT}), "401 (invalid_client)"),
        ((400, {"error": SUBJECT}), "answered with 400 for"),
        ((200, b"[" * 100_000), "no JSON object"),
        ((200, {"access_token": "x", "token_type": "Bearer"}), "no access token"),
        (issued(issued_token_type="urn:ietf:params:oauth:token-type:refresh_token"), "no access token"),
        (issued(issued_token_type=ID_JAG), "no access token"),
        (issued(issued_token_type=[ACCESS_TOKEN]), "no access token"),
        (issued(token_type="N_A"), "not a bearer token"),
        (issued(token_type="DPoP"), "not a bearer token"),
        (issued("a\r\nx: y"), "no usable access_token"),
        (issued("x" * 65537), "no usable access_token"),
        (issued("x" * 16385), "longer than 16384 bytes"),
        (issued(expires_in=-1), "expires_in"),
        (issued(SUBJECT), "the caller's own token"),
        (CallFailed(Reason.ADDRESS_DENIED, "backend agents/idp: 10.0.0.1 is a private address"), "private address"),
        (CallFailed(Reason.RESPONSE_TIMEOUT, "backend agents/idp: no answer in time"), "no answer"),
        (RuntimeError(SUBJECT), "RuntimeError"),
    ],
    ids=str,
)  # fmt: skip
async def test_without_an_exchange_nothing_goes_upstream(answer, said):
    filter_, idp = made(answer)
    error = await failed(filter_, caller())
    assert said in error.detail
    await failed(filter_, caller())
    assert len(idp.asked) == (2 if "invalid_client" in said else 1)  # the next attempt has to wait
    held = [each for each in gc.get_objects() if isinstance(each, exchanged_tokens._Entry)]
    assert all(each.error.__traceback__ is None for each in held if each.error is not None)


@pytest.mark.parametrize("code", ["invalid_grant", "invalid_request", "invalid_target", "access_denied"])
async def test_a_caller_whom_the_server_refuses_gets_403_and_no_alarm(code):
    notices = EventAggregator()
    filter_, _ = made((400, {"error": code}), notices=notices)
    assert code in (await failed(filter_, caller(), *REFUSED)).detail
    assert notices.take() == []


async def test_a_failure_of_one_caller_is_not_anothers(monkeypatch):
    monkeypatch.setattr(exchanged_tokens, "FIRST_RETRY_S", 0.01)
    metrics, notices = FilterMetrics(), EventAggregator()
    filter_, idp = made(
        (400, {"error": "invalid_grant"}),
        issued("for-b"),
        (503, b""),
        issued("for-a"),
        metrics=metrics,
        notices=notices,
    )
    await failed(filter_, caller("tok-a"), *REFUSED)
    assert authorization(await sent(filter_, of(caller("tok-b")))) == [b"Bearer for-b"]
    await asyncio.sleep(0.02)
    await failed(filter_, caller("tok-a"))
    await asyncio.sleep(0.05)
    assert authorization(await sent(filter_, of(caller("tok-a")))) == [b"Bearer for-a"]
    events = notices.take()
    assert [each.reason for each in events] == ["TokenExchangeFailed", "TokensExchanged"]
    assert [each.message.count("filter ") for each in events] == [1, 1]
    told = metrics.read()
    counts = {labels[-1]: count for labels, count in told["egress_token_exchanges"].values.items()}
    assert counts == {"ok": 2, "refused": 1, "error": 1}
    assert list(told["egress_exchanged_tokens"].values.values()) == [2]
    assert time.time() - 60 < next(iter(told["egress_token_exchange_success_timestamp_seconds"].values.values()))
    assert len(idp.asked) == 4


async def test_what_was_issued_ends_with_its_life(monkeypatch):
    filter_, idp = made(issued("first", expires_in=100), issued("second", expires_in=100), (503, b""))
    loop, now = asyncio.get_running_loop(), [1000.0]
    monkeypatch.setattr(loop, "time", lambda: now[0])
    a = caller()
    assert authorization(await sent(filter_, of(a))) == [b"Bearer first"]
    now[0] += 60
    assert filter_.backend_request(of(a)) is None
    await asyncio.sleep(0)
    assert len(idp.asked) == 1
    now[0] += 32  # it is renewed before it ends, while it serves on
    x = of(a)
    assert filter_.backend_request(x) is None
    assert authorization(x) == [b"Bearer first"]
    for _ in range(3):
        await asyncio.sleep(0)
    x = of(a)
    assert filter_.backend_request(x) is None
    assert authorization(x) == [b"Bearer second"]
    now[0] += 90  # the server is away: the value serves until it ends, and not a moment longer
    assert filter_.backend_request(of(a)) is None
    for _ in range(3):
        await asyncio.sleep(0)
    now[0] += 6
    await failed(filter_, a)
    assert len(idp.asked) == 4


async def test_a_revoked_token_ends_what_was_issued_for_it(monkeypatch):
    filter_, _ = made(issued(), (400, {"error": "invalid_grant"}))
    await sent(filter_, of(caller()))
    (entry,) = filter_._issued._entries.values()
    entry.retry_at = 0.0
    assert filter_.backend_request(of(caller())) is None  # renewed in the background
    await until(lambda: entry.task is None)
    await failed(filter_, caller(), *REFUSED)


async def test_a_backend_that_refuses_it_has_it_exchanged_anew(monkeypatch):
    filter_, idp = made(issued("first"), issued("second"))

    def answered(x, status):
        x.response = ResponseHead(status, b"", Fields())
        filter_.backend_response(x)
        return x

    x = answered(await sent(filter_, of(caller())), 401)
    assert authorization(await sent(filter_, of(caller()))) == [b"Bearer first"]  # it has just been issued
    monkeypatch.setattr(exchanged_tokens, "REFUSED_S", 0.0)
    answered(x, 403)
    assert authorization(await sent(filter_, of(caller()))) == [b"Bearer first"]
    answered(x, 401)
    assert authorization(await sent(filter_, of(caller()))) == [b"Bearer second"]
    assert len(idp.asked) == 2


async def test_the_table_is_bounded_and_keeps_those_that_are_waited_for(monkeypatch):
    filter_, idp = made(issued(), maxCallers=2)
    for name in ("tok-a", "tok-b", "tok-c", "tok-d"):
        await sent(filter_, of(caller(name)))
    assert len(filter_._issued._entries) == 2
    assert filter_.backend_request(of(caller("tok-d"))) is None
    idp.opened = asyncio.Event()
    waiting = [asyncio.create_task(sent(filter_, of(caller(name)))) for name in ("tok-e", "tok-f", "tok-g") * 2]
    await until(lambda: len(idp.asked) == 7)
    idp.opened.set()
    await asyncio.gather(*waiting)
    assert len(idp.asked) == 7
    monkeypatch.setattr(exchanged_tokens, "MAX_OF_CALLER", 1)
    idp.opened = asyncio.Event()
    one = asyncio.create_task(sent(filter_, of(caller("tok-h"))))
    await until(lambda: len(idp.asked) == 8)
    again = caller("tok-h").replace(token=caller("tok-j").token)  # another token of the same client
    assert "of this client are under way" in (await failed(filter_, again)).detail
    monkeypatch.setattr(exchanged_tokens, "MAX_UNDER_WAY", 1)
    assert "exchanges are under way" in (await failed(filter_, caller("tok-i"))).detail
    idp.opened.set()
    await one


def test_the_token_of_a_caller_is_shown_nowhere():
    identity = caller("SECRET-TOKEN")
    shown = f"{identity!r} {identity.token!r} {identity.token} {identity.key.partition('#')[0]}"
    assert "SECRET-TOKEN" not in shown.replace(identity.name, "")
    assert identity.replace(token=None) == identity  # limits and caches know the client by its name


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"resource": []}, "a token for anything"),
        ({"requestedTokenType": "IdJag", "audience": ["x"]}, "add `jwtBearer`"),
        ({"jwtBearer": GRANT}, "its issuer as the only"),
        ({"jwtBearer": GRANT, "audience": ["x", "y"]}, "its issuer as the only"),
        ({"jwtBearer": GRANT, "audience": ["x"], "requestedTokenType": "AccessToken"}, "IdJag or Jwt"),
        ({"jwtBearer": GRANT, "audience": ["x"], "actorToken": {"tokenFile": "/x"}}, "actorToken"),
        ({"clientId": ""}, "needs `clientId`"),
        ({"tokenEndpoint": {**ENDPOINT, "allowPlaintext": True}}, "verified TLS alone"),
        ({"authentication": "None"}, "clientSecretRef"),
        ({"authentication": "PrivateKeyJwt"}, "clientSecretRef"),
        ({"actorToken": {}}, "one of `tokenFile` and `secretRef`"),
        ({"tokenFile": "/x"}, "tokenFile"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_manifest_must_not_say(more, said):
    with pytest.raises(ValueError, match=said):
        made(issued(), **more)


@pytest.mark.parametrize("more", [{"placeholder": "p" * 16}, {"scrubResponses": True}, {"template": "Negotiate {}"}])
def test_what_goes_with_no_exchange(more):
    with pytest.raises(ValueError, match=r"a token of the caller|authenticates the connection"):
        injector({"tokenExchange": CONFIG, **more}, SECRETS, {})


@pytest.mark.parametrize("kind", ["IdJag", "Jwt"])
async def test_a_callers_token_that_comes_back_is_not_shown_to_the_second_server(kind):
    """The policy lets the first one have it: whose backend the second is, who writes the filter decides."""
    types = {"IdJag": ID_JAG, "Jwt": "urn:ietf:params:oauth:token-type:jwt"}
    second = Endpoint((200, {"access_token": "a", "token_type": "Bearer"}), backend="evil/grant")
    grant = {"tokenEndpoint": {**ENDPOINT, "backendRef": {**ENDPOINT["backendRef"], "name": "grant"}}}
    filter_, _ = made(
        issued(SUBJECT, issued_token_type=types[kind], token_type="N_A"), calls={"Backend grant": second},
        requestedTokenType=kind, jwtBearer=grant, audience=["https://auth.example"],
    )  # fmt: skip
    await failed(filter_, caller())
    assert second.asked == []
