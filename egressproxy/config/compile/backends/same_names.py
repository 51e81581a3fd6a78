"""Backends of one name in several groups. A reference means the one of its own group; a note says which.

Source: Gateway API v1 BackendObjectReference (group and kind are a part of the reference).
"""

from __future__ import annotations

from collections.abc import Iterator

from egressproxy.config.compile.backends.backend_compiler import BackendCompiler
from egressproxy.config.compile.backends.backend_references import backend_refs
from egressproxy.config.compile.interface import Reference, kind_of
from egressproxy.config.resources.backend import Backend
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import EgressPolicy


def same_name_notes(source: Resource, backends: BackendCompiler) -> Iterator[tuple[str, str]]:
    """For each reference of a route, a Backend or a policy to such a name: its field, and what it means."""
    for field_path, ref in _references(source) if backends.same_names else ():
        meant = backends.target_key(source, ref)
        named = backends.same_names.get(meant[2:], ())
        if meant in named:  # else it means none of them: a Service, or nothing
            others = [key for key in named if key != meant]
            has = "has that name, too, and is another" if len(others) == 1 else "have that name, too, and are others"
            listed = ", ".join(sorted(map(kind_of, others)))
            yield field_path, f"this is {kind_of(meant)} {meant[2]}/{meant[3]}; {listed} {has}"


def _references(source: Resource) -> Iterator[tuple[str, Reference]]:
    """Every reference that may be to a backend, with its field."""
    if isinstance(source, Backend | EgressPolicy):
        if source.spec.parent is not None and source.spec.parent.name:
            yield "spec.parent", source.spec.parent
        for index, target in enumerate(source.spec.target_refs if isinstance(source, EgressPolicy) else ()):
            yield f"spec.targetRefs[{index}]", target
    else:
        yield from backend_refs(source)
