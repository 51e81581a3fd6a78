"""Credentials that are fetched from token endpoints, as they are written in a manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from egressproxy.filters.settings import CalledBackendRef, DocumentRef, FilterConfig, SecretRef, Within

Text = Annotated[str, Within(min_length=1, max_length=2048, pattern=r"^[^\x00-\x1f\x7f]*$")]
OptionalText = Annotated[str, Within(max_length=2048, pattern=r"^[^\x00-\x1f\x7f]*$")]
#: A path of this machine, where a platform keeps a token fresh.
MachinePath = Annotated[str, Within(pattern=r"^/[^\x00]*$")]
TargetPath = Annotated[str, Within(pattern=r"^/[A-Za-z0-9._~!$&'()*+,;=:@/%-]*$")]
Scope = Annotated[str, Within(pattern=r"^[\x21\x23-\x5b\x5d-\x7e]+$")]  # RFC 6749 section 3.3


@dataclass(frozen=True, slots=True)
class TokenEndpoint(FilterConfig):
    """Where tokens come from: a Backend or Service, which needs verified TLS unless `allowPlaintext`, and a path."""

    backend_ref: CalledBackendRef
    path: TargetPath = "/token"
    allow_plaintext: bool = False


@dataclass(frozen=True, slots=True)
class OAuth2(FilterConfig):
    """An access token of OAuth 2.0.

    `grant` is ClientCredentials (RFC 6749 section 4.4) or JwtBearer (RFC 7523 section 2.1), an assertion that
    `privateKeyRef` signs with `issuer`, `subject` and `assertionAudience`. `authentication` says how the client shows
    who it is: ClientSecretBasic, ClientSecretPost, PrivateKeyJwt, TokenFile (the token in `tokenFile` is the assertion,
    as for Azure workload identity), or None. `assumedLifeSeconds`: how long a token is used whose answer has no
    `expires_in`.
    """

    token_endpoint: TokenEndpoint
    grant: Literal["ClientCredentials", "JwtBearer"] = "ClientCredentials"
    authentication: Literal["ClientSecretBasic", "ClientSecretPost", "PrivateKeyJwt", "TokenFile", "None"] | None = None
    client_id: OptionalText = ""
    client_secret_ref: SecretRef | None = None
    private_key_ref: DocumentRef | None = None
    key_id: OptionalText = ""
    token_file: Annotated[str, Within(pattern=r"^(/[^\x00]*)?$")] = ""
    issuer: OptionalText = ""
    subject: OptionalText = ""
    assertion_audience: OptionalText = ""
    scopes: tuple[Scope, ...] = ()
    audience: OptionalText = ""
    resource: tuple[Text, ...] = ()
    assumed_life_seconds: Annotated[int, Within(ge=1, le=86400)] = 3600

    def __post_init__(self) -> None:
        if self.authentication is None:
            usual: Literal["ClientSecretBasic", "None"] = "None" if self.grant == "JwtBearer" else "ClientSecretBasic"
            object.__setattr__(self, "authentication", usual)
        method = self.authentication
        signs = self.grant == "JwtBearer" or method == "PrivateKeyJwt"
        for field, is_needed, is_there in (
            ("clientId", method != "None", bool(self.client_id)),
            ("privateKeyRef", signs, self.private_key_ref is not None),
            ("assertionAudience", signs, bool(self.assertion_audience)),
            ("tokenFile", method == "TokenFile", bool(self.token_file)),
        ):
            if is_needed and not is_there:
                raise ValueError(f"grant {self.grant} with authentication {method} needs `{field}`: add it")
        if (self.client_secret_ref is not None) != (method in ("ClientSecretBasic", "ClientSecretPost")):
            raise ValueError("`clientSecretRef` belongs to authentication ClientSecretBasic or ClientSecretPost alone")
        if self.grant == "ClientCredentials" and method == "None":
            raise ValueError("client credentials need an authentication (RFC 6749 section 4.4)")


@dataclass(frozen=True, slots=True)
class GoogleServiceAccount(FilterConfig):
    """The JSON key file of a service account, in the Secret of `keyRef`; `tokenEndpoint` is oauth2.googleapis.com."""

    key_ref: DocumentRef
    token_endpoint: TokenEndpoint
    scopes: tuple[Scope, ...] = ("https://www.googleapis.com/auth/cloud-platform",)


@dataclass(frozen=True, slots=True)
class Impersonation(FilterConfig):
    """A service account to act as: `endpoint` is iamcredentials.googleapis.com, whose path follows from `email`."""

    email: Annotated[str, Within(pattern=r"^[A-Za-z0-9._@-]+$")]
    endpoint: CalledBackendRef


@dataclass(frozen=True, slots=True)
class GoogleWorkloadIdentity(FilterConfig):
    """Workload identity federation (RFC 8693): the token in `tokenFile` is exchanged at `tokenEndpoint`, which is
    sts.googleapis.com (path /v1/token). `audience` is the provider's resource name.
    """

    token_file: MachinePath
    audience: Text
    token_endpoint: TokenEndpoint
    scopes: tuple[Scope, ...] = ("https://www.googleapis.com/auth/cloud-platform",)
    impersonate: Impersonation | None = None


@dataclass(frozen=True, slots=True)
class GoogleMetadata(FilterConfig):
    """The metadata server, which `backendRef` names, and which a policy has to allow (`addresses.allow`)."""

    backend_ref: CalledBackendRef
    service_account: Annotated[str, Within(pattern=r"^[A-Za-z0-9._@-]+$")] = "default"


@dataclass(frozen=True, slots=True)
class Gcp(FilterConfig):
    """An access token of Google Cloud, from one of these."""

    service_account: GoogleServiceAccount | None = None
    workload_identity: GoogleWorkloadIdentity | None = None
    metadata: GoogleMetadata | None = None

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.service_account, self.workload_identity, self.metadata)) != 1:
            raise ValueError("write one of `serviceAccount`, `workloadIdentity` and `metadata`")
