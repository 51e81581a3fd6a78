"""McpAuthorization for clients that authorize themselves: they find the server's metadata at the gateway.

A challenge of the server names its metadata (`resource_metadata`): the client is sent to the gateway for it, and there
the server's own metadata has the URL by which the client calls as its `resource`, since a client believes no other (RFC
9728 section 3.3). The authorization servers stay the real ones. The token is the client's, for the audience that it
asks for: the gateway's URL, which the MCP server has to accept.
"""

from __future__ import annotations

import json
import re
from typing import Final
from urllib.parse import quote

from egressproxy.ai.mcp.oauth.config import McpAuthorizationConfig, parse_url
from egressproxy.ai.mcp.oauth.discovery import MAX_METADATA, PROTECTED_RESOURCE, covers
from egressproxy.filters.base import BodyMode, Filter, FilterContext, OfMessages, Phase, Rejected, RepeatRequest
from egressproxy.model.authority import Authority
from egressproxy.model.encoding import json_object
from egressproxy.model.exchange import Exchange, StateSlot

_WELL_KNOWN: Final = f"/.well-known/{PROTECTED_RESOURCE}"
_AT_ROOT: Final = _WELL_KNOWN.encode()
#: The parameter of a challenge (RFC 9728 section 5.1; RFC 9110 section 11.2).
_PARAMETER: Final = re.compile(rb'(\bresource_metadata[ \t]*=[ \t]*)("(?:[^"\\]|\\.)*"|[^\s,"]+)', re.IGNORECASE)
_PATH: Final = "/%~!$&'()+,;=:@*"
_PORTS: Final = {b"http": 80, b"https": 443}


class PassThrough(Filter):
    """Changes challenges and metadata of one MCP server, and nothing else."""

    runs_in = frozenset((Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE, Phase.RESPONSE_BODY))
    body_mode = BodyMode.BUFFER
    max_buffer_bytes = MAX_METADATA
    of_messages = OfMessages.HEAD

    def __init__(self, context: FilterContext) -> None:
        config: McpAuthorizationConfig = context.config
        self._url = parse_url(config.resource)
        self._server_path = self._url.with_well_known(PROTECTED_RESOURCE).encode()
        self._public = parse_url(config.public_url) if config.public_url else None
        self._asked: StateSlot[str] = StateSlot("mcp metadata")
        self._at_root: StateSlot[bool] = StateSlot("mcp metadata at the root")

    def backend_request(self, exchange: Exchange) -> None:
        path = exchange.path.decode("latin-1")
        if path != _WELL_KNOWN and not path.startswith(f"{_WELL_KNOWN}/"):
            return
        exchange.keep(self._asked, "".join(self._called(exchange, path[len(_WELL_KNOWN) :])))
        is_at_root = exchange.state.get(self._at_root) is not None
        exchange.request.path = _AT_ROOT if is_at_root else self._server_path
        exchange.request.fields.set(b"Accept-Encoding", b"identity")

    def backend_response(self, exchange: Exchange) -> None:
        fields = exchange.response.fields
        challenges = fields.get_all(b"www-authenticate")
        if challenges and any(map(_PARAMETER.search, challenges)):
            origin, path = self._called(exchange, exchange.path.decode("latin-1"))
            metadata = f'"{origin}{_WELL_KNOWN}{path}"'.encode()
            fields.remove(b"www-authenticate")
            for challenge in challenges:
                fields.add(b"WWW-Authenticate", _PARAMETER.sub(lambda found: found[1] + metadata, challenge))
        if exchange.state.get(self._asked) is not None:
            is_first = self._server_path != _AT_ROOT and exchange.state.get(self._at_root) is None
            if exchange.response.status == 404 and is_first:
                exchange.keep(self._at_root, True)  # the next place, by the specification of MCP
                why = "it has no metadata for its path; write `protocol: MCP` to have its root asked"
                raise RepeatRequest("metadata_at_root", why, status=404)
            fields.set(b"Cache-Control", b"no-store")  # other clients may call by another URL

    def body_mode_for(self, exchange: Exchange, /, phase: Phase) -> BodyMode | None:
        is_metadata = exchange.state.get(self._asked) is not None and exchange.response.status == 200
        return BodyMode.BUFFER if is_metadata and exchange.method == b"GET" else None

    def response_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes:
        """Raises Rejected (502) for what is no metadata of this server."""
        found = json_object(data)
        if found is None or not covers(found.get("resource"), self._url):
            raise Rejected("the server's answer is not the metadata of its resource", status=502)
        found.pop("signed_metadata", None)  # it would say otherwise, and precede (RFC 9728 section 2.2)
        found["resource"] = exchange.state.get(self._asked)
        return json.dumps(found).encode()

    def _called(self, exchange: Exchange, path: str) -> tuple[str, str]:
        """The server as the client calls it: the origin, and its path, which is this one if there is no `publicUrl`."""
        public = self._public
        if public is not None:
            authority = Authority(public.host.strip("[]"), public.port)
            scheme, path = public.scheme.encode(), public.path
        elif exchange.authority is not None:
            authority, scheme = exchange.authority, exchange.scheme
        else:
            raise Rejected("a request without Host has no URL: send one", status=400)
        origin = b"%b://%b" % (scheme, authority.host_field(_PORTS[scheme]))
        return origin.decode(), quote(path.rstrip("/"), safe=_PATH)  # no quote ends the parameter of a challenge
