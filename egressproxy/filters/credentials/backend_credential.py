"""BackendCredential: for filters that send a credential: to whom (`BackendBinding`), and where (`Placement`)."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from egressproxy.errors import Denied, GatewayFault, Reason
from egressproxy.filters.base import Filter, FilterContext
from egressproxy.filters.credentials.config import Binding, CredentialInjectorConfig
from egressproxy.filters.credentials.refresher import Fetched, Refresher
from egressproxy.model.authority import host_name
from egressproxy.model.exchange import BackendOrigin, Exchange
from egressproxy.model.fields import VALUE, Fields, every_spelling
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import has_dot_segment
from egressproxy.model.secret import SecretBytes

#: No backend has been approved yet.
_NOBODY: Final = BackendOrigin("", 0, is_secure=False)

#: The parameters of a query in which clients of common APIs send their keys, in lower case.
CREDENTIAL_PARAMETERS: Final = (
    b"key", b"api-key", b"api_key", b"apikey", b"access_token", b"oauth_token", b"private_token", b"job_token",
    b"subscription-key",
)  # fmt: skip
#: What stands before a key among the sub-protocols of a WebSocket (OpenAI, Realtime API from browsers).
_KEY_PROTOCOL: Final = b"openai-insecure-api-key."


def client_credentials(names: tuple[str, ...]) -> re.Pattern[bytes]:
    """For `Fields.cut`: these fields in every spelling, and a list of sub-protocols with a key. Of a WebSocket's list
    `without_key_protocols` has taken the key before.
    """
    protocols = rb"|\r\n[-_]*+sec[-_]websocket[-_]protocol[-_]*+:[^\r]*" + re.escape(_KEY_PROTOCOL) + rb"[^\r]*"
    return re.compile(every_spelling(names).pattern + protocols, re.IGNORECASE)


class BackendCredential(Filter, ABC):
    """`backend_request` of a subclass sends the credential, if `x.backend_origin` is `_approved`; else it does what
    `_unready` says. `_keep` takes a value, or None. `remedy` says what to do where there is none.
    """

    sends_credential = True

    def __init__(self, context: FilterContext, remedy: str) -> None:
        config: CredentialInjectorConfig = context.config
        self._name = context.name
        self._source = context.source
        self._context = context
        self._binding = BackendBinding(
            config.bind, context.name, context.source, allow_plaintext=config.allow_plaintext
        )
        #: The backend that was last found to be what the credential is bound to, while there is a value.
        self._approved = _NOBODY
        self._is_ready = False
        self._refresher: Refresher | None = None
        self._remedy = remedy

    @abstractmethod
    def _take(self, value: object) -> None:
        """Have this value from now on. Raises ValueError for one that cannot be sent."""

    @abstractmethod
    def _forget(self) -> None:
        """Have no value."""

    def _fetch_by(self, fetch: Callable[[], Awaitable[Fetched]]) -> None:
        """Fetch values from now on, beginning with the first request."""
        self._refresher = Refresher(fetch, self._keep, FetchReport(self._context).tell)

    def _keep(self, value: object | None) -> None:
        """Take a new value, or None: there is none any more. Raises ValueError for one that cannot be sent."""
        if value is None:
            self._is_ready, self._approved = False, _NOBODY
            self._forget()
        else:
            self._take(value)
            self._is_ready = True

    def _unready(self, exchange: Exchange) -> Awaitable[LocalResponse | None] | None:
        """Approve the backend, if it is what the credential is bound to and there is a value; None then.

        Else returns what waits for the first value. Raises GatewayFault(CREDENTIAL_MISSING, 503), and Denied (403) as
        `BackendBinding`.
        """
        if not self._is_ready:
            if self._refresher is not None:
                return self._wait(exchange, self._refresher)
            raise self._missing(exchange)
        self._binding.check(exchange)
        if exchange.backend_origin is not None and not self._binding.looks_at_heads:
            self._approved = exchange.backend_origin
        return None

    async def _wait(self, exchange: Exchange, refresher: Refresher) -> LocalResponse | None:
        """Send the first value when it is there: what the backend is has been checked before."""
        self._binding.check(exchange)
        await refresher.ready()
        if not self._is_ready:
            raise self._missing(exchange, refresher)
        self.backend_request(exchange)
        return None

    def forecast(self, exchange: Exchange) -> None:
        """Raises as `backend_request`, but for a value that has to be fetched first."""
        if not self._is_ready and self._refresher is None:
            raise self._missing(exchange)
        self._binding.check(exchange)

    def close(self) -> None:
        if self._refresher is not None:
            self._refresher.close()

    def _missing(self, exchange: Exchange, refresher: Refresher | None = None) -> GatewayFault:
        return GatewayFault(
            Reason.CREDENTIAL_MISSING,
            f"the credential of {exchange.backend} is not available",
            status=503,
            rule=self._source,
            remedy=self._remedy,
            detail=f"filter {self._name}: {refresher.error}" if refresher is not None else "",
            retry_after_s=refresher.retry_s if refresher is not None else 0,
        )


class FetchReport:
    """Tells of fetches: metrics, and an Event when they begin to fail and when they succeed again."""

    __slots__ = ("_expiry", "_fetches", "_has_failed", "_notices", "_ready", "_source")

    def __init__(self, context: FilterContext) -> None:
        meter, labels = context.meter, ("source",)
        self._source = context.source
        self._notices = context.notices
        self._has_failed = False
        self._fetches = meter.counter("egress_credential_fetches", "Fetches of credentials.", (*labels, "result"))
        self._ready = meter.gauge(
            "egress_credential_ready", "Whether there is a credential to send.", labels, combined="min"
        )
        self._expiry = meter.gauge(
            "egress_credential_expiry_timestamp_seconds", "When the credential expires.", labels, combined="min"
        )

    def tell(self, error: str, left_s: float) -> None:
        """A fetch has ended; `error` is "" for success. `left_s`: for how many seconds there is a value; 0: none."""
        self._fetches.add(1, self._source, "error" if error else "ok")
        self._ready.set(1 if left_s else 0, self._source)
        if left_s < 1e9:
            self._expiry.set(time.time() + left_s if left_s else 0, self._source)
        if error:
            goes_on = "the last one serves until it expires" if left_s else "requests are refused (503)"
            self._notices.warning("CredentialFetchFailed", f"the credential cannot be fetched: {error}; {goes_on}")
        elif self._has_failed:
            self._notices.normal("CredentialFetched", "there is a fresh credential again")
        self._has_failed = bool(error)


class BackendBinding:
    """`looks_at_heads`: path or Host of each request count, too. `name`, `source`: those of the filter, in whose config
    `written_as` is the field with the binding ("": `bind`).
    """

    __slots__ = ("_allow_plaintext", "_hosts", "_ports", "_prefix", "_written_as", "looks_at_heads", "name", "source")

    def __init__(self, bind: Binding, name: str, source: str, written_as: str = "", *, allow_plaintext: bool) -> None:
        self._written_as = written_as
        self._allow_plaintext = allow_plaintext
        self._hosts = frozenset(bind.hosts)
        self._ports = frozenset(bind.ports)
        self._prefix = bind.path_prefix.rstrip("/").encode()
        self.looks_at_heads = bool(self._prefix or self._hosts)
        self.name = name
        self.source = source

    def check(self, exchange: Exchange) -> None:
        """Raises Denied (403): PLAINTEXT_CREDENTIAL without TLS, CREDENTIAL_NOT_BOUND for what it is not bound to."""
        origin = exchange.backend_origin
        if not (self._allow_plaintext or (origin.is_secure if origin is not None else exchange.backend_is_secure)):
            raise Denied(
                Reason.PLAINTEXT_CREDENTIAL,
                f"backend {exchange.backend} is not reached over TLS, and filter {self.name} sends its credential "
                "over TLS only",
                rule=self.source,
                remedy="add `tls` to the Backend, or `allowPlaintext: true` to the filter's config",
            )
        if self._hosts and (origin is None or not origin.names or not self._hosts.issuperset(origin.names)):
            raise self._not_bound(exchange, "hosts", "is not verified as a host")
        if self._hosts and exchange.upstream_host and host_name(exchange.upstream_host) not in self._hosts:
            # Who serves many names under one certificate goes by Host (RFC 9110 section 7.4).
            raise self._not_bound(exchange, "hosts", "is asked, in Host, for another name than those")
        if self._ports and (origin is None or origin.port not in self._ports):
            raise self._not_bound(exchange, "ports", "is not on a port")
        if self._prefix:
            path = exchange.request.path.partition(b"?")[0]
            if not (path == self._prefix or path.startswith(self._prefix + b"/")) or has_dot_segment(path):
                raise self._not_bound(exchange, "pathPrefix", "is asked for a path that is not below the one")

    def _not_bound(self, exchange: Exchange, field: str, what: str) -> Denied:
        return Denied(
            Reason.CREDENTIAL_NOT_BOUND,
            f"backend {exchange.backend} {what} that filter {self.name} is bound to, and gets no credential",
            rule=self.source,
            remedy=f"correct {self._written_as or f'bind.{field}'} in the filter's config, or place the filter on the"
            " Backend that it is for",
        )


class Placement:
    """Renders values for the place that a config names. `query` is the name of the parameter, b"" for a header."""

    __slots__ = ("_prefix", "_template", "_user", "query")

    def __init__(self, config: CredentialInjectorConfig, user: SecretBytes | None) -> None:
        """`user`: that of `usernameRef`."""
        self.query = config.query.encode()
        self._prefix = b"" if config.query else b"\r\n%s: " % (config.header or "Authorization").encode()
        self._template = config.template.encode()
        self._user: SecretBytes | None = None
        if config.basic is not None:
            self._user = user if user is not None else SecretBytes(config.basic.username.encode())

    def text(self, raw: bytes) -> bytes:
        """The credential as it stands in the place. Raises ValueError for one that a field cannot have."""
        if not raw or not VALUE.fullmatch(raw):
            what = "it contains a control character (CR, LF …)" if raw else "it is empty"
            raise ValueError(f"cannot be sent in a field: {what}")
        if self._user is not None:
            return b"Basic " + b64encode(self._user.reveal() + b":" + raw)
        return self._template.replace(b"{}", raw)

    def render(self, raw: bytes) -> SecretBytes:
        """What goes into the head: a line with CRLF in front, or an encoded parameter. Raises as `text`."""
        text = self.text(raw)
        if self.query:
            return SecretBytes(self.query + b"=" + quote(text, safe="").encode())
        return SecretBytes(self._prefix + text)


def with_parameter(target: bytes, name: bytes, parameter: bytes) -> bytes:
    """The target with this (encoded) parameter instead of every one of that name, in any encoding and case, also behind
    ";", which some origins read as "&".
    """
    left = without_parameters(target, (name.lower(),)).removesuffix(b"?")
    return left + (b"&" if b"?" in left else b"?") + parameter


def without_parameters(target: bytes, names: Collection[bytes]) -> bytes:
    """The target without the parameters of these (lower-case) names, however they are written. Others keep their bytes;
    without any parameter the query goes, too.
    """
    path, _, query = target.partition(b"?")
    lowered = query.lower()
    if b"%" not in query and not any(name in lowered for name in names):
        return target
    kept = (
        b";".join(part for part in pair.split(b";") if _parameter_name(part) not in names) for pair in query.split(b"&")
    )
    left = b"&".join(filter(None, kept))
    return path + b"?" + left if left else path


def without_key_protocols(fields: Fields) -> None:
    """Take the key of a client out of its list of sub-protocols; the others stay (RFC 6455 section 11.3.4)."""
    name = b"sec-websocket-protocol"
    protocols = [each.strip(b" \t") for line in fields.get_all(name) for each in line.split(b",")]
    kept = [each for each in protocols if not each.lower().startswith(_KEY_PROTOCOL)]
    if len(kept) < len(protocols):
        fields.remove(name)
        if kept:
            fields.add(name, b", ".join(kept))


def _parameter_name(part: bytes) -> bytes:
    name = part.partition(b"=")[0]
    return (unquote_to_bytes(name) if b"%" in name else name).lower()
