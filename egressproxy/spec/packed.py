"""A configuration as octets, for pipes between processes of ours: the one place where secrets are serialised.

Nothing else may hold, log or store what `pack` makes. `unpack` builds values of `spec` and `model`, and refuses
everything else.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass, field
from typing import Any

from egressproxy.model.secret import Secret
from egressproxy.spec.gateway import ConfigSpec

__all__ = ["PackedConfig", "Place", "pack", "unpack"]

#: Whose classes `unpack` makes, besides those of Python that addresses and networks are.
OURS = ("egressproxy.spec.", "egressproxy.model.")
PYTHONS = frozenset(
    ("ipaddress", name) for name in ("IPv4Address", "IPv4Network", "IPv6Address", "IPv6Network")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """An address (IP literal) and port to bind, and who asks for it: `gateway/listener`, …"""

    address: str
    port: int
    listeners: str


@dataclass(frozen=True, slots=True)
class PackedConfig:
    """A ConfigSpec, and what a process that does not serve it itself needs to know of it."""

    octets: bytes = field(repr=False)
    places: tuple[Place, ...] = ()


def pack(config: ConfigSpec) -> PackedConfig:
    written = io.BytesIO()
    _Pickler(written, pickle.HIGHEST_PROTOCOL).dump(config)
    return PackedConfig(written.getvalue(), places(config))


def unpack(packed: PackedConfig) -> ConfigSpec:
    """Takes long for thousands of rules: not for the event loop. Raises pickle.UnpicklingError."""
    read = _Unpickler(io.BytesIO(packed.octets)).load()
    assert isinstance(read, ConfigSpec)
    return read


def places(config: ConfigSpec) -> tuple[Place, ...]:
    shared: dict[tuple[str, int], list[str]] = {}
    for listener in config.listeners:
        for address in listener.addresses:
            shared.setdefault((address, listener.port), []).append(f"{listener.gateway}/{listener.name}")
    return tuple(Place(address, port, ", ".join(names)) for (address, port), names in shared.items())


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return (Secret, (obj.reveal(),)) if type(obj) is Secret else NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(OURS) or (module, name) in PYTHONS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a configuration")
