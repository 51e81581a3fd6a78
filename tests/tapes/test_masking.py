"""What is secret in an exchange is not on its tape, wherever it stands."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Final

import pytest

from egressproxy.model.fields import Fields
from egressproxy.tapes.filter import _Taken, interaction_of
from egressproxy.tapes.masking import Masker
from egressproxy.tapes.tape import Headers, Interaction, written

OPENAI = "sk-proj-Zq8Lw3Nn5Rt7Vx9Bd1Fh2Jk4Mp6Qs8Tu"
ANTHROPIC = "sk-ant-api03-Aa1Bb2Cc3Dd4Ee5Ff6Gg7Hh8Ii9Jj0Kk1Ll2Mm3"
GITHUB = "ghp_0123456789abcdefghijABCDEFGHIJ456789"
AWS = "AKIAIOSFODNN7EXAMPLE"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----"
JSON: Final = ("content-type", "application/json")
FORM: Final = ("content-type", "application/x-www-form-urlencoded")
EVENTS: Final = ("content-type", "text/event-stream")
PARTS: Final = ("content-type", 'multipart/form-data; boundary="cut"')


def exchange(
    uri: str = "https://api.example.com/v1/x",
    *asked: tuple[str, str],
    body: bytes = b"",
    answered: Headers | None = None,
    answer: bytes = b"",
) -> Interaction:
    return Interaction("POST", uri, [*asked], body, 200, "OK", answered or [], answer)


def json_body(**members: object) -> Interaction:
    return exchange("https://api.example.com/v1/x", JSON, body=json.dumps(members).encode())


def json_answer(**members: object) -> Interaction:
    return exchange(answered=[JSON], answer=json.dumps(members).encode())


def events(*pieces: str) -> bytes:
    """An answer of OpenAI in pieces."""
    deltas = ({"choices": [{"index": 0, "delta": {"content": each}}]} for each in pieces)
    made = "".join(f"data: {json.dumps({'object': 'chat.completion.chunk', **each})}\n\n" for each in deltas)
    return f"{made}data: [DONE]\n\n".encode()


def gzipped(answer: bytes) -> Interaction:
    """As the filter takes it from the wire."""
    fields = Fields.of([(b"content-type", b"application/json"), (b"content-encoding", b"gzip")])
    taken = _Taken("https://api.example.com/", Fields(), datetime.now(UTC), 0.0, is_recorded=True)
    taken.response_fields, taken.status, taken.phrase = fields, 200, "OK"
    taken.response, taken.has_body, taken.has_ended = [gzip.compress(answer)], True, True
    return interaction_of("GET", taken, 0.1)


BASIC = b64encode(b"deploy:hunter2-of-the-deployer").decode()
URL: Final = "https://api.example.com/v1/x"
#: What is planted -> where.
PLANTED: Final[dict[str, tuple[str, Interaction]]] = {
    "authorization": (OPENAI, exchange(URL, ("authorization", f"Bearer {OPENAI}"))),
    "authorization of no known form": (
        "opaque9token7of3mine",
        exchange(URL, ("Authorization", "opaque9token7of3mine")),
    ),
    "basic": (BASIC, exchange(URL, ("authorization", f"Basic {BASIC}"))),
    "proxy-authorization": (BASIC, exchange(URL, ("proxy-authorization", f"Basic {BASIC}"))),
    "x-api-key": (ANTHROPIC, exchange(URL, ("x-api-key", ANTHROPIC))),
    "api-key of Azure": (
        "0f1e2d3c4b5a69788796a5b4c3d2e1f0",
        exchange(URL, ("api-key", "0f1e2d3c4b5a69788796a5b4c3d2e1f0")),
    ),
    "x-goog-api-key": (
        "AIzaSyD-0123456789abcdefghijklmnopqrstu",
        exchange(URL, ("x-goog-api-key", "AIzaSyD-0123456789abcdefghijklmnopqrstu")),
    ),
    "private-token": ("glpat-ABCdef123456789ghijk", exchange(URL, ("private-token", "glpat-ABCdef123456789ghijk"))),
    "security token of AWS": (
        "IQoJb3JpZ2luX2VjEXAMPLE1",
        exchange(URL, ("x-amz-security-token", "IQoJb3JpZ2luX2VjEXAMPLE1")),
    ),
    "a field of one's own": ("s3cr3t-of-acme-4711", exchange(URL, ("x-acme-secret", "s3cr3t-of-acme-4711"))),
    "a token in a field": ("csrf-a1b2c3d4e5f6a7b8", exchange(URL, ("x-my-token", "csrf-a1b2c3d4e5f6a7b8"))),
    "a signature in a field": (
        "sha256=9f86d081884c7d659a2f",
        exchange(URL, ("x-hub-signature", "sha256=9f86d081884c7d659a2f")),
    ),
    "cookie": ("a1b2c3d4e5f6", exchange(URL, ("cookie", "theme=dark1; sid=a1b2c3d4e5f6"))),
    "session": (
        "1f2e3d4c-0000-4000-8000-abcdefabcdef",
        exchange(URL, ("mcp-session-id", "1f2e3d4c-0000-4000-8000-abcdefabcdef")),
    ),
    "query: key": (
        "AIzaSyD-abcdefghij0123456789klmnopqrstu",
        exchange(f"{URL}?key=AIzaSyD-abcdefghij0123456789klmnopqrstu&a=1"),
    ),
    "query: access_token": ("ya29-opaque-value-77", exchange(f"{URL}?access_token=ya29-opaque-value-77")),
    "query: signature": ("4bcf5bdb9f2e", exchange(f"{URL}?X-Amz-Signature=4bcf5bdb9f2e&X-Amz-Expires=60")),
    "query: a key of another name": (GITHUB, exchange(f"{URL}?q={GITHUB}")),
    "query: encoded": ("pass/word&42", exchange(f"{URL}?client_secret=pass%2Fword%2642")),
    "user in the URL": ("p4ssw0rd-of-bob", exchange("https://bob:p4ssw0rd-of-bob@api.example.com/")),
    "path of a bot": (
        "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw",
        exchange("https://api.telegram.org/bot110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/getMe"),
    ),
    "path of a webhook": ("T0A1/B0C2/x9Y8z7W6v5", exchange("https://hooks.slack.com/services/T0A1/B0C2/x9Y8z7W6v5")),
    "JSON: password": ("correct horse", json_body(user="bob", password="correct horse")),
    "JSON: deep": ("abcdefgh12345678", json_body(a=[{"b": {"clientSecret": "abcdefgh12345678"}}])),
    "JSON: in a text": (OPENAI, json_body(messages=[{"role": "user", "content": f"my key is {OPENAI}, ok?"}])),
    "JSON: in arguments of a tool": ("hunter2hunter2", json_body(arguments=json.dumps({"password": "hunter2hunter2"}))),
    "JSON: a PEM": ("MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", json_body(text=PEM)),
    "JSON: a mail address": ("alice.jones@corp-mail.com", json_body(input="write to alice.jones@corp-mail.com")),
    "JSON: a number of a card": ("4111111111111111", json_body(card=4111111111111111)),
    "JSON: a bank account": (
        "DE89370400440532013000",
        json_body(input="pay DE89 3704 0044 0532 0130 00 or DE89370400440532013000"),
    ),
    "JSON: a name of a member": ("bob.miller@corp-mail.com", json_body(users={"bob.miller@corp-mail.com": 1})),
    "form: client_secret": (
        "f0rm-s3cr3t",
        exchange(URL, FORM, body=b"grant_type=client_credentials&client_secret=f0rm-s3cr3t"),
    ),
    "form: code": (
        "4/0AX4XfWh-code",
        exchange(URL, FORM, body=b"code=4%2F0AX4XfWh-code&grant_type=authorization_code"),
    ),
    "form: refresh_token": ("1//0g-refresh-me", exchange(URL, FORM, body=b"refresh_token=1//0g-refresh-me")),
    "parts: a field": (
        "p4rt-s3cr3t",
        exchange(
            URL,
            PARTS,
            body=b'--cut\r\nContent-Disposition: form-data; name="api_key"\r\n\r\np4rt-s3cr3t\r\n--cut--\r\n',
        ),
    ),
    "parts: a file": (
        AWS,
        exchange(
            URL,
            PARTS,
            body=b'--cut\r\nContent-Disposition: form-data; name="file"; filename="a.json"\r\n'
            b'Content-Type: application/json\r\n\r\n{"id": "' + AWS.encode() + b'"}\r\n--cut--\r\n',
        ),
    ),
    "binary": (
        GITHUB,
        exchange(URL, ("content-type", "application/octet-stream"), body=b"\xff\x00 " + GITHUB.encode() + b" \xfe"),
    ),
    "text": (JWT, exchange(URL, ("content-type", "text/plain"), body=f"token {JWT}".encode())),
    "answer: set-cookie": ("d34db33fd34d", exchange(answered=[("set-cookie", "sid=d34db33fd34d; Path=/; HttpOnly")])),
    "answer: a token endpoint": (
        "opaque-access-token-0815",
        json_answer(access_token="opaque-access-token-0815", expires_in=3600),
    ),
    "answer: location": (
        "sp1cy-c0de-42",
        exchange(answered=[("location", "https://app.example.com/cb?code=sp1cy-c0de-42&x=1")]),
    ),
    "answer: gzip": (GITHUB, gzipped(json.dumps({"pushed_with": GITHUB}).encode())),
    "answer: events": (OPENAI, exchange(answered=[EVENTS], answer=events(f"use {OPENAI} now"))),
    "answer: JSON in events": (
        "ev3nt-s3cr3t",
        exchange(answered=[EVENTS], answer=b'event: x\ndata: {"password": "ev3nt-s3cr3t"}\n\n'),
    ),
}


@pytest.mark.parametrize("where", PLANTED)
def test_what_is_secret_is_not_on_tape(where: str):
    secret, found = PLANTED[where]
    masker = Masker()
    entry = written(masker.interaction(found))
    assert secret not in entry
    assert written(masker.interaction(masker.interaction(found))) == entry


def test_what_comes_in_pieces_of_a_stream_is_not_on_tape():
    found = exchange(answered=[EVENTS], answer=events("write to carol.wh", "ite@corp-mai", "l.com please"))
    lines = Masker().interaction(found).body.decode().split("\n\n")
    deltas = [json.loads(each.removeprefix("data: ")) for each in lines if each and "[DONE]" not in each]
    said = "".join(each["choices"][0]["delta"]["content"] for each in deltas)
    assert said == "write to [EMAIL] please"


def test_forty_secrets_are_planted():
    assert len(PLANTED) >= 40


def test_a_credential_is_found_again_wherever_an_answer_repeats_it():
    masker, key = Masker(), "opaque9token7of3mine"
    asked = exchange(URL, ("authorization", f"Bearer {key}"), answered=[("content-type", "text/plain")])
    masker.interaction(asked)
    for echo in (key, b64encode(f"x:{key}".encode()).decode(), key.encode().hex()):
        found = exchange(answered=[("content-type", "text/html"), ("x-echo", echo)], answer=f"<p>{echo}</p>".encode())
        assert echo not in written(masker.interaction(found))


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 100, "usage": {"total_tokens": 12}, "logprobs": [{"token": " hello", "logprob": -0.1}]},
        {"created": 1700000000, "at_ns": 1700000000123456789, "id": "chatcmpl-9xYz", "version": "1.2.3.4"},
        {"error": {"code": "context_length_exceeded", "type": "invalid_request_error"}},
        {"next_page_token": "CAUQAAabcdefghijklmnop", "author": "somebody", "primary": "key"},
    ],
    ids=["counts", "numbers", "codes", "pages"],
)
def test_what_is_no_secret_stays(body: dict[str, object]):
    found = json_answer(**body)
    assert Masker().interaction(found) == found


def test_a_scheme_and_the_names_of_cookies_stay_for_people():
    found = exchange(URL, ("authorization", "Bearer abc12345678"), ("cookie", "a=1; b=2"))
    assert Masker().interaction(found).request_headers == [
        ("authorization", "Bearer [SECRET]"),
        ("cookie", "a=[SECRET]; b=[SECRET]"),
    ]


def test_sessions_are_told_apart():
    masker = Masker()
    found = [masker.request(URL, [("mcp-session-id", each)], b"")[1][0][1] for each in ("aaa", "bbb", "aaa")]
    assert found == ["session-1", "session-2", "session-1"]
