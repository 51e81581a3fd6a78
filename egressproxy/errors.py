"""The error family: every error knows its Reason, the status to answer with, who is at fault, and whether to retry.

A `Reason` is one word, used verbatim as metric label, access-log field and `Proxy-Status` detail. The enum is closed:
a new way for an exchange to end gets a new member here, a section in docs/reasons.md and a test.
"""

from __future__ import annotations

from enum import Enum


class FaultSource(Enum):
    """Which side is at fault."""

    DOWNSTREAM = "downstream"
    GATEWAY = "gateway"
    UPSTREAM = "upstream"


class RetrySafety(Enum):
    """Whether another attempt may be made (RFC 9110 section 9.2.2)."""

    NEVER = "never"
    SAFE = "safe"  # nothing of the request was sent
    IF_REUSED = "if_reused"  # an idle connection died under the request: an idempotent request may go again
    IF_IDEMPOTENT = "if_idempotent"  # the backend may have seen the request: only where a rule asks for retries


class Reason(str, Enum):
    """The reason why an exchange ended."""

    OK = "-"
    # policy
    DESTINATION_NOT_ALLOWED = "destination_not_allowed"
    DESTINATION_DENIED = "destination_denied"
    NO_POLICY = "no_policy"
    ADDRESS_DENIED = "resolved_denied"
    SNI_MISMATCH = "sni_mismatch"
    NOT_TLS = "not_tls"
    CLIENT_CERTIFICATE = "client_certificate"
    INTERCEPTION_REFUSED = "interception_refused"
    PROXY_HEADER = "proxy_header"
    CREDENTIALS_REQUIRED = "credentials_required"
    CREDENTIALS_REFUSED = "credentials_refused"
    IDENTITY_KILLED = "identity_killed"
    PLAINTEXT_CREDENTIAL = "plaintext_credential"
    CREDENTIAL_NOT_BOUND = "credential_not_bound"
    AUTHORIZATION_REQUIRED = "authorization_required"
    CREDENTIAL_NOT_FOR_CALLER = "credential_not_for_caller"
    PLACEHOLDER_REQUIRED = "placeholder_required"
    PLACEHOLDER_MISPLACED = "placeholder_misplaced"
    FILTER_REJECTED = "filter_rejected"
    ACCESS_DENIED = "access_denied"
    REVERSE_DNS_DENIED = "reverse_dns_denied"
    CONTENT_DENIED = "content_denied"
    CANARY_KEY = "canary_key"
    MODEL_DENIED = "model_denied"
    REGION_DENIED = "region_denied"
    APPROVAL_DENIED = "approval_denied"
    EXT_AUTH_DENIED = "ext_auth_denied"
    LOOP_DETECTED = "loop_detected"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    # limits
    REQUEST_RATE = "request_rate"
    TOKEN_RATE = "token_rate"  # noqa: S105 (tokens of language models)
    BYTE_RATE = "byte_rate"
    COST_LIMIT = "cost_limit"
    NEW_NAMES = "dns_new_names"
    CONCURRENCY = "concurrency"
    APPROVAL_LIMIT = "approval_limit"
    TUNNEL_LIMIT = "tunnel_limit"
    CONNECTION_LIMIT = "connection_limit"
    BODY_TOO_LARGE = "body_too_large"
    HEAD_TOO_LARGE = "head_too_large"
    TARGET_TOO_LONG = "target_too_long"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    CIRCUIT_OPEN = "circuit_open"
    OVERLOADED = "overloaded"
    # the client's message
    BAD_REQUEST_LINE = "bad_request_line"
    NOT_SOCKS = "not_socks"
    NOT_REDIRECTED = "not_redirected"
    BAD_VERSION = "bad_version"
    BAD_HOST = "bad_host"
    BAD_TARGET = "bad_target"
    BAD_FIELD = "bad_field"
    BAD_FRAMING = "bad_framing"
    MCP_VERSION = "mcp_version"
    MCP_SESSION = "mcp_session"
    UNTRANSLATABLE = "untranslatable"
    CONTENT_CODING = "content_coding"
    UNKNOWN_CODING = "unknown_transfer_coding"
    CLIENT_GONE = "client_gone"
    CLIENT_TIMEOUT = "client_timeout"
    # the gateway
    NO_ROUTE = "no_route"
    MISDIRECTED = "misdirected"
    BACKEND_INVALID = "backend_invalid"
    UNKNOWN_EXTENSION = "unknown_extension"
    FILTER_FAILED = "filter_failed"
    FILTER_UNUSABLE = "filter_unusable"
    EXT_AUTH_ERROR = "ext_auth_error"
    CREDENTIAL_MISSING = "credential_missing"
    INTERCEPTION_FAILED = "interception_failed"
    DRAINED = "drained"
    INTERNAL = "internal"
    # the upstream
    DNS_NXDOMAIN = "dns_nxdomain"
    DNS_NO_ADDRESS = "dns_no_address"
    DNS_SERVFAIL = "dns_servfail"
    DNS_TIMEOUT = "dns_timeout"
    DNS_NOT_AUTHENTIC = "dns_not_authentic"
    DNS_ERROR = "dns_error"
    NO_ENDPOINT = "no_endpoint"
    NO_HEALTHY_ENDPOINT = "no_healthy_endpoint"
    CONNECT_REFUSED = "upstream_refused"
    CONNECT_TIMEOUT = "upstream_connect_timeout"
    CONNECT_FAILED = "upstream_connect_failed"
    PARENT_REFUSED = "parent_refused"
    PARENT_AUTH = "parent_auth"
    TLS_CERTIFICATE = "upstream_tls_certificate"
    TLS_PROTOCOL = "upstream_tls_protocol"
    TLS_TIMEOUT = "upstream_tls_timeout"
    UPSTREAM_RESET = "upstream_reset"
    UPSTREAM_CLOSED = "upstream_closed"
    UPSTREAM_INCOMPLETE = "upstream_incomplete"
    BAD_RESPONSE = "upstream_bad_response"
    RESPONSE_TIMEOUT = "upstream_timeout"
    REQUEST_TIMEOUT = "request_timeout"

    def __str__(self) -> str:
        return self.value


#: Why a backend, a parent or its name could not be reached: what an operator can mend, or has to know.
UNREACHED = frozenset((
    Reason.DNS_NXDOMAIN, Reason.DNS_NO_ADDRESS, Reason.DNS_SERVFAIL, Reason.DNS_TIMEOUT, Reason.DNS_NOT_AUTHENTIC,
    Reason.DNS_ERROR, Reason.CONNECT_REFUSED, Reason.CONNECT_TIMEOUT, Reason.CONNECT_FAILED, Reason.PARENT_REFUSED,
    Reason.PARENT_AUTH, Reason.TLS_CERTIFICATE, Reason.TLS_PROTOCOL, Reason.TLS_TIMEOUT,
))  # fmt: skip


class GatewayError(Exception):
    """Base of the errors that end an exchange.

    `message` is shown to the client: it names the thing and the remedy, never a secret, an address or a DNS answer.
    `rule` is the kind and namespace/name of the object that decided ("-" where none); `remedy` says what to add.
    `detail` is for the log only. `status` is 0 for the default of the class; `retry_after_s` 0 sends no Retry-After.
    """

    source = FaultSource.GATEWAY
    default_status = 500
    fields: tuple[tuple[bytes, bytes], ...] = ()  # additional fields of the response
    #: The EgressPolicy (namespace/name) whose destinations or addresses deny, and the hostname or range of its entry:
    #: labels of egress_denied_total. Limits and filters of a policy are named in `rule` alone.
    policy = "-"
    entry = "-"
    ech_outer_name: str | None = None  # outer SNI of a ClientHello with ECH, "-" without SNI (RFC 9849)
    reset_code = -1  # error code of the backend's RST_STREAM (RFC 9113 section 7); -1: none
    is_left_out = False  # by the backend's GOAWAY the request was not processed (RFC 9113 section 6.8)
    is_quotable = True  # message and remedy contain no path, field or body of the request
    is_listed_elsewhere = False  # a report names each, so that there is no Event
    has_own_remedy = False  # with numbers of this request: Events, which count what is alike, leave it out

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        status: int = 0,
        rule: str = "-",
        remedy: str = "",
        detail: str = "",
        retry: RetrySafety = RetrySafety.NEVER,
        retry_after_s: int = 0,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.status = status or self.default_status
        self.rule = rule
        self.remedy = remedy
        self.detail = detail
        self.retry = retry
        self.retry_after_s = retry_after_s
        self.close = close  # the client's connection must be closed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.status} {self.reason}: {self.message})"


class BadRequest(GatewayError):
    """The client's message breaks a rule; its connection is closed after the answer (RFC 9112 section 9.6)."""

    source = FaultSource.DOWNSTREAM
    default_status = 400

    def __init__(self, reason: Reason, message: str, *, status: int = 0, detail: str = "", close: bool = True) -> None:
        super().__init__(reason, message, status=status, detail=detail, close=close)


class Denied(GatewayError):
    """Policy denies. Always 403, never 407 (which asks for credentials). `is_firm`: mode Report denies, too."""

    default_status = 403
    is_firm = False

    def tell(self, text: str) -> None:
        """Add the operator's text for clients to the message; "" adds nothing."""
        if text:
            self.message = f"{self.message}: {text}"


class LimitExceeded(GatewayError):
    """A limit is reached: 429, 413, 431 or 503, with Retry-After where that helps."""

    default_status = 429


class GatewayFault(GatewayError):
    """The fault of the gateway or its configuration: no route 404, invalid backend 500, failed filter 502."""

    default_status = 500


class UpstreamFault(GatewayError):
    """The fault of the upstream: no connection 503; a bad, broken or untrusted response 502; too slow 504."""

    source = FaultSource.UPSTREAM
    default_status = 502


class ClientGone(GatewayError):
    """The client has closed its connection before the response (logged as 499)."""

    source = FaultSource.DOWNSTREAM
    default_status = 499

    def __init__(self, message: str = "the client closed its connection", reason: Reason = Reason.CLIENT_GONE) -> None:
        super().__init__(reason, message, close=True)


class NotAnswered(Exception):
    """A query of the admin API has no answer; the message gives the reason and the remedy. Ends no exchange."""
