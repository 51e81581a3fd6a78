"""The least that policies demand of TLS to a backend: version, CAs, revocation lists, pins."""

from __future__ import annotations

from dataclasses import replace

from egressproxy.config.compile.certificates import common_ca
from egressproxy.config.compile.policies.policy_merge import Merged
from egressproxy.ir.backend import BackendIR, BackendTlsIR, Destination


class BackendUnusable(Exception):
    """A backend that policies do not let a place use; clients may read the message."""


class RegionDenied(BackendUnusable):
    """A backend, or a parent of it, that stands in a region which no policy of the place allows."""


class TlsFloor:
    """Applies it to backends. Equal settings under equal demands are computed once."""

    __slots__ = ("_hardened",)

    def __init__(self) -> None:
        self._hardened: dict[tuple[object, ...], BackendTlsIR | str] = {}

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
        key = (tls, merged.min_version, merged.ca_pem, merged.crl_pem, merged.pins)
        if key not in self._hardened:
            self._hardened[key] = _harden(tls, merged)
        made = self._hardened[key]
        if isinstance(made, str):
            raise BackendUnusable(made)
        return replace(spec, tls=made, parent=parent)


def _harden(tls: BackendTlsIR, merged: Merged) -> BackendTlsIR | str:
    if (merged.ca_pem or merged.crl_pem) and tls.insecure_skip_verify:
        return "the backend is not verified (insecureSkipVerify), and a policy demands that it is (tls)"
    ca_pem = common_ca(tls.ca_pem, merged.ca_pem)
    if merged.ca_pem and not ca_pem:
        return "the backend's caBundleRef has no CA in common with tls.caBundleRefs of the policies"
    pins = tls.pins
    if merged.pins is not None:
        pins = tuple(sorted(merged.pins.intersection(tls.pins) if tls.pins else merged.pins))
        if not pins:
            return "the backend's pins and the tls.pins of the policies have none in common"
    crl_pem = tls.crl_pem if merged.crl_pem in tls.crl_pem else tls.crl_pem + merged.crl_pem
    return replace(tls, min_version=max(tls.min_version, merged.min_version), ca_pem=ca_pem, crl_pem=crl_pem, pins=pins)
