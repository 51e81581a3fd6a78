"""What a collector of OpenTelemetry sees: requests of OTLP, read with `opentelemetry-proto`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


def trace_service() -> SimpleNamespace:
    """The messages of `opentelemetry-proto`; skips the test where another package has an old copy in their place."""
    trace = pytest.importorskip("opentelemetry.proto.trace.v1.trace_pb2")
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    if not hasattr(trace, "ScopeSpans"):
        pytest.skip("opentelemetry.proto is the old copy of another package: install opentelemetry-proto after it")
    return SimpleNamespace(
        Span=trace.Span,
        Request=service.ExportTraceServiceRequest,
        Response=service.ExportTraceServiceResponse,
        value_of=value_of,
    )


def value_of(value: Any) -> Any:
    """An AnyValue as a value of Python."""
    kind = value.WhichOneof("value")
    return [value_of(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


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
    message = trace_service().Request.FromString(data)
    return ReadRequest(message)
