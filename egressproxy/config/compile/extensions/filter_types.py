"""FilterTypes: the extension types that FilterType objects make known.

The name of a type is the same for all namespaces, so the objects have none. Of two with one type the older wins, and
one of a file wins over one that was written through the API: whoever may write an object must not take the place of
what an operator put there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from egressproxy.config.compile.extensions.config_schema import ConfigFault, ConfigSchemaChecker, SchemaError
from egressproxy.config.compile.interface import FilterCatalog, Key, Status, age_of
from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.filter_type import ConfigSchema, FilterTypeDefinition

__all__ = ["DeclaredType", "FilterTypes"]

PYTHON: Final = "egressproxy.io/Python:v1"
#: The domains of the built-in types and of their published names.
_RESERVED: Final = (".egressproxy.io", ".gateway.networking.k8s.io")


@dataclass(frozen=True, slots=True)
class DeclaredType:
    """A type of an accepted FilterType. `implementation` is the built-in type that runs it."""

    definition: FilterTypeDefinition
    implementation: str
    schema: ConfigSchemaChecker | None

    @property
    def name(self) -> str:
        """`domain/Kind:version`."""
        return self.definition.spec.type

    @property
    def phases(self) -> frozenset[str]:
        """Where extensions of the type may be placed."""
        return frozenset(self.definition.spec.phases)

    @property
    def described(self) -> dict[str, Any]:
        """As the catalogue shows it."""
        spec = self.definition.spec
        return {
            "summary": spec.summary,
            "support": "implementation-specific",
            "source": str(self.definition),
            "phases": list(spec.phases),
            "also": [],
            "published": [],
            "config": self.schema.schema if self.schema is not None else {"type": "object", "maxProperties": 0},
        }

    def faults(self, config: Mapping[str, Any]) -> list[ConfigFault]:
        """What is wrong with this config. Raises SchemaError where the schema cannot be applied to it."""
        if self.schema is not None:
            return self.schema.faults(config)
        if not config:
            return []
        return [ConfigFault((), f"{self.name} takes no config", f"remove it, or give {self.definition} a configSchema")]

    def implemented_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config of the built-in type that runs it, for an extension with this one."""
        python = self.definition.spec.python
        assert python is not None
        return {"path": python.path, "config": config, "plainConfig": True}


class FilterTypes:
    """The FilterType objects of a configuration, checked."""

    __slots__ = ("_conditions", "_known", "_refused")

    def __init__(self, resources: ResourceSet, catalog: FilterCatalog, references: References) -> None:
        self._known: dict[str, DeclaredType] = {}
        #: Type -> why its FilterType is not accepted, in words.
        self._refused: dict[str, str] = {}
        self._conditions: dict[Key, list[tuple[str, bool, str, str]]] = {}
        for definition in sorted(resources.of(FilterTypeDefinition), key=_precedence):
            self._add(definition, catalog, references)

    def get(self, name: str) -> DeclaredType | None:
        """The type of this name, if an accepted FilterType makes it known."""
        return self._known.get(name)

    def why_unusable(self, name: str) -> str:
        """Why the FilterType of this name is not accepted; "" where there is none, or one that is."""
        return "" if name in self._known else self._refused.get(name, "")

    def names(self) -> tuple[str, ...]:
        """The types that are known."""
        return tuple(self._known)

    def all(self) -> tuple[DeclaredType, ...]:
        """The types that are known, in the order of their precedence."""
        return tuple(self._known.values())

    def statuses(self, generations: Mapping[Key, int]) -> dict[Key, Status]:
        """The status of every FilterType."""
        made: dict[Key, Status] = {}
        for key, stated in self._conditions.items():
            conditions = Conditions(generations.get(key, 1))
            for condition in stated:
                conditions.set(*condition)
            made[key] = {"conditions": conditions.to_list()}
        return made

    def _add(self, definition: FilterTypeDefinition, catalog: FilterCatalog, references: References) -> None:
        name = definition.spec.type
        reason, message = self._refusal(definition, catalog)
        schema, resolved = None, (True, "ResolvedRefs", "")
        if not reason and definition.spec.config_schema is not None:
            try:
                schema = ConfigSchemaChecker(_schema(definition, definition.spec.config_schema, references))
            except UnresolvedRef as unresolved:
                resolved = (False, unresolved.reason, unresolved.with_hint)
                reason, message = "InvalidSchema", f"spec.configSchema: {unresolved.message}"
            except SchemaError as error:
                reason, message = "InvalidSchema", f"spec.configSchema: {error}"
        stated = self._conditions.setdefault(definition.key, [])
        if reason:
            self._refused.setdefault(name, f"{definition} is not accepted: {message}")
            stated.append(("Accepted", False, reason, f"{message}: what names the type stays closed"))
        else:
            self._known[name] = DeclaredType(definition, PYTHON, schema)
            stated.append(("Accepted", True, "Accepted", f"extensions may have the type {name}"))
        stated.append(("ResolvedRefs", *resolved))

    def _refusal(self, definition: FilterTypeDefinition, catalog: FilterCatalog) -> tuple[str, str]:
        """Why a FilterType is not accepted, as reason and message; "" for both where nothing speaks against it."""
        name = definition.spec.type
        domain = name.partition("/")[0]
        if f".{domain}".endswith(_RESERVED):
            return "ReservedType", f"the domain {domain} is that of built-in types: use one of your own"
        if name in catalog.names():
            return "Conflicted", f"an installed package makes {name} known (`egressproxy filters` names it)"
        older = self._known.get(name)
        if older is not None:
            return "Conflicted", f"{older.definition} makes {name} known, and is older or from a file"
        if definition.spec.python is not None and definition.origin.is_from_api:
            why = "it names a Python file, and an object that was written through the API must not"
            return "NotPermitted", f"{why} (declare it in a manifest in a folder of --config)"
        if definition.spec.processor is not None:
            return "UnsupportedValue", "remote processors are not supported yet"
        return "", ""


def _precedence(definition: FilterTypeDefinition) -> tuple[bool, tuple[str, str]]:
    return (definition.origin.is_from_api, age_of(definition))


def _schema(definition: FilterTypeDefinition, source: ConfigSchema, references: References) -> Any:
    """The schema, read. Raises UnresolvedRef where its ConfigMap has none, SchemaError where it is no JSON."""
    if source.config_map_ref is None:
        return source.inline
    ref = source.config_map_ref
    text = references.config_map_entry(ref.namespace, ref.name, ref.key)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        said = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise SchemaError(f"ConfigMap {ref.namespace}/{ref.name}, {ref.key}: no JSON ({said})") from None
