"""The `tls` section of a Backend, with its certificates read: BackendTlsIR.

Sources: the AI Gateway working group's egress proposal, GEP-4488 (XBackend).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from egressproxy.config.compile.backends.backend_tls import validated_tls
from egressproxy.config.compile.backends.published_forms import TlsForm
from egressproxy.config.compile.interface import Reference
from egressproxy.config.compile.references import References, UnresolvedCollector
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.x_backend import XBackend
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.model.certificate import CertificateUse

__all__ = ["port_tls", "x_backend_tls"]


def port_tls(references: References, backend: Resource, form: TlsForm | None, field: str) -> BackendTlsIR | None:
    """TLS to a port of a Backend as it is written at `field`; None for plain text. Raises UnresolvedRef."""
    if form is None or form.mode == "None":
        return None
    found = UnresolvedCollector()
    made = BackendTlsIR(
        sni=form.sni,
        ca_pem="".join(
            found.take(f"{field}.caBundleRef[{index}]", partial(references.ca_bundle, backend, ref, key), "")
            for index, (ref, key) in enumerate(form.cas)
        ),
        ca_source=references.names(backend, [ref for ref, _ in form.cas]),
    )
    written = form.source
    if written is not None:
        made = replace(
            made,
            names=form.names,
            min_version=written.min_version,
            insecure_skip_verify=written.insecure_skip_verify,
            crl_pem="".join(
                found.take(f"{field}.crlRefs[{index}]", partial(references.crl, backend, ref), "")
                for index, ref in enumerate(written.crl_refs)
            ),
            pins=written.pins,
        )
    if form.client is not None and form.mode == "Mutual":
        read = partial(_with_client_certificate, references, backend, form.client, made, form.client_key)
        made = found.take(f"{field}.clientCertificateRef", read, made)
    found.raise_if_any()
    return made


def x_backend_tls(references: References, backend: XBackend) -> BackendTlsIR:
    """TLS to an XBackend that has a `tls` section. Raises UnresolvedRef."""
    written, made = backend.spec.tls, BackendTlsIR()
    if written is None:
        return made
    found = UnresolvedCollector()
    refs = written.validation.ca_certificate_refs if written.validation is not None else ()
    pem = "".join(
        found.take(f"spec.tls.validation.caCertificateRefs[{index}]", partial(references.ca_bundle, backend, ref), "")
        for index, ref in enumerate(refs)
    )
    if written.client_certificate_ref is not None:
        read = partial(_with_client_certificate, references, backend, written.client_certificate_ref, made)
        made = found.take("spec.tls.clientCertificateRef", read, made)
    found.raise_if_any()
    if written.validation is None:
        return made
    return replace(
        validated_tls(backend, written.validation, pem, references),
        client_certificate=made.client_certificate,
        client_key=made.client_key,
        client_source=made.client_source,
    )


def _with_client_certificate(
    references: References, backend: Resource, ref: Reference, tls: BackendTlsIR, chain_key: str = "tls.crt"
) -> BackendTlsIR:
    pair = references.key_pair(backend, ref, CertificateUse.CLIENT, chain_key)
    source = references.names(backend, (ref,))
    return replace(tls, client_certificate=pair.chain_pem, client_key=pair.key_pem, client_source=source)
