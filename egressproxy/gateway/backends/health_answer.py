"""HealthAnswer: the answer to a health check over HTTP/2."""

from __future__ import annotations

from typing import Final

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.model.fields import Fields
from egressproxy.model.message import ResponseHead

#: The longest answer that is read.
MAX_BYTES: Final = 64 * 1024


class HealthAnswer:
    """As a sink it collects the body."""

    __slots__ = ("body", "head", "trailers")

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.body = b""
        self.trailers = Fields(b"")

    def send_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > MAX_BYTES:
            raise UpstreamFault(Reason.BAD_RESPONSE, f"the answer is longer than {MAX_BYTES} bytes")

    def end_body(self, trailers: bytes) -> None:
        self.trailers = Fields(trailers)
