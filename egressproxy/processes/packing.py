"""ConfigIR as bytes, for another process of ours: pickles in a row, with one memo, so that what is shared stays so.

They hold secrets, so they go through an inherited pipe alone, never into a file, a log or a message. Reading them makes
specs and nothing else: a name that is no spec's, nor that of a filter's settings, is refused.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from itertools import chain
from typing import Any, Final

from egressproxy.ir import backend, gateway, identity, name_server, policy, resilience, route, telemetry
from egressproxy.ir.gateway import ConfigIR, ListenerIR, VariantIR
from egressproxy.ir.policy import FilterSettings
from egressproxy.model.work import Work
from egressproxy.processes.pickling import ADDRESSES, Pickler, Unpickler, classes

#: Routes in one piece: some milliseconds to read.
ROUTES: Final = 32
_IR: Final = (backend, gateway, identity, name_server, policy, resilience, route, telemetry)
#: Where configs of built-in filters are.
_FILTERS: Final = ("egressproxy.filters.", "egressproxy.ai.", "egressproxy.envoy.", "egressproxy.operators.")
#: Not what a module has imported.
_KNOWN: Final = classes(
    each
    for each in (
        *ADDRESSES,
        *chain(*(vars(module).values() for module in _IR)),
    )
    if isinstance(each, type) and each.__module__.startswith(("egressproxy.", "ipaddress"))
)
_KINDS_OF_ROUTE: Final = ("http_routes", "tls_routes", "tcp_routes")


class PackingError(ValueError):
    """These bytes are not a packed configuration."""


def pack(config: ConfigIR) -> bytes:
    """The configuration with its secrets; see `unpacking`."""
    buffer = io.BytesIO()
    pickler = Pickler(buffer, protocol=5)
    pickler.dump((config.generation, config.system_roots, config.collectors, len(config.listeners)))
    _pack_listeners(pickler, config.listeners)
    return buffer.getvalue()


def _pack_listeners(pickler: Pickler, listeners: Iterable[ListenerIR]) -> None:
    for listener in listeners:
        routes = [getattr(listener, kind) for kind in _KINDS_OF_ROUTE]
        rest = replace(listener, http_routes=(), tls_routes=(), tcp_routes=(), variants=())
        pickler.dump((rest, [len(each) for each in routes], [each.policies for each in listener.variants]))
        for each in routes:
            for at in range(0, len(each), ROUTES):
                pickler.dump(each[at : at + ROUTES])
        _pack_listeners(pickler, (variant.listener for variant in listener.variants))


def unpacking(packed: bytes) -> Work[ConfigIR]:
    """Read what `pack` wrote, a piece at a time. Raises PackingError."""
    unpickler = Unpickler(io.BytesIO(packed), _find, "part of a configuration")
    try:
        generation, system_roots, collectors, count = unpickler.load()
        listeners = yield from _unpacking_listeners(unpickler, count)
        return ConfigIR(listeners, generation, system_roots, collectors)
    except Exception as error:  # pickle raises nearly everything
        raise PackingError(f"no packed configuration ({type(error).__name__})") from None


def _unpacking_listeners(unpickler: Unpickler, count: int) -> Work[tuple[ListenerIR, ...]]:
    listeners = []
    for _ in range(count):
        listener, lengths, sets = unpickler.load()
        routes: list[tuple[Any, ...]] = []
        for length in lengths:
            each: list[Any] = []
            while len(each) < length:
                each += unpickler.load()
                yield None
            routes.append(tuple(each))
        own = yield from _unpacking_listeners(unpickler, len(sets))
        variants = tuple(VariantIR(policies, variant) for policies, variant in zip(sets, own, strict=True))
        listeners.append(replace(listener, **dict(zip(_KINDS_OF_ROUTE, routes, strict=True)), variants=variants))
        yield None
    return tuple(listeners)


def _find(module: str, name: str) -> type | None:
    known = _KNOWN(module, name)
    if known is not None or not module.startswith(_FILTERS):
        return known
    found = getattr(import_module(module), name, None)
    return found if isinstance(found, type) and issubclass(found, FilterSettings) else None
