"""In force: what the EgressPolicies of a configuration allow, and which of their entries were used. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from egressproxy.config.resources.policy import EgressPolicy, Subject
from egressproxy.operators.learning.observations import ClientKey, Record


@dataclass(frozen=True, slots=True)
class AllowedEntry:
    """A hostname of an `allow` list: whose policy it is in (namespace/name), and for whom and where it holds.
    `subjects` is None for everybody, `ports` empty for every port.
    """

    policy: str
    gateways: frozenset[str]
    subjects: tuple[Subject, ...]
    hostname: str
    ports: frozenset[int]

    def allows(self, client: ClientKey, host: str, port: int) -> bool:
        """Whether the entry allows this client to reach this destination. Groups and claims of clients are not known:
        a subject with one matches nobody.
        """
        return (
            client.gateway in self.gateways
            and (not self.ports or port in self.ports)
            and _matches(self.hostname, host)
            and (not self.subjects or any(_is_subject(each, client) for each in self.subjects))
        )


def allowed_entries(policies: Iterable[EgressPolicy]) -> list[AllowedEntry]:
    """The entries with hostnames of all policies that are for Gateways."""
    return [entry for policy in policies for entry in _entries(policy)]


def not_allowed(records: Iterable[Record], entries: Iterable[AllowedEntry]) -> list[Record]:
    """The records that no entry allows."""
    exact: dict[str, list[AllowedEntry]] = {}
    for entry in entries:
        exact.setdefault(entry.hostname, []).append(entry)
    return [
        record for record in records
        if not any(
            entry.allows(record.client, record.host, record.port)
            for pattern in _patterns(record.host)
            for entry in exact.get(pattern, ())
        )
    ]  # fmt: skip


def last_used(records: Iterable[Record], entries: Iterable[AllowedEntry]) -> dict[AllowedEntry, float]:
    """When each entry was last used (seconds since 1970), -infinity for never."""
    found = dict.fromkeys(entries, float("-inf"))
    exact: dict[str, list[AllowedEntry]] = {}
    for entry in found:
        exact.setdefault(entry.hostname, []).append(entry)
    for record in records:
        for pattern in _patterns(record.host):
            for entry in exact.get(pattern, ()):
                if record.last > found[entry] and entry.allows(record.client, record.host, record.port):
                    found[entry] = record.last
    return found


def _entries(policy: EgressPolicy) -> Iterator[AllowedEntry]:
    spec, own = policy.spec, policy.metadata.namespace
    gateways = frozenset(f"{ref.namespace or own}/{ref.name}" for ref in spec.target_refs if ref.kind == "Gateway")
    for each in (spec.destinations.allow if spec.destinations is not None else None) or ():
        for hostname in each.hostnames if gateways else ():
            yield AllowedEntry(
                f"{own}/{policy.metadata.name}", gateways, spec.subjects, hostname, frozenset(each.ports)
            )


def _patterns(host: str) -> Iterator[str]:
    yield host
    while host := host.partition(".")[2]:
        yield f"*.{host}"


def _matches(pattern: str, host: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def _is_subject(subject: Subject, client: ClientKey) -> bool:
    if subject.group is not None or subject.claim is not None:
        return False
    namespace, _, domain = client.namespace.partition("@")
    return (
        subject.namespace == namespace
        and (subject.trust_domain or "") == domain
        and subject.service_account in (None, client.service_account)
    )
