"""Traces of a Gateway's exchanges, and collectors. Source: Gateway API XTelemetryPolicy (GEP-4768)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from egressproxy.ir.route import WeightedBackend
from egressproxy.model.secret import SecretBytes

SERVICE_NAME: Final = "egressproxy"
#: Attributes of each span that are the gateway's, beside `egressproxy.…`.
_OF_SPANS: Final = frozenset((
    "http.request.method", "http.request.method_original", "http.request.resend_count", "http.response.status_code",
    "http.request.header.x-request-id", "url.scheme", "url.path", "url.full", "server.address", "server.port",
    "client.address", "client.port", "network.peer.address", "network.peer.port", "user_agent.original", "error.type",
    "rpc.system.name", "rpc.response.status_code", "gen_ai.operation.name", "gen_ai.provider.name",
    "gen_ai.request.model", "gen_ai.response.model", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens",
    "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.response.time_to_first_chunk",
))  # fmt: skip


def is_of_spans(name: str) -> bool:
    """Whether spans have an attribute of this name without a policy."""
    return name in _OF_SPANS or name.startswith("egressproxy.")


class Signal(str, Enum):
    """What a collector gets."""

    TRACES = "traces"
    METRICS = "metrics"
    LOGS = "logs"


class OtlpProtocol(str, Enum):
    """The transport of OTLP; both carry protocol buffers."""

    HTTP = "http/protobuf"
    GRPC = "grpc"


class AttributeSource(str, Enum):
    """Gateway API Attribute `type`."""

    HEADER = "Header"
    LITERAL = "Literal"
    ATTRIBUTE = "Attribute"


@dataclass(frozen=True, slots=True)
class SpanAttributeIR:
    """An attribute of each span. `value` is the name of a field in lower case, the text, or the key of an attribute."""

    name: str
    source: AttributeSource
    value: str


@dataclass(frozen=True, slots=True)
class CollectorIR:
    """A collector of one signal. `path` is that of OTLP over HTTP; `headers` go with every request to it.

    `timeout_s` bounds a request to it. `is_compressed`: requests are, by gzip. `resource` are further attributes of
    what is exported.
    """

    backend: WeightedBackend
    protocol: OtlpProtocol = OtlpProtocol.HTTP
    path: str = "/v1/traces"
    headers: tuple[tuple[str, SecretBytes], ...] = ()
    service_name: str = SERVICE_NAME
    signal: Signal = Signal.TRACES
    timeout_s: float = 10.0
    is_compressed: bool = False
    resource: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TracingIR:
    """`share` of new traces is recorded, from 0.0 to 1.0; `parent_share` of those that a client has sampled, and none
    that it has not. None: a client's decision does not count.

    `continues`: a client's trace goes on; otherwise each exchange begins one. `keeps_errors`: a trace that is not
    recorded is, where the exchange fails. `span_name` "": the method.
    """

    collector: CollectorIR
    share: float = 1.0
    parent_share: float | None = None
    continues: bool = True
    keeps_errors: bool = False
    span_name: str = ""
    attributes: tuple[SpanAttributeIR, ...] = ()
