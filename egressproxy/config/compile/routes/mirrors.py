"""RequestMirror filters: where copies of a rule's requests go, and which share of them.

A mirror whose backend cannot be used gets nothing, and the rule is served without it; the route's status says so.
Source: Gateway API v1 HTTPRequestMirrorFilter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from egressproxy.config.compile.extensions.config_secrets import INJECTOR
from egressproxy.config.compile.extensions.ranked_extension import RankedExtension, ordered
from egressproxy.config.compile.policies.layers import Layer
from egressproxy.config.compile.policies.policy_filters import LimitScopes
from egressproxy.config.compile.routes.backend_refs import BackendRefCompiler
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.route_filters import HttpFilter, RequestMirror
from egressproxy.ir.route import MirrorIR


def mirrors(
    backend_refs: BackendRefCompiler,
    route: Resource,
    layers: tuple[Layer, ...],
    scopes: LimitScopes,
    filters: Sequence[HttpFilter],
    placed: Iterable[RankedExtension],
) -> tuple[MirrorIR, ...]:
    """The mirrors among these filters of a rule, or of one of its backendRefs, where `placed` run for its requests.

    What policy runs for a request before it leaves (connect, backend-request) holds for a copy, too; credentials do
    not: those that a copy gets are its own backend's.
    """
    found = [entry.request_mirror for entry in filters if entry.request_mirror is not None]
    if not found:
        return ()
    extensions = ordered(one for one in placed if not one.spec.type.startswith(INJECTOR))
    made = []
    for mirror in found:
        numerator, denominator = _share(mirror)
        if numerator:
            backend = backend_refs.of_filter(route, mirror.backend_ref, layers, scopes)
            made.append(MirrorIR(backend, extensions, numerator, denominator))
    return tuple(made)


def _share(mirror: RequestMirror) -> tuple[int, int]:
    if mirror.fraction is not None:
        return mirror.fraction.numerator, mirror.fraction.denominator
    return (100 if mirror.percent is None else mirror.percent), 100
