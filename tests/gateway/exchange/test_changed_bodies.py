"""What a head and trailers say of a body that filters have changed, between real sockets.

RFC 9110 sections 8.8 (validators), 9.3.2 (HEAD), 14 (ranges), 15.2 (interim responses), 15.4.5 (304); RFC 9530.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from egressproxy.filters.base import Filter, Phase
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from tests.gateway.conftest import Start
from tests.gateway.kit import OK, OK_PASSED, forward
from tests.support.conversation import Conversation, scripted_filter

DETECTOR = {
    "name": "pii", "type": "egressproxy.io/PIIDetector:v1", "phase": "request-headers",
    "config": {"entities": [{"name": "EMAIL"}], "applyTo": "Both"},
}  # fmt: skip
ABOUT = (
    b"Content-Digest: sha-256=:eA==:",
    b"Repr-Digest: sha-256=:eA==:",
    b"Digest: sha-256=eA==",
    b"Content-MD5: eA==",
)
OF_ANSWERS = (*ABOUT, b'ETag: "strong"', b"Accept-Ranges: bytes")
CLEAN, SAYS, SENT = b'{"a": "nobody"}', b'{"a": "al@example.com"}', b'{"a": "[EMAIL]"}'


@pytest.fixture
def talk(converse_on: Start) -> Conversation:
    made: Conversation = converse_on(forward(extensions=[DETECTOR]))
    return made


def lines(*more: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in (b"Content-Type: application/json", *more))


def ask(talk: Conversation, *fields: bytes, method: bytes = b"GET") -> bytes:
    """The head that the backend gets of a request without a body."""
    talk.client >> method + b" http://a.example/ HTTP/1.1\r\nHost: a.example\r\n" + lines(*fields) + b"\r\n"
    head: bytes = talk.dialled("a.example", 80).take(method + rb" / .*?\r\n\r\n")[0]
    return head


def told(head: bytes) -> set[bytes]:
    """Which of the fields about a body a head has, in small letters."""
    return {line.lower() for line in OF_ANSWERS} & {line.lower() for line in head.split(b"\r\n")}


@pytest.mark.parametrize(("said", "gets"), [(CLEAN, CLEAN), (SAYS, SENT)])
def test_a_request(talk: Conversation, said: bytes, gets: bytes):
    length = b"Content-Length: %d" % len(said)
    talk.client >> b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n" + lines(*ABOUT, length) + b"\r\n" + said
    head = talk.dialled("a.example", 80).take(rb"POST / .*?\r\n\r\n")[0]
    assert talk.origin.take(re.escape(gets))
    assert told(head) == (set() if said == SAYS else {line.lower() for line in ABOUT})
    assert b"content-length: %d\r\n" % len(gets) in head.lower()
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("said", "gets"), [(CLEAN, CLEAN), (SAYS, SENT)])
def test_a_whole_answer(talk: Conversation, said: bytes, gets: bytes, chunked: bool):
    ask(talk)
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(said)
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(said), said) if chunked else said
    talk.origin >> b"HTTP/1.1 200 OK\r\n" + lines(*OF_ANSWERS, length) + b"\r\n" + body
    head = talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")[0]
    talk.client.take(re.escape(gets))
    assert told(head) == (set() if said == SAYS else {line.lower() for line in OF_ANSWERS})
    assert (b'etag: w/"strong"' in head.lower()) is (said == SAYS)
    assert b"content-length: %d\r\n" % len(gets) in head.lower()


def test_a_stream_may_change_behind_its_head(talk: Conversation):
    ask(talk)
    kind = b"Content-Type: text/event-stream"
    fields = b"\r\n".join((kind, *OF_ANSWERS, b"Transfer-Encoding: chunked"))
    talk.origin >> b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n\r\n"
    head = talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")[0]
    assert told(head) == set()
    assert b'etag: w/"strong"' in head.lower()
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "al@example.com."}}]}\n\n'
    talk.origin >> b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event)
    assert b"[EMAIL]" in talk.client.take(rb".*\r\n0\r\n\r\n")[0]


@pytest.mark.parametrize("status", [206, 226])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("said", [CLEAN, SAYS])
def test_no_part_of_a_body_is_asked_for_and_an_answer_with_a_part_is_refused(
    talk: Conversation, said: bytes, chunked: bool, status: int
):
    head = ask(talk, b"Range: bytes=0-9", b'If-Range: "strong"', b"A-IM: vcdiff").lower()
    assert b"range" not in head
    assert b"a-im" not in head
    part = b"Content-Range: bytes 0-%d/99" % (len(said) - 1)
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(said)
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(said), said) if chunked else said
    talk.origin >> b"HTTP/1.1 %d Part\r\n" % status + lines(part, length) + b"\r\n" + body
    got, _, _, error = talk.client.answer()
    assert (got, error["reason"]) == (502, "upstream_bad_response")
    assert f"part ({status})" in error["message"]


@pytest.mark.parametrize(("method", "status"), [(b"HEAD", b"200 OK"), (b"GET", b"304 Not Modified")])
def test_an_answer_without_a_body_is_described_as_the_one_with_its_body(
    talk: Conversation, method: bytes, status: bytes
):
    ask(talk, method=method)
    talk.origin >> b"HTTP/1.1 " + status + b"\r\n" + lines(*OF_ANSWERS, b"Content-Length: 7") + b"\r\n"
    head = talk.client.take(rb"HTTP/1.1 .*?\r\n\r\n")[0].lower()
    assert told(head) == set()
    assert b'etag: w/"strong"' in head
    assert b"content-length" not in head
    talk.client >> b"GET http://a.example/2 HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.origin.take(rb"GET /2 .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 204 No\r\n" + lines(b'ETag: "strong"') + b"\r\n"
    assert b'"strong"' in talk.client.take(rb"HTTP/1.1 204 .*?\r\n\r\n")[0]


def test_an_interim_response_goes_on_before_it(talk: Conversation):
    ask(talk)
    talk.origin >> b"HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\n"
    assert b"Link: </a>\r\n" in talk.client.take(rb"HTTP/1.1 103 .*?\r\n\r\n")[0]
    talk.origin >> b"HTTP/1.1 200 OK\r\n" + lines(b"Content-Length: %d" % len(SAYS)) + b"\r\n" + SAYS
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n" + re.escape(SENT))


class Changes(Filter):
    """Sees trailers, and changes the body, or not."""

    runs_in = frozenset((Phase.REQUEST_BODY, Phase.RESPONSE_BODY))

    def __init__(self, act: Any, *, only_reads: bool = False) -> None:
        self.act = act
        self.only_reads = only_reads

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        made: bytes = self.act(data)
        return made

    response_body = request_body

    def request_trailers(self, x: Exchange, fields: Fields) -> None:
        fields.set(b"x-mark", b"1")

    response_trailers = request_trailers


class Signs(Changes):
    """Says the digest of what it has made."""

    def request_trailers(self, x: Exchange, fields: Fields) -> None:
        fields.set(b"content-digest", b"own")

    response_trailers = request_trailers


@pytest.mark.parametrize(
    ("acts", "passes"),
    [
        (Changes(bytes.upper), [b"X-Sum: 1", b"x-mark: 1"]),
        (Changes(bytes, only_reads=True), [b"Content-Digest: a", b"repr_digest: b", b"X-Sum: 1", b"x-mark: 1"]),
        (Signs(bytes.upper), [b"X-Sum: 1", b"content-digest: own"]),
    ],
)
def test_digests_in_trailers_of_a_body_that_may_have_changed_go_no_further(
    converse_on: Start, acts: Changes, passes: list[bytes]
):
    extensions = [scripted_filter("f", phase) | {"name": phase} for phase in ("request-body", "response-body")]
    talk = converse_on(forward(extensions=extensions), filters={"f": acts})
    body = b"2\r\nhi\r\n0\r\nContent-Digest: a\r\nrepr_digest: b\r\nX-Sum: 1\r\n\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    talk.client >> b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nTE: trailers\r\n" + chunked + body
    talk.dialled("a.example", 80).take(rb"POST / .*?\r\n\r\n")
    end = talk.origin.take(rb".*?0\r\n((?:[^\r]+\r\n)*)\r\n")[1]
    assert end.split(b"\r\n")[:-1] == passes
    talk.origin >> b"HTTP/1.1 200 OK\r\n" + chunked + body
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    end = talk.client.take(rb".*?0\r\n((?:[^\r]+\r\n)*)\r\n")[1]
    assert end.split(b"\r\n")[:-1] == passes
