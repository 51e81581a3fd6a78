"""EgressPolicy (`egressproxy.io/v1alpha1`)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from egressproxy.config.resources.extension import Extension
from egressproxy.config.resources.hostnames import DestinationHostname, SingleHostname
from egressproxy.config.resources.limits import Limits
from egressproxy.config.resources.meta import OUR_GROUP, Model, Resource
from egressproxy.config.resources.object_references import ObjectReference, PolicyTargetReference, SecretObjectReference
from egressproxy.config.resources.parent import BackendParent
from egressproxy.config.resources.traffic import Traffic
from egressproxy.config.resources.values import (
    Address,
    Bool,
    Cidr,
    Duration,
    HeaderName,
    Label,
    Name,
    Pin,
    Port,
    RefusedValue,
    ServerAddress,
    TrustDomain,
    check_unique,
)
from egressproxy.ir.policy import Family, Mode, SniCheck

__all__ = ["AddressEntry", "Addresses", "DestinationEntry", "Dns", "EgressPolicy", "EgressPolicySpec"]

# --- destinations and addresses --------------------------------------------------------------------------------------


class DestinationEntry(Model):
    """Hosts by name or by network: an allowed one is for clients that name an address, a denied one for every address.

    `ports` empty: every port.
    """

    hostnames: tuple[DestinationHostname, ...] = ()
    """Names, exact or as *.suffix (any name below the suffix, and not the suffix itself)."""
    ports: tuple[Port, ...] = ()
    """Ports that the entry is for. Left out: every port."""
    cidrs: tuple[Cidr, ...] = ()
    """Networks. In `allow`: for clients that name an address. In `deny`: for every address that is dialled."""
    sni: SniCheck = SniCheck.MATCH
    """Match: the server name in a tunnel's ClientHello has to be the host that was asked for. Any: it may be another
    one. For entries of `allow`.
    """

    def model_post_init(self, context: Any) -> None:
        """The entry names a host."""
        if not self.hostnames and not self.cidrs:
            raise RefusedValue("the entry names no destination", "add hostnames or cidrs")


def _not_null(value: object) -> object:
    if value is None:
        raise RefusedValue("nothing is written here", "write [] for an empty list, or remove the field")
    return value


class Destinations(Model):
    """Deny beats allow. `allow` None: this policy does not say; `allow: []` allows nothing."""

    allow: tuple[DestinationEntry, ...] | None = None
    """Destinations that clients may name. An empty list allows nothing; left out, this policy does not say."""
    deny: tuple[DestinationEntry, ...] = ()
    """Destinations that are refused, by whatever spelling and at whatever level. Deny beats allow."""

    _null = field_validator("allow", "deny", mode="before")(_not_null)


class AddressEntry(Model):
    """Addresses that may be dialled beside public ones: for these names, or for every name."""

    cidrs: tuple[Cidr, ...] = ()
    """Networks that may be dialled though they are not public."""
    hostnames: tuple[DestinationHostname, ...] = ()
    """The names that may lead there. Left out: every name."""

    def model_post_init(self, context: Any) -> None:
        """The entry names an address, a host, or both."""
        if not self.cidrs and not self.hostnames:
            raise RefusedValue("the entry names no address", "add cidrs, hostnames, or both")


class AddressRanges(Model):
    """Addresses, whatever name leads to them."""

    cidrs: Annotated[tuple[Cidr, ...], Field(min_length=1)]
    """Networks."""


class Addresses(Model):
    """`allow` opens what is not public, `deny` closes what is, `only` closes all that is not in it.

    `only` None: this policy does not say; `only: []` closes everything.
    """

    allow: tuple[AddressEntry, ...] = ()
    """Addresses that may be dialled beside the public ones."""
    deny: tuple[AddressRanges, ...] = ()
    """Addresses that are never dialled, public or not."""
    only: tuple[AddressRanges, ...] | None = None
    """Addresses beside which nothing is dialled that a name or a client leads to. An empty list closes everything."""

    _null = field_validator("allow", "deny", "only", mode="before")(_not_null)


class Dns(Model):
    """How names are resolved. `servers` empty: those of the system."""

    servers: Annotated[tuple[ServerAddress, ...], Field(max_length=8)] = ()
    """Name servers: ip[:port], tls://ip[#name] or https://…. Default: those of the system."""
    transport: Literal["udp", "tcp", "tls", "https"] = "udp"
    """How servers without a scheme are asked. udp goes over to TCP after a truncated answer."""
    timeout: Duration | None = None
    """How long one lookup may take."""
    hosts: dict[SingleHostname, tuple[Address, ...]] = Field(default_factory=dict)
    """Addresses of names that no server is asked for."""
    min_ttl: Annotated[Duration | None, Field(alias="minTTL")] = None
    """Answers live at least as long."""
    max_ttl: Annotated[Duration | None, Field(alias="maxTTL")] = None
    """Answers live at most as long."""
    stale_ttl: Annotated[Duration | None, Field(alias="staleTTL")] = None
    """How long an expired answer serves on while the servers do not answer."""
    family: Family = Family.ANY
    """Any: both families. IPv4, IPv6: this one alone."""
    reverse_check: Literal["Off", "Report", "Enforce"] = "Off"
    """Compare the name of each address (PTR) with the one that was asked for."""

    def model_post_init(self, context: Any) -> None:
        """`minTTL` is not above `maxTTL`."""
        if self.min_ttl is not None and self.max_ttl is not None and self.min_ttl.seconds > self.max_ttl.seconds:
            raise RefusedValue(f"minTTL {self.min_ttl} is above maxTTL {self.max_ttl}", "make minTTL at most maxTTL")


# --- TLS and identity ------------------------------------------------------------------------------------------------


class PolicyTls(Model):
    """The floor for TLS to backends."""

    min_version: Literal["1.2", "1.3"] | None = None
    """The oldest TLS version that is spoken to backends."""
    pins: Annotated[tuple[Pin, ...], Field(max_length=16)] = ()
    """Public keys of which every server's chain has to have one."""
    crl_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """ConfigMaps (key crl.pem) with lists of revoked certificates."""
    ca_bundle_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """ConfigMaps or Secrets (key ca.crt) with the CAs that alone may have signed servers' certificates."""


class Intercept(Model):
    """Names whose TLS is terminated with a certificate signed by this CA; the rest stays opaque."""

    hostnames: Annotated[tuple[DestinationHostname, ...], Field(min_length=1)]
    """Names whose tunnels are opened."""
    ca_certificate_ref: SecretObjectReference
    """The Secret (tls.crt, tls.key) with the CA that signs the certificates shown to clients."""


class CertificateIdentity(Model):
    """Client certificates; namespace and service account come from the SPIFFE id."""

    ca_certificate_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """CAs that sign the certificates of clients."""
    crl_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """ConfigMaps (key crl.pem) with lists of revoked client certificates."""
    trust_domains: Annotated[tuple[TrustDomain, ...], Field(max_length=16)] = ()
    """SPIFFE trust domains that are believed, such as cluster.local: spiffe://cluster.local/ns/NAMESPACE/sa/ACCOUNT is
    that service account. Default: none, and clients are not told apart by their certificates.
    """


class TokenIdentity(Model):
    """A bearer token (JWT), checked against the keys in `jwksRef` (key `jwks.json`)."""

    issuer: Annotated[str, Field(min_length=1, max_length=253)]
    """The `iss` that a token has to have."""
    audiences: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=16)] = ()
    """Of which the token's `aud` has to name one."""
    jwks_ref: ObjectReference
    """The ConfigMap or Secret (key jwks.json) with the keys that tokens are signed with."""
    header: HeaderName = "Proxy-Authorization"
    """The field that carries the token."""


class BasicIdentity(Model):
    """User and password; the Secret maps `namespace.serviceAccount` to a password."""

    secret_ref: SecretObjectReference
    """The Secret that maps namespace.serviceAccount to a password."""


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


class GatewayIdentity(Model):
    """Other gateways of ours, which say in X-Egress-Identity who their clients are. In a policy of a Gateway."""

    key_refs: Annotated[tuple[SecretObjectReference, ...], Field(min_length=1, max_length=8)]
    """Secrets (entry `key`, 32 bytes or more) that those gateways name in parent.identityKeyRef. Several: while one is
    replaced.
    """


class Identity(Model):
    """Where a client's namespace and service account come from; the first that knows the client decides."""

    certificate: CertificateIdentity | None = None
    """By client certificate."""
    token: TokenIdentity | None = None
    """By bearer token (JWT)."""
    basic: BasicIdentity | None = None
    """By user and password."""
    address: AddressIdentity | None = None
    """By source address."""
    gateways: GatewayIdentity | None = None
    """By the signature of another gateway, which knows the client."""


# --- the policy ------------------------------------------------------------------------------------------------------


class Regions(Model):
    """Only backends of these regions."""

    allowed: tuple[Annotated[str, Field(min_length=1, max_length=63)], ...]
    """Regions, as Backends write them in `region`. A backend without one is not used."""


class Subject(Model):
    """Clients that the policy is for; `serviceAccount` None: all of the namespace."""

    namespace: Label
    """The clients of this namespace."""
    service_account: Name | None = None
    """Of these, the ones with this service account. Left out: all."""


class EgressPolicySpec(Model):
    """Every section is optional: a policy says something about what stands in it, and nothing about the rest."""

    target_refs: Annotated[tuple[PolicyTargetReference, ...], Field(max_length=64)]
    """What the policy is for: Gateways, listeners, routes or Backends of its own namespace. `[]`: only rules of routes
    whose ExtensionRef filter names it.
    """
    subjects: Annotated[tuple[Subject, ...], Field(max_length=256)] = ()
    """The clients that the policy is for. Left out: all."""
    mode: Mode | None = None
    """Enforce (the default), Report (let pass what `destinations` would refuse, count it and log it), or Open (allow
    what no `deny` names).
    """
    destinations: Destinations | None = None
    """Which destinations clients may name, and which are closed to all."""
    addresses: Addresses | None = None
    """Which resolved addresses may be dialled. By default public ones alone."""
    dns: Dns | None = None
    """How names are resolved."""
    parent: BackendParent | None = None
    """The proxy through which allowed destinations, and Dynamic and Fqdn backends that name no parent, are reached."""
    tls: PolicyTls | None = None
    """What TLS to backends has to be at least."""
    intercept: Intercept | None = None
    """Tunnels that are opened, to see what they carry."""
    identity: Identity | None = None
    """Where the namespace and service account of a client come from."""
    limits: Limits | None = None
    """How much may pass."""
    traffic: Traffic | None = None
    """Times, retries, and how connections to backends are used."""
    regions: Regions | None = None
    """In which regions backends may stand."""
    extensions: Annotated[tuple[Extension, ...], Field(max_length=256)] = ()
    """Filters that run for what the policy is for."""

    _null = field_validator("destinations", "addresses", "subjects", "regions", "parent", mode="before")(_not_null)

    @field_validator("extensions")
    @classmethod
    def _names_are_unique(cls, extensions: tuple[Extension, ...]) -> tuple[Extension, ...]:
        check_unique((extension.name for extension in extensions), "name", "extensions")
        return extensions


class EgressPolicy(Resource, group=OUR_GROUP, kind="EgressPolicy", versions=("v1alpha1",)):
    """What may leave, and how: for Gateways, listeners, routes or Backends.

    A null is refused where it would lift a restriction: `deny:` with nothing below it is an accident.
    """

    NULLS_ARE_ABSENT: ClassVar[bool] = False

    spec: EgressPolicySpec
