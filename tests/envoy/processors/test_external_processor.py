"""What a processor is asked of an exchange, and what its answers do: with a script in place of the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from egressproxy.envoy.ext_proc.messages import (
    BodySendMode,
    HeaderSendMode,
    ImmediateResponse,
    MessagePart,
    ProcessingMode,
    ProcessingRequest,
    ProcessingResponse,
    StreamedBody,
)
from egressproxy.envoy.field_change import FieldAction, FieldChange
from egressproxy.errors import Reason
from egressproxy.filters.testing import FilterBuildError, exchange, response
from tests.envoy.processors.kit import Processed, Said, agrees, answer, at, broke, changes, silent_at

REQUEST_HEADERS, RESPONSE_HEADERS = MessagePart.REQUEST_HEADERS, MessagePart.RESPONSE_HEADERS
REQUEST_BODY, RESPONSE_BODY = MessagePart.REQUEST_BODY, MessagePart.RESPONSE_BODY
URL = "https://api.example.com/v1/chat?n=1"
EVENTS = {"Content-Type": "text/event-stream"}


def mode(**modes: str) -> dict[str, str]:
    return modes


def get(**headers: str) -> Any:
    return exchange("GET", URL, headers)


def post(**headers: str) -> Any:
    return exchange("POST", URL, headers)


# --- what is asked -----------------------------------------------------------------------------------------------
def test_heads_are_shown_by_default_and_nothing_else():
    talk = Processed(agrees)
    done = talk.run(post(A="1"), request_body=b"in", response=response(200, {"B": "2"}), response_body=b"out")
    assert (done.status, done.request_body, done.response_body) == (200, b"in", b"out")
    assert talk.stream.parts == ["request_headers", "response_headers"]
    request, reply = talk.stream.asked
    assert request.fields == (
        (b":method", b"POST"), (b":authority", b"api.example.com"), (b":scheme", b"https"),
        (b":path", b"/v1/chat?n=1"), (b"a", b"1"), (b"content-length", b"2"),
    )  # fmt: skip
    assert not request.end_of_stream
    assert reply.fields == ((b":status", b"200"), (b"b", b"2"), (b"content-length", b"3"))
    assert request.protocol is None
    assert talk.stream.end_s == 5.0


def test_a_head_without_a_body_is_the_end_of_the_stream():
    talk = Processed(agrees)
    talk.run(get(), response=response(204))
    assert [each.end_of_stream for each in talk.stream.asked] == [True, True]


def test_fields_are_shown_as_the_rules_say():
    talk = Processed(agrees, forwardRules={"allowedHeaders": [":path", "x-*"], "disallowedHeaders": ["X-Secret*"]})
    talk.run(exchange("GET", URL, {"X-Team": "a", "X-Secret-Key": "b", "Cookie": "c"}))
    assert talk.stream.asked[0].fields == ((b":path", b"/v1/chat?n=1"), (b"x-team", b"a"))


def test_attributes_go_with_the_first_message_of_each_direction():
    talk = Processed(
        agrees,
        requestAttributes=["request.path", "source.address", "egressproxy.namespace", "egressproxy.identity"],
        responseAttributes=["response.code"],
    )
    talk.run(exchange("GET", URL, identity="agents/coder"))
    assert [each.attributes for each in talk.stream.asked] == [
        {"envoy.filters.http.ext_proc": {
            "request.path": "/v1/chat?n=1", "source.address": "192.0.2.1:40000", "egressproxy.namespace": "agents",
            "egressproxy.identity": "-",
        }},
        {"envoy.filters.http.ext_proc": {"response.code": 200.0}},
    ]  # fmt: skip


def test_attributes_tell_no_field_that_the_rules_hide():
    named = ["request.headers", "request.referer", "request.useragent"]
    talk = Processed(
        agrees,
        forwardRules={"disallowedHeaders": ["authorization", "x-secret*", "referer", "user-agent", "set-cookie"]},
        requestAttributes=named,
        responseAttributes=[*named, "response.headers"],
    )
    fields = {"Authorization": "Bearer a", "X-Secret-Key": "b", "Referer": "/c", "User-Agent": "d", "X-Team": "e"}
    talk.run(exchange("GET", URL, fields), response=response(200, {"Set-Cookie": "f", "B": "2"}))
    request, reply = ({**each.attributes["envoy.filters.http.ext_proc"]} for each in talk.stream.asked)
    assert request == {"request.headers": {"x-team": "e"}}
    assert reply == {"request.headers": {"x-team": "e"}, "response.headers": {"b": "2"}}


def test_skipped_heads_are_not_shown():
    skipped = mode(requestHeaderMode="SKIP", responseHeaderMode="SKIP", responseBodyMode="BUFFERED")
    talk = Processed(at(RESPONSE_BODY, answer(RESPONSE_BODY, body=b"new")), processingMode=skipped)
    done = talk.run(get(), response_body=b"old")
    assert (talk.stream.parts, done.response_body) == (["response_body"], b"new")
    assert talk.stream.asked[0].protocol is not None


# --- heads -------------------------------------------------------------------------------------------------------
def test_headers_are_changed_by_every_action():
    wanted = (
        FieldChange(b"gone", FieldAction.REMOVE),
        FieldChange(b"set", FieldAction.SET, b"new"),
        FieldChange(b"more", FieldAction.APPEND, b"2"),
        FieldChange(b"absent", FieldAction.ADD_IF_ABSENT, b"3"),
        FieldChange(b"there", FieldAction.ADD_IF_ABSENT, b"no"),
        FieldChange(b"missing", FieldAction.SET_IF_PRESENT, b"no"),
    )
    talk = Processed(at(REQUEST_HEADERS, answer(REQUEST_HEADERS, headers=wanted)))
    done = talk.run(get(Gone="1", Set="old", More="1", There="1"))
    assert list(done.request.fields) == [
        (b"more", b"1"), (b"there", b"1"), (b"set", b"new"), (b"more", b"2"), (b"absent", b"3"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", [
    "host", ":authority", ":scheme", ":method", "x-envoy-what", "transfer-encoding", "content-length", "connection",
    "proxy-authorization", "x-egress-identity", "_X_Egress_Identity", "Transfer_Encoding", "_Host", "te", "via",
])  # fmt: skip
def test_what_must_not_change_stays_and_the_request_goes_on(name: str):
    talk = Processed(at(REQUEST_HEADERS, answer(REQUEST_HEADERS, headers=changes((name.lower(), "evil")))))
    x = get(A="1")
    done = talk.run(x)
    assert (done.status, done.request.method, done.exchange.upstream_host) == (200, b"GET", b"api.example.com")
    assert list(done.request.fields) == [(b"a", b"1")]
    counted = [value for metric in talk.metrics.read().values() for value in metric.values.values()]
    assert counted == ([] if name == "content-length" else [1.0])


def test_routing_may_change_where_the_rules_allow_it():
    wanted = changes((":authority", "other.example"), (":method", "PUT"), (":path", "/other?x"))
    talk = Processed(
        at(REQUEST_HEADERS, answer(REQUEST_HEADERS, headers=wanted)), mutationRules={"allowAllRouting": True}
    )
    done = talk.run(get())
    assert (done.request.method, done.request.path, done.exchange.upstream_host) == (
        b"PUT",
        b"/other?x",
        b"other.example",
    )


def test_the_path_may_change_unless_the_rules_say_otherwise():
    script = at(REQUEST_HEADERS, answer(REQUEST_HEADERS, headers=changes((":path", "/new"))))
    assert Processed(script).run(get()).request.path == b"/new"
    for rules in ({"disallowSystem": True}, {"disallowAll": True}, {"disallowExpression": ":p.*"}):
        assert Processed(script, mutationRules=rules).run(get()).request.path == b"/v1/chat?n=1"


@pytest.mark.parametrize(
    "path", ["", "no-slash", "/a b", "/a\r\nX: y", "/../secret", "/%2e%2e/secret", "/a#b", "/a\\b"]
)
def test_a_path_that_no_request_can_have_is_a_failure(path: str):
    talk = Processed(at(REQUEST_HEADERS, answer(REQUEST_HEADERS, headers=changes((":path", path)))))
    done = talk.run(get())
    assert done.error is not None
    assert (done.status, done.error.reason) == (502, Reason.FILTER_FAILED)
    assert talk.stream.is_closed


def test_expressions_decide_before_the_switches():
    wanted = changes(("x-envoy-a", "1"), ("x-b", "2"), ("x-c", "3"))
    rules = {"disallowAll": True, "allowExpression": "x-(envoy-a|b|c)", "disallowExpression": "x-c"}
    talk = Processed(at(REQUEST_HEADERS, answer(REQUEST_HEADERS, headers=wanted)), mutationRules=rules)
    assert list(talk.run(get()).request.fields) == [(b"x-envoy-a", b"1"), (b"x-b", b"2")]


def test_a_change_that_is_not_allowed_may_be_a_failure():
    script = at(REQUEST_HEADERS, answer(REQUEST_HEADERS, headers=changes(("host", "evil"))))
    done = Processed(script, mutationRules={"disallowIsError": True}).run(get())
    assert done.status == 502
    assert "HeaderNotAllowed" in done.failures[0]


@pytest.mark.parametrize("change", [
    FieldChange(b"a b", FieldAction.SET, b"1"), FieldChange(b"a", FieldAction.SET, b"1\r\nb: 2"),
    FieldChange(b"", FieldAction.REMOVE),
])  # fmt: skip
def test_a_field_that_cannot_be_is_a_failure(change: FieldChange):
    done = Processed(at(RESPONSE_HEADERS, answer(RESPONSE_HEADERS, headers=(change,)))).run(get())
    assert done.status == 502
    assert "InvalidMutation" in done.failures[0]


def test_too_many_lines_are_a_failure():
    many = changes(*((f"x-{n}", "1") for n in range(101)))
    done = Processed(at(REQUEST_HEADERS, answer(REQUEST_HEADERS, headers=many))).run(get())
    assert done.status == 502


@pytest.mark.parametrize(
    "wrong",
    [changes((":path", "/../x")), changes((":status", "999")), changes(*[(f"x-{n}", "a" * 800) for n in range(90)])],
    ids=["path", "status", "too long"],
)
@pytest.mark.parametrize("part", [REQUEST_HEADERS, RESPONSE_HEADERS])
def test_of_changes_that_fail_none_is_left_where_the_exchange_goes_on(
    part: MessagePart, wrong: tuple[FieldChange, ...]
):
    said = answer(part, headers=(*changes(("x-new", "1"), ("b", "3")), *wrong))
    x = post(b="2")
    done = Processed(at(part, said), fail_open=True, mutationRules={"disallowIsError": True}).run(
        x, request_body=b"in", response=response(200, {"b": "2"}), response_body=b"out"
    )
    assert (done.status, len(done.failures)) == (200, 1)
    assert [tuple(x.request.fields), tuple(x.response.fields)] == [((b"b", b"2"),), ((b"b", b"2"),)]
    assert x.request.path == b"/v1/chat?n=1"


def test_the_status_of_a_response_may_change():
    def status(value: str, *, body: bytes = b"x") -> int:
        talk = Processed(at(RESPONSE_HEADERS, answer(RESPONSE_HEADERS, headers=changes((":status", value)))))
        return talk.run(get(), response_body=body).status

    assert status("418") == 418
    assert status("204", body=b"") == 204
    assert [status(value) for value in ("204", "407", "101", "99", "x", "600")] == [502] * 6


# --- bodies ------------------------------------------------------------------------------------------------------
def upper(request: ProcessingRequest) -> list[Said]:
    body = request.body.upper() if request.part in (REQUEST_BODY, RESPONSE_BODY) else None
    return [ProcessingResponse(request.part, body=body)]


def test_a_buffered_body_is_shown_whole_and_its_answer_may_change_the_head():
    def script(request: ProcessingRequest) -> list[Said]:
        if request.part is REQUEST_BODY:
            return [answer(REQUEST_BODY, body=b"new", headers=changes(("x-seen", "1")))]
        return (
            [answer(RESPONSE_BODY, headers=changes(("x-kept", "1")))]
            if request.part is RESPONSE_BODY
            else agrees(request)
        )

    buffered = mode(requestBodyMode="BUFFERED", responseBodyMode="BUFFERED")
    talk = Processed(script, processingMode=buffered)
    done = talk.run(post(), request_body=[b"a", b"b"], response_body=[b"c", b"d"])
    assert (done.request_body, done.response_body) == (b"new", b"cd")
    assert (b"x-seen" in done.request.fields, b"x-kept" in done.response.fields) == (True, True)
    bodies = [
        (each.body, each.end_of_stream) for each in talk.stream.asked if each.part in (REQUEST_BODY, RESPONSE_BODY)
    ]
    assert bodies == [(b"ab", True), (b"cd", True)]
    assert talk.stream.asked[0].protocol is not None
    assert talk.stream.asked[0].protocol.request_body_mode is BodySendMode.BUFFERED


def test_a_buffered_body_has_a_bound():
    talk = Processed(agrees, processingMode=mode(requestBodyMode="BUFFERED"), maxBodyBytes=3)
    assert talk.run(post(), request_body=[b"ab", b"cd"]).status == 413


def test_a_streamed_body_is_shown_piece_by_piece():
    talk = Processed(upper, processingMode=mode(requestBodyMode="STREAMED", responseBodyMode="STREAMED"))
    done = talk.run(post(), request_body=[b"a", b"b"], response_body=[b"c", b"d"])
    assert (done.request_pieces, done.response_pieces) == ((b"A", b"B"), (b"C", b"D"))
    assert [each.end_of_stream for each in talk.stream.asked if each.part is RESPONSE_BODY] == [False, True]


def test_a_long_piece_goes_in_several_messages():
    talk = Processed(upper, processingMode=mode(requestBodyMode="STREAMED"))
    done = talk.run(post(), request_body=b"a" * 150_000)
    assert done.request_body == b"A" * 150_000
    assert [len(each.body) for each in talk.stream.asked if each.part is REQUEST_BODY] == [65536, 65536, 18928]


def test_a_body_is_cleared():
    talk = Processed(
        at(RESPONSE_BODY, answer(RESPONSE_BODY, body=b"")), processingMode=mode(responseBodyMode="BUFFERED")
    )
    assert talk.run(get(), response_body=b"secret").response_body == b""


@pytest.mark.parametrize(("pieces", "shown", "end"), [
    ([b"ab", b"c"], b"abc", True), ([b"ab", b"cdef", b"g"], b"abcd", False), ([b"abcd"], b"abcd", True),
])  # fmt: skip
def test_a_body_buffered_in_part_shows_its_beginning_and_lets_the_rest_pass(
    pieces: list[bytes], shown: bytes, end: bool
):
    talk = Processed(upper, processingMode=mode(requestBodyMode="BUFFERED_PARTIAL"), maxBodyBytes=4)
    done = talk.run(post(), request_body=pieces)
    whole = b"".join(pieces)
    assert done.request_body == shown.upper() + whole[len(shown) :]
    assert [(each.body, each.end_of_stream) for each in talk.stream.asked if each.part is REQUEST_BODY] == [
        (shown, end)
    ]


def duplex(**more: str) -> dict[str, str]:
    return mode(requestBodyMode="FULL_DUPLEX_STREAMED", requestTrailerMode="SEND", **more)


def test_full_duplex_answers_head_and_body_when_it_has_all():
    got: list[bytes] = []

    def script(request: ProcessingRequest) -> list[Said]:
        if request.part is REQUEST_HEADERS:
            return []  # it is answered when the body is there
        if request.part is REQUEST_BODY:
            got.append(request.body)
            if not request.end_of_stream:
                return []
            head = answer(REQUEST_HEADERS, headers=changes(("x-model", "big")))
            pieces = [StreamedBody(b"1" * 70_000), StreamedBody(b"2"), StreamedBody(b"", end_of_stream=True)]
            return [head, *(ProcessingResponse(REQUEST_BODY, streamed=piece) for piece in pieces)]
        return agrees(request)

    talk = Processed(script, processingMode=duplex())
    done = talk.run(post(), request_body=b"a" * 100_000)
    assert done.request_body == b"1" * 70_000 + b"2"
    assert done.request.fields.get(b"x-model") == b"big"
    assert b"".join(got) == b"a" * 100_000


def test_full_duplex_on_a_stream_of_events_passes_pieces_on_as_they_come():
    def script(request: ProcessingRequest) -> list[Said]:
        if request.part is RESPONSE_BODY:
            return [
                ProcessingResponse(RESPONSE_BODY, streamed=StreamedBody(request.body.upper(), request.end_of_stream))
            ]
        return agrees(request)

    both = mode(responseBodyMode="FULL_DUPLEX_STREAMED", responseTrailerMode="SEND")
    talk = Processed(script, processingMode=both)
    done = talk.run(get(), response=response(200, EVENTS), response_body=[b"data: a\n\n", b"data: b\n\n"])
    assert done.response_pieces == (b"DATA: A\n\n", b"DATA: B\n\n")


def test_full_duplex_that_ends_before_the_body_is_a_failure():
    said = ProcessingResponse(REQUEST_BODY, streamed=StreamedBody(b"a part"))
    script = at(REQUEST_BODY, said, None)
    done = Processed(script, processingMode=duplex()).run(post(), request_body=b"all of it")
    assert done.status == 502
    assert "StreamBroke (upstream_closed)" in done.failures[0]


def test_a_stream_that_breaks_is_a_failure_that_says_why():
    done = Processed(at(REQUEST_HEADERS, broke())).run(get())
    assert "StreamBroke (upstream_reset)" in done.failures[0]


def test_full_duplex_sends_back_no_more_than_the_bound():
    piece = ProcessingResponse(REQUEST_BODY, streamed=StreamedBody(b"x" * 600_000))
    done = Processed(at(REQUEST_BODY, *[piece] * 5), processingMode=duplex(), maxBodyBytes=1000).run(
        post(), request_body=b"a"
    )
    assert done.status == 502
    assert "TooMuch" in done.failures[0]


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "HEAD"])
def test_a_new_message_has_no_method_that_a_backend_answers_with_what_it_was_sent(method: str):
    said = answer(REQUEST_HEADERS, replaces=True, body=b"", headers=changes((":method", method)))
    done = Processed(at(REQUEST_HEADERS, said)).run(get())
    assert done.status == 502
    assert "InvalidMutation" in done.failures[0]


@pytest.mark.parametrize("size", [0, 50_000])
def test_full_duplex_sends_back_no_more_than_the_bound_however_it_comes(size: int):
    """A piece in each turn of the loop: each is taken before the next comes, and there is no last one."""
    talk: Processed

    def go_on(left: int) -> None:
        if left and not talk.stream.is_closed:
            talk.stream.say(
                *[ProcessingResponse(REQUEST_BODY, streamed=StreamedBody(b"x" * size))] * (1 if size else 50)
            )
            asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(go_on, left - 1))

    def script(request: ProcessingRequest) -> list[Said]:
        if request.part is REQUEST_BODY and request.end_of_stream:
            asyncio.get_running_loop().call_soon(go_on, 1000)
        return [] if request.part is REQUEST_BODY else agrees(request)

    talk = Processed(script, processingMode=duplex(), maxBodyBytes=1000, timeout_s=2.0)
    done = talk.run(post(), request_body=b"a")
    assert done.status == 502
    assert "TooMuch" in done.failures[0]


def test_a_new_body_takes_the_place_of_the_clients():
    said = answer(REQUEST_HEADERS, replaces=True, body=b"new", headers=changes((":method", "PUT")))
    talk = Processed(at(REQUEST_HEADERS, said), processingMode=mode(requestBodyMode="BUFFERED"))
    done = talk.run(post(), request_body=[b"a", b"b"])
    assert (done.request_body, done.request.method) == (b"new", b"PUT")
    assert talk.stream.parts == ["request_headers", "response_headers"]


def test_a_new_body_takes_the_place_of_the_response():
    said = answer(RESPONSE_HEADERS, replaces=True, body=b"new")
    talk = Processed(at(RESPONSE_HEADERS, said))
    assert talk.run(get(), response_body=[b"a", b"b"]).response_body == b"new"
    assert Processed(at(RESPONSE_HEADERS, said)).run(get()).response_body == b"new"  # it had none


# --- immediate responses -----------------------------------------------------------------------------------------
def immediate(status: int = 403, body: bytes = b"no", **more: Any) -> ProcessingResponse:
    return ProcessingResponse(immediate=ImmediateResponse(status, body=body, **more))


@pytest.mark.parametrize("part", [REQUEST_HEADERS, REQUEST_BODY, RESPONSE_HEADERS, RESPONSE_BODY])
def test_an_immediate_response_takes_the_place_of_everything(part: MessagePart):
    buffered = mode(requestBodyMode="BUFFERED", responseBodyMode="BUFFERED")
    said = immediate(429, headers=changes(("retry-after", "3"), ("content-type", "application/json")), details="quota")
    talk = Processed(at(part, said), processingMode=buffered)
    done = talk.run(post(), request_body=b"in", response_body=b"out")
    assert done.local_response is not None
    assert (done.status, done.local_response.body) == (429, b"no")
    assert set(done.local_response.fields) == {(b"retry-after", b"3"), (b"content-type", b"application/json")}
    assert (done.exchange.reason, done.exchange.rule) == (Reason.FILTER_REJECTED, "EgressPolicy test/policy")
    assert done.exchange.detail == "quota"
    assert talk.stream.asked[-1].part is part


@pytest.mark.parametrize("of_response", ["NONE", "BUFFERED", "STREAMED", "FULL_DUPLEX_STREAMED"])
def test_an_immediate_response_to_a_request_is_one_however_responses_are_shown(of_response: str):
    modes = mode(requestBodyMode="BUFFERED", responseBodyMode=of_response, responseTrailerMode="SEND")
    done = Processed(at(REQUEST_BODY, immediate(429)), processingMode=modes).run(post(), request_body=b"in")
    assert done.local_response is not None
    assert (done.status, done.exchange.reason) == (429, Reason.FILTER_REJECTED)


def test_an_immediate_response_behind_the_head_breaks_the_response_off_even_where_failures_are_open():
    script = at(RESPONSE_BODY, immediate())
    talk = Processed(script, processingMode=mode(responseBodyMode="STREAMED"), fail_open=True)
    done = talk.run(get(), response_body=[b"a", b"b"])
    assert done.error is not None
    assert done.error.reason is Reason.FILTER_REJECTED


def test_an_immediate_response_of_success_is_no_denial():
    done = Processed(at(REQUEST_HEADERS, immediate(200, b"cached"))).run(get())
    assert (done.status, done.exchange.reason, done.exchange.denied) == (200, Reason.OK, False)
    assert done.local_response is not None
    assert done.local_response.fields == ((b"content-type", b"text/plain"),)


@pytest.mark.parametrize("status", [100, 407, 600])
def test_an_immediate_response_needs_a_status(status: int):
    assert Processed(at(REQUEST_HEADERS, immediate(status))).run(get()).status == 502


def test_a_call_of_grpc_gets_a_status_of_grpc():
    said = immediate(403, b"no way", grpc_status=7)
    done = Processed(at(REQUEST_HEADERS, said)).run(exchange("POST", URL, {"Content-Type": "application/grpc"}))
    assert done.local_response is not None
    assert (done.status, done.local_response.body) == (200, b"")
    assert set(done.local_response.fields) == {
        (b"content-type", b"application/grpc"), (b"grpc-status", b"7"), (b"grpc-message", b"no way"),
    }  # fmt: skip


def test_immediate_responses_may_be_switched_off():
    talk = Processed(at(REQUEST_HEADERS, immediate()), disableImmediateResponse=True)
    assert talk.run(get()).status == 200
    assert talk.stream.parts == ["request_headers"]


# --- modes and times ---------------------------------------------------------------------------------------------
OVERRIDE = ProcessingMode(
    response_header_mode=HeaderSendMode.SKIP,
    request_body_mode=BodySendMode.BUFFERED,
    response_body_mode=BodySendMode.STREAMED,
)


def test_the_processor_changes_the_mode_of_an_exchange_where_it_may():
    script = at(REQUEST_HEADERS, answer(REQUEST_HEADERS, mode_override=OVERRIDE))
    talk = Processed(script, allowModeOverride=True)
    talk.run(post(), request_body=b"in", response_body=b"out")
    assert talk.stream.parts == ["request_headers", "request_body", "response_body"]
    talk = Processed(script)
    talk.run(post(), request_body=b"in", response_body=b"out")
    assert talk.stream.parts == ["request_headers", "response_headers"]


def test_more_time_is_given_within_the_bound_and_once():
    def script(request: ProcessingRequest) -> list[Said]:
        if request.part is not REQUEST_HEADERS:
            return agrees(request)
        return [ProcessingResponse(override_message_timeout_s=0.05), ProcessingResponse(override_message_timeout_s=30)]

    talk = Processed(script, messageTimeout="20s", maxMessageTimeout="1m")
    done = talk.run(get())  # neither 20 s nor 30 s: the first of the two holds
    assert done.status == 502
    assert "MessageTimeout" in done.failures[0]


def test_more_time_than_the_bound_is_not_given():
    script = at(REQUEST_HEADERS, ProcessingResponse(override_message_timeout_s=30))
    done = Processed(script, messageTimeout="50ms", maxMessageTimeout="1s").run(get())
    assert "MessageTimeout" in done.failures[0]


# --- processors that fail ----------------------------------------------------------------------------------------
BAD: dict[str, tuple[Said, ...]] = {
    "nothing": (),
    "another part": (answer(RESPONSE_HEADERS),),
    "no message": (b"\xff\xff",),
    "an empty message": (b"",),
    "a broken stream": (broke(),),
}


@pytest.mark.parametrize("said", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("part", [REQUEST_HEADERS, REQUEST_BODY, RESPONSE_BODY])
@pytest.mark.parametrize("fail_open", [False, True])
def test_a_processor_that_fails_is_closed_or_open(said: tuple[Said, ...], part: MessagePart, fail_open: bool):
    buffered = mode(requestBodyMode="BUFFERED", responseBodyMode="BUFFERED")
    script = at(part, *said) if said else silent_at(part)
    talk = Processed(script, processingMode=buffered, fail_open=fail_open, timeout_s=7200, messageTimeout="20s")
    done = talk.run(post(), request_body=b"in", response_body=b"out")
    assert len(done.failures) == 1
    assert ("MessageTimeout" in done.failures[0]) is (not said)
    assert talk.stream.is_closed or broke().args == said[0].args  # type: ignore[union-attr]
    if fail_open:
        assert (done.status, done.request_body, done.response_body) == (200, b"in", b"out")
        assert talk.stream.asked[-1].part is part  # it is asked nothing more
    else:
        assert done.error is not None
        assert (done.status, done.error.reason) == (502, Reason.FILTER_FAILED)


@pytest.mark.parametrize("part", [REQUEST_HEADERS, REQUEST_BODY, RESPONSE_HEADERS, RESPONSE_BODY])
@pytest.mark.parametrize("fail_open", [False, True])
def test_a_processor_for_which_the_filter_has_no_more_time_is_given_up(part: MessagePart, fail_open: bool):
    buffered = mode(requestBodyMode="BUFFERED", responseBodyMode="BUFFERED")
    talk = Processed(silent_at(part), processingMode=buffered, fail_open=fail_open, timeout_s=20, messageTimeout="0s")
    done = talk.run(post(), request_body=b"in", response_body=b"out")
    assert talk.stream.is_closed
    assert talk.stream.asked[-1].part is part  # it is asked nothing more
    assert (done.status, len(done.failures)) == (200 if fail_open else 502, 1)


@pytest.mark.parametrize("body_mode", ["BUFFERED", "STREAMED", "BUFFERED_PARTIAL"])
@pytest.mark.parametrize("part", [REQUEST_BODY, RESPONSE_BODY])
@pytest.mark.parametrize("fail_open", [False, True])
def test_a_piece_for_a_stream_is_a_failure_in_other_modes(body_mode: str, part: MessagePart, fail_open: bool):
    talk = Processed(
        at(part, answer(part, streamed=StreamedBody(b"redacted", end_of_stream=True))),
        processingMode=mode(requestBodyMode=body_mode, responseBodyMode=body_mode),
        fail_open=fail_open,
    )
    done = talk.run(post(), request_body=b"in", response_body=b"out")
    assert [" ".join(done.failures).count("UnexpectedMessage"), len(done.failures)] == [1, 1]
    assert done.status == (200 if fail_open else 502)


def test_a_piece_for_a_stream_in_place_of_a_whole_body_is_a_failure():
    said = answer(REQUEST_HEADERS, replaces=True, streamed=StreamedBody(b"redacted", end_of_stream=True))
    done = Processed(at(REQUEST_HEADERS, said)).run(post(), request_body=b"in")
    assert (done.status, "UnexpectedMessage" in done.failures[0]) == (502, True)


def test_a_whole_body_is_a_failure_at_once_where_pieces_are_awaited():
    def script(request: ProcessingRequest) -> list[Said]:
        if request.part is not REQUEST_BODY:
            return []
        whole = ProcessingResponse(REQUEST_BODY, body=b"whole")
        asyncio.get_running_loop().call_later(0.01, talk.stream.say, whole)  # the filter waits by then
        return [ProcessingResponse(REQUEST_HEADERS)]

    duplex = mode(requestBodyMode="FULL_DUPLEX_STREAMED", requestTrailerMode="SEND")
    talk = Processed(script, processingMode=duplex)
    done = talk.run(post(), request_body=b"in")
    assert (done.status, len(done.failures)) == (502, 1)
    assert "UnexpectedMessage" in done.failures[0]


def test_an_answer_too_many_is_a_failure_of_what_comes_next():
    talk = Processed(at(REQUEST_HEADERS, answer(REQUEST_HEADERS), answer(REQUEST_HEADERS)))
    done = talk.run(get())
    assert done.status == 502
    assert "UnexpectedMessage" in done.failures[0]


@pytest.mark.parametrize("body_mode", ["BUFFERED", "STREAMED"])
def test_a_stream_that_breaks_between_two_messages_is_not_taken_for_its_end(body_mode: str):
    talk = Processed(
        at(REQUEST_HEADERS, answer(REQUEST_HEADERS), broke()), processingMode=mode(requestBodyMode=body_mode)
    )
    done = talk.run(post(), request_body=b"in")
    assert done.error is not None
    assert done.error.reason is Reason.FILTER_FAILED


def test_a_processor_that_ends_the_stream_is_asked_nothing_more():
    talk = Processed(at(REQUEST_HEADERS, None), processingMode=mode(requestBodyMode="BUFFERED"))
    done = talk.run(post(), request_body=b"in", response_body=b"out")
    assert (done.status, done.request_body, done.response_body, done.failures) == (200, b"in", b"out", ())
    assert talk.stream.parts == ["request_headers"]


# --- observability -----------------------------------------------------------------------------------------------
def test_who_observes_is_told_and_not_waited_for():
    streamed = mode(requestBodyMode="STREAMED", responseBodyMode="STREAMED")
    talk = Processed(lambda _request: [], processingMode=streamed, observabilityMode=True, deferredCloseTimeout="9s")
    done = talk.run(post(), request_body=b"in", response_body=b"out")
    assert (done.status, done.request_body, done.response_body) == (200, b"in", b"out")
    assert talk.stream.parts == ["request_headers", "request_body", "response_headers", "response_body"]
    assert all(each.observability_mode for each in talk.stream.asked)
    assert talk.stream.end_s == 9.0


@pytest.mark.parametrize("said", [immediate(), b"\xff", broke(), None], ids=["no", "bytes", "broken", "end"])
def test_what_an_observer_says_has_no_effect(said: Said):
    streamed = mode(requestBodyMode="STREAMED", responseBodyMode="STREAMED")
    talk = Processed(at(REQUEST_HEADERS, said), processingMode=streamed, observabilityMode=True)
    done = talk.run(post(), request_body=b"in", response_body=b"out")
    assert (done.status, done.request_body, done.response_body, done.failures) == (200, b"in", b"out", ())


# --- metadata ----------------------------------------------------------------------------------------------------
def test_dynamic_metadata_is_kept_and_shown_by_namespace():
    said = answer(REQUEST_HEADERS, dynamic_metadata={"wanted": {"model": "big"}, "other": {"a": 1}})
    options = {"receivingNamespaces": ["wanted"], "forwardingNamespaces": ["wanted", "other"]}
    talk = Processed(at(REQUEST_HEADERS, said), metadataOptions=options)
    talk.run(get())
    assert [each.metadata for each in talk.stream.asked] == [{}, {"wanted": {"model": "big"}}]


# --- config ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("config", "said"), [
    ({"backendRefs": []}, "config.backendRefs"),
    ({"messageTimeout": "5"}, "is not a duration"),
    ({"messageTimeout": "2h"}, "more than an hour"),
    ({"processingMode": {"requestBodyMode": "FULL_DUPLEX_STREAMED"}}, "needs the trailer mode SEND"),
    ({"processingMode": {"requestBodyMode": "GRPC"}}, "config.processingMode.requestBodyMode"),
    ({"requestAttributes": ["request.nothing"]}, "not an attribute"),
    ({"requestAttributes": ["response.code"]}, "not an attribute"),
    ({"mutationRules": {"allowExpression": "("}}, "not a regular expression"),
    ({"observabilityMode": True, "processingMode": {"requestBodyMode": "BUFFERED"}}, "STREAMED or NONE"),
    ({"grpcService": {}}, "unknown field"),
    ({"grpcInitialMetadata": [{"key": "grpc-timeout", "value": "1"}]}, "written by gRPC itself"),
])  # fmt: skip
def test_a_wrong_config_is_refused(config: dict[str, Any], said: str):
    with pytest.raises(FilterBuildError, match=said):
        Processed(agrees, **config)


def test_on_a_backend_heads_are_shown_once_for_each_attempt():
    talk = Processed(agrees, phase="backend-request")
    x = exchange("GET", URL)
    talk.run(x)
    assert talk.stream.parts == ["request_headers", "response_headers"]


@pytest.mark.parametrize(("body_mode", "parts"), [
    ("BUFFERED", ["request_headers", "request_body", "response_headers"]),
    ("FULL_DUPLEX_STREAMED", ["request_headers", "request_body", "response_headers"]),
])  # fmt: skip
def test_on_a_backend_a_whole_body_is_shown_with_its_head(body_mode: str, parts: list[str]):
    def script(request: ProcessingRequest) -> list[Said]:
        if request.part is REQUEST_BODY and body_mode != "BUFFERED":
            piece = StreamedBody(request.body.upper(), end_of_stream=True)
            head = answer(REQUEST_HEADERS, headers=changes(("x-a", "1")))
            return [head, ProcessingResponse(REQUEST_BODY, streamed=piece)]
        if request.part is REQUEST_HEADERS:
            return [answer(REQUEST_HEADERS, headers=changes(("x-a", "1")))] if body_mode == "BUFFERED" else []
        return upper(request)

    config = mode(requestBodyMode=body_mode, requestTrailerMode="SEND")
    talk = Processed(script, phase="backend-request", processingMode=config)
    done = talk.run(post(), request_body=b"in")
    assert (done.request_body, done.request.fields.get(b"x-a")) == (b"IN", b"1")
    assert talk.stream.parts == parts


def test_on_a_backend_a_streamed_body_comes_behind_its_head():
    talk = Processed(upper, phase="backend-request", processingMode=mode(requestBodyMode="STREAMED"))
    done = talk.run(post(), request_body=[b"a", b"b"])
    assert done.request_body == b"AB"


def test_on_a_backend_an_immediate_response_to_the_body_is_one():
    talk = Processed(
        at(REQUEST_BODY, immediate()), phase="backend-request", processingMode=mode(requestBodyMode="BUFFERED")
    )
    done = talk.run(post(), request_body=b"in")
    assert (done.status, done.exchange.reason) == (403, Reason.FILTER_REJECTED)


# --- trailers ----------------------------------------------------------------------------------------------------
REQUEST_TRAILERS, RESPONSE_TRAILERS = MessagePart.REQUEST_TRAILERS, MessagePart.RESPONSE_TRAILERS
BOTH = {"requestTrailerMode": "SEND", "responseTrailerMode": "SEND"}
SENT: dict[str, Any] = {"request_trailers": {"X-A": "1"}, "response_trailers": {"X-B": "2"}}


def marks(request: ProcessingRequest) -> list[Said]:
    """Bodies in capitals, and a field in trailers."""
    if request.part in (REQUEST_TRAILERS, RESPONSE_TRAILERS):
        return [answer(request.part, headers=changes(("x-by", "processor")))]
    return upper(request)


@pytest.mark.parametrize("phase", ["request-headers", "backend-request"])
@pytest.mark.parametrize("body_mode", ["NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL"])
def test_trailers_are_shown_and_changed(phase: str, body_mode: str):
    modes = mode(requestBodyMode=body_mode, responseBodyMode=body_mode, **BOTH)
    talk = Processed(marks, phase=phase, processingMode=modes)
    done = talk.run(post(), request_body=[b"i", b"n"], response_body=[b"o", b"ut"], **SENT)
    assert done.error is None
    assert list(done.request_trailers) == [(b"x-a", b"1"), (b"x-by", b"processor")]
    assert list(done.response_trailers) == [(b"x-b", b"2"), (b"x-by", b"processor")]
    shown = {each.part: each for each in talk.stream.asked}
    assert shown[REQUEST_TRAILERS].fields == ((b"x-a", b"1"),)
    assert shown[RESPONSE_TRAILERS].fields == ((b"x-b", b"2"),)
    assert not any(each.end_of_stream for each in talk.stream.asked)
    assert done.request_body == (b"in" if body_mode == "NONE" else b"IN")


@pytest.mark.parametrize("fields", [{}, EVENTS])
def test_a_full_duplex_body_is_over_when_its_trailers_are_answered(fields: dict[str, str]):
    held: dict[MessagePart, bytes] = {}

    def script(request: ProcessingRequest) -> list[Said]:
        part = request.part
        if part in (REQUEST_BODY, RESPONSE_BODY):
            held[part] = held.get(part, b"") + request.body
            assert not request.end_of_stream
            return []
        if part in (REQUEST_TRAILERS, RESPONSE_TRAILERS):
            body = REQUEST_BODY if part is REQUEST_TRAILERS else RESPONSE_BODY
            head: list[Said] = [answer(REQUEST_HEADERS)] if part is REQUEST_TRAILERS else []
            if part is RESPONSE_TRAILERS and not fields:
                head = [answer(RESPONSE_HEADERS)]
            pieces = [ProcessingResponse(body, streamed=StreamedBody(held[body].upper()[at : at + 2])) for at in (0, 2)]
            return [*head, *pieces, answer(part, headers=changes(("x-by", "processor")))]
        return agrees(request) if part is RESPONSE_HEADERS and fields else []

    both = mode(requestBodyMode="FULL_DUPLEX_STREAMED", responseBodyMode="FULL_DUPLEX_STREAMED", **BOTH)
    talk = Processed(script, processingMode=both)
    done = talk.run(post(), request_body=b"in", response=response(200, fields), response_body=[b"o", b"ut"], **SENT)
    assert done.error is None, done.failures
    assert (done.request_body, done.response_body) == (b"IN", b"OUT")
    assert list(done.request_trailers) == [(b"x-a", b"1"), (b"x-by", b"processor")]
    assert list(done.response_trailers) == [(b"x-b", b"2"), (b"x-by", b"processor")]


def test_trailers_that_are_not_sent_to_the_processor_go_no_further():
    talk = Processed(marks, processingMode=mode(requestTrailerMode="SEND"))
    done = talk.run(post(), request_body=b"in", response_body=b"out", **SENT)
    assert list(done.request_trailers) == [(b"x-a", b"1"), (b"x-by", b"processor")]
    assert list(done.response_trailers) == []
    assert talk.stream.parts == ["request_headers", "request_trailers", "response_headers"]
    skipping = Processed(marks)
    assert not skipping.filter.sees_trailers
    assert list(skipping.run(post(), request_body=b"in", **SENT).request_trailers) == []


def test_an_override_may_ask_for_trailers():
    wanted = ProcessingMode(response_trailer_mode=HeaderSendMode.SEND)
    said = answer(RESPONSE_HEADERS, mode_override=wanted)
    talk = Processed(at(RESPONSE_HEADERS, said), allowModeOverride=True)
    done = talk.run(get(), response_body=b"out", response_trailers={"X-B": "2"})
    assert list(done.response_trailers) == [(b"x-b", b"2")]
    assert talk.stream.parts[-1] == "response_trailers"


def test_without_trailers_the_body_is_the_end():
    talk = Processed(marks, processingMode=mode(requestBodyMode="BUFFERED", **BOTH))
    talk.run(post(), request_body=b"in", response_body=b"out")
    assert talk.stream.parts == ["request_headers", "request_body", "response_headers"]
    assert talk.stream.asked[1].end_of_stream


@pytest.mark.parametrize("fail_open", [False, True])
def test_an_answer_to_nothing_behind_trailers_is_a_failure(fail_open: bool):
    talk = Processed(at(RESPONSE_TRAILERS, answer(REQUEST_BODY)), fail_open=fail_open, processingMode=mode(**BOTH))
    done = talk.run(post(), request_body=b"in", response_body=b"out", **SENT)
    assert "UnexpectedMessage" in done.failures[0]
    if fail_open:
        assert list(done.response_trailers) == [(b"x-b", b"2")]
    else:
        assert done.error is not None
        assert done.error.reason is Reason.FILTER_FAILED


def test_an_immediate_response_to_trailers_ends_the_exchange():
    talk = Processed(at(RESPONSE_TRAILERS, immediate()), processingMode=mode(**BOTH))
    done = talk.run(post(), request_body=b"in", response_body=b"out", **SENT)
    assert done.error is not None
    assert done.error.reason is Reason.FILTER_REJECTED


def test_who_observes_is_told_trailers():
    talk = Processed(
        lambda _request: [], observabilityMode=True, processingMode=mode(requestBodyMode="STREAMED", **BOTH)
    )
    done = talk.run(post(), request_body=b"in", response_body=b"out", **SENT)
    assert list(done.response_trailers) == [(b"x-b", b"2")]
    assert talk.stream.parts == [
        "request_headers", "request_body", "request_trailers", "response_headers", "response_trailers"
    ]  # fmt: skip
