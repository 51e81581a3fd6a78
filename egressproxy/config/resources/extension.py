"""Extensions: filters of a Backend or EgressPolicy, and PayloadProcessingPipeline."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from egressproxy.config.resources.meta import OUR_GROUP, Model, Resource
from egressproxy.config.resources.object_references import BackendObjectReference
from egressproxy.config.resources.values import (
    Bool,
    Duration,
    ExtensionType,
    Int,
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
    phase: PhaseName | None = None
    """When it runs. May be left out where the type has one phase."""
    priority: Int = 100
    """Order within the phase: lower first."""
    fail_open: Bool = False
    """Go on without the filter where it fails. By default the request is refused then."""
    pre_auth: Bool = False
    """Run before the client is known."""
    timeout: Duration | None = None
    """How long the filter may take."""
    error_budget: ExtensionErrorBudget | None = None
    """Take the filter out of service where it fails too often. Without it, it runs however often it fails."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the filter, checked against the schema of its type."""

    @property
    def label(self) -> str:
        """What it is called in messages, logs and metrics: its name."""
        return self.name


class Processor(Model):
    """One step: in process (`type`, `config`) or remote (`backendRefs`)."""

    name: Name
    """Name of the step, unique in the pipeline."""
    type: ExtensionType | None = None
    """In process: the type of the filter, as of an extension."""
    phase: PhaseName | None = None
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
        """It runs in process, or elsewhere."""
        require_one_of("a processor", type=self.type, backendRefs=self.backend_refs or None)
        if self.backend_refs and "backendRefs" in self.config:
            raise RefusedValue("config.backendRefs stands beside backendRefs", "remove it from config")


class PayloadProcessingPipelineSpec(Model):
    processors: Annotated[tuple[Processor, ...], Field(min_length=1, max_length=64)]
    """The steps, in their order."""

    def model_post_init(self, context: Any) -> None:
        """Each step has a name of its own."""
        check_unique((each.name for each in self.processors), "name", "processors")


class PayloadProcessingPipeline(Resource, group=OUR_GROUP, kind="PayloadProcessingPipeline", versions=("v1alpha1",)):
    """An ordered list of processors, named by an HTTPRoute's ExtensionRef filter."""

    spec: PayloadProcessingPipelineSpec
    """The steps of the pipeline."""
