"""The published forms of a Backend's destination, read into one: its ports, each with what is spoken and its TLS.

The working group's proposals write port, protocol and TLS in several places and spellings (`resources.destination`).
No other module knows these forms. What a schema admits and cannot be served is an `UnresolvedRef`, for that port
alone. Sources: as in `resources.destination`; MCP revisions: modelcontextprotocol.io, Versioning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from egressproxy.config.compile.interface import Reference
from egressproxy.config.compile.references import UnresolvedRef
from egressproxy.config.resources.backend import BackendTlsPolicy, DestinationSpec, WorkingGroupBackendSpec
from egressproxy.config.resources.destination import BackendTls, FailoverEndpoint, FqdnTls
from egressproxy.config.resources.spellings import is_vendors
from egressproxy.config.resources.x_backend import BackendTlsValidation, XBackendSpec
from egressproxy.ir.backend import AiIR, McpIR, Protocol
from egressproxy.model.mcp import MCP_REVISIONS
from egressproxy.model.near_names import did_you_mean

#: The port of a destination that names none.
DEFAULT_PORT: Final = 443

#: A path without query (RFC 3986 section 3.3), as far as it can stand in a request line.
_PATH: Final = re.compile(r"/[!-\"$->@-~]*")
#: Protocols in which no API of an AI provider is served.
_WITHOUT_AI: Final = frozenset(("GRPC", "MCP", "SOCKS5", "TCP", "WSS"))
#: What a mode asks for, where it is another word for one of ours.
_MEANS: Final = {"PlatformProvided": "Simple", "InsecureDisable": "None"}
#: Protocols that are HTTP over TLS by their name.
_OVER_TLS: Final = frozenset({"TLS", "HTTPS"})
#: Protocols to which TLS does not belong by their name: bytes as they are, and what is without TLS.
_WITHOUT_TLS: Final = frozenset({"H2C", "SOCKS5", "TCP"})


@dataclass(frozen=True, slots=True)
class TlsForm:
    """How a port is secured. `mode`: None, Simple (ServerOnly), Mutual (ClientAndServer), or one that no backend has.

    `cas` are references to CA certificates, each with its key; `client` to a certificate, whose chain is under
    `client_key`. `names` are those of which the server's certificate has to carry one. `source` is what was written,
    for the rest, `validation` a part of it, and `ca_field` the field of the CA certificates. `policy` says all of it
    where the backend does not.
    """

    mode: str
    sni: str = ""
    cas: tuple[tuple[Reference, str], ...] = ()
    client: Reference | None = None
    client_key: str = "tls.crt"
    names: tuple[str, ...] = ()
    source: BackendTls | None = None
    validation: BackendTlsValidation | None = None
    ca_field: str = "caBundleRef"
    policy: BackendTlsPolicy | None = None

    @property
    def is_unverified(self) -> bool:
        return self.mode != "None" and self.source is not None and self.source.insecure_skip_verify


@dataclass(frozen=True, slots=True)
class PortForm:
    """One port: the protocol as it is known (or a vendor's), and its TLS; None: nothing says it. `is_written`: the
    backend has it in a field of its own.
    """

    number: int
    protocol: str
    tls: TlsForm | None
    is_written: bool = True
    name: str = ""

    @property
    def how(self) -> str:
        """How it is secured, for people."""
        tls = self.tls
        if tls is None:
            return "no tls said"
        if tls.policy is not None:
            return f"TLS by {tls.policy}"
        if tls.mode == "None":
            return "plain text"
        is_default = not self.is_written and self.protocol not in _OVER_TLS
        return f"TLS {tls.mode}" + (" by default: tls.mode None switches it off" if is_default else "")


def tls_field(spec: DestinationSpec, number: int) -> str:
    """The field with the TLS of a port, as it is written."""
    for index, entry in enumerate(spec.destination.ports):
        if entry.value == number and entry.tls is not None:
            return f"spec.destination.ports[{index}].tls"
    if spec.tls is not None:
        return "spec.tls"
    return "spec.destination.tls" if spec.destination.tls is not None else "spec.destination.fqdn.tls"


def port_forms(spec: DestinationSpec) -> tuple[PortForm, ...]:
    """The ports of a destination. Without `ports`: the one that `fqdn.port` names, or 443. Without them a Dynamic
    destination has number 0, for every port, where it says tls; else none, as Failover.
    """
    destination = spec.destination
    fqdn = destination.fqdn
    shared = _tls(spec.tls or destination.tls or (fqdn.tls if fqdn is not None else None))
    protocol = fqdn.protocol.type if fqdn is not None and fqdn.protocol is not None else ""
    has_default = isinstance(spec, WorkingGroupBackendSpec) and destination.type == "Fqdn"
    if destination.ports:
        return tuple(
            _form(
                entry.value,
                protocol if protocol and "protocol" not in entry.model_fields_set else entry.protocol,
                _tls(entry.tls) or shared,
                entry.name or "",
                has_default=has_default,
            )
            for entry in destination.ports
        )
    if destination.type in ("Dynamic", "Failover"):
        return (PortForm(0, "HTTP", shared),) if shared is not None and destination.type == "Dynamic" else ()
    number = fqdn.port if fqdn is not None and fqdn.port is not None else DEFAULT_PORT
    return (_form(number, protocol or "HTTP", shared, has_default=has_default),)


def x_backend_form(spec: XBackendSpec) -> PortForm:
    """The port of an XBackend. H2C says by its name that there is no TLS."""
    protocol, written = spec.protocol or "HTTP", spec.tls
    name = spec.port.name or ""
    if written is None:
        return PortForm(spec.port.value, protocol, TlsForm("None") if protocol == "H2C" else None, False, name)
    tls = TlsForm(written.mode, client=written.client_certificate_ref)
    validation = written.validation
    if validation is not None:
        cas = tuple((ref, "ca.crt") for ref in validation.ca_certificate_refs)
        field, names = "validation.caCertificateRefs", validation.names
        sni = validation.hostname or ""
        tls = replace(tls, sni=sni, cas=cas, names=names, validation=validation, ca_field=field)
    return PortForm(spec.port.value, protocol, tls, name=name)


def _form(number: int, protocol: str, tls: TlsForm | None, name: str = "", *, has_default: bool) -> PortForm:
    """`has_default`: in the published schemas tls is optional. An external name is reached over TLS without it, unless
    the protocol is one without TLS; at port 443 nothing is meant so.
    """
    if tls is not None:
        return PortForm(number, protocol, tls, name=name)
    # The first say by themselves that TLS is spoken, and is verified.
    if protocol in _OVER_TLS or (has_default and protocol not in _WITHOUT_TLS):
        tls = TlsForm("Simple")
    elif has_default and number != DEFAULT_PORT:
        tls = TlsForm("None")
    return PortForm(number, protocol, tls, False, name)


def protocol_of(backend: object, form: PortForm, *, is_stream: bool) -> Protocol:
    """What is spoken to a port, by streams (TLSRoute, TCPRoute) or requests. Raises UnresolvedRef: a vendor's own."""
    if form.protocol in _OVER_TLS:
        return Protocol.TCP if is_stream else Protocol.HTTP
    if form.protocol == "A2A":
        return Protocol.HTTP
    if form.protocol == "WSS":  # a WebSocket is asked for in HTTP/1.1 (RFC 6455 section 4.1)
        return Protocol.HTTP11
    if is_vendors(form.protocol):
        message = f"protocol {form.protocol} of {backend} is not known here: write HTTP, if it is that beneath"
        raise UnresolvedRef("UnsupportedProtocol", message)
    return Protocol(form.protocol)


def check_tls(backend: object, form: PortForm) -> None:
    """Raise UnresolvedRef where a port's TLS cannot be served as it is written."""
    tls = form.tls
    if tls is None:
        return
    if tls.mode in ("Passthrough", "Terminate"):
        raise UnresolvedRef(
            "UnsupportedValue",
            f"tls.mode {tls.mode} of {backend} is the listener's business (a TLSRoute on a TLS listener): write Simple "
            "for a backend that is reached over TLS",
        )
    if is_vendors(tls.mode):
        message = f"tls.mode {tls.mode} of {backend} is a vendor's own, and not known here"
        raise UnresolvedRef("UnsupportedValue", message, "write Simple for TLS that is verified")
    if tls.validation is not None:
        check_roots(tls.validation)
    if tls.mode == "Mutual" and tls.client is None:
        message = f"tls.mode Mutual of {backend} needs clientCertificateRef: add it, or write Simple"
        raise UnresolvedRef("UnsupportedValue", message)


def check_roots(validation: BackendTlsValidation) -> None:
    """Raise UnresolvedRef for CA certificates that a vendor has a name for."""
    roots = validation.well_known_ca_certificates
    if roots is not None and is_vendors(roots):
        message = f"wellKnownCACertificates {roots} is a vendor's own, and not known here"
        raise UnresolvedRef("UnsupportedValue", message, "write System, or caCertificateRefs")


def notes(spec: DestinationSpec, forms: Sequence[PortForm]) -> Iterator[str]:
    """What is accepted and means less, or something else, than it seems to. `forms` are the ports as they are read."""
    sentences: dict[str, None] = {}
    is_published = isinstance(spec, WorkingGroupBackendSpec)
    for form in forms:
        if form.tls is not None:
            sentences.update(dict.fromkeys(_tls_notes(form.tls, is_published=is_published)))
    yield from sentences
    for port, form in zip(spec.destination.ports, forms, strict=False):
        options = port.protocol_options
        if options is not None and options.mcp is not None and form.protocol != "MCP":
            yield f"protocolOptions.mcp of port {port.value} does nothing: its protocol is {form.protocol}, not MCP."
        if options is not None and options.ai is not None and form.protocol in _WITHOUT_AI:
            yield f"protocolOptions.ai of port {port.value} does nothing: its protocol is {form.protocol}."


def _tls_notes(tls: TlsForm, *, is_published: bool) -> Iterator[str]:
    written = tls.source
    if written is None:
        return
    checks: dict[str, object] = {"crlRefs": written.crl_refs, "validation": written.validation}
    if written.validation is None:
        checks = {"caBundleRef": tls.cas, "subjectAltNames": tls.names, **checks}
    if tls.mode == "None":
        more = {
            "pins": written.pins,
            "minVersion": "min_version" in written.model_fields_set,
            "insecureSkipVerify": written.insecure_skip_verify,
        }
        fields = {"sni": written.sni or written.server_name, **checks, **more}
        if unused := [name for name, value in fields.items() if value]:
            # The published examples have these fields beside every mode: no reason to fail a check.
            effect = "not used" if is_published else "does nothing"
            yield f"tls.{', tls.'.join(unused)} with mode {written.mode}: {effect} without TLS."
    elif tls.is_unverified and (unused := [name for name, value in checks.items() if value]):
        yield f"tls.{', tls.'.join(unused)} with insecureSkipVerify: does nothing, nothing is verified."
    if tls.client is not None and tls.mode in ("None", "Simple"):
        yield f"tls.clientCertificateRef with mode {written.mode}: does nothing, it is shown with mode Mutual."
    if written.mode == "PlatformProvided" and tls.cas:
        yield "tls.mode PLATFORM_PROVIDED with caBundleRef: the server is verified with that, not with the system's."


def mcp_options(spec: DestinationSpec, form: PortForm) -> McpIR | None:
    """What a port of protocol MCP says of it; a revision that is not known, and what is no path, say nothing."""
    for port in spec.destination.ports:
        mcp = port.protocol_options.mcp if port.protocol_options is not None else None
        if port.value == form.number and mcp is not None and form.protocol == "MCP":
            version = mcp.version if mcp.version in MCP_REVISIONS else ""
            return McpIR(version, mcp.path if _PATH.fullmatch(mcp.path) else "")
    return None


def ai_options(spec: DestinationSpec, form: PortForm) -> AiIR | None:
    """What a port says of the APIs of its provider. A prefix that is no path says nothing."""
    for port in spec.destination.ports:
        ai = port.protocol_options.ai if port.protocol_options is not None else None
        if port.value == form.number and ai is not None and form.protocol not in _WITHOUT_AI:
            prefix = ai.prefix.rstrip("/") if ai.prefix and _PATH.fullmatch(ai.prefix) else ""
            drops = ai.untranslatable == "Drop"
            return AiIR(ai.apis, prefix, drops, ai.max_body_bytes, ai.azure_api_version or "")
    return None


def port_option_errors(spec: DestinationSpec) -> Iterator[str]:
    """What protocolOptions say that cannot be right."""
    for port in spec.destination.ports:
        mcp = port.protocol_options.mcp if port.protocol_options is not None else None
        if mcp is not None and mcp.version and mcp.version not in MCP_REVISIONS:
            remedy = did_you_mean(mcp.version, MCP_REVISIONS, f"known are {', '.join(MCP_REVISIONS)}", 0.8)
            yield f"protocolOptions.mcp.version {mcp.version} of port {port.value} is no revision of MCP: {remedy}"
        if mcp is not None and not _PATH.fullmatch(mcp.path):
            yield (
                f"protocolOptions.mcp.path {mcp.path} of port {port.value} is no path: it starts with /, and has no "
                "query, fragment, blanks nor other characters than those of ASCII"
            )
        ai = port.protocol_options.ai if port.protocol_options is not None else None
        if ai is not None and ai.prefix and not _PATH.fullmatch(ai.prefix):
            yield f"protocolOptions.ai.prefix {ai.prefix} of port {port.value} is no path, such as /openai/v1"


def destination_summary(spec: DestinationSpec, forms: Sequence[PortForm]) -> str:
    """What became of a destination with these ports, for people: "api.example.com:443 (HTTP, TLS Simple)"."""
    destination = spec.destination
    service = destination.named_service
    if destination.fqdn is not None:
        host = destination.fqdn.hostname
    elif destination.ip is not None:
        host = f"[{destination.ip.address}]" if destination.ip.address.version == 6 else str(destination.ip.address)
    elif service is not None:
        host = f"Service {service.namespace + '/' if service.namespace else ''}{service.name}"
    elif destination.failover is not None:
        endpoints = sorted(destination.failover.endpoints, key=lambda endpoint: endpoint.priority)
        return f"the first that serves of {', '.join(map(_asked, endpoints))}"
    else:
        if destination.type == "Dynamic":
            how = f" ({forms[0].how})" if forms and not forms[0].is_written else ""
            return f"the destination that the request names{how}"
        return f"type {destination.type}, which is not served"
    return ", ".join(f"{host}:{form.number} ({_spoken(form)}{_served_apis(spec, form)})" for form in forms)


def _asked(endpoint: FailoverEndpoint) -> str:
    models = [f"{sent} for {asked}" for asked, sent in endpoint.model_aliases.items()]
    if endpoint.model_alias is not None:
        models.append(f"{endpoint.model_alias} for {'every other model' if models else 'every model'}")
    return endpoint.backend_ref.name + (f" (asked for {', '.join(models)})" if models else "")


def _served_apis(spec: DestinationSpec, form: PortForm) -> str:
    """The APIs that a port serves, to the first of which others are translated; "" where none is said."""
    ai = ai_options(spec, form)
    if ai is None:
        return ""
    return f", {' and '.join(ai.apis)}{f' at {ai.prefix}' if ai.prefix else ''}"


def _spoken(form: PortForm) -> str:
    name = "HTTP" if form.protocol in (*_OVER_TLS, "A2A") else form.protocol
    return f"{name}, {form.how}"


def _tls(written: BackendTls | None) -> TlsForm | None:
    if written is None:
        return None
    mode = written.mode
    cas: tuple[tuple[Reference, str], ...] = tuple((ref, "ca.crt") for ref in written.ca_bundle_ref)
    names = tuple(name if "://" in name else name.lower() for name in written.subject_alt_names)
    sni = written.sni or written.server_name or ""
    validation = written.validation
    if validation is not None:
        cas = tuple((ref, "ca.crt") for ref in validation.ca_certificate_refs)
        names = validation.names
        sni = validation.hostname or ""
    client: Reference | None = written.client_certificate_ref
    client_key = "tls.crt"
    if isinstance(written, FqdnTls):
        cas += tuple((entry.secret_ref, entry.key_or("ca.crt")) for entry in written.ca_certificates)
        if written.client_certificate is not None and client is None:
            client = written.client_certificate.secret_ref
            client_key = written.client_certificate.key_or(client_key)
        mode = mode or ("Mutual" if client is not None else "Simple")
    return TlsForm(_MEANS.get(mode, mode), sni, cas, client, client_key, names, written, validation)
