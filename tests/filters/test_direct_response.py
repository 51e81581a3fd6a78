"""DirectResponse: the response that is made of a config, and that a client gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.filters import Exchange, FilterContext
from egressproxy.filters.direct_response import DirectResponseConfig, DirectResponseFilter
from egressproxy.filters.validation import validated
from egressproxy.model.local_response import LocalResponse
from tests.support import manifests as m
from tests.support.conversation import conversation

PLAIN = (b"content-type", b"text/plain; charset=utf-8")


def response(**config: Any) -> LocalResponse:
    context = FilterContext(validated(DirectResponseConfig, json.dumps(config)), {}, "d", "-", "-")
    return DirectResponseFilter(context).request_headers(Exchange("127.0.0.1:1", "a/gw", "l", 0.0))


def test_a_body_is_plain_text_unless_the_rule_says_otherwise():
    assert response(statusCode=403, body="né") == LocalResponse(403, (PLAIN,), "né".encode())
    typed = response(statusCode=200, body="{}", response={"set": [{"name": "Content-Type", "value": "a/b"}]})
    assert typed.fields == ((b"Content-Type", b"a/b"),)
    assert response(statusCode=200, body="{}", response={"remove": ["content-type"]}).fields == ()
    assert response(statusCode=204) == LocalResponse(204)


@pytest.mark.parametrize(
    "config",
    [
        {"statusCode": 199}, {"statusCode": 600}, {}, {"statusCode": 304, "body": "x"},
        {"statusCode": 200, "body": "x" * 4097},
        {"statusCode": 200, "response": {"set": [{"name": "Content-Length", "value": "9"}]}},
    ],
)  # fmt: skip
def test_what_cannot_be_a_response_is_refused(config: dict[str, Any]):
    with pytest.raises(ValueError, match="config"):
        response(**config)


@pytest.mark.parametrize("wire", ["memory", "sockets"])
def test_a_client_gets_the_response_and_no_backend_is_asked(wire: str):
    filters = [
        {"type": "DirectResponse", "directResponse": {"statusCode": 403, "body": {"string": "Forbidden"}}},
        {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [{"name": "X-Why", "value": "closed"}]}},
    ]
    route = m.http_route("r", {"matches": [{"path": {"type": "PathPrefix", "value": "/"}}], "filters": filters})
    talk = conversation([m.gateway(m.http_listener(8080)), route], wire=wire)
    talk.client >> b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    head = talk.client.take(rb"HTTP/1.1 403 (.*?)\r\n\r\nForbidden")[1]
    assert b"x-why: closed" in head
    assert b"content-type: text/plain; charset=utf-8" in head
    talk.client >> b"HEAD / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    assert b"Content-Length: 9" in talk.client.take(rb"HTTP/1.1 403 (.*?)\r\n\r\n")[1]
    talk.client.hears_nothing()
    talk.close()
