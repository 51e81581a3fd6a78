"""Section `identity` of an EgressPolicy: who its clients are, and what says it."""

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
    """Who shows a certificate with this subject, or with this subject alternative name: one of the four."""

    subject: CertificateSubject | None = None
    """The whole subject, such as CN=robot,O=team, in any order."""
    dns_name: SingleHostname | None = None
    """A DNS name of the certificate."""
    uri: Annotated[str, Field(min_length=1, max_length=2048)] | None = None
    """A URI of the certificate."""
    email: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """A mail address of the certificate."""
    namespace: Label
    """The namespace that the client counts as."""
    service_account: Name
    """The service account that the client counts as."""

    def model_post_init(self, context: Any) -> None:
        if sum(each is not None for each in (self.subject, self.dns_name, self.uri, self.email)) != 1:
            raise RefusedValue("a certificate is known by one thing", "write one of subject, dnsName, uri and email")


class CertificateIdentity(Model):
    """Client certificates; namespace and service account come from the SPIFFE id, or from `clients`."""

    ca_certificate_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """CAs (key ca.crt) that sign the certificates which say who a client is. Where spec.tls.frontend of the Gateway
    asks for certificates, others that it takes say nothing. Where it does not, clients may show one of these, or none.
    """
    crl_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """ConfigMaps (key crl.pem) with lists of revoked client certificates."""
    trust_domains: Annotated[tuple[TrustDomain, ...], Field(max_length=16)] = ()
    """SPIFFE trust domains that are believed, such as cluster.local: spiffe://cluster.local/ns/NAMESPACE/sa/ACCOUNT is
    that service account. The first is the gateway's own; a namespace of another counts as NAMESPACE@DOMAIN. Default:
    none, and clients are not told apart by their certificates.
    """
    clients: Annotated[tuple[CertificateClient, ...], Field(max_length=1024)] = ()
    """Who shows which certificates without such an id."""


ClaimName = Annotated[str, Field(min_length=1, max_length=253)]


class ClaimMappings(Model):
    """Which claims of a token say what."""

    namespace: ClaimName | None = None
    """The claim that says the namespace. Left out: tokens of this issuer say none."""
    service_account: ClaimName | None = None
    """The claim that says the service account. Left out: tokens of this issuer say none."""
    groups: ClaimName = "groups"
    """The claim that lists the groups of the client."""

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
    """Who signs tokens (JWT), and with which keys."""

    issuer: Annotated[str, Field(min_length=1, max_length=253)]
    """The `iss` that a token has to have."""
    audiences: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253)], ...], Field(min_length=1, max_length=16)
    ]
    """Of which the token's `aud` has to name one. A token for somebody else is no credential here."""
    jwks_ref: ObjectReference | None = None
    """The ConfigMap or Secret (key jwks.json) with the keys that tokens are signed with."""
    jwks_uri: Annotated[KeyUri | None, Field(alias="jwksURI")] = None
    """The URL (https) that these keys are fetched from, instead. Its address has to be one that may be dialled."""
    ca_certificate_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """CAs (key ca.crt) of which one has signed the certificate of that URL. Default: those of the system."""
    service_accounts: Bool = False
    """The tokens are those of Kubernetes service accounts: their subject says namespace and service account."""
    claim_mappings: ClaimMappings = ClaimMappings.model_construct()
    """Which claims say what, for issuers other than Kubernetes."""
    trust_domain: TrustDomain | None = None
    """The trust domain of the namespaces in these tokens. One that is not the gateway's own (the first of
    certificate.trustDomains, else that of the first issuer) counts as NAMESPACE@DOMAIN. Default: the gateway's own.
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


#: Fields that are read before any other, or that tokens cannot be in.
_TAKEN_FIELDS: Final = frozenset((
    "proxy-authorization", "host", "connection", "content-length", "transfer-encoding", "content-type", "te", "upgrade",
    "expect", "via", "trailer", "keep-alive", "proxy-connection", "cookie", "x-egress-identity",
    "x-forwarded-client-cert",
))  # fmt: skip


class TokenIdentity(Model):
    """A bearer token (JWT). Clients that know passwords alone send it as one: https_proxy=http://any:TOKEN@gateway."""

    issuers: Annotated[tuple[TokenIssuer, ...], Field(min_length=1, max_length=16)]
    """Those whose tokens are believed."""
    header: HeaderName | None = None
    """The field that carries the token. Default: Proxy-Authorization on a forward proxy, Authorization elsewhere."""
    forward_claims: Annotated[tuple[ClaimName, ...], Field(max_length=16)] = ()
    """Claims that a parent with identityKeyRef is told of the client, for the subjects of its policies; also those that
    policies here ask for. It is always told the groups.
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
        told = [each for each in issuers if each.says_namespaces]
        untold = [each.issuer for each in told if each.trust_domain is None]
        if len(told) > 1 and untold:
            raise RefusedValue(
                f"{len(told)} issuers say namespaces: workloads of the same name would count as one",
                f"write trustDomain at {', '.join(untold)}, the same one where they are of one cluster",
            )
        return issuers


class BasicIdentity(Model):
    """User name and password. One whose name is namespace.serviceAccount counts as that service account."""

    secret_ref: SecretObjectReference
    """The Secret with the users: an entry for each, whose value is a hash of the password (Argon2 or bcrypt), or an
    entry .htpasswd with a line for each.
    """


class AddressIdentityEntry(Model):
    cidrs: Annotated[tuple[Cidr, ...], Field(min_length=1)]
    """Networks of these clients."""
    namespace: Label
    """The namespace that they count as."""
    service_account: Name
    """The service account that they count as."""


class AddressIdentity(Model):
    """The source address, looked up among Pods or in `clients`."""

    pods: Bool = True
    """Look the source address up among the Pods."""
    clients: tuple[AddressIdentityEntry, ...] = ()
    """Networks and who is in them."""


class ProxyProtocolIdentity(Model):
    """Load balancers that say whose a connection is, in the PROXY protocol, version 1 or 2."""

    from_: Annotated[tuple[Cidr, ...], Field(alias="from", min_length=1, max_length=64)]
    """Networks of these load balancers. A connection from there without a header is closed, and a header of anybody
    else is not read.
    """


class GatewayIdentity(Model):
    """Other gateways of ours, which say in X-Egress-Identity who their clients are. In a policy of a Gateway."""

    key_refs: Annotated[tuple[SecretObjectReference, ...], Field(min_length=1, max_length=8)]
    """Secrets (entry `key`, 32 bytes or more) that those gateways name in parent.identityKeyRef. Several: while one is
    replaced.
    """
    trust_domain: TrustDomain | None = None
    """The trust domain of the namespaces that they tell. Default: the gateway's own."""


class Identity(Model):
    """Who clients are. What a request shows (a token, a password, the signature of another gateway) goes before what
    its connection shows (a certificate, an address). A credential that is shown and wrong is always refused.
    """

    required: Bool | None = None
    """Refuse clients that are not known: 407 on a forward proxy, 401 elsewhere, 403 without token and basic. Default:
    true with token or basic.
    """
    certificate: CertificateIdentity | None = None
    """By client certificate."""
    token: TokenIdentity | None = None
    """By bearer token (JWT)."""
    basic: BasicIdentity | None = None
    """By user and password."""
    address: AddressIdentity | None = None
    """By source address."""
    proxy_protocol: ProxyProtocolIdentity | None = None
    """Senders whose PROXY header says the source address. All listeners of a port have to name them."""
    gateways: GatewayIdentity | None = None
    """By the signature of another gateway, which knows the client."""
