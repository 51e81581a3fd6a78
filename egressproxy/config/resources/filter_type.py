"""The kind FilterType: an extension type of one's own, under one's own domain, and what runs it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from egressproxy.config.resources.extension import PhaseName
from egressproxy.config.resources.meta import OUR_GROUP, Model, Resource
from egressproxy.config.resources.object_references import BackendObjectReference
from egressproxy.config.resources.values import DeclaredType, Label, Name, require_one_of


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
        """It stands in one place."""
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
        """It is run in one way."""
        require_one_of("a FilterType", python=self.python, processor=self.processor)


class FilterTypeDefinition(Resource, group=OUR_GROUP, kind="FilterType", versions=("v1alpha1",), namespaced=False):
    """An extension type of one's own."""

    spec: FilterTypeSpec
    """The type, and what runs it."""
