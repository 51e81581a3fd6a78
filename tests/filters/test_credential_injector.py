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
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.secret import SecretBytes

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
             b"x-goog-api-key", b"Authorization_", b"_authorization", b"Authorization-"],
)  # fmt: skip
def test_what_the_client_sent_is_removed_in_every_spelling(name):
    request = sent((name, b"client"), (b"x-other", b"keep"), (name, b"client2"))
    assert list(request.fields) == [(b"x-other", b"keep"), (b"authorization", b"Bearer S3CR3T-INJ")]


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
        (b"If_Range", b"x"), (b"A-IM", b"gzip"), (b"grpc-accept-encoding", b"gzip"), config=SCRUB,
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
        ([(b"content-encoding", b"gzip")], 200, -1, False),
        ([(b"content-encoding", b"gzip")], 200, 5, False),
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
        ([(b"Content-Encoding", b"X-GZIP")], 200, -2, False),
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
    with pytest.raises(FilterBuildError, match="scrubResponses cannot work with the secret s/token") as caught:
        chain({**SCRUB, "template": "{}"}, b"hunt2")
    assert "hunt2" not in str(caught.value)
