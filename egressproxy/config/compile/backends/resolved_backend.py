"""ResolvedBackend: what a reference to a backend comes to, of whatever kind the object is."""

from __future__ import annotations

from dataclasses import dataclass

from egressproxy.config.compile.extensions.ranked_extension import RankedExtension
from egressproxy.config.resources.policy import Dns
from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.model.published_object import Key


@dataclass(frozen=True, slots=True)
class ResolvedBackend:
    """A backend that can be used. `target` is what policies name to mean it; `port` its number.

    `extensions` are its own. `resolver` is the DNS section of the object, `region` where it stands ("" unknown).
    `parents` are those on the way, the next one first, `fallbacks` those on each other way;
    `parent_by` is the policy that has named them, "" for the backend itself (`is_direct`: which says that it has none),
    and `error` why they cannot be used. `service` is the Service that a destination of that type means.
    """

    spec: BackendIR
    target: Key
    port: int
    extensions: tuple[RankedExtension, ...] = ()
    region: str = ""
    resolver: Dns | None = None
    parents: tuple[ResolvedBackend, ...] = ()
    fallbacks: tuple[tuple[ResolvedBackend, ...], ...] = ()
    service: Key | None = None
    is_direct: bool = False
    parent_by: str = ""
    error: str = ""


#: What a forward proxy reaches where no route matches: the destination that the request names.
ANY_DESTINATION = ResolvedBackend(BackendIR("-", Destination.DYNAMIC), ("", "", "", "-"), 0)
