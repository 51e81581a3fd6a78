"""In force: what the EgressPolicies of a configuration allow, and which of their entries were used. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from egressproxy.config.resources.policy import EgressPolicy, Subject
from egressproxy.operators.learning.names import patterns_of
from egressproxy.operators.learning.observations import ClientKey, Record


@dataclass(frozen=True, slots=True)
class AllowedEntry:
    """A hostname of an `allow` list: whose policy it is in (namespace/name), and for whom and where it holds.
    `subjects` is empty for everybody, `ports` for every port.
    """

    policy: str
    gateways: frozenset[str]
    subjects: tuple[Subject, ...]
    hostname: str
    ports: frozenset[int]

    def allows(self, client: ClientKey, port: int) -> bool:
        """Whether it holds for this client and port. Groups and claims of clients are not known: a subject with one
        matches nobody.
        """
        return (
            client.gateway in self.gateways
            and (not self.ports or port in self.ports)
            and (not self.subjects or any(_is_subject(each, client) for each in self.subjects))
        )


def allowed_entries(policies: Iterable[EgressPolicy]) -> Iterator[AllowedEntry]:
    """The entries with hostnames of all policies that are for Gateways."""
    for policy in policies:
        spec, own = policy.spec, policy.metadata.namespace
        gateways = frozenset(f"{ref.namespace or own}/{ref.name}" for ref in spec.target_refs if ref.kind == "Gateway")
        for each in (spec.destinations.allow if spec.destinations is not None else None) or ():
            for hostname in each.hostnames if gateways else ():
                name, ports = f"{own}/{policy.metadata.name}", frozenset(each.ports)
                yield AllowedEntry(name, gateways, spec.subjects, hostname, ports)


def uses(records: Iterable[Record], entries: Iterable[AllowedEntry]) -> Iterator[tuple[Record, AllowedEntry]]:
    """Each record with each entry that allows it."""
    of_pattern: dict[str, list[AllowedEntry]] = defaultdict(list)
    for entry in entries:
        of_pattern[entry.hostname].append(entry)
    for record in records:
        for pattern in patterns_of(record.host):
            for entry in of_pattern.get(pattern, ()):
                if entry.allows(record.client, record.port):
                    yield record, entry


def _is_subject(subject: Subject, client: ClientKey) -> bool:
    if subject.group is not None or subject.claim is not None:
        return False
    namespace, _, domain = client.namespace.partition("@")
    return (
        subject.namespace == namespace
        and (subject.trust_domain or "") == domain
        and subject.service_account in (None, client.service_account)
    )
