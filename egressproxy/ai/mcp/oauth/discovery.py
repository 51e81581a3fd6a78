"""Metadata of an MCP server and of its authorization server, fetched over the gateway's own calls.

A URL in metadata says nothing of where the gateway connects: its origin has to be one of `authorizationServers`, and
the Backend of that entry is asked. So metadata never leads to another host, and the addresses are checked as for any
other call. Sources: RFC 9728 sections 3 and 3.3; RFC 8414 sections 3 and 3.3; OpenID Connect Discovery 1.0 section 4;
Model Context Protocol 2026-07-28, Authorization.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from egressproxy.ai.mcp.oauth.config import McpAuthorizationConfig, Url, parse_url
from egressproxy.filters.base import FilterContext
from egressproxy.filters.calls import FilterCall
from egressproxy.filters.credentials.refresher import Fetched, FetchError
from egressproxy.filters.credentials.token_endpoint import answer_of, checked_call
from egressproxy.model.encoding import json_object

#: The longest metadata, in bytes: usual ones have two thousand.
MAX_METADATA: Final = 64 * 1024
#: After this time metadata is fetched again, in seconds.
REFRESH_S: Final = 3600.0
PROTECTED_RESOURCE: Final = "oauth-protected-resource"
_OAUTH: Final = "oauth-authorization-server"
_OPENID: Final = "openid-configuration"


class Endpoint(NamedTuple):
    """An endpoint that the gateway asks. `path` may have a query."""

    call: FilterCall
    path: str
    allow_plaintext: bool

    def checked(self) -> FilterCall:
        """Raises FetchError where credentials may not be sent."""
        return checked_call(self.call, allow_plaintext=self.allow_plaintext)


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """The authorization server, and what it issues tokens for. `methods`: how clients authenticate, () where it does
    not say. `authorization` is for browsers alone.
    """

    issuer: str
    resource: str
    scopes: tuple[str, ...]
    methods: tuple[str, ...]
    token: Endpoint
    authorization: str = ""
    registration: Endpoint | None = None
    revocation: Endpoint | None = None
    has_s256: bool = False
    sends_issuer: bool = False


class Discovery:
    """Finds the authorization server of one MCP server."""

    __slots__ = ("_calls", "_issuers", "_metadata", "_resource", "_scopes", "_url")

    def __init__(self, context: FilterContext) -> None:
        config: McpAuthorizationConfig = context.config
        self._resource = config.resource
        self._url = parse_url(config.resource)
        self._scopes = config.scopes
        # What another server has registered is not shown to one that the metadata chooses (RFC 9700 section 4.4).
        usable = config.authorization_servers[:1] if config.client_id else config.authorization_servers
        self._issuers = tuple(each.url for each in usable)
        self._calls = {
            parse_url(each.url).origin: context.calls.get(each.backend_ref.label)
            for each in reversed(config.authorization_servers)
        }
        ref = config.metadata_ref
        self._metadata = (context.calls.get(ref.label),) if ref is not None else None

    async def fetch(self) -> Fetched:
        """The ServerMetadata. Raises FetchError."""
        resource, issuer = self._resource, self._issuers[0]
        scopes: tuple[str, ...] = ()
        if self._metadata is not None:
            found = await self._of_resource(checked_call(self._metadata[0], allow_plaintext=True))
            if found is not None:
                resource, issuer, scopes = found
        return Fetched(await self._of_issuer(issuer, resource, self._scopes or scopes), refresh_s=REFRESH_S)

    async def _of_resource(self, call: FilterCall) -> tuple[str, str, tuple[str, ...]] | None:
        """Resource, issuer and scopes by the server's own metadata; None where it has none."""
        paths = dict.fromkeys((self._url.with_well_known(PROTECTED_RESOURCE), f"/.well-known/{PROTECTED_RESOURCE}"))
        for path in paths:
            document = await _document(call, path)
            if document is None:
                continue
            resource = document.get("resource")
            if not covers(resource, self._url):
                raise FetchError(f"the metadata of {self._resource} is of another resource: {ascii(resource)[:200]}")
            named = document.get("authorization_servers")
            if not isinstance(named, list):
                raise FetchError(f"the metadata of {self._resource} names no authorization server")
            for issuer in named:
                if issuer in self._issuers:
                    return str(resource), issuer, _texts(document.get("scopes_supported"))
            shown = ", ".join(_shown(each) for each in named[:5])
            raise FetchError(
                f"{self._resource} names other authorization servers than authorizationServers: {shown}; add the one"
                " that you trust, with its Backend; one with `clientId` stands first"
            )
        return None

    async def _of_issuer(self, issuer: str, resource: str, scopes: tuple[str, ...]) -> ServerMetadata:
        url = parse_url(issuer)
        at = self._endpoint(issuer, "issuer")
        paths = [url.with_well_known(_OAUTH), url.with_well_known(_OPENID)]
        if url.path.strip("/"):
            paths.append(f"{url.path.rstrip('/')}/.well-known/{_OPENID}")
        for path in paths:
            document = await _document(at.checked(), path)
            if document is not None:
                return self._read(document, issuer, resource, scopes)
        raise FetchError(f"{issuer} has no metadata (RFC 8414, OpenID Connect Discovery)")

    def _read(self, document: dict[str, Any], issuer: str, resource: str, scopes: tuple[str, ...]) -> ServerMetadata:
        if document.get("issuer") != issuer:
            raise FetchError(f"the metadata of {issuer} names another issuer (RFC 8414 section 3.3)")
        others = {
            field: self._endpoint(document[name], name)
            for field, name in (("registration", "registration_endpoint"), ("revocation", "revocation_endpoint"))
            if document.get(name) is not None
        }
        authorization = document.get("authorization_endpoint") or ""
        if authorization:
            try:
                parse_url(authorization)
            except ValueError as error:
                raise FetchError(f"authorization_endpoint of {issuer}: {error}") from None
        if "offline_access" in _texts(document.get("scopes_supported")) and scopes:
            scopes = tuple(dict.fromkeys((*scopes, "offline_access")))
        return ServerMetadata(
            issuer,
            resource,
            scopes,
            _texts(document.get("token_endpoint_auth_methods_supported")),
            self._endpoint(document.get("token_endpoint"), "token_endpoint"),
            authorization,
            has_s256="S256" in _texts(document.get("code_challenge_methods_supported")),
            sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
            **others,
        )

    def _endpoint(self, text: object, what: str) -> Endpoint:
        """Raises FetchError for what is no URL, and for one of a server that nobody has named."""
        try:
            url = parse_url(text)
        except ValueError as error:
            raise FetchError(f"{what} {_shown(text)}: {error}") from None
        if url.origin not in self._calls:
            raise FetchError(f"{what} leads to {url.origin}, which is none of authorizationServers")
        is_plain = url.scheme == "http"
        return Endpoint(
            checked_call(self._calls[url.origin], allow_plaintext=True), (url.path or "/") + url.query, is_plain
        )


def covers(resource: object, url: Url) -> bool:
    """Whether this resource of metadata is the server at `url`, or a parent of it by whole segments of the path."""
    try:
        named = parse_url(resource)
    except ValueError:
        return False
    parent = named.path.rstrip("/")
    return named.origin == url.origin and (not parent or f"{url.path.rstrip('/')}/".startswith(f"{parent}/"))


async def _document(call: FilterCall, path: str) -> dict[str, Any] | None:
    """The object at this path; None for a status 4xx, as of a server without it. Raises FetchError."""
    answer = await answer_of(call, b"GET", path, [(b"accept", b"application/json")])
    if 400 <= answer.status < 500:
        return None
    if answer.status != 200:
        raise FetchError(f"backend {call.backend} answered with {answer.status} for {path}")
    if len(answer.body) > MAX_METADATA:
        raise FetchError(f"the metadata of backend {call.backend} is longer than {MAX_METADATA} bytes")
    found = json_object(answer.body)
    if found is None:
        raise FetchError(f"the metadata of backend {call.backend} is no JSON object")
    return found


def _texts(value: object) -> tuple[str, ...]:
    """The plain texts of a list (RFC 6749 section 3.3: scope-token); () for what is none."""
    if not isinstance(value, list):
        return ()
    return tuple(each for each in value[:200] if isinstance(each, str) and each.isascii() and each.isprintable()
                 and " " not in each and len(each) <= 200)  # fmt: skip


def _shown(text: object) -> str:
    """A text of a stranger, as it may stand in a message."""
    return ascii(str(text)[:200])
