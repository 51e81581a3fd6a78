"""CallerIdentity: the client of an exchange, as far as it is known."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from egressproxy.model.key_grant import KeyGrant
from egressproxy.model.secret import SecretBytes

_IDENTITY_FIELDS: Final = (
    "namespace", "service_account", "origin_client", "origin_gateway", "name", "source", "groups", "claims",
    "claims_read", "grant", "token",
)  # fmt: skip


class CallerToken(NamedTuple):
    """The verified token of a client. Only the backends `exchanged_at` ("namespace/name") may be sent its `value`."""

    value: SecretBytes
    exchanged_at: frozenset[str]


class CallerIdentity:
    """The identity of the client, "-" in unknown parts. Limits, caches and the access log use it as key.

    `namespace` and `service_account` are those of Kubernetes; a namespace of another trust domain than the listener's
    own is "NAMESPACE@DOMAIN" (`namespace_in`), so that it counts as no namespace of here. Of a client that another
    gateway of ours serves and signs: `origin_client` is its address there, and `origin_gateway` that Gateway.

    `name` is the same for the same client at any time: "spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT",
    "system:serviceaccount:NAMESPACE:ACCOUNT" (as Kubernetes names it), "ISSUER#SUBJECT" of another token, or
    "NAMESPACE/SECRET#USER". `source` is the origin of the identity: "certificate", "token", "basic", "key", "address"
    or "gateway". `groups` and `claims` (name and value) come from a token; `claims` has only the names in
    `claims_read`, which may be missing in the token. None: there is no token. `grant` is that of the API key (None: it
    is known by something else); two keys of one client are one identity. `token` is its own, if that may be exchanged.

    These fields never change. `key` is one text for all but `grant` and `token`: equal identities have equal keys.

    The other fields are caches of their writers: the entry in which the last request of this client was counted. The
    next request finds its entry here, without a lookup in memory that other clients have displaced from the processor's
    cache. Each cache names its owner; an entry of another limit, series or listener is looked up and written anew.
    """

    __slots__ = (
        "claims", "claims_read", "counted_beside", "counted_in", "grant", "groups", "key", "limit_at", "limit_key",
        "limit_number", "name", "namespace", "origin_client", "origin_gateway", "service_account", "source",
        "token", "variant_at", "variants_number",
    )  # fmt: skip

    def __init__(
        self,
        namespace: str = "-",
        service_account: str = "-",
        origin_client: str = "-",
        origin_gateway: str = "-",
        name: str = "-",
        source: str = "-",
        groups: tuple[str, ...] = (),
        claims: tuple[tuple[str, str], ...] = (),
        claims_read: tuple[str, ...] | None = None,
        grant: KeyGrant | None = None,
        token: CallerToken | None = None,
    ) -> None:
        self.namespace = namespace
        self.service_account = service_account
        self.origin_client = origin_client
        self.origin_gateway = origin_gateway
        self.name = name
        self.source = source
        self.groups = groups
        self.claims = claims
        self.claims_read = claims_read
        self.grant = grant
        self.token = token
        self.key = repr(
            (namespace, service_account, origin_client, origin_gateway, name, source, groups, claims, claims_read)
        )
        #: Cache of `filters.limits`: the number of the limit's table, the position in the table, and the entry's key.
        self.limit_number = self.limit_at = self.limit_key = 0
        #: Cache of `Metrics.of_client`: the series of all clients, and the matching series of this client.
        self.counted_beside: object = None
        self.counted_in: Any = None
        #: Cache of `SubjectOverrides`: the number of the overrides, and the index of the variant.
        self.variants_number = self.variant_at = 0

    def replace(self, **fields: Any) -> CallerIdentity:
        return CallerIdentity(**{name: getattr(self, name) for name in _IDENTITY_FIELDS} | fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallerIdentity) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"CallerIdentity{self.key}"


ANONYMOUS: Final = CallerIdentity()


def tenant_of(identity: CallerIdentity) -> str:
    """The tenant whose backend connections a client shares: its namespace, else its name, "-" if both are unknown."""
    return f"namespace {identity.namespace}" if identity.namespace != "-" else identity.name


def namespace_in(trust_domain: str, namespace: str, own: str) -> str:
    """The value of `CallerIdentity.namespace` for a namespace in a trust domain. `own` is the listener's trust domain,
    and the default for ""; an unknown namespace ("-", or "" in a configuration) belongs to no trust domain.
    """
    return namespace if trust_domain in ("", own) or namespace in ("", "-") else f"{namespace}@{trust_domain}"


def service_account_name(namespace: str, service_account: str) -> str:
    """The `CallerIdentity.name` of a service account, "-" where a part is not known. Sources: Kubernetes,
    Authenticating, Service account tokens; of another trust domain Istio, SPIFFE ids.
    """
    if namespace == "-" or service_account == "-":
        return "-"
    label, _, trust_domain = namespace.partition("@")
    if trust_domain:
        return f"spiffe://{trust_domain}/ns/{label}/sa/{service_account}"
    return f"system:serviceaccount:{namespace}:{service_account}"
