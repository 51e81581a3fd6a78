"""Calls of gRPC: what their clients are told, and their deadlines; served by the real data plane."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest
from h2.errors import ErrorCodes

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.filters.base import Filter, Phase
from egressproxy.gateway.exchange.error_responses import answer_of_call
from egressproxy.model.exchange import Exchange
from egressproxy.model.grpc_status import GrpcStatus
from egressproxy.model.local_response import LocalResponse
from egressproxy.protocols.grpc.statuses import parsed_timeout
from tests.gateway.conftest import Start
from tests.gateway.h2 import Http2Peer, speak_http2
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter
from tests.support.http2 import Http2Origin
from tests.support.http2_client import Answer

CONTENT = (b"content-type", b"application/grpc")
TE = (b"te", b"trailers")
MESSAGE = b"\0\0\0\0\2hi"
OK = [(b"grpc-status", b"0")]


def routed(*objects: Any, rule: dict[str, Any] | None = None, **sections: Any) -> list[Any]:
    spec = {"backendRefs": [{"group": "egressproxy.io", "kind": "Backend", "name": "a"}], **(rule or {})}
    match = {"matches": [{"method": {"service": "pkg.Echo"}}]}
    return [
        m.gateway(m.http_listener(8080)),
        m.policy(**sections),
        m.backend("a", "a.example", 80, protocol="GRPC"),
        m.manifest(
            "gateway.networking.k8s.io/v1", "GRPCRoute", "route", "agents",
            spec={"parentRefs": [{"name": "gw"}], "rules": [{**match, **spec}]},
        ),
        *objects,
    ]  # fmt: skip


def call(
    client: Http2Peer, *more: tuple[bytes, bytes], path: bytes = b"/pkg.Echo/Get", body: bytes = MESSAGE,
    ends: bool = True,
) -> int:  # fmt: skip
    return client.ask(b"POST", path, b"a.example", CONTENT, TE, *more, body=body, ends=ends)


def reached(talk: Conversation) -> Http2Origin:
    return Http2Origin(talk, talk.dialled("a.example", 80))


def fields_of(answer: Answer) -> dict[bytes, bytes]:
    return dict(answer.fields if answer.trailers is None else answer.trailers)


def told(answer: Answer) -> tuple[int, str]:
    """The status and the message, of trailers alone."""
    assert answer.status == 200
    assert answer[b"content-type"] == b"application/grpc"
    assert (answer.trailers, bytes(answer.data), answer.is_whole) == (None, b"", True)
    return int(answer[b"grpc-status"]), unquote(answer[b"grpc-message"].decode())


def begun(talk: Conversation, *more: tuple[bytes, bytes]) -> tuple[Http2Peer, Http2Origin, int]:
    """A call whose response has begun: its head and a message are here."""
    client = speak_http2(talk)
    stream = call(client, *more)
    origin = reached(talk)
    origin.waits_for(1)
    origin.responds(1, MESSAGE, CONTENT, is_last=False)
    assert bytes(client.answer(stream).data) == MESSAGE
    return client, origin, stream


def test_a_call_and_its_response(converse_on: Start):
    talk = converse_on(routed())
    client = speak_http2(talk)
    stream = call(client, (b"x-meta-bin", b"AAE"))
    origin = reached(talk)
    (seen,) = origin.waits_for(1).values()
    assert seen.headers[b"te"] == b"trailers"
    assert seen.headers[b"x-meta-bin"] == b"AAE"
    assert b"grpc-timeout" not in seen.headers
    origin.responds(1, MESSAGE, CONTENT, trailers=[*OK, (b"x-tail-bin", b"AAE")])
    answer = client.answer(stream)
    assert bytes(answer.data) == MESSAGE
    assert answer.trailers == [*OK, (b"x-tail-bin", b"AAE")]
    assert talk.record()["grpc_status"] == "OK"
    (series,) = [each for each in talk.metrics.gather().series.values() if each.calls]
    assert series.calls == {"OK": 1}


def test_a_response_of_trailers_alone_passes(converse_on: Start):
    talk = converse_on(routed())
    client = speak_http2(talk)
    stream = call(client)
    origin = reached(talk)
    origin.waits_for(1)
    origin.responds(1, None, CONTENT, (b"grpc-status", b"9"), (b"grpc-message", b"no"))
    assert told(client.answer(stream)) == (9, "no")
    assert talk.record()["grpc_status"] == "FAILED_PRECONDITION"


@pytest.mark.parametrize(
    ("path", "status", "reason"), [(b"/other.Service/Get", 12, "no_route"), (b"/pkg.Echo/../x", 13, "bad_target")]
)
def test_what_is_refused_is_told_as_a_status(converse: Start, path: bytes, status: int, reason: str):
    talk = converse(routed())
    client = speak_http2(talk)
    answer = client.answer(call(client, path=path))
    found, message = told(answer)
    assert found == status
    assert message.startswith(f"{reason}: ")
    assert answer[b"x-egress-request-id"]
    assert answer[b"proxy-status"].startswith(b"egressproxy; error=")
    record = talk.record()
    assert (record["status"], record["reason"]) == (200, reason)
    assert record["grpc_status"] in ("UNIMPLEMENTED", "INTERNAL")


def test_other_content_is_answered_as_ever(converse: Start):
    talk = converse(routed())
    client = speak_http2(talk)
    answer = client.answer(client.ask(b"POST", b"/other.Service/Get", b"a.example", body=b"{}"))
    assert answer.status == 404
    assert answer[b"content-type"] == b"application/json"
    assert "grpc_status" not in talk.record()


def test_a_denial_names_the_rule_that_denies(converse: Start):
    talk = converse(routed(limits={"requests": [{"per": "Gateway", "limit": 1, "window": "1h"}]}))
    client = speak_http2(talk)
    first = call(client)
    origin = reached(talk)
    origin.waits_for(1)
    origin.responds(1, MESSAGE, CONTENT, trailers=OK)
    assert client.answer(first).trailers == OK
    answer = client.answer(call(client))
    status, message = told(answer)
    assert status == 8
    assert message.startswith("request_rate: ")
    assert int(answer[b"retry-after"]) > 0
    assert talk.record()["grpc_status"] == "RESOURCE_EXHAUSTED"


def test_a_backend_that_refuses_connections_is_unavailable(converse: Start):
    talk = converse(routed())
    client = speak_http2(talk)
    stream = call(client)
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "the upstream refused the connection", status=503)
    talk.refused("a.example", 80, fault)
    assert told(client.answer(stream)) == (14, "upstream_refused: the upstream refused the connection")


@pytest.mark.parametrize(
    ("code", "status"),
    [(ErrorCodes.CANCEL, 1), (ErrorCodes.ENHANCE_YOUR_CALM, 8), (ErrorCodes.INTERNAL_ERROR, 13)],
)
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_reset_by_the_backend_is_a_status(converse_on: Start, code: ErrorCodes, status: int, has_begun: bool):
    talk = converse_on(routed())
    client = speak_http2(talk)
    stream = call(client)
    origin = reached(talk)
    origin.waits_for(1)
    if has_begun:
        origin.responds(1, MESSAGE, CONTENT, is_last=False)
    origin.server.h2.reset_stream(1, code)
    origin.goes_on()
    answer = client.answer(stream)
    fields = fields_of(answer)
    assert int(fields[b"grpc-status"]) == status
    assert answer.is_whole
    assert answer.reset is None
    assert bytes(answer.data) == (MESSAGE if has_begun else b"")
    reason = "upstream_incomplete" if has_begun else "upstream_reset"
    assert fields[b"grpc-message"].startswith(reason.encode() + b": ")
    assert talk.record()["reason"] == reason


def test_what_a_client_still_says_is_not_wanted_behind_a_late_status(converse: Start):
    talk = converse(routed())
    client = speak_http2(talk)
    stream = call(client, ends=False)
    origin = reached(talk)
    origin.waits_for(1)
    origin.responds(1, MESSAGE, CONTENT, is_last=False)
    assert bytes(client.answer(stream).data) == MESSAGE
    origin.server.h2.reset_stream(1, ErrorCodes.INTERNAL_ERROR)
    origin.goes_on()
    answer = client.answer(stream)
    assert answer.trailers is not None
    assert dict(answer.trailers)[b"grpc-status"] == b"13"
    talk.after(30)
    assert client.answer(stream).reset == ErrorCodes.NO_ERROR


def test_a_response_of_a_known_length_has_no_room_for_a_late_status(converse_on: Start):
    talk = converse_on(routed())
    client = speak_http2(talk)
    stream = call(client)
    origin = reached(talk)
    origin.waits_for(1)
    origin.responds(1, MESSAGE, CONTENT, (b"content-length", b"100"), is_last=False)
    origin.server.h2.reset_stream(1, ErrorCodes.INTERNAL_ERROR)
    origin.goes_on()
    answer = client.answer(stream)
    assert answer.trailers is None
    assert answer.reset == ErrorCodes.INTERNAL_ERROR


def test_a_client_that_cancels_resets_the_stream_of_the_backend(converse_on: Start):
    talk = converse_on(routed())
    client, origin, stream = begun(talk)
    client.resets(stream)
    origin.goes_on()
    assert origin.server.calls[1].reset == ErrorCodes.CANCEL
    assert talk.record()["reason"] == "client_gone"
    assert "grpc_status" not in talk.record()


# --- deadlines -------------------------------------------------------------------------------------------------------
def test_the_backend_is_told_what_is_left_of_the_time(converse: Start):
    talk = converse(routed())
    client = speak_http2(talk)
    call(client, (b"grpc-timeout", b"20S"))
    (seen,) = reached(talk).waits_for(1).values()
    left = parsed_timeout(seen.headers[b"grpc-timeout"])
    assert 10 < left < 20


@pytest.mark.parametrize(("ours", "theirs"), [("1h", b"2S"), ("2s", None)])
def test_the_earlier_deadline_holds(converse: Start, ours: str | None, theirs: bytes | None):
    talk = converse(routed(traffic={"timeouts": {"request": ours} if ours else {}}))
    client = speak_http2(talk)
    stream = call(client, *([(b"grpc-timeout", theirs)] if theirs else []))
    origin = reached(talk)
    origin.waits_for(1)
    talk.after(1.5)
    assert not client.answer(stream).fields
    talk.after(1)
    assert told(client.answer(stream)) == (4, "request_timeout: the request took too long")
    origin.goes_on()
    assert origin.server.calls[1].reset == ErrorCodes.CANCEL
    assert talk.record()["grpc_status"] == "DEADLINE_EXCEEDED"


def test_a_deadline_that_passes_amid_a_response(converse: Start):
    talk = converse(routed())
    client, _, stream = begun(talk, (b"grpc-timeout", b"2S"))
    talk.after(2.5)
    answer = client.answer(stream)
    assert answer.trailers == [
        (b"grpc-status", b"4"), (b"grpc-message", b"request_timeout: the request took too long"),
    ]  # fmt: skip
    assert answer.is_whole


def test_a_stream_in_which_nothing_moves_may_be_begun_anew(converse: Start):
    talk = converse(routed(traffic={"timeouts": {"idle": "2s"}}))
    client, _, stream = begun(talk)
    talk.after(5)
    answer = client.answer(stream)
    assert answer.trailers is not None
    assert dict(answer.trailers)[b"grpc-status"] == b"14"
    assert (talk.record()["reason"], talk.record()["grpc_status"]) == ("upstream_timeout", "UNAVAILABLE")


def test_a_deadline_that_has_passed_asks_nobody(converse: Start):
    talk = converse(routed())
    client = speak_http2(talk)
    assert told(client.answer(call(client, (b"grpc-timeout", b"0n"))))[0] == 4
    talk.no_dial()


@pytest.mark.parametrize("timeouts", [[b"1s"], [b"1S", b"1S"]])
def test_a_deadline_that_is_none_is_refused(converse: Start, timeouts: list[bytes]):
    talk = converse(routed())
    client = speak_http2(talk)
    status, message = told(client.answer(call(client, *[(b"grpc-timeout", each) for each in timeouts])))
    assert status == 13
    assert message.startswith("bad_field: grpc-timeout ")
    talk.no_dial()


# --- filters ---------------------------------------------------------------------------------------------------------
TAGGED = {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [{"name": "x-tag", "value": "b"}]}}


def test_the_status_passes_where_a_filter_looks_at_responses(converse_on: Start):
    talk = converse_on(routed(rule={"filters": [TAGGED]}))
    client = speak_http2(talk)
    stream = call(client)
    origin = reached(talk)
    origin.waits_for(1)
    origin.responds(1, MESSAGE, CONTENT, trailers=[*OK, (b"grpc-message", b"m"), (b"x-tag", b"forged")])
    answer = client.answer(stream)
    assert answer[b"x-tag"] == b"b"
    assert answer.trailers == [*OK, (b"grpc-message", b"m")]


def test_a_secret_that_is_masked_does_not_pass_in_trailers(converse: Start):
    injector = {
        "name": "key", "type": "egressproxy.io/CredentialInjector:v1", "phase": "backend-request",
        "config": {
            "secretRef": {"name": "key", "key": "token"}, "header": "Authorization", "scrubResponses": True,
            "allowPlaintext": True,
        },
    }  # fmt: skip
    objects = routed(m.secret("key", {"token": "sk-a-long-secret"}), extensions=[injector])
    talk = converse(objects)
    client = speak_http2(talk)
    stream = call(client)
    origin = reached(talk)
    (seen,) = origin.waits_for(1).values()
    secret = seen.headers[b"authorization"]
    assert b"sk-a-long-secret" in secret
    echoed = [(b"grpc-message", secret), (b"grpc-status-details-bin", secret), (b"x-echo", secret)]
    origin.responds(1, MESSAGE, CONTENT, trailers=[(b"grpc-status", b"3"), *echoed])
    assert client.answer(stream).trailers == [(b"grpc-status", b"3")]


class Noted(Filter):
    """Looks at the content of responses."""

    runs_in = frozenset([Phase.RESPONSE_BODY])

    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        return data


def test_the_status_passes_where_a_filter_looks_at_content(converse: Start):
    objects = routed(extensions=[scripted_filter("noted", "response-body")])
    talk = converse(objects, filters={"noted": Noted()})
    client = speak_http2(talk)
    stream = call(client)
    origin = reached(talk)
    origin.waits_for(1)
    origin.responds(1, MESSAGE, CONTENT, trailers=[*OK, (b"x-tail", b"t")])
    answer = client.answer(stream)
    assert (bytes(answer.data), answer.trailers) == (MESSAGE, OK)


@pytest.mark.parametrize(("said", "status"), [(b"401 Who", 16), (b"403 No", 7), (b"429 Slow", 14)])
def test_an_authorization_server_refuses_a_call(converse: Start, said: bytes, status: int):
    server = {"group": "egressproxy.io", "kind": "Backend", "name": "auth"}
    auth = {"type": "ExternalAuth", "externalAuth": {"protocol": "HTTP", "backendRef": server, "http": {}}}
    rule = {**m.prefix_rule("/", "a"), "filters": [auth]}
    backends = [m.backend("a", "a.example", 80, protocol="GRPC"), m.backend("auth", "auth.example", 9000)]
    talk = converse([m.gateway(m.http_listener(8080)), m.policy(), *backends, m.http_route("route", rule)])
    client = speak_http2(talk)
    stream = call(client)
    talk.dialled("auth.example", 9000)
    talk.origin.take(rb"POST /.*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 %b\r\nContent-Type: text/plain\r\nX-Why: y\r\nContent-Length: 5\r\n\r\nnever" % said
    answer = client.answer(stream)
    assert told(answer) == (status, "ext_auth_denied: never")
    assert answer[b"x-why"] == b"y"
    assert talk.record()["grpc_status"] == GrpcStatus(status).name


def test_a_call_goes_on_to_another_backend(converse: Start):
    first, second = (
        m.backend("first", "first.example", 80, protocol="GRPC"),
        m.backend("b", "b.example", 80, protocol="HTTP"),
    )
    ours = m.failover("a", "first", "b")
    talk = converse([each for each in routed(first, second) if each["metadata"]["name"] != "a"] + [ours])
    client = speak_http2(talk)
    stream = call(client, (b"grpc-timeout", b"20S"))
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503, retry=RetrySafety.SAFE)
    talk.refused("first.example", 80, fault)
    origin = Http2Origin(talk, talk.dialled("b.example", 80))
    (seen,) = origin.waits_for(1).values()
    assert bytes(seen.data) == MESSAGE
    assert parsed_timeout(seen.headers[b"grpc-timeout"]) < 20
    origin.responds(1, MESSAGE, CONTENT, trailers=OK)
    assert client.answer(stream).trailers == OK
    assert talk.record()["attempts"] == 2


def test_calls_of_a_session_go_to_one_backend(converse: Start):
    refs = [{"group": "egressproxy.io", "kind": "Backend", "name": name} for name in ("a", "b")]
    session = {"type": "Header", "sessionName": "x-session"}
    other = m.backend("b", "b.example", 80, protocol="GRPC")
    talk = converse(routed(other, rule={"backendRefs": refs, "sessionPersistence": session}))
    client = speak_http2(talk)
    stream = call(client)
    dial = talk.pending_dial()
    assert dial is not None
    first = Http2Origin(talk, talk.dialled(talk.names.name_of(dial.endpoints[0][0]), 80))
    first.waits_for(1)
    first.responds(1, MESSAGE, CONTENT, trailers=OK)
    value = client.answer(stream)[b"x-session"]
    assert value
    for count in range(2, 6):
        stream = call(client, (b"x-session", value))
        first.waits_for(count)
        first.responds(2 * count - 1, MESSAGE, CONTENT, trailers=OK)
        assert client.answer(stream).trailers == OK
    talk.no_dial()


def test_a_call_is_mirrored(converse: Start):
    copy = {"group": "egressproxy.io", "kind": "Backend", "name": "copy"}
    mirror = {"type": "RequestMirror", "requestMirror": {"backendRef": copy}}
    other = m.backend("copy", "copy.example", 80, protocol="HTTP")
    talk = converse(routed(other, rule={"filters": [mirror]}))
    client = speak_http2(talk)
    stream = call(client)
    origin = reached(talk)
    mirrored = Http2Origin(talk, talk.dialled("copy.example", 80))
    origin.waits_for(1)
    origin.responds(1, MESSAGE, CONTENT, trailers=OK)
    assert client.answer(stream).trailers == OK
    (seen,) = mirrored.waits_for(1).values()
    assert (bytes(seen.data), seen.headers[b":path"]) == (MESSAGE, b"/pkg.Echo/Get")
    mirrored.responds(1, MESSAGE, CONTENT, trailers=OK)


@pytest.mark.parametrize(
    ("answer", "reason", "fields"),
    [
        (
            LocalResponse(401, ((b"Content-Type", b"text/plain"), (b"x-a", b"1")), b"who are you?\n"),
            Reason.EXT_AUTH_DENIED,
            ((b"x-a", b"1"), (b"grpc-status", b"16"), (b"grpc-message", b"ext_auth_denied: who are you?")),
        ),
        (
            LocalResponse(403, ((b"content-type", b"text/html"),), b"<html>"),
            Reason.OK,
            ((b"grpc-status", b"7"), (b"grpc-message", b"HTTP status 403")),
        ),
        (
            LocalResponse(302, ((b"location", b"/x"),)),
            Reason.OK,
            ((b"location", b"/x"), (b"grpc-status", b"2"), (b"grpc-message", b"HTTP status 302")),
        ),
    ],
)
def test_a_response_of_a_filter_is_told_as_a_status(answer: LocalResponse, reason: Reason, fields: Any):
    made = answer_of_call(answer, reason)
    assert made == LocalResponse(200, (CONTENT, *fields))


@pytest.mark.parametrize("name", [b"content-type", b"grpc-status"])
def test_a_filter_that_answers_in_grpc_is_left_alone(name: bytes):
    value = b"application/grpc+proto" if name == b"content-type" else b"5"
    answer = LocalResponse(200, ((name, value),), MESSAGE)
    assert answer_of_call(answer, Reason.OK) is answer
