"""The destination of a Backend, as ours and as every published form of the working group's proposals writes it.

Enum values are compared without regard to case, field names exactly. What the fields mean together is read in one
place: `config.compile.backends.published_forms`. The object itself keeps the form in which it was written.
Sources: the AI Gateway working group's egress proposal and its prototype, and its draft of a Backend GEP for egress and
service decoration.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic import WithJsonSchema as JsonSchema
from pydantic.alias_generators import to_camel, to_snake

from egressproxy.config.resources.hostnames import ExternalHostname
from egressproxy.config.resources.meta import Model
from egressproxy.config.resources.object_references import (
    BackendObjectReference,
    Kind,
    ObjectReference,
    SecretObjectReference,
)
from egressproxy.config.resources.spellings import ModeName, ProtocolName, TypeName, is_vendors
from egressproxy.config.resources.values import (
    Address,
    Bool,
    Duration,
    Label,
    Name,
    Pin,
    Port,
    RefusedValue,
    check_unique,
)
from egressproxy.config.resources.x_backend import XBackendPort, XBackendValidation
from egressproxy.ir.policy import MAX_BUFFERED_BYTES

#: Key of the validation context: the object is of a published group, whose schema admits more than ours.
PUBLISHED = "is_published"


class NamedProtocol(Model):
    """A protocol with options of its own (draft of the Backend GEP)."""

    type: ProtocolName
    options: dict[str, str] = Field(default_factory=dict, max_length=64)
    """Options of the protocol."""


class KeyedSecretReference(SecretObjectReference):
    """A reference to a Secret and a key in it."""

    key: Name | None = None
    """The key in it. Default: ca.crt for certificates to trust, tls.crt and tls.key for a certificate to show."""


class CertificateEntry(Model):
    """A Secret and the key in it that holds certificates: the draft of the Backend GEP has it in two places."""

    secret_ref: KeyedSecretReference
    """The Secret."""
    key: Name | None = None
    """The same as secretRef.key."""

    def model_post_init(self, context: Any) -> None:
        if self.key is not None and self.secret_ref.key is not None:
            raise RefusedValue("the key stands in secretRef and beside it", "keep one of them")

    def key_or(self, default: str) -> str:
        """The key, wherever it stands."""
        return self.key or self.secret_ref.key or default


class CaBundleReference(ObjectReference):
    """A reference to CA certificates: a ConfigMap (`ca.crt`), where no kind is written."""

    kind: Kind = "ConfigMap"
    """ConfigMap or Secret; or ClusterTrustBundle with group certificates.k8s.io."""


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, dict) else value


CaBundleReferences = Annotated[
    tuple[CaBundleReference, ...],
    Field(max_length=16),
    BeforeValidator(_one_or_more),
    JsonSchema(
        {
            "anyOf": [{"type": "array", "maxItems": 16, "items": {"type": "object"}}, {"type": "object"}],
            "description": "ConfigMaps or Secrets with CA certificates under ca.crt, or ClusterTrustBundles, a list or "
            "a single one: name, kind (default: ConfigMap), group, namespace. Without it: the system's roots.",
        }
    ),
]


#: What an earlier draft of GEP-4894 has in the tls of a port.
Validation = Annotated[
    XBackendValidation | None,
    JsonSchema(
        {
            "type": "object",
            "description": "What the server's certificate has to be, in the words of a draft, which are those of "
            "BackendTLSPolicy: hostname, caCertificateRefs or wellKnownCACertificates, subjectAltNames. Instead of "
            "sni, caBundleRef and subjectAltNames.",
        }
    ),
]


class BackendTls(Model):
    """TLS origination. `clientCertificateRef` belongs to mode Mutual, and only there. `serverName` is `sni`."""

    mode: ModeName
    server_name: Annotated[ExternalHostname | None, Field(description="The same as sni.")] = None
    sni: ExternalHostname | None = None
    """The server name that is sent, and that the certificate has to be for. Default: the hostname."""
    ca_bundle_ref: CaBundleReferences = ()
    client_certificate_ref: SecretObjectReference | None = None
    """The Secret (tls.crt, tls.key) with the certificate that the gateway shows. For mode Mutual."""
    subject_alt_names: Annotated[tuple[Name, ...], Field(max_length=64)] = ()
    """Names of which the certificate has to carry one, instead of `sni`."""
    validation: Validation = None
    pins: Annotated[tuple[Pin, ...], Field(max_length=16)] = ()
    """Public keys of which the server's chain has to have one: sha256/ and the base64 of the SPKI's hash."""
    crl_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """ConfigMaps (key crl.pem) with lists of revoked certificates."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest TLS version that is spoken."""
    insecure_skip_verify: Bool = False
    """Take any certificate. The Backend says that it is insecure."""

    def model_post_init(self, context: Any) -> None:
        if self.sni is not None and self.server_name is not None and self.sni != self.server_name:
            raise RefusedValue("sni and serverName say different names", "keep one of them")
        beside = {
            "sni": self.sni,
            "serverName": self.server_name,
            "caBundleRef": self.ca_bundle_ref,
            "subjectAltNames": self.subject_alt_names,
        }
        twice = [name for name, value in beside.items() if value]
        if twice and self.validation is not None:
            raise RefusedValue(f"validation says what {' and '.join(twice)} beside it says", "keep one of them")
        if self.mode is None or (isinstance(context, dict) and context.get(PUBLISHED)):
            return  # a published schema admits it: status says what is missing
        if self.mode == "Mutual" and self.client_certificate_ref is None:
            raise RefusedValue("mode Mutual needs clientCertificateRef", "add clientCertificateRef, or use mode Simple")
        if self.mode != "Mutual" and self.client_certificate_ref is not None:
            raise RefusedValue(f"clientCertificateRef is not used with mode {self.mode}", "use Mutual, or remove it")


class FqdnTls(BackendTls):
    """TLS as the draft of the Backend GEP has it below `fqdn`.

    Without mode it is Mutual where a client certificate stands, else Simple.
    """

    mode: ModeName | None = None  # type: ignore[assignment]
    ca_certificates: Annotated[tuple[CertificateEntry, ...], Field(max_length=16)] = ()
    """Secrets with the CAs that may have signed the certificate. Default: those of the system."""
    client_certificate: CertificateEntry | None = None
    """The Secret with the certificate that the gateway shows."""


class FqdnBackend(Model):
    """A host outside of the cluster. Published forms say port, tls and protocol here; ours says them in `ports`."""

    hostname: ExternalHostname
    """The name that is resolved and dialled, and the Host that is sent unless a route rewrites it. No IP address and no
    name of the cluster.
    """
    port: Annotated[Port | None, Field(description="The port, where the destination has no ports.")] = None
    tls: FqdnTls | None = None
    """How TLS is spoken at the ports that do not say it."""
    protocol: NamedProtocol | None = None
    """What is spoken at the ports that do not say it."""


class IpBackend(Model):
    address: Address
    """The IPv4 or IPv6 address that is dialled, as it is written."""


class ServiceBackend(Model):
    name: Name
    """Name of the Service, whose EndpointSlices give the addresses."""
    namespace: Label | None = None
    """Namespace of the Service. Default: that of the Backend; another one needs a ReferenceGrant."""


#: What providers call a model.
ModelName = Annotated[str, Field(min_length=1, max_length=256)]


class FailoverEndpoint(Model):
    """The lowest priority number with a healthy endpoint serves; the rest wait."""

    backend_ref: BackendObjectReference
    """The Backend or Service that serves. No Dynamic one, and none of type Failover."""
    priority: Annotated[int, Field(strict=True, ge=0)] = 0
    """Lower goes first."""
    weight: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 1
    """Its share among the endpoints of the same priority."""
    model_alias: ModelName | None = None
    """The model that this endpoint is asked for, whatever model the request names, unless `modelAliases` has it."""
    model_aliases: Annotated[dict[ModelName, ModelName], Field(max_length=64)] = Field(default_factory=dict)
    """By the model that the request names: the model that this endpoint is asked for. Others stay as they are."""


class Failover(Model):
    endpoints: Annotated[tuple[FailoverEndpoint, ...], Field(min_length=1, max_length=64)]
    """Where requests go, by priority."""
    codes: Annotated[tuple[Annotated[int, Field(strict=True, ge=400, le=599)], ...], Field(max_length=32)] = (
        429, 500, 502, 503, 529,
    )  # fmt: skip
    """Statuses of an endpoint after which the request goes to the next one; a first event that tells of an error counts
    as the status of that. Connections that fail are without being named.
    """
    first_byte: Duration | None = None
    """The time for an attempt to bring the first byte of a response body; then the next endpoint is asked. The head is
    held until then. Default: none, and the head is sent on as it comes.
    """
    replay: Literal["All", "Idempotent"] = "All"
    """What goes on to the next endpoint when one may have seen it: every request, or those with idempotent methods."""
    max_replay_bytes: Annotated[int, Field(strict=True, ge=0, le=64 * 1024 * 1024)] = 1024 * 1024
    """The longest request body that is kept for further endpoints, in bytes."""
    attempts_header: Bool = False
    """Whether the response says in X-Egress-Attempts which endpoints were asked, and how each attempt ended."""


class McpOptions(Model):
    """What the MCP server speaks, and where."""

    version: Annotated[str, Field(max_length=256)] = ""
    """The revision of the Model Context Protocol that the server speaks, such as 2025-06-18: a client whose
    MCP-Protocol-Version is another one gets 400. Default: the server itself says what it speaks.
    """
    path: Annotated[str, Field(max_length=1024)] = "/mcp"
    """Path of the server's MCP endpoint: requests for the path that a rule matches go there."""


class AiOptions(Model):
    """Which APIs of AI providers are served here: requests of another one are translated to the first of them."""

    apis: Annotated[
        tuple[Literal["OpenAIChat", "OpenAIResponses", "AnthropicMessages"], ...], Field(min_length=1, max_length=3)
    ]
    """The APIs that are served. A request of another of these APIs is translated to the first in the list."""
    prefix: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """The path below which they are served: `/openai/v1` for /openai/v1/chat/completions, /openai/v1/responses or
    /openai/v1/messages. Default: /v1 for requests that are translated; others keep their path.
    """
    untranslatable: Literal["Refuse", "Drop"] = "Drop"
    """What becomes of a field that the API has nothing like. Drop: fields that only tune the answer are left out, and
    told in the response field X-Egress-Dropped, the access log and a metric; all others are refused with 400. Refuse:
    every one is refused, and a Failover asks the next endpoint.
    """
    max_body_bytes: Annotated[int, Field(strict=True, ge=1024, le=64 * 1024 * 1024)] = MAX_BUFFERED_BYTES
    """The longest request that is changed or translated for it; 413 beyond. Others pass unread. Default: 32 MiB."""

    def model_post_init(self, context: Any) -> None:
        check_unique(self.apis, "API", "apis")


class ProtocolOptions(Model):
    mcp: McpOptions | None = None
    """For protocol MCP."""
    ai: AiOptions | None = None
    """For a provider of AI: its APIs, and translation to them."""


class BackendPort(XBackendPort):
    """One port: `number` (a published form calls it `port`), what is spoken there, and how it is secured."""

    name: Annotated[Label | None, Field(description="A name for people: references name the number.")] = None
    port: Annotated[Port | None, Field(description="The same as number.")] = None
    protocol: ProtocolName = "HTTP"
    tls: BackendTls | None = None
    """How TLS is spoken at this port. Default: as `tls` of the destination or of the spec says."""
    protocol_options: ProtocolOptions | None = None
    """Settings of one protocol."""


class BackendDestination(Model):
    """Exactly the block of its own type. Without ports: 443, with the tls that stands at the destination or beside it.

    Dynamic takes the port that the request named.
    """

    BLOCKS: ClassVar[dict[str, tuple[str, ...]]] = {
        "Fqdn": ("fqdn",),
        "Ip": ("ip",),
        "Service": ("service", "kubernetesService"),
        "Failover": ("failover",),
        "EndpointSelector": ("endpointSelector",),
        "Dynamic": (),
    }

    type: TypeName
    fqdn: FqdnBackend | None = None
    """For type Fqdn: the name."""
    ip: IpBackend | None = None
    """For type Ip: the address."""
    service: ServiceBackend | None = None
    """For type Service: the Service."""
    kubernetes_service: Annotated[ServiceBackend | None, Field(description="The same as service.")] = None
    failover: Failover | None = None
    """For type Failover: the endpoints."""
    endpoint_selector: dict[str, Any] | None = None
    """For type EndpointSelector, of a draft."""
    tls: BackendTls | None = None
    """How TLS is spoken at the ports that do not say it themselves."""
    ports: Annotated[tuple[BackendPort, ...], Field(max_length=16)] = ()
    """Ports that a reference may name, each once. A Dynamic destination is bound to the port that stands here."""

    @model_validator(mode="before")
    @classmethod
    def _without_vendors_blocks(cls, value: Any) -> Any:
        """A vendor's type has fields of its own, which are not known: the type closes the whole."""
        if not isinstance(value, dict) or not is_vendors(value.get("type")):
            return value
        known = {field.alias or to_camel(name) for name, field in cls.model_fields.items()}
        return {name: each for name, each in value.items() if name in known}

    @property
    def named_service(self) -> ServiceBackend | None:
        return self.service or self.kubernetes_service

    def model_post_init(self, context: Any) -> None:
        written = [
            name for names in self.BLOCKS.values() for name in names if getattr(self, to_snake(name)) is not None
        ]
        own = self.BLOCKS.get(self.type, ())
        for field in written:
            if field not in own:
                message = f"{field} does not belong to a destination of type {self.type}"
                raise RefusedValue(message, f"remove {field}, or change the type")
        if own and not written:
            raise RefusedValue(f"a destination of type {self.type} needs {own[0]}", f"add {own[0]}")
        if len(written) > 1:
            raise RefusedValue("service and kubernetesService are the same", "keep service alone")
        for field, value in (("ports", self.ports), ("tls", self.tls)):
            if self.type == "Failover" and value:
                message = f"{field} does not belong to a destination of type Failover"
                raise RefusedValue(message, f"{field} is that of its backends")
        if self.ports and self.fqdn is not None and self.fqdn.port is not None:
            raise RefusedValue("fqdn.port says again what ports says", "keep ports alone")
        if len({port.value for port in self.ports}) != len(self.ports):
            raise RefusedValue("a port number stands more than once in ports", "keep one entry for each number")
