"""The least that policies demand of TLS to a backend: version, CAs, revocation lists, pins."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from egressproxy.config.compile.certificates import common_ca
from egressproxy.config.compile.policies.policy_merge import Merged
from egressproxy.ir.backend import BackendIR, BackendTlsIR, Destination


class BackendUnusable(Exception):
    """A backend that policies do not let a place use; clients may read the message."""


class RegionDenied(BackendUnusable):
    """A backend, or a parent of it, that stands in a region which no policy of the place allows."""


class TlsFloor:
    """Applies it to backends. Equal settings under equal demands are computed once."""

    __slots__ = ("_harden",)

    def __init__(self) -> None:
        self._harden = cache(_hardened)

    def apply(self, spec: BackendIR, merged: Merged) -> BackendIR:
        """The backend, and its parent, with the policies' floor for TLS applied. Raises BackendUnusable."""
        if not merged.has_tls_floor:
            return spec
        parent = self.apply(spec.parent, merged) if spec.parent is not None else None
        if spec.other_parents:
            others = tuple(replace(each, backend=self.apply(each.backend, merged)) for each in spec.other_parents)
            spec = replace(spec, other_parents=others)
        tls = spec.tls
        if tls is None and spec.destination is Destination.DYNAMIC:
            tls = BackendTlsIR()
        if tls is None:
            return replace(spec, parent=parent)
        made = self._harden(tls, merged.min_version, merged.ca_pem, merged.crl_pem, merged.pins)
        if isinstance(made, str):
            raise BackendUnusable(made)
        return replace(spec, tls=made, parent=parent)


def _hardened(
    own: BackendTlsIR, min_version: str, ca_pem: str, crl_pem: str, pins: frozenset[str] | None
) -> BackendTlsIR | str:
    if (ca_pem or crl_pem) and own.insecure_skip_verify:
        return "the backend is not verified (insecureSkipVerify), and a policy demands that it is (tls)"
    if (ca_pem or crl_pem) and (own.skip_names or own.allow_expired):
        return "the backend is verified in part (mode of a BackendTLSPolicy), and a policy demands all of it (tls)"
    common = common_ca(own.ca_pem, ca_pem)
    if ca_pem and not common:
        return "the backend's caBundleRef has no CA in common with tls.caBundleRefs of the policies"
    shared = own.pins
    if pins is not None:
        shared = tuple(sorted(pins.intersection(own.pins) if own.pins else pins))
        if not shared:
            return "the backend's pins and the tls.pins of the policies have none in common"
    lists = own.crl_pem if crl_pem in own.crl_pem else own.crl_pem + crl_pem
    made = replace(own, min_version=max(own.min_version, min_version), ca_pem=common, crl_pem=lists, pins=shared)
    if ca_pem and own.trusted_pem:  # no certificate is trusted beside the CAs of the policies
        made = replace(made, trusted_pem=common if own.ca_pem == own.trusted_pem else "")
    return made
