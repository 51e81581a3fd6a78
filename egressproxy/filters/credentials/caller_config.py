"""Credentials that depend on the caller, as they are written in a manifest: by who it is, or by exchange of its token.

Sources: RFC 8693 (token exchange), RFC 7523 section 2.1 (JWT bearer grant), draft-ietf-oauth-identity-assertion-authz-
grant (ID-JAG), MCP Enterprise-Managed Authorization.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from egressproxy.filters.credentials.token_config import OptionalText, Scope, Text, TokenEndpoint
from egressproxy.filters.settings import DocumentRef, FilterConfig, SecretRef, Within
from egressproxy.model.caller_identity import CallerIdentity, namespace_in

_Label = Annotated[str, Within(pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$")]
_Account = Annotated[str, Within(pattern=r"^([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?)?$")]
_TrustDomain = Annotated[str, Within(pattern=r"^([a-z0-9._-]{1,255})?$")]
_Group = Annotated[str, Within(max_length=253)]
_CallerName = Annotated[str, Within(max_length=2048)]


@dataclass(frozen=True, slots=True)
class CallerSubject(FilterConfig):
    """Callers of this namespace, service account and group, with this name; what is not written matches all.

    `name` is the caller's name in the access log, such as `egress/keys#ci` for an API key or a user, and
    `ISSUER#SUBJECT` for a token. `trustDomain` is the one of the namespace, where that is not the gateway's own.
    """

    namespace: _Label = ""
    trust_domain: _TrustDomain = ""
    service_account: _Account = ""
    group: _Group = ""
    name: _CallerName = ""

    def __post_init__(self) -> None:
        if not (self.namespace or self.group or self.name):
            raise ValueError("a subject names no client: write `namespace`, `group` or `name`")
        if (self.service_account or self.trust_domain) and not self.namespace:
            raise ValueError("`serviceAccount` and `trustDomain` need their `namespace`: add it")

    def matches(self, identity: CallerIdentity) -> bool:
        """Whether this (known) caller is meant."""
        return (
            (not self.namespace or identity.namespace == namespace_in(self.trust_domain, self.namespace, ""))
            and (not self.service_account or identity.service_account == self.service_account)
            and (not self.group or self.group in identity.groups)
            and (not self.name or identity.name == self.name)
        )


@dataclass(frozen=True, slots=True)
class CallerCredential(FilterConfig):
    """The credential of callers that one of `subjects` matches."""

    subjects: Annotated[tuple[CallerSubject, ...], Within(min_length=1, max_length=256)]
    secret_ref: SecretRef


@dataclass(frozen=True, slots=True)
class EndpointClient(FilterConfig):
    """A token endpoint, which needs verified TLS, and how the gateway shows it who it is.

    `authentication` is ClientSecretBasic, ClientSecretPost, PrivateKeyJwt, TokenFile (the token in `tokenFile` is the
    assertion), or None; by default ClientSecretBasic with a `clientSecretRef`, else None. `assertionAudience` is `aud`
    of the assertion that `privateKeyRef` signs.
    """

    token_endpoint: TokenEndpoint
    authentication: Literal["ClientSecretBasic", "ClientSecretPost", "PrivateKeyJwt", "TokenFile", "None"] | None = None
    client_id: OptionalText = ""
    client_secret_ref: SecretRef | None = None
    private_key_ref: DocumentRef | None = None
    key_id: OptionalText = ""
    token_file: Annotated[str, Within(pattern=r"^(/[^\x00]*)?$")] = ""
    assertion_audience: OptionalText = ""

    def __post_init__(self) -> None:
        if self.token_endpoint.allow_plaintext:
            # By DNS settings of theirs, owners of routes could else have the tokens sent to a server of their own.
            raise ValueError("tokens of callers go over verified TLS alone: remove `allowPlaintext`, add `tls` there")
        if self.authentication is None:
            usual: Literal["ClientSecretBasic", "None"] = "ClientSecretBasic" if self.client_secret_ref else "None"
            object.__setattr__(self, "authentication", usual)
        method = self.authentication
        for name, methods, is_there in (
            ("clientSecretRef", ("ClientSecretBasic", "ClientSecretPost"), self.client_secret_ref is not None),
            ("privateKeyRef", ("PrivateKeyJwt",), self.private_key_ref is not None),
            ("assertionAudience", ("PrivateKeyJwt",), bool(self.assertion_audience)),
            ("tokenFile", ("TokenFile",), bool(self.token_file)),
        ):
            if (method in methods) != is_there:
                raise ValueError(f"`{name}` belongs to authentication {' or '.join(methods)}, and this is {method}")
        if method != "None" and not self.client_id:
            raise ValueError(f"authentication {method} needs `clientId`: add it")


@dataclass(frozen=True, slots=True)
class JwtBearer(EndpointClient):
    """The JWT bearer grant (RFC 7523 section 2.1), whose assertion is the exchanged token."""

    scopes: tuple[Scope, ...] = ()
    resource: tuple[Text, ...] = ()


@dataclass(frozen=True, slots=True)
class ActorToken(FilterConfig):
    """The token of the gateway itself, as the one who acts (RFC 8693 section 1.1): from a file or a Secret."""

    token_file: Annotated[str, Within(pattern=r"^(/[^\x00]*)?$")] = ""
    secret_ref: SecretRef | None = None
    token_type: Literal["AccessToken", "Jwt", "IdToken"] = "Jwt"  # noqa: S105

    def __post_init__(self) -> None:
        if bool(self.token_file) == (self.secret_ref is not None):
            raise ValueError("write one of `tokenFile` and `secretRef`")


@dataclass(frozen=True, slots=True)
class TokenExchange(EndpointClient):
    """The caller's own token, exchanged for one for the backend (RFC 8693).

    At least one of `audience`, `resource` and `scopes` says what the token is for. `requestedTokenType` is AccessToken,
    Jwt, IdToken or IdJag; by default the server decides. With `jwtBearer` what is issued is the assertion of a
    second request: by default an ID-JAG for an ID token. `assumedLifeSeconds`: how long a token is used whose answer
    has no `expires_in`. `maxCallers` is how many callers' tokens are kept.
    """

    subject_token_type: Literal["AccessToken", "Jwt", "IdToken"] | None = None
    requested_token_type: Literal["AccessToken", "Jwt", "IdToken", "IdJag"] | None = None
    audience: tuple[Text, ...] = ()
    resource: tuple[Text, ...] = ()
    scopes: tuple[Scope, ...] = ()
    actor_token: ActorToken | None = None
    jwt_bearer: JwtBearer | None = None
    assumed_life_seconds: Annotated[int, Within(ge=1, le=86400)] = 300
    max_callers: Annotated[int, Within(ge=1, le=1_000_000)] = 10_000

    def __post_init__(self) -> None:
        EndpointClient.__post_init__(self)  # a dataclass with slots is another class than `super` knows
        if not (self.audience or self.resource or self.scopes):
            raise ValueError("a token for anything is not asked for: write `audience`, `resource` or `scopes`")
        if self.jwt_bearer is None:
            if self.requested_token_type == "IdJag":  # noqa: S105
                raise ValueError("an ID-JAG is no token for a backend: add `jwtBearer`, where it is exchanged for one")
        else:
            if self.requested_token_type not in (None, "IdJag", "Jwt"):
                raise ValueError("`jwtBearer` needs a `requestedTokenType` of IdJag or Jwt")
            if self.requested_token_type is None:
                object.__setattr__(self, "requested_token_type", "IdJag")
        is_grant = self.requested_token_type == "IdJag"  # noqa: S105
        if is_grant and len(self.audience) != 1:
            raise ValueError("an ID-JAG is for one authorization server: write its issuer as the only `audience`")
        if is_grant and self.actor_token is not None:
            raise ValueError("an ID-JAG is issued without `actorToken`: remove it")
        if self.subject_token_type is None:
            object.__setattr__(self, "subject_token_type", "IdToken" if is_grant else "Jwt")
