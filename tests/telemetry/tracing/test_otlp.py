"""The bytes of OTLP, read by `opentelemetry-proto`."""

import pytest

from egressproxy.ir.telemetry import is_of_spans
from egressproxy.telemetry.protobuf import (
    attribute,
    fields_of,
    key_of,
    list_attribute,
    number,
    sized,
    text_attribute,
    varint,
)
from egressproxy.telemetry.tracing.otlp import Encoder, rejected
from egressproxy.telemetry.tracing.span import ExchangeFacts, ExchangeSpans, SpanSettings
from tests.support.collector import CLIENT, ERROR, SERVER, otlp, read_request, value_of

TRACE, SPAN, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "b7ad6b7169203331"
FACTS = ExchangeFacts(
    b"GET", b"http", "api.example.com", 443, False, "ns/gw", "forward", "ns/route", "ns/backend", "agents", "bot", 200,
    "-", -1,
)  # fmt: skip
NO_SETTINGS = SpanSettings()
KEY = key_of("http.request.header.x-request-id")


def exchange(facts=FACTS, settings=NO_SETTINGS, **more):
    made = ExchangeSpans(settings, TRACE.encode(), SPAN.encode(), True)
    made.facts = tuple(facts)
    made.started_wall, made.started_at, made.ended_at = 1_800_000_000.25, 100.0, 100.5
    made.client, made.path = "[2001:db8::1]:4711", b"/v1/models"
    for name, value in more.items():
        setattr(made, name, value)
    return made


def spans_of(*batch):
    encoder = Encoder({"service.name": "egress"}, "1.2")
    data, count = encoder.request([encoder.encoded(each) for each in batch])
    read = read_request(data)
    assert len(read.spans) == count == sum(each.count for each in batch)
    return read


def test_a_span_of_an_exchange_has_the_stable_attributes_of_http():
    read = spans_of(exchange(parent_id=PARENT.encode(), user_agent=b"curl/8", request_id=b"r-1"))
    assert read.resource == {"service.name": "egress"}
    assert read.scope == ("egressproxy", "1.2")
    (span,) = read.spans
    assert (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN, PARENT)
    assert (span.name, span.kind) == ("GET", SERVER)
    assert span.start_time_unix_nano == 1_800_000_000_250_000_000
    assert span.end_time_unix_nano == 1_800_000_000_750_000_000
    assert span.flags == 0x301
    assert not span.HasField("status")
    assert read.attributes(span) == {
        "http.request.method": "GET", "url.scheme": "http", "url.path": "/v1/models",
        "server.address": "api.example.com",
        "server.port": 443, "http.response.status_code": 200, "client.address": "2001:db8::1", "client.port": 4711,
        "user_agent.original": "curl/8",
        "http.request.header.x-request-id": ["r-1"], "egressproxy.gateway": "ns/gw", "egressproxy.listener": "forward",
        "egressproxy.route": "ns/route", "egressproxy.backend": "ns/backend", "egressproxy.client.namespace": "agents",
        "egressproxy.client.service_account": "bot",
    }  # fmt: skip


@pytest.mark.parametrize("path", [b"/a?key=secret", b"http://api.example.com/a?key=secret"], ids=["origin", "parent"])
def test_attempts_are_spans_of_a_client_below_the_exchange(path: bytes):
    facts = (b"GET", False, b"api.example.com", "-", "", 0, "connect_refused")
    first = (b"a" * 16, 100.1, 100.2, path, facts)
    peer = b"[2001:db8::2]:8443"
    last = (b"b" * 16, 100.3, 0.0, b"/a", (b"GET", True, peer, "ns/other", peer.decode(), 503, ""))
    read = spans_of(exchange(attempts=[first, last]))
    whole, one, two = read.spans
    assert [each.parent_span_id.hex() for each in (whole, one, two)] == ["", SPAN, SPAN]
    assert {each.kind for each in (one, two)} == {CLIENT}
    assert read.attributes(one) == {
        "http.request.method": "GET", "server.address": "api.example.com", "server.port": 80,
        "error.type": "connect_refused", "url.full": "http://api.example.com/a",
    }  # fmt: skip
    assert read.attributes(two) == {
        "http.request.method": "GET", "server.address": "2001:db8::2", "server.port": 8443,
        "network.peer.address": "2001:db8::2", "network.peer.port": 8443, "error.type": "503",
        "http.response.status_code": 503, "http.request.resend_count": 1, "egressproxy.backend": "ns/other",
        "url.full": "https://[2001:db8::2]:8443/a",
    }  # fmt: skip
    assert one.status.code == two.status.code == ERROR
    start = whole.start_time_unix_nano
    assert [round((each.end_time_unix_nano - start) / 1e6) for each in (one, two)] == [200, 500]
    assert (one.flags, two.flags) == (0x101, 0x101)


@pytest.mark.parametrize(
    ("change", "name", "error", "is_error"),
    [
        ({"method": b"BREW"}, "HTTP", None, False),
        ({"method": b"CONNECT", "is_tunnel": True}, "CONNECT", None, False),
        ({"method": b"-", "is_tunnel": True}, "tunnel", None, False),
        ({"status": 403, "reason": "destination_denied"}, "GET", "destination_denied", False),
        ({"status": 404}, "GET", None, False),
        ({"status": 502}, "GET", "502", True),
        ({"status": 0, "reason": "upstream_reset"}, "GET", "upstream_reset", True),
        ({"grpc_status": 14}, "GET", "UNAVAILABLE", True),
        ({"grpc_status": 5}, "GET", None, False),
        ({"reason": "upstream_reset", "is_tunnel": True}, "GET", "upstream_reset", False),
    ],
)
def test_name_and_status_follow_the_conventions_for_servers(change, name, error, is_error):
    read = spans_of(exchange(FACTS._replace(**change)))
    (span,) = read.spans
    assert span.name == name
    assert read.attributes(span).get("error.type") == error
    assert (span.status.code == ERROR) is is_error


def test_a_method_of_a_client_is_no_name_but_an_attribute():
    read = spans_of(exchange(FACTS._replace(method=b"BREW")))
    found = read.attributes(read.spans[0])
    assert (found["http.request.method"], found["http.request.method_original"]) == ("_OTHER", "BREW")


def test_attributes_of_the_gateway_are_known_to_policies():
    attempt = (b"a" * 16, 100.1, 0.0, b"/a", (b"BREW", True, b"a", "ns/b", "192.0.2.1:80", 503, ""))
    found = FACTS._replace(method=b"BREW", status=503, grpc_status=14, namespace="a", service_account="b")
    details = {"gen_ai.request.model": "x", "gen_ai.response.time_to_first_chunk": 0.5}
    made = exchange(found, attempts=[attempt, attempt], details=details, request_id=b"1", user_agent=b"u")
    read = spans_of(made)
    assert all(is_of_spans(key) for span in read.spans for key in read.attributes(span))


def test_what_a_policy_adds_stands_in_every_span():
    attempt = (b"a" * 16, 100.0, 0.0, b"/", (b"GET", False, b"", "-", "", 200, ""))
    settings = SpanSettings("egress call", (("env", "prod"),), (("verb", "http.request.method"), ("x", "not.known")))
    read = spans_of(exchange(settings=settings, headers=[("user", "ünï".encode())], attempts=[attempt]))
    assert [each.name for each in read.spans] == ["egress call", "GET"]
    for span in read.spans:
        assert read.attributes(span).items() >= {"env": "prod", "verb": "GET", "user": "ünï"}.items()


def test_what_filters_say_of_models_becomes_attributes():
    details = {
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.response.time_to_first_chunk": 0.25,
        "cache": "hit",
    }
    read = spans_of(exchange(details=details))
    found = {name: value for name, value in read.attributes(read.spans[0]).items() if name in details}
    assert found == {name: value for name, value in details.items() if name != "cache"}


def test_the_shared_part_of_spans_is_encoded_once():
    encoder = Encoder({}, "1")
    batch = [exchange(path=b"/%d" % each) for each in range(3)]
    read = read_request(encoder.request([encoder.encoded(each) for each in batch])[0])
    assert [read.attributes(each)["url.path"] for each in read.spans] == ["/0", "/1", "/2"]
    assert len(encoder._exchanges) == 1


def test_what_is_kept_of_spans_is_bounded(monkeypatch):
    encoder = Encoder({}, "1")
    attempt = (b"a" * 16, 100.0, 0.0, b"/" + b"x" * 200, (b"GET", False, b"a.example", "-", "", 200, ""))
    first = encoder.encoded(exchange(path=b"/" + b"x" * 200, attempts=[attempt]))
    assert not encoder._paths
    assert not encoder._attempts
    assert first.data == encoder.encoded(exchange(path=b"/" + b"x" * 200, attempts=[attempt])).data


def test_long_text_is_cut():
    read = spans_of(exchange(path=b"/" + b"x" * 100_000))
    assert len(read.attributes(read.spans[0])["url.path"]) == 8192


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32, 2**64 - 1])
def test_numbers_are_written_as_they_are_read(value):
    assert list(fields_of(number(3, value) + sized(2, b"x" * 200) + varint(6 << 3 | 1) + bytes(8))) == [
        (3, value), (2, b"x" * 200), (6, bytes(8)),
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["text", "", -5, 2**40, 1.5, True])
def test_each_kind_of_attribute_is_read_back(value):
    span = otlp().Span.FromString(attribute("name", value))
    assert value_of(span.attributes[0].value) == value


def test_what_a_collector_refuses_is_read():
    answer = otlp().Response()
    assert rejected(answer.SerializeToString()) == (0, "")
    answer.partial_success.rejected_spans = 300
    answer.partial_success.error_message = "too old"
    assert rejected(answer.SerializeToString()) == (300, "too old")
    for broken in (b"\x0a", b"\x0a\x05\x08", b"\xff" * 20, b"\x0b"):
        assert rejected(broken) == (0, "")


def test_text_that_is_no_utf8_is_no_reason_to_refuse_a_batch():
    read = spans_of(exchange(path=b"/\xff", user_agent=b"\xc3\xa9", headers=[("user", b"\xe9")]))
    found = read.attributes(read.spans[0])
    assert (found["url.path"], found["user_agent.original"], found["user"]) == ("/\ufffd", "é", "\ufffd")


@pytest.mark.parametrize(("second_began", "is_last"), [(100.3, False), (100.15, True)])
def test_an_answer_that_was_not_good_enough_ends_with_its_head(second_began, is_last):
    """Pauses between attempts belong to none; the answer that overtakes a hedged attempt ends with its exchange."""
    facts = (b"GET", False, b"a", "-", "", 503, "")
    attempts = [(b"a" * 16, 100.1, -100.2, b"/", facts), (b"b" * 16, second_began, -100.4, b"/", facts)]
    whole, first, last = spans_of(exchange(attempts=attempts)).spans
    assert (first.end_time_unix_nano == whole.end_time_unix_nano) is is_last
    assert is_last or first.end_time_unix_nano - first.start_time_unix_nano == 100_000_000
    assert last.end_time_unix_nano == whole.end_time_unix_nano


@pytest.mark.parametrize("size", [0, 1, 80, 81, 90, 120, 127, 128, 256])
def test_attributes_of_every_length_are_read_back(size):
    """The lengths around those that need a second byte."""
    text = b"x" * size
    alone, listed = text_attribute(key_of("name"), text), list_attribute(KEY, text)
    for made, read in ((alone, text.decode()), (listed, [text.decode()])):
        (found,) = otlp().Span.FromString(made).attributes
        assert value_of(found.value) == read


def test_a_long_span_is_written_whole():
    headers = [(f"name-{number}", b"v" * 1000) for number in range(20)]
    read = spans_of(exchange(headers=headers), exchange())
    assert len(read.attributes(read.spans[0])) == len(read.attributes(read.spans[1])) + 20


@pytest.mark.parametrize("change", [{}, {"path": b"/" + b"long" * 40}, {"path": b"-"}, {"request_id": b"r" * 70}])
@pytest.mark.parametrize("more", [{}, {"parent_id": PARENT.encode()}, {"user_agent": b"curl/8", "request_id": b"r-1"}])
def test_what_is_known_of_an_exchange_is_written_as_what_is_not(more, change):
    facts = (b"GET", True, b"api.example.com", "ns/backend", "192.0.2.1:443", 200, "")
    one = ("3" * 16).encode(), 100.125, 0.0, change.get("path", b"/v1/models") + b"?key=hidden", facts
    encoder = Encoder({}, "1")
    made = exchange(attempts=[one], **{**more, **change})
    encoded = [encoder.encoded(made).data for _ in range(2)]
    made.details = {"other": 1}  # which is in no span, and leads to the long way
    assert encoded == [encoder.encoded(made).data] * 2
    assert b"hidden" not in encoded[0]
