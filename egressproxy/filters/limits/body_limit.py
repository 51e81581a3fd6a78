"""BodyLimit: bytes of the body of one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters.base import Filter, FilterContext, FilterType, Phase
from egressproxy.filters.settings import FilterConfig, Within
from egressproxy.model.exchange import Exchange


@dataclass(frozen=True, slots=True)
class BodyLimitConfig(FilterConfig):
    """`max_bytes` of a request body."""

    max_bytes: Annotated[int, Within(ge=0)]


class BodyLimit(Filter):
    """Refuses a longer Content-Length at once; a chunked body is counted where it is relayed (`x.max_body_bytes`)."""

    def __init__(self, context: FilterContext) -> None:
        config: BodyLimitConfig = context.config
        self._source = context.source
        self._max_bytes = config.max_bytes

    def request_headers(self, x: Exchange) -> None:
        """Raises LimitExceeded(BODY_TOO_LARGE, 413)."""
        if x.request.body > self._max_bytes:
            message = f"the body is longer than {self._max_bytes} bytes"
            raise LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, rule=self._source, close=True)
        if x.max_body_bytes < 0 or x.max_body_bytes > self._max_bytes:
            x.max_body_bytes = self._max_bytes


BODY_LIMIT = FilterType(
    name="egressproxy.io/BodyLimit:v1",
    phases=frozenset((Phase.REQUEST_HEADERS,)),
    config_model=BodyLimitConfig,
    build=BodyLimit,
    summary="Limits the bytes of a request body; longer ones get 413.",
)
