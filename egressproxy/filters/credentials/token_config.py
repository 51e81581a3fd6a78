"""Credentials that are fetched from token endpoints, as they are written in a manifest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from egressproxy.filters.settings import CalledBackendRef, DocumentRef, FilterConfig, SecretRef, Within
from egressproxy.ir.policy import FieldFault

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
    who it is: ClientSecretBasic, ClientSecretPost, PrivateKeyJwt (with `certificateThumbprint`, for servers that know
    the key by its certificate: SHA-256 in base64url), TokenFile (the token in `tokenFile` is the assertion,
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
    algorithm: Literal["RS256", "PS256", "ES256", "ES384", "EdDSA"] | None = None
    certificate_thumbprint: Annotated[str, Within(pattern=r"^([A-Za-z0-9_-]{43})?$")] = ""
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
        for name, is_needed, is_there in (
            ("clientId", method != "None", bool(self.client_id)),
            ("privateKeyRef", signs, self.private_key_ref is not None),
            ("assertionAudience", signs, bool(self.assertion_audience)),
            ("tokenFile", method == "TokenFile", bool(self.token_file)),
        ):
            if is_needed and not is_there:
                raise ValueError(f"grant {self.grant} with authentication {method} needs `{name}`: add it")
        if (self.client_secret_ref is not None) != (method in ("ClientSecretBasic", "ClientSecretPost")):
            raise ValueError("`clientSecretRef` belongs to authentication ClientSecretBasic or ClientSecretPost alone")
        if self.grant == "ClientCredentials" and method == "None":
            raise ValueError("client credentials need an authentication (RFC 6749 section 4.4)")


@dataclass(frozen=True, slots=True)
class Claim(FilterConfig):
    """A claim of a token: a `value` that is the same for all, or what is known of the `caller`."""

    name: Text
    value: Annotated[str, Within(max_length=8192)] | bool | int | tuple[Text, ...] | None = None
    caller: Literal["Name", "Namespace", "ServiceAccount", "Groups"] | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.caller is None):
            raise ValueError(f"claim {self.name} has either `value` or `caller`: write one of them")


@dataclass(frozen=True, slots=True)
class Jwt(FilterConfig):
    """A token that the gateway signs itself (RFC 7519): with `privateKeyRef` (RS256, PS256, ES256, ES384, EdDSA, as the
    key and `algorithm` say), or with `sharedSecretRef` (HS256).

    It is valid for `lifetimeSeconds`; `iat` is `backdateSeconds` ago, for servers whose clock is behind. `claims` come
    besides. With a claim of the caller each caller gets a token of its own.
    """

    private_key_ref: DocumentRef | None = None
    shared_secret_ref: SecretRef | None = None
    algorithm: Literal["RS256", "PS256", "ES256", "ES384", "EdDSA", "HS256"] | None = None
    key_id: OptionalText = ""
    issuer: OptionalText = ""
    subject: OptionalText = ""
    audience: tuple[Text, ...] = ()
    lifetime_seconds: Annotated[int, Within(ge=10, le=86400)] = 300
    backdate_seconds: Annotated[int, Within(ge=0, le=600)] = 0
    claims: Annotated[tuple[Claim, ...], Within(max_length=64)] = ()

    def __post_init__(self) -> None:
        if (self.private_key_ref is None) == (self.shared_secret_ref is None):
            raise ValueError("a token is signed with one of `privateKeyRef` and `sharedSecretRef`: write one of them")
        if self.algorithm is not None and (self.algorithm == "HS256") != (self.shared_secret_ref is not None):
            raise ValueError("HS256 needs `sharedSecretRef`, every other algorithm needs `privateKeyRef`")
        names = [each.name for each in self.claims]
        taken = {"iss", "aud", "exp", "nbf", "iat", "jti"} | ({"sub"} if self.subject else set())
        for index, each in enumerate(self.claims):
            if each.name in taken or each.name in names[:index] or (each.name == "sub" and not each.caller):
                raise FieldFault(
                    f"the claim {each.name} has a field of its own, or stands here twice: remove it", "claims", index
                )

    @property
    def is_of_caller(self) -> bool:
        return any(each.caller for each in self.claims)

    @property
    def key_field(self) -> str:
        return "privateKeyRef" if self.private_key_ref is not None else "sharedSecretRef"


_GithubName = Annotated[str, Within(max_length=100, pattern=r"^([A-Za-z0-9._-]*[A-Za-z0-9_-][A-Za-z0-9._-]*)?$")]


@dataclass(frozen=True, slots=True)
class GithubApp(FilterConfig):
    """An installation token of a GitHub App, which `clientId` or `appId` names and `privateKeyRef` signs for.

    The installation is `installationId`, or that of `owner` (a user or an organisation), or of its `repository`.
    `backendRef` is api.github.com; an Enterprise Server has the `apiPath` /api/v3. `repositories` and `permissions`
    make the token one for less than the installation may do.
    """

    backend_ref: CalledBackendRef
    private_key_ref: DocumentRef
    client_id: Annotated[str, Within(pattern=r"^[A-Za-z0-9._-]{0,128}$")] = ""
    app_id: Annotated[int, Within(ge=1)] | None = None
    installation_id: Annotated[int, Within(ge=1)] | None = None
    owner: _GithubName = ""
    repository: _GithubName = ""
    repositories: Annotated[tuple[_GithubName, ...], Within(max_length=500)] = ()
    permissions: dict[Annotated[str, Within(pattern=r"^[a-z_]{1,64}$")], Literal["read", "write", "admin"]] = field(
        default_factory=dict
    )
    api_path: Annotated[str, Within(pattern=r"^(/[A-Za-z0-9._~-]+)*$")] = ""
    allow_plaintext: bool = False

    def __post_init__(self) -> None:
        if bool(self.client_id) == (self.app_id is not None):
            raise ValueError("an app is named by one of `clientId` and `appId`: write one of them")
        if bool(self.owner) == (self.installation_id is not None):
            raise ValueError("the installation is `installationId`, or that of `owner`: write one of them")
        if self.repository and not self.owner:
            raise FieldFault("a repository has an owner: add `owner`", "repository")


_SEGMENT = "[A-Za-z0-9._@+=,:~-]*[A-Za-z0-9_@+=,:~-][A-Za-z0-9._@+=,:~-]*"  # no dot segment
_VaultPath = Annotated[str, Within(max_length=512, pattern=f"^{_SEGMENT}(/{_SEGMENT})*$")]


@dataclass(frozen=True, slots=True)
class VaultKubernetes(FilterConfig):
    """The token of a service account in `tokenFile`, for a `role` of the auth method at `mount`."""

    role: Text
    token_file: MachinePath = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105
    mount: _VaultPath = "kubernetes"


@dataclass(frozen=True, slots=True)
class VaultAppRole(FilterConfig):
    """A `roleId` and its secret id, for the auth method at `mount`."""

    role_id: Text
    secret_id_ref: SecretRef
    mount: _VaultPath = "approle"


@dataclass(frozen=True, slots=True)
class Vault(FilterConfig):
    """A secret of a HashiCorp Vault, or an OpenBao, which `backendRef` names: the entry `key` at `path` of the engine
    at `mount`.

    The gateway authenticates with one of `kubernetes`, `appRole`, `tokenFile` (a token that an agent renews) and
    `tokenRef`. A secret of KvV2 and KvV1 is read every `refreshSeconds`, and serves for `staleSeconds` while that
    fails. One of `engine: Dynamic` has a lease, which is renewed.
    """

    backend_ref: CalledBackendRef
    path: _VaultPath
    key: Text
    engine: Literal["KvV2", "KvV1", "Dynamic"] = "KvV2"
    mount: _VaultPath = "secret"
    namespace: Annotated[str, Within(max_length=512, pattern=f"^({_SEGMENT}(/{_SEGMENT})*/?)?$")] = ""
    kubernetes: VaultKubernetes | None = None
    app_role: VaultAppRole | None = None
    token_file: Annotated[str, Within(pattern=r"^(/[^\x00]*)?$")] = ""
    token_ref: SecretRef | None = None
    refresh_seconds: Annotated[int, Within(ge=1, le=86400)] = 300
    stale_seconds: Annotated[int, Within(ge=1, le=604800)] = 3600
    allow_plaintext: bool = False

    def __post_init__(self) -> None:
        if sum(map(bool, (self.kubernetes, self.app_role, self.token_file, self.token_ref))) != 1:
            raise ValueError("write one of `kubernetes`, `appRole`, `tokenFile` and `tokenRef`")


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
