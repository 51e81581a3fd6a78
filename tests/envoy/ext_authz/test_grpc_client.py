"""A server is asked whether requests may go on: Envoy's ext_authz, on fakes and on real sockets."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import pytest

from egressproxy.envoy.ext_authz.messages import CHECK
from tests.envoy.ext_authz.test_filter import FORWARDED, GET, POST, POST_FORWARDED
from tests.gateway.conftest import Start
from tests.gateway.kit import OK, OK_PASSED, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.http2 import GrpcCall, Http2Server
from tests.support.manifests import Manifest
from tests.support.protobuf_wire import field, fields, number, text

ALLOWED = field(1, b"") + field(3, b"")
DENIED = field(1, number(1, 7))


def header(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    return field(1, text(1, name) + text(2, value)) + more


def ok(*headers: bytes, rest: bytes = b"") -> bytes:
    return field(1, b"") + field(3, b"".join(field(2, one) for one in headers) + rest)


def guarded(*headers: str, body: int | None = None, server: Manifest | None = None, **sections: Any) -> list[Manifest]:
    auth: Manifest = {
        "protocol": "GRPC",
        "backendRef": {"group": m.OURS, "kind": "Backend", "name": "auth"},
        "grpc": {"allowedHeaders": list(headers)},
    }
    if body is not None:
        auth["forwardBody"] = {"maxSize": body}
    rule = m.prefix_rule("/", "a", filters=[{"type": "ExternalAuth", "externalAuth": auth}])
    return reverse(rule, objects=(server or m.backend("auth", "auth.example", 9001, protocol="GRPC"),), **sections)


class Service:
    """The authorization server: `asked` waits for a call, `says` answers it."""

    def __init__(self, talk: Conversation, **more: Any) -> None:
        self.talk = talk
        self.peer = talk.dialled("auth.example", 9001)
        self.http2 = Http2Server(**more)
        self.seen: set[int] = set()
        self.send()

    def asked(self) -> GrpcCall:
        def is_asked() -> bool:
            self.pump()
            return any(call.is_whole for stream, call in self.http2.calls.items() if stream not in self.seen)

        assert self.talk.until(is_asked) or is_asked()
        call = next(c for s, c in sorted(self.http2.calls.items()) if s not in self.seen and c.is_whole)
        self.seen.add(call.stream)
        return call

    def says(self, call: GrpcCall, message: bytes | None, status: int = 0) -> None:
        self.http2.answer(call.stream, message, status)
        self.send()

    def pump(self) -> None:
        data, self.peer.received[:] = bytes(self.peer.received), b""
        if data:
            self.http2.take(data)

    def send(self) -> None:
        outgoing = self.http2.outgoing()
        if outgoing:
            self.peer >> outgoing


def http_of(call: GrpcCall) -> tuple[dict[int, Any], dict[bytes, bytes]]:
    """The attributes of the request that is asked about, and its headers."""
    request = dict(fields(dict(fields(dict(fields(call.message))[1]))[4]))  # type: ignore[arg-type]
    values = list(fields(request[2]))  # type: ignore[arg-type]
    entries = [dict(fields(value)) for tag, value in values if tag == 3]  # type: ignore[arg-type]
    headers = {entry[1]: entry.get(2, b"") for entry in entries}
    return {tag: value for tag, value in values if tag != 3}, headers  # type: ignore[return-value]


def test_a_request_goes_on_when_the_service_allows_it(converse: Start):
    talk = converse(guarded())
    talk.client >> GET
    service = Service(talk)
    call = service.asked()
    assert call.headers[b":path"] == CHECK
    assert (call.headers[b":authority"], call.headers[b":scheme"]) == (b"auth.example:9001", b"http")
    assert call.headers[b"grpc-timeout"] == b"5000m"
    http, headers = http_of(call)
    assert http == {
        1: b"test-1", 2: b"GET", 4: b"/x?y=1", 5: b"app.example", 6: b"http", 10: b"HTTP/1.1",
    }  # fmt: skip
    assert headers == {
        b":authority": b"app.example", b":method": b"GET", b":path": b"/x?y=1", b":scheme": b"http",
    }  # fmt: skip
    service.says(call, ALLOWED)
    talk.dialled("a.example", 80)
    talk.origin << FORWARDED
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.metrics.external_auth.asked == {("agents/route", "agents/auth", "allowed"): 1}


def test_all_questions_go_over_one_connection(converse: Start):
    talk = converse(guarded())
    clients = [talk.client, talk.connect(), talk.connect()]
    clients[0] >> GET
    service = Service(talk)
    for client in clients[1:]:
        client >> GET
    calls = [service.asked() for _ in clients]
    talk.no_dial()
    assert sum(active for _, active, _ in _counts(talk, "agents/auth")) == 1
    for call in reversed(calls):
        service.says(call, DENIED)
    for client in clients:
        client.take(rb"HTTP/1.1 403 Forbidden\r\n.*?\r\n\r\n")


def _counts(talk: Conversation, name: str) -> list[tuple[str, int, int]]:
    return [(c.name, *c.counts()) for c in talk.snapshot.clusters.values() if c.name == name]


def test_the_service_sees_the_allowed_fields_alone(converse: Start):
    talk = converse(guarded("X-Team", "Cookie", "Host"))
    talk.client >> (
        b"GET / HTTP/1.1\r\nHost: app.example\r\nAuthorization: Basic eDp5\r\nX-TEAM: red\r\nx-team: blue\r\n"
        b"Cookie: a=1\r\nCookie: b=2\r\n\r\n"
    )
    service = Service(talk)
    call = service.asked()
    assert http_of(call)[1] == {b"x-team": b"red,blue", b"cookie": b"a=1; b=2", b"host": b"app.example"}
    service.says(call, DENIED)
    talk.client.take(rb"HTTP/1.1 403 Forbidden\r\n.*?\r\n\r\n")


def test_what_the_service_says_changes_request_and_answer(converse: Start):
    talk = converse(guarded())
    talk.client >> (
        b"GET /x?y=1 HTTP/1.1\r\nHost: app.example\r\nx-user: 1\r\nX_User: 1\r\nx-list: a\r\nx-gone: 1\r\n"
        b"x-there: 1\r\n\r\n"
    )
    service = Service(talk)
    call = service.asked()
    answer = ok(
        header(b"X-User", b"42"),
        header(b"x-list", b"b", field(2, number(1, 1))),
        header(b"x-there", b"2", number(3, 1)),
        header(b"x-not-there", b"2", number(3, 3)),
        header(b"host", b"evil.example"),
        header(b":path", b"/evil"),
        header(b"content-length", b"7"),
        rest=field(5, b"X-Gone")
        + field(5, b"host")
        + field(6, header(b"X-Seen", b"yes"))
        + b"".join(field(6, header(forged, b"1")) for forged in (b"X-Egress-Request-Id", b"x_egress_new")),
    )
    service.says(call, answer)
    talk.dialled("a.example", 80)
    talk.origin << (
        b"GET /x?y=1 HTTP/1.1\r\nHost: a.example\r\nx-list: a\r\nx-there: 1\r\nx-user: 42\r\nx-list: b\r\n"
        b"Via: 1.1 gw\r\n\r\n"
    )
    talk.origin >> OK
    talk.client << OK_PASSED.replace(b"Via", b"x-seen: yes\r\nVia")


def test_a_denial_is_the_answer_with_its_fields_and_its_body(converse: Start):
    talk = converse(guarded())
    talk.client >> GET
    service = Service(talk)
    call = service.asked()
    denied = field(1, number(1, 401)) + field(2, header(b"X-Why", b"no")) + field(2, header(b"Content-Length", b"9"))
    service.says(call, DENIED + field(2, denied + field(3, b"go away")))
    talk.client << b"HTTP/1.1 401 Unauthorized\r\nx-why: no\r\nContent-Length: 7\r\n\r\ngo away"
    record = talk.record()
    assert (record["reason"], record["flags"], record["status"]) == ("ext_auth_denied", "UAEX", 401)
    assert talk.series("denied") == 1


@pytest.mark.parametrize(
    ("message", "status", "answered"),
    [
        (b"", 0, 502),  # neither yes nor no
        (b"\xff\xff", 0, 502),
        (ok(header(b"x", b"a\r\nb: c")), 0, 502),
        (ok(header(b"bad name", b"x")), 0, 502),
        (DENIED + field(2, field(1, number(1, 101))), 0, 502),
        (DENIED + field(2, field(1, number(1, 407))), 0, 502),
        (None, 7, 502),
        (None, 12, 502),
        (None, 14, 503),
        (None, 4, 504),
    ],
)
def test_an_answer_that_is_none_denies(converse: Start, message: bytes | None, status: int, answered: int):
    talk = converse(guarded())
    talk.client >> GET
    service = Service(talk)
    service.says(service.asked(), message, status)
    got, _, _, error = talk.client.answer()
    assert (got, error["reason"]) == (answered, "ext_auth_error")
    talk.no_dial()


def test_a_service_that_speaks_http_1_denies(converse: Start):
    talk = converse(guarded())
    talk.client >> GET
    talk.dialled("auth.example", 9001)
    talk.origin >> b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
    assert talk.client.answer()[0] == 502
    assert talk.until(lambda: talk.origin.has_eof)


def test_a_service_that_does_not_answer_in_time_denies_and_the_call_is_reset(converse: Start):
    talk = converse(guarded(traffic={"timeouts": {"backendRequest": "50ms"}}))
    talk.client >> GET
    service = Service(talk)
    call = service.asked()
    assert call.headers[b"grpc-timeout"] == b"50m"
    assert talk.client.answer()[0] == 504
    talk.settle()
    service.pump()
    assert call.reset == 8
    talk.client >> GET
    service.says(service.asked(), DENIED)
    talk.client.take(rb"HTTP/1.1 403 Forbidden\r\n.*?\r\n\r\n")


def test_questions_that_a_leaving_service_did_not_see_are_asked_again(converse: Start):
    talk = converse(guarded())
    talk.client >> GET
    service = Service(talk)
    service.asked()
    service.peer >> b"\0\0\x08\x07\0\0\0\0\0" + bytes(8)  # GOAWAY, last stream 0
    again = Service(talk)
    again.says(again.asked(), DENIED)
    talk.client.take(rb"HTTP/1.1 403 Forbidden\r\n.*?\r\n\r\n")
    talk.until(lambda: service.peer.is_gone or service.peer.has_eof)


def test_a_new_connection_that_dies_with_the_question_denies(converse: Start):
    talk = converse(guarded())
    talk.client >> GET
    service = Service(talk)
    service.asked()
    service.peer.leaves()
    assert talk.client.answer()[0] == 502
    talk.no_dial()


def test_a_body_is_shown_to_the_service_and_goes_on(converse: Start):
    talk = converse(guarded(body=100))
    talk.client >> POST
    service = Service(talk)
    call = service.asked()
    http, _ = http_of(call)
    assert (http[9], http[11]) == (10, b"0123456789")
    service.says(call, ALLOWED)
    talk.dialled("a.example", 80)
    talk.origin << POST_FORWARDED
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_large_body_is_shown_as_the_window_allows(converse: Start):
    talk = converse(guarded(body=65535))
    body = b"\xff" * 65535
    talk.client >> b"POST /x HTTP/1.1\r\nHost: app.example\r\nContent-Length: 65535\r\n\r\n" + body
    service = Service(talk)
    call = None
    for _ in range(20):
        service.pump()
        service.send()
        talk.settle()
        call = service.http2.calls.get(1)
        if call is not None and call.is_whole:
            break
    assert call is not None
    assert http_of(call)[0][12] == body
    service.says(call, DENIED)
    talk.client.take(rb"HTTP/1.1 403 Forbidden\r\n.*?\r\n\r\n")


def test_a_client_that_leaves_takes_its_call_along_and_not_the_connection(converse: Start):
    talk = converse(guarded())
    other = talk.connect()
    talk.client >> GET
    service = Service(talk)
    call = service.asked()
    talk.client.resets()
    talk.record()

    def is_reset() -> bool:
        service.pump()
        return call.reset is not None

    assert talk.until(is_reset) or is_reset()
    other >> GET
    service.says(service.asked(), DENIED)
    other.take(rb"HTTP/1.1 403 Forbidden\r\n.*?\r\n\r\n")


def test_a_client_that_leaves_lets_the_next_one_dial(converse: Start):
    talk = converse(guarded())
    other = talk.connect()
    talk.client >> GET
    other >> GET
    talk.client.resets()
    assert talk.dialer.dials.pop(0).future.cancelled()
    service = Service(talk)
    service.says(service.asked(), DENIED)
    other.take(rb"HTTP/1.1 403 Forbidden\r\n.*?\r\n\r\n")
    talk.no_dial()


def test_the_service_gets_its_own_credential(converse: Start):
    config = {"secretRef": {"name": "k", "key": "t"}, "header": "Authorization", "template": "Bearer {}"}
    injector = {"name": "i", "type": "egressproxy.io/CredentialInjector:v1", "phase": "backend-request"}
    extensions = [{**injector, "config": {**config, "allowPlaintext": True}}]
    server = m.backend("auth", "auth.example", 9001, protocol="H2C", extensions=extensions)
    talk = converse([*guarded(server=server), m.secret("k", {"t": "hidden"})])
    talk.client >> GET
    service = Service(talk)
    call = service.asked()
    assert call.headers[b"authorization"] == b"Bearer hidden"
    service.says(call, DENIED)
    talk.client.take(rb"HTTP/1.1 403 Forbidden\r\n.*?\r\n\r\n")


def test_the_credential_of_the_service_is_masked_in_its_denial(converse: Start):
    config = {"secretRef": {"name": "k", "key": "t"}, "header": "X-Key", "allowPlaintext": True, "scrubResponses": True}
    injector = {"name": "i", "type": "egressproxy.io/CredentialInjector:v1", "phase": "backend-request"}
    extensions = [{**injector, "config": config}]
    server = m.backend("auth", "auth.example", 9001, protocol="GRPC", extensions=extensions)
    talk = converse([*guarded(server=server), m.secret("k", {"t": "hidden-123"})])
    talk.client >> GET
    service = Service(talk)
    call = service.asked()
    assert call.headers[b"x-key"] == b"hidden-123"
    denied = field(
        2, field(1, number(1, 403)) + field(2, header(b"x-saw", b"hidden-123")) + text(3, b"key: hidden-123")
    )
    service.says(call, DENIED + denied)
    answer = talk.client.take(rb"HTTP/1.1 403 .*?\r\n\r\nkey: .{10}")[0]
    assert b"hidden-123" not in answer
    assert b"x-saw: **********" in answer.lower()


def test_a_backend_that_the_configuration_loses_is_left_when_its_calls_have_ended(converse: Start):
    talk = converse(guarded())
    talk.client >> GET
    service = Service(talk)
    call = service.asked()
    talk.reload(reverse())
    service.peer.is_open()
    service.says(call, DENIED)
    talk.client.take(rb"HTTP/1.1 403 Forbidden\r\n.*?\r\n\r\n")
    talk.until(lambda: service.peer.has_eof or service.peer.is_gone)
    assert service.peer.has_eof or service.peer.is_gone


def test_the_connection_follows_the_name_of_the_service(converse: Start):
    talk = converse(guarded())
    services = []
    for last in (101, 102):
        talk.names.zone["auth.example"] = (IPv4Address(f"93.184.216.{last}"),)
        talk.names.ttl["auth.example"] = 5.0
        talk.client >> GET
        services.append(Service(talk))
        services[-1].says(services[-1].asked(), DENIED)
        talk.client.take(rb"HTTP/1.1 403 Forbidden\r\n.*?\r\n\r\n")
        talk.after(7)
    assert services[0].peer.is_gone
    assert not services[1].peer.is_gone
