"""Sessions of MCP: the requests of a session go to the endpoint that has made it.

The id that a client has is the server's, with a signed part of ours behind it, which names the endpoint; the server
gets its own id back. Nothing is kept here, so every worker, and every gateway with the same key, knows the session. An
id that is not of our making, or leads to no endpoint of this rule, is answered 404: clients begin a new session then.
Source: Model Context Protocol, Transports, Session Management.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from egressproxy.errors import BadRequest, Reason
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.session_persistence import (
    PLACE,
    BoundSession,
    PersistentSessions,
    Session,
    SessionPlaces,
    Sessions,
)
from egressproxy.gateway.backends.upstream_hosts import UpstreamHost
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.mcp import PROTOCOL_VERSION, SESSION_ID, STATELESS_REVISIONS
from egressproxy.model.secret import SecretBytes

#: Bytes of the digest of the whole.
_DIGEST: Final = 16
#: What is behind the last dot: the endpoint's digest and that of the whole, in base64 without padding.
_SIGNED_TEXT: Final = 38
#: The session that a request shows.
_SESSION: Final[StateSlot[McpSession]] = StateSlot("mcp session")


@dataclass(frozen=True, slots=True)
class McpSession(BoundSession):
    """A session of an MCP server, which no other endpoint knows. `server_id` is the id that the server has given it."""

    server_id: bytes

    def lost(self) -> BadRequest:
        return session_not_found()


class McpSessions(Sessions):
    """The MCP sessions of one rule, over all its backends that speak MCP, those of weight 0 included. `others` is the
    session persistence that the rule asks for: it holds for requests without a session of MCP.
    """

    __slots__ = ("_key", "_places", "_route", "others")

    reads_beginnings = False  # its events may rest, and its errors are the client's

    def __init__(
        self, route: str, key: SecretBytes, backends: Sequence[RouteBackend], others: PersistentSessions | None
    ) -> None:
        self._route = route
        self._key = key
        self.others = others
        self._places = SessionPlaces((each for each in backends if each.speaks_mcp), self._digest)

    @property
    def shown_as(self) -> str:
        """What clients show, in words."""
        return "an Mcp-Session-Id" + (f", or {self.others.shown_as}," if self.others is not None else "")

    # --- the request -----------------------------------------------------------------------------------------------
    def admit(self, exchange: Exchange) -> RouteBackend | None:
        """Read the id that the client shows, and leave the server's own in the request. Returns the session's backend.
        Raises BadRequest: 404 for an id that is none of ours, 400 for more than one.
        """
        fields = exchange.request.fields
        shown = fields.get_all(SESSION_ID)
        if len(shown) > 1:
            raise BadRequest(Reason.BAD_FIELD, "the request has more than one Mcp-Session-Id", close=False)
        fields.remove(SESSION_ID)  # what origins read as this field, too
        if not shown or fields.get(PROTOCOL_VERSION) in STATELESS_REVISIONS:
            return None
        session = self._read(shown[0], exchange)
        if session is None:
            raise session_not_found()
        fields.add(b"Mcp-Session-Id", session.server_id)
        exchange.keep(_SESSION, session)
        return session.backend

    def find(self, exchange: Exchange) -> Session | None:
        """The session of the request, which `admit` has read; None without one."""
        session = exchange.state.get(_SESSION)
        if session is not None:
            return session
        return self.others.find(exchange) if self.others is not None else None

    def _read(self, shown: bytes, exchange: Exchange) -> McpSession | None:
        server_id, _, signed = shown.rpartition(b".")
        if len(signed) != _SIGNED_TEXT or not server_id:
            return None
        try:
            token = urlsafe_b64decode(signed + b"==")
        except ValueError:
            return None
        place, digest = token[:PLACE], token[PLACE:]
        if not hmac.compare_digest(digest, self._signature(place, server_id, exchange)) or _text(token) != signed:
            return None
        found = self._places.find(place)
        return McpSession(0, 0, place, *found, server_id) if found is not None else None

    # --- the response ----------------------------------------------------------------------------------------------
    def keep(self, exchange: Exchange, session: Session | None, backend: RouteBackend, target: UpstreamHost) -> None:
        """Sign the id that the server names in `exchange.response`."""
        if self.others is not None:
            self.others.keep(exchange, None if isinstance(session, McpSession) else session, backend, target)
        server_id = exchange.response.fields.get(SESSION_ID) if backend.speaks_mcp else None
        if not server_id:
            return
        place = self._places.digest_of(backend, target)
        signed = _text(place + self._signature(place, server_id, exchange))
        exchange.response.fields.set(b"Mcp-Session-Id", server_id + b"." + signed)

    def _signature(self, place: bytes, server_id: bytes, exchange: Exchange) -> bytes:
        """That of the id for the client that begins the session, where it is known: it is of no use to another."""
        name = exchange.identity.name
        return self._digest(
            b"id", place + server_id if name == "-" else b"%b%b\0%b" % (place, server_id, name.encode())
        )

    def _digest(self, purpose: bytes, message: bytes) -> bytes:
        text = b"mcp %b\0%b\0%b" % (purpose, self._route.encode(), message)
        return hmac.digest(self._key.reveal(), text, "sha256")[:_DIGEST]


def session_not_found() -> BadRequest:
    """What makes a client begin a new session (Model Context Protocol, Transports, Session Management)."""
    message = "no MCP session has this id: begin a new one with initialize"
    return BadRequest(Reason.MCP_SESSION, message, status=404, close=False)


def _text(token: bytes) -> bytes:
    return urlsafe_b64encode(token).rstrip(b"=")
