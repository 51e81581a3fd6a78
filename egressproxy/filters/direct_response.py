"""DirectResponseFilter: responds with a fixed status and body instead of asking a backend.

Source: Gateway API GEP-2826 (HTTPDirectResponseFilter). A ResponseHeaderModifier of the same rule holds for the
response, whose Content-Type is otherwise that of plain text in UTF-8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from egressproxy.filters.base import REQUEST_HEADS, Filter, FilterContext, FilterType
from egressproxy.filters.header_policy import HeaderEdits
from egressproxy.filters.settings import FilterConfig, Within
from egressproxy.ir.policy import FieldFault
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse

#: Statuses of responses without a body (RFC 9110 sections 15.3.5, 15.3.6 and 15.4.5).
_EMPTY = frozenset((204, 205, 304))
_NO_EDITS = HeaderEdits()
_PLAIN = (b"content-type", b"text/plain; charset=utf-8")


@dataclass(frozen=True, slots=True)
class DirectResponseConfig(FilterConfig):
    """`response` edits the fields of the response."""

    status_code: Annotated[int, Within(ge=200, le=599)]
    body: Annotated[str, Within(max_length=4096)] = ""
    response: HeaderEdits = _NO_EDITS

    def __post_init__(self) -> None:
        if self.body and self.status_code in _EMPTY:
            raise FieldFault(f"a response with status {self.status_code} has no body; remove it", "body")


class DirectResponseFilter(Filter):
    """Responds to every request."""

    def __init__(self, context: FilterContext) -> None:
        config: DirectResponseConfig = context.config
        edits, body = config.response, config.body.encode()
        replaced = {*(each.name.lower() for each in edits.set), *(name.lower() for name in edits.remove)}
        fields = [_PLAIN] if body and "content-type" not in replaced else []
        fields += [(each.name.encode(), each.value.encode()) for each in (*edits.set, *edits.add)]
        self._response = LocalResponse(config.status_code, tuple(fields), body)

    def request_headers(self, exchange: Exchange) -> LocalResponse:
        return self._response

    backend_request = request_headers


DIRECT_RESPONSE = FilterType(
    name="egressproxy.io/DirectResponse:v1",
    phases=REQUEST_HEADS,
    config_model=DirectResponseConfig,
    build=DirectResponseFilter,
    summary="Responds with a fixed status and body (Gateway API DirectResponse).",
)
