"""XTelemetryPolicy. Source: Gateway API `apisx/v1alpha1`, GEP-4768."""

from typing import Annotated, Any, Literal

from pydantic import Field

from egressproxy.config.resources.meta import Model, Resource
from egressproxy.config.resources.object_references import BackendObjectReference, LocalObjectReference
from egressproxy.config.resources.route_filters import HttpHeader
from egressproxy.config.resources.values import HeaderName, Label, RefusedValue, check_unique, require_own_block


class SampledShare(Model):
    numerator: Annotated[int, Field(strict=True, ge=0)]
    """The number of traces that are recorded …"""
    denominator: Annotated[int, Field(strict=True, ge=1)] = 100
    """… out of this many."""

    def model_post_init(self, context: Any) -> None:
        if self.numerator > self.denominator:
            raise RefusedValue("the fraction is greater than one", "make numerator at most denominator")

    @property
    def share(self) -> float:
        """From 0.0 to 1.0."""
        return self.numerator / self.denominator


class TelemetryTargetReference(LocalObjectReference):
    """A target of a policy."""

    namespace: Label | None = None
    """Namespace of the Gateway. Default: the policy's, and no other one is served."""


class ParentBasedSampling(Model):
    mode: Literal["Enabled", "Disabled", "ImplementationDefault"] = "ImplementationDefault"
    """Whether the decision of a client's trace counts. ImplementationDefault: it does."""
    sampling_rate: SampledShare | None = None
    """The share of the traces that clients have sampled. Default: all of them."""


class SpanAttribute(Model):
    """An attribute of every span."""

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[a-zA-Z0-9_.:/-]+$")]
    """Its key."""
    type: Literal["Header", "Literal", "Attribute"]
    """Where its value comes from."""
    header_name: HeaderName | None = None
    """For type Header: a field of the request, else of the response."""
    literal_value: Annotated[str, Field(max_length=1024)] | None = None
    """For type Literal: the value."""
    attribute_key: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[a-z0-9_.-]+$")] | None = None
    """For type Attribute: another attribute of the span, which it repeats."""

    def model_post_init(self, context: Any) -> None:
        own = {"Header": "headerName", "Literal": "literalValue", "Attribute": "attributeKey"}[self.type]
        blocks = {
            "headerName": self.header_name, "literalValue": self.literal_value, "attributeKey": self.attribute_key,
        }  # fmt: skip
        require_own_block(f"type {self.type}", own, blocks)


class TracingProvider(Model):
    backend_ref: BackendObjectReference
    """The collector that gets the spans, by OTLP."""
    headers: Annotated[tuple[HttpHeader, ...], Field(max_length=16)] = ()
    """Fields of each request to it."""


class Tracing(Model):
    mode: Literal["Enabled", "Disabled", "ImplementationDefault"] = "ImplementationDefault"
    """Whether exchanges are traced. ImplementationDefault: with a provider, or where `run` has `--otlp-endpoint`."""
    provider: TracingProvider | None = None
    """The collector. For mode Enabled."""
    sampling_rate: SampledShare | None = None
    """The share of new traces that is recorded. Default: all."""
    parent_based_sampling: ParentBasedSampling | None = None
    """Whether clients decide for traces that they have begun. Default: they do not."""
    service_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """The attribute `service.name` of the resource. Default: egressproxy."""
    span_name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The name of the span of an exchange. Default: its method."""
    attributes: tuple[SpanAttribute, ...] = ()
    """Attributes of every span."""

    def model_post_init(self, context: Any) -> None:
        if self.mode == "Enabled" and self.provider is None:
            raise RefusedValue("mode Enabled needs provider", "add provider")
        if self.mode == "Disabled" and self.provider is not None:
            raise RefusedValue("provider does not belong to mode Disabled", "remove provider, or change the mode")
        check_unique((each.name for each in self.attributes), "name", "attributes")


class XTelemetryPolicySpec(Model):
    target_refs: Annotated[tuple[TelemetryTargetReference, ...], Field(min_length=1)]
    """The Gateways that the policy is for."""
    tracing: Tracing | None = None
    """Traces of exchanges, as OpenTelemetry has them."""

    def model_post_init(self, context: Any) -> None:
        check_unique(
            (f"{each.kind} {each.namespace or ''}/{each.name}" for each in self.target_refs), "target", "targetRefs"
        )


class XTelemetryPolicy(Resource, group="gateway.networking.x-k8s.io", kind="XTelemetryPolicy", versions=("v1alpha1",)):
    spec: XTelemetryPolicySpec
    """Gateways, and how they are observed."""
