"""What the messages of all signals of OTLP have in common: resources, attributes, and values of any kind. Pure.

Source: opentelemetry-proto, common/v1/common.proto and resource/v1/resource.proto.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any, Final

from egressproxy import __version__
from egressproxy.ir.telemetry import CollectorIR
from egressproxy.telemetry.tracing.otlp import SCOPE
from egressproxy.telemetry.tracing.protobuf import number, sized, utf8

_SIGNED_BITS: Final = 63
_BITS: Final = (1 << 64) - 1
_DOUBLE: Final = Struct("<Bd").pack


def resource_of(collector: CollectorIR) -> dict[str, str]:
    """The attributes of this process. A name is that of the service in the policy, or of its operator's environment."""
    return {
        "service.version": __version__,
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
        **dict(collector.resource),
        "service.name": collector.service_name,
        "telemetry.sdk.name": "egressproxy",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": __version__,
    }


class Envelope:
    """A request with one resource, which has these attributes, and one scope."""

    __slots__ = ("_resource", "_scope")

    def __init__(self, resource: Mapping[str, str]) -> None:
        self._resource = sized(1, b"".join(sized(1, key_value(*each)) for each in resource.items()))
        self._scope = sized(1, sized(1, SCOPE.encode()) + sized(2, __version__.encode()))

    def request(self, items: Iterable[bytes]) -> bytes:
        """The request with these log records or metrics."""
        return sized(1, self._resource + sized(2, self._scope + b"".join(sized(2, each) for each in items)))


def key_value(key: str, value: Any) -> bytes:
    """A KeyValue."""
    return sized(1, key.encode("utf-8", "replace")) + sized(2, any_value(value))


def any_value(value: Any) -> bytes:
    """An AnyValue with this value, which JSON can have. Long text is cut; an integer beyond 64 bits is a text."""
    if isinstance(value, str):
        return sized(1, utf8(value.encode("utf-8", "replace")))
    if isinstance(value, bool):
        return number(2, value)
    if isinstance(value, int):
        return number(3, value & _BITS) if value.bit_length() <= _SIGNED_BITS else any_value(str(value))
    if isinstance(value, float):
        return _DOUBLE(4 << 3 | 1, value)
    if isinstance(value, Mapping):
        return sized(6, b"".join(sized(1, key_value(*each)) for each in value.items()))
    return b"" if value is None else sized(5, b"".join(sized(1, any_value(each)) for each in value))
