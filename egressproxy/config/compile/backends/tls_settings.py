"""The TLS of a Backend's port, with its certificates read: BackendTlsIR.

Sources: the AI Gateway working group's egress proposal, GEP-4488 (XBackend).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from egressproxy.config.compile.backends.published_forms import TlsForm
from egressproxy.config.compile.references import References, UnresolvedCollector
from egressproxy.config.resources.meta import Resource
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.model.certificate import CertificateUse


def port_tls(references: References, backend: Resource, form: TlsForm | None, field: str) -> BackendTlsIR | None:
    """TLS to a port of a backend as it is written at `field`; None for plain text. Raises UnresolvedRef."""
    if form is None or form.mode == "None":
        return None
    found = UnresolvedCollector()
    made = BackendTlsIR(
        sni=form.sni,
        ca_pem="".join(
            found.take(f"{field}.{form.ca_field}[{index}]", partial(references.ca_bundle, backend, ref, key), "")
            for index, (ref, key) in enumerate(form.cas)
        ),
        names=form.names,
        ca_source=references.names(backend, [ref for ref, _ in form.cas]),
    )
    written = form.source
    if written is not None:
        made = replace(
            made,
            min_version=written.min_version,
            insecure_skip_verify=written.insecure_skip_verify,
            crl_pem="".join(
                found.take(f"{field}.crlRefs[{index}]", partial(references.crl, backend, ref), "")
                for index, ref in enumerate(written.crl_refs)
            ),
            pins=written.pins,
        )
    if form.client is not None and form.mode in ("Mutual", "ClientAndServer"):
        read = partial(references.key_pair, backend, form.client, CertificateUse.CLIENT, form.client_key)
        pair = found.take(f"{field}.clientCertificateRef", read, None)
        if pair is not None:
            source = references.names(backend, (form.client,))
            made = replace(made, client_certificate=pair.chain_pem, client_key=pair.key_pem, client_source=source)
    found.raise_if_any()
    return made
