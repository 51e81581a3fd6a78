"""Credentials without verified TLS: the namespace that may choose their DNS and parents.

With verified TLS only the server reads a credential. Otherwise DNS and parents decide about the reader, so settings of
another namespace must not be used: that namespace has no grant for the Secret either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from egressproxy.config.compile.backends.backend_references import ResolvedBackend
from egressproxy.config.compile.extensions.extension_faults import INJECTOR
from egressproxy.config.compile.extensions.ranked_extension import RankedExtension
from egressproxy.config.compile.policies.layers import Layers, Level
from egressproxy.config.compile.policies.policy_attachment import PolicyAttachments
from egressproxy.config.compile.policies.policy_merge import ChosenParent
from egressproxy.config.compile.policies.tls_floor import BackendUnusable
from egressproxy.ir.backend import BackendIR, BackendTlsIR, Destination
from egressproxy.ir.policy import DnsIR, ExtensionIR, Mode, PolicyIR

#: The injector's setting that allows sending without TLS.
_PLAIN: Final = "allow_plaintext"


class CredentialDns:
    """The DNS settings for a name that receives a credential without verified TLS: never those of another namespace."""

    __slots__ = ("_policies", "_with_own_dns")

    def __init__(self, policies: PolicyAttachments) -> None:
        self._policies = policies
        self._with_own_dns: dict[tuple[int, DnsIR], PolicyIR] = {}

    def of_parent(self, spec: BackendIR, layers: Layers, namespace: str) -> DnsIR | None:
        """The DNS settings for a parent with credentials: those of `namespace`, which names the credentials. A route or
        Backend of another namespace may use the parent, but must not redirect the password.

        `layers` are those of the place. None: the backend's settings apply to its parent, too.
        """
        parent = spec.parent
        if parent is None or spec.parent_credentials is None:
            return None
        if parent.destination is not Destination.FQDN or not _is_unverified(parent.tls):
            return None
        own = tuple(layer for layer in layers if layer.target[2] == namespace)
        return self._policies.merge(own, is_routed=True).policy.dns if own != layers else None

    def of_backend(
        self, policy: PolicyIR, resolved: ResolvedBackend, layers: Layers, filters: Iterable[RankedExtension]
    ) -> PolicyIR:
        """The policy for a backend that gets a credential from these filters: with the DNS settings of its own
        namespace and Gateways, not those of a route or Failover of another namespace.
        """
        own = tuple(each for each in layers if each.level < Level.BACKEND or each.target[2] == resolved.target[2])
        if own == layers or exposed_sender(resolved, filters) is None:
            return policy
        dns = self._policies.merge(own, is_routed=True).policy.dns
        key = (id(policy), dns)  # merged values live as long as this object
        if dns != policy.dns and key not in self._with_own_dns:
            self._with_own_dns[key] = replace(policy, dns=dns)
        return self._with_own_dns.get(key, policy)


def refuse_exposure(resolved: ResolvedBackend, chosen: ChosenParent | None, own: Iterable[RankedExtension]) -> None:
    """Raise BackendUnusable if a policy's parent must not be used for a backend.

    `own` are the filters of the backend's namespace: one may send a credential in the clear, which the parent of
    another namespace would read.
    """
    if not resolved.parent_by or chosen is None or chosen.policy.namespace == resolved.target[2]:
        return
    sender = exposed_sender(resolved, own)
    if sender is None:
        return
    how, name = "without TLS" if resolved.spec.tls is None else "without verifying it", resolved.spec.name
    raise BackendUnusable(
        f"{sender.source} sends its credential to {name} {how}, and not through the parent that {chosen.policy}, of "
        f"another namespace, names: name it in parent of {name}, or verify the server's certificate (tls)"
    )


def exposed_sender(resolved: ResolvedBackend, own: Iterable[RankedExtension]) -> ExtensionIR | None:
    """The first of these filters that sends a credential without verifying the backend's certificate."""
    tls = resolved.spec.tls
    if not _is_unverified(tls):
        return None
    for each in own:
        if each.spec.type.startswith(INJECTOR) and (tls is not None or getattr(each.spec.settings, _PLAIN, False)):
            return each.spec
    return None


def exposed_to_tenants(policy: PolicyIR, placed: Iterable[RankedExtension]) -> str:
    """Why destinations allowed only by policies of another namespace are not served; "" if they are.

    `placed` are their filters. A filter's credential is only for destinations that its owner allows.
    """
    if not policy.destinations.is_delegated or policy.mode is not Mode.ENFORCE:
        return ""
    sender = next((each.spec for each in placed if each.spec.type.startswith(INJECTOR)), None)
    if sender is None:
        return ""
    named = ", ".join(dict.fromkeys(name for names in policy.destinations.listed for name in names))
    return (
        f"{sender.source} sends its credential ({sender.name}), and only policies of another namespace allow "
        f"destinations here ({named}): put the credential on a route or Backend, or say in destinations.allow of a "
        "policy of the Gateway's namespace where it may go"
    )


def requires_tls(spec: ExtensionIR) -> bool:
    """Whether this filter sends a credential, and refuses requests to a backend without TLS."""
    return spec.type.startswith(INJECTOR) and spec.is_known and not getattr(spec.settings, _PLAIN, True)


def _is_unverified(tls: BackendTlsIR | None) -> bool:
    return tls is None or not tls.is_verified
