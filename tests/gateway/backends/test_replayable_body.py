"""Body filters of a Backend: on its own leg, once for each attempt, for nobody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from egressproxy.filters.base import BodyMode, Filter, Phase, Rejected
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from tests.gateway.backends.test_failover import answer, asked, config
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_body_filter import dechunked
from tests.gateway.kit import OK, OK_PASSED
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter

POST = b"POST /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Around(Filter):
    """Puts a letter around what it gets."""

    def __init__(self, letter: bytes, mode: BodyMode | None, phase: Phase, *, is_async: bool = False) -> None:
        self.letter = letter
        self.mode = mode
        self.runs_in = frozenset([phase])
        self.is_async = is_async
        self.begun = 0

    def body_mode_for(self, x: Exchange, phase: Phase) -> BodyMode | None:
        return self.mode

    def request_body(self, x: Exchange, data: bytes, last: bool) -> Any:
        self.begun += 1
        made = self.letter + data + self.letter if data else data
        return self._later(made) if self.is_async else made

    response_body = request_body

    async def _later(self, made: bytes) -> bytes:
        await asyncio.sleep(0)
        return made


def with_extensions(objects: list[m.Manifest], **extensions: list[m.Manifest]) -> list[m.Manifest]:
    """The Backends of these names get these extensions."""
    for each in objects:
        if each["kind"] == "Backend" and each["metadata"]["name"] in extensions:
            each["spec"]["extensions"] = extensions[each["metadata"]["name"]]
    return objects


def single(*own: m.Manifest, rule: dict[str, Any] | None = None, **sections: Any) -> list[m.Manifest]:
    objects = [
        m.gateway(m.http_listener(8080)), m.backend("a", "a.example", 80), m.backend("b", "b.example", 80),
        m.http_route("route", m.prefix_rule("/", "a", **(rule or {}))), m.policy(**sections),
    ]  # fmt: skip
    return with_extensions(objects, a=list(own))


def sent(talk: Conversation) -> bytes:
    """The body that the origin has got."""
    talk.until(lambda: b"\r\n\r\n" in talk.origin.got and not talk.origin.got.endswith(b"\r\n\r\n"))
    talk.until(lambda: b"chunked" not in talk.origin.got or talk.origin.got.endswith(b"0\r\n\r\n"))
    head, _, body = talk.origin.got.partition(b"\r\n\r\n")
    talk.origin.received.clear()
    return dechunked(body) if b"chunked" in head else body


MODES = pytest.mark.parametrize(
    ("mode", "is_async"), [(mode, is_async) for mode in (*BodyMode, None) for is_async in (False, True)]
)


@MODES
@pytest.mark.parametrize("rule", [{}, {"retry": {"attempts": 1, "codes": [503]}}], ids=["once", "retries"])
@pytest.mark.parametrize("has_route_filter", [False, True])
def test_a_request_goes_through_the_filters_of_the_rule_and_then_of_the_backend(
    converse: Start, mode: BodyMode | None, is_async: bool, rule: dict[str, Any], has_route_filter: bool
):
    filters: dict[str, Filter] = {
        "own": Around(b"o", mode, Phase.REQUEST_BODY, is_async=is_async),
        "rule": Around(b"r", BodyMode.STREAM, Phase.REQUEST_BODY, is_async=is_async),
    }
    extensions = [scripted_filter("rule", "request-body")] if has_route_filter else []
    talk = converse(single(scripted_filter("own", "request-body"), rule=rule, extensions=extensions), filters=filters)
    talk.client >> POST + b"abc"
    if mode is not BodyMode.BUFFER:
        talk.dialled("a.example", 80)
    talk.client >> b"def"
    if mode is BodyMode.BUFFER:
        talk.dialled("a.example", 80)
    pieces = [b"abc", b"def"] if not has_route_filter else [b"rabcr", b"rdefr"]
    if mode is BodyMode.BUFFER:
        pieces = [b"".join(pieces)]
    expected = b"".join(pieces if mode is None else [b"o" + each + b"o" for each in pieces])
    got = sent(talk)
    assert got.replace(b"o", b"").replace(b"r", b"") == b"abcdef"
    assert got == expected or (mode is BodyMode.STREAM and got in (b"oabcdefo", b"orabcdefro"))
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("mode", list(BodyMode))
def test_each_attempt_has_the_filters_of_its_own_backend(converse: Start, mode: BodyMode):
    filters = {name: Around(name.encode(), mode, Phase.REQUEST_BODY) for name in ("a", "b")}
    objects = with_extensions(
        config(codes=[503]),
        a=[scripted_filter("a", "request-body")],
        b=[scripted_filter("b", "request-body")],
    )
    talk = converse(objects, filters=filters)
    talk.client >> POST + b"xyzxyz"
    for name, expected in (("a", b"axyzxyza"), ("b", b"bxyzxyzb"), ("c", b"xyzxyz")):
        talk.dialled(f"{name}.example", 80)
        assert sent(talk) == expected
        answer(talk, 503)
    talk.client.take(rb"HTTP/1.1 503 .*\r\n\r\nno")
    assert [each.begun - (mode is BodyMode.STREAM) for each in filters.values()] == [1, 1]


@pytest.mark.parametrize("mode", list(BodyMode))
def test_a_mirror_gets_what_the_backend_alone_has_changed_as_it_was(converse: Start, mode: BodyMode):
    rule = {
        "filters": [
            {
                "type": "RequestMirror",
                "requestMirror": {"backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "b"}},
            }
        ]
    }
    talk = converse(
        single(scripted_filter("own", "request-body"), rule=rule),
        filters={"own": Around(b"o", mode, Phase.REQUEST_BODY)},
    )
    talk.client >> POST + b"abcdef"
    talk.dialled("a.example", 80)
    assert sent(talk) == b"oabcdefo"
    main = talk.origin
    talk.dialled("b.example", 80)
    assert sent(talk) == b"abcdef"
    talk.origin >> OK
    main >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("mode", list(BodyMode))
@pytest.mark.parametrize("rule", [{}, {"retry": {"attempts": 1, "codes": [503]}}], ids=["once", "retries"])
def test_a_filter_of_the_backend_refuses_and_answers(converse: Start, mode: BodyMode, rule: dict[str, Any]):
    class Refusing(Around):
        def request_body(self, x: Exchange, data: bytes, last: bool) -> Any:
            if b"tea" in data:
                return LocalResponse(418)
            raise Rejected("not this", status=451)

    talk = converse(
        single(scripted_filter("own", "request-body"), rule=rule),
        filters={"own": Refusing(b"", mode, Phase.REQUEST_BODY)},
    )
    for body, status in ((b"abcdef", 451), (b"teatea", 418)):
        talk.client >> POST + body
        talk.dialled("a.example", 80)
        assert talk.client.answer()[0] == status
        talk.until(lambda: talk.open == 0)
    talk.no_dial()


def test_the_response_goes_through_the_filters_of_the_backend_and_then_of_the_rule(converse: Start):
    filters: dict[str, Filter] = {
        "own": Around(b"o", BodyMode.STREAM, Phase.RESPONSE_BODY),
        "rule": Around(b"r", BodyMode.BUFFER, Phase.RESPONSE_BODY),
    }
    extensions = [scripted_filter("rule", "response-body")]
    talk = converse(single(scripted_filter("own", "response-body"), extensions=extensions), filters=filters)
    talk.client >> GET
    asked(talk, "a")
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 .*Content-Length: 6\r\n\r\nrohior")


def test_a_copy_for_a_mirror_does_not_go_past_a_filter_of_its_own_backend(converse: Start):
    rule = {
        "filters": [
            {
                "type": "RequestMirror",
                "requestMirror": {"backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "b"}},
            }
        ]
    }
    objects = with_extensions(single(rule=rule), b=[scripted_filter("own", "request-body")])
    talk = converse(objects, filters={"own": Around(b"o", BodyMode.STREAM, Phase.REQUEST_BODY)})
    talk.client >> POST + b"abcdef"
    talk.dialled("a.example", 80)
    assert sent(talk) == b"abcdef"
    main = talk.origin
    talk.dialled("b.example", 80)
    main >> OK
    talk.client << OK_PASSED
    talk.until(lambda: talk.origin.is_gone)
    assert not talk.origin.got
