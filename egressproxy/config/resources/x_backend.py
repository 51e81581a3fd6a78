"""XBackend, and its parts shared with BackendTLSPolicy. Sources: GEP-4488, GEP-4894, BackendTLSPolicy of Gateway API
v1.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from egressproxy.config.resources.hostnames import ExternalHostname, PreciseHostname
from egressproxy.config.resources.meta import Model, Resource
from egressproxy.config.resources.object_references import LocalObjectReference, SecretObjectReference
from egressproxy.config.resources.spellings import is_vendors, vendors_too
from egressproxy.config.resources.values import Label, Name, Port, RefusedValue, require_own_block


class SubjectAltName(Model):
    type: Literal["Hostname", "URI"]
    """Hostname or URI."""
    hostname: Name | None = None
    """For type Hostname: the name in the certificate."""
    uri: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^:/?#]+://[^/?#]*[^?#]*")] | None = None
    """For type URI: the identifier in the certificate, such as spiffe://example.org/ns/a."""

    def model_post_init(self, context: Any) -> None:
        require_own_block(f"type {self.type}", self.type.lower(), {"hostname": self.hostname, "uri": self.uri})


WellKnown = Annotated[str, *vendors_too("set of CA certificates", "System")]


class BackendTlsValidation(Model):
    """The trusted CAs of the backend's certificate, and the required name."""

    ca_certificate_refs: Annotated[tuple[LocalObjectReference, ...], Field(max_length=8)] = ()
    """ConfigMaps or Secrets (key ca.crt) with the trusted CAs."""
    well_known_ca_certificates: Annotated[WellKnown | None, Field(alias="wellKnownCACertificates")] = None
    """Instead: System, the system's CAs. A vendor's value, such as example.com/x, closes the backend."""
    hostname: PreciseHostname
    """The SNI, which the certificate has to match."""
    subject_alt_names: Annotated[tuple[SubjectAltName, ...], Field(max_length=5)] = ()
    """Names of which the certificate must have one, instead of `hostname`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The accepted names of the certificate: hostnames in lower case, URIs unchanged."""
        return tuple(name.hostname.lower() if name.hostname else name.uri or "" for name in self.subject_alt_names)

    def model_post_init(self, context: Any) -> None:
        if bool(self.ca_certificate_refs) == (self.well_known_ca_certificates is not None):
            raise RefusedValue("exactly one of caCertificateRefs and wellKnownCACertificates is needed", "write one")


class XBackendValidation(BackendTlsValidation):
    """BackendTlsValidation with optional fields; the default hostname is the backend's."""

    hostname: PreciseHostname | None = None  # type: ignore[assignment]

    def model_post_init(self, context: Any) -> None:
        """Default to the system's CAs; the API's own examples omit the source."""
        if self.ca_certificate_refs and self.well_known_ca_certificates is not None:
            raise RefusedValue("caCertificateRefs and wellKnownCACertificates exclude each other", "keep one of them")


class XBackendTls(Model):
    mode: Annotated[str, *vendors_too("mode", "None", "ServerOnly", "ClientAndServer")]
    """None: plain text. ServerOnly: TLS. ClientAndServer: mutual TLS."""
    client_certificate_ref: SecretObjectReference | None = None
    """The Secret (tls.crt, tls.key) with the gateway's client certificate. For mode ClientAndServer."""
    validation: XBackendValidation | None = None
    """The validation of the server's certificate. Default: for the hostname, by the system's CAs."""

    def model_post_init(self, context: Any) -> None:
        if not is_vendors(self.mode) and (self.mode == "ClientAndServer") != (self.client_certificate_ref is not None):
            raise RefusedValue("clientCertificateRef belongs to mode ClientAndServer", "write both, or neither")


class XBackendPort(Model):
    """A port: `number`, in earlier versions `port`."""

    name: Label | None = None
    """Name of the port."""
    port: Port | None = None
    """An alias of number."""
    number: Port | None = Field(default=None, validate_default=True)
    """The port to dial."""

    @field_validator("number")
    @classmethod
    def _said_once(cls, number: int | None, info: ValidationInfo) -> int | None:
        if "port" in info.data and number is None and info.data["port"] is None:
            raise RefusedValue("number is missing", "add number")
        if number is not None and info.data.get("port") is not None:
            raise RefusedValue("number and port are the same", "keep number alone")
        return number

    @property
    def value(self) -> int:
        """The port's number, under either name."""
        return self.number or self.port or 0


class ExternalHostnameBackend(Model):
    hostname: ExternalHostname
    """The name to resolve and dial."""


_PREFIX = r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
LabelKey = Annotated[str, Field(max_length=253, pattern=rf"^{_PREFIX}([A-Za-z0-9][-A-Za-z0-9_.]{{0,61}})?[A-Za-z0-9]$")]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")]


class EndpointSelectorBackend(Model):
    match_labels: Annotated[dict[LabelKey, LabelValue], Field(min_length=1, max_length=64)] | None = None
    """Labels of the Pods, in the namespace of the XBackend: a Pod has all of them."""
    match_expressions: tuple[dict[str, Any], ...] = ()
    """Of a draft. Not served."""
    selector_ref: dict[str, Any] | None = None
    """Of a draft: an object with the selector. Not served."""

    def model_post_init(self, context: Any) -> None:
        if self.match_labels is None and not self.match_expressions and self.selector_ref is None:
            raise RefusedValue("matchLabels is missing", "add the labels of the Pods")

    @property
    def is_of_draft(self) -> bool:
        """Whether it has fields that today's form has not."""
        return bool(self.match_expressions) or self.selector_ref is not None


#: Whether `tls` belongs to a protocol, for those of which the CRD says so -> what to write instead.
_WITH_TLS = {
    "H2C": (False, "use protocol HTTP2 for HTTP/2 over TLS"),
    "HTTP2": (True, "use protocol H2C for HTTP/2 without TLS"),
    "WSS": (True, "add tls with mode ServerOnly"),
}
Protocol = Annotated[str, *vendors_too("protocol", "TCP", "HTTP", "HTTP2", "HTTP11", "H2C", "MCP", "GRPC", "WSS")]


class XBackendSpec(Model):
    """The spec. `port` is an object with `number`, or `port` and `name`; a plain number is accepted, too."""

    type: Annotated[str, *vendors_too("type", "ExternalHostname", "EndpointSelector")]
    """The type of the destination."""
    port: XBackendPort
    """The port to dial."""
    external_hostname: ExternalHostnameBackend | None = None
    """For type ExternalHostname: the host."""
    endpoint_selector: EndpointSelectorBackend | None = None
    """For type EndpointSelector: the Pods."""
    protocol: Protocol | None = None
    """The protocol. H2C is without `tls`; HTTP2 and WSS need it."""
    tls: XBackendTls | None = None
    """TLS settings."""

    @field_validator("port", mode="before")
    @classmethod
    def _plain_number(cls, value: object) -> object:
        return {"port": value} if isinstance(value, int) and not isinstance(value, bool) else value

    def model_post_init(self, context: Any) -> None:
        """Check rules of the CRD."""
        has_tls, remedy = _WITH_TLS.get(self.protocol or "", (self.tls is not None, ""))
        if has_tls is not (self.tls is not None):
            message = f"protocol {self.protocol} {'needs tls' if has_tls else 'has no tls'}"
            raise RefusedValue(message, remedy)
        blocks = {"externalHostname": self.external_hostname, "endpointSelector": self.endpoint_selector}
        if is_vendors(self.type):
            return
        own = self.type[0].lower() + self.type[1:]
        require_own_block(f"type {self.type}", own, blocks, ", or change the type")


class XBackend(Resource, group="gateway.networking.x-k8s.io", kind="XBackend", versions=("v1alpha1",)):
    spec: XBackendSpec
    """The destination of requests, and its protocol and TLS."""
