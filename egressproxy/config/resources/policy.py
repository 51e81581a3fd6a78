"""EgressPolicy (`egressproxy.io/v1alpha1`)."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, field_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from egressproxy.config.resources.extension import Extension
from egressproxy.config.resources.hostnames import DestinationHostname, SingleHostname
from egressproxy.config.resources.identity import Identity
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
from egressproxy.ir.policy import Dnssec, Family, Mode, ReverseCheck, SniCheck

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
    one, or missing. For entries of `allow`.
    """

    def model_post_init(self, context: Any) -> None:
        if not self.hostnames and not self.cidrs:
            raise RefusedValue("the entry names no destination", "add hostnames or cidrs")


class _NotNull:
    """A field that may be left out, and must not be null: that would lift a restriction by accident."""

    @staticmethod
    def check(value: object) -> object:
        """The value itself. Raises RefusedValue."""
        if value is None:
            raise RefusedValue("nothing is written here", "write [] for an empty list, or remove the field")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler(schema)
        shapes = [each for each in made.get("anyOf", ()) if each != {"type": "null"}]
        return shapes[0] if len(shapes) == 1 else made


_NOT_NULL: Final = _NotNull()


class Destinations(Model):
    """Deny beats allow. `allow` None: this policy does not say; `allow: []` allows nothing."""

    allow: Annotated[tuple[DestinationEntry, ...] | None, _NOT_NULL] = None
    """Destinations that clients may name. An empty list allows nothing; left out, this policy does not say."""
    deny: Annotated[tuple[DestinationEntry, ...], _NOT_NULL] = ()
    """Destinations that are refused, by whatever spelling and at whatever level. Deny beats allow."""


class AddressEntry(Model):
    """Addresses that may be dialled beside public ones: for these names, or for every name."""

    cidrs: tuple[Cidr, ...] = ()
    """Networks that may be dialled though they are not public."""
    hostnames: tuple[DestinationHostname, ...] = ()
    """The names that may lead there. Left out: every name."""

    def model_post_init(self, context: Any) -> None:
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

    allow: Annotated[tuple[AddressEntry, ...], _NOT_NULL] = ()
    """Addresses that may be dialled beside the public ones."""
    deny: Annotated[tuple[AddressRanges, ...], _NOT_NULL] = ()
    """Addresses that are never dialled, public or not."""
    only: Annotated[tuple[AddressRanges, ...] | None, _NOT_NULL] = None
    """Addresses beside which nothing is dialled that a name or a client leads to. An empty list closes everything."""


class NewNames(Model):
    """How many names that are not known yet each client may have looked up below one domain (its last two labels)."""

    limit: Positive
    """How many in each window."""
    window: PositiveDuration = Duration("1m", 60.0)
    """Length of the window, in which the count refills steadily."""


class Dns(Model):
    """How names are resolved. `servers` empty: those of the system."""

    servers: Annotated[tuple[ServerAddress, ...], Field(max_length=8)] = ()
    """Name servers: ip[:port], tls://ip[#name] or https://ip/path#name. Default: those of the system."""
    transport: Literal["udp", "tcp", "tls", "https"] = "udp"
    """How servers without a scheme are asked. udp goes over to TCP after a truncated answer."""
    ca_certificate_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """ConfigMaps or Secrets (key ca.crt), or ClusterTrustBundles, with the CAs that alone may have signed the
    certificates of `servers` over TLS and HTTPS. Default: those of the system."""
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
    max_negative_ttl: Annotated[Duration | None, Field(alias="maxNegativeTTL")] = None
    """It is remembered at most as long that a name does not exist or has no address. Default: 30s."""
    prefetch: Bool = True
    """A name that is used shortly before its answer ends is asked for again at once, so that nobody waits."""
    dnssec: Dnssec = Dnssec.OFF
    """Require: answers count only where the server says that DNSSEC has authenticated them (AD)."""
    new_names: NewNames | None = None
    """A bound on new names, against data that leaves in names. Default: any number."""
    family: Family = Family.ANY
    """Any: both families. IPv4, IPv6: this one alone. IPv4Preferred, IPv6Preferred: this one first."""
    reverse_check: ReverseCheck = ReverseCheck.OFF
    """Compare the names of each address (PTR) with the one that led there. Enforce: dial no address without one that
    agrees. Report: note what would be denied."""

    def model_post_init(self, context: Any) -> None:
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
    """ConfigMaps or Secrets (key ca.crt), or ClusterTrustBundles, with the CAs that alone may have signed servers'
    certificates."""


class Intercept(Model):
    """Names whose TLS is terminated with a certificate signed by this CA; the rest stays opaque."""

    hostnames: Annotated[tuple[DestinationHostname, ...], Field(min_length=1)]
    """Names whose tunnels are opened."""
    ca_certificate_ref: SecretObjectReference
    """The Secret (tls.crt, tls.key) with the CA that signs the certificates shown to clients."""


# --- the policy ------------------------------------------------------------------------------------------------------


class Regions(Model):
    """Only backends of these regions."""

    allowed: tuple[Annotated[str, Field(min_length=1, max_length=63)], ...]
    """Regions, as Backends write them in `region`. A backend without one is not used."""


class ClaimSubject(Model):
    """A claim of a token, and its value."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """The name of the claim."""
    value: Annotated[str, Field(min_length=1, max_length=1024)]
    """The value, or one of the values of a list."""


class Subject(Model):
    """Clients that the policy is for. All that is written has to fit. A client that is not known fits nothing."""

    namespace: Label | None = None
    """The clients of this namespace."""
    trust_domain: TrustDomain | None = None
    """The trust domain of the namespace. Default: the gateway's own."""
    service_account: Name | None = None
    """Of these, the ones with this service account. Left out: all."""
    group: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """The clients of this group."""
    claim: ClaimSubject | None = None
    """The clients whose token has this claim."""

    def model_post_init(self, context: Any) -> None:
        for name, value in (("serviceAccount", self.service_account), ("trustDomain", self.trust_domain)):
            if value is not None and self.namespace is None:
                raise RefusedValue(f"{name} needs its namespace", "write namespace")
        if self.namespace is None and self.group is None and self.claim is None:
            raise RefusedValue("a subject says nobody", "write namespace, group or claim")


class EgressPolicyTargetReference(PolicyTargetReference):
    """What a policy applies to; `sectionName` narrows it to one listener, rule or port."""

    name: Name
    """Name of the object."""
    namespace: Label | None = None
    """Namespace of the object. Default: that of the policy. Another one needs a ReferenceGrant, and the policy then
    holds for the clients of its own namespace, within what the owner allows.
    """


class EgressPolicySpec(Model):
    """Every section is optional: a policy says something about what stands in it, and nothing about the rest."""

    target_refs: Annotated[tuple[EgressPolicyTargetReference, ...], Field(max_length=64)]
    """What the policy is for: Gateways, listeners, routes or Backends. `[]`: only rules of routes whose ExtensionRef
    filter names it.
    """
    subjects: Annotated[tuple[Subject, ...], Field(max_length=256), _NOT_NULL] = ()
    """The clients that the policy is for. Left out: all. It says nothing about others."""
    mode: Mode | None = None
    """Enforce (the default), Report (let pass what `destinations` would refuse, count it and log it), or Open (allow
    what no `deny` names).
    """
    destinations: Annotated[Destinations | None, _NOT_NULL] = None
    """Which destinations clients may name, and which are closed to all."""
    addresses: Annotated[Addresses | None, _NOT_NULL] = None
    """Which resolved addresses may be dialled. By default public ones alone."""
    dns: Dns | None = None
    """How names are resolved."""
    parent: Annotated[BackendParent | None, _NOT_NULL] = None
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
    regions: Annotated[Regions | None, _NOT_NULL] = None
    """In which regions backends may stand."""
    extensions: Annotated[tuple[Extension, ...], Field(max_length=256)] = ()
    """Filters that run for what the policy is for."""

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
