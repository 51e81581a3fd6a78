"""PolicyIR: EgressPolicy objects, merged for one place (listener, route or backend) by `config.compile.policies`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Final

from egressproxy.ir.identity import IdentityIR
from egressproxy.ir.name_server import DEFAULT_ANSWERS, NameServerIR
from egressproxy.ir.resilience import NO_RESILIENCE, ResilienceIR
from egressproxy.model.authority import IPAddress
from egressproxy.model.secret import SecretBytes

Network = IPv4Network | IPv6Network


class Mode(str, Enum):
    """EgressPolicy `mode`. Report notes denials and lets them pass; Open allows what no `deny` entry names."""

    ENFORCE = "Enforce"
    REPORT = "Report"
    OPEN = "Open"


class Family(str, Enum):
    """EgressPolicy `dns.family`: the queried address families, and their order."""

    ANY = "Any"
    IPV4 = "IPv4"
    IPV6 = "IPv6"
    IPV4_PREFERRED = "IPv4Preferred"
    IPV6_PREFERRED = "IPv6Preferred"


class Dnssec(str, Enum):
    """EgressPolicy `dns.dnssec`: whether answers need the AD bit."""

    OFF = "Off"
    REQUIRE = "Require"


class ReverseCheck(str, Enum):
    """EgressPolicy `dns.reverseCheck`: whether the names of an address (PTR) must match the dialled name."""

    OFF = "Off"
    REPORT = "Report"  # dials at once, and notes what ENFORCE would deny
    ENFORCE = "Enforce"


class Priority(str, Enum):
    """EgressPolicy `traffic.priority`: the priority of requests during overload."""

    HIGH = "High"
    NORMAL = "Normal"
    LOW = "Low"

    @property
    def text(self) -> str:
        return self.value.lower()


class SniCheck(str, Enum):
    """Whether the SNI in a tunnel is compared with the authority."""

    MATCH = "Match"  # a ClientHello in a tunnel has to name the authority's host
    ANY = "Any"


@dataclass(frozen=True, slots=True)
class DestinationRule:
    """One entry of `destinations.allow` or `.deny`.

    `hostnames` are exact names or `*.suffix` (one label or more in front), lower case. `ports` empty: every port.
    `cidrs` match addresses that clients name. `policy` is the EgressPolicy of the entry. `intercepts`: the entry denies
    names of an unserved `intercept` section. `is_firm`: the entry denies in mode Report, too, since a more specific
    policy has set that mode. `message` is the operator's text for clients that a `deny` entry refuses; "": none.
    """

    hostnames: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    cidrs: tuple[Network, ...] = ()
    sni: SniCheck = SniCheck.MATCH
    policy: str = "-"
    intercepts: bool = False
    is_firm: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True)
class DestinationsIR:
    """A destination is denied if any `deny` entry matches, else allowed if EVERY group of `allow` has a matching entry.

    One group per level (Gateway, listener, route) that has a policy with `destinations.allow`: policies of one level
    unite, levels intersect. No group at all allows nothing. An empty group allows nothing.
    In the policy of a rule or of its backends the groups of Gateway and listener are left out: the route is the
    permission there. Their `deny` is kept, and a rule's `deny` holds that of its backends' policies too.
    The first `firm_allow` groups hold in modes Report and Open, too: a more specific policy has set the mode.
    `withheld` are entries of `allow` that are for other clients (`subjects`); for messages to who fits no subjects.
    `listed` are the policies (namespace/name) whose lists each group of `allow` has. `is_delegated`: all of them are of
    other namespaces than the listener, so that routes and their filters do not serve what they allow.
    `messages` are the operator's texts for clients that a group of `allow` leaves out, one for each group; `message` is
    the text where no group is.
    """

    allow: tuple[tuple[DestinationRule, ...], ...] = ()
    deny: tuple[DestinationRule, ...] = ()
    firm_allow: int = 0
    withheld: tuple[DestinationRule, ...] = ()
    listed: tuple[tuple[str, ...], ...] = ()
    is_delegated: bool = False
    messages: tuple[str, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class AddressAllowance:
    """`addresses.allow[]`: allowed ranges for these names (`hostnames` empty: every name). `cidrs` empty: all addresses
    except those reserved for the host itself.
    """

    cidrs: tuple[Network, ...] = ()
    hostnames: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AddressDenial:
    """Ranges that are denied on these ports (empty: all), for addresses from DNS, a client or the operator."""

    cidrs: tuple[Network, ...]
    ports: tuple[int, ...] = ()
    policy: str = "-"
    field: str = "addresses.deny"  # its field in `policy`
    reports: bool = False  # lifted by mode Report
    message: str = ""  # for clients


@dataclass(frozen=True, slots=True)
class NameDenial:
    """Names that are denied as CNAME targets: hostnames of a `destinations.deny` entry. Fields as above."""

    hostnames: tuple[str, ...]
    ports: tuple[int, ...] = ()
    policy: str = "-"
    reports: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True)
class AddressBound:
    """`addresses.only` of one policy: resolved addresses must be in these ranges. Empty: all are denied."""

    cidrs: tuple[Network, ...] = ()
    policy: str = "-"
    message: str = ""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class AddressesIR:
    """Address rules: public unicast, and addresses that EVERY level with an allow list allows (restrictions intersect).

    Addresses must also match no `deny` of any level, and every `only`, and no CNAME target may be denied. Every
    ConnectionIR has these rules, and the lists may be long, so the hash does not cover them.
    """

    allow: tuple[tuple[AddressAllowance, ...], ...] = ()
    policy: str = "-"
    deny: tuple[AddressDenial, ...] = ()
    only: tuple[AddressBound, ...] = ()
    denied_names: tuple[NameDenial, ...] = ()
    #: The only namespace that can allow non-public addresses, if other namespaces' policies are involved.
    owner: str = ""
    #: For clients, where nothing allows an address: the text of `policy`.
    message: str = ""
    #: What to do then, where there is no policy to change.
    remedy: str = ""

    def __hash__(self) -> int:
        # The last of each is that of the most specific policy, in which places differ.
        allowed = [(each.hostnames[-1:], each.cidrs[-1:]) for group in self.allow[-1:] for each in group[-1:]]
        denied = [(each.policy, len(each.cidrs), each.cidrs[-1:], each.reports) for each in self.deny[-1:]]
        bounds = [(each.policy, len(each.cidrs), each.cidrs[-1:]) for each in self.only[-1:]]
        names = [
            (each.policy, len(each.hostnames), each.hostnames[-1:], each.reports) for each in self.denied_names[-1:]
        ]
        lengths = map(len, (self.allow, self.deny, self.only, self.denied_names))
        return hash((self.policy, *lengths, *allowed, *denied, *bounds, *names))


@dataclass(frozen=True, slots=True)
class DnsIR:
    """`servers` empty: those of /etc/resolv.conf. Entries: `ip`, `ip:port`, `[ip6]:port`, `tls://ip[:port][#name]`,
    `https://ip[:port][/path][#name]`. `ca_pem`: the only trusted CAs of servers over TLS; "" for the system's.
    `ca_source` names their objects, for people.
    """

    servers: tuple[str, ...] = ()
    transport: str = "udp"  # udp | tcp | tls | https
    timeout_s: float = 5.0
    hosts: tuple[tuple[str, tuple[IPAddress, ...]], ...] = ()
    min_ttl_s: float = 1.0
    max_ttl_s: float = 300.0
    max_negative_ttl_s: float = 30.0
    stale_ttl_s: float = 60.0
    prefetch: bool = True
    dnssec: Dnssec = Dnssec.OFF
    new_names: int = 0  # of one client below one domain, in each window; 0: any number
    new_names_window_s: float = 60.0
    ca_pem: str = ""
    ca_source: str = field(default="", compare=False)
    family: Family = Family.ANY
    reverse_check: ReverseCheck = ReverseCheck.OFF


@dataclass(frozen=True, slots=True)
class SubjectIR:
    """Clients of this namespace, service account, group and name, with this claim; "" and None match all. `identity`
    is for `intercept` alone.
    """

    namespace: str = ""
    service_account: str = ""
    group: str = ""
    claim: tuple[str, str] | None = None  # name, value
    identity: str = ""  # as CallerIdentity.name


@dataclass(frozen=True, slots=True)
class SubjectCaIR:
    """The CA of some clients. `secret` is its Secret, namespace/name. `chain_pem` "": the clients are refused, because
    of `why`.
    """

    subjects: tuple[SubjectIR, ...]
    secret: str
    chain_pem: str = ""
    key_pem: SecretBytes = field(default=SecretBytes(b""), repr=False)
    why: str = ""


@dataclass(frozen=True, slots=True)
class InterceptIR:
    """EgressPolicy `intercept` of `policy`: tunnels to these names (exact or `*.suffix`) are intercepted. Of
    `by_subject` the first entry for a client holds, `chain_pem` for all others; "": these are refused.
    """

    hostnames: tuple[str, ...]
    chain_pem: str  # of the CA that signs leaf certificates, then of its issuers
    key_pem: SecretBytes = field(repr=False)  # of that CA
    policy: str = "-"
    by_subject: tuple[SubjectCaIR, ...] = ()


@dataclass(frozen=True, slots=True)
class TimeoutsIR:
    """Timeouts; 0 disables. `idle_s` is for idle connections of both sides, and for stalled bodies."""

    connect_s: float = 10.0
    tls_handshake_s: float = 10.0
    request_headers_s: float = 10.0
    request_s: float = 0.0
    backend_request_s: float = 0.0
    idle_s: float = 60.0
    tunnel_idle_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class ConnectionsIR:
    """Limits of a connection's age and number of exchanges. 0: no limit. `is_per_tenant`: see `tenant_of`."""

    max_age_s: float = 0.0
    max_requests: int = 0
    is_per_tenant: bool = False


class FilterSettings:
    """Base of the configs of built-in filters: frozen dataclasses of plain values, in `filters`."""

    __slots__ = ()


@cache
def spelling(name: str) -> str:
    """The name of a field in a manifest: `max_bytes` is `maxBytes`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def settings_in(config: Any, path: str = "") -> Iterator[tuple[str, object]]:
    """Everything inside the config of a filter, with its path in a manifest, as in `callers[0].secretRef`."""
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(config, tuple):
        parts = ((f"{path}[{at}]", each) for at, each in enumerate(config))
    elif is_dataclass(config):
        before = f"{path}." if path else ""
        parts = ((before + spelling(each.name), getattr(config, each.name)) for each in fields(config))
    for name, value in parts:
        yield name, value
        if value and not isinstance(value, str | int):
            yield from settings_in(value, name)


class FieldFault(ValueError):
    """Raised by `__post_init__` of such a config. `path` leads to the field: names as in manifests, list indices."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


class Callee:
    """Base of `ir.route.WeightedBackend`, which has extensions itself: a backend that a filter calls."""

    __slots__ = ()


#: The `level` of what is declared on a Backend, or on a backendRef.
BACKEND_LEVEL: Final = 2


@dataclass(frozen=True, slots=True)
class ExtensionIR:
    """One filter in one phase, wherever it was written (extension, HTTPRoute filter, limits section).

    `config` is canonical JSON text, already valid for the type. `secrets` are those that its type declared as
    references, keyed `name/key`; a missing one has no entry. `scope` is part of the identity: equal values share ONE
    filter instance, so a rate limit `per: Gateway` has the gateway as its scope. Order in a phase: priority, level
    (0 Gateway, 1 Route, 2 Backend), age, name.
    """

    name: str
    type: str
    phase: str
    priority: int = 100
    level: int = 0
    fail_open: bool = False
    pre_auth: bool = False
    timeout_s: float = 5.0
    config: str = "{}"
    secrets: tuple[tuple[str, SecretBytes], ...] = field(default=(), repr=False)
    scope: str = "-"
    source: str = "-"  # kind namespace/name of the object that declared it
    folder: str = ""  # folder of the file that declared it: relative paths start there
    #: The validated `config`, derived from `type` and `config`. None: validated at its use.
    settings: FilterSettings | None = field(default=None, compare=False, repr=False)
    #: False: the type is unknown. With `fail_open` requests go on without the filter, which is kept for explanations;
    #: otherwise the place is closed (see `WeightedBackend.unknown_extension`).
    is_known: bool = True
    #: The order within `phase`: -1 before the others, 1 after them. A Backend's request-headers run before
    #: backend-request, and its response-headers after backend-response.
    turn: int = 0
    #: The called backends by label of the reference, as resolved for this place.
    calls: tuple[tuple[str, Callee], ...] = ()
    #: For a FilterType's type: the built-in type that implements it, whose config is `config`. "": `type`.
    implementation: str = ""
    #: The failures within the window (next field, seconds) that disable the filter for as long; 0: never.
    budget_failures: int = 0
    budget_window_s: float = 0.0


#: The default limit of a buffered request body, also for our filters: as much as AI providers accept (Anthropic 32 MB).
MAX_BUFFERED_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LimitsIR:
    """Limits of a listener's connections; those of requests are compiled into filters (see ExtensionIR). 0: none.

    `max_buffered_bytes` limits one buffered request body; the next two limit all buffered bodies.
    """

    max_head_bytes: int = 65536
    max_fields: int = 128
    max_buffered_bytes: int = MAX_BUFFERED_BYTES
    buffered_bytes_per_client: int = 64 * 1024 * 1024
    buffered_bytes_per_connection: int = 64 * 1024 * 1024
    connections: int = 0
    connections_per_client: int = 0
    tunnels: int = 0
    tunnels_per_client: int = 0


@dataclass(frozen=True, slots=True)
class RetryBudgetIR:
    """At most `percent` of the requests of `interval_s` may be retries, but always `min_per_second` of them."""

    percent: float
    interval_s: float
    min_per_second: float


@dataclass(frozen=True, slots=True)
class RetryIR:
    """How often a request goes again. Source: Gateway API v1, HTTPRouteRetry (GEP-1731); EgressPolicy traffic.retries.

    `attempts` are those after the first. `codes` are statuses of backends that are retried, `grpc_codes` those of gRPC.
    The pause before a retry is at least `backoff_s`, doubles each time and is bounded by `max_backoff_s`; 0: no pause.
    """

    attempts: int
    codes: tuple[int, ...] = ()
    backoff_s: float = 0.0
    max_backoff_s: float = 0.0
    budget: RetryBudgetIR | None = None
    grpc_codes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HedgingIR:
    """Hedging: requests of these `methods` begin another attempt after `delay_s`, up to `max_attempts` in parallel."""

    delay_s: float
    max_attempts: int
    codes: tuple[int, ...]  # statuses held back while other attempts run (gRPC: nonFatalStatusCodes)
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceAddressIR:
    """`sourceAddress` of a Backend or policy: where its connections go out from.

    `addresses` has at most one of each family. Each client has one of `pool`. At most one of the two lists is set.
    `interface`: a name, "" for none. `owner` is the object, for people.
    """

    addresses: tuple[IPAddress, ...] = ()
    pool: tuple[IPAddress, ...] = ()
    interface: str = ""
    owner: str = field(default="-", compare=False)


@dataclass(frozen=True, slots=True)
class PolicyIR:
    """The merged policy of one place: settings of the most specific policy, restrictions of all."""

    mode: Mode = Mode.ENFORCE
    destinations: DestinationsIR = DestinationsIR()
    addresses: AddressesIR = AddressesIR()
    dns: DnsIR = DnsIR()
    name_server: NameServerIR = DEFAULT_ANSWERS
    timeouts: TimeoutsIR = TimeoutsIR()
    kept: ConnectionsIR = ConnectionsIR()
    #: HTTP/2 clients may open WebSockets (RFC 8441).
    extended_connect: bool = False
    #: HTTP/1.1 clients may half-close while they wait.
    half_close: bool = False
    #: Keys of gateways that may forward client identities (X-Egress-Identity).
    gateway_keys: tuple[SecretBytes, ...] = ()
    #: The trust domain of forwarded namespaces without one; "": the listener's own.
    gateway_trust_domain: str = ""
    #: Interceptions of a listener; the first match of a name wins.
    intercepts: tuple[InterceptIR, ...] = ()
    #: The authentication of clients; None: none.
    identity: IdentityIR | None = None
    limits: LimitsIR = LimitsIR()
    retries: RetryIR | None = None
    hedging: HedgingIR | None = None
    resilience: ResilienceIR = NO_RESILIENCE
    #: For backends without their own; None: the kernel chooses.
    source_address: SourceAddressIR | None = None
    priority: Priority = Priority.NORMAL
    extensions: tuple[ExtensionIR, ...] = ()
    #: The merged policies, for messages: "namespace/name".
    sources: tuple[str, ...] = ()
    #: The policy that sets the mode; "-" for none.
    mode_source: str = field(default="-", compare=False)


def entry_text(hostnames: Iterable[str] = (), cidrs: Iterable[Network] = (), ports: Iterable[int] = ()) -> str:
    """An entry of a list of destinations, or a part of it, as it is written in a manifest: `{hostnames: ["a"]}`."""
    written = (
        ("hostnames", [f'"{hostname}"' for hostname in hostnames]),
        ("cidrs", [f'"{network}"' for network in cidrs]),
        ("ports", [str(port) for port in ports]),
    )
    said = [f"{key}: [{', '.join(texts)}]" for key, texts in written if texts]
    return f"{{{', '.join(said)}}}"


#: The defaults without any policy.
NO_POLICY: Final = PolicyIR()
