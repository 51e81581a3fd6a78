"""The destination of a Backend, in our form and in every published form of the working group's proposals.

Enum values ignore case, field names do not. `config.compile.backends.published_forms` interprets the forms; the object
itself keeps its form.
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

#: Key of the validation context for objects of a published group, whose schema admits more than ours.
PUBLISHED = "is_published"


class NamedProtocol(Model):
    """A protocol with options of its own (draft of the Backend GEP)."""

    type: ProtocolName
    options: dict[str, str] = Field(default_factory=dict, max_length=64)
    """Options of the protocol."""


class KeyedSecretReference(SecretObjectReference):
    """A reference to a Secret and a key in it."""

    key: Name | None = None
    """The key of the Secret. Default: ca.crt for trusted CAs, tls.crt and tls.key for a client certificate."""


class CertificateEntry(Model):
    """A Secret with certificates and their key, which the draft of the Backend GEP has in two places."""

    secret_ref: KeyedSecretReference
    """The Secret."""
    key: Name | None = None
    """The same as secretRef.key."""

    def model_post_init(self, context: Any) -> None:
        if self.key is not None and self.secret_ref.key is not None:
            raise RefusedValue("the key stands in secretRef and beside it", "keep one of them")

    def key_or(self, default: str) -> str:
        """The key, from either place."""
        return self.key or self.secret_ref.key or default


class CaBundleReference(ObjectReference):
    """A reference to CA certificates, by default to a ConfigMap (`ca.crt`)."""

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


#: The `validation` in a port's tls, of an earlier draft of GEP-4894.
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
    """TLS origination. `clientCertificateRef` is for mode Mutual alone. `serverName` is an alias of `sni`."""

    mode: ModeName
    server_name: Annotated[ExternalHostname | None, Field(description="The same as sni.")] = None
    sni: ExternalHostname | None = None
    """The SNI, which the certificate has to match. Default: the hostname."""
    ca_bundle_ref: CaBundleReferences = ()
    client_certificate_ref: SecretObjectReference | None = None
    """The Secret (tls.crt, tls.key) with the gateway's client certificate. For mode Mutual."""
    subject_alt_names: Annotated[tuple[Name, ...], Field(max_length=64)] = ()
    """Names of which the certificate must have one, instead of `sni`."""
    validation: Validation = None
    pins: Annotated[tuple[Pin, ...], Field(max_length=16)] = ()
    """Public keys of which the server's chain must have one: sha256/ and the base64 of the SPKI's hash."""
    crl_refs: Annotated[tuple[ObjectReference, ...], Field(max_length=16)] = ()
    """ConfigMaps (key crl.pem) with lists of revoked certificates."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """The minimum TLS version."""
    insecure_skip_verify: Bool = False
    """Accept any certificate. The status of the Backend reports it as insecure."""

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
            return  # a published schema admits it: status reports the missing part
        if self.mode == "Mutual" and self.client_certificate_ref is None:
            raise RefusedValue("mode Mutual needs clientCertificateRef", "add clientCertificateRef, or use mode Simple")
        if self.mode != "Mutual" and self.client_certificate_ref is not None:
            raise RefusedValue(f"clientCertificateRef is not used with mode {self.mode}", "use Mutual, or remove it")


class FqdnTls(BackendTls):
    """TLS below `fqdn`, as in the draft of the Backend GEP. The default mode is Mutual with a client certificate, else
    Simple.
    """

    mode: ModeName | None = None  # type: ignore[assignment]
    ca_certificates: Annotated[tuple[CertificateEntry, ...], Field(max_length=16)] = ()
    """Secrets with the trusted CAs. Default: the system's CAs."""
    client_certificate: CertificateEntry | None = None
    """The Secret with the gateway's client certificate."""


class FqdnBackend(Model):
    """A host outside of the cluster. Published forms have port, tls and protocol here; ours has them in `ports`."""

    hostname: ExternalHostname
    """The name to resolve and dial, and the Host field unless a route rewrites it. No IP address and no name of the
    cluster.
    """
    port: Annotated[Port | None, Field(description="The port, where the destination has no ports.")] = None
    tls: FqdnTls | None = None
    """TLS settings of ports without their own."""
    protocol: NamedProtocol | None = None
    """The protocol of ports without their own."""


class IpBackend(Model):
    address: Address
    """The IPv4 or IPv6 address to dial."""


class ServiceBackend(Model):
    name: Name
    """Name of the Service, whose EndpointSlices give the addresses."""
    namespace: Label | None = None
    """Namespace of the Service. Default: that of the Backend; another one needs a ReferenceGrant."""


#: A provider's name of a model.
ModelName = Annotated[str, Field(min_length=1, max_length=256)]


class FailoverEndpoint(Model):
    """The lowest priority number with a healthy endpoint serves; the rest wait."""

    backend_ref: BackendObjectReference
    """The Backend or Service. Not of type Dynamic or Failover."""
    priority: Annotated[int, Field(strict=True, ge=0)] = 0
    """The priority; lower is preferred."""
    weight: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 1
    """Its share among the endpoints of the same priority."""
    model_alias: ModelName | None = None
    """The model for this endpoint, in place of each requested model that `modelAliases` does not have."""
    model_aliases: Annotated[dict[ModelName, ModelName], Field(max_length=64)] = Field(default_factory=dict)
    """Requested model -> the model for this endpoint. Other models stay unchanged."""


class Failover(Model):
    endpoints: Annotated[tuple[FailoverEndpoint, ...], Field(min_length=1, max_length=64)]
    """Where requests go, by priority."""
    codes: Annotated[tuple[Annotated[int, Field(strict=True, ge=400, le=599)], ...], Field(max_length=32)] = (
        429, 500, 502, 503, 529,
    )  # fmt: skip
    """Statuses after which the request goes to the next endpoint; an error in the first event of a stream counts as its
    status. Failed connections count without being listed.
    """
    first_byte: Duration | None = None
    """The time limit for the first byte of a response body, after which the next endpoint is tried. The head is held
    until then. Default: no limit, and the head is forwarded at once.
    """
    replay: Literal["All", "Idempotent"] = "All"
    """The requests that may go to another endpoint after one may have processed them: all, or idempotent methods."""
    max_replay_bytes: Annotated[int, Field(strict=True, ge=0, le=64 * 1024 * 1024)] = 1024 * 1024
    """The longest request body that is buffered for further endpoints, in bytes."""
    attempts_header: Bool = False
    """Whether the response field X-Egress-Attempts lists the endpoints and results of all attempts."""


class McpOptions(Model):
    """The revision and the path of the MCP server."""

    version: Annotated[str, Field(max_length=256)] = ""
    """The server's revision of the Model Context Protocol, such as 2025-06-18: a client with another
    MCP-Protocol-Version gets 400. Default: the server negotiates the revision.
    """
    path: Annotated[str, Field(max_length=1024)] = "/mcp"
    """Path of the server's MCP endpoint, which replaces the path that a rule matches."""


class AiOptions(Model):
    """The AI provider's APIs; requests of another API are translated to the first of these."""

    apis: Annotated[
        tuple[Literal["OpenAIChat", "OpenAIResponses", "AnthropicMessages", "Gemini", "BedrockConverse"], ...],
        Field(min_length=1, max_length=5),
    ]
    """The APIs of the backend. A request of another of the first three is translated to the first in the list."""
    prefix: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """The base path of the APIs: `/openai/v1` for /openai/v1/chat/completions, /openai/v1/responses or
    /openai/v1/messages. Default for translated requests: /v1, /v1beta for Gemini, none for Bedrock; others keep
    their path.
    """
    azure_api_version: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9.-]+$")] | None = None
    """The api-version of Azure OpenAI, such as 2024-10-21: chat completions go to
    /openai/deployments/MODEL/chat/completions, and responses to /openai/responses, with this version. MODEL is the name
    of the deployment. Default: other paths, as of Azure's v1 API (prefix /openai/v1).
    """
    untranslatable: Literal["Refuse", "Drop"] = "Drop"
    """The effect on a field without equivalent in the API. Drop: fields that only tune the response are dropped, and
    listed in the response field X-Egress-Dropped, the access log and a metric; other fields are refused with 400.
    Refuse: all are refused, and a Failover tries the next endpoint.
    """
    max_body_bytes: Annotated[int, Field(strict=True, ge=1024, le=64 * 1024 * 1024)] = MAX_BUFFERED_BYTES
    """The longest request that is changed or translated; 413 beyond. Others pass unread. Default: 32 MiB."""

    def model_post_init(self, context: Any) -> None:
        check_unique(self.apis, "API", "apis")
        if self.azure_api_version is not None and not {"OpenAIChat", "OpenAIResponses"} & set(self.apis):
            message = "azureApiVersion needs OpenAIChat or OpenAIResponses among the apis"
            raise RefusedValue(message, "add the API that Azure serves, or remove azureApiVersion")


class ProtocolOptions(Model):
    mcp: McpOptions | None = None
    """Options of protocol MCP."""
    ai: AiOptions | None = None
    """Options of an AI provider: its APIs, and translation."""


class BackendPort(XBackendPort):
    """One port: `number` (`port` in a published form), protocol, and TLS."""

    name: Annotated[Label | None, Field(description="A name for people: references name the number.")] = None
    port: Annotated[Port | None, Field(description="The same as number.")] = None
    protocol: ProtocolName = "HTTP"
    tls: BackendTls | None = None
    """TLS settings of this port. Default: `tls` of the destination or of the spec."""
    protocol_options: ProtocolOptions | None = None
    """Settings of one protocol."""


class BackendDestination(Model):
    """A destination, with exactly the block of its type. Default port: 443, with the tls of the destination or spec;
    Dynamic uses the port of the request.
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
    """TLS settings of ports without their own."""
    ports: Annotated[tuple[BackendPort, ...], Field(max_length=16)] = ()
    """Ports that a reference may name, each once. A Dynamic destination is limited to the port in this list."""

    @model_validator(mode="before")
    @classmethod
    def _without_vendors_blocks(cls, value: Any) -> Any:
        """Drop the unknown fields of a vendor's type; the compiler closes the object by its type."""
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
                raise RefusedValue(message, f"write {field} at the backends of its endpoints")
        if self.ports and self.fqdn is not None and self.fqdn.port is not None:
            raise RefusedValue("fqdn.port says again what ports says", "keep ports alone")
        if len({port.value for port in self.ports}) != len(self.ports):
            raise RefusedValue("a port number stands more than once in ports", "keep one entry for each number")
