"""Who uses a canary key is denied, found out and told of, wherever the key stands; its value is nowhere."""

from __future__ import annotations

import gzip
from base64 import b64encode, encodebytes
from json import dumps
from typing import Any
from urllib.parse import quote_plus

import pytest

from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import GET, GET_SENT, OK, OK_PASSED, forward
from tests.support import manifests as m
from tests.support.conversation import Conversation

KEY = "sk-Live-4242424242424242"
KNOWN = {"address": {"clients": [{"cidrs": ["10.0.0.9/32"], "namespace": "agents", "serviceAccount": "worker"}]}}


def watched(converse: Start, key: str = KEY) -> Conversation:
    config = {"secretRefs": [{"name": "planted"}]}
    extension = {"name": "canary", "type": "egressproxy.io/CanaryKeys:v1", "config": config}
    allow = ("a.example", "*.a.example")
    return converse(forward(m.secret("planted", {"token": key}), allow=allow, identity=KNOWN, extensions=[extension]))


def refused(talk: Conversation) -> None:
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "canary_key")
    talk.settle()
    assert (talk.record()["canary"], talk.record()["reason"]) == ("planted", "canary_key")
    told = [each for each in talk.metrics.notices.take() if each.reason == "CanaryKeyUsed"]
    assert "system:serviceaccount:agents:worker has used the canary key planted" in told[0].message
    assert KEY not in str(error) + str(told) + str({**talk.record(), "method": ""})


@pytest.mark.parametrize(
    "head",
    [
        f"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer {KEY}\r\n\r\n",
        f"GET http://a.example/?k={KEY} HTTP/1.1\r\nHost: a.example\r\n\r\n",
        f"GET http://a.example/?k={KEY.replace('-', '%2d')} HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nAuthorization: Basic "
        + b64encode(f"x:{KEY}".encode()).decode() + "\r\n\r\n",
        f"GET http://a.example/?k={KEY.encode().hex()} HTTP/1.1\r\nHost: a.example\r\n\r\n",
        f"GET http://a.example/?k={KEY.encode().hex().upper()} HTTP/1.1\r\nHost: a.example\r\n\r\n",
        f"GET http://a.example/?k={KEY.replace('-', '%252d')} HTTP/1.1\r\nHost: a.example\r\n\r\n",
        f"{KEY} http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        f"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\nUpgrade: {KEY}\r\n\r\n",
        f"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 {KEY}\r\n\r\n",
        f"GET http://{KEY}.a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        f"CONNECT {KEY.encode().hex()}.a.example:443 HTTP/1.1\r\nHost: {KEY.encode().hex()}.a.example\r\n\r\n",
    ],
)  # fmt: skip
def test_a_key_in_the_head_is_found_in_each_form(converse: Start, head: str):
    talk = watched(converse)
    talk.client >> head.encode()
    refused(talk)
    talk.no_dial()


def test_a_key_in_the_name_of_a_field_of_http2_is_found(converse: Start):
    talk = watched(converse)
    client = speak_http2(talk)
    stream = client.ask(b"GET", b"/", b"a.example", (KEY.lower().encode(), b"1"))
    assert client.answer(stream).status == 403
    assert talk.record()["reason"] == "canary_key"


@pytest.mark.parametrize("cut", [0, 1, 12, 23])
def test_a_key_in_the_body_is_found_across_pieces(converse: Start, cut: int):
    talk = watched(converse)
    body = b'{"key": "' + KEY.encode() + b'"}'
    head = b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n" % len(body)
    talk.client >> head + body[: 9 + cut]
    talk.dialled("a.example", 80)
    talk.client >> body[9 + cut :]
    refused(talk)


WRAPPED = encodebytes(b"x" * 50 + KEY.encode() + b"y" * 50)


@pytest.mark.parametrize(
    "body",
    [
        b'{"key": "' + KEY.replace("-", "\\u002d").encode() + b'"}',
        b'{"key": "' + b"".join(b"\\u%04x" % digit for digit in KEY.encode()) + b'"}',
        WRAPPED,
        WRAPPED.replace(b"\n", b"\r\n"),
        dumps({"file": WRAPPED.decode()}).encode(),
        b"file=" + quote_plus(WRAPPED).encode(),
        KEY.encode().hex().encode(),
        b"".join(b"\\u%04x" % digit for digit in KEY.encode().hex().encode()),
        quote_plus("".join(f"%{digit:02x}" for digit in KEY.encode().hex().encode())).encode(),
        KEY.encode("utf-16"),
        KEY.encode("utf-16-be"),
        KEY.encode("utf-32-le"),
        b"powershell -EncodedCommand " + b64encode(f"x {KEY}".encode("utf-16-le")),
        b64encode(f"xy{KEY}".encode("utf-16-be")),
    ],
)
@pytest.mark.parametrize("size", [1, 40, 1000])
def test_a_key_in_the_body_is_found_as_tools_write_it(converse: Start, body: bytes, size: int):
    talk = watched(converse)
    head = b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n" % len(body)
    talk.client >> head + body[:size]
    talk.dialled("a.example", 80)
    for at in range(size, len(body), size):
        if not talk.records:
            talk.client >> body[at : at + size]
    refused(talk)


def aws(body: bytes, *, cut: int, signed: bool = True, trailers: bytes = b"") -> bytes:
    """As clients of S3 send it: in chunks of so many bytes, of which each has its signature."""
    signature = b";chunk-signature=" + b"a" * 64 if signed else b""
    parts = [body[at : at + cut] for at in range(0, len(body), cut)]
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(part), signature, part) for part in parts)
    return chunks + b"0%b\r\n%b\r\n" % (signature, trailers)


def upload(talk: Conversation, body: bytes, coding: bytes = b"aws-chunked") -> None:
    head = b"PUT http://a.example/o HTTP/1.1\r\nHost: a.example\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n"
    talk.client >> head % (coding, len(body)) + body
    talk.dialled("a.example", 80)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("cut", [5, 65536])
def test_a_key_in_an_upload_to_s3_is_found(converse: Start, cut: int, signed: bool):
    talk = watched(converse)
    upload(talk, aws(b"x" * 9 + KEY.encode() + b"y", cut=cut, signed=signed))
    refused(talk)


def test_a_key_in_its_trailers_and_in_a_coding_of_its_own_is_found(converse: Start):
    talk = watched(converse)
    upload(talk, aws(b"x", cut=1, trailers=f"x-amz-meta: {KEY}\r\n".encode()))
    refused(talk)
    talk = watched(converse)
    upload(talk, aws(gzip.compress(KEY.encode()), cut=7), b"aws-chunked, gzip")
    refused(talk)


def test_other_uploads_to_s3_go_on_as_they_came(converse: Start):
    for body in (aws(b"z" * 100, cut=30), aws(b"", cut=1, signed=False, trailers=b"x-amz-checksum-crc32:AAAAAA==\r\n")):
        talk = watched(converse)
        upload(talk, body)
        assert talk.origin.take(rb"PUT /o .*?\r\n\r\n(.*)\Z")[1] == body
        talk.origin >> OK
        talk.client << OK_PASSED


@pytest.mark.parametrize(
    "body",
    [b"hello", b"5\r\nhelloXX0\r\n\r\n", b"5;a=b\r\nhello\r\n0\r\n\r\n", aws(b"hello", cut=5)[:-3], b"0\r\n\r\nmore"],
)
def test_an_upload_that_is_malformed_is_refused(converse: Start, body: bytes):
    """S3 would refuse it, too; nobody knows what another server would read in it."""
    talk = watched(converse)
    upload(talk, body)
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (400, "content_coding")


@pytest.mark.parametrize("key", ["short", "k" * 1025])
def test_a_key_that_is_too_short_or_too_long_closes_the_place(converse: Start, key: str):
    talk = watched(converse, key=key)
    talk.client >> GET
    answer: Any = talk.client.answer()
    assert answer[0] >= 500
    talk.no_dial()


def test_other_requests_pass(converse: Start):
    talk = watched(converse)
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
