"""Policy plan: learnt records as entries of policies, each for the narrowest clients that a policy can name; and what
policies in force allow of them. Pure.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from egressproxy.operators.learning.judgement import Left, LeftOut
from egressproxy.operators.learning.names import PublicSuffixes, patterns_of
from egressproxy.operators.learning.observations import MAX_PREFIXES, ClientKey, Record, moment

if TYPE_CHECKING:
    from egressproxy.config.resources.policy import EgressPolicy
    from egressproxy.config.resources.policy import Subject as PolicySubject

#: Names below one domain that one `*.suffix` replaces.
SUFFIX_NAMES: Final = 3
#: Bytes that one request has sent and a reader should know of.
MUCH: Final = 1 << 20
MAX_OBJECT_NAME: Final = 200
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
OBJECT_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_SHOWN: Final = 3


class By(str, Enum):
    """Whom each policy is for. AUTO: a namespace where all its accounts agree about an entry, else the account."""

    AUTO = "auto"
    NAMESPACE = "namespace"
    ACCOUNT = "service-account"
    IDENTITY = "identity"


class Subject(NamedTuple):
    """The clients of a policy; "" for each field that does not narrow them, so that `Subject()` is everybody."""

    namespace: str = ""
    trust_domain: str = ""
    service_account: str = ""

    @classmethod
    def of(cls, client: ClientKey) -> Subject:
        """The subject that names this client alone, or everybody, where none can."""
        namespace, _, domain = client.namespace.partition("@")
        can_be_named = _LABEL.fullmatch(namespace) and OBJECT_NAME.fullmatch(client.service_account)
        if not client.is_account or not can_be_named or (domain and not OBJECT_NAME.fullmatch(domain)):
            return cls()
        return cls(namespace, domain, client.service_account)

    @property
    def of_namespace(self) -> Subject:
        return Subject(self.namespace, self.trust_domain)


class Entry(NamedTuple):
    """A hostname pattern of a policy with its evidence."""

    hostname: str
    ports: tuple[int, ...]
    records: tuple[Record, ...]

    def evidence(self) -> str:
        """How often, by whom, when first and last, and what was asked for, where that was seen."""
        clients = Counter[str]()
        for each in self.records:
            clients[str(each.client)] -= each.count
        parts = [requests_of(self.records, few(sorted(clients, key=lambda name: (clients[name], name))))]
        most = max(each.sent_at_once for each in self.records)
        if most >= MUCH:
            parts.append(f"{sum(each.sent for each in self.records) >> 20} MiB sent, at most {most >> 20} MiB at once")
        if self.hostname.startswith("*."):
            names = sorted({each.host for each in self.records})
            parts.append(f"{len(names)} names: {few(names)}")
        methods = sorted({method for each in self.records for method in each.methods if method != "-"})
        prefixes = sorted({prefix for each in self.records for prefix in each.prefixes})
        if methods:
            parts.append(" ".join((*methods, *prefixes[:MAX_PREFIXES])))
        return "; ".join(parts)


class PlannedPolicy(NamedTuple):
    """A policy of one Gateway ("namespace/name") for one subject. `replaces`: on trial in place of this policy."""

    gateway: str
    subject: Subject
    entries: tuple[Entry, ...]
    replaces: str = ""

    @property
    def name(self) -> str:
        """A name that stays the same from run to run."""
        subject = self.subject
        gateway, namespace = self.gateway.partition("/")[2], subject.namespace or "everybody"
        parts = ["learned", gateway, namespace, *filter(None, (subject.trust_domain, subject.service_account))]
        text = ".".join(parts)
        if len(text) <= MAX_OBJECT_NAME and OBJECT_NAME.fullmatch(text) and not any("." in part for part in parts):
            return text
        short = re.sub(r"[^a-z0-9.-]|(?<=\.)-|-(?=\.)", "x", text[:MAX_OBJECT_NAME].lower()).rstrip(".-")
        return f"{short}-{blake2b(chr(0).join(parts).encode(), digest_size=4).hexdigest()}"


def plan(
    learnt: Sequence[Record], by: By, known: Iterable[Record] = (), suffixes: PublicSuffixes | None = None,
    replaces: str = "",
) -> tuple[list[PlannedPolicy], list[LeftOut]]:  # fmt: skip
    """The policies, in a stable order, and records of clients that no policy can name, which `By.IDENTITY` leaves out.
    `known`: what else was learnt of the clients, which says who the accounts of a namespace are. `suffixes`: offer
    `*.suffix` where this list says that one owner has the names. `replaces`: on trial in place of this policy.
    """
    asked = [(each.client.gateway, Subject.of(each.client), each) for each in (*learnt, *known)]
    accounts: dict[tuple[object, ...], set[Subject]] = defaultdict(set)  # of a namespace, and of each destination there
    for number, (gateway, subject, each) in enumerate(asked):
        accounts[gateway, subject.of_namespace].add(subject)
        if number < len(learnt):
            accounts[gateway, subject.of_namespace, each.host, each.port].add(subject)
    places: dict[tuple[str, Subject], list[Record]] = defaultdict(list)
    unnamed = []
    for gateway, subject, each in asked[: len(learnt)]:
        there = accounts[gateway, subject.of_namespace]
        is_shared = len(there) > 1 and there == accounts[gateway, subject.of_namespace, each.host, each.port]
        is_for_namespace = by is By.NAMESPACE or (by is By.AUTO and is_shared)
        if by is By.IDENTITY and subject == Subject() and each.client.name != "-":
            unnamed.append(LeftOut(each, Left.UNNAMED))
        else:
            places[gateway, subject.of_namespace if is_for_namespace else subject].append(each)
    return [
        PlannedPolicy(gateway, subject, _entries(found, suffixes), replaces)
        for (gateway, subject), found in sorted(places.items())
    ], unnamed


def requests_of(records: Sequence[Record], clients: str) -> str:
    """How many requests of these clients there were, the first and the last one."""
    count = sum(each.count for each in records)
    first, last = min(each.first for each in records), max(each.last for each in records)
    return f"{count} request{'s' * (count != 1)} by {clients}, {moment(first)} to {moment(last)}"


def few(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _entries(records: list[Record], suffixes: PublicSuffixes | None) -> tuple[Entry, ...]:
    """An entry for each hostname with all ports; `*.domain` in place of names below one domain with the same ports."""
    hosts: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        hosts[record.host].append(record)
    made = [Entry(name, tuple(sorted({each.port for each in found})), tuple(found)) for name, found in hosts.items()]
    below: dict[tuple[str, tuple[int, ...]], list[Entry]] = defaultdict(list)
    for entry in made if suffixes is not None else ():
        below[entry.hostname.partition(".")[2], entry.ports].append(entry)
    for (domain, ports), found in below.items():
        if len(found) >= SUFFIX_NAMES and suffixes is not None and suffixes.is_owned(domain):
            joined = Entry(f"*.{domain}", ports, tuple(record for each in found for record in each.records))
            names = {each.hostname for each in found}
            made = [joined, *(each for each in made if each.hostname not in names)]
    return tuple(sorted(made, key=lambda each: (each.ports, reversed_name(each.hostname))))


def reversed_name(hostname: str) -> tuple[list[str], str]:
    """A key that sorts names of one domain together."""
    return hostname.removeprefix("*.").split(".")[::-1], hostname


# --- what is in force ------------------------------------------------------------------------------------------------


class AllowedEntry(NamedTuple):
    """A hostname of an `allow` list: whose policy it is in (namespace/name), and for whom and where it holds.
    `subjects` is empty for everybody, `ports` for every port.
    """

    policy: str
    gateways: frozenset[str]
    subjects: tuple[PolicySubject, ...]
    hostname: str
    ports: frozenset[int]

    def allows(self, client: ClientKey, port: int) -> bool:
        """Whether it holds for this client and port. Groups and claims of clients are not known: a subject with one
        matches nobody.
        """
        if client.gateway not in self.gateways or (self.ports and port not in self.ports):
            return False
        who = Subject.of(client)
        return not self.subjects or any(
            each.group is None and each.claim is None
            and (each.namespace, each.trust_domain or "") == (who.namespace, who.trust_domain)
            and each.service_account in (None, who.service_account)
            for each in self.subjects
        )  # fmt: skip


def allowed_entries(policies: Iterable[EgressPolicy]) -> Iterator[AllowedEntry]:
    """The entries with hostnames of all policies that are for Gateways."""
    for policy in policies:
        spec, own = policy.spec, policy.metadata.namespace
        gateways = frozenset(f"{ref.namespace or own}/{ref.name}" for ref in spec.target_refs if ref.kind == "Gateway")
        for each in (spec.destinations.allow if spec.destinations is not None else None) or ():
            for hostname in each.hostnames if gateways else ():
                yield AllowedEntry(policy.full_name, gateways, spec.subjects, hostname, frozenset(each.ports))


def uses(records: Iterable[Record], entries: Iterable[AllowedEntry]) -> Iterator[tuple[Record, AllowedEntry]]:
    """Each record with each entry that allows it."""
    of_pattern: dict[str, list[AllowedEntry]] = defaultdict(list)
    for entry in entries:
        of_pattern[entry.hostname].append(entry)
    for record in records:
        for entry in (each for pattern in patterns_of(record.host) for each in of_pattern.get(pattern, ())):
            if entry.allows(record.client, record.port):
                yield record, entry
