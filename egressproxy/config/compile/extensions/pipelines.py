"""What filters of routes name: PayloadProcessingPipelines, and EgressPolicies for one rule.

The processors of a pipeline are extensions of the rule, in the order of the list. What cannot be resolved closes the
rule. Sources: Gateway API v1, HTTPRouteFilter.extensionRef: a filter that cannot be resolved must not be skipped; the
AI Gateway working group's proposal 7, whose processors become those of ours (`PayloadProcessing`,
`PayloadProcessingRef`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from egressproxy.config.compile.extensions.extension_compiler import Caller, ExtensionCompiler, FilterNotSupported
from egressproxy.config.compile.extensions.extension_faults import closing
from egressproxy.config.compile.extensions.ranked_extension import ROUTE_LEVEL, AttachmentPoint, RankedExtension
from egressproxy.config.compile.interface import Status, age_of
from egressproxy.config.compile.references import References
from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.core import Service
from egressproxy.config.resources.extension import (
    Extension,
    PayloadPhases,
    PayloadProcessingPipeline,
    PayloadProcessor,
    Processor,
    ProcessorReference,
    PublishedPipeline,
)
from egressproxy.config.resources.meta import GATEWAY_GROUP, OUR_GROUP, Resource
from egressproxy.config.resources.object_references import BackendObjectReference, LocalObjectReference
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.route_filters import HttpFilter
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.near_names import did_you_mean
from egressproxy.model.published_object import Key

#: The type that asks a processor with `backendRefs`.
REMOTE: Final = "egressproxy.io/ExternalProcessor:v1"
_POLICY: Final = (OUR_GROUP, "EgressPolicy")
_PIPELINE: Final = (OUR_GROUP, "PayloadProcessingPipeline")
#: The working group's.
PUBLISHED: Final = (GATEWAY_GROUP, "PayloadProcessingPipeline")
_ANY_PIPELINE: Final = (_PIPELINE, PUBLISHED)
#: No Service has it that does not exist.
_NO_PORT: Final = 1


class ExtensionRefNotFound(FilterNotSupported):
    """An ExtensionRef names an object that does not exist."""


class Pipelines:
    """Every PayloadProcessingPipeline, found by its name and compiled for the places that name it."""

    def __init__(self, resources: ResourceSet, references: References, compiler: ExtensionCompiler) -> None:
        self._resources = resources
        self._references = references
        self._compiler = compiler
        self._made: dict[tuple[Key, AttachmentPoint, int], tuple[RankedExtension, ...]] = {}

    def check(self) -> None:
        """Find the load errors and faults of every pipeline, whether or not a route names it."""
        for pipeline in self._all():
            self._processors(pipeline, AttachmentPoint(ROUTE_LEVEL, str(pipeline)), 0)

    def policies(self, route: Resource, filters: Sequence[HttpFilter]) -> tuple[EgressPolicy, ...]:
        """The EgressPolicies that filters of a rule name, those that exist."""
        found = []
        for entry in filters:
            ref = entry.extension_ref
            if ref is not None and (ref.group, ref.kind) == _POLICY:
                policy = self._resources.find(EgressPolicy, route.namespace, ref.name)
                found += [policy] if policy is not None else []
        return tuple(dict.fromkeys(found))

    def names(self, ref: LocalObjectReference) -> bool:
        """Whether a reference is to the kind of a pipeline."""
        return (ref.group, ref.kind) in _ANY_PIPELINE

    def inline(
        self, route: Resource, written: Sequence[PayloadProcessor], attachment: AttachmentPoint, priority: int,
        index: int,
    ) -> tuple[RankedExtension, ...]:  # fmt: skip
        """The extensions of a PayloadProcessing filter at this place of a route."""
        declared = [self._published(route, each, priority) for each in written]
        made = self._compiler.extensions(route, declared, attachment, "payloadProcessing")
        return tuple(one._replace(position=index) for one in made)

    def with_port(self, owner: Resource, ref: ProcessorReference) -> BackendObjectReference:
        """The reference with the only port of a Service, where it names none. Of several the reference has to name
        one.
        """
        port = ref.port
        if port is None and (ref.group, ref.kind) == (Service.GROUP, Service.KIND):
            found = self._resources.find(Service, ref.namespace or owner.namespace, ref.name)
            ports = [each.port for each in found.spec.ports] if found is not None else [_NO_PORT]
            port = ports[0] if len(ports) == 1 else None
        return BackendObjectReference.model_construct(
            group=ref.group, kind=ref.kind, name=ref.name, namespace=ref.namespace, port=port
        )

    def extensions(
        self, route: Resource, ref: LocalObjectReference, attachment: AttachmentPoint, priority: int, index: int
    ) -> tuple[RankedExtension, ...]:
        """The extensions that an ExtensionRef adds at this place of a route; of an EgressPolicy none: it is a layer.

        Raises FilterNotSupported for another kind, for an unknown type of a processor, and where it makes no sense.
        """
        if (ref.group, ref.kind) not in (_POLICY, *_ANY_PIPELINE):
            raise FilterNotSupported(f"filter ExtensionRef ({ref.kind} {ref.name}) is not supported ({_meant(ref)})")
        return self._named(route, ref, attachment, priority, index, "ExtensionRef")

    def published(
        self, route: Resource, name: str, attachment: AttachmentPoint, priority: int, index: int
    ) -> tuple[RankedExtension, ...]:
        """As `extensions`, of a PayloadProcessingRef."""
        ref = LocalObjectReference.model_construct(group=PUBLISHED[0], kind=PUBLISHED[1], name=name)
        return self._named(route, ref, attachment, priority, index, "PayloadProcessingRef")

    def _named(
        self, route: Resource, ref: LocalObjectReference, attachment: AttachmentPoint, priority: int, index: int,
        filter_type: str,
    ) -> tuple[RankedExtension, ...]:  # fmt: skip
        named = f"{ref.kind} {route.namespace}/{ref.name}"
        key = (ref.group, ref.kind, route.namespace, ref.name)
        found = self._resources.get(*key)
        if found is None:
            elsewhere = f"{filter_type} names an object of the route's namespace"
            hint = self._references.suggestions.remedy(*key, elsewhere)
            if filter_type == "PayloadProcessingRef" and self._resources.get(*_PIPELINE, *key[2:]) is not None:
                hint = f"one of {OUR_GROUP} is there: name it in an ExtensionRef with group: {OUR_GROUP}"
            raise ExtensionRefNotFound(f"filter {filter_type}: {named} does not exist{f' ({hint})' if hint else ''}")
        if not isinstance(found, PayloadProcessingPipeline | PublishedPipeline):
            if attachment.level != ROUTE_LEVEL:
                raise FilterNotSupported(f"{named} on a backendRef: name the Backend in targetRefs of that policy")
            return ()
        made = self._processors(found, attachment, priority)
        unknown = closing(one.spec for one in made)
        if unknown:
            raise FilterNotSupported(f"{named}: the {unknown} is not supported")
        return tuple(one._replace(age=age_of(route), position=index) for one in made)

    def statuses(self, generations: Mapping[Key, int]) -> dict[Key, Status]:
        """The status of every pipeline."""
        made: dict[Key, Status] = {}
        for pipeline in self._all():
            conditions = Conditions(generations.get(pipeline.key, 1))
            conditions.set("Accepted", True, "Accepted", "routes may name the pipeline in a filter")
            conditions.set("ResolvedRefs", True, "ResolvedRefs", "every reference is resolved")
            if pipeline.key in self._compiler.faults:
                self._compiler.faults[pipeline.key].set_conditions(conditions)
            made[pipeline.key] = {"conditions": conditions.to_list()}
        return made

    def _all(self) -> tuple[PayloadProcessingPipeline | PublishedPipeline, ...]:
        return (*self._resources.of(PayloadProcessingPipeline), *self._resources.of(PublishedPipeline))

    def _processors(
        self, pipeline: PayloadProcessingPipeline | PublishedPipeline, attachment: AttachmentPoint, priority: int
    ) -> tuple[RankedExtension, ...]:
        key = (pipeline.key, attachment, priority)
        if key not in self._made:
            if isinstance(pipeline, PublishedPipeline):
                declared = [self._published(pipeline, each, priority) for each in pipeline.spec.processors]
            else:
                declared = [_as_extension(each, priority) for each in pipeline.spec.processors]
            self._made[key] = made = self._compiler.extensions(pipeline, declared, attachment, "spec.processors")
            for one in made:
                self._name_fields(one.spec)
        return self._made[key]

    def _name_fields(self, spec: ExtensionIR) -> None:
        """Status says where a reference stands: beside the config, not in it."""
        caller = self._compiler.callers.get(spec)
        if caller is not None and spec.type == REMOTE:
            refs = tuple((path.replace(".config.backendRefs", ".backendRefs"), ref) for path, ref in caller.refs)
            self._compiler.callers[spec] = Caller(caller.owner, refs)

    def _published(self, owner: Resource, written: PayloadProcessor, priority: int) -> Extension:
        """A processor of the working group's form, as an entry of `extensions`."""
        config: dict[str, Any] = {"processingMode": _mode(written.config.phases)}
        context = {**written.context, **written.config.context}
        if context:
            config["grpcInitialMetadata"] = [{"key": key.lower(), "value": value} for key, value in context.items()]
        processor = Processor.model_construct(
            name=written.name,
            config=config,
            backend_refs=tuple(self.with_port(owner, ref) for ref in written.backend_refs),
            timeout=written.config.timeout,
            failure_mode=written.config.failure_mode,
        )
        return _as_extension(processor, priority)


def _mode(phases: PayloadPhases | None) -> dict[str, str]:
    """What a processor is shown, in the words of ext_proc. The body of a request is held until it was judged."""
    if phases is None:
        return {"requestBodyMode": "BUFFERED", "responseBodyMode": "STREAMED"}
    return {
        "requestHeaderMode": "SEND" if phases.request_headers else "SKIP",
        "requestBodyMode": "BUFFERED" if phases.request_body else "NONE",
        "responseHeaderMode": "SEND" if phases.response_headers else "SKIP",
        "responseBodyMode": "STREAMED" if phases.response_body else "NONE",
    }


def _meant(ref: LocalObjectReference) -> str:
    """What to write instead of a group and kind that no ExtensionRef may name."""
    kinds = [kind for _, kind in (_PIPELINE, _POLICY)]
    if ref.kind in kinds:
        return f"write group: {OUR_GROUP}"
    return did_you_mean(ref.kind, kinds, f"write group: {OUR_GROUP}, and kind: {' or '.join(kinds)}")


def _as_extension(processor: Processor, priority: int) -> Extension:
    """The processor as an entry of `extensions`; a remote one is asked by ext_proc."""
    config: dict[str, Any] = processor.config
    phase = processor.phase
    if processor.type is None:
        refs = [ref.model_dump(by_alias=True, exclude_none=True) for ref in processor.backend_refs]
        config, phase = {**config, "backendRefs": refs}, phase or "request-headers"
    return Extension.model_construct(
        name=processor.name,
        type=processor.type or REMOTE,
        phase=phase,
        priority=priority,
        fail_open=processor.failure_mode == "open",
        pre_auth=False,
        timeout=processor.timeout,
        config=config,
    )
