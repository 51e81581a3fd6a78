"""TelemetryPolicies: which XTelemetryPolicy holds for a Gateway, what it asks for, and its status.

One policy holds for a Gateway: the oldest. A collector that cannot be reached closes nothing: spans are dropped, and
counted. Source: GEP-4768, GEP-713.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from egressproxy.config.compile.interface import Status, age_of
from egressproxy.config.compile.policies.policy_filters import LimitScopes
from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.compile.routes.backend_refs import BackendRefCompiler
from egressproxy.config.compile.status.conditions import Conditions, ReferenceConditions
from egressproxy.config.otlp_environment import OtlpSettings
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.gateway import Gateway
from egressproxy.config.resources.meta import GATEWAY_GROUP
from egressproxy.config.resources.telemetry import SpanAttribute, TelemetryTargetReference, Tracing, XTelemetryPolicy
from egressproxy.ir.backend import Destination, Protocol
from egressproxy.ir.route import WeightedBackend
from egressproxy.ir.telemetry import AttributeSource, CollectorIR, OtlpProtocol, SpanAttributeIR, TracingIR, is_of_spans
from egressproxy.model.fields import CREDENTIAL_FIELDS
from egressproxy.model.published_object import Key
from egressproxy.model.secret import SecretBytes

#: Annotations of a policy, for what the API has no field.
CONTEXT: Final = "egressproxy.io/trace-context"
ON_ERROR: Final = "egressproxy.io/trace-errors"
#: PolicyStatus.ancestors holds at most 16 entries.
MAX_ANCESTORS: Final = 16

_NO_SCOPES: Final = LimitScopes("", "", "")
_GRPC_PORT: Final = 4317
_OF_GRPC: Final = frozenset({Protocol.GRPC, Protocol.H2C, Protocol.HTTP2})
_SECRET_FIELDS: Final = frozenset((*CREDENTIAL_FIELDS, "cookie", "set-cookie", "proxy-authorization"))
#: Attributes of one kind of span that cannot be repeated.
_NOT_COPIED: Final = frozenset(("url.full", "client.port"))
_SOURCES: Final = {each.value: each for each in AttributeSource}


class TelemetryPolicies:
    """All XTelemetryPolicies. `settings` are those of the process, for Gateways without tracing of their own."""

    def __init__(
        self, resources: ResourceSet, references: References, backends: BackendRefCompiler,
        settings: OtlpSettings,
    ) -> None:  # fmt: skip
        self._resources = resources
        self._references = references
        self._backends = backends
        self._settings = settings
        self._policies = sorted(resources.of(XTelemetryPolicy), key=age_of)
        self._holding: dict[Key, XTelemetryPolicy] = {}
        self._made: dict[Key, TracingIR | None] = {}
        self._collectors: dict[Key, WeightedBackend] = {}
        self._unresolved: dict[Key, UnresolvedRef] = {}
        for policy in self._policies:
            for ref in policy.spec.target_refs[:MAX_ANCESTORS]:
                if not _refusal(policy, ref):
                    self._holding.setdefault(self._target(policy, ref), policy)

    def of_gateway(self, gateway: Key) -> TracingIR | None:
        """How exchanges of this Gateway are traced; None: they are not."""
        policy = self._holding.get(gateway)
        if policy is None:
            return self._settings.traces
        if policy.key not in self._made:
            self._made[policy.key] = self._compile(policy)
        return self._made[policy.key]

    def statuses(self, generations: Mapping[Key, int], served: Collection[Key]) -> dict[Key, Status]:
        """The status of every policy, for its Gateways among `served`. Other gateways report on the rest."""
        return {policy.key: self._status(policy, generations[policy.key], served) for policy in self._policies}

    def collectors(self, served: Collection[Key]) -> Iterable[tuple[Key, Key]]:
        """Each of these Gateways that a policy holds for, and the Service or Backend of its collector."""
        for gateway, policy in self._holding.items():
            tracing = policy.spec.tracing
            if gateway in served and tracing is not None and tracing.provider is not None:
                yield gateway, self._backends.backends.target_key(policy, tracing.provider.backend_ref)

    def _compile(self, policy: XTelemetryPolicy) -> TracingIR | None:
        tracing = policy.spec.tracing
        if tracing is not None and tracing.mode == "Disabled":
            return None
        if tracing is None or tracing.provider is None:
            return _by_default(self._settings.traces, tracing, policy)
        backend, protocol = _spoken_to(self._collector(policy, tracing))
        headers = tuple((each.name.lower(), SecretBytes(each.value.encode())) for each in tracing.provider.headers)
        settings = self._settings
        name = tracing.service_name or settings.service_name
        collector = CollectorIR(backend, protocol, headers=headers, service_name=name, resource=settings.resource)
        return _tracing(collector, tracing, policy, 1.0)

    def _collector(self, policy: XTelemetryPolicy, tracing: Tracing) -> WeightedBackend:
        assert tracing.provider is not None
        ref = tracing.provider.backend_ref
        try:
            self._backends.backends.resolve(policy, ref)
        except UnresolvedRef as unresolved:
            self._unresolved[policy.key] = unresolved
            return WeightedBackend(None, error=unresolved.message)
        found = self._backends.of_filter(policy, ref, (), _NO_SCOPES)
        if found.backend is not None and found.backend.destination is Destination.DYNAMIC:
            message = f"{found.backend.name} is Dynamic: a collector is a fixed place"
            self._unresolved[policy.key] = UnresolvedRef("UnsupportedValue", message, "name a Service or a Backend")
            return WeightedBackend(None, error=message)
        if found.backend is None:
            self._unresolved[policy.key] = UnresolvedRef("UnsupportedValue", found.error)
        return found

    def _target(self, policy: XTelemetryPolicy, ref: TelemetryTargetReference) -> Key:
        return (ref.group, ref.kind, ref.namespace or policy.namespace, ref.name)

    def _status(self, policy: XTelemetryPolicy, generation: int, served: Collection[Key]) -> Status:
        ancestors = ReferenceConditions("ancestors", generation)
        for ref in policy.spec.target_refs[:MAX_ANCESTORS]:
            target = self._target(policy, ref)
            if target not in served and isinstance(self._resources.get(*target), Gateway):
                continue
            conditions = ancestors.add(ref, namespace=target[2])
            refusal = _refusal(policy, ref)
            if refusal:
                conditions.set("Accepted", False, *refusal)
            elif not isinstance(self._resources.get(*target), Gateway):
                remedy = self._references.suggestions.remedy(*target, "name it in targetRefs")
                message = f"Gateway {target[2]}/{ref.name} does not exist" + (f" ({remedy})" if remedy else "")
                conditions.set("Accepted", False, "TargetNotFound", message)
            elif self._holding[target] is not policy:
                message = f"{self._holding[target]} is older and has the same target"
                conditions.set("Accepted", False, "Conflicted", message)
            else:
                self._state(policy, target, conditions)
        return ancestors.to_status()

    def _state(self, policy: XTelemetryPolicy, target: Key, conditions: Conditions) -> None:
        made = self.of_gateway(target)
        conditions.set("Accepted", True, "Accepted", _sentence(made))
        for note in _notes(policy):
            conditions.add_note("Accepted", note)
        unresolved = self._unresolved.get(policy.key)
        if unresolved is not None:
            message = f"spec.tracing.provider.backendRef: {unresolved.with_hint}; spans are dropped"
            conditions.set("ResolvedRefs", False, unresolved.reason, message)
        else:
            conditions.set("ResolvedRefs", True, "ResolvedRefs", "every reference is resolved")


def _refusal(policy: XTelemetryPolicy, ref: TelemetryTargetReference) -> tuple[str, str] | None:
    """Reason and message for a target that no such policy can have."""
    if (ref.group, ref.kind) != (GATEWAY_GROUP, "Gateway"):
        return "TargetNotFound", f"only Gateways can be targets, not {ref.kind}"
    if ref.namespace not in (None, policy.namespace):
        return "Invalid", f"a Gateway of another namespace cannot be a target: put the policy into {ref.namespace}"
    return None


def _by_default(defaults: TracingIR | None, tracing: Tracing | None, policy: XTelemetryPolicy) -> TracingIR | None:
    """With the collector of the process, and its sampling where the policy has none."""
    if defaults is None:
        return None
    tracing, to = tracing or Tracing.model_construct(), defaults.collector
    to = replace(to, service_name=tracing.service_name or to.service_name)
    made = _tracing(to, tracing, policy, defaults.share)
    if tracing.parent_based_sampling is None and tracing.sampling_rate is None:
        made = replace(made, parent_share=defaults.parent_share)
    return made


def _tracing(collector: CollectorIR, tracing: Tracing, policy: XTelemetryPolicy, share: float) -> TracingIR:
    annotations, parents = policy.metadata.annotations, tracing.parent_based_sampling
    parent_share: float | None = None
    if parents is not None and parents.mode != "Disabled":
        parent_share = parents.sampling_rate.share if parents.sampling_rate is not None else 1.0
    return TracingIR(
        collector,
        share=tracing.sampling_rate.share if tracing.sampling_rate is not None else share,
        parent_share=parent_share,
        continues=annotations.get(CONTEXT) != "Restart",
        keeps_errors=annotations.get(ON_ERROR) == "true",
        span_name=tracing.span_name or "",
        attributes=tuple(_attribute(each) for each in tracing.attributes if not _why_useless(each)),
    )


def _attribute(written: SpanAttribute) -> SpanAttributeIR:
    value = written.header_name.lower() if written.header_name else written.attribute_key or written.literal_value or ""
    return SpanAttributeIR(written.name, _SOURCES[written.type], value)


def _why_useless(written: SpanAttribute) -> str:
    """Why no span gets this attribute; "" if they do."""
    if (written.header_name or "").lower() in _SECRET_FIELDS:
        return f"{written.header_name} may hold a credential"
    if is_of_spans(written.name):
        return "spans have one of that name"
    if written.attribute_key and (not is_of_spans(written.attribute_key) or written.attribute_key in _NOT_COPIED):
        return f"{written.attribute_key} cannot be repeated"
    return ""


def _spoken_to(found: WeightedBackend) -> tuple[WeightedBackend, OtlpProtocol]:
    """The collector as it is spoken to: in gRPC where its backend says so, or has the port that OTLP gives to that."""
    spec = found.backend
    if spec is None or (spec.protocol not in _OF_GRPC and spec.port != _GRPC_PORT):
        return found, OtlpProtocol.HTTP
    if spec.protocol in _OF_GRPC:
        return found, OtlpProtocol.GRPC
    return replace(found, backend=replace(spec, protocol=Protocol.GRPC)), OtlpProtocol.GRPC


def _sentence(made: TracingIR | None) -> str:
    if made is None:
        return "the policy is in force: exchanges are not traced"
    spec = made.collector.backend.backend
    where = "nowhere" if spec is None else f"to {spec.name} by OTLP ({made.collector.protocol.value})"
    return f"the policy is in force: {100 * made.share:g}% of new traces are recorded; spans go {where}"


def _notes(policy: XTelemetryPolicy) -> Iterable[str]:
    tracing = policy.spec.tracing
    for written in tracing.attributes if tracing is not None else ():
        if why := _why_useless(written):
            yield f"The attribute {written.name} does nothing: {why}."
    annotations = policy.metadata.annotations
    for name, values in ((CONTEXT, ("Continue", "Restart")), (ON_ERROR, ("true", "false"))):
        if annotations.get(name, values[0]) not in values:
            yield f"The annotation {name} does nothing: write {' or '.join(values)}."
    if len(policy.spec.target_refs) > MAX_ANCESTORS:
        yield f"Targets behind the first {MAX_ANCESTORS} are not served, since status has no room for them."
