"""ConfigIR as octets, for another process of ours: pickles in a row, with one memo, so that what is shared stays so.

They hold secrets, so they go through an inherited pipe alone, never into a file, a log or a message. Reading them makes
specs and nothing else: a name that is no spec's, nor that of a filter's settings, is refused.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import islice
from typing import Any, Final

from egressproxy.ir import backend, gateway, policy, route
from egressproxy.ir.gateway import ConfigIR
from egressproxy.ir.policy import FilterSettings
from egressproxy.model.secret import SecretBytes
from egressproxy.model.steps import Cooperative

__all__ = ["PackingError", "pack", "unpacking"]

#: Routes in one piece: some milliseconds to read.
ROUTES: Final = 32
_FILTERS: Final = "egressproxy.filters."
_ADDRESSES: Final = (IPv4Address, IPv4Network, IPv6Address, IPv6Network)
#: The classes that are made. Not whatever a module has imported: `dataclass`, for one, executes what it is given.
_KNOWN: Final = {
    (known.__module__, known.__qualname__): known
    for known in (
        *(each for module in (backend, gateway, policy, route) for each in vars(module).values()),
        SecretBytes, *_ADDRESSES,
    )
    if isinstance(known, type) and known.__module__.startswith(("egressproxy.", "ipaddress"))
}  # fmt: skip
_KINDS_OF_ROUTE: Final = ("http_routes", "tls_routes", "tcp_routes")


class PackingError(ValueError):
    """These octets are no packed configuration."""


def pack(config: ConfigIR) -> bytes:
    """The configuration with its secrets; see `unpacking`."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, protocol=5)
    pickler.dump((config.generation, len(config.listeners)))
    for listener in config.listeners:
        routes = [getattr(listener, kind) for kind in _KINDS_OF_ROUTE]
        pickler.dump((replace(listener, http_routes=(), tls_routes=(), tcp_routes=()), [len(each) for each in routes]))
        for each in routes:
            rest = iter(each)
            while piece := list(islice(rest, ROUTES)):
                pickler.dump(piece)
    return buffer.getvalue()


def unpacking(packed: bytes) -> Cooperative[ConfigIR]:
    """Read what `pack` wrote, a piece at a time. Raises PackingError."""
    unpickler = _Unpickler(io.BytesIO(packed))
    try:
        generation, count = unpickler.load()
        listeners = []
        for _ in range(count):
            listener, lengths = unpickler.load()
            routes: list[tuple[Any, ...]] = []
            for length in lengths:
                each: list[Any] = []
                while len(each) < length:
                    each += unpickler.load()
                    yield None
                routes.append(tuple(each))
            listeners.append(replace(listener, **dict(zip(_KINDS_OF_ROUTE, routes, strict=True))))
            yield None
        return ConfigIR(tuple(listeners), generation)
    except Exception as error:  # pickle raises nearly everything
        raise PackingError(f"no packed configuration ({type(error).__name__})") from None


class _Pickler(pickle.Pickler):
    """Specs by their fields (a frozen class would be written with their names, and read slowly); enums by their values
    and addresses by their text (what Python writes of an enum differs between 3.11.2 and 3.11.7); secrets revealed.
    """

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, Enum):
            return kind, (value.value,)
        if kind in _ADDRESSES:
            return kind, (str(value),)
        if kind is SecretBytes:
            return SecretBytes, (value.reveal(),)
        if is_dataclass(kind):
            return kind, tuple([getattr(value, field.name) for field in fields(kind)])
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module, name))
        if known is not None:
            return known
        if not module.startswith(_FILTERS):
            raise pickle.UnpicklingError(f"{module}.{name} is no spec")
        found = super().find_class(module, name)
        if not (isinstance(found, type) and issubclass(found, FilterSettings)):
            raise pickle.UnpicklingError(f"{module}.{name} is no filter's settings")
        return found
