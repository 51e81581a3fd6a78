"""DnsMerger: what the `dns` sections of policies, and the `resolver` of a Backend, say together at one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from egressproxy.config.compile.dns_section import dns_blockers, plain_servers
from egressproxy.config.compile.policies.layers import EffectivePolicy, Layer, PolicyCandidate, plain_value
from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.resources.policy import Dns, EgressPolicy
from egressproxy.ir.policy import DnsIR
from egressproxy.model.published_object import Key

#: Those of the system, in plain text: transport, servers, and what else `merge` reads.
_NO_SERVERS = ("udp", (), "", "", "")


class DnsMerger:
    """Field by field the more specific section wins; the servers and what they are verified with go together."""

    __slots__ = ("_references", "_trusted", "_winners")

    def __init__(self, references: References, effective: EffectivePolicy) -> None:
        self._references = references
        self._winners = effective
        #: Of DNS servers, by who says it: PEM, where it is from, and why it cannot be had.
        self._trusted: dict[tuple[Key, Any], tuple[str, str, str]] = {}

    def merge(self, ordered: Sequence[Layer], unenforceable: dict[str, None]) -> DnsIR:
        """What the `dns` sections of these layers say, most specific first; `unenforceable` gets what is not
        enforced.
        """
        sections: list[tuple[Layer, EgressPolicy | None, Dns]] = []
        for layer in ordered:
            if layer.resolver is not None:
                sections.append((layer, None, layer.resolver))
                unenforceable.update(dict.fromkeys(dns_blockers(layer.resolver, layer.place)))
            sections += [(layer, policy, policy.spec.dns) for policy in layer.policies if policy.spec.dns is not None]

        def winner(name: str, attribute: str, default: Any) -> Any:
            """The value of the section that wins, a duration in seconds."""
            candidates = [
                PolicyCandidate(layer, policy, getattr(dns, attribute))
                for layer, policy, dns in sections
                if attribute in dns.model_fields_set and getattr(dns, attribute) is not None
            ]
            found = self._winners.choose(f"dns.{name}", candidates)
            return default if found is None else plain_value(found)

        # The transport and the CAs belong to the servers: one policy decides all.
        candidates = [
            PolicyCandidate(layer, policy, (*plain_servers(dns), *self._trust_of(layer, policy, dns)))
            for layer, policy, dns in sections
            if {"servers", "transport"} & dns.model_fields_set
        ]
        transport, servers, ca_pem, ca_source, problem = self._winners.choose("dns.servers", candidates) or _NO_SERVERS
        if problem:
            unenforceable[problem] = None
        standard = DnsIR()
        min_ttl_s = winner("minTTL", "min_ttl", standard.min_ttl_s)
        max_ttl_s = winner("maxTTL", "max_ttl", max(min_ttl_s, standard.max_ttl_s))
        new_names = winner("newNames", "new_names", None)
        return DnsIR(
            new_names=0 if new_names is None else new_names.limit,
            new_names_window_s=standard.new_names_window_s if new_names is None else new_names.window.seconds,
            servers=servers,
            transport=transport,
            ca_pem=ca_pem,
            ca_source=ca_source,
            min_ttl_s=min(min_ttl_s, max_ttl_s),
            max_ttl_s=max_ttl_s,
            timeout_s=winner("timeout", "timeout", standard.timeout_s),
            stale_ttl_s=winner("staleTTL", "stale_ttl", standard.stale_ttl_s),
            max_negative_ttl_s=winner("maxNegativeTTL", "max_negative_ttl", standard.max_negative_ttl_s),
            prefetch=winner("prefetch", "prefetch", standard.prefetch),
            dnssec=winner("dnssec", "dnssec", standard.dnssec),
            hosts=tuple(sorted((name, tuple(found)) for name, found in winner("hosts", "hosts", {}).items())),
            family=winner("family", "family", standard.family),
            reverse_check=winner("reverseCheck", "reverse_check", standard.reverse_check),
        )

    def _trust_of(self, layer: Layer, policy: EgressPolicy | None, dns: Dns) -> tuple[str, str, str]:
        if policy is not None:
            return self.trust(policy.key, f"dns.caCertificateRefs of {policy}", dns)
        return self.trust(layer.target, f"resolver.caCertificateRefs of {layer.place}", dns)

    def trust(self, owner: Key, field_name: str, dns: Dns) -> tuple[str, str, str]:
        """What servers over TLS are verified with: PEM, where it is from, and why it cannot be had, or ""."""
        known = owner, dns.ca_certificate_refs
        if dns.ca_certificate_refs and known not in self._trusted:
            try:
                self._trusted[known] = *self._references.ca_of(owner, dns.ca_certificate_refs), ""
            except UnresolvedRef as unresolved:
                self._trusted[known] = "", "", f"{field_name}: {unresolved.message}"
        return self._trusted.get(known, ("", "", ""))
