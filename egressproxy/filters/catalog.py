"""The catalogue: filter types by name."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from egressproxy.filters.base import FilterContext, FilterType, Phase, UnusableReference
from egressproxy.filters.builtin import BUILTIN, FULL_NAMES, builtin_type, support_level
from egressproxy.filters.settings import SecretRef
from egressproxy.filters.shared_counters import SharedCounters
from egressproxy.ir.policy import ExtensionIR
from egressproxy.net.keyed_counters import KeyedCounters, OwnCounters
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics

if TYPE_CHECKING:
    from egressproxy.filters.packages import PackagedType


class Catalog:
    """Filter types by name (`domain/Kind:version`): the built-in ones, also by their published names, `others`, and
    those of installed packages (`packages`).

    `counters` are the counters of limits that several processes share; None in a single process.
    """

    __slots__ = ("_others", "_own", "_packaged", "counters")

    def __init__(self, others: Iterable[FilterType] = (), counters: SharedCounters | None = None) -> None:
        self._others = {kind.name: kind for kind in others}
        self._packaged: dict[str, PackagedType] | None = None
        self.counters = counters
        self._own = OwnCounters()

    def get(self, name: str) -> FilterType | None:
        """The type of this name or published name, imported at its first use. None: see `why_unusable`."""
        found = builtin_type(name) or self._others.get(name)
        if found is None and (packaged := self._of_packages().get(name)) is not None:
            try:
                found = self._others[name] = packaged.load()
            except ValueError:
                return None
        return found

    def why_unusable(self, name: str) -> str:
        """Why the type of an installed package cannot be used, with the package; "" for every other name."""
        packaged = self._of_packages().get(name) if name not in self._others else None
        if packaged is None:
            return ""
        try:
            packaged.load()
        except ValueError as error:
            return f"package {packaged.package}: {error}"
        return ""

    def misfit(self, spec: ExtensionIR, config: Any) -> tuple[str, SecretRef | None] | None:
        """Why a value that this spec's config refers to (a Secret, a variable) does not fit, and its Secret. None if it
        fits, for other faults, and for a type that runs the operator's code, which is not run here.
        """
        kind = self.get(spec.implementation or spec.type)
        if kind is None or kind.runs_code:
            return None
        meter, secrets = FilterMeter(FilterMetrics(), spec.name, kind.name), dict(spec.secrets)
        context = FilterContext(
            config, secrets, spec.name, spec.scope, spec.source, spec.folder, Phase(spec.phase), meter=meter
        )
        try:
            made = kind.build(context)
        except UnusableReference as error:
            return str(error), error.ref
        except Exception:
            return None  # reported when the filter is built for traffic
        with suppress(Exception):
            made.close()
        return None

    def keyed(self, key: bytes, keys: int) -> KeyedCounters:
        """The counters of the limit `key`, with room for `keys` keys; the same for all workers and reloads."""
        return (self._own if self.counters is None else self.counters).keyed(key, keys)

    @property
    def crowded(self) -> int:
        """The number of times that a limit's key found no room, in this process."""
        return (self._own if self.counters is None else self.counters).crowded

    def names(self) -> tuple[str, ...]:
        """The full names, sorted, including those of unusable packages."""
        return tuple(sorted({*BUILTIN, *self._others, *self._of_packages()}))

    def _of_packages(self) -> dict[str, PackagedType]:
        """The packages' types, read at the first use: a process with built-in types alone does not need them."""
        if self._packaged is None:
            from egressproxy.filters.packages import packaged_types

            self._packaged = packaged_types()
        return self._packaged

    def support(self, name: str) -> str:
        return support_level(name)

    def describe(self, *, imports: bool = True) -> dict[str, dict[str, Any]]:
        """By name: `summary`, `phases` in order, `also` (phases in which it runs besides), `published` (its other
        names), `support` (core, extended, implementation-specific), `source`, and `config` (JSON Schema); `problem`
        in place of phases and config where it cannot be used. Without `imports` a package that is not imported yet
        stays so, and its types have neither.
        """
        return {name: self._described(name, imports=imports) for name in self.names()}

    def _described(self, name: str, *, imports: bool) -> dict[str, Any]:
        from egressproxy.filters.validation import schema

        described: dict[str, Any] = {"summary": "", "support": support_level(name), "source": "built-in"}
        packaged = self._of_packages().get(name)
        if packaged is not None and name not in BUILTIN:
            described["source"] = f"package {packaged.package}"
            if not (imports or packaged.is_imported):
                return described
        kind = self.get(name)
        if kind is None:
            return {**described, "problem": self.why_unusable(name)}
        return {
            **described,
            "summary": kind.summary,
            "phases": [phase.value for phase in Phase if phase in kind.phases],
            "also": [phase.value for phase in Phase if phase in kind.also],
            "published": [other for other, full_name in FULL_NAMES.items() if full_name == name != other],
            "config": schema(kind.config_model),
        }
