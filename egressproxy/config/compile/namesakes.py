"""Namesakes: backends of one name in several groups. A reference means the one of its own group, and it is said which.

Source: Gateway API v1 BackendObjectReference (group and kind are a part of the reference).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from egressproxy.config.compile.contract import Key, kind_of
from egressproxy.config.compile.references import Reference
from egressproxy.config.load import ResourceSet
from egressproxy.config.resources.meta import Resource

__all__ = ["Namesakes"]


class Namesakes:
    """The names that several backends share. `key_of` says which object a reference means."""

    __slots__ = ("_key_of", "_shared")

    def __init__(
        self,
        resources: ResourceSet,
        kinds: Iterable[type[Resource]],
        key_of: Callable[[Resource, Reference], Key],
    ) -> None:
        self._key_of = key_of
        by_name: dict[tuple[str, str], list[Key]] = defaultdict(list)
        for backend in chain.from_iterable(resources.of(kind) for kind in kinds):
            by_name[backend.namespace, backend.name].append(backend.key)
        self._shared = {name: keys for name, keys in by_name.items() if len(keys) > 1}

    def of_route(self, route: Resource) -> Iterator[tuple[str, str]]:
        """For each backendRef to such a name: its field, and a sentence that says what it means."""
        if not self._shared:
            return
        for index, rule in enumerate(route.spec.rules):  # type: ignore[attr-defined]
            for number, ref in enumerate(rule.backend_refs):
                sentence = self._sentence(self._key_of(route, ref))
                if sentence:
                    yield f"spec.rules[{index}].backendRefs[{number}]", sentence

    def _sentence(self, meant: Key) -> str:
        others = [key for key in self._shared.get((meant[2], meant[3]), ()) if key != meant]
        if not others or len(others) == len(self._shared[meant[2], meant[3]]):
            return ""  # it means none of them: a Service, or nothing
        named = ", ".join(sorted(map(kind_of, others)))
        return f"this is {kind_of(meant)} {meant[2]}/{meant[3]}; {named} has that name, too, and is another"
