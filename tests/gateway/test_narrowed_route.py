"""Filters that choose among the backends of a rule, ask for the next attempt, and see the body of an attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from egressproxy.filters.base import BodyMode, Filter, NextAttempt, Phase
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from tests.gateway.backends.test_failover import GET, POST, answer, asked, config
from tests.gateway.conftest import Start
from tests.gateway.kit import OK, OK_PASSED
from tests.support import manifests as m
from tests.support.conversation import scripted_filter

OTHER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"


class Script(Filter):
    body_mode = BodyMode.BUFFER

    def __init__(self, phase: Phase, act: Callable[[Exchange], Any], *, needs_body: bool = False) -> None:
        self.runs_in = frozenset((phase,))
        self.needs_body = needs_body
        self.act = act

    def request_headers(self, x: Exchange) -> Any:
        return self.act(x)

    backend_request = backend_response = request_headers

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        self.act(x)
        return data


def filtered(phase: str, objects: list[m.Manifest]) -> list[m.Manifest]:
    return [*objects, m.policy(extensions=[scripted_filter("f", phase)])]


def weighted(*rules: Any, **rule: Any) -> list[m.Manifest]:
    """A rule with a and b, of which a has nearly all the weight."""
    refs = [{"name": "a", "port": 80, "weight": 1000}, {"name": "b", "port": 80, "weight": 1}]
    refs = [{**ref, "group": "egressproxy.io", "kind": "Backend"} for ref in refs]
    made = {**m.prefix_rule("/", "a"), "backendRefs": refs, **rule}
    return [
        m.gateway(m.http_listener(8080)), m.backend("a", "a.example", 80), m.backend("b", "b.example", 80),
        m.http_route("route", made),
    ]  # fmt: skip


def choosing(act: Callable[[Exchange], Any], phase: Phase = Phase.REQUEST_HEADERS) -> dict[str, Filter]:
    return {"f": Script(phase, act)}


@pytest.mark.parametrize("phase", [Phase.REQUEST_HEADERS, Phase.REQUEST_BODY])
@pytest.mark.parametrize(
    "act", [lambda x: x.exclude_backend("agents/a"), lambda x: x.prefer_backend("agents/b")], ids=["exclude", "prefer"]
)
def test_a_filter_chooses_against_the_weights(converse: Start, act: Callable[[Exchange], Any], phase: Phase):
    talk = converse(filtered(phase.value, weighted()), filters=choosing(act, phase))
    for is_new in (True, False):
        talk.client >> POST
        asked(talk, "b", b"POST", is_new=is_new)
        talk.origin.take(b".*abcde")
        talk.origin >> OK
        talk.client << OK_PASSED
    assert talk.record()["backend"] == "agents/b"


@pytest.mark.parametrize("objects", [weighted(), config("a", "b")], ids=["weights", "failover"])
def test_a_request_with_every_backend_excluded_is_denied(converse: Start, objects: list[m.Manifest]):
    def exclude(x: Exchange) -> None:
        for name in ("agents/a", "agents/b", "agents/other"):
            x.exclude_backend(name)

    talk = converse(filtered("request-headers", objects), filters=choosing(exclude))
    talk.client >> GET
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "filter_rejected")
    talk.no_dial()


@pytest.mark.parametrize("objects", [weighted(), config("a", "b")], ids=["weights", "failover"])
def test_other_names_and_both_at_once_change_nothing(converse: Start, objects: list[m.Manifest]):
    def choose(x: Exchange) -> None:
        x.exclude_backend("agents/c")
        x.prefer_backend("agents/d")

    talk = converse(filtered("request-headers", objects), filters=choosing(choose))
    talk.client >> GET
    asked(talk, "a")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_an_excluded_backend_is_not_preferred(converse: Start):
    def choose(x: Exchange) -> None:
        x.exclude_backend("agents/b")
        x.prefer_backend("agents/b")

    talk = converse(filtered("request-headers", weighted()), filters=choosing(choose))
    talk.client >> GET
    asked(talk, "a")


def test_retries_do_not_reach_an_excluded_backend(converse: Start):
    objects = weighted(retry={"attempts": 2, "codes": [503], "backoff": "0s"})
    talk = converse(filtered("request-headers", objects), filters=choosing(lambda x: x.exclude_backend("agents/a")))
    talk.client >> GET
    asked(talk, "b")
    for _ in range(2):
        answer(talk, 503)
        talk.until(lambda: bool(talk.origin.got))
        talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_failover_passes_over_an_excluded_endpoint_and_asks_the_preferred_one_first(converse: Start):
    def choose(x: Exchange) -> None:
        x.exclude_backend("agents/b")
        x.prefer_backend("agents/c")

    talk = converse(filtered("request-headers", config(codes=[503])), filters=choosing(choose))
    talk.client >> GET
    asked(talk, "c")
    answer(talk, 503)
    asked(talk, "a")
    answer(talk, 503)
    talk.client.take(rb"HTTP/1.1 503 .*\r\n\r\nno")
    talk.no_dial()


def test_a_choice_after_the_choice_is_a_failure_of_the_filter(converse: Start):
    talk = converse(
        filtered("backend-request", weighted()),
        filters=choosing(lambda x: x.exclude_backend("agents/a"), Phase.BACKEND_REQUEST),
    )
    talk.client >> GET
    talk.dialled("a.example", 80)
    assert talk.client.answer()[3]["reason"] == "filter_failed"


# --- the next attempt -------------------------------------------------------------------------------------------------
def refuse_first(x: Exchange) -> None:
    x.response.fields.set(b"x-seen", b"%d" % x.attempts)
    if x.backend == "agents/a" and x.attempts == 1:
        raise NextAttempt("it is empty")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_filter_asks_for_the_next_backend_of_a_failover(converse: Start, method: str):
    talk = converse(filtered("backend-response", config()), filters=choosing(refuse_first, Phase.BACKEND_RESPONSE))
    talk.client >> (GET if method == "GET" else POST)
    asked(talk, "a", method.encode())
    if method == "POST":
        talk.origin.take(b"abcde")
    first = talk.origin
    first >> OTHER
    asked(talk, "b", method.encode())
    if method == "POST":
        talk.origin.take(b"abcde")
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 OK\r\nx-seen: 2\r\n.*\r\n\r\nhi")
    assert (talk.record()["backend"], talk.record()["attempts"]) == ("agents/b", 2)
    talk.client >> GET  # that says nothing of the backend's health, nor of its connection
    first.take(rb"GET .*?\r\n\r\n")


def test_where_there_is_no_next_attempt_the_client_gets_a_502(converse: Start):
    def refuse(_x: Exchange) -> None:
        raise NextAttempt("it is empty")

    talk = converse(filtered("backend-response", weighted()), filters=choosing(refuse, Phase.BACKEND_RESPONSE))
    talk.client >> GET
    asked(talk, "a")
    talk.origin >> OTHER
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (502, "filter_rejected")
    assert "it is empty" in error["message"]


def test_a_filter_answers_in_place_of_a_backend_of_a_rule_with_retries(converse: Start):
    objects = weighted(retry={"attempts": 1, "codes": [503], "backoff": "0s"})
    act = lambda _x: LocalResponse(418, (), b"tea")  # noqa: E731
    talk = converse(filtered("backend-response", objects), filters=choosing(act, Phase.BACKEND_RESPONSE))
    talk.client >> GET
    asked(talk, "a")
    talk.origin >> OTHER
    assert talk.client.take(rb"HTTP/1.1 418 .*tea")


def test_a_filter_of_backend_responses_runs_once_for_each_attempt(converse: Start):
    seen: list[int] = []
    objects = weighted(retry={"attempts": 1, "codes": [503], "backoff": "0s"})
    talk = converse(
        filtered("backend-response", objects),
        filters=choosing(lambda x: seen.append(x.response.status), Phase.BACKEND_RESPONSE),
    )
    talk.client >> GET
    asked(talk, "a")
    answer(talk, 503)
    talk.until(lambda: bool(talk.origin.got))
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED
    assert seen == [503, 200]


# --- the whole body ---------------------------------------------------------------------------------------------------
def sign(x: Exchange) -> None:
    assert x.body is not None
    x.request.fields.set(b"x-signed", b"%d" % len(x.body))


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("objects", [weighted(), config("a")], ids=["single", "failover"])
def test_a_filter_of_the_backend_sees_the_whole_body(converse: Start, objects: list[m.Manifest], framing: str):
    seen: list[bytes | None] = []
    talk = converse(
        filtered("backend-request", objects),
        filters={
            "f": Script(Phase.BACKEND_REQUEST, lambda x: (sign(x), seen.append(x.body))[0], needs_body=True),
        },
    )
    if framing == "length":
        talk.client >> POST[:-3]
        talk.no_dial()
        talk.client >> POST[-3:]
    else:
        talk.client >> b"POST /v1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"
        talk.no_dial()
        talk.client >> b"3\r\ncde\r\n0\r\n\r\n"
    head = asked(talk, "a", b"POST")
    assert b"x-signed: 5" in head
    assert b"Content-Length: 5" in head
    talk.origin << b"abcde"
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.client >> GET
    assert b"x-signed: 0" in asked(talk, "a", is_new=False)
    assert seen == [b"abcde", b""]


def test_every_attempt_sees_the_body(converse: Start):
    talk = converse(
        filtered("backend-request", config("a", "b", codes=[503])),
        filters={"f": Script(Phase.BACKEND_REQUEST, sign, needs_body=True)},
    )
    talk.client >> POST
    for name in ("a", "b"):
        assert asked(talk, name, b"POST").count(b"x-signed: 5") == 1
        talk.origin << b"abcde"
        answer(talk, 503)
    talk.client.take(rb"HTTP/1.1 503 .*\r\n\r\nno")


def test_a_body_that_is_longer_than_the_filter_takes_is_a_413(converse: Start):
    signer = Script(Phase.BACKEND_REQUEST, sign, needs_body=True)
    signer.max_buffer_bytes = 4
    talk = converse(filtered("backend-request", weighted()), filters={"f": signer})
    talk.client >> POST
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (413, "body_too_large")
    talk.no_dial()
