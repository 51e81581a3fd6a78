"""The config of a McpAuthorization, as it is written in a manifest, and the URLs of OAuth."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Final, Literal, NamedTuple

from egressproxy.filters.credentials.token_config import OptionalText, Scope
from egressproxy.filters.settings import CalledBackendRef, Checked, DocumentRef, FilterConfig, SecretRef, Within
from egressproxy.ir.policy import FieldFault

#: The longest URL of OAuth, in characters.
MAX_URL: Final = 2048
_URL: Final = re.compile(
    r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?"
    r"((?:/[A-Za-z0-9._~!$&'()*+,;=:@/%-]*)?)((?:\?[A-Za-z0-9._~!$&'()*+,;=:@/?%-]*)?)"
)
_PORTS: Final = {"http": 80, "https": 443}


class Url(NamedTuple):
    """A URL without user and fragment. `origin` is in lower case, with the port; `path` may be ""."""

    scheme: str
    host: str
    port: int
    path: str
    query: str

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def with_well_known(self, name: str) -> str:
        """The path of this document about the URL (RFC 8414 section 3.1, RFC 9728 section 3.1)."""
        return f"/.well-known/{name}{self.path.rstrip('/')}{self.query}"


def is_loopback(host: str) -> bool:
    """Whether this name or address is this machine."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_url(text: object) -> Url:
    """Raises ValueError for what is no URL of https, or of http on a loopback address."""
    found = _URL.fullmatch(text) if isinstance(text, str) and len(text) <= MAX_URL else None
    if found is None:
        raise ValueError("it is not a URL as https://HOST[:PORT]/PATH, without user and fragment")
    scheme, host, port, path, query = found.groups()
    url = Url(scheme, host.lower(), int(port or _PORTS[scheme]), path, query)
    if scheme == "http" and not url.is_loopback:
        raise ValueError("http:// is for loopback addresses alone: write https://")
    return url


def _checked(text: str) -> str:
    try:
        url = parse_url(text)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    if url.query:
        raise ValueError(f"{text!r} has a query: remove it")
    return text


OAuthUrl = Annotated[str, Checked(_checked)]
OptionalUrl = Annotated[str, Checked(lambda text: _checked(text) if text else "")]


@dataclass(frozen=True, slots=True)
class AuthorizationServer(FilterConfig):
    """A server that may be asked. `url` is its issuer, or the origin of further endpoints of one; `backendRef` is the
    Backend that serves this URL, over verified TLS where it is https.
    """

    url: OAuthUrl
    backend_ref: CalledBackendRef


@dataclass(frozen=True, slots=True)
class McpAuthorizationConfig(FilterConfig):
    """How requests to an MCP server are authorized.

    ClientCredentials: with a token of the gateway's own, for all clients. AuthorizationCode: with a token of each
    client, which its user has allowed at `redirectUri`, a URL that leads to this Backend. PassThrough: with what the
    client gets itself; the server's metadata has the gateway's URLs then.

    `resource` is the URL of the server, as it names itself. `metadataRef` is the Backend with its metadata (RFC 9728),
    usually the one with this filter. The issuer is the first that this metadata names and `authorizationServers` has;
    without metadata, and with a `clientId`, the first of `authorizationServers`. No other server is ever asked.

    Without `clientId` the gateway registers itself (RFC 7591), anew for each client. Tokens are in files of
    `stateFolder`, which all workers share; with `encryptionKeyRef`, a text of 32 bytes or more, they are encrypted.
    """

    mode: Literal["ClientCredentials", "AuthorizationCode", "PassThrough"]
    resource: OAuthUrl
    metadata_ref: CalledBackendRef | None = None
    authorization_servers: Annotated[tuple[AuthorizationServer, ...], Within(max_length=16)] = ()
    client_id: OptionalText = ""
    client_secret_ref: SecretRef | None = None
    private_key_ref: DocumentRef | None = None
    key_id: OptionalText = ""
    scopes: tuple[Scope, ...] = ()
    redirect_uri: OptionalUrl = ""
    state_folder: Annotated[str, Within(pattern=r"^(/[^\x00]*)?$")] = ""
    encryption_key_ref: SecretRef | None = None
    public_url: OptionalUrl = ""
    allow_plaintext: bool = False

    def __post_init__(self) -> None:
        passes = self.mode == "PassThrough"
        by_code = self.mode == "AuthorizationCode"
        for name, is_set, is_needed, is_possible in (
            ("authorizationServers", bool(self.authorization_servers), not passes, not passes),
            ("clientId", bool(self.client_id), self.mode == "ClientCredentials", not passes),
            ("clientSecretRef", self.client_secret_ref is not None, False, not passes),
            ("privateKeyRef", self.private_key_ref is not None, False, not passes),
            ("scopes", bool(self.scopes), False, not passes),
            ("metadataRef", self.metadata_ref is not None, False, not passes),
            ("redirectUri", bool(self.redirect_uri), by_code, by_code),
            ("stateFolder", bool(self.state_folder), by_code, by_code),
            ("encryptionKeyRef", self.encryption_key_ref is not None, False, by_code),
            ("publicUrl", bool(self.public_url), False, passes),
        ):
            if is_needed and not is_set:
                raise ValueError(f"mode {self.mode} needs `{name}`: add it")
            if is_set and not is_possible:
                raise FieldFault(f"`{name}` has no effect in mode {self.mode}: remove it", name)
        if self.client_secret_ref is not None and self.private_key_ref is not None:
            raise FieldFault("`clientSecretRef` and `privateKeyRef` exclude each other: keep one", "privateKeyRef")
        has_secret = self.client_secret_ref is not None or self.private_key_ref is not None
        if self.mode == "ClientCredentials" and not has_secret:
            raise ValueError("mode ClientCredentials needs `clientSecretRef` or `privateKeyRef`: add one")
        if has_secret and not self.client_id:
            raise ValueError("`clientSecretRef` and `privateKeyRef` belong to a `clientId`: add it")
        if by_code and not parse_url(self.redirect_uri).path.strip("/"):
            raise FieldFault("`redirectUri` needs a path of its own, such as /oauth/callback", "redirectUri")
