"""What the messages of all signals of OTLP have in common: resources and scopes. Pure.

Source: opentelemetry-proto, common/v1/common.proto and resource/v1/resource.proto.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from egressproxy import __version__
from egressproxy.ir.telemetry import CollectorIR
from egressproxy.telemetry.protobuf import any_value, key_of, sized
from egressproxy.telemetry.tracing.otlp import SCOPE


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
    return key_of(key) + sized(2, any_value(value))
