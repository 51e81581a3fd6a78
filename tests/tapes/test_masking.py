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
OPAQUE = "opaque9token7of3mine"
URL: Final = "https://api.example.com/v1/x"
JSON: Final = ("content-type", "application/json")
FORM: Final = ("content-type", "application/x-www-form-urlencoded")
EVENTS: Final = ("content-type", "text/event-stream")
PARTS: Final = ("content-type", 'multipart/form-data; boundary="cut"')


def exchange(
    uri: str = URL, *asked: tuple[str, str], body: bytes = b"", answered: Headers | None = None, answer: bytes = b""
) -> Interaction:
    return Interaction("POST", uri, [*asked], body, 200, "OK", answered or [], answer)


def field(secret: str, name: str, form: str = "{}") -> tuple[str, Interaction]:
    return secret, exchange(URL, (name, form.format(secret)))


def url(secret: str, form: str) -> tuple[str, Interaction]:
    return secret, exchange(form.format(secret))


def json_body(**members: object) -> Interaction:
    return exchange(URL, JSON, body=json.dumps(members).encode())


def json_answer(**members: object) -> Interaction:
    return exchange(answered=[JSON], answer=json.dumps(members).encode())


def events(*pieces: str) -> bytes:
    """An answer of OpenAI in pieces."""
    deltas = ({"choices": [{"index": 0, "delta": {"content": each}}]} for each in pieces)
    made = "".join(f"data: {json.dumps({'object': 'chat.completion.chunk', **each})}\n\n" for each in deltas)
    return f"{made}data: [DONE]\n\n".encode()


def text_body(media: str, body: bytes) -> Interaction:
    return exchange(URL, ("content-type", media), body=body)


def part(head: bytes, content: bytes) -> Interaction:
    body = b"--cut\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n--cut--\r\n" % (head, content)
    return exchange(URL, PARTS, body=body)


def gzipped(answer: bytes) -> Interaction:
    """As the filter takes it from the wire."""
    fields = Fields.of([(b"content-type", b"application/json"), (b"content-encoding", b"gzip")])
    taken = _Taken("https://api.example.com/", Fields(), datetime.now(UTC), 0.0, is_recorded=True)
    taken.response_fields, taken.status, taken.phrase = fields, 200, "OK"
    taken.response, taken.has_body, taken.has_ended = [(0.0, gzip.compress(answer))], True, True
    return interaction_of("GET", taken, 0.1)


BASIC = b64encode(b"deploy:hunter2-of-the-deployer").decode()
#: What is planted -> where.
PLANTED: Final[dict[str, tuple[str, Interaction]]] = {
    "authorization": field(OPENAI, "authorization", "Bearer {}"),
    "authorization of no known form": field(OPAQUE, "Authorization"),
    "basic": field(BASIC, "authorization", "Basic {}"),
    "proxy-authorization": field(BASIC, "proxy-authorization", "Basic {}"),
    "x-api-key": field(ANTHROPIC, "x-api-key"),
    "api-key of Azure": field("0f1e2d3c4b5a69788796a5b4c3d2e1f0", "api-key"),
    "x-goog-api-key": field("AIzaSyD-0123456789abcdefghijklmnopqrstu", "x-goog-api-key"),
    "private-token": field("glpat-ABCdef123456789ghijk", "private-token"),
    "security token of AWS": field("IQoJb3JpZ2luX2VjEXAMPLE1", "x-amz-security-token"),
    "a field of one's own": field("s3cr3t-of-acme-4711", "x-acme-secret"),
    "a token in a field": field("csrf-a1b2c3d4e5f6a7b8", "x-my-token"),
    "a signature in a field": field("sha256=9f86d081884c7d659a2f", "x-hub-signature"),
    "cookie": field("a1b2c3d4e5f6", "cookie", "theme=dark1; sid={}"),
    "session": field("1f2e3d4c-0000-4000-8000-abcdefabcdef", "mcp-session-id"),
    "query: key": url("AIzaSyD-abcdefghij0123456789klmnopqrstu", URL + "?key={}&a=1"),
    "query: access_token": ("ya29-opaque-value-77", exchange(f"{URL}?access_token=ya29-opaque-value-77")),
    "query: signature": ("4bcf5bdb9f2e", exchange(f"{URL}?X-Amz-Signature=4bcf5bdb9f2e&X-Amz-Expires=60")),
    "query: a key of another name": (GITHUB, exchange(f"{URL}?q={GITHUB}")),
    "query: encoded": ("pass/word&42", exchange(f"{URL}?client_secret=pass%2Fword%2642")),
    "user in the URL": ("p4ssw0rd-of-bob", exchange("https://bob:p4ssw0rd-of-bob@api.example.com/")),
    "path of a bot": url("110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw", "https://api.telegram.org/bot{}/getMe"),
    "path of a webhook": url("T0A1/B0C2/x9Y8z7W6v5", "https://hooks.slack.com/services/{}"),
    "JSON: password": ("correct horse", json_body(user="bob", password="correct horse")),
    "JSON: deep": ("abcdefgh12345678", json_body(a=[{"b": {"clientSecret": "abcdefgh12345678"}}])),
    "JSON: in a text": (OPENAI, json_body(messages=[{"role": "user", "content": f"my key is {OPENAI}, ok?"}])),
    "JSON: in arguments of a tool": ("hunter2hunter2", json_body(arguments=json.dumps({"password": "hunter2hunter2"}))),
    "JSON: a PEM": ("MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", json_body(text=PEM)),
    "JSON: a mail address": ("alice.jones@corp-mail.com", json_body(input="write to alice.jones@corp-mail.com")),
    "JSON: a number of a card": ("4111111111111111", json_body(card=4111111111111111)),
    "JSON: a bank account": (
        "DE89370400440532013000",
        json_body(pay="DE89 3704 0044 0532 0130 00 DE89370400440532013000"),
    ),
    "JSON: a name of a member": ("bob.miller@corp-mail.com", json_body(users={"bob.miller@corp-mail.com": 1})),
    "form: client_secret": (
        "f0rm-s3cr3t",
        text_body(FORM[1], b"grant_type=client_credentials&client_secret=f0rm-s3cr3t"),
    ),
    "form: code": ("4/0AX4XfWh-code", text_body(FORM[1], b"code=4%2F0AX4XfWh-code&grant_type=authorization_code")),
    "form: refresh_token": ("1//0g-refresh-me", text_body(FORM[1], b"refresh_token=1//0g-refresh-me")),
    "parts: a field": ("p4rt-s3cr3t", part(b'name="api_key"', b"p4rt-s3cr3t")),
    "parts: a file": (
        AWS,
        part(b'name="file"; filename="a.json"\r\nContent-Type: text/json', b'{"id": "%b"}' % AWS.encode()),
    ),
    "binary": (GITHUB, text_body("application/octet-stream", b"\xff\x00 %b \xfe" % GITHUB.encode())),
    "text": (JWT, text_body("text/plain", f"token {JWT}".encode())),
    "answer: set-cookie": ("d34db33fd34d", exchange(answered=[("set-cookie", "sid=d34db33fd34d; Path=/; HttpOnly")])),
    "answer: a token endpoint": ("opaque-token-0815", json_answer(access_token="opaque-token-0815", expires_in=3600)),
    "answer: location": ("sp1cy-c0de-42", exchange(answered=[("location", "https://a.b/cb?code=sp1cy-c0de-42&x=1")])),
    "answer: gzip": (GITHUB, gzipped(json.dumps({"pushed_with": GITHUB}).encode())),
    "answer: events": (OPENAI, exchange(answered=[EVENTS], answer=events(f"use {OPENAI} now"))),
    "answer: JSON in events": (
        "ev3nt-s3",
        exchange(answered=[EVENTS], answer=b'event: x\ndata: {"pwd": "ev3nt-s3"}\n\n'),
    ),
    "a field with a blank": ("secretword", exchange(URL, ("x-api-key", "secretword 12345678"))),
    "a field that ends in -key": (OPAQUE, exchange(URL, ("x-rapidapi-key", OPAQUE))),
    "query: a token": (OPAQUE, exchange(f"{URL}?authToken={OPAQUE}")),
    "query: a name alone": (OPENAI, exchange(f"{URL}?{OPENAI}")),
    "query: a URL": ("s3cr3tcode", exchange(f"{URL}?next=https%3A%2F%2Fa.example%2F%3Faccess_token%3Ds3cr3tcode")),
    "path: a session": (OPAQUE, exchange(f"https://api.example.com/x;jsessionid={OPAQUE}")),
    "answer: fragment": ("0paque", exchange(answered=[("location", "https://a.example/cb#access_token=0paque&x=1")])),
    "answer: phrase": (OPENAI, Interaction("GET", URL, [], b"", 200, OPENAI, [], b"")),
    "JSON: a user in a URL": (OPAQUE, json_body(url=f"https://{OPAQUE}@api.example.com/x")),
    "JSON: a number": ("482913", json_body(pin=482913)),
    "JSON: a number of a card with a point": ("4111111111111111", text_body(JSON[1], b'{"card":4111111111111111.0}')),
    "JSON: an object": ("hunter2x", json_body(credentials={"user": "a", "value": "hunter2x"})),
    "JSON: a list of objects": ("hunter2x", json_body(secrets=[{"v": "hunter2x"}])),
    "JSON: names and values": ("hunter2x", json_body(env=[{"name": "DB_PASSWORD", "value": "hunter2x"}])),
    "JSON: JSON twice": ("hunter2x", json_body(log=json.dumps({"line": json.dumps({"otp": "hunter2x"})}))),
    "JSON: a member twice": (OPENAI, text_body(JSON[1], b'{"a":"%b","a":"ok"}' % OPENAI.encode())),
    "JSON: a byte order mark": ("hunter2x", text_body(JSON[1], b'\xef\xbb\xbf{"pin":"hunter2x"}')),
    "JSON: a sequence": ("hunter2x", text_body("application/json-seq", b'\x1e{"pin":"hunter2x"}\n')),
    "JSON: as text": ("hunter2x", text_body("text/plain", b'{"pin":"hunter2x"}')),
    "JSON: as bytes": ("hunter2x", text_body("application/octet-stream", b'{"pin":"hunter2x"}')),
    "form: a token": (OPAQUE, text_body(FORM[1], f"session_token={OPAQUE}".encode())),
    "form: JSON": ("hunter2x", text_body(FORM[1], b"payload=%7B%22pin%22%3A%22hunter2x%22%7D")),
    "parts: a field with a type": ("hunter2x", part(b'name="password"\r\nContent-Type: text/plain', b"hunter2x")),
    "parts: without quotes": ("hunter2x", part(b"name=password", b"hunter2x")),
    "parts: mixed": (
        "hunter2x",
        text_body('multipart/mixed; boundary="cut"', b'--cut\nContent-Type: text/json\n\n{"pin":"hunter2x"}\n--cut--'),
    ),
    "XML": ("hunter2x", text_body("application/xml", b"<l><u:password a='1'>hunter2x</u:password></l>")),
    "text in Latin-1": ("jane.roe@corp-mail.com", text_body("text/html", b"\xfc jane.roe@corp-mail.com")),
    "events: id": (OPENAI, exchange(answered=[EVENTS], answer=f"id: {OPENAI}\ndata: {{}}\n\n".encode())),
    "events: comment": (OPENAI, exchange(answered=[EVENTS], answer=f": {OPENAI}\n\n".encode())),
}


@pytest.mark.parametrize("where", PLANTED)
def test_what_is_secret_is_not_on_tape(where: str):
    secret, found = PLANTED[where]
    masker = Masker()
    masked = masker.interaction(found)
    assert secret not in written(masked)
    assert secret.encode() not in masked.request_body + masked.body  # which may be in base64 on tape
    assert masker.interaction(masked) == masked


def test_what_comes_in_pieces_of_a_stream_is_not_on_tape():
    found = exchange(answered=[EVENTS], answer=events("write to carol.wh", "ite@corp-mai", "l.com please"))
    lines = Masker().interaction(found).body.decode().split("\n\n")
    deltas = [json.loads(each.removeprefix("data: ")) for each in lines if each and "[DONE]" not in each]
    said = "".join(each["choices"][0]["delta"]["content"] for each in deltas)
    assert said == "write to [EMAIL] please"


def test_a_credential_is_found_again_wherever_an_answer_repeats_it():
    masker, key = Masker(), OPAQUE
    asked = exchange(URL, ("authorization", f"Bearer {key}"), answered=[("content-type", "text/plain")])
    masker.interaction(asked)
    for echo in (key, b64encode(f"x:{key}".encode()).decode(), key.encode().hex()):
        found = exchange(answered=[("content-type", "text/html"), ("x-echo", echo)], answer=f"<p>{echo}</p>".encode())
        assert echo not in written(masker.interaction(found))


def test_a_key_that_is_the_user_of_a_login_is_found_again():
    masker, login = Masker(), b64encode(f"{OPAQUE}:x".encode()).decode()
    masker.interaction(exchange(URL, ("authorization", f"Basic {login}")))
    assert OPAQUE not in written(masker.interaction(text_body("text/plain", f"you are {OPAQUE}".encode())))


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 100, "usage": {"total_tokens": 12}, "logprobs": [{"token": " hello", "logprob": -0.1}]},
        {"created": 1700000000, "at_ns": 1700000000123456789, "id": "chatcmpl-9xYz", "version": "1.2.3.4"},
        {"error": {"code": "context_length_exceeded", "type": "invalid_request_error"}},
        {"next_page_token": "CAUQAAabcdefghijklmnop", "author": "somebody", "primary": "key"},
        {"properties": {"password": {"type": "string", "minLength": 8}}, "text": "[1] is that it? a; b"},
    ],
    ids=["counts", "numbers", "codes", "pages", "schema"],
)
def test_what_is_no_secret_stays(body: dict[str, object]):
    found = json_answer(**body)
    assert Masker().interaction(found) == found


def test_the_time_for_a_name_does_not_grow_with_its_square():
    found = json_answer(**{"_" * 300_000: "of-sixteen-letters", "a" * 300_000 + "_password": "hunter2x"})
    assert b"hunter2x" not in Masker().interaction(found).body


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
