"""The two messages of grpc.health.v1.Health/Check. Written and read by hand, since protobuf takes memory and these are
two bytes and a string. Pure. Source: gRPC health checking protocol (grpc/health/v1/health.proto).
"""

from __future__ import annotations

CHECK = b"/grpc.health.v1.Health/Check"
#: HealthCheckResponse with `status` (field 1, a varint) SERVING (1) or NOT_SERVING (2).
SERVING = b"\x08\x01"
NOT_SERVING = b"\x08\x02"


def check_message(service: str) -> bytes:
    """HealthCheckRequest for this service (at most 127 bytes); "" asks about the server as a whole."""
    name = service.encode()
    if len(name) > 127:
        raise ValueError("the name of a gRPC service is longer than 127 bytes")
    return b"\x0a%c%b" % (len(name), name) if name else b""


def is_serving(message: bytes) -> bool:
    """Whether a HealthCheckResponse says SERVING. It has no other field."""
    return message == SERVING
