import datetime
import hashlib
import importlib.util
import time
from email.utils import formatdate
from unittest import mock

import pytest

from egressproxy.errors import Denied, GatewayFault, Reason
from egressproxy.filters.base import BodyMode, Phase
from egressproxy.filters.credentials.aws_chunks import ChunkSigner
from egressproxy.filters.credentials.aws_signature import AwsKeys, Scope, SigV4
from egressproxy.model.exchange import SENT_BODY
from egressproxy.model.fields import Fields
from egressproxy.model.message import ResponseHead
from egressproxy.model.secret import SecretBytes
from tests.filters.credentials.kit import ENDPOINT, LABEL, Endpoint, exchange, injector, sent
from tests.support.waiting import until

ID, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG", "FwoGZXIvYXdzE//token=="
REFS = {"accessKeyIdRef": {"name": "aws", "key": "id"}, "secretAccessKeyRef": {"name": "aws", "key": "secret"}}
VALUES = {"aws/id": f"{ID}\n", "aws/secret": f"{SECRET}\n"}
SESSION = {**REFS, "sessionTokenRef": {"name": "aws", "key": "token"}}

needs_botocore = pytest.mark.skipif(importlib.util.find_spec("botocore") is None, reason="botocore is not installed")


def made(service="bedrock", key=REFS, values=VALUES, bind=None, **more):
    config = {"aws": {"service": service, "region": "eu-central-1", "accessKey": key, **more}}
    return injector(config | ({"bind": bind} if bind else {}), values)


def request_of(filter_, *lines, method=b"POST", target=b"/model/x%3A0/invoke", body=b""):
    x = exchange(*lines, method=method, target=target)
    if filter_.needs_body:
        x.keep(SENT_BODY, body)
    assert filter_.backend_request(x) is None
    return x.request


def of_botocore(request, service, payload, token=None):
    """What botocore has for Authorization of this request."""
    from botocore.auth import S3SigV4Auth, SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    fields = dict(request.fields)
    stamp = fields[b"x-amz-date"].decode()
    named = fields[b"authorization"].decode().partition("SignedHeaders=")[2].partition(",")[0].split(";")
    taken = {name: value.decode() for name, value in ((n.decode(), v) for n, v in request.fields) if name in named}
    for ours in ("x-amz-date", "x-amz-security-token", "host"):
        taken.pop(ours, None)
    is_s3 = service == "s3"
    again = AWSRequest(request.method.decode(), f"https://api.example{request.path.decode()}", headers=taken)
    now = datetime.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ")
    signer = (S3SigV4Auth if is_s3 else SigV4Auth)(Credentials(ID, SECRET, token), service, "eu-central-1")
    with (
        mock.patch("botocore.auth.get_current_datetime", return_value=now, create=True),
        mock.patch.object(type(signer), "payload", return_value=payload.decode()),
    ):
        signer.add_auth(again)
    return again.headers["Authorization"].encode()


@needs_botocore
@pytest.mark.parametrize(("key", "token"), [(REFS, None), (SESSION, TOKEN)])
def test_a_request_is_signed_as_botocore_does(key, token):
    filter_ = made(key=key, values={**VALUES, "aws/token": TOKEN})
    assert filter_.needs_body
    body = b'{"prompt": "hi"}'
    lines = [(b"content-type", b"application/json"), (b"X-Amz-Custom", b"a   b"), (b"accept", b"*/*")]
    request = request_of(filter_, *lines, body=body)
    payload = hashlib.sha256(body).hexdigest().encode()
    assert request.fields.get(b"authorization") == of_botocore(request, "bedrock", payload, token)
    signed = request.fields.get(b"authorization").partition(b"SignedHeaders=")[2].partition(b",")[0].split(b";")
    assert {b"host", b"content-type", b"x-amz-custom", b"x-amz-date"} <= set(signed)
    assert b"accept" not in signed
    assert request.fields.get(b"x-amz-security-token") == (token.encode() if token else None)
    assert SECRET.encode() not in request.fields.block


def test_what_the_client_has_signed_is_removed():
    lines = [
        (b"Authorization", b"AWS4-HMAC-SHA256 Credential=THEIRS/x, SignedHeaders=host, Signature=0"),
        (b"X-Amz-Date", b"20000101T000000Z"), (b"X_Amz_Date", b"20000101T000000Z"),
        (b"X-Amz-Security-Token", b"THEIRS"), (b"x-api-key", b"THEIRS"), (b"Date", b"x"),
        (b"Sec-WebSocket-Protocol", b"realtime, openai-insecure-api-key.THEIRS"),
    ]  # fmt: skip
    target = b"/a?b=1&X-Amz-Signature=THEIRS&x-amz-%43redential=THEIRS&X-Amz-Algorithm=AWS4&c=%20"
    request = request_of(made(), *lines, target=target)
    assert b"THEIRS" not in request.fields.block + request.path
    assert request.path == b"/a?b=1&c=%20"
    names = [name for name, _ in request.fields]
    assert names.count(b"authorization") == names.count(b"x-amz-date") == 1
    assert request_of(made(), target=b"/a?X-Amz-Signature=1").path == b"/a"


@needs_botocore
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"", b"UNSIGNED-PAYLOAD"),
        (b"UNSIGNED-PAYLOAD", b"UNSIGNED-PAYLOAD"),
        (b"STREAMING-UNSIGNED-PAYLOAD-TRAILER", b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
        (hashlib.sha256(b"x").hexdigest().encode(), hashlib.sha256(b"x").hexdigest().encode()),
        (b"nonsense", b"UNSIGNED-PAYLOAD"),
    ],
)
def test_s3_takes_the_clients_word_for_the_body_and_nothing_is_collected(said, expected):
    filter_ = made("s3")
    assert not filter_.needs_body
    lines = [(b"x-amz-content-sha256", said)] if said else []
    request = request_of(filter_, *lines, method=b"PUT", target=b"/bucket/a%20b//c/../d?partNumber=1&uploadId=x%2By")
    assert request.fields.get_all(b"x-amz-content-sha256") == [expected]
    assert request.fields.get(b"authorization") == of_botocore(request, "s3", expected)


@needs_botocore
def test_s3_may_be_told_to_sign_bodies():
    filter_ = made("s3", payload="Signed")
    assert filter_.needs_body
    request = request_of(filter_, (b"x-amz-content-sha256", b"UNSIGNED-PAYLOAD"), method=b"PUT", body=b"body")
    payload = hashlib.sha256(b"body").hexdigest().encode()
    assert request.fields.get(b"x-amz-content-sha256") == payload
    assert request.fields.get(b"authorization") == of_botocore(request, "s3", payload)


CHUNKS = b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
CHUNK = b"5;chunk-signature=%s\r\nhello\r\n0;chunk-signature=%s\r\n\r\n"
THEIRS = CHUNK % (b"0" * 64, b"0" * 64)


@pytest.mark.parametrize("more", [{"payload": "Signed"}, {"algorithm": "SigV4A"}])
@pytest.mark.parametrize("word", [b"", b"-TRAILER"])
def test_chunks_that_cannot_be_signed_anew_are_refused(word, more):
    filter_ = made("s3", **more)
    x = exchange((b"x-amz-content-sha256", CHUNKS + word), method=b"PUT")
    with pytest.raises(Denied) as caught:
        filter_.backend_request(x)
    assert caught.value.reason is Reason.FILTER_REJECTED
    assert "botocore" in caught.value.remedy


def resigned(request):
    """The body as it has to be behind this head."""
    value, stamp = request.fields.get(b"authorization"), request.fields.get(b"x-amz-date")
    signer = SigV4(AwsKeys(ID, SecretBytes(SECRET.encode())), Scope("s3", "eu-central-1", is_s3=True))
    return ChunkSigner(signer, stamp, value.rpartition(b"=")[2], has_trailers=False).feed(THEIRS, True)


def put_in_chunks():
    return exchange((b"x-amz-content-sha256", CHUNKS), method=b"PUT", target=b"/bucket/key")


@pytest.mark.parametrize("size", [1, 70, 1000])
def test_chunks_are_signed_anew_while_they_flow(size):
    filter_, x = made("s3"), put_in_chunks()
    assert filter_.body_mode_for(x, Phase.REQUEST_BODY) is BodyMode.STREAM
    assert filter_.backend_request(x) is None
    pieces = [THEIRS[at : at + size] for at in range(0, len(THEIRS), size)]
    body = b"".join(filter_.request_body(x, piece, n == len(pieces) - 1) for n, piece in enumerate(pieces))
    assert body == resigned(x.request)
    assert len(body) == len(THEIRS)
    assert b"0" * 64 not in body


def test_a_whole_body_is_signed_before_its_head_and_both_belong_together():
    filter_, x = made("s3"), put_in_chunks()
    body = filter_.request_body(x, THEIRS, True)
    assert filter_.backend_request(x) is None
    assert body == resigned(x.request)


def test_a_head_that_was_changed_behind_the_body_is_refused():
    filter_, x = made("s3"), put_in_chunks()
    filter_.request_body(x, THEIRS, True)
    x.request.fields.add(b"x-amz-tagging", b"a=b")
    with pytest.raises(Denied, match="another filter"):
        filter_.backend_request(x)


def test_a_body_that_is_no_chunks_is_refused():
    filter_, x = made("s3"), put_in_chunks()
    filter_.backend_request(x)
    with pytest.raises(Denied, match="chunks are not valid"):
        filter_.request_body(x, b"hello", True)


def test_other_bodies_pass_unread():
    filter_ = made("s3")
    assert filter_.body_mode_for(exchange(), Phase.REQUEST_BODY) is None
    x = put_in_chunks()
    x.backend = "-"  # for a rule, before there is a backend
    assert filter_.body_mode_for(x, Phase.REQUEST_BODY) is None


async def test_a_whole_body_waits_for_the_first_keys(tmp_path):
    filter_ = web_identity(tmp_path, Endpoint(xml()))
    x = put_in_chunks()
    body = await filter_.request_body(x, THEIRS, True)
    assert filter_.backend_request(x) is None
    assert len(body) == len(THEIRS)
    assert b"Credential=ASIA1/" in x.request.fields.get(b"authorization")
    filter_.close()


def test_several_regions():
    request = request_of(made("s3", algorithm="SigV4A", region="eu-*,us-east-1"), method=b"GET")
    assert request.fields.get(b"x-amz-region-set") == b"eu-*,us-east-1"
    value = request.fields.get(b"authorization")
    assert value.startswith(b"AWS4-ECDSA-P256-SHA256 Credential=AKIDEXAMPLE/")
    assert b"x-amz-region-set" in value


@pytest.mark.parametrize("missing", ["aws/id", "aws/secret", "aws/token"])
def test_without_its_keys_nothing_is_sent(missing):
    values = {name: value for name, value in {**VALUES, "aws/token": TOKEN}.items() if name != missing}
    with pytest.raises(GatewayFault) as caught:
        request_of(made(key=SESSION, values=values))
    assert caught.value.reason is Reason.CREDENTIAL_MISSING


def test_keys_that_are_none_are_refused_and_not_shown():
    with pytest.raises(ValueError, match="no keys of AWS") as caught:
        made(values={**VALUES, "aws/id": "A B\r\nX: S3CR3T"})
    assert "S3CR3T" not in str(caught.value)


def test_they_are_bound_too():
    with pytest.raises(Denied):
        request_of(made(bind={"hosts": ["other.example"]}))


TOO_SKEWED = b"<Error><Code>RequestTimeTooSkewed</Code></Error>"


def refusal(filter_, seconds, status=403, body=TOO_SKEWED, *, is_secure=True, in_one=True):
    x = exchange()
    x.backend_is_secure = is_secure
    date = formatdate(time.time() + seconds, usegmt=True).encode()
    x.response = ResponseHead(status, b"Forbidden", Fields.of([(b"date", date)]))
    if filter_.body_mode_for(x, Phase.RESPONSE_BODY) is not None:
        pieces = [body] if in_one else [body[:20], body[20:], b""]
        assert b"".join(filter_.response_body(x, each, each is pieces[-1]) for each in pieces) == body


def skew_of(filter_):
    stamp = request_of(filter_).fields.get(b"x-amz-date").decode()
    signed = datetime.datetime.strptime(stamp + "+0000", "%Y%m%dT%H%M%SZ%z")
    return signed.timestamp() - time.time()


def test_a_clock_that_is_wrong_is_corrected_by_what_the_backend_says():
    filter_ = made()
    refusal(filter_, 600, status=200)
    assert abs(skew_of(filter_)) < 30
    refusal(filter_, 600, in_one=False)
    assert 570 < skew_of(filter_) < 630
    refusal(filter_, 0)
    assert abs(skew_of(filter_)) < 30
    refusal(filter_, -600, body=b'{"message":"Signature not yet current: 20150830T124500Z is still later than ..."}')
    assert -630 < skew_of(filter_) < -570


@pytest.mark.parametrize("seconds", [86400, -86400])
def test_no_answer_moves_the_clock_by_more_than_a_quarter_of_an_hour(seconds):
    filter_ = made()
    for _ in range(3):
        refusal(filter_, seconds)
    assert 870 < abs(skew_of(filter_)) < 930


@pytest.mark.parametrize(
    "more",
    [
        {"body": b"<Error><Code>AccessDenied</Code></Error>"},
        {"body": b""},
        {"is_secure": False},  # anybody on the way could have written it
        {"body": b" " * 4096 + TOO_SKEWED},
    ],
)
def test_other_refusals_do_not_move_the_clock(more):
    filter_ = made()
    refusal(filter_, 600, **more)
    assert abs(skew_of(filter_)) < 30


@pytest.mark.parametrize(
    "aws",
    [
        {"service": "s3"},
        {"service": "s3", "region": "eu-*", "accessKey": REFS},
        {"service": "s3", "region": "x"},
        {"service": "s3", "region": "x", "accessKey": REFS, "instanceMetadata": {"backendRef": ENDPOINT["backendRef"]}},
        {"service": "s 3", "region": "x", "accessKey": REFS},
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(aws):
    with pytest.raises(ValueError, match=r"config\.aws"):
        injector({"aws": aws})


@pytest.mark.parametrize("more", [{"header": "X-Key"}, {"scrubResponses": True}, {"env": "A"}])
def test_what_sends_a_value_does_not_go_with_it(more):
    with pytest.raises(ValueError, match="config"):
        injector({"aws": {"service": "s3", "region": "x", "accessKey": REFS}, **more})


# -- temporary keys ----------------------------------------------------------------------------------------------------


def later(seconds=3600):
    return datetime.datetime.fromtimestamp(time.time() + seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def xml(key_id="ASIA1", end=None):
    return (
        200,
        f"""<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{key_id}</AccessKeyId>
<SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>{TOKEN}</SessionToken>
<Expiration>{end or later()}</Expiration></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>""".encode(),
    )


def temporary(endpoint, **source):
    config = {"aws": {"service": "s3", "region": "eu-central-1", **source}}
    return injector(config, {}, {LABEL: endpoint})


def web_identity(tmp_path, endpoint):
    file = tmp_path / "token"
    file.write_text("projected-1\n")
    role = {"roleArn": "arn:aws:iam::123456789012:role/egress", "tokenFile": str(file)}
    return temporary(endpoint, webIdentity={**role, "sts": {**ENDPOINT, "path": "/"}})


async def test_a_token_of_the_cluster_becomes_keys_of_a_role(tmp_path):
    sts = Endpoint(xml())
    filter_ = web_identity(tmp_path, sts)
    x = await sent(filter_)
    assert x.request.fields.get(b"authorization").startswith(b"AWS4-HMAC-SHA256 Credential=ASIA1/")
    assert x.request.fields.get(b"x-amz-security-token") == TOKEN.encode()
    assert sts.asked[0][:2] == (b"POST", b"/")
    assert b"authorization" not in sts.asked[0][2]
    assert dict(sts.form) == {
        "Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleSessionName": "egressproxy",
        "RoleArn": "arn:aws:iam::123456789012:role/egress", "WebIdentityToken": "projected-1",
    }  # fmt: skip
    filter_.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            (403, b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>S3CR3T</Message></Error>"),
            "403 (AccessDenied)",
        ),
        ((500, b"S3CR3T"), "answered with 500"),
        ((200, b"<S3CR3T/>"), "no usable keys"),
        (xml(end=later(-5)), "expired"),
        (xml(key_id="A</AccessKeyId><AccessKeyId>B"), "no usable keys"),
        (xml(key_id="A B"), "no usable keys"),
    ],
)
async def test_an_answer_without_keys_is_told_without_what_was_in_it(tmp_path, answer, said):
    filter_ = web_identity(tmp_path, Endpoint(answer))
    with pytest.raises(GatewayFault) as caught:
        await sent(filter_)
    assert said in caught.value.detail
    assert "S3CR3T" not in caught.value.detail
    filter_.close()


def of_machine(key_id="ASIA2", end=None):
    return 200, {"AccessKeyId": key_id, "SecretAccessKey": SECRET, "Token": TOKEN, "Expiration": end or later()}


async def test_the_agent_of_a_container(tmp_path):
    file = tmp_path / "token"
    file.write_text("agent-token")
    agent = Endpoint(of_machine(), is_verified=False)
    source = {"backendRef": ENDPOINT["backendRef"], "path": "/v1/credentials", "authorizationTokenFile": str(file)}
    filter_ = temporary(agent, container=source)
    x = await sent(filter_)
    assert b"Credential=ASIA2/" in x.request.fields.get(b"authorization")
    assert agent.asked[0][:2] == (b"GET", b"/v1/credentials")
    assert agent.asked[0][2].get(b"authorization") == b"agent-token"
    filter_.close()


async def test_the_metadata_of_an_instance():
    imds = Endpoint((200, b"session"), (200, b"role-1"), of_machine(), is_verified=False)
    filter_ = temporary(imds, instanceMetadata={"backendRef": ENDPOINT["backendRef"]})
    x = await sent(filter_)
    assert b"Credential=ASIA2/" in x.request.fields.get(b"authorization")
    first, second, third = imds.asked
    assert first[:2] == (b"PUT", b"/latest/api/token")
    assert first[2].get(b"x-aws-ec2-metadata-token-ttl-seconds") == b"300"
    assert second[:2] == (b"GET", b"/latest/meta-data/iam/security-credentials/")
    assert third[:2] == (b"GET", b"/latest/meta-data/iam/security-credentials/role-1")
    assert second[2].get(b"x-aws-ec2-metadata-token") == third[2].get(b"x-aws-ec2-metadata-token") == b"session"
    filter_.close()


@pytest.mark.parametrize("role", [b"", b"a b", b"../../x", b"..", b"<html>"])
async def test_an_instance_without_a_role(role):
    filter_ = temporary(
        Endpoint((200, b"session"), (200, role)), instanceMetadata={"backendRef": ENDPOINT["backendRef"]}
    )
    with pytest.raises(GatewayFault) as caught:
        await sent(filter_)
    assert "no role" in caught.value.detail
    filter_.close()


async def test_keys_are_replaced_before_they_end(tmp_path):
    sts = Endpoint(xml("ASIA1", later(2)), xml("ASIA2"))
    filter_ = web_identity(tmp_path, sts)
    await sent(filter_)

    def now():
        x = exchange()
        waiting = filter_.backend_request(x)
        if waiting is not None:
            waiting.close()
        return b"ASIA2" in x.request.fields.block

    await until(now)
    filter_.close()
