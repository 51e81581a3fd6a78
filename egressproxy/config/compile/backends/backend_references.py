"""What Backends carry: requests of ours, or streams whose TLS is somebody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from egressproxy.config.compile.interface import Key
from egressproxy.config.compile.references import Reference
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.backend import Backend
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.routes import GrpcRoute, HttpRoute, TcpRoute, TlsRoute

__all__ = ["backend_refs", "only_parents", "stream_carriers"]


def backend_refs(route: Resource) -> Iterator[Reference]:
    """Every reference of a route to a backend: of its rules, and of filters that send requests somewhere."""
    for rule in route.spec.rules:  # type: ignore[attr-defined]
        yield from rule.backend_refs
        holders = (rule, *rule.backend_refs)
        for entry in chain.from_iterable(getattr(holder, "filters", ()) for holder in holders):
            for part in (entry.request_mirror, getattr(entry, "external_auth", None)):
                if part is not None:
                    yield part.backend_ref


def only_parents(resources: ResourceSet, key_of: Callable[[Resource, Reference], Key]) -> set[Key]:
    """Backends that others are reached through, and that no route leads to. `key_of`: what a reference means."""
    found = _parents(resources, key_of)
    for kind in (HttpRoute, GrpcRoute, TlsRoute, TcpRoute):
        for route in resources.of(kind) if found else ():
            found -= {key_of(route, ref) for ref in backend_refs(route)}
    return found


def _parents(resources: ResourceSet, key_of: Callable[[Resource, Reference], Key]) -> set[Key]:
    """What Backends and policies name as their parent."""
    found: set[Key] = set()
    sources: tuple[Backend | EgressPolicy, ...] = (*resources.of(Backend), *resources.of(EgressPolicy))
    for source in sources:
        parent: Reference | None = getattr(source.spec, "parent", None)
        if parent is not None:
            found.add(key_of(source, parent))
    return found


def stream_carriers(resources: ResourceSet, key_of: Callable[[Resource, Reference], Key]) -> set[Key]:
    """What streams of others go through, and no request: parents, and backends of TLSRoutes and TCPRoutes alone.

    The TLS inside is the client's, or that of the backend behind the parent. `key_of`: what a reference means.
    """

    def targets(source: Resource, refs: Iterable[Reference]) -> set[Key]:
        return {key_of(source, ref) for ref in refs}

    carriers: set[Key] = set()
    for stream in (*resources.of(TlsRoute), *resources.of(TcpRoute)):
        carriers |= targets(stream, backend_refs(stream))
    carriers |= _parents(resources, key_of)
    for route in (*resources.of(HttpRoute), *resources.of(GrpcRoute)):
        carriers -= targets(route, backend_refs(route))
    return carriers
