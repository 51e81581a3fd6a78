"""Which filters run at a place: extensions of the policies that hold there, their limits, the backend's own.

The `limits` section of a policy has no mechanism of its own: each entry becomes one of the built-in limit filters.
A count of everybody at a place is one number; whose it is, is the filter's scope: `per: Gateway` is shared by the
whole Gateway, `per: Route` by a route's rules. All other limits of a policy are one QoSController, which decides on
them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from egressproxy.config.compile.extensions.extension_compiler import ExtensionCompiler, FilterNotSupported
from egressproxy.config.compile.extensions.extension_faults import closing, must_run
from egressproxy.config.compile.extensions.ranked_extension import AttachmentPoint, RankedExtension
from egressproxy.config.compile.policies.access_policies import AccessPolicies, filter_config
from egressproxy.config.compile.policies.layers import Layer, Level
from egressproxy.config.resources.access_policy import AGENTIC_GROUP, AccessPolicy
from egressproxy.config.resources.limits import AmountRate, Concurrency, Limits, LimitStore, Rate
from egressproxy.config.resources.policy import EgressPolicy, EgressPolicySpec

REQUEST_RATE = "egressproxy.io/RequestRateLimit:v1"
CONCURRENCY = "egressproxy.io/ConcurrencyLimit:v1"
BODY = "egressproxy.io/BodyLimit:v1"
QOS = "egressproxy.io/QoSController:v1"
ACCESS = "egressproxy.io/AccessPolicy:v1"

#: What an XAccessPolicy judges: a request as ExternalAuth (45) leaves it, before filters of routes (50) change it; an
#: attempt before other filters of the backend.
_ACCESS_PRIORITY = {"request-headers": 46, "backend-request": -100}
#: The kinds of targets where an authorization server can be asked, before a backend is chosen.
_ASKING = frozenset({"Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute"})

#: What an ExtensionIR calls the level of a layer.
_LEVELS = {Level.GATEWAY: 0, Level.LISTENER: 0, Level.ROUTE: 1, Level.RULE: 1, Level.BACKEND: 2}


@dataclass(frozen=True, slots=True)
class LimitScopes:
    """The names that limits are counted under: those of the Gateway, the route and the backend of a place.

    `port` is the listener's where clients do not name the port; 0 on a forward proxy. `trust_domain` is that of the
    listener.
    """

    gateway: str
    route: str
    backend: str = "-"
    port: int = 0
    trust_domain: str = ""

    def scope(self, per: str) -> str:
        return {"Gateway": self.gateway, "Route": self.route, "Backend": self.backend}[per]


class PolicyFilters:
    """Gives the filters of a place in the form that `ordered` sorts."""

    __slots__ = ("_access", "_extensions", "compiler")

    def __init__(self, compiler: ExtensionCompiler, access: AccessPolicies) -> None:
        self.compiler = compiler
        self._access = access
        self._extensions: dict[tuple[EgressPolicy, str], tuple[RankedExtension, ...]] = {}

    def check(self, policy: EgressPolicy) -> None:
        """Find the load errors of a policy's extensions, whether or not its targets exist."""
        for ref in policy.spec.target_refs:
            level = 0 if ref.kind in ("Gateway", "ListenerSet") else 1 if ref.kind.endswith("Route") else 2
            section = f", section {ref.section_name}" if ref.section_name else ""
            self._of_policy(policy, level, f"{ref.kind} {ref.namespace or policy.namespace}/{ref.name}{section}")
        if not policy.spec.target_refs:
            self._of_policy(policy, 1, str(policy))

    def for_requests(self, layers: Iterable[Layer], scopes: LimitScopes) -> list[RankedExtension]:
        """The filters of a listener or rule: all but those of one backend. Raises FilterNotSupported."""
        layers = tuple(layer for layer in layers if layer.level is not Level.BACKEND)
        unknown = self.unknown_extension(layers)
        if unknown:
            raise FilterNotSupported(f"the {unknown} is not supported")
        made: list[RankedExtension] = []
        for layer in layers:
            for policy in layer.policies:
                made += self._of_policy(policy, _LEVELS[layer.level], layer.scope)
                made += self._limits(policy, layer, scopes, backend=False)
            made += (self._access_filter(policy, layer, scopes, "request-headers") for policy in layer.access)
        return made

    def for_backend(self, layers: Iterable[Layer], scopes: LimitScopes) -> list[RankedExtension]:
        """The filters that policies add for one backend. Raises FilterNotSupported."""
        made: list[RankedExtension] = []
        for layer in layers:
            for policy in layer.policies:
                if layer.level is Level.BACKEND:
                    made += self._of_policy(policy, _LEVELS[layer.level], layer.scope)
                made += self._limits(policy, layer, scopes, backend=True)
            if layer.level is Level.BACKEND:
                made += (self._access_filter(policy, layer, scopes, "backend-request") for policy in layer.access)
        return made

    def body_limits(self, layers: Iterable[Layer]) -> list[RankedExtension]:
        """`maxBodyBytes` of a backend, for the whole rule: bodies are read first. Raises FilterNotSupported."""
        return [
            placed
            for layer in layers
            if layer.level is Level.BACKEND
            for policy in layer.policies
            for placed in self._body_limit(policy, layer)
        ]

    def runs(self, policy: EgressPolicy, layer: Layer) -> bool:
        """Whether a policy of this layer has extensions that have to run; those of unknown types may fail open."""
        placed = self._of_policy(policy, _LEVELS[layer.level], layer.scope)
        return any(must_run(one.spec) for one in placed)

    def unknown_extension(self, layers: Iterable[Layer], own: Iterable[RankedExtension] = ()) -> str:
        """The extensions of unknown types that close a place: those of its policies, and these of its backend."""
        placed = [
            one
            for layer in layers
            for policy in layer.policies
            if policy.spec.extensions
            for one in self._of_policy(policy, _LEVELS[layer.level], layer.scope)
        ]
        return closing(one.spec for one in (*own, *placed))

    def check_access(self) -> None:
        """Find the XAccessPolicies that cannot be enforced, whether or not their targets exist."""
        policies = self._access
        for policy in policies.objects:
            if policies.closed(policy):
                continue
            if policy.is_unread:
                policies.close(
                    policy, "Invalid", f"{policy.api_version} is not read; write it as {AGENTIC_GROUP}/v1alpha1"
                )
                continue
            kinds = {ref.kind for ref in policy.spec.target_refs}
            if policy.spec.action == "ExternalAuth" and not kinds <= _ASKING:
                what = f"action ExternalAuth holds on {', '.join(sorted(_ASKING))}, and not on {', '.join(kinds)}"
                policies.close(policy, "NotEnforceable", what)
                continue
            config = filter_config(policy, "", "", 0)
            try:
                made = self.compiler.builtin(
                    ACCESS, policy.full_name, "request-headers", config, policy, AttachmentPoint(0, str(policy))
                )
            except FilterNotSupported as error:
                policies.close_unfit(policy, str(error))
                continue
            why = self.compiler.misfit(made.spec)
            if why:
                policies.close_unfit(policy, why)

    def delegating(self, layers: Iterable[Layer], scopes: LimitScopes) -> list[tuple[AccessPolicy, RankedExtension]]:
        """The XAccessPolicies of these layers that have an authorization server asked, each with its filter."""
        return [
            (policy, self._access_filter(policy, layer, scopes, "request-headers"))
            for layer in layers
            if layer.level is not Level.BACKEND
            for policy in layer.access
            if policy.spec.action == "ExternalAuth" and not self._access.closed(policy)
        ]

    def _access_filter(self, policy: AccessPolicy, layer: Layer, scopes: LimitScopes, phase: str) -> RankedExtension:
        config = filter_config(policy, self._access.closed(policy), scopes.trust_domain, scopes.port)
        attachment = AttachmentPoint(_LEVELS[layer.level], layer.scope)
        priority = _ACCESS_PRIORITY[phase]
        return self.compiler.builtin(ACCESS, policy.full_name, phase, config, policy, attachment, priority)

    def _of_policy(self, policy: EgressPolicy, level: int, scope: str) -> tuple[RankedExtension, ...]:
        key = (policy, scope)
        if key not in self._extensions:
            declared = policy.spec.extensions
            self._extensions[key] = self.compiler.extensions(policy, declared, AttachmentPoint(level, scope))
        return self._extensions[key]

    def _limits(
        self, policy: EgressPolicy, layer: Layer, scopes: LimitScopes, *, backend: bool
    ) -> Iterator[RankedExtension]:
        limits = policy.spec.limits
        if limits is None:
            return
        level = _LEVELS[layer.level]
        phase = "backend-request" if backend else "request-headers"
        entries: list[dict[str, Any]] = []
        for field in ("requests", "concurrency"):
            written: tuple[Rate | Concurrency, ...] = getattr(limits, field)
            for index, entry in enumerate(written):
                if not _is_counted_here(entry.keys, layer, backend=backend):
                    continue
                if not _is_plain(entry, limits):
                    entries.append(_entry(field.title(), entry))
                    continue
                config: dict[str, Any] = {"limit": entry.limit}
                type_name = CONCURRENCY
                if isinstance(entry, Rate):
                    type_name, config["window"] = REQUEST_RATE, entry.window.seconds
                    config |= {"burst": entry.burst} if entry.burst is not None else {}
                attachment, name = AttachmentPoint(level, scopes.scope(entry.per)), f"limits.{field}[{index}]"
                yield self.compiler.builtin(type_name, name, phase, config, policy, attachment, index=index)
        kinds: tuple[tuple[str, tuple[Rate, ...]], ...]
        kinds = (("Bytes", limits.bytes), ("Tokens", limits.tokens), ("Cost", limits.cost))
        for kind, rates in kinds:
            here = [rate for rate in rates if _is_counted_here(rate.keys, layer, backend=backend)]
            entries += [_entry(kind, rate) for rate in here]
        if backend and any(entry["type"] == "Cost" or "Model" in entry["per"] for entry in entries):
            raise FilterNotSupported(f"limits of {policy}: cost, and limits per Model, are not counted for one backend")
        of_backend = [entry for entry in entries if "Backend" in entry["per"]]
        others = [entry for entry in entries if "Backend" not in entry["per"]]
        for together, scope in ((of_backend, scopes.backend), (others, str(policy))):
            if together:
                attachment, config = AttachmentPoint(level, scope), _quota(policy.spec, limits, together)
                yield self.compiler.builtin(QOS, "limits", phase, config, policy, attachment, path="spec.limits")
        if not backend:
            yield from self._body_limit(policy, layer)

    def _body_limit(self, policy: EgressPolicy, layer: Layer) -> Iterator[RankedExtension]:
        limits = policy.spec.limits
        if limits is not None and limits.max_body_bytes:
            attachment = AttachmentPoint(_LEVELS[layer.level], layer.scope)
            config = {"maxBytes": limits.max_body_bytes}
            yield self.compiler.builtin(BODY, "limits.maxBodyBytes", "request-headers", config, policy, attachment)


def _is_counted_here(keys: tuple[str, ...], layer: Layer, *, backend: bool) -> bool:
    """Whether a limit is counted when the backend is asked (else when the request comes in)."""
    return ("Backend" in keys or layer.level is Level.BACKEND) == backend


def _is_plain(entry: Rate | Concurrency, limits: Limits) -> bool:
    """Whether a limit is one number of everybody at a place, in the memory of this machine."""
    if limits.mode != "Enforce" or limits.rate_limit_headers != "Denied":
        return False
    if entry.also_per or entry.per not in ("Gateway", "Route", "Backend"):
        return False
    if isinstance(entry, Concurrency):
        return True
    return entry.unit is None and (limits.store is None or limits.store.type == "Memory")


def _entry(kind: str, written: Rate | Concurrency) -> dict[str, Any]:
    made: dict[str, Any] = {"type": kind, "limit": written.limit, "per": list(written.keys)}
    if written.header is not None:
        made["header"] = written.header
    if isinstance(written, Rate):
        made.update({"unit": written.unit} if written.unit is not None else {"window": written.window.seconds})
        if written.burst is not None:
            made["burst"] = written.burst
    if isinstance(written, AmountRate):
        made["count"] = written.count
    return made


def _quota(spec: EgressPolicySpec, limits: Limits, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The config of the QoSController that these entries of a policy become.

    With subjects its clients are known, so that nobody can make up keys, and there may be thousands of such policies.
    """
    config: dict[str, Any] = {"limits": entries, "mode": limits.mode, "rateLimitHeaders": limits.rate_limit_headers}
    is_default = "max_keys" not in limits.model_fields_set
    config["maxKeys"] = 0 if spec.subjects and is_default else limits.max_keys
    if limits.max_buffered_bytes:
        config["maxBodyBytes"] = min(max(limits.max_buffered_bytes, 1024), 64 * 1024 * 1024)
    if limits.store is not None and limits.store.type == "Redis":
        config["store"] = _store(limits.store)
    if any(entry["type"] == "Cost" for entry in entries):
        config["prices"] = [price.model_dump(by_alias=True, exclude_none=True) for price in limits.prices]
    return config


def _store(store: LimitStore) -> dict[str, Any]:
    made: dict[str, Any] = {"type": store.type, "timeout": store.timeout.seconds, "onFailure": store.on_failure}
    for name, ref in (("backendRef", store.backend_ref), ("secretRef", store.secret_ref)):
        if ref is not None:
            made[name] = ref.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
    made.update({"username": store.username, "database": store.database})
    return made
