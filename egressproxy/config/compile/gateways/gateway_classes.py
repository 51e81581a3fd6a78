"""The GatewayClasses of ours, and the parameters that their `parametersRef` leads to.

The parameters are the entries of a ConfigMap. Those that cannot be used close the Gateways of the class. A ConfigMap
with a catalogue has filter types in the form of our own catalogue, each with the processor that runs it.
Source: Gateway API v1 GatewayClassSpec.parametersRef.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any, Final

from pydantic import ValidationError

from egressproxy.config.compile.interface import CONTROLLER
from egressproxy.config.explanations import explain, field_path, path_text
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.core import ConfigMap
from egressproxy.config.resources.extension import FilterTypeDefinition
from egressproxy.config.resources.gateway import GatewayClass
from egressproxy.config.resources.meta import Origin

#: The entries of the parameters: what Gateways without `spec.addresses` bind, and where a catalogue is.
ADDRESSES: Final = "addresses"
FILTER_CATALOG: Final = "filterCatalog"
#: The entry that holds a catalogue, of the parameters or of the ConfigMap that `filterCatalog` names.
CATALOG_ENTRY: Final = "catalog.json"
_SEPARATOR: Final = re.compile(r"[\s,]+")
_NAME: Final = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)/([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)")
#: What a catalogue says of a type and a FilterType has, too.
_SAME: Final = ("type", "phases", "processor")
_MAX_SUMMARY: Final = 256
#: The most types of a catalogue.
_MAX_TYPES: Final = 256


@dataclass(slots=True)
class ClassParameters:
    """What a GatewayClass says of its Gateways.

    `problem` is why its parameters cannot be used, "" if they can. `addresses` are IP literals and networks in place of
    those of the process, if any. `catalogue` names the ConfigMap with a catalogue; `types` are its types with a
    processor, `others` the names of those without.
    """

    problem: str = ""
    addresses: tuple[str, ...] = ()
    catalogue: str = ""
    types: tuple[FilterTypeDefinition, ...] = ()
    others: tuple[str, ...] = ()


class _Unusable(Exception):
    """Why parameters cannot be used, in a sentence."""


@dataclass(slots=True)
class GatewayClasses:
    """All classes by name, and the parameters of those that are ours."""

    resources: ResourceSet
    by_name: dict[str, GatewayClass] = field(default_factory=dict)
    parameters: dict[str, ClassParameters] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in self.resources.of(GatewayClass):
            self.by_name[each.name] = each
            if each.spec.controller_name == CONTROLLER:
                self.parameters[each.name] = self._read(each)

    @property
    def types(self) -> Iterator[tuple[str, FilterTypeDefinition]]:
        """The filter types of all catalogues, each with the ConfigMap that it is from."""
        for each in self.parameters.values():
            for definition in each.types:
                yield each.catalogue, definition

    def of(self, name: str) -> ClassParameters:
        """The parameters of a class; those of the built-in one are empty."""
        return self.parameters.get(name) or ClassParameters()

    def _read(self, gateway_class: GatewayClass) -> ClassParameters:
        ref = gateway_class.spec.parameters_ref
        made = ClassParameters()
        if ref is None:
            return made
        try:
            if (ref.group, ref.kind) != (ConfigMap.GROUP, ConfigMap.KIND):
                kind = f"{ref.kind}.{ref.group}" if ref.group else ref.kind
                raise _Unusable(f'the kind {kind} is not supported: name a ConfigMap (group: "", kind: ConfigMap)')
            if not ref.namespace:
                raise _Unusable(f"ConfigMap {ref.name}: write its namespace")
            self._fill(made, self._config_map(ref.namespace, ref.name))
        except _Unusable as why:
            return ClassParameters(problem=f"spec.parametersRef: {why}")
        return made

    def _config_map(self, namespace: str, name: str) -> ConfigMap:
        found = self.resources.find(ConfigMap, namespace, name)
        if found is None:
            raise _Unusable(f"ConfigMap {namespace}/{name} does not exist, or cannot be read")
        return found

    def _fill(self, made: ClassParameters, config_map: ConfigMap) -> None:
        known = (ADDRESSES, FILTER_CATALOG, CATALOG_ENTRY)
        unknown = sorted({*config_map.data, *config_map.binary_data} - {*known, *_schemas(config_map)})
        if unknown:
            raise _Unusable(f"{config_map}: unknown entry {unknown[0]} (there are {', '.join(known)})")
        made.addresses = tuple(dict.fromkeys(_addresses(config_map)))
        named = config_map.data.get(FILTER_CATALOG, "").strip()
        source = config_map if CATALOG_ENTRY in config_map.data else None
        if named:
            match = _NAME.fullmatch(named)
            if match is None or source is not None:
                why = f"{CATALOG_ENTRY} stands beside it" if match else f"{named} is not NAMESPACE/NAME of a ConfigMap"
                raise _Unusable(f"{config_map}: {FILTER_CATALOG}: {why}")
            source = self._config_map(match[1], match[3])
            if CATALOG_ENTRY not in source.data:
                raise _Unusable(f"{source} has no entry {CATALOG_ENTRY}")
        if source is not None:
            made.catalogue = str(source)
            made.types, made.others = _types(source)


def _addresses(config_map: ConfigMap) -> Iterator[str]:
    for text in filter(None, _SEPARATOR.split(config_map.data.get(ADDRESSES, ""))):
        try:
            yield str(ip_network(text) if "/" in text else ip_address(text))
        except ValueError:
            why = f"{text} is no IP address and no network, such as 192.0.2.1 or 127.0.0.0/8"
            raise _Unusable(f"{config_map}: {ADDRESSES}: {why}") from None


def _listed(config_map: ConfigMap) -> list[Any]:
    try:
        catalogue = json.loads(config_map.data[CATALOG_ENTRY])
    except (ValueError, RecursionError):
        raise _Unusable(f"{config_map}: {CATALOG_ENTRY} is no JSON") from None
    listed = catalogue.get("types") if isinstance(catalogue, dict) else None
    if not isinstance(listed, list) or len(listed) > _MAX_TYPES:
        raise _Unusable(f"{config_map}: {CATALOG_ENTRY}: types is no list of {_MAX_TYPES} types at most")
    return listed


def _schemas(config_map: ConfigMap) -> set[str]:
    """The entries with the schemas of a catalogue."""
    listed = _listed(config_map) if CATALOG_ENTRY in config_map.data else []
    return {str(each["schema"]) for each in listed if isinstance(each, dict) and each.get("schema")}


def _types(config_map: ConfigMap) -> tuple[tuple[FilterTypeDefinition, ...], tuple[str, ...]]:
    """The types with a processor; and the names of the others."""
    types, others = [], []
    for number, each in enumerate(_listed(config_map)):
        where = f"{config_map}: {CATALOG_ENTRY}: types[{number}]"
        if not isinstance(each, dict) or not isinstance(each.get("type"), str):
            raise _Unusable(f"{where} has no type")
        if each.get("processor"):
            types.append(_definition(config_map, each, where))
        else:
            others.append(each["type"])
    return tuple(types), tuple(others)


def _definition(config_map: ConfigMap, entry: dict[str, Any], where: str) -> FilterTypeDefinition:
    spec: dict[str, Any] = {name: entry[name] for name in _SAME if name in entry}
    spec["summary"] = str(entry.get("summary") or "")[:_MAX_SUMMARY]
    if entry.get("schema"):
        ref = {"name": config_map.name, "namespace": config_map.namespace, "key": entry["schema"]}
        spec["configSchema"] = {"configMapRef": ref}
    name = re.sub(r"[^a-z0-9]+", "-", entry["type"].lower()).strip("-")
    value = {
        "apiVersion": "egressproxy.io/v1alpha1", "kind": "FilterType", "metadata": {"name": name}, "spec": spec,
    }  # fmt: skip
    try:
        made = FilterTypeDefinition.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        path, _ = field_path(details["loc"])
        message, remedy = explain(details, FilterTypeDefinition, path, None, show=False)
        field_name = path_text(path).removeprefix("spec.")
        raise _Unusable(f"{where}.{field_name}: {message}{f' ({remedy})' if remedy else ''}") from None
    made.written(value, Origin(is_from_api=True, is_from_cluster=config_map.origin.is_from_cluster))
    return made
