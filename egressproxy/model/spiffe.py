"""SPIFFE ids of Kubernetes workloads: `spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT`, as Istio writes them.

Sources: SPIFFE-ID (trust domain and path), X509-SVID section 2 (a certificate has exactly one URI), RFC 1123.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from egressproxy.model.exchange import ANONYMOUS, CallerIdentity, namespace_in

#: The name of a trust domain, without its scheme.
TRUST_DOMAIN: Final = re.compile(r"[a-z0-9._-]{1,255}")
_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_WORKLOAD: Final = re.compile(
    rf"spiffe://(?P<domain>{TRUST_DOMAIN.pattern})/ns/(?P<namespace>{_LABEL})"
    r"/sa/(?P<account>[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?)"
)


def workload(uris: Sequence[str], trust_domains: Sequence[str]) -> CallerIdentity:
    """Who shows a verified certificate with these URIs (subject alternative names). ANONYMOUS where it has another
    number of them than one, or its id is that of no workload in one of these trust domains, of which the first is the
    gateway's own.
    """
    found = _WORKLOAD.fullmatch(uris[0]) if len(uris) == 1 else None
    if found is None or found["domain"] not in trust_domains:
        return ANONYMOUS
    namespace = namespace_in(found["domain"], found["namespace"], trust_domains[0])
    return CallerIdentity(namespace, found["account"], name=found[0], source="certificate")
