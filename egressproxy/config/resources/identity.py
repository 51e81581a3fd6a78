"""Section `identity` of an EgressPolicy: the authentication of clients."""

from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, field_validator

from egressproxy.config.resources.hostnames import SingleHostname
from egressproxy.config.resources.meta import Model
from egressproxy.config.resources.object_references import ObjectReference, SecretObjectReference
from egressproxy.config.resources.values import (
    Bool,
    Cidr,
    HeaderName,
    Label,
    Name,
    RefusedValue,
    TrustDomain,
    check_unique,
)
from egressproxy.identity.peers import read_subject
from egressproxy.model.authority import read_key_uri


def _subject(text: str) -> str:
    try:
        read_subject(text)
    except ValueError as error:
        raise RefusedValue(str(error)) from None
    return text


CertificateSubject = Annotated[str, Field(max_length=1024), AfterValidator(_subject)]


class CertificateClient(Model):
    """The clients with a certificate of this subject or subject alternative name (one of the four)."""

    subject: CertificateSubject | None = None
    """The whole subject, such as CN=robot,O=team, in any order."""
    dns_name: SingleHostname | None = None
    """A DNS name of the certificate."""
    uri: Annotated[str, Field(min_length=1, max_length=2048)] | None = None
    """A URI of the certificate."""
    email: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """A mail address of the certificate."""
    namespace: Label
    """The namespace of the client."""
    service_account: Name
    """The service account of the client."""

    def model_post_init(self, context: Any) -> None:
        if sum(each is not None for each in (self.subject, self.dns_name, self.uri, self.email)) != 1:
            raise RefusedValue("a certificate is known by one thing", "write one of subject, dnsName, uri and email")


class CertificateIdentity(Model):
    """Client certificates; namespace and service account come from the SPIFFE id, or from `clients`."""

    ca_certificate_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """CAs (key ca.crt) whose certificates identify clients. If spec.tls.frontend of the Gateway requires certificates,
    those of other CAs do not identify a client. Otherwise client certificates are optional.
    """
    crl_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """ConfigMaps (key crl.pem) with lists of revoked client certificates."""
    trust_domains: Annotated[tuple[TrustDomain, ...], Field(max_length=16)] = ()
    """Accepted SPIFFE trust domains, such as cluster.local: spiffe://cluster.local/ns/NAMESPACE/sa/ACCOUNT is that
    service account. The first is the gateway's own; a namespace of another counts as NAMESPACE@DOMAIN. Default: none,
    and SPIFFE ids do not identify clients.
    """
    clients: Annotated[tuple[CertificateClient, ...], Field(max_length=1024)] = ()
    """The clients whose certificates have no SPIFFE id."""


ClaimName = Annotated[str, Field(min_length=1, max_length=253)]


class ClaimMappings(Model):
    """The claims of a token for namespace, service account and groups."""

    namespace: ClaimName | None = None
    """The claim with the namespace. Default: none."""
    service_account: ClaimName | None = None
    """The claim with the service account. Default: none."""
    groups: ClaimName = "groups"
    """The claim with the groups of the client."""

    def model_post_init(self, context: Any) -> None:
        if self.service_account is not None and self.namespace is None:
            raise RefusedValue(
                "serviceAccount without namespace: there are service accounts of this name in every namespace",
                "add namespace, the claim that says it",
            )


def _key_uri(text: str) -> str:
    try:
        read_key_uri(text)
    except ValueError as error:
        raise RefusedValue(str(error), "write it as https://login.example.com/keys") from None
    return text


KeyUri = Annotated[str, Field(max_length=2048), AfterValidator(_key_uri)]


class TokenIssuer(Model):
    """An issuer of tokens (JWT), and its keys."""

    issuer: Annotated[str, Field(min_length=1, max_length=253)]
    """The required `iss` of a token."""
    audiences: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253)], ...], Field(min_length=1, max_length=16)
    ]
    """The accepted audiences: `aud` of a token must have one of these."""
    jwks_ref: ObjectReference | None = None
    """The ConfigMap or Secret (key jwks.json) with the signing keys."""
    jwks_uri: Annotated[KeyUri | None, Field(alias="jwksURI")] = None
    """The URL (https) of the signing keys, instead. The policy must allow its address."""
    ca_certificate_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """The trusted CAs (key ca.crt) for that URL. Default: the system's CAs."""
    service_accounts: Bool = False
    """Whether the tokens are those of Kubernetes service accounts, whose subject has namespace and service account."""
    claim_mappings: ClaimMappings = ClaimMappings.model_construct()
    """The claims of issuers other than Kubernetes."""
    trust_domain: TrustDomain | None = None
    """The trust domain of the namespaces in these tokens. A namespace of another domain than the gateway's own (the
    first of certificate.trustDomains, else the first issuer's) counts as NAMESPACE@DOMAIN. Default: the gateway's own.
    """

    @property
    def says_namespaces(self) -> bool:
        return self.service_accounts or self.claim_mappings.namespace is not None

    def model_post_init(self, context: Any) -> None:
        if (self.jwks_ref is None) is (self.jwks_uri is None):
            raise RefusedValue("the keys of the issuer come from one place", "write one of jwksRef and jwksURI")
        if self.jwks_uri is None and self.ca_certificate_refs:
            raise RefusedValue("caCertificateRefs is for jwksURI", "remove caCertificateRefs")
        if self.service_accounts and (self.claim_mappings.namespace or self.claim_mappings.service_account):
            raise RefusedValue(
                "serviceAccounts takes namespace and service account from the subject",
                "remove serviceAccounts, or namespace and serviceAccount of claimMappings",
            )


#: Fields that are read earlier, or that cannot carry tokens.
_TAKEN_FIELDS: Final = frozenset((
    "proxy-authorization", "host", "connection", "content-length", "transfer-encoding", "content-type", "te", "upgrade",
    "expect", "via", "trailer", "keep-alive", "proxy-connection", "cookie", "x-egress-identity",
    "x-forwarded-client-cert",
))  # fmt: skip


_BackendName = Annotated[
    str, Field(max_length=317, pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/)?[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$")
]


class TokenIdentity(Model):
    """A bearer token (JWT). Clients without bearer support send it as password:
    https_proxy=http://any:TOKEN@gateway.
    """

    issuers: Annotated[tuple[TokenIssuer, ...], Field(min_length=1, max_length=16)]
    """The accepted issuers."""
    header: HeaderName | None = None
    """The field with the token. Default: Proxy-Authorization on a forward proxy, Authorization elsewhere."""
    forward_claims: Annotated[tuple[ClaimName, ...], Field(max_length=16)] = ()
    """Claims to forward to a parent with identityKeyRef, for the subjects of its policies, beside the claims in
    policies here. Groups are always forwarded.
    """
    exchange_at: Annotated[tuple[_BackendName, ...], Field(max_length=64)] = ()
    """The only backends that may be sent the tokens of clients, to exchange them for others
    (`tokenExchange` of a CredentialInjector): NAME in the policy's namespace, or NAMESPACE/NAME. Default: none.
    """

    @field_validator("header")
    @classmethod
    def _is_free(cls, header: str | None) -> str | None:
        if header is not None and header.lower() in _TAKEN_FIELDS:
            raise RefusedValue(f"{header} has a meaning of its own", "leave it out, or name another field")
        return header

    @field_validator("issuers")
    @classmethod
    def _issuers_are_unique(cls, issuers: tuple[TokenIssuer, ...]) -> tuple[TokenIssuer, ...]:
        check_unique((each.issuer for each in issuers), "issuer", "issuers")
        with_namespaces = [each for each in issuers if each.says_namespaces]
        untold = [each.issuer for each in with_namespaces if each.trust_domain is None]
        if len(with_namespaces) > 1 and untold:
            raise RefusedValue(
                f"{len(with_namespaces)} issuers say namespaces: workloads of the same name would count as one",
                f"write trustDomain at {', '.join(untold)}, the same one where they are of one cluster",
            )
        return issuers


class BasicIdentity(Model):
    """User name and password. A user named namespace.serviceAccount counts as that service account."""

    secret_ref: SecretObjectReference
    """The Secret with the users: an entry per user with the hash of the password (Argon2 or bcrypt), or an entry
    .htpasswd with a line per user.
    """


class ApiKeyIdentity(Model):
    """API keys, which clients send where they would send that of a provider, or as a token."""

    secret_refs: Annotated[tuple[SecretObjectReference, ...], Field(min_length=1, max_length=16)]
    """The Secrets with the keys: an entry per key, made by `egressproxy keys new`, with its hash, client and
    restrictions.
    """


class AddressIdentityEntry(Model):
    cidrs: Annotated[tuple[Cidr, ...], Field(min_length=1)]
    """Networks of these clients."""
    namespace: Label
    """The namespace of these clients."""
    service_account: Name
    """The service account of these clients."""


class AddressIdentity(Model):
    """The source address, looked up among Pods or in `clients`."""

    pods: Bool = True
    """Look the source address up among the Pods."""
    clients: tuple[AddressIdentityEntry, ...] = ()
    """Networks and their service accounts."""


class ProxyProtocolIdentity(Model):
    """Load balancers that send the client's address in the PROXY protocol, version 1 or 2."""

    from_: Annotated[tuple[Cidr, ...], Field(alias="from", min_length=1, max_length=64)]
    """Networks of these load balancers. A connection from there without a header is closed; headers from other networks
    are not read.
    """


class GatewayIdentity(Model):
    """Other egressproxy gateways, which forward client identities in X-Egress-Identity. In a policy of a Gateway."""

    key_refs: Annotated[tuple[SecretObjectReference, ...], Field(min_length=1, max_length=8)]
    """Secrets (entry `key`, 32 bytes or more) that those gateways name in parent.identityKeyRef. Use several during a
    rotation.
    """
    trust_domain: TrustDomain | None = None
    """The trust domain of forwarded namespaces. Default: the gateway's own."""


class Identity(Model):
    """The authentication of clients. Credentials of a request (token, password, API key, another gateway's signature)
    take precedence over those of its connection (certificate, address). A wrong credential is always refused.
    """

    required: Bool | None = None
    """Whether to refuse unknown clients: 407 on a forward proxy, 401 elsewhere, 403 without token, basic and apiKeys.
    Default: true with token, basic or apiKeys.
    """
    certificate: CertificateIdentity | None = None
    """By client certificate."""
    token: TokenIdentity | None = None
    """By bearer token (JWT)."""
    basic: BasicIdentity | None = None
    """By user and password."""
    api_keys: ApiKeyIdentity | None = None
    """By API key."""
    address: AddressIdentity | None = None
    """By source address."""
    proxy_protocol: ProxyProtocolIdentity | None = None
    """Senders whose PROXY header has the source address. All listeners of a port must have the same."""
    gateways: GatewayIdentity | None = None
    """By the signature of another gateway."""
