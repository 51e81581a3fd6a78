"""Cross-origin requests through the connection manager."""

from __future__ import annotations

from tests.gateway.conftest import Start
from tests.gateway.kit import OK, reverse
from tests.support import manifests as m

CORS = {"type": "CORS", "cors": {"allowOrigins": ["https://b.example"], "allowMethods": ["PUT"]}}
FROM_B = b"Host: a.example\r\nOrigin: https://b.example\r\n"
ASKS_TO_PUT = FROM_B + b"Access-Control-Request-Method: PUT\r\n"
ALLOWED = (
    b"HTTP/1.1 200 OK\r\naccess-control-allow-origin: https://b.example\r\naccess-control-allow-methods: PUT\r\n"
    b"access-control-max-age: 5\r\nvary: Origin, Access-Control-Request-Method, Access-Control-Request-Headers\r\n"
    b"Content-Length: 0\r\n\r\n"
)


def with_cors(**match: str):
    rule = m.prefix_rule("/", "a", filters=[CORS])
    rule["matches"][0].update(match)
    return reverse(rule)


def test_a_preflight_request_is_answered_without_a_backend(converse: Start):
    talk = converse(with_cors())
    talk.client >> b"OPTIONS /x HTTP/1.1\r\n" + ASKS_TO_PUT + b"\r\n"
    talk.client << ALLOWED
    record = talk.record()
    assert (record["status"], record["route"], record["upstream"]) == (200, "agents/route", "-")


def test_a_preflight_request_reaches_the_rule_of_the_method_that_it_asks_for(converse: Start):
    talk = converse(with_cors(method="PUT"))
    talk.client >> b"OPTIONS /x HTTP/1.1\r\n" + ASKS_TO_PUT + b"\r\n"
    talk.client << ALLOWED
    talk.client >> b"OPTIONS /x HTTP/1.1\r\n" + FROM_B + b"\r\n"
    assert talk.client.answer()[0] == 404


def test_what_only_looks_like_a_preflight_request_is_not_sent_to_the_backend_of_another_method(converse: Start):
    talk = converse(with_cors(method="PUT"))
    talk.client >> b"OPTIONS /x HTTP/1.1\r\nHost: a.example\r\nAccess-Control-Request-Method: PUT\r\n\r\n"
    assert talk.client.answer()[0] == 404
    talk.no_dial()


def test_an_answer_says_who_may_read_it(converse: Start):
    talk = converse(with_cors())
    talk.client >> b"GET / HTTP/1.1\r\n" + FROM_B + b"\r\n"
    talk.dialled("a.example", 80)
    talk.origin << b"GET / HTTP/1.1\r\n" + FROM_B + b"Via: 1.1 gw\r\n\r\n"
    talk.origin >> OK.replace(b"\r\n\r\n", b"\r\nAccess-Control-Allow-Origin: *\r\n\r\n")
    talk.client << (
        b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: https://b.example\r\nVary: Origin\r\n"
        b"Via: 1.1 gw\r\nContent-Length: 2\r\n\r\nhi"
    )
