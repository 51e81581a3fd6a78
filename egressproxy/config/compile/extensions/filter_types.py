"""FilterTypes: the extension types that FilterType objects make known.

The name of a type is the same for all namespaces, so the objects have none. Of two with one type the older wins, and
one of a file wins over one that was written through the API: whoever may write an object must not take the place of
what an operator put there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from egressproxy.config.compile.extensions.config_schema import (
    ConfigFault,
    ConfigSchemaChecker,
    SchemaError,
    settings_adapter,
)
from egressproxy.config.compile.extensions.extension_faults import ExtensionFaults
from egressproxy.config.compile.interface import FilterCatalog, Status, age_of
from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.explanations import explain, field_path, path_text
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.extension import ConfigSchema, FilterTypeDefinition
from egressproxy.config.resources.object_references import ObjectReference
from egressproxy.ir.policy import BACKEND_LEVEL
from egressproxy.model.published_object import Key

PYTHON: Final = "egressproxy.io/Python:v1"
#: The built-in types that ask remote processors, by protocol.
PROCESSORS: Final = {"ExtProc": "egressproxy.io/ExternalProcessor:v1", "Webhook": "egressproxy.io/Webhook:v1"}
#: Where a remote processor may be placed beside where it begins, with the head of a request: what it is sent then (of
#: Webhook `send`, of ExtProc the processing mode, but for what the type's settings say).
_SENT: Final[Mapping[str, str]] = {
    "request-body": "request-body",
    "backend-response": "response-headers",
    "response-headers": "response-headers",
    "response-body": "response-body",
}
_MODES: Final[Mapping[str, Mapping[str, str]]] = {
    "request-body": {"responseHeaderMode": "SKIP", "requestBodyMode": "BUFFERED"},
    "response-headers": {"requestHeaderMode": "SKIP"},
    "response-body": {"requestHeaderMode": "SKIP", "responseBodyMode": "BUFFERED"},
}
#: The fields of the call in which a processor is told the type of the extension, and its config as JSON.
TYPE_FIELD: Final = "x-egressproxy-filter-type"
CONFIG_FIELD: Final = "x-egressproxy-filter-config"
#: Bytes of such a config: the field goes with every call.
MAX_SENT_CONFIG: Final = 4096
#: The domains of the built-in types and of their published names.
_RESERVED: Final = (".egressproxy.io", ".gateway.networking.k8s.io")


@dataclass(frozen=True, slots=True)
class DeclaredType:
    """A type of an accepted FilterType. `implementation` is the built-in type that runs it; `catalogue` names the
    ConfigMap that it is from, "" for an object of its own.
    """

    definition: FilterTypeDefinition
    implementation: str
    schema: ConfigSchemaChecker | None
    catalogue: str = ""

    @property
    def name(self) -> str:
        return self.definition.spec.type

    @property
    def phases(self) -> frozenset[str]:
        return frozenset(self.definition.spec.phases)

    @property
    def described(self) -> dict[str, Any]:
        """As the catalogue shows it."""
        spec = self.definition.spec
        return {
            "summary": spec.summary,
            "support": "implementation-specific",
            "source": self.catalogue or str(self.definition),
            "phases": list(spec.phases),
            "also": [],
            "published": [],
            "config": self.schema.schema if self.schema is not None else {"type": "object", "maxProperties": 0},
        }

    @property
    def settings_path(self) -> str:
        """The field of the FilterType with the settings of what runs it."""
        return "spec.processor.settings" if self.definition.spec.python is None else "spec.python.settings"

    def faults(self, config: Mapping[str, Any]) -> list[ConfigFault]:
        """What is wrong with this config. Raises SchemaError where the schema cannot be applied to it."""
        if self.definition.spec.processor is not None and len(_line(config)) > MAX_SENT_CONFIG:
            return [ConfigFault((), f"longer than {MAX_SENT_CONFIG} characters of JSON", "shorten it")]
        if self.schema is not None:
            return self.schema.faults(config)
        if not config:
            return []
        return [ConfigFault((), f"{self.name} takes no config", f"remove it, or give {self.definition} a configSchema")]

    def placed(self, phase: str, level: int) -> dict[str, Any]:
        """The phase and turn of an extension in this phase, where a remote processor begins in another one."""
        if self.definition.spec.processor is None or phase not in _SENT:
            return {}
        if level == BACKEND_LEVEL or phase == "backend-response":
            return {"phase": "backend-request", "turn": -1 if phase == "request-body" else 0}
        return {"phase": "request-headers", "turn": 0}

    def implemented_config(self, config: Mapping[str, Any], phase: str = "") -> dict[str, Any]:
        """The config of the built-in type that runs it, for an extension with this one in this phase."""
        python, processor = self.definition.spec.python, self.definition.spec.processor
        if python is not None:
            return {**python.settings, "path": python.path, "config": config, "plainConfig": True}
        assert processor is not None
        refs = [
            {"namespace": "default", **ref.model_dump(by_alias=True, exclude_none=True)}
            for ref in processor.backend_refs
        ]
        listed, key = ("headers", "name") if processor.protocol == "Webhook" else ("grpcInitialMetadata", "key")
        metadata = [{key: TYPE_FIELD, "value": self.name}]
        metadata += [{key: CONFIG_FIELD, "value": _line(config)}] if config else []
        written = processor.settings.get(listed, [])
        made = {**processor.settings, "backendRefs": refs, listed: [*written, *metadata]}
        sent = _SENT.get(phase)
        if sent is not None and processor.protocol == "Webhook":
            made.setdefault("send", [sent])
        elif sent is not None:
            mode: dict[str, str] = dict(_MODES[sent])
            if made.get("observabilityMode"):
                mode.update((name, "STREAMED") for name in mode if name.endswith("BodyMode"))
            made["processingMode"] = {**mode, **made.get("processingMode", {})}
        return made


class FilterTypes:
    """The FilterType objects of a configuration, checked."""

    __slots__ = ("_conditions", "_known", "_refused", "_refused_of")

    def __init__(
        self, resources: ResourceSet, catalog: FilterCatalog, references: References,
        external: Iterable[tuple[str, FilterTypeDefinition]] = (),
    ) -> None:  # fmt: skip
        """`external` are the types of catalogues, each with the name of its ConfigMap: objects go before them."""
        self._known: dict[str, DeclaredType] = {}
        #: Type -> why its FilterType is not accepted, in words.
        self._refused: dict[str, str] = {}
        self._conditions: dict[Key, list[tuple[str, bool, str, str]]] = {}
        for definition in sorted(
            resources.of(FilterTypeDefinition), key=lambda each: (each.origin.is_from_api, age_of(each))
        ):
            self._add(definition, catalog, references)
        #: By the name of a catalogue: its types that are not accepted, and why.
        self._refused_of: dict[str, dict[str, str]] = {}
        for name, definition in external:
            self._add(definition, catalog, references, name)

    def get(self, name: str) -> DeclaredType | None:
        """The type of this name, if an accepted FilterType makes it known."""
        return self._known.get(name)

    def why_unusable(self, name: str) -> str:
        """Why the FilterType of this name is not accepted; "" where there is none, or one that is."""
        return "" if name in self._known else self._refused.get(name, "")

    def names(self) -> tuple[str, ...]:
        return tuple(self._known)

    def all(self) -> tuple[DeclaredType, ...]:
        return tuple(self._known.values())

    def statuses(self, generations: Mapping[Key, int], faults: Mapping[Key, ExtensionFaults]) -> dict[Key, Status]:
        """The status of every FilterType. `faults` are those of what it refers to, by object."""
        made: dict[Key, Status] = {}
        for key, stated in self._conditions.items():
            conditions = Conditions(generations.get(key, 1))
            for condition in stated:
                conditions.set(*condition)
            if key in faults:
                faults[key].set_conditions(conditions)
            made[key] = {"conditions": conditions.to_list()}
        return made

    def refused(self, catalogue: str) -> Iterable[tuple[str, str]]:
        """The types of this catalogue that are not accepted, and why."""
        return self._refused_of.get(catalogue, {}).items()

    def _add(
        self, definition: FilterTypeDefinition, catalog: FilterCatalog, references: References, catalogue: str = ""
    ) -> None:
        name = definition.spec.type
        reason, message = self._refusal(definition, catalog)
        schema, resolved = None, (True, "ResolvedRefs", "every reference is resolved")
        if not reason and definition.spec.config_schema is not None:
            try:
                schema = ConfigSchemaChecker(_schema(definition, definition.spec.config_schema, references))
            except UnresolvedRef as unresolved:
                resolved = (False, unresolved.reason, unresolved.with_hint)
                reason, message = "InvalidSchema", f"spec.configSchema: {unresolved.message}"
            except SchemaError as error:
                reason, message = "InvalidSchema", f"spec.configSchema: {error}"
        if catalogue:
            if not reason:
                self._known[name] = DeclaredType(definition, _implementation(definition), schema, catalogue)
            elif name not in self._known or self._known[name].catalogue != catalogue:
                self._refused.setdefault(name, f"{catalogue} has it, and it is not accepted: {message}")
                self._refused_of.setdefault(catalogue, {})[name] = message
            return
        stated = self._conditions.setdefault(definition.key, [])
        if reason:
            follows = "this one has no effect" if reason == "Conflicted" else "what names the type stays closed"
            self._refused.setdefault(name, f"{definition} is not accepted: {message}")
            stated.append(("Accepted", False, reason, f"{message}: {follows}"))
        else:
            self._known[name] = DeclaredType(definition, _implementation(definition), schema)
            stated.append(("Accepted", True, "Accepted", f"extensions may have the type {name}"))
        stated.append(("ResolvedRefs", *resolved))

    def _refusal(self, definition: FilterTypeDefinition, catalog: FilterCatalog) -> tuple[str, str]:
        name = definition.spec.type
        domain = name.partition("/")[0]
        if f".{domain}".endswith(_RESERVED):
            return "ReservedType", f"spec.type: the domain {domain} is that of built-in types: use one of your own"
        if name in catalog.names():
            return "Conflicted", f"spec.type: an installed package makes {name} known (`egressproxy filters` names it)"
        older = self._known.get(name)
        if older is not None:
            return "Conflicted", f"spec.type: {older.definition} makes {name} known, and is older or from a file"
        if definition.spec.python is not None and definition.origin.is_from_api:
            why = "it names a Python file, and an object that was written through the API must not"
            return "NotPermitted", f"spec.python: {why} (declare it in a manifest in a folder of --config)"
        found = catalog.get(_implementation(definition))
        if found is None:
            return "UnsupportedValue", f"spec.processor: {_implementation(definition)} is not supported yet"
        phases = {each.value for each in found.phases}
        if definition.spec.processor is not None:
            phases |= _SENT.keys()
        impossible = [phase for phase in definition.spec.phases if phase not in phases]
        if impossible:
            possible = ", ".join(sorted(phases))
            return "UnsupportedValue", f"spec.phases: {found.name} runs in {possible}, and not in {impossible[0]}"
        settings = DeclaredType(definition, found.name, None)
        try:
            settings_adapter(found.config_model).validate_python(settings.implemented_config({}))
        except (ValidationError, TypeError) as error:
            return "InvalidParameters", f"{settings.settings_path}: {_fault(error, found.config_model)}"
        return "", ""


def _implementation(definition: FilterTypeDefinition) -> str:
    processor = definition.spec.processor
    return PYTHON if processor is None else PROCESSORS[processor.protocol]


def _line(config: Mapping[str, Any]) -> str:
    """A config as the value of a field: visible ASCII and blanks alone."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"), default=str)


def _fault(error: ValidationError | TypeError, model: type[Any]) -> str:
    """What is wrong with settings, in one line; their values are not shown."""
    if isinstance(error, TypeError):
        return "grpcInitialMetadata or headers is not a list"
    detail = error.errors(include_url=False)[0]
    loc, _ = field_path(detail["loc"])
    message, remedy = explain(detail, model, loc, None, show=False)
    return f"{path_text(loc)}: {message}" + (f" ({remedy})" if remedy else "")


def _schema(definition: FilterTypeDefinition, source: ConfigSchema, references: References) -> Any:
    """The schema, read. Raises UnresolvedRef where its ConfigMap has none, SchemaError where it is no JSON."""
    if source.config_map_ref is None:
        return source.inline
    ref = source.config_map_ref
    config_map = ObjectReference.model_construct(kind="ConfigMap", name=ref.name, namespace=ref.namespace)
    text = references.data(definition, config_map, ref.key)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise SchemaError(f"ConfigMap {ref.namespace}/{ref.name}, {ref.key}: no JSON ({problem})") from None
