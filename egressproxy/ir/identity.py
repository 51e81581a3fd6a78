"""How a listener learns who its clients are: EgressPolicy `identity`, of the policy that wins."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from egressproxy.model.key_grant import KeyGrant
from egressproxy.model.secret import SecretBytes


@dataclass(frozen=True, slots=True)
class TokenIssuerIR:
    """Tokens of this issuer are believed, where they are for one of the audiences and one of its keys has signed them.

    `key_set` is JSON (RFC 7517); "" where the keys are fetched: from `key_path` of `key_host` (name, port) by TLS, of
    which one of the CAs in `ca_pem` has signed the certificate ("": one of the system's). `service_accounts`: they are
    those of Kubernetes, whose subject is a service account; else the claims of these names say namespace and service
    account ("": none does). `trust_domain` is that of these namespaces; "": the listener's own.
    """

    issuer: str
    audiences: tuple[str, ...]
    key_set: str = ""
    key_host: tuple[str, int] = ("", 0)
    key_path: str = ""
    ca_pem: str = ""
    service_accounts: bool = False
    namespace_claim: str = ""
    service_account_claim: str = ""
    groups_claim: str = "groups"
    trust_domain: str = ""
    ca_source: str = field(default="", compare=False)  # the objects that `ca_pem` came from, for people


@dataclass(frozen=True, slots=True)
class AddressClientIR:
    """Who has these source addresses."""

    networks: tuple[IPv4Network | IPv6Network, ...]
    namespace: str
    service_account: str


@dataclass(frozen=True, slots=True)
class ApiKeyIR:
    """Who shows the API key with this `digest` (SHA-256), until `not_after` (seconds since 1970; inf: for ever), and
    what the key may be used for.
    """

    digest: bytes
    name: str
    namespace: str
    service_account: str
    groups: tuple[str, ...]
    not_after: float
    grant: KeyGrant


@dataclass(frozen=True, slots=True)
class CertificateClientIR:
    """Who shows a certificate with this `value`: of its whole subject (`kind` "subject", as RFC 4514 writes it), or of
    a subject alternative name ("DNS", "URI", "email", as Python's ssl calls them).
    """

    kind: str
    value: str
    namespace: str
    service_account: str


@dataclass(frozen=True, slots=True)
class IdentityIR:
    """Where the identity of a client comes from. `is_required`: whoever is not known is refused.

    `token_field` is the field that carries the token, "" for the usual one. `users` are user names and hashes of
    passwords, of the Secret `users_of` ("namespace/name"). `claims` are the names of those that policies ask for, or
    that another gateway is told. `senders` say in a PROXY header whose a connection is. `trust_domain` is the
    listener's own, whose namespaces are written without it ("": it has no name). `api_keys` are those that count; None:
    none are read. `exchanged_at`: the backends ("namespace/name") that may be sent tokens.
    """

    is_required: bool = False
    issuers: tuple[TokenIssuerIR, ...] = ()
    token_field: str = ""
    users: tuple[tuple[str, SecretBytes], ...] = ()
    users_of: str = ""
    addresses: tuple[AddressClientIR, ...] = ()
    claims: tuple[str, ...] = ()
    senders: tuple[IPv4Network | IPv6Network, ...] = ()
    trust_domain: str = ""
    api_keys: tuple[ApiKeyIR, ...] | None = None
    exchanged_at: tuple[str, ...] = ()

    @property
    def takes_credentials(self) -> bool:
        return bool(self.issuers or self.users)
