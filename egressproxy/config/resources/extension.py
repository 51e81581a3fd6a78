"""Extensions: filters of a Backend or EgressPolicy; PayloadProcessingPipeline; FilterType, for types of one's own."""

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from egressproxy.config.resources.meta import OUR_GROUP, Model, Resource
from egressproxy.config.resources.object_references import BackendObjectReference
from egressproxy.config.resources.spellings import vendors_too
from egressproxy.config.resources.values import (
    Bool,
    DeclaredType,
    Duration,
    ExtensionType,
    Int,
    Label,
    Name,
    RefusedValue,
    check_unique,
    require_one_of,
)

PhaseName = Literal[
    "request-headers",
    "request-body",
    "connect",
    "backend-request",
    "backend-response",
    "response-headers",
    "response-body",
]
PHASES: Final[tuple[str, ...]] = get_args(PhaseName)
#: A phase; a vendor's own is read, and closes the place that asks for it.
AnyPhase = Annotated[str, *vendors_too("phase", *PHASES)]


class ExtensionErrorBudget(Model):
    failures: Annotated[Int, Field(ge=1, le=10_000)]
    """So many failures within the window take the filter out: refused at once, or without it where it may fail open."""
    window: Duration
    """The window, and how long the filter is out of service."""


class Extension(Model):
    """A filter in one phase. `config` is checked against the schema of its type when the configuration is compiled; a
    type that is not known then is told in status.

    `phase` None: the type's own, where it has just one. Filters of a phase run by priority, lower first.
    """

    name: Name
    """Name of the filter, unique in its object: logs, metrics and errors say it."""
    type: ExtensionType
    """What it is: domain/Kind:version. `egressproxy filters` lists the types that are known."""
    phase: AnyPhase | None = None
    """When it runs. May be left out where the type has one phase."""
    priority: Int = 100
    """Order within the phase: lower first."""
    fail_open: Bool = False
    """Go on without the filter where it fails. By default the request is refused then."""
    pre_auth: Bool = False
    """Run before the filters of its phase that do not say so, whatever their priority. Where a listener asks for a
    token, it is checked before any filter runs: the filter sees whose request it is.
    """
    timeout: Duration | None = None
    """How long the filter may take."""
    error_budget: ExtensionErrorBudget | None = None
    """Take the filter out of service where it fails too often. Without it, it runs however often it fails."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the filter, checked against the schema of its type."""

    @property
    def label(self) -> str:
        return self.name


class Processor(Model):
    """One step: in process (`type`, `config`) or remote (`backendRefs`)."""

    name: Name
    """Name of the step, unique in the pipeline."""
    type: ExtensionType | None = None
    """In process: the type of the filter, as of an extension."""
    phase: AnyPhase | None = None
    """When it runs."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the filter; of a remote processor those of ExternalProcessor, but for `backendRefs`."""
    backend_refs: Annotated[tuple[BackendObjectReference, ...], Field(max_length=16)] = ()
    """Remote: who is asked, by Envoy's ext_proc."""
    timeout: Duration | None = None
    """How long the step may take."""
    failure_mode: Literal["open", "closed"] = "closed"
    """closed: where the step fails the request is refused. open: it goes on without."""

    def model_post_init(self, context: Any) -> None:
        require_one_of("a processor", type=self.type, backendRefs=self.backend_refs or None)
        if self.backend_refs and "backendRefs" in self.config:
            raise RefusedValue("config.backendRefs stands beside backendRefs", "remove it from config")


class PayloadProcessingPipelineSpec(Model):
    processors: Annotated[tuple[Processor, ...], Field(min_length=1, max_length=64)]
    """The steps, in their order."""

    def model_post_init(self, context: Any) -> None:
        check_unique((each.name for each in self.processors), "name", "processors")


class PayloadProcessingPipeline(Resource, group=OUR_GROUP, kind="PayloadProcessingPipeline", versions=("v1alpha1",)):
    """An ordered list of processors, named by an HTTPRoute's ExtensionRef filter."""

    spec: PayloadProcessingPipelineSpec
    """The steps of the pipeline."""


class ConfigMapKeyReference(Model):
    """One entry of a ConfigMap."""

    name: Name
    """Name of the ConfigMap."""
    namespace: Label = "default"
    """Namespace of the ConfigMap. A FilterType has none of its own."""
    key: Annotated[str, Field(min_length=1, max_length=253)] = "schema.json"
    """The entry that holds the schema, as JSON."""


class ConfigSchema(Model):
    """The JSON Schema of a config: here, or in a ConfigMap."""

    inline: dict[str, Any] | None = None
    """The schema itself."""
    config_map_ref: ConfigMapKeyReference | None = None
    """The ConfigMap that holds the schema."""

    def model_post_init(self, context: Any) -> None:
        require_one_of("a configSchema", inline=self.inline, configMapRef=self.config_map_ref)


class PythonSource(Model):
    """A Python file of the operator's, as for egressproxy.io/Python:v1."""

    path: Annotated[str, Field(min_length=1, max_length=1024)]
    """The file: it starts at the folder of this manifest, and stays inside."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further fields of egressproxy.io/Python:v1: the secrets and backends of the filter, each with its namespace."""


class ProcessorSource(Model):
    """A processor that is asked over the network."""

    protocol: Literal["ExtProc", "Webhook"]
    """ExtProc: Envoy's ext_proc over gRPC. Webhook: HTTP with JSON."""
    backend_refs: Annotated[tuple[BackendObjectReference, ...], Field(min_length=1, max_length=16)]
    """Who is asked. A reference without namespace means `default`: a FilterType has none of its own."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the built-in type that asks it: what is sent, what may be changed."""


class FilterTypeSpec(Model):
    type: DeclaredType
    """The type that `extensions` name, as acme.example.com/PIIDetector:v1. The domain is one's own."""
    summary: Annotated[str, Field(max_length=256)] = ""
    """One sentence for the catalogue."""
    phases: Annotated[tuple[PhaseName, ...], Field(min_length=1, max_length=7)]
    """Where extensions of the type may be placed."""
    config_schema: ConfigSchema | None = None
    """What `config` of such an extension may hold. Without it `config` is empty."""
    python: PythonSource | None = None
    """The type is a Python file."""
    processor: ProcessorSource | None = None
    """The type is a remote processor."""

    def model_post_init(self, context: Any) -> None:
        require_one_of("a FilterType", python=self.python, processor=self.processor)


class FilterTypeDefinition(Resource, group=OUR_GROUP, kind="FilterType", versions=("v1alpha1",), namespaced=False):
    """An extension type of one's own."""

    spec: FilterTypeSpec
    """The type, and what runs it."""
