"""The filter interface. A filter imports only this package of egressproxy; its test imports `testing`.

`base` has the interface, each built-in filter has a file, and `chain` compiles filters into flat tuples.
"""

from egressproxy.errors import Reason
from egressproxy.filters.base import (
    BodyMode,
    BodyResult,
    Filter,
    FilterContext,
    FilterType,
    HeaderResult,
    NextAttempt,
    Phase,
    Rejected,
)
from egressproxy.filters.calls import CallAnswer, CallFailed, FilterCall
from egressproxy.filters.settings import CalledBackendRef, FilterConfig, SecretRef
from egressproxy.model.authority import Authority
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.secret import SecretBytes
from egressproxy.telemetry.event_aggregator import FilterNotices
from egressproxy.telemetry.filter_meter import FilterCounter, FilterGauge, FilterHistogram, FilterMeter

__all__ = [
    "Authority",
    "BodyMode",
    "BodyResult",
    "CallAnswer",
    "CallFailed",
    "CalledBackendRef",
    "CallerIdentity",
    "Exchange",
    "Fields",
    "Filter",
    "FilterCall",
    "FilterConfig",
    "FilterContext",
    "FilterCounter",
    "FilterGauge",
    "FilterHistogram",
    "FilterMeter",
    "FilterNotices",
    "FilterType",
    "HeaderResult",
    "LocalResponse",
    "NextAttempt",
    "Phase",
    "Reason",
    "Rejected",
    "RequestHead",
    "ResponseHead",
    "SecretBytes",
    "SecretRef",
]
