"""Traces: the context that comes in, the spans of an exchange, and the context that goes on."""

import asyncio
import re

import pytest

from egressproxy.doors.catalog import Catalog
from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.filters.base import BodyMode, Filter
from egressproxy.ir.telemetry import AttributeSource, OtlpProtocol, SpanAttributeIR
from egressproxy.model.admin_requests import HoldDecision
from egressproxy.model.secret import SecretBytes
from egressproxy.operators.approval.approval_hold import holds
from tests.envoy.ext_authz.test_filter import auth
from tests.gateway.backends.test_mirror import both, mirrored
from tests.gateway.exchange.test_hedging import dialled, hedging, passes
from tests.gateway.kit import ESTABLISHED, OK, connect, forward, reverse
from tests.support import manifests as m
from tests.support.collector import ERROR, INTERNAL, UNSET, ReadRequest, Seen, otlp, read_request, traced
from tests.support.conversation import scripted_filter, scripted_type
from tests.support.http2_client import Http2Client, head
from tests.support.waiting import WAIT_S
from tests.telemetry.test_exposition import exemplars

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"traceparent: 00-{TRACE}-{SPAN}-01\r\n"
ASKED = rb"(GET .*?)\r\n\r\n"
attributes = ReadRequest.attributes


def get(more=""):
    return f"GET http://a.example/x?key=1 HTTP/1.1\r\nHost: a.example\r\n{more}\r\n".encode()


def sent(talk, more="", *, is_new=True):
    """The head that goes to the origin, for a GET with these fields."""
    talk.client >> get(more)
    if is_new:
        talk.dialled("a.example", 80)
    return talk.origin.take(ASKED)[1].decode()


def context_of(head):
    """Trace id, span id and flags of the one traceparent there is; None without one."""
    found = re.findall(r"(?im)^traceparent:[ ]?(.*?)\r?$", head)
    assert len(found) < 2, found
    return re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-(0[0-3])", found[0]).groups() if found else None


def of_requests(talk):
    """The spans of exchanges and attempts."""
    return [each for each in Seen(talk).spans if each.kind != INTERNAL]


def done(talk, answer=OK):
    talk.origin >> answer
    talk.client.take(rb"HTTP/1.1 \d\d\d .*?\r\n\r\n(?:hi)?")


def test_a_new_trace_begins_and_goes_on(converse):
    talk = converse(traced(forward()))
    trace_id, span_id, flags = context_of(sent(talk))
    done(talk)
    whole, attempt = of_requests(talk)
    assert flags == "03"  # sampled, and random (level 2)
    assert whole.trace_id.hex() == attempt.trace_id.hex() == trace_id
    assert whole.parent_span_id == b""
    assert attempt.parent_span_id == whole.span_id
    assert attempt.span_id.hex() == span_id  # what is behind is below the attempt
    assert attributes(whole)["url.path"] == "/x"  # without the query
    assert attributes(attempt)["url.full"] == "http://a.example/x"
    assert attributes(attempt)["http.response.status_code"] == 200
    assert whole.start_time_unix_nano <= attempt.start_time_unix_nano
    assert attempt.end_time_unix_nano == whole.end_time_unix_nano
    assert talk.record()["trace_id"] == trace_id


def test_each_exchange_has_a_trace_of_its_own(converse):
    talk = converse(traced(forward()))
    first = context_of(sent(talk))
    done(talk)
    second = context_of(sent(talk, is_new=False))
    done(talk)
    assert first[0] != second[0]
    assert len(of_requests(talk)) == 4


def test_a_trace_of_the_client_is_continued(converse):
    talk = converse(traced(forward()))
    head = sent(talk, PARENT + "tracestate: rojo=1\r\ntracestate: congo=2\r\nX-Request-Id: abc\r\nbaggage: user=7\r\n")
    done(talk)
    whole, attempt = of_requests(talk)
    trace_id, span_id, _ = context_of(head)
    assert (trace_id, whole.parent_span_id.hex()) == (TRACE, SPAN)
    assert span_id == attempt.span_id.hex()
    assert whole.trace_state == "rojo=1,congo=2"
    assert "tracestate: rojo=1\r\ntracestate: congo=2" in head
    assert "baggage: user=7" in head
    assert "X-Request-Id: abc" in head
    assert attributes(whole)["http.request.header.x-request-id"] == ["abc"]
    record = talk.record()
    assert (record["trace_id"], record["x_request_id"]) == (TRACE, "abc")


@pytest.mark.parametrize(
    "more",
    [
        "traceparent: 00-zz\r\ntracestate: a=1\r\n",
        PARENT + PARENT,
        PARENT.upper(),
        PARENT.replace("traceparent", "trace_parent") + "tracestate: a=1\r\n",
        "tracestate: a=1\r\n",
    ],
)
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_malformed_context_does_not_go_on(converse, more, share):
    talk = converse(traced(forward(), share=share))
    head = sent(talk, more)
    done(talk)
    trace_id, _, flags = context_of(head)
    assert trace_id != TRACE
    assert flags == f"0{2 + share:.0f}"
    assert "tracestate" not in head.lower()


def test_the_name_of_a_field_has_any_case(converse):
    talk = converse(traced(forward()))
    assert context_of(sent(talk, PARENT.replace("traceparent", "TraceParent")))[0] == TRACE
    done(talk)


def test_a_field_that_ends_like_a_context_stays_whole(converse):
    talk = converse(traced(forward()))
    head = sent(talk, f"X-{PARENT}X-Behind: it\r\n{PARENT}")
    done(talk)
    assert f"\r\nX-{PARENT}X-Behind: it\r\ntraceparent: 00-{TRACE}-" in head
    assert context_of(head)[:2] != (TRACE, SPAN)


def test_a_malformed_tracestate_does_not_go_on(converse):
    talk = converse(traced(forward()))
    head = sent(talk, PARENT + "tracestate: A=1\r\n")
    done(talk)
    assert context_of(head)[0] == TRACE
    assert "tracestate" not in head


def test_what_is_not_recorded_has_no_span_and_its_context_goes_on(converse):
    talk = converse(traced(forward(), share=0.0))
    head = sent(talk, PARENT + "tracestate: rojo=1\r\n")
    done(talk)
    assert context_of(head) == (TRACE, SPAN, "01")
    assert "tracestate: rojo=1" in head
    fresh = context_of(sent(talk, is_new=False))
    done(talk)
    assert fresh[0] != TRACE
    assert fresh[2] == "02"
    assert Seen(talk).spans == []
    assert "trace_id" not in talk.record()


def test_the_decision_of_a_client_counts_where_the_policy_says_so(converse):
    talk = converse(traced(forward(), share=0.0, parent_share=1.0))
    sent(talk, PARENT)
    done(talk)
    assert len(of_requests(talk)) == 2
    sent(talk, PARENT.replace("-01", "-00"), is_new=False)
    done(talk)
    assert len(of_requests(talk)) == 2


def test_a_share_of_what_clients_have_sampled_may_be_recorded(converse):
    """By the last 64 bits of the trace id, which are a3ce929d0e0e4736 here: 64 %."""
    for share, count in ((0.6, 0), (0.7, 2)):
        talk = converse(traced(forward(), share=0.0, parent_share=share))
        sent(talk, PARENT)
        done(talk)
        assert len(of_requests(talk)) == count


def test_a_client_that_is_not_trusted_begins_nothing(converse):
    talk = converse(traced(forward(), continues=False))
    head = sent(talk, PARENT + "tracestate: a=1\r\nbaggage: secret=1\r\n")
    done(talk)
    assert context_of(head)[0] != TRACE
    assert "tracestate" not in head
    assert "baggage" not in head
    assert Seen(talk).spans[0].parent_span_id == b""


def test_without_tracing_a_context_passes_as_any_field(converse):
    talk = converse(forward())
    head = sent(talk, PARENT + "tracestate: A=1\r\n")
    done(talk)
    assert context_of(head) == (TRACE, SPAN, "01")
    assert "tracestate: A=1" in head
    assert "trace_id" not in talk.record()


def test_what_is_denied_has_a_span(converse):
    talk = converse(traced(forward(allow=("b.example",))))
    talk.client >> get(PARENT)
    assert talk.client.answer()[0] == 403
    (span,) = Seen(talk).spans
    found = attributes(span)
    assert found["http.response.status_code"] == 403
    assert found["error.type"] == talk.record()["reason"]
    assert span.status.code == UNSET
    assert talk.record()["trace_id"] == TRACE


def test_what_is_no_request_has_a_span(converse):
    talk = converse(traced(forward()))
    talk.client >> b"\x16\x03\x01 nonsense\r\n\r\n"
    assert talk.client.answer()[0] == 400
    (span,) = Seen(talk).spans
    assert span.name == "HTTP"
    assert talk.record()["trace_id"] == span.trace_id.hex()


def test_a_failed_exchange_is_recorded_whatever_the_ratio_where_errors_are_kept(converse):
    talk = converse(traced(forward(), share=0.0, keeps_errors=True))
    assert context_of(sent(talk))[2] == "02"
    done(talk)
    assert Seen(talk).spans == []
    trace_id = context_of(sent(talk, is_new=False))[0]
    done(talk, b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
    whole, attempt = of_requests(talk)
    assert whole.trace_id.hex() == trace_id
    assert {each.status.code for each in (whole, attempt)} == {ERROR}


def test_a_denial_is_no_error_of_the_gateway(converse):
    talk = converse(traced(forward(allow=("b.example",)), share=0.0, keeps_errors=True))
    talk.client >> get()
    assert talk.client.answer()[0] == 403
    assert Seen(talk).spans == []


def test_a_tunnel_is_one_span(converse):
    talk = converse(traced(forward()))
    talk.client >> connect("a.example:443").replace(b"\r\n\r\n", b"\r\n" + PARENT.encode() + b"\r\n")
    talk.dialled("a.example", 443)
    talk.client << ESTABLISHED
    talk.client.leaves()
    record = talk.record()
    (span,) = of_requests(talk)
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == ("CONNECT", TRACE, SPAN)
    assert attributes(span)["server.port"] == 443
    assert record["kind"] == "tunnel"
    assert record["trace_id"] == TRACE


def test_each_attempt_is_a_span_and_has_its_own_context(converse):
    retried = m.prefix_rule("/", "a", retry={"attempts": 2, "codes": [503], "backoff": "1ms"})
    talk = converse(traced(reverse(retried)))
    talk.client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    talk.dialled("a.example", 80)
    contexts = [context_of(talk.origin.take(ASKED)[1].decode())]
    talk.origin >> b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    passes(talk, lambda: b"GET" in talk.origin.got)
    contexts.append(context_of(talk.origin.take(ASKED)[1].decode()))
    done(talk)
    whole, first, second = of_requests(talk)
    assert [each[1] for each in contexts] == [first.span_id.hex(), second.span_id.hex()]
    assert {each[0] for each in contexts} == {whole.trace_id.hex()}
    assert [attributes(each)["http.response.status_code"] for each in (whole, first, second)] == [200, 503, 200]
    assert attributes(second)["http.request.resend_count"] == 1
    assert first.end_time_unix_nano <= second.start_time_unix_nano


def test_an_attempt_that_fails_says_why(converse):
    talk = converse(traced(forward()))
    talk.client >> get()
    talk.refused("a.example", 80, UpstreamFault(Reason.CONNECT_REFUSED, "refused", retry=RetrySafety.NEVER))
    assert talk.client.answer()[0] == 502
    whole, attempt = of_requests(talk)
    assert attributes(whole)["error.type"] == attributes(attempt)["error.type"] == "upstream_refused"
    assert attempt.status.code == ERROR


def test_an_answer_that_breaks_off_is_an_error(converse):
    """HTTP conventions, "Status": another error counts, whatever the status."""
    talk = converse(traced(forward()))
    sent(talk)
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi"
    talk.origin.leaves()
    for span in of_requests(talk):
        assert (span.status.code, attributes(span)["error.type"]) == (ERROR, "upstream_incomplete")


def test_a_client_s_other_flags_go_on_as_level_2_has_it(converse):
    for given, share, goes_on in (("03", 1.0, "03"), ("02", 1.0, "03"), ("00", 1.0, "01"), ("ff", 1.0, "03")):
        talk = converse(traced(forward(), share=share))
        assert context_of(sent(talk, PARENT.replace("-01", f"-{given}")))[2] == goes_on
        done(talk)


def test_fields_become_attributes_where_the_policy_names_them(converse):
    named = (
        SpanAttributeIR("user", AttributeSource.HEADER, "x-user"),
        SpanAttributeIR("env", AttributeSource.LITERAL, "prod"),
        SpanAttributeIR("server", AttributeSource.HEADER, "server"),
        SpanAttributeIR("none", AttributeSource.HEADER, "x-n"),
        SpanAttributeIR("verb", AttributeSource.ATTRIBUTE, "http.request.method"),
        SpanAttributeIR("path", AttributeSource.ATTRIBUTE, "url.path"),
        SpanAttributeIR("from", AttributeSource.ATTRIBUTE, "client.address"),
        SpanAttributeIR("agent", AttributeSource.ATTRIBUTE, "user_agent.original"),
    )  # fmt: skip
    talk = converse(traced(forward(), attributes=named, span_name="egress"))
    sent(talk, "X-User: 7\r\n")
    done(talk, OK.replace(b"OK\r\n", b"OK\r\nServer: nginx\r\n"))
    whole, attempt = of_requests(talk)
    assert (whole.name, attempt.name) == ("egress", "GET")
    for span in (whole, attempt):
        assert attributes(span).items() >= {"user": "7", "env": "prod", "verb": "GET", "server": "nginx"}.items()
        assert not {"none", "agent"} & {*attributes(span)}
        assert (attributes(span)["path"], attributes(span)["from"]) == ("/x", attributes(whole)["client.address"])


def test_an_operator_may_take_the_context_out(converse):
    removes = {"request": {"remove": ["traceparent"]}}
    extension = {"name": "out", "type": "egressproxy.io/HeaderPolicy:v1", "phase": "request-headers", "config": removes}
    talk = converse(traced(forward(extensions=[extension])))
    assert context_of(sent(talk)) is None
    done(talk)


def test_spans_go_to_the_collector_by_http(converse):
    talk = converse(traced(forward(), headers=(("x-key", SecretBytes(b"k-1")), ("content-length", SecretBytes(b"1")))))
    sent(talk)
    done(talk)
    origin = talk.origin
    (exporter,) = talk.snapshot.exporters.values()
    talk.act(exporter._begin)
    collector = talk.dialled("otel.example", 4318)
    talk.until(lambda: b"\r\n\r\n" in collector.got)
    head = collector.take(rb"POST /v1/traces HTTP/1.1\r\n(.*?)\r\n\r\n")[1].decode()
    assert "content-type: application/x-protobuf" in head
    assert "x-key: k-1" in head
    assert "traceparent" not in head
    (length,) = re.findall(r"(?i)content-length: (\d+)", head)
    size = int(length)
    assert len(read_request(collector.take(b".{%d}" % size)[0]).spans) == 4
    answer = otlp().Response()
    answer.partial_success.rejected_spans = 1
    body = answer.SerializeToString()
    collector >> b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    talk.until(lambda: exporter._task is None)
    counts = talk.metrics.spans
    assert (counts.exported, counts.dropped) == (3, {"refused": 1})
    assert len(talk.records) == 1  # the export itself is no exchange
    talk.origin = origin


@pytest.mark.parametrize(
    ("answer", "dropped"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "refused"),
        (b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n", "unreachable"),
        (b"nonsense\r\n\r\n", "unreachable"),
    ],
)
def test_a_collector_that_fails_costs_spans_and_no_exchange(converse, answer, dropped):
    talk = converse(traced(forward()))
    sent(talk)
    done(talk)
    (exporter,) = talk.snapshot.exporters.values()
    talk.act(lambda: talk.loop.create_task(exporter.drain(WAIT_S)))
    collector = talk.dialled("otel.example", 4318)
    talk.until(lambda: b"\r\n\r\n" in collector.got)
    collector >> answer
    talk.until(lambda: exporter._task is None)
    assert talk.metrics.spans.dropped == {dropped: 4}
    assert talk.metrics.spans.last_error


def test_a_reload_keeps_an_exporter_whose_collector_is_the_same(converse):
    talk = converse(traced(forward()))
    sent(talk)
    done(talk)
    before = Seen(talk)
    talk.reload(traced(forward(allow=("a.example", "b.example")), share=0.0))
    assert Seen(talk)._exporter is before._exporter
    talk.reload(traced(forward(), protocol=OtlpProtocol.GRPC))
    assert Seen(talk)._exporter is not before._exporter
    assert len(before.spans) == 4  # its timer has them


def test_what_is_waited_for_is_a_span(converse):
    class Waits(Filter):
        async def request_headers(self, x):
            await asyncio.sleep(0)

    filters: dict[str, Filter] = {"waits": Waits()}
    catalog = Catalog((scripted_type(filters),))
    talk = converse(traced(forward(extensions=[scripted_filter("waits")]), catalog), filters=filters)
    sent(talk)
    done(talk)
    whole, attempt, *waits = Seen(talk).spans
    assert [each.name for each in waits] == ["filter waits", "dns", "connect"]
    assert [each.parent_span_id for each in waits] == [whole.span_id, attempt.span_id, attempt.span_id]
    assert attributes(waits[0]) == {
        "egressproxy.filter.name": "waits", "egressproxy.filter.type": scripted_filter("waits")["type"],
        "egressproxy.filter.phase": "request-headers",
    }  # fmt: skip
    assert {each.kind for each in waits} == {INTERNAL}
    for each in waits:
        assert whole.start_time_unix_nano <= each.start_time_unix_nano <= each.end_time_unix_nano
    assert waits[-1].start_time_unix_nano >= attempt.start_time_unix_nano
    sent(talk, is_new=False)
    done(talk)
    assert [each.name for each in Seen(talk).spans[5:]] == ["GET", "GET", "filter waits"]


def test_pieces_of_a_body_that_a_filter_waits_for_are_one_span(converse):
    class Slow(Filter):
        def body_mode_for(self, exchange, phase):
            return BodyMode.STREAM

        async def request_body(self, x, data, last):
            await asyncio.sleep(0)
            return data

    filters: dict[str, Filter] = {"slow": Slow()}
    catalog = Catalog((scripted_type(filters),))
    talk = converse(traced(forward(extensions=[scripted_filter("slow")]), catalog), filters=filters)
    talk.client >> b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: 4\r\n\r\nab"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST .*?\r\n\r\n2\r\nab\r\n")
    talk.client >> b"cd"
    talk.origin.take(rb"2\r\ncd\r\n0\r\n\r\n")
    done(talk)
    assert [each.name for each in Seen(talk).spans if each.kind == INTERNAL].count("filter slow") == 1


def test_a_failed_connection_is_below_its_attempt(converse):
    talk = converse(traced(forward()))
    talk.client >> get()
    talk.refused("a.example", 80, UpstreamFault(Reason.CONNECT_REFUSED, "no", retry=RetrySafety.SAFE))
    talk.client.take(rb"HTTP/1.1 502 .*?\r\n\r\n")
    _, attempt, dns, connect = Seen(talk).spans
    assert [(each.name, each.parent_span_id) for each in (dns, connect)] == [
        ("dns", attempt.span_id), ("connect", attempt.span_id),
    ]  # fmt: skip


def test_hedged_attempts_have_a_span_each(converse):
    talk = converse(traced(hedging()))
    talk.client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    _, slow = dialled(talk)
    _, fast = dialled(talk)
    contexts = [context_of(each.take(ASKED)[1].decode()) for each in (slow, fast)]
    fast >> OK
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n(?:hi)?")
    whole, *attempts = [each for each in Seen(talk).spans if each.name == "GET"]
    assert {each[0] for each in contexts} == {whole.trace_id.hex()}
    assert {each[1] for each in contexts} == {each.span_id.hex() for each in attempts}
    dials = [each.parent_span_id for each in Seen(talk).spans if each.name == "connect"]
    assert sorted(dials) == sorted(each.span_id for each in attempts)
    statuses = {attributes(each).get("http.response.status_code") for each in attempts}
    assert statuses == {200, None}
    assert [each.span_id.hex() for each in attempts] == [each[1] for each in contexts]  # as they began
    lost, won = attempts
    assert (lost.status.code, attributes(lost)["error.type"]) == (UNSET, "cancelled")
    assert attributes(won)["http.request.resend_count"] == 1
    assert "http.request.resend_count" not in attributes(lost)


def test_a_copy_for_a_mirror_has_no_span(converse):
    talk = converse(traced(mirrored()))
    talk.client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    backend, mirror = both(talk)
    _, span_id, _ = context_of(backend.take(ASKED)[1].decode())
    mirror.take(ASKED)
    mirror >> OK.replace(b"200", b"500")
    backend >> OK
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n(?:hi)?")
    whole, *attempts = of_requests(talk)
    assert [each.span_id.hex() for each in attempts] == [span_id]
    assert {attributes(each)["http.response.status_code"] for each in (whole, *attempts)} == {200}


def test_a_request_of_http2_is_traced(converse):
    talk = converse(traced(forward()))
    peer = Http2Client()
    stream = peer.request([*head(b"GET", b"/", b"a.example"), (b"traceparent", PARENT[13:-2].encode())])
    talk.client >> peer.outgoing()
    talk.dialled("a.example", 80)
    trace_id, span_id, _ = context_of(talk.origin.take(ASKED)[1].decode())
    talk.origin >> OK
    talk.until(lambda: bool(Seen(talk).spans))
    del stream
    talk.counts_octets = False
    whole, attempt, *_ = Seen(talk).spans
    assert (trace_id, whole.parent_span_id.hex(), span_id) == (TRACE, SPAN, attempt.span_id.hex())


def test_what_a_model_was_asked_for_and_used_stands_in_the_span(converse):
    meter = {"name": "meter", "type": "egressproxy.io/TokenMeter:v1", "config": {}}
    talk = converse(traced(forward(extensions=[meter])))
    asked = b'{"model":"m-1","messages":[]}'
    talk.client >> (
        b"POST http://a.example/v1/chat/completions HTTP/1.1\r\nHost: a.example\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(asked), asked)
    )
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST .*?\r\n\r\n.*\}")
    answer = b'{"model":"m-1-served","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}'
    done(
        talk,
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer),
    )
    found = attributes(of_requests(talk)[0])
    assert {name: value for name, value in found.items() if name.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "m-1",
        "gen_ai.response.model": "m-1-served", "gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 4,
    }  # fmt: skip
    assert talk.record()["trace_id"]


def test_what_is_recorded_is_an_exemplar_of_its_buckets(converse):
    talk = converse(traced(forward()))
    sent(talk)
    done(talk)
    whole, attempt = of_requests(talk)
    found = {name: ids[:2] for (name, _), ids in exemplars(talk.metrics.gather()).items()}
    assert found == {
        "egress_request_duration_seconds": (whole.trace_id.hex(), whole.span_id.hex()),
        "egress_response_first_byte_seconds": (whole.trace_id.hex(), whole.span_id.hex()),
        "egress_upstream_response_seconds": (whole.trace_id.hex(), attempt.span_id.hex()),
    }


def test_what_is_not_recorded_is_no_exemplar(converse):
    talk = converse(traced(forward(), share=0.0, keeps_errors=True))
    sent(talk)
    done(talk)
    assert exemplars(talk.metrics.gather()) == {}


def test_filters_that_ask_others_have_spans(converse):
    """An authorization server, a webhook, and a person."""
    hook = {
        "name": "hook", "type": "egressproxy.io/Webhook:v1",
        "config": {"backendRefs": [{"group": m.OURS, "kind": "Backend", "name": "hook"}], "path": "/check"},
    }  # fmt: skip
    hold = {"name": "hold", "type": "egressproxy.io/ApprovalHold:v1", "config": {}}
    extensions, server = [{**hook, "phase": "request-headers"}, hold], m.backend("hook", "hook.example", 9000)
    rule = {**m.prefix_rule("/", "a"), "filters": [auth()]}
    objects = (m.backend("auth", "auth.example", 9000), server)
    talk = converse(traced(reverse(rule, objects=objects, extensions=extensions)))
    talk.client >> b"GET /x HTTP/1.1\r\nHost: app.example\r\n\r\n"
    for host, answer in (("auth.example", b""), ("hook.example", b'{"action": "allow"}')):
        peer = talk.dialled(host, 9000)
        talk.until(lambda peer=peer: b"\r\n\r\n" in peer.got)
        peer >> b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer)
    talk.settle()
    kind = talk.snapshot.filters.of_type("egressproxy.io/ApprovalHold:v1")
    (held,) = holds(kind, None)["holds"]
    talk.act(lambda: holds(kind, HoldDecision(held["id"], True, "alice", "")))
    talk.dialled("a.example", 80)
    done(talk)
    whole, attempt, *waits = Seen(talk).spans
    assert [each.name for each in waits] == ["filter ExternalAuth", "filter hook", "filter hold", "dns", "connect"]
    assert [each.parent_span_id for each in waits] == [*3 * [whole.span_id], *2 * [attempt.span_id]]
