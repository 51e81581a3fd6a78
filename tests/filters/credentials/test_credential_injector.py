import json
from base64 import b64encode
from dataclasses import replace

import pytest

from egressproxy.errors import Denied, GatewayFault, Reason, UpstreamFault
from egressproxy.filters import Exchange
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain, run
from egressproxy.filters.instances import FilterBuildError, FilterInstances
from egressproxy.filters.settings import SecretRef
from egressproxy.filters.validation import validated
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.exchange import BackendOrigin
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.secret import SecretBytes
from tests.support.waiting import until

TYPE = "egressproxy.io/CredentialInjector:v1"
REF = {"secretRef": {"name": "s", "key": "token"}}
BEARER = {**REF, "header": "Authorization", "template": "Bearer {}"}


def place(config=BEARER, secret=b"S3CR3T-INJ"):
    secrets = () if secret is None else (("s/token", SecretBytes(secret)),)
    return ExtensionIR(
        "inject", TYPE, "backend-request", config=json.dumps(config), secrets=secrets, source="Backend a/openai"
    )


def chain(config=BEARER, secret=b"S3CR3T-INJ"):
    return compile_chain([place(config, secret)], FilterInstances(Catalog()).place)


def exchange(*lines, target=b"/v1/x", secure=True):
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    x.request = RequestHead(b"GET", target, Fields.of(lines))
    x.backend = "a/openai"
    x.backend_is_secure = secure
    return x


def sent(*lines, config=BEARER, secret=b"S3CR3T-INJ", **more):
    x = exchange(*lines, **more)
    run(chain(config, secret).backend_request, x)
    return x.request


def test_the_credential_is_injected_once():
    assert list(sent((b"accept", b"*/*")).fields) == [(b"accept", b"*/*"), (b"authorization", b"Bearer S3CR3T-INJ")]


@pytest.mark.parametrize(
    "name", [b"Authorization", b"AUTHORIZATION", b"X-Api-Key", b"X_Api_Key", b"x_api-key", b"api-key", b"Api_Key",
             b"x-goog-api-key", b"Authorization_", b"_authorization", b"Authorization-", b"xi-api-key",
             b"Ocp-Apim-Subscription-Key", b"X-Auth-Token", b"PRIVATE-TOKEN", b"Job-Token", b"X-Vault-Token",
             b"X-Amz-Security-Token"],
)  # fmt: skip
def test_what_the_client_sent_is_removed_in_every_spelling(name):
    request = sent((name, b"client"), (b"x-other", b"keep"), (name, b"client2"))
    assert list(request.fields) == [(b"x-other", b"keep"), (b"authorization", b"Bearer S3CR3T-INJ")]


@pytest.mark.parametrize(
    ("path", "left"),
    [
        (b"/x?key=CLIENT", b"/x"),
        (b"/x?alt=sse&key=CLIENT", b"/x?alt=sse"),
        (b"/x?API-Key=CLIENT&a=1;api_key=CLIENT", b"/x?a=1"),
        (b"/x?access%5Ftoken=CLIENT&b=%20", b"/x?b=%20"),
        (b"/x?oauth_token=CLIENT&private_token=CLIENT&job_token=CLIENT&token=1", b"/x?token=1"),
        (b"/x?keys=1&monkey=2&k%65yed=3", b"/x?keys=1&monkey=2&k%65yed=3"),
        (b"/x?", b"/x?"),
    ],
)
def test_what_the_client_sent_in_its_query_is_removed_however_it_is_written(path: bytes, left: bytes):
    assert sent(target=path).path == left
    assert sent(target=path, config={**BEARER, "keepClientCredentials": True}).path == path


def test_the_key_among_sub_protocols_is_removed_and_the_others_stay():
    said = b"realtime, OpenAI-Insecure-API-Key.CLIENT, openai-beta.realtime-v1"
    x = exchange((b"sec-websocket-protocol", said))
    x.request.upgrade = b"websocket"
    run(chain().backend_request, x)
    assert x.request.fields.get(b"sec-websocket-protocol") == b"realtime, openai-beta.realtime-v1"


@pytest.mark.parametrize(
    ("name", "upgrade"),
    [(b"sec-websocket-protocol", b""), (b"Sec_WebSocket_Protocol", b""), (b"Sec_WebSocket_Protocol", b"websocket")],
)
def test_a_list_with_a_key_that_no_websocket_reads_is_removed(name: bytes, upgrade: bytes):
    x = exchange((name, b"realtime, openai-insecure-api-key.CLIENT"), (b"x-a", b"1"))
    x.request.upgrade = upgrade
    run(chain().backend_request, x)
    assert [field for field, _ in x.request.fields] == [b"x-a", b"authorization"]


def test_a_list_of_sub_protocols_without_a_key_stays():
    request = sent((b"sec-websocket-protocol", b"realtime, chat"), (b"x-b", b"openai-insecure-api-key.a"))
    assert [field for field, _ in request.fields] == [b"sec-websocket-protocol", b"x-b", b"authorization"]


def test_fields_that_only_look_alike_stay():
    request = sent((b"x-authorization-context", b"a"), (b"my-api-key-id", b"b"), (b"x-amz-security", b"c"))
    assert len(request.fields) == 4


def test_a_field_of_ones_own_is_replaced_in_every_spelling():
    config = {**REF, "header": "X-My-Key"}
    assert list(sent((b"x_my_key", b"evil"), config=config).fields) == [(b"x-my-key", b"S3CR3T-INJ")]


def test_client_credentials_are_kept_on_request_but_never_in_the_same_field():
    config = {**BEARER, "keepClientCredentials": True}
    request = sent((b"x-api-key", b"client"), (b"authorization", b"client"), config=config)
    assert list(request.fields) == [(b"x-api-key", b"client"), (b"authorization", b"Bearer S3CR3T-INJ")]


def test_nothing_is_sent_in_plain_text():
    with pytest.raises(Denied) as caught:
        sent(secure=False)
    assert (caught.value.status, caught.value.reason) == (403, Reason.PLAINTEXT_CREDENTIAL)
    assert caught.value.rule == "Backend a/openai"
    assert "allowPlaintext" in caught.value.remedy
    assert b"authorization" in sent(secure=False, config={**BEARER, "allowPlaintext": True}).fields


@pytest.mark.parametrize("secret", [None, b"", b"\n", b"  \r\n"])
def test_a_missing_or_empty_secret_fails_closed(secret):
    with pytest.raises(GatewayFault) as caught:
        sent(secret=secret)
    assert (caught.value.status, caught.value.reason) == (503, Reason.CREDENTIAL_MISSING)
    assert caught.value.remedy == "create the Secret s with the key token"


def test_blanks_at_the_end_of_a_secret_are_trimmed():
    assert sent(secret=b"tok\n").fields.get(b"authorization") == b"Bearer tok"
    assert sent(secret=b"tok \r\n").fields.get(b"authorization") == b"Bearer tok"


@pytest.mark.parametrize("secret", [b"tok\r\nX: y", b"tok\ny", b"to\0k", b"\ntok", b"t\x7fk"])
def test_a_secret_that_no_field_can_carry_is_refused_when_it_is_built_and_not_shown(secret):
    for config in (BEARER, {**REF, "query": "key"}):
        with pytest.raises(FilterBuildError, match="s/token cannot be sent in a field") as caught:
            chain(config, secret)
        assert "tok" not in str(caught.value).replace("s/token", "")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/v1", b"/v1?key=S3CR3T-INJ"),
        (b"/v1?a=1", b"/v1?a=1&key=S3CR3T-INJ"),
        (b"/v1?key=client&a=1&key=2", b"/v1?a=1&key=S3CR3T-INJ"),
        (b"/v1?%6bey=client", b"/v1?key=S3CR3T-INJ"),
        (b"/v1?key&monkey=1&b=%20", b"/v1?monkey=1&b=%20&key=S3CR3T-INJ"),
    ],
)
def test_a_query_parameter_replaces_the_clients_own(target, expected):
    request = sent((b"authorization", b"client"), config={**REF, "query": "key"}, target=target)
    assert request.path == expected
    assert len(request.fields) == 0


def test_a_query_value_is_percent_encoded():
    assert sent(config={**REF, "query": "key"}, secret=b"a&b=c/ d").path == b"/v1/x?key=a%26b%3Dc%2F%20d"


def test_nothing_that_can_be_printed_shows_the_secret():
    config = {**BEARER, "scrubResponses": True}
    spec = place(config)
    instances = FilterInstances(Catalog())
    placed = instances.place(spec)
    made = compile_chain([spec], instances.place)
    shown = [
        spec,
        placed,
        placed.filter,
        made,
        made.backend_request,
        made.response_body,
        instances,
        placed.stats,
        exchange(),
    ]
    for thing in shown:
        for text in (repr(thing), str(thing), f"{thing}"):
            assert "S3CR3T" not in text


@pytest.mark.parametrize(
    "config",
    [
        {**BEARER, "query": "k"},
        {**BEARER, "template": "Bearer"},
        {**BEARER, "template": "{}{}"},
        {**BEARER, "template": "{}\r\nX: y"},
        {**BEARER, "header": "Host"},
        {**BEARER, "header": "Proxy-Authorization"},
        {**BEARER, "header": "a b"},
        {**REF, "query": "a&b"},
        {**BEARER, "unknown": 1},
        {"header": "x"},
        {**REF, "env": "KEY"},
        {"env": "A-B"},
        {"command": {"argv": []}},
        {"command": {"argv": ["relative"]}},
        {"command": {"argv": ["/bin/echo"], "shell": True}},
        {**REF, "basic": {"username": "a:b"}},
        {**REF, "basic": {"username": "a", "usernameRef": {"name": "s"}}},
        {**REF, "basic": {}, "header": "X-Key"},
        {**REF, "basic": {}, "query": "key"},
        {**REF, "basic": {}, "template": "{}"},
        {**REF, "bind": {"ports": [0]}},
        {**REF, "bind": {"hosts": ["*.example"]}},
        {**REF, "bind": {"pathPrefix": "v1"}},
        {**REF, "bind": {"hosts": ["a.example"]}, "allowPlaintext": True},
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(config):
    with pytest.raises(FilterBuildError, match="Backend a/openai: filter inject"):
        chain(config)


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (REF, (b"authorization", b"Bearer S3CR3T-INJ")),
        ({**REF, "template": "Basic {}"}, (b"authorization", b"Basic S3CR3T-INJ")),
        ({**REF, "header": "Authorization"}, (b"authorization", b"S3CR3T-INJ")),
        ({**REF, "header": "X-Api-Key"}, (b"x-api-key", b"S3CR3T-INJ")),
    ],
)
def test_without_a_place_the_credential_is_a_bearer_token(config, line):
    assert list(sent((b"authorization", b"theirs"), config=config).fields) == [line]


def test_without_a_template_a_parameter_is_the_credential_alone():
    assert sent(config={**REF, "query": "key"}).path == b"/v1/x?key=S3CR3T-INJ"


@pytest.mark.parametrize(
    ("ref", "label"),
    [
        ({"name": "s"}, "s/"),
        ({"name": "s", "namespace": "n"}, "n/s/"),
        ({"name": "s", "namespace": "n", "key": "k", "kind": "Secret", "group": ""}, "n/s/k"),
    ],
)
def test_a_reference_may_name_another_namespace_and_no_key(ref, label):
    spec = replace(place({"secretRef": ref}), secrets=((label, SecretBytes(b"S3CR3T-INJ")),))
    steps = compile_chain([spec], FilterInstances(Catalog()).place).backend_request
    x = exchange()
    run(steps, x)
    assert list(x.request.fields) == [(b"authorization", b"Bearer S3CR3T-INJ")]


def test_a_secret_that_has_to_come_from_elsewhere_is_told_with_the_grant_that_it_needs():
    spec = replace(place({"secretRef": {"name": "s", "namespace": "n"}}), secrets=())
    steps = compile_chain([spec], FilterInstances(Catalog()).place).backend_request
    with pytest.raises(GatewayFault) as caught:
        run(steps, exchange())
    assert caught.value.remedy == "create the Secret s in namespace n, and a ReferenceGrant for it there"


def test_the_secret_reference_is_declared():
    kind = Catalog().get(TYPE)
    assert kind.secret_refs(validated(kind.config_model, json.dumps(BEARER))) == (SecretRef("s", "token"),)


@pytest.mark.parametrize("target", [b"/x?KEY=theirs", b"/x?a=1;key=theirs", b"/x?a=1;Ke%79=theirs;b=2", b"/x?key"])
def test_a_parameter_is_replaced_in_every_case_and_behind_every_separator(target):
    path = sent(config={**REF, "query": "key"}, target=target).path
    assert b"theirs" not in path
    assert path.lower().replace(b"%79", b"y").count(b"key") == 1
    assert path.endswith(b"key=S3CR3T-INJ")
    assert (b"a=1" in path, b"b=2" in path) == (b"a=1" in target, b"b=2" in target)


def test_a_query_without_the_parameter_stays_as_it_is():
    assert sent(config={**REF, "query": "key"}, target=b"/x?a=1&&b;" + b"&" * 8000).path == (
        b"/x?a=1&&b;" + b"&" * 8000 + b"&key=S3CR3T-INJ"
    )


@pytest.mark.parametrize("name", ["Proxy_Authorization", "Content_Length"])
def test_a_field_of_the_gateway_in_another_spelling_carries_no_credential(name):
    with pytest.raises(FilterBuildError, match="written by the gateway itself"):
        chain({**REF, "header": name})


# -- scrubResponses ----------------------------------------------------------------------------------------------------

SCRUB = {**BEARER, "scrubResponses": True}


def answered(*lines, status=200, body=5):
    x = exchange()
    x.response = ResponseHead(status, b"OK", Fields.of(lines))
    x.response.body = body
    return x


def test_without_scrubbing_no_response_phase_exists():
    made = chain()
    assert made.backend_response is made.response_body is None


def test_a_body_that_can_be_read_is_asked_for():
    request = sent(
        (b"Accept-Encoding", b"gzip"), (b"Accept_Encoding", b"gzip"), (b"range", b"bytes=0-5"), (b"if-range", b"x"),
        (b"If_Range", b"x"), (b"A-IM", b"gzip"), (b"grpc-accept-encoding", b"gzip"),
        (b"Request-Range", b"bytes=0-5"), config=SCRUB,
    )  # fmt: skip
    assert list(request.fields) == [(b"authorization", b"Bearer S3CR3T-INJ"), (b"accept-encoding", b"identity")]


def test_the_head_of_a_response_is_masked_at_its_length():
    x = answered((b"x-echo", b"Bearer S3CR3T-INJ"), (b"x-b64", b64encode(b"u:S3CR3T-INJ")), (b"x-other", b"o"))
    run(chain(SCRUB).backend_response, x)
    fields = x.response.fields
    assert fields.get(b"x-echo") == b"Bearer **********"
    assert b"***" in fields.get(b"x-b64")
    assert fields.get(b"x-other") == b"o"


def test_what_the_gateway_writes_anew_is_masked_too():
    x = answered()
    x.response.phrase, x.response.via = b"S3CR3T-INJ", b"1.1 S3CR3T-INJ"
    run(chain(SCRUB).backend_response, x)
    assert (x.response.phrase, x.response.via) == (b"*" * 10, b"1.1 " + b"*" * 10)


def test_a_body_is_masked_across_its_pieces_and_keeps_its_length():
    made = chain(SCRUB)
    x = answered()
    talk = made.response_body.begin(x)
    assert talk.keeps_length
    out = [talk.feed(x, piece, False) for piece in (b"key: S3CR", b"3T-I", b"NJ and S3C")] + [
        talk.feed(x, b"RET", True)
    ]
    assert out == [b"key: ", b"", b"********** and ", b"S3CRET"]


@pytest.mark.parametrize(
    ("lines", "status", "body", "ok"),
    [
        ([(b"content-encoding", b"gzip")], 200, -1, True),
        ([(b"content-encoding", b"gzip")], 200, 5, True),
        ([(b"grpc-encoding", b"gzip")], 200, -1, False),
        ([(b"grpc-encoding", b"identity")], 200, -1, True),
        ([(b"content-encoding", b"gzip")], 304, 0, True),
        ([(b"Content-Encoding", b"Identity")], 200, 5, True),
        ([(b"Content-Encoding", b"identity"), (b"content-encoding", b"Identity")], 200, 5, True),
        ([(b"Content-Encoding", b"identity"), (b"Content-Encoding", b"gzip")], 200, 5, False),
        ([(b"Content-Encoding", b"gzip"), (b"Content-Encoding", b"identity")], 200, 5, False),
        ([(b"Content_Encoding", b"gzip")], 200, 5, False),
        ([(b"content-encoding", b"identity"), (b"CONTENT_ENCODING", b"br")], 200, 5, False),
        ([(b"Content-Encoding", b"identity, gzip")], 200, 5, False),
        ([(b"Content-Encoding", b"gzip,identity")], 200, 5, False),
        ([(b"Content-Encoding", b"X-GZIP")], 200, -2, True),
        ([(b"Content-Encoding", b"X-BZIP")], 200, -2, False),
        ([(b"Content-Encoding", b"aes128gcm")], 206, -1, False),
        ([(b"Content-Encoding", b"")], 200, 5, False),
        ([(b"Content-Encoding", b"none")], 200, 5, False),
        ([(b"Content-Encoding", b"gzip")], 200, 0, True),
        ([(b"IM", b"gzip")], 226, 5, False),
        ([(b"IM", b"identity")], 226, 5, True),
        ([], 200, -2, True),
        ([(b"upgrade", b"websocket")], 101, 0, False),
    ],
)
def test_a_body_that_cannot_be_read_is_not_passed_on(lines, status, body, ok):
    x = answered(*lines, status=status, body=body)
    if ok:
        run(chain(SCRUB).backend_response, x)
        return
    with pytest.raises(UpstreamFault) as caught:
        run(chain(SCRUB).backend_response, x)
    assert (caught.value.status, caught.value.reason) == (502, Reason.BAD_RESPONSE)


def test_a_secret_too_short_to_scrub_is_refused_and_not_shown():
    with pytest.raises(FilterBuildError, match="the secret s/token cannot be found by scrubResponses") as caught:
        chain({**SCRUB, "template": "{}"}, b"hunt2")
    assert "hunt2" not in str(caught.value)


# -- places and sources ------------------------------------------------------------------------------------------------


def test_basic_sends_the_credential_as_the_password():
    config = {**REF, "basic": {"username": "svc"}}
    request = sent((b"authorization", b"Basic theirs"), config=config)
    assert list(request.fields) == [(b"authorization", b"Basic " + b64encode(b"svc:S3CR3T-INJ"))]


def test_the_user_of_basic_may_be_in_a_secret_and_without_it_nothing_is_sent():
    config = {**REF, "basic": {"usernameRef": {"name": "s", "key": "user"}}}
    with pytest.raises(GatewayFault) as caught:
        sent(config=config)
    assert caught.value.remedy == "create the Secret s with the key user"
    spec = replace(place(config), secrets=(("s/token", SecretBytes(b"pw\n")), ("s/user", SecretBytes(b"me\n"))))
    x = exchange()
    run(compile_chain([spec], FilterInstances(Catalog()).place).backend_request, x)
    assert x.request.fields.get(b"authorization") == b"Basic " + b64encode(b"me:pw")


def test_a_variable_of_the_environment(monkeypatch):
    monkeypatch.setenv("MY_KEY", "S3CR3T-ENV\n")
    assert sent(config={"env": "MY_KEY"}, secret=None).fields.get(b"authorization") == b"Bearer S3CR3T-ENV"
    with pytest.raises(GatewayFault) as caught:
        sent(config={"env": "NOT_GIVEN"}, secret=None)
    assert caught.value.remedy == "start the gateway with the environment variable NOT_GIVEN"


async def run_waiting(made, x):
    outcome = run(made.backend_request, x)
    assert await outcome is None
    return x.request.fields.get(b"authorization")


async def test_a_file_beside_the_manifest_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr("egressproxy.filters.credentials.local_sources.FILE_S", 0.01)
    monkeypatch.setattr("egressproxy.filters.credentials.refresher.SHORTEST_S", 0.01)
    (tmp_path / "key").write_text("first\n")
    spec = replace(place({"file": "key"}, None), folder=str(tmp_path))
    instances = FilterInstances(Catalog())
    made = compile_chain([spec], instances.place)
    assert await run_waiting(made, exchange()) == b"Bearer first"
    (tmp_path / "key").write_text("second\n")

    def now():
        x = exchange()
        outcome = run(made.backend_request, x)
        if outcome is not None:
            outcome.cancel()
        return x.request.fields.get(b"authorization")

    await until(lambda: now() == b"Bearer second")
    (tmp_path / "key").unlink()  # a key that is taken away is not sent again
    await until(lambda: now() is None)
    instances.place(spec).filter.close()


async def test_a_command_prints_the_credential_and_its_failure_is_for_the_log_alone():
    spec = place({"command": {"argv": ["/bin/echo", "from-a-program"]}}, None)
    instances = FilterInstances(Catalog())
    made = compile_chain([spec], instances.place)
    assert await run_waiting(made, exchange()) == b"Bearer from-a-program"
    x = exchange()
    assert run(made.backend_request, x) is None  # there by now: nothing waits
    instances.place(spec).filter.close()
    failing = place({"command": {"argv": ["/bin/false"]}}, None)
    made = compile_chain([failing], instances.place)
    with pytest.raises(GatewayFault) as caught:
        await run_waiting(made, exchange())
    assert (caught.value.status, caught.value.retry_after_s) == (503, 1)
    assert "status 1" in caught.value.detail
    assert "/bin/false" not in caught.value.message
    instances.place(failing).filter.close()


async def test_the_backend_is_looked_at_before_a_value_is_waited_for():
    made = chain({"command": {"argv": ["/bin/echo", "x"]}}, None)
    with pytest.raises(Denied):
        await run(made.backend_request, exchange(secure=False))


# -- what it is bound to -----------------------------------------------------------------------------------------------

OPENAI = BackendOrigin("api.openai.com", 443, True, ("api.openai.com",))
BOUND = {**BEARER, "bind": {"hosts": ["api.openai.com"], "ports": [443], "pathPrefix": "/v1"}}


def bound(origin, target=b"/v1/x", config=BOUND, made=None):
    x = exchange(target=target, secure=origin is not None and origin.is_secure)
    x.backend_origin = origin
    run((made or chain(config)).backend_request, x)
    return x.request.fields.get(b"authorization")


def test_a_credential_goes_to_what_it_is_bound_to():
    assert bound(OPENAI) == b"Bearer S3CR3T-INJ"
    assert bound(OPENAI, b"/v1") == b"Bearer S3CR3T-INJ"
    assert bound(OPENAI, b"/v1?x=/../") == b"Bearer S3CR3T-INJ"


@pytest.mark.parametrize(
    ("origin", "target"),
    [
        (None, b"/v1/x"),
        (OPENAI._replace(names=()), b"/v1/x"),  # insecureSkipVerify: nobody has said who it is
        (OPENAI._replace(names=("api.openai.com", "evil.example")), b"/v1/x"),  # either name would be taken
        (OPENAI._replace(host="evil.example", names=("evil.example",)), b"/v1/x"),
        (OPENAI._replace(port=8443), b"/v1/x"),
        (OPENAI, b"/v2"),
        (OPENAI, b"/v10"),
        (OPENAI, b"/V1/x"),
        (OPENAI, b"//v1/x"),
        (OPENAI, b"/v1/../v2"),
        (OPENAI, b"/v1/%2e%2e/v2"),
        (OPENAI, b"/v1/..%2fv2"),
        (OPENAI, b"/v1\\..\\v2"),
        (OPENAI, b"*"),
    ],
)
def test_nothing_goes_to_anything_else(origin, target):
    with pytest.raises(Denied) as caught:
        bound(origin, target)
    expected = Reason.PLAINTEXT_CREDENTIAL if origin is None else Reason.CREDENTIAL_NOT_BOUND
    assert (caught.value.status, caught.value.reason) == (403, expected)


def test_an_approved_backend_approves_no_other():
    """Attempts take turns: a retry, a fail-over or a hedge to another origin gets nothing."""
    made = chain({**BEARER, "bind": {"hosts": ["api.openai.com"]}})
    other = OPENAI._replace(host="evil.example", names=("evil.example",))
    plain = OPENAI._replace(is_secure=False, names=())
    for _ in range(3):
        assert bound(OPENAI, made=made)
        for wrong in (other, plain):
            with pytest.raises(Denied):
                bound(wrong, made=made)


def test_a_path_is_looked_at_for_each_request():
    made = chain({**BEARER, "bind": {"pathPrefix": "/v1"}})
    assert bound(OPENAI, made=made)
    with pytest.raises(Denied):
        bound(OPENAI, b"/v2", made=made)


@pytest.mark.parametrize(
    ("host", "ok"),
    [
        (b"api.openai.com", True),
        (b"API.openai.com.:443", True),
        (b"evil.example", False),
        (b"evil.example:443", False),
        (b"api.openai.com.evil.example", False),
        (b"api.openai.com:443:443", False),
    ],
)
def test_a_bound_host_is_the_one_that_is_asked_for_too(host, ok):
    """One certificate may be shown for many names, and Host says whose server gets the request."""
    made = chain({**BEARER, "bind": {"hosts": ["api.openai.com"]}})
    assert bound(OPENAI, made=made)
    x = exchange(target=b"/", secure=True)
    x.backend_origin, x.upstream_host = OPENAI, host
    if ok:
        run(made.backend_request, x)
        assert x.request.fields.get(b"authorization") == b"Bearer S3CR3T-INJ"
    else:
        with pytest.raises(Denied) as denied:
            run(made.backend_request, x)
        assert denied.value.reason is Reason.CREDENTIAL_NOT_BOUND
        assert b"authorization" not in x.request.fields
