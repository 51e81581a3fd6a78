"""The filter interface. A filter imports only this package of egressproxy; its test imports `testing`.

`base` has the interface, each built-in filter has a file, and `chain` compiles filters into flat tuples. `json`, `sse`
and their types come from `egressproxy.ai`, and are imported when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from egressproxy.ai.content.filter_bodies import JsonBody as JsonBody
    from egressproxy.ai.content.filter_bodies import SseEvent as SseEvent
    from egressproxy.ai.content.filter_bodies import json as json
    from egressproxy.ai.content.filter_bodies import sse as sse

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

#: Not in `__all__`: `import *` would hide the module `json`, and import what few filters need.
_OF_BODIES = frozenset(("JsonBody", "SseEvent", "json", "sse"))


def __getattr__(name: str) -> object:
    if name in _OF_BODIES:
        return getattr(import_module("egressproxy.ai.content.filter_bodies"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_OF_BODIES})
