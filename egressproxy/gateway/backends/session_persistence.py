"""Session persistence: a client comes back to the backend, and to the endpoint, that served it before.

What the client holds is a token: when the session began, when it was last renewed, and a keyed digest of the endpoint,
under a keyed digest of all. It shows no address, cannot be made up, and is good for one rule alone. All workers of a
run have one key, and nothing is kept here: a token is looked up among the endpoints that the configuration has.
Sources: GEP-1619; RFC 6265 (cookies).
"""

from __future__ import annotations

import hmac
import re
import struct
import time
from abc import ABC, abstractmethod
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import is_
from typing import ClassVar

from egressproxy.errors import GatewayError
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.upstream_hosts import UpstreamHost
from egressproxy.ir.backend import EndpointAddress
from egressproxy.ir.route import SessionIR
from egressproxy.model.exchange import Exchange
from egressproxy.model.secret import SecretBytes

#: Bytes of the digest of an endpoint, and that of one that is gone.
PLACE = 12
_GONE = bytes(PLACE)

#: Began, renewed (milliseconds since 1970), endpoint, digest.
_TOKEN = struct.Struct(">QQ12s16s")
_SIGNED = 28
_TOKEN_TEXT = 59  # in base64 without padding
#: Cookies of our name that are looked at: a browser may hold one for each path.
MAX_COOKIES = 4
#: A session that may not be idle for long is renewed at every so many parts of that time.
RENEWALS = 10
#: What may stand in the Path of a cookie (RFC 6265 section 4.1.1).
_PATH = re.compile(rb"/[!-:<-~]*")


@dataclass(frozen=True, slots=True)
class Session:
    """A valid token: the backend and the endpoint (None where a backend has none of its own)."""

    began_ms: int
    renewed_ms: int
    place: bytes
    backend: RouteBackend
    endpoint: EndpointAddress | None

    def target(self, exchange: Exchange) -> UpstreamHost:
        """Its endpoint while that may be used, or the backend's next target. Raises GatewayError."""
        cluster = self.backend.cluster
        assert cluster is not None
        if self.endpoint is None:
            return cluster.target(exchange)
        target = cluster.endpoint_target(self.endpoint)
        return target if cluster.host_set is None or cluster.host_set.is_usable(target) else cluster.target(exchange)


class BoundSession(Session, ABC):
    """A session that only its own endpoint knows: its requests go nowhere else."""

    __slots__ = ()

    @abstractmethod
    def lost(self) -> GatewayError:
        """The error for its client, where that endpoint may not serve it."""


class SessionPlaces:
    """The endpoints of backends by their digest, and the other way round. `digest` is a keyed one."""

    __slots__ = ("_backends", "_digest", "_names", "_places", "_seen")

    def __init__(self, backends: Iterable[RouteBackend], digest: Callable[[bytes, bytes], bytes]) -> None:
        self._backends = tuple(backend for backend in backends if backend.cluster is not None)
        self._digest = digest
        self._places: dict[bytes, tuple[RouteBackend, EndpointAddress | None]] = {}
        self._names: dict[tuple[RouteBackend, str, int], bytes] = {}
        self._seen: list[tuple[EndpointAddress, ...]] = []
        self._learn()

    def _learn(self) -> None:
        """Look at the endpoints of all backends, where they are not those that were seen last."""
        present = [backend.cluster.endpoints for backend in self._backends if backend.cluster is not None]
        if len(present) == len(self._seen) and all(map(is_, present, self._seen)):
            return
        self._seen = present
        self._places.clear()
        self._names.clear()
        for backend in self._backends:
            assert backend.cluster is not None
            ir = backend.cluster.spec.backend
            name = f"{ir.kind} {ir.name} {ir.port}"  # backends of several groups may have one name
            endpoints: Sequence[EndpointAddress | None] = backend.cluster.endpoints or (None,)
            for endpoint in endpoints:
                host, port = (str(endpoint.address), endpoint.port) if endpoint is not None else ("", 0)
                place = self._digest(b"endpoint", f"{name} {host} {port}".encode())[:PLACE]
                self._places.setdefault(place, (backend, endpoint))
                self._names[backend, host, port] = place

    def find(self, place: bytes) -> tuple[RouteBackend, EndpointAddress | None] | None:
        """The backend and endpoint of this digest, None where there is none (any more)."""
        self._learn()
        return self._places.get(place)

    def digest_of(self, backend: RouteBackend, target: UpstreamHost) -> bytes:
        """The digest of the endpoint of this backend that is the target."""
        assert backend.cluster is not None
        self._learn()
        has_endpoints = bool(backend.cluster.endpoints)
        place = (backend, target.host, target.port) if has_endpoints else (backend, "", 0)
        return self._names.get(place, _GONE)


class Sessions(ABC):
    """The sessions of one rule."""

    __slots__ = ()

    reads_beginnings: ClassVar[bool] = True  # the beginning of an answer of 200 may be read, for a failure

    @property
    @abstractmethod
    def shown_as(self) -> str:
        """What clients show, in words."""

    @abstractmethod
    def find(self, exchange: Exchange) -> Session | None:
        """The session of the request; None without a valid one."""

    @abstractmethod
    def keep(self, exchange: Exchange, session: Session | None, backend: RouteBackend, target: UpstreamHost) -> None:
        """Tell the client its session, in `exchange.response`. `session`: the one in the request."""


class PersistentSessions(Sessions):
    """The session persistence of one rule, over all its backends, those of weight 0 included."""

    __slots__ = ("_cookie", "_key", "_name", "_places", "_spec")

    def __init__(self, spec: SessionIR, key: SecretBytes, backends: Sequence[RouteBackend]) -> None:
        self._spec = spec
        self._key = key
        self._name = spec.name.encode()
        self._cookie = re.compile(
            rb"(?:^|[;,])[ \t]*%s=\"?([A-Za-z0-9_-]{%d})\"?[ \t]*(?=[;,]|$)" % (re.escape(self._name), _TOKEN_TEXT)
        )
        self._places = SessionPlaces(backends, self._digest)

    @property
    def shown_as(self) -> str:
        """What clients show, in words: a header field or a cookie, with its name."""
        return f"the {'field' if self._spec.is_header else 'cookie'} {self._spec.name}"

    # --- the request -----------------------------------------------------------------------------------------------
    def find(self, exchange: Exchange) -> Session | None:
        """The session of the token that the client shows; None without a valid one."""
        for token in self._shown(exchange):
            session = self._read(token)
            if session is not None:
                return session
        return None

    def _shown(self, exchange: Exchange) -> list[bytes]:
        fields = exchange.request.fields
        if self._spec.is_header:
            token = fields.get(self._name.lower())
            return [token] if token is not None and len(token) == _TOKEN_TEXT else []
        found: list[bytes] = []
        for line in fields.get_all(b"cookie"):
            found += [match[1] for match in islice(self._cookie.finditer(line), MAX_COOKIES - len(found))]
        return found

    def _read(self, text: bytes) -> Session | None:
        try:
            token = urlsafe_b64decode(text + b"=")
            began_ms, renewed_ms, place, digest = _TOKEN.unpack(token)
        except (ValueError, struct.error):
            return None
        if not hmac.compare_digest(digest, self._digest(b"token", token[:_SIGNED])):
            return None
        now_ms, spec = _now_ms(), self._spec
        if spec.absolute_s and now_ms >= began_ms + spec.absolute_s * 1000:
            return None
        if spec.idle_s and now_ms >= renewed_ms + spec.idle_s * 1000:
            return None
        found = self._places.find(place)
        return Session(began_ms, renewed_ms, place, *found) if found is not None else None

    # --- the response ----------------------------------------------------------------------------------------------
    def keep(self, exchange: Exchange, session: Session | None, backend: RouteBackend, target: UpstreamHost) -> None:
        """Put a new token into `exchange.response`, unless the client's leads to this endpoint and needs no renewal."""
        place = self._places.digest_of(backend, target)
        now_ms, spec = _now_ms(), self._spec
        if session is None or session.place != place:
            began_ms = now_ms
        elif spec.idle_s and now_ms >= session.renewed_ms + spec.idle_s * 1000 / RENEWALS:
            began_ms = session.began_ms
        else:
            return
        payload = _TOKEN.pack(began_ms, now_ms, place, b"")[:_SIGNED]
        token = urlsafe_b64encode(payload + self._digest(b"token", payload)).rstrip(b"=")
        if spec.is_header:
            exchange.response.fields.set(self._name.lower(), token)
            return
        cookie = b"%b=%b; Path=%b; HttpOnly; SameSite=Lax" % (self._name, token, self._path(exchange))
        if exchange.scheme == b"https":
            cookie += b"; Secure"
        if spec.is_permanent and spec.absolute_s:
            cookie += b"; Max-Age=%d" % max(1, (began_ms + spec.absolute_s * 1000 - now_ms) // 1000)
        exchange.response.fields.add(b"Set-Cookie", cookie)

    def _path(self, exchange: Exchange) -> bytes:
        """The path that the rule says; else the one that it matched, as far as a cookie can say it (GEP-1619)."""
        if self._spec.cookie_path:
            return self._spec.cookie_path.encode()
        path = exchange.path_prefix or self._spec.path.encode() or exchange.path
        return (path.rstrip(b"/") or b"/") if _PATH.fullmatch(path) else b"/"

    def _digest(self, purpose: bytes, message: bytes) -> bytes:
        text = b"%b\0%b\0%b" % (purpose, self._spec.scope.encode(), message)
        return hmac.digest(self._key.reveal(), text, "sha256")[:16]


def _now_ms() -> int:
    return int(time.time() * 1000)
