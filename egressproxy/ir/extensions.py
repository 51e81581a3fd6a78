"""Every filter that a configuration declares, wherever it stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from egressproxy.ir.gateway import ConfigIR, every_listener
from egressproxy.ir.policy import ExtensionIR
from egressproxy.ir.route import HttpRuleIR, MirrorIR, WeightedBackend


def extensions(config: ConfigIR) -> Iterator[ExtensionIR]:
    """The filters of listeners, rules and backends, those of mirrors and authorization servers too.

    One that several places share comes once for each.
    """
    for listener in every_listener(config):
        yield from _with_called(listener.extensions)
        if listener.default_backend is not None:
            yield from listener.default_backend.extensions
        for route in listener.http_routes:
            for rule in route.rules:
                yield from extensions_of(rule)
        for stream in (*listener.tls_routes, *listener.tcp_routes):
            yield from _with_called(stream.extensions)
            yield from _of_backends(stream.backends)


def chains(config: ConfigIR) -> Iterator[tuple[ExtensionIR, ...]]:
    """The filters of each listener and rule, and of each of these with one of its backends, which run together."""
    for listener in every_listener(config):
        yield listener.extensions
        for route in listener.http_routes:
            for rule in route.rules:
                yield rule.extensions
                yield from (backend.extensions for backend in rule.backends)


def extensions_of(rule: HttpRuleIR) -> Iterator[ExtensionIR]:
    """The filters of one rule, of its backends, mirrors and authorization server, and of what these filters call."""
    yield from _with_called(rule.extensions)
    yield from _of_backends(rule.backends)
    yield from _of_mirrors(rule.mirrors)
    if rule.auth is not None:
        yield from _of_backends((rule.auth.backend,))


def _of_backends(backends: Iterable[WeightedBackend]) -> Iterator[ExtensionIR]:
    for backend in backends:
        yield from _with_called(backend.extensions)
        yield from _of_mirrors(backend.mirrors)


def _of_mirrors(mirrors: Iterable[MirrorIR]) -> Iterator[ExtensionIR]:
    for mirror in mirrors:
        yield from _with_called(mirror.extensions)
        yield from _of_backends((mirror.backend,))


def _with_called(specs: Iterable[ExtensionIR]) -> Iterator[ExtensionIR]:
    for spec in specs:
        yield spec
        yield from _of_backends(callee for _, callee in spec.calls if isinstance(callee, WeightedBackend))
