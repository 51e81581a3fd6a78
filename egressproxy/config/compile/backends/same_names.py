"""SameNames: backends of one name in several groups. A reference means the one of its own group; a note says which.

Source: Gateway API v1 BackendObjectReference (group and kind are a part of the reference).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from egressproxy.config.compile.backends.backend_references import backend_refs
from egressproxy.config.compile.interface import Key, Reference, kind_of
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.backend import Backend
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import EgressPolicy

__all__ = ["SameNames"]


class SameNames:
    """The names that several backends share. `key_of` says which object a reference means."""

    __slots__ = ("_key_of", "_shared")

    def __init__(
        self, resources: ResourceSet, kinds: Iterable[type[Resource]], key_of: Callable[[Resource, Reference], Key]
    ) -> None:
        self._key_of = key_of
        by_name: dict[tuple[str, str], list[Key]] = defaultdict(list)
        for backend in chain.from_iterable(resources.of(kind) for kind in kinds):
            by_name[backend.namespace, backend.name].append(backend.key)
        self._shared = {name: keys for name, keys in by_name.items() if len(keys) > 1}

    def of(self, source: Resource) -> Iterator[tuple[str, str]]:
        """For each reference of a route, a Backend or a policy to such a name: its field, and what it means."""
        if not self._shared:
            return
        for field_path, ref in _references(source):
            sentence = self._sentence(self._key_of(source, ref))
            if sentence:
                yield field_path, sentence

    def _sentence(self, meant: Key) -> str:
        others = [key for key in self._shared.get((meant[2], meant[3]), ()) if key != meant]
        if not others or len(others) == len(self._shared[meant[2], meant[3]]):
            return ""  # it means none of them: a Service, or nothing
        named = ", ".join(sorted(map(kind_of, others)))
        has = "has that name, too, and is another" if len(others) == 1 else "have that name, too, and are others"
        return f"this is {kind_of(meant)} {meant[2]}/{meant[3]}; {named} {has}"


def _references(source: Resource) -> Iterator[tuple[str, Reference]]:
    """Every reference that may be to a backend, with its field."""
    if isinstance(source, Backend | EgressPolicy):
        if source.spec.parent is not None and source.spec.parent.name:
            yield "spec.parent", source.spec.parent
        for index, target in enumerate(source.spec.target_refs if isinstance(source, EgressPolicy) else ()):
            yield f"spec.targetRefs[{index}]", target
    else:
        yield from backend_refs(source)
