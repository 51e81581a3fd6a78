"""Credentials that go where nobody looks at a certificate: who decides then where that is, and by what way.

With TLS that is verified, nobody but the server reads a credential. Without, names and parents decide who does, and
those that another namespace chooses must not (as a ReferenceGrant keeps it from the Secret itself).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from egressproxy.config.compile.backends import ResolvedBackend
from egressproxy.config.compile.filters import INJECTOR, Placed
from egressproxy.config.compile.merging import ChosenParent
from egressproxy.spec.backend import BackendSpec, BackendTlsSpec, Destination

__all__ = ["exposed_by_parent", "has_exposed_parent"]

#: The setting of an injector that lets it send without TLS.
_PLAIN: Final = "allow_plaintext"


def has_exposed_parent(backend: BackendSpec) -> bool:
    """Whether the name of the parent alone decides who is shown the credentials for it."""
    parent = backend.parent
    if parent is None or backend.parent_credentials is None:
        return False
    return parent.destination is Destination.FQDN and _is_unverified(parent.tls)


def exposed_by_parent(resolved: ResolvedBackend, chosen: ChosenParent | None, own: Iterable[Placed]) -> str:
    """Why a backend must not be reached through the parent that a policy has chosen; "" if it may.

    `own` are the filters that its namespace has placed: one of them may send a credential in the clear, which the
    parent of another namespace would read.
    """
    tls = resolved.spec.tls
    if not resolved.parent_by or chosen is None or chosen.policy.namespace == resolved.target[2]:
        return ""
    if not _is_unverified(tls):
        return ""
    for each in own:
        if each.spec.type.startswith(INJECTOR) and (tls is not None or getattr(each.spec.settings, _PLAIN, False)):
            how = "without TLS" if tls is None else "with insecureSkipVerify"
            name = resolved.spec.name
            return (
                f"{each.spec.source} sends its credential to {name} {how}, and not through the parent that "
                f"{chosen.policy}, of another namespace, names: name it in parent of {name}, or verify the server's "
                "certificate (tls)"
            )
    return ""


def _is_unverified(tls: BackendTlsSpec | None) -> bool:
    return tls is None or tls.insecure_skip_verify
