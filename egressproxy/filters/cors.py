"""Cors: responds to preflight requests, and says which origins may read a response.

Sources: Gateway API HTTPCORSFilter (GEP-1767), the Fetch standard. A configured `*` is sent as what the client asked
for (the origin, the method, the fields), never as `*`: that is right with and without credentials. Only the route
decides: CORS fields of the backend are removed. For an origin that is not allowed no CORS fields are sent; the
request is served, and the browser refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from egressproxy.filters.base import REQUEST_HEADS, RESPONSE_PHASE, Filter, FilterContext, FilterType, OfMessages
from egressproxy.filters.settings import FieldName, FilterConfig, Within, matching
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import TOKEN, Fields, every_spelling
from egressproxy.model.local_response import LocalResponse

#: What `*` in an origin stands for: any number of labels.
_LABELS = re.compile(rb"[a-z0-9._-]+")
_HOST = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
#: RFC 6454 section 6.2: what browsers send. A DNS name cannot make longer ones.
_ORIGIN = re.compile(rf"null|[A-Za-z][A-Za-z0-9+.-]*://{_HOST}(?::[0-9]{{1,5}})?".encode())
_WRITTEN = re.compile(rf"\*|[A-Za-z][A-Za-z0-9+.-]*://(?:[A-Za-z0-9._*-]+|{_HOST})(?::[0-9]{{1,5}})?".encode())
_Origin = Annotated[
    str, matching(_WRITTEN, "{!r} is not an origin: write SCHEME://HOST[:PORT], where HOST may contain *, or * alone")
]
_MAX_ORIGIN = 300
_DEFAULT_PORTS = ((b"http://", b":80"), (b"https://", b":443"))
_NAMES = re.compile(rb"%b(?:[ \t]*,[ \t]*%b)*" % (TOKEN.pattern, TOKEN.pattern))

_FIELDS = every_spelling(tuple(
    "access-control-" + name for name in (
        "allow-credentials", "allow-headers", "allow-methods", "allow-origin", "expose-headers", "max-age",
    )
))  # fmt: skip
#: Readable without being exposed (Fetch, CORS-safelisted response-header name), or never readable.
_NOT_EXPOSED = frozenset((
    b"cache-control", b"content-language", b"content-length", b"content-type", b"expires", b"last-modified", b"pragma",
    b"set-cookie", b"set-cookie2",
))  # fmt: skip
_PREFLIGHT_VARY = b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers"


@dataclass(frozen=True, slots=True)
class CorsConfig(FilterConfig):
    """HTTPCORSFilter. `max_age` in seconds. No `allow_origins`: no origin is allowed."""

    allow_origins: tuple[_Origin, ...] = ()
    allow_credentials: bool = False
    allow_methods: tuple[FieldName, ...] = ()
    allow_headers: tuple[FieldName, ...] = ()
    expose_headers: tuple[FieldName, ...] = ()
    max_age: Annotated[int, Within(ge=1)] = 5


class Cors(Filter):
    """Runs in the request phase where it is placed and in the response phase that belongs to it."""

    ignores_trailers = True
    of_messages = OfMessages.HEAD

    def __init__(self, context: FilterContext) -> None:
        config: CorsConfig = context.config
        self.runs_in = frozenset((context.phase, RESPONSE_PHASE[context.phase]))
        self._origins = _Origins(config.allow_origins)
        self._methods = _listed(config.allow_methods)
        self._headers = _listed(config.allow_headers)
        exposed = _listed(config.expose_headers)
        # With credentials `*` would mean a field of that name (Fetch, Access-Control-Expose-Headers).
        self._exposes_all = exposed == b"*" and config.allow_credentials
        always = [(b"Access-Control-Allow-Credentials", b"true")] if config.allow_credentials else []
        if exposed and not self._exposes_all:
            always.append((b"Access-Control-Expose-Headers", exposed))
        self._always = tuple(always)
        self._always_block = Fields.of(always).block
        self._max_age = b"%d" % config.max_age

    def request_headers(self, exchange: Exchange) -> LocalResponse | None:
        if not is_preflight(exchange):
            return None
        fields = exchange.request.fields
        origin = self._origins.allowed(fields)
        if not origin:
            return LocalResponse(200, ((b"Vary", _PREFLIGHT_VARY),))
        methods = _answered(self._methods, fields.get_all(b"access-control-request-method"))
        headers = _answered(self._headers, fields.get_all(b"access-control-request-headers"))
        lines = (
            (b"Access-Control-Allow-Origin", origin),
            *self._always,
            (b"Access-Control-Allow-Methods", methods),
            (b"Access-Control-Allow-Headers", headers),
            (b"Access-Control-Max-Age", self._max_age),
            (b"Vary", _PREFLIGHT_VARY),
        )
        return LocalResponse(200, tuple(line for line in lines if line[1]))

    backend_request = request_headers

    def refusal_fields(self, fields: Fields) -> tuple[tuple[bytes, bytes], ...]:
        """What lets a page of an allowed origin read an answer of the gateway. `fields`: those of the request."""
        origin = self._origins.allowed(fields)
        allowed = ((b"Access-Control-Allow-Origin", origin), *self._always) if origin else ()
        return (*allowed, (b"Vary", b"Origin"))

    def response_headers(self, exchange: Exchange) -> None:
        """Replaces the CORS fields of the backend by those of the route, and adds Origin to Vary."""
        if is_preflight(exchange):
            return  # it is our own response
        fields = exchange.response.fields
        fields.cut(_FIELDS)
        origin = self._origins.allowed(exchange.request.fields)
        if origin:
            exposed = b""
            if self._exposes_all:
                names = dict.fromkeys(name for name, _ in fields if name not in _NOT_EXPOSED)
                exposed = b"\r\nAccess-Control-Expose-Headers: " + b", ".join(names) if names else b""
            fields.block += b"\r\nAccess-Control-Allow-Origin: " + origin + self._always_block + exposed
        vary = b",".join(fields.get_all(b"vary")).lower()
        if not {b"origin", b"*"}.intersection(name.strip() for name in vary.split(b",")):
            fields.block += b"\r\nVary: Origin"

    backend_response = response_headers


class _Origins:
    """The origins that are allowed: exact ones in normal form, others as the texts around each `*`."""

    __slots__ = ("_all", "_exact", "_globs")

    def __init__(self, origins: Iterable[str]) -> None:
        self._all = "*" in origins
        normal = [_normal(origin.encode()) for origin in origins if origin != "*"]
        self._exact = frozenset(origin for origin in normal if b"*" not in origin)
        self._globs = tuple(origin.split(b"*") for origin in normal if origin not in self._exact)

    def allowed(self, fields: Fields) -> bytes:
        """The request's Origin as it came; b"" if it has none, several, or one that is not allowed."""
        found = fields.get_all(b"origin")
        if len(found) != 1:
            return b""
        origin = found[0]
        if len(origin) > _MAX_ORIGIN or not _ORIGIN.fullmatch(origin):
            return b""
        if self._all:
            return origin
        normal = _normal(origin)
        is_allowed = normal in self._exact or any(_fits(glob, normal) for glob in self._globs)
        return origin if is_allowed else b""


def _fits(glob: list[bytes], origin: bytes) -> bool:
    """Whether an origin matches a pattern with `*`, given as the texts around each `*`.

    Each text is searched once and taken where it is found first (a later place would only leave less for the next one),
    so the cost is linear in the length of what clients send, however many `*` there are.
    """
    first, *inner, last = glob
    end = len(origin) - len(last)
    if not (origin.startswith(first) and origin.endswith(last)):
        return False
    at = len(first)
    for part in inner:
        found = origin.find(part, at + 1, end)
        if found < 0 or not _LABELS.fullmatch(origin, at, found):
            return False
        at = found + len(part)
    return _LABELS.fullmatch(origin, at, end) is not None


def _normal(origin: bytes) -> bytes:
    """In lower case, without the default port of its scheme."""
    origin = origin.lower()
    for scheme, port in _DEFAULT_PORTS:
        if origin.startswith(scheme) and origin.endswith(port):
            return origin[: -len(port)]
    return origin


def is_preflight(exchange: Exchange) -> bool:
    """Whether it is a CORS-preflight request of the Fetch standard: OPTIONS with these two fields."""
    fields = exchange.request.fields
    return exchange.request.method == b"OPTIONS" and b"origin" in fields and b"access-control-request-method" in fields


def _listed(names: Iterable[str]) -> bytes:
    """A field value; b"*" for everything, b"" for nothing."""
    return b"*" if "*" in names else ", ".join(names).encode()


def _answered(allowed: bytes, asked: list[bytes]) -> bytes:
    """The list that is allowed; if that is `*`, what was asked for, or b"" if that is not a list of names."""
    if allowed != b"*":
        return allowed
    value = b", ".join(asked)
    return value if _NAMES.fullmatch(value) else b""


CORS = FilterType(
    name="egressproxy.io/Cors:v1",
    phases=REQUEST_HEADS,
    config_model=CorsConfig,
    build=Cors,
    also=frozenset(RESPONSE_PHASE.values()),
    summary="Responds to CORS preflight requests, and says which origins may read a response (Gateway API CORS).",
)
