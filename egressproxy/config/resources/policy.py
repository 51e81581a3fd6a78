"""EgressPolicy (`egressproxy.io/v1alpha1`)."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from egressproxy.config.resources.extension import Extension
from egressproxy.config.resources.hostnames import DestinationHostname, InterceptedHostname, SingleHostname
from egressproxy.config.resources.identity import Identity
from egressproxy.config.resources.limits import Limits
from egressproxy.config.resources.meta import OUR_GROUP, Model, Resource
from egressproxy.config.resources.object_references import ObjectReference, PolicyTargetReference, SecretObjectReference
from egressproxy.config.resources.parent import BackendParent
from egressproxy.config.resources.source_address import SourceAddress
from egressproxy.config.resources.traffic import Traffic
from egressproxy.config.resources.values import (
    NOT_NULL,
    Address,
    Bool,
    Cidr,
    ClientText,
    Duration,
    Label,
    Name,
    Pin,
    Port,
    Positive,
    PositiveDuration,
    RefusedValue,
    ServerAddress,
    TrustDomain,
    check_unique,
)
from egressproxy.ir.name_server import NameAddresses, NameDenials
from egressproxy.ir.policy import Dnssec, Family, Mode, ReverseCheck, SniCheck

# --- destinations and addresses --------------------------------------------------------------------------------------


class DestinationEntry(Model):
    """Hosts by name or by network. Networks in `allow` match addresses that clients name, in `deny` every address."""

    hostnames: tuple[DestinationHostname, ...] = ()
    """Names, exact or as *.suffix (any name below the suffix, and not the suffix itself)."""
    ports: tuple[Port, ...] = ()
    """Ports of the entry. Default: every port."""
    cidrs: tuple[Cidr, ...] = ()
    """Networks. In `allow`: for addresses that clients name. In `deny`: for every dialled address."""
    sni: SniCheck = SniCheck.MATCH
    """Match: the SNI in a tunnel must equal the requested host. Any: the SNI may differ or be missing. For entries of
    `allow`.
    """
    message: ClientText | None = None
    """The text for clients that the entry refuses, such as whom to ask. For entries of `deny`. Default: the policy's
    `message`.
    """

    def model_post_init(self, context: Any) -> None:
        if not self.hostnames and not self.cidrs:
            raise RefusedValue("the entry names no destination", "add hostnames or cidrs")


class Destinations(Model):
    """Allowed and denied destinations. Deny beats allow. `allow: []` allows nothing."""

    allow: Annotated[tuple[DestinationEntry, ...] | None, NOT_NULL] = None
    """Destinations that clients may name. An empty list allows nothing; absent, this policy does not decide."""
    deny: Annotated[tuple[DestinationEntry, ...], NOT_NULL] = ()
    """Destinations that are refused, in any spelling and at any level. Deny beats allow."""


class AddressEntry(Model):
    """Allowed addresses beside public ones: for these names, or for every name."""

    cidrs: tuple[Cidr, ...] = ()
    """Networks that may be dialled although not public."""
    hostnames: tuple[DestinationHostname, ...] = ()
    """The names that may resolve to these networks. Default: every name."""

    def model_post_init(self, context: Any) -> None:
        if not self.cidrs and not self.hostnames:
            raise RefusedValue("the entry names no address", "add cidrs, hostnames, or both")


class AddressRanges(Model):
    """Address ranges, for all names."""

    cidrs: Annotated[tuple[Cidr, ...], Field(min_length=1)]
    """Networks."""


class DeniedAddressRanges(AddressRanges):
    """Denied address ranges, for all names."""

    message: ClientText | None = None
    """The text for clients that the entry refuses. Default: the policy's `message`."""


class Addresses(Model):
    """Address rules: `allow` adds non-public addresses, `deny` excludes addresses, `only` excludes all others."""

    allow: Annotated[tuple[AddressEntry, ...], NOT_NULL] = ()
    """Allowed addresses beside the public ones."""
    deny: Annotated[tuple[DeniedAddressRanges, ...], NOT_NULL] = ()
    """Addresses that are never dialled, public or not."""
    only: Annotated[tuple[AddressRanges, ...] | None, NOT_NULL] = None
    """The only allowed addresses from DNS or from a client. An empty list refuses all."""


class NewNames(Model):
    """A limit on lookups of new names below one domain (its last two labels), per client."""

    limit: Positive
    """The number per window."""
    window: PositiveDuration = Duration("1m", 60.0)
    """Length of the window, over which a token bucket refills."""


class Dns(Model):
    """DNS settings."""

    servers: Annotated[tuple[ServerAddress, ...], Field(max_length=8)] = ()
    """Name servers: ip[:port], tls://ip[#name] or https://ip/path#name. Default: the system's."""
    transport: Literal["udp", "tcp", "tls", "https"] = "udp"
    """The transport for servers without a scheme. udp falls back to TCP after a truncated answer."""
    ca_certificate_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """ConfigMaps or Secrets (key ca.crt), or ClusterTrustBundles, with the only trusted CAs of `servers` over TLS and
    HTTPS. Default: the system's CAs."""
    timeout: Duration | None = None
    """The time limit of one lookup."""
    hosts: dict[SingleHostname, tuple[Address, ...]] = Field(default_factory=dict)
    """Static addresses of names."""
    min_ttl: Annotated[Duration | None, Field(alias="minTTL")] = None
    """The least lifetime of answers."""
    max_ttl: Annotated[Duration | None, Field(alias="maxTTL")] = None
    """The longest lifetime of answers."""
    stale_ttl: Annotated[Duration | None, Field(alias="staleTTL")] = None
    """The time for which an expired answer is used while the servers do not answer."""
    max_negative_ttl: Annotated[Duration | None, Field(alias="maxNegativeTTL")] = None
    """The longest lifetime of negative answers (no such name, or no address). Default: 30s."""
    prefetch: Bool = True
    """Whether a name in use is queried again shortly before its answer expires, so that no request waits."""
    dnssec: Dnssec = Dnssec.OFF
    """Require: only answers that the server has authenticated by DNSSEC (AD) count."""
    new_names: NewNames | None = None
    """A limit on new names, against DNS tunnelling. Default: no limit."""
    family: Family = Family.ANY
    """Any: both families. IPv4, IPv6: only this family. IPv4Preferred, IPv6Preferred: this family first."""
    reverse_check: ReverseCheck = ReverseCheck.OFF
    """The check of each address's names (PTR) against the dialled name. Enforce: dial only addresses with a matching
    name. Report: only report denials."""

    def model_post_init(self, context: Any) -> None:
        if self.min_ttl is not None and self.max_ttl is not None and self.min_ttl.seconds > self.max_ttl.seconds:
            raise RefusedValue(f"minTTL {self.min_ttl} is above maxTTL {self.max_ttl}", "make minTTL at most maxTTL")


class QueryRate(Model):
    """A limit on DNS queries, per client."""

    limit: Positive
    """The number per window, and at once."""
    window: PositiveDuration = Duration("1s", 1.0)
    """Length of the window, over which a token bucket refills."""


class NameServer(Model):
    """The answers of listeners of protocol egressproxy.io/dns."""

    addresses: NameAddresses | None = None
    """Resolved (the default): the addresses of the name that may be dialled. Gateway: those of the gateway itself, so
    that no name is looked up for a query.
    """
    gateway_addresses: Annotated[tuple[Address, ...], Field(max_length=16)] = ()
    """The addresses at which clients reach the gateway, for addresses: Gateway. Default: the addresses of the Gateway.
    """
    denials: NameDenials | None = None
    """The response code for names that policy denies. Refused (the default): a client may ask its next name server.
    NXDomain: it takes the name for one that does not exist.
    """
    max_ttl: Annotated[Duration | None, Field(alias="maxTTL")] = None
    """The longest lifetime of answers: how long a client may keep one that policy has denied since. Default: 60s."""
    queries: QueryRate | None = None
    """The most queries of one client; others are dropped. Default: 200 in 1s."""
    new_names: NewNames | None = None
    """The most new names of one client below one domain, against DNS tunnelling. Default: 100 in 1m."""


# --- TLS and identity ------------------------------------------------------------------------------------------------


class PolicyTls(Model):
    """The minimum for TLS to backends."""

    min_version: Literal["1.2", "1.3"] | None = None
    """The minimum TLS version to backends."""
    pins: Annotated[tuple[Pin, ...], Field(max_length=16)] = ()
    """Public keys of which every server's chain must have one."""
    crl_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """ConfigMaps (key crl.pem) with lists of revoked certificates."""
    ca_bundle_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """ConfigMaps or Secrets (key ca.crt), or ClusterTrustBundles, with the only trusted CAs of servers."""


class ClaimSubject(Model):
    """A claim of a token, and its value."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """The name of the claim."""
    value: Annotated[str, Field(min_length=1, max_length=1024)]
    """The value, or one of the values of a list."""


class InterceptSubject(Model):
    """Clients that a CA is for. All fields must match. An unknown client matches none."""

    namespace: Label | None = None
    """The clients of this namespace."""
    service_account: Name | None = None
    """The service account in that namespace. Default: all."""
    group: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """The clients of this group."""
    claim: ClaimSubject | None = None
    """The clients whose token has this claim."""
    identity: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """The client of this name, as `identity` in the access log has it: a SPIFFE ID, the user of a password, the name of
    an API key, or a service account.
    """

    def model_post_init(self, context: Any) -> None:
        if self.service_account is not None and self.namespace is None:
            raise RefusedValue("serviceAccount needs its namespace", "write namespace")
        if not any((self.namespace, self.group, self.claim, self.identity)):
            raise RefusedValue("a subject names no client", "write namespace, group, claim or identity")


class SubjectCa(Model):
    """A CA for some clients alone."""

    subjects: Annotated[tuple[InterceptSubject, ...], Field(min_length=1, max_length=16)]
    """The clients."""
    ca_certificate_ref: SecretObjectReference
    """The Secret (tls.crt, tls.key) with the CA that signs the certificates shown to them."""


class Issuing(Model):
    """CAs that are made through the admin API, each for one subject."""

    max_lifetime: PositiveDuration = Duration("720h", 720 * 3600.0)
    """The longest time for which a CA may be made."""
    max_count: Annotated[int, Field(strict=True, ge=1, le=1000)] = 100
    """The most CAs, withdrawn ones included."""


class Intercept(Model):
    """Names whose TLS is terminated with a certificate signed by a CA of ours; other tunnels stay opaque."""

    hostnames: Annotated[tuple[InterceptedHostname, ...], Field(min_length=1)]
    """Names whose tunnels are intercepted. `*`: all names."""
    ca_certificate_ref: SecretObjectReference | None = None
    """The Secret (tls.crt, tls.key) with the CA that signs the certificates shown to clients. May be absent beside
    `bySubject` or `issuing`: clients without a CA of their own are refused then.
    """
    by_subject: Annotated[tuple[SubjectCa, ...], Field(max_length=256), NOT_NULL] = ()
    """CAs of some clients, before `caCertificateRef`. The first entry that names a client holds. If its CA cannot be
    read, the client is refused.
    """
    issuing: Annotated[Issuing | None, NOT_NULL] = None
    """CAs that `egressproxy ca new` makes in the running gateway, before `bySubject`. Default: none can be made."""

    def model_post_init(self, context: Any) -> None:
        if self.ca_certificate_ref is None and not self.by_subject and self.issuing is None:
            raise RefusedValue("intercept has no CA", "write caCertificateRef, bySubject or issuing")


# --- the policy ------------------------------------------------------------------------------------------------------


class Regions(Model):
    """The allowed regions of backends."""

    allowed: tuple[Annotated[str, Field(min_length=1, max_length=63)], ...]
    """Regions, as Backends write them in `region`. A backend without one is not used."""


class Subject(Model):
    """Clients of the policy. All fields must match. An unknown client matches none."""

    namespace: Label | None = None
    """The clients of this namespace."""
    trust_domain: TrustDomain | None = None
    """The trust domain of the namespace. Default: the gateway's own."""
    service_account: Name | None = None
    """The service account in that namespace. Default: all."""
    group: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """The clients of this group."""
    claim: ClaimSubject | None = None
    """The clients whose token has this claim."""

    def model_post_init(self, context: Any) -> None:
        for name, value in (("serviceAccount", self.service_account), ("trustDomain", self.trust_domain)):
            if value is not None and self.namespace is None:
                raise RefusedValue(f"{name} needs its namespace", "write namespace")
        if self.namespace is None and self.group is None and self.claim is None:
            raise RefusedValue("a subject names no client", "write namespace, group or claim")


class Replaces(Model):
    """The policy that a policy on trial would replace."""

    name: Name
    """Name of the policy, in the same namespace."""
    quiet_for: PositiveDuration = Duration("168h", 168 * 3600.0)
    """How long no decision may come out otherwise until the trial is ReadyToEnforce."""


class EgressPolicyTargetReference(PolicyTargetReference):
    """A target of a policy; `sectionName` narrows it to one listener, rule or port."""

    name: Name
    """Name of the object."""
    namespace: Label | None = None
    """Namespace of the object. Default: the policy's. Another namespace needs a ReferenceGrant, and the policy then
    applies to the clients of its own namespace, within the owner's limits.
    """


class EgressPolicySpec(Model):
    """The spec of a policy. Every section is optional; a policy does not decide about absent sections."""

    target_refs: Annotated[tuple[EgressPolicyTargetReference, ...], Field(max_length=64)]
    """The targets: Gateways, listeners, routes or Backends. `[]`: only rules of routes whose ExtensionRef filter names
    the policy.
    """
    subjects: Annotated[tuple[Subject, ...], Field(max_length=256), NOT_NULL] = ()
    """The clients of the policy. Default: all."""
    mode: Mode | None = None
    """Enforce (the default), Report (pass, count and log requests that `destinations` would refuse), or Open (allow all
    destinations that no `deny` names).
    """
    replaces: Annotated[Replaces | None, NOT_NULL] = None
    """Puts the policy on trial: it is not in force, and status counts the recent decisions that would come out
    otherwise if it were in force in place of the policy named here.
    """
    message: ClientText | None = None
    """The text for clients that `destinations` or `addresses` of this policy refuse, such as whom to ask: one line, up
    to 256 characters. Every form of the refusal has it.
    """
    destinations: Annotated[Destinations | None, NOT_NULL] = None
    """The destinations that clients may name, and denied destinations."""
    addresses: Annotated[Addresses | None, NOT_NULL] = None
    """The resolved addresses that may be dialled. Default: public addresses."""
    dns: Dns | None = None
    """How names are resolved."""
    name_server: NameServer | None = None
    """The answers to DNS queries of clients."""
    parent: Annotated[BackendParent | None, NOT_NULL] = None
    """The proxy for allowed destinations, and for Dynamic and Fqdn backends without a parent."""
    source_address: Annotated[SourceAddress | None, NOT_NULL] = None
    """The source of connections to backends, and to their parents, without their own."""
    tls: PolicyTls | None = None
    """The minimum for TLS to backends."""
    intercept: Intercept | None = None
    """Interception of TLS in tunnels."""
    identity: Identity | None = None
    """The authentication of clients."""
    limits: Limits | None = None
    """Limits of connections and requests."""
    traffic: Traffic | None = None
    """Timeouts, retries, and connections to backends."""
    regions: Annotated[Regions | None, NOT_NULL] = None
    """The allowed regions of backends."""
    extensions: Annotated[tuple[Extension, ...], Field(max_length=256)] = ()
    """Filters for the targets of the policy."""

    @field_validator("extensions")
    @classmethod
    def _names_are_unique(cls, extensions: tuple[Extension, ...]) -> tuple[Extension, ...]:
        check_unique((extension.name for extension in extensions), "name", "extensions")
        return extensions


class EgressPolicy(Resource, group=OUR_GROUP, kind="EgressPolicy", versions=("v1alpha1",)):
    """Rules for egress traffic of Gateways, listeners, routes or Backends.

    A null is refused where it would lift a restriction: `deny:` with nothing below it is an accident.
    """

    NULLS_ARE_ABSENT: ClassVar[bool] = False

    spec: EgressPolicySpec
