"""The kinds of Backend, and BackendTLSPolicy.

Our Backend (`egressproxy.io`) is a superset of the working group's `Backend` and `XBackendDestination` in both of their
groups; XBackend has its own shape (`x_backend`). `config.compile` reads all of them into one BackendIR. Sources:
GEP-4894, the AI Gateway working group's egress proposal, BackendTLSPolicy of Gateway API v1, and GEP-4152.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from egressproxy.config.resources.destination import BackendDestination, BackendTls
from egressproxy.config.resources.extension import Extension
from egressproxy.config.resources.meta import GATEWAY_GROUP, OUR_GROUP, Model, Resource
from egressproxy.config.resources.object_references import LocalObjectReference, PolicyTargetReference
from egressproxy.config.resources.parent import BackendParent
from egressproxy.config.resources.policy import Dns
from egressproxy.config.resources.source_address import SourceAddress
from egressproxy.config.resources.values import Name, RefusedValue, check_unique
from egressproxy.config.resources.x_backend import BackendTlsValidation, XBackend, XBackendSpec


class WorkingGroupExtension(Extension):
    """An extension as in the proposals, which name the configuration `rawConfig` in places. The default phase is
    backend-request.
    """

    name: Name = ""
    """Name of the filter. Default: the kind of its type."""
    raw_config: dict[str, Any] | None = None
    """The configuration under the proposal's other name. One of config and rawConfig."""

    def model_post_init(self, context: Any) -> None:
        if self.raw_config is not None and "config" in self.model_fields_set:
            raise RefusedValue("config and rawConfig exclude each other", "keep one of them")

    @property
    def settings(self) -> dict[str, Any]:
        """The config of the filter, under either of its two names."""
        return self.config if self.raw_config is None else self.raw_config

    @property
    def label(self) -> str:
        """The name, by default the kind of the type: `pool` of `vendor.example/pool:v1`."""
        return self.name or self.type.rpartition("/")[2].partition(":")[0] or self.type


class DestinationSpec(Model):
    """The spec of every Backend with a destination."""

    destination: BackendDestination
    """Where requests go."""
    tls: BackendTls | None = None
    """TLS settings of ports without their own."""
    extensions: Annotated[tuple[WorkingGroupExtension, ...], Field(max_length=64)] = ()
    """Filters for requests to this backend and its responses."""

    def model_post_init(self, context: Any) -> None:
        if self.destination.type == "Failover":
            for name in ("tls", "extensions", "region", "resolver", "parent", "source_address"):
                if getattr(self, name, None):
                    raise RefusedValue(
                        f"{to_camel(name)} does not belong to type Failover", "write it at the endpoints"
                    )
        fqdn = self.destination.fqdn
        fields = {
            "spec.tls": self.tls,
            "destination.tls": self.destination.tls,
            "destination.fqdn.tls": fqdn.tls if fqdn is not None else None,
        }
        written = [field for field, tls in fields.items() if tls is not None]
        if len(written) > 1:
            raise RefusedValue(f"tls for all ports stands at {' and '.join(written)}", "keep one of them")


class BackendSpec(DestinationSpec):
    region: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """The region of the backend, for `regions` of policies."""
    resolver: Dns | None = None
    """DNS settings for the backend's name, as `dns` of a policy."""
    parent: BackendParent | None = None
    """The proxy to this backend."""
    source_address: SourceAddress | None = None
    """The source of connections to this backend."""


class Backend(Resource, group=OUR_GROUP, kind="Backend", versions=("v1alpha1",)):
    """The destination of requests, its protocol and TLS, and its filters."""

    spec: BackendSpec
    """The destination of requests, its protocol and TLS, and its filters."""


# --- the working group's Backend -------------------------------------------------------------------------------------


def _with_other_shape(schema: dict[str, Any]) -> None:
    """The schema of a group's Backend admits the fields of XBackend beside `destination`, one shape or the other."""
    fields = XBackendSpec.model_json_schema()["properties"]
    other = {
        "type": {**fields["type"], "description": "Instead of destination: the shape of GEP-4894."},
        "port": {
            "anyOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, {"type": "object"}],
            "description": "With type: a number, or an object with number (or port and name).",
        },
        "externalHostname": {"type": "object", "description": "With type ExternalHostname: hostname."},
        "endpointSelector": {"type": "object", "description": "With type EndpointSelector: matchLabels."},
        "protocol": {"type": "string", "description": "With type: what is spoken there."},
    }
    schema["properties"] |= {**other, "tls": {"type": "object", "description": _TLS_OF_BOTH}}
    schema.pop("required", None)


_TLS_OF_BOTH = (
    "Beside destination: what holds for ports without their own, with the fields of destination.ports.tls. With type: "
    "mode (None, ServerOnly, ClientAndServer), clientCertificateRef, validation."
)


class WorkingGroupBackendSpec(DestinationSpec):
    """The spec of a draft. Its `filters` refer to objects and cannot run, so a Backend with filters is not served."""

    filters: Annotated[tuple[dict[str, Any], ...], Field(max_length=64)] = ()
    """Not served: write extensions instead."""


class EitherShapeSpec(WorkingGroupBackendSpec):
    model_config = ConfigDict(json_schema_extra=_with_other_shape)


class WorkingGroupBackend(Resource, group=GATEWAY_GROUP, kind="Backend", versions=("v1alpha1",)):
    """The Backend of the working group's proposals; `GatewayBackend` has the spec of XBackend."""

    spec: EitherShapeSpec
    """The destination of requests, and its filters."""


class XBackendDestination(
    Resource, group="ainetworking.prototype.x-k8s.io", kind="XBackendDestination", versions=("v0alpha0",)
):
    """The prototype's kind. Routes may also refer to it as kind `Backend`."""

    spec: WorkingGroupBackendSpec
    """The destination of requests, and its filters."""


class PrototypeBackend(XBackendDestination, kind="Backend"):
    """XBackendDestination under the prototype's first name."""


class GatewayXBackendDestination(XBackendDestination, group=GATEWAY_GROUP, versions=("v1alpha1",)):
    """XBackendDestination in the group of later versions of the proposal."""


# --- BackendTLSPolicy, and XBackend by its other name ----------------------------------------------------------------


class GatewayBackend(XBackend, group=GATEWAY_GROUP, kind="Backend"):
    """An XBackend under its future name and group (GEP-4894)."""


class BackendTlsTargetReference(PolicyTargetReference):
    """A Service or Backend, or with `sectionName` one of its ports."""


class BackendTlsPolicyValidation(BackendTlsValidation):
    """BackendTlsValidation with what GEP-4152 adds."""

    mode: Literal["Standard", "InsecureAllowExpired", "InsecureSkipOnlySANVerification", "InsecureSkipVerification"] = (
        "Standard"
    )
    """Standard: the certificate is verified. The other modes accept expired certificates, any name, or every one."""
    trusted_certificates: Annotated[tuple[LocalObjectReference, ...], Field(max_length=8)] = ()
    """ConfigMaps or Secrets (key tls.crt, or else ca.crt) with servers' certificates that are accepted as they are."""

    def model_post_init(self, context: Any) -> None:
        """Check the trust that the mode needs, and names where names are verified (GEP-4152, API Validations)."""
        sources = (self.ca_certificate_refs, self.well_known_ca_certificates, self.trusted_certificates)
        if self.ca_certificate_refs and self.well_known_ca_certificates is not None:
            raise RefusedValue("caCertificateRefs and wellKnownCACertificates exclude each other", "keep one of them")
        if self.mode == "InsecureSkipVerification":
            if any(sources):
                raise RefusedValue(f"mode {self.mode} trusts every certificate", "remove the certificates, or mode")
        elif not any(sources):
            needed = "one of caCertificateRefs, wellKnownCACertificates and trustedCertificates is needed"
            raise RefusedValue(needed, "write one")
        if self.subject_alt_names and self.mode.startswith("InsecureSkip"):
            raise RefusedValue(f"subjectAltNames do not belong to mode {self.mode}", "remove them, or mode")

    @property
    def weakness(self) -> str:
        """What is not verified, as a sentence; "" in mode Standard."""
        return _WEAKNESS[self.mode]


_WEAKNESS: Final = {
    "Standard": "",
    "InsecureAllowExpired": "certificates that have expired are accepted",
    "InsecureSkipOnlySANVerification": "the name in the server's certificate is not verified",
    "InsecureSkipVerification": "the server's certificate is not verified",
}


class BackendTlsPolicySpec(Model):
    target_refs: Annotated[tuple[BackendTlsTargetReference, ...], Field(min_length=1, max_length=16)]
    """The Services and Backends of the policy. A Backend's own tls takes precedence."""
    validation: BackendTlsPolicyValidation
    """The requirements for the servers' certificates."""
    options: dict[str, str] = Field(default_factory=dict, max_length=16)
    """Further settings."""

    def model_post_init(self, context: Any) -> None:
        """Check targets: either several ports of an object, or the whole object (rules of the CRD)."""
        whole = [(ref.group, ref.kind, ref.name) for ref in self.target_refs if not ref.section_name]
        for ref in self.target_refs:
            if ref.section_name and (ref.group, ref.kind, ref.name) in whole:
                remedy = "name a sectionName in each, or in none"
                raise RefusedValue(f"targetRefs names {ref.kind} {ref.name} with and without a sectionName", remedy)
        check_unique(
            [f"{ref.kind} {ref.name} {ref.section_name or ''}".rstrip() for ref in self.target_refs],
            "target",
            "targetRefs",
        )


class BackendTlsPolicy(Resource, group=GATEWAY_GROUP, kind="BackendTLSPolicy", versions=("v1", "v1alpha3")):
    """TLS origination for Services and Backends."""

    spec: BackendTlsPolicySpec
    """The Services and Backends of the policy, and the requirements for their certificates."""
