"""Extensions: filters of a Backend or EgressPolicy; PayloadProcessingPipeline; FilterType, for custom types."""

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, Field

from egressproxy.config.resources.meta import GATEWAY_GROUP, OUR_GROUP, Model, Resource
from egressproxy.config.resources.object_references import BackendObjectReference, Kind, ObjectReference
from egressproxy.config.resources.spellings import vendors_too
from egressproxy.config.resources.values import (
    Bool,
    DeclaredType,
    Duration,
    ExtensionType,
    Int,
    Label,
    Name,
    Port,
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
#: A phase; a vendor's phase is accepted, and closes the place.
AnyPhase = Annotated[str, *vendors_too("phase", *PHASES)]


class ExtensionErrorBudget(Model):
    failures: Annotated[Int, Field(ge=1, le=10_000)]
    """Failures within the window after which the filter is disabled: requests are refused, or with failOpen skip it."""
    window: Duration
    """The window, and the time for which the filter is disabled."""


class Extension(Model):
    """A filter in one phase. The compiler checks `config` against the schema of its type, and reports an unknown type
    in status. Filters of a phase run by priority, lower first.
    """

    name: Name
    """Name of the filter in logs, metrics and errors, unique in its object."""
    type: ExtensionType
    """The filter type: domain/Kind:version. `egressproxy filters` lists the known types."""
    phase: AnyPhase | None = None
    """The phase. Optional for a type with one phase."""
    priority: Int = 100
    """Order within the phase: lower first."""
    fail_open: Bool = False
    """Whether requests go on without a failed filter. By default they are refused."""
    pre_auth: Bool = False
    """Whether the filter runs before all filters of its phase without preAuth, regardless of priority. A listener
    checks tokens before any filter runs, so the filter knows the client.
    """
    timeout: Duration | None = None
    """The time limit of the filter."""
    error_budget: ExtensionErrorBudget | None = None
    """The failures after which the filter is disabled. Default: no limit."""
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
    """The phase."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the filter; for a remote processor those of ExternalProcessor except `backendRefs`."""
    backend_refs: Annotated[tuple[BackendObjectReference, ...], Field(max_length=16)] = ()
    """Remote: the servers, called by Envoy's ext_proc."""
    timeout: Duration | None = None
    """The time limit of the step."""
    failure_mode: Literal["open", "closed"] = "closed"
    """The effect of a failed step. closed: the request is refused. open: the step is skipped."""

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


# --- the working group's form (proposal 7) ---------------------------------------------------------------------------


class ProcessorReference(ObjectReference):
    """The server of a processor. A Service with one port needs no `port`."""

    kind: Kind = "Service"
    """Service, or a kind of Backend."""
    port: Port | None = None
    """Port of the server."""


class PayloadPhases(Model):
    """What a processor is shown."""

    request_headers: Bool = False
    """The head of the request."""
    request_body: Bool = False
    """The body of the request."""
    response_headers: Bool = False
    """The head of the response."""
    response_body: Bool = False
    """The body of the response."""


#: Metadata of a gRPC call, whose names are sent in lower case: values in ASCII.
Context = dict[
    Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")],
    Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[!-~]([ -~]*[!-~])?$")],
]


class PayloadProcessorConfig(Model):
    timeout: Duration | None = None
    """The time limit of the processor in each phase."""
    failure_mode: Literal["open", "closed"] = "closed"
    """The effect of a failed processor. closed: the request is refused. open: the processor is skipped."""
    phases: PayloadPhases | None = None
    """What the processor is shown. Default: heads and bodies of request and response."""
    context: Annotated[Context, Field(max_length=16)] = Field(default_factory=dict)
    """Metadata of each call."""


class PayloadProcessor(Model):
    """A remote step, called by Envoy's ext_proc."""

    name: Name
    """Name of the step, unique in its list."""
    backend_refs: Annotated[tuple[ProcessorReference, ...], Field(min_length=1, max_length=16)]
    """The servers."""
    config: PayloadProcessorConfig = PayloadProcessorConfig.model_construct()
    """Settings of the call."""
    context: Annotated[Context, Field(max_length=16)] = Field(default_factory=dict)
    """Metadata of each call, as in `config`."""


def _once_each(processors: tuple[PayloadProcessor, ...]) -> tuple[PayloadProcessor, ...]:
    check_unique((each.name for each in processors), "name", "processors")
    return processors


PayloadProcessors = Annotated[
    tuple[PayloadProcessor, ...], Field(min_length=1, max_length=64), AfterValidator(_once_each)
]


class PublishedPipelineSpec(Model):
    processors: PayloadProcessors
    """The steps, in their order."""


class PublishedPipeline(Resource, group=GATEWAY_GROUP, kind="PayloadProcessingPipeline", versions=("v1alpha1",)):
    """The pipeline of the working group's proposal, named by an HTTPRoute's PayloadProcessingRef filter."""

    spec: PublishedPipelineSpec
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
    """The file, relative to the folder of this manifest and inside of it."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further fields of egressproxy.io/Python:v1: the secrets and backends of the filter, each with its namespace."""


class ProcessorSource(Model):
    """A remote processor."""

    protocol: Literal["ExtProc", "Webhook"]
    """ExtProc: Envoy's ext_proc over gRPC. Webhook: HTTP with JSON."""
    backend_refs: Annotated[tuple[BackendObjectReference, ...], Field(min_length=1, max_length=16)]
    """The servers. The default namespace of a reference is `default`, since a FilterType has none."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the built-in type that calls the processor: data to send, allowed changes."""


class FilterTypeSpec(Model):
    type: DeclaredType
    """The type for `extensions`, such as acme.example.com/PIIDetector:v1, with a domain of your own."""
    summary: Annotated[str, Field(max_length=256)] = ""
    """One sentence for the catalogue."""
    phases: Annotated[tuple[PhaseName, ...], Field(min_length=1, max_length=7)]
    """The phases of extensions of the type."""
    config_schema: ConfigSchema | None = None
    """The schema of an extension's `config`. Default: `config` is empty."""
    python: PythonSource | None = None
    """The type is a Python file."""
    processor: ProcessorSource | None = None
    """The type is a remote processor."""

    def model_post_init(self, context: Any) -> None:
        require_one_of("a FilterType", python=self.python, processor=self.processor)


class FilterTypeDefinition(Resource, group=OUR_GROUP, kind="FilterType", versions=("v1alpha1",), namespaced=False):
    """A custom extension type."""

    spec: FilterTypeSpec
    """The type, and its implementation."""
