"""Envoy's response flags for our reasons, so that dashboards made for Envoy's access log read ours.

Source: Envoy, access logging, %RESPONSE_FLAGS%. Reasons without a flag in Envoy (a denial by policy, an operator's
mistake) have none here: `reason` is better than a flag that nearly fits.
"""

from __future__ import annotations

from typing import Final

from egressproxy.errors import Reason

_FLAGS: Final[dict[Reason, str]] = {
    # limits
    Reason.REQUEST_RATE: "RL",  # rate limited
    Reason.NEW_NAMES: "RL",
    Reason.TOKEN_RATE: "RL",
    Reason.BYTE_RATE: "RL",
    Reason.COST_LIMIT: "RL",
    Reason.CONCURRENCY: "UO",  # upstream overflow: a circuit breaker's kind of limit
    Reason.TUNNEL_LIMIT: "UO",
    Reason.CONNECTION_LIMIT: "UO",
    Reason.QUEUE_FULL: "UO",
    Reason.QUEUE_TIMEOUT: "UO",
    Reason.CIRCUIT_OPEN: "UO",
    Reason.OVERLOADED: "OM",  # overload manager
    # the client's message
    Reason.BAD_REQUEST_LINE: "DPE",  # downstream protocol error
    Reason.NOT_SOCKS: "DPE",
    Reason.NOT_REDIRECTED: "DPE",
    Reason.BAD_VERSION: "DPE",
    Reason.BAD_HOST: "DPE",
    Reason.BAD_TARGET: "DPE",
    Reason.BAD_FIELD: "DPE",
    Reason.BAD_FRAMING: "DPE",
    Reason.UNKNOWN_CODING: "DPE",
    Reason.MCP_VERSION: "DPE",
    Reason.CONTENT_CODING: "DPE",
    Reason.HEAD_TOO_LARGE: "DPE",
    Reason.TARGET_TOO_LONG: "DPE",
    Reason.CLIENT_GONE: "DC",  # downstream connection termination
    Reason.CLIENT_TIMEOUT: "SI",  # stream idle timeout
    # the gateway
    Reason.NO_ROUTE: "NR",  # no route
    Reason.MISDIRECTED: "NR",
    Reason.BACKEND_INVALID: "NC",  # no cluster
    Reason.UNKNOWN_EXTENSION: "NC",
    Reason.FILTER_UNUSABLE: "NC",
    Reason.FILTER_REJECTED: "UAEX",  # refused by an authorisation step
    Reason.CONTENT_DENIED: "UAEX",
    Reason.MODEL_DENIED: "UAEX",
    Reason.REGION_DENIED: "UAEX",
    Reason.EXT_AUTH_DENIED: "UAEX",
    Reason.EXT_AUTH_ERROR: "UAEX",
    # the upstream
    Reason.DNS_NXDOMAIN: "DF",  # DNS resolution failed
    Reason.DNS_NO_ADDRESS: "DF",
    Reason.DNS_SERVFAIL: "DF",
    Reason.DNS_TIMEOUT: "DF",
    Reason.DNS_NOT_AUTHENTIC: "DF",
    Reason.DNS_ERROR: "DF",
    Reason.NO_ENDPOINT: "UH",  # no healthy upstream
    Reason.NO_HEALTHY_ENDPOINT: "UH",
    Reason.CONNECT_REFUSED: "UF",  # upstream connection failure
    Reason.CONNECT_TIMEOUT: "UF",
    Reason.CONNECT_FAILED: "UF",
    Reason.PARENT_REFUSED: "UF",
    Reason.PARENT_AUTH: "UF",
    Reason.TLS_CERTIFICATE: "UF",
    Reason.TLS_PROTOCOL: "UF",
    Reason.TLS_TIMEOUT: "UF",
    Reason.UPSTREAM_RESET: "UR",  # upstream remote reset
    Reason.UPSTREAM_CLOSED: "UC",  # upstream connection termination
    Reason.UPSTREAM_INCOMPLETE: "UC",
    Reason.BAD_RESPONSE: "UPE",  # upstream protocol error
    Reason.RESPONSE_TIMEOUT: "UT",  # upstream request timeout
    Reason.REQUEST_TIMEOUT: "DT",  # duration timeout
}


def flags_for(reason: Reason) -> str:
    """The flag that Envoy would log for this reason, or "" for none."""
    return _FLAGS.get(reason, "")
