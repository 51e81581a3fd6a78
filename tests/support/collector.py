"""What a collector of OpenTelemetry sees: requests of OTLP."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from egressproxy.doors.catalog import Catalog
from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.gateway import ConfigIR
from egressproxy.ir.route import WeightedBackend
from egressproxy.ir.telemetry import CollectorIR, OtlpProtocol, TracingIR
from tests.support.conversation import Conversation, compiled_spec
from tests.support.manifests import Manifest

#: Fields of messages: name, number, type ("*" behind it: repeated). Source: opentelemetry-proto 1.x.
_MESSAGES = {
    "AnyValue": "string_value=1:string bool_value=2:bool int_value=3:int64 double_value=4:double array_value=5:Array",
    "Array": "values=1:AnyValue*",
    "KeyValue": "key=1:string value=2:AnyValue",
    "Resource": "attributes=1:KeyValue*",
    "Scope": "name=1:string version=2:string",
    "Status": "message=2:string code=3:int32",
    "Span": "trace_id=1:bytes span_id=2:bytes trace_state=3:string parent_span_id=4:bytes name=5:string kind=6:int32 "
    "start_time_unix_nano=7:fixed64 end_time_unix_nano=8:fixed64 attributes=9:KeyValue* status=15:Status "
    "flags=16:fixed32",
    "ScopeSpans": "scope=1:Scope spans=2:Span*",
    "ResourceSpans": "resource=1:Resource scope_spans=2:ScopeSpans*",
    "Request": "resource_spans=1:ResourceSpans*",
    "PartialSuccess": "rejected_spans=1:int64 error_message=2:string",
    "Response": "partial_success=1:PartialSuccess",
}
INTERNAL, SERVER, CLIENT = 1, 2, 3
UNSET, ERROR = 0, 2


@cache
def otlp() -> SimpleNamespace:
    """Classes of the messages above, in a pool of their own."""
    file = FileDescriptorProto(name="otlp.proto", package="otlp", syntax="proto3")
    for message, fields in _MESSAGES.items():
        made = file.message_type.add(name=message)
        for each in fields.split():
            name, number, kind = re.fullmatch(r"(\w+)=(\d+):([\w*]+)", each).groups()  # type: ignore[union-attr]
            field = made.field.add(name=name, number=int(number))
            field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
            scalar = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}", None)
            field.type = scalar or FieldDescriptorProto.TYPE_MESSAGE
            if scalar is None:
                field.type_name = f".otlp.{kind.rstrip('*')}"
            if message == "AnyValue":
                field.oneof_index = 0
        if message == "AnyValue":
            made.oneof_decl.add(name="value")
    pool = DescriptorPool()
    pool.Add(file)
    return SimpleNamespace(**{name: GetMessageClass(pool.FindMessageTypeByName(f"otlp.{name}")) for name in _MESSAGES})


@cache
def real_request() -> Any:
    """ExportTraceServiceRequest of `opentelemetry-proto`; None where that is not here. xds-protos has an old copy of
    it, which takes its place if it was installed later.
    """
    try:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
        from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans  # noqa: F401
    except ImportError:
        return None
    return ExportTraceServiceRequest


def value_of(value: Any) -> Any:
    """An AnyValue as a value of Python."""
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return {each.key: value_of(each.value) for each in value.kvlist_value.values}
    if kind == "array_value":
        return [value_of(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)


class ReadRequest:
    """The spans of one ExportTraceServiceRequest, which has one resource and one scope."""

    def __init__(self, message: Any) -> None:
        (resource_spans,) = message.resource_spans
        (scope_spans,) = resource_spans.scope_spans
        self.resource = {each.key: value_of(each.value) for each in resource_spans.resource.attributes}
        self.scope = (scope_spans.scope.name, scope_spans.scope.version)
        self.spans = list(scope_spans.spans)

    @staticmethod
    def attributes(span: Any) -> dict[str, Any]:
        """By name. None stands there twice."""
        found = {each.key: value_of(each.value) for each in span.attributes}
        assert len(found) == len(span.attributes)
        return found


def read_request(data: bytes) -> ReadRequest:
    """Read a request. `opentelemetry-proto` has to understand it in the same way."""
    message = otlp().Request.FromString(data)
    assert not UnknownFieldSet(message)
    real = real_request()
    if real is not None:
        theirs = real.FromString(data)
        assert theirs.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)
        for span in (span for one in theirs.resource_spans for each in one.scope_spans for span in each.spans):
            assert not UnknownFieldSet(span)
    return ReadRequest(message)


def read_logs(data: bytes) -> list[Any]:
    """The records of an ExportLogsServiceRequest, which has one resource and one scope."""
    module = pytest.importorskip("opentelemetry.proto.collector.logs.v1.logs_service_pb2")
    (of_resource,) = _known(module.ExportLogsServiceRequest, data).resource_logs
    (of_scope,) = of_resource.scope_logs
    assert of_scope.scope.name == "egressproxy"
    return list(of_scope.log_records)


def read_metrics(data: bytes) -> tuple[dict[str, Any], list[Any]]:
    """The resource and the metrics of an ExportMetricsServiceRequest, which has one resource and one scope."""
    module = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    (of_resource,) = _known(module.ExportMetricsServiceRequest, data).resource_metrics
    (of_scope,) = of_resource.scope_metrics
    assert of_scope.scope.name == "egressproxy"
    return {each.key: value_of(each.value) for each in of_resource.resource.attributes}, list(of_scope.metrics)


def _known(kind: Any, data: bytes) -> Any:
    """The message, all of whose fields are known."""
    if real_request() is None:
        pytest.skip("xds-protos has overwritten opentelemetry-proto with an old copy: `make install-dev` mends it")
    read = kind.FromString(data)
    whole = read.ByteSize()
    read.DiscardUnknownFields()
    assert read.ByteSize() == whole
    return read


def traced(
    written: Iterable[Manifest],
    catalog: Catalog | None = None,
    *,
    protocol: OtlpProtocol = OtlpProtocol.HTTP,
    headers: Any = (),
    **tracing: Any,
) -> ConfigIR:
    """This configuration, all of whose listeners trace, to the collector `otel.example`."""
    backend = BackendIR("agents/otel", Destination.FQDN, "otel.example", 4318)
    collector = CollectorIR(WeightedBackend(backend), protocol, headers=headers)
    spec = compiled_spec(written, catalog)
    each = TracingIR(collector, **tracing)
    return replace(spec, listeners=tuple(replace(listener, tracing=each) for listener in spec.listeners))


class Seen:
    """The spans that wait for export in a conversation, as a collector would read them."""

    def __init__(self, talk: Conversation) -> None:
        (exporter,) = talk.snapshot.exporters.values()
        self._exporter: Any = exporter

    @property
    def spans(self) -> list[Any]:
        """Those of the exchanges that have ended; an exchange comes before its attempts."""
        self._exporter.encode()
        batch = list(self._exporter._queue)
        return read_request(self._exporter._encoder.request(batch)[0]).spans if batch else []
