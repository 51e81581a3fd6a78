"""Where those fields of an object stand in its file that are checked after reading: line and column, for messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from egressproxy.config.explanations import path_text
from egressproxy.config.reading.yaml import Document, FieldPath
from egressproxy.config.resources.meta import Spot


def _patterns(text: str) -> tuple[tuple[str | None, ...], ...]:
    """Paths as in `spec.rules[].matches`, each as its steps; None stands for each item of a list."""
    return tuple(tuple(step or None for step in path.replace("[]", ".").split(".")) for path in text.split())


#: Fields whose locations are kept, with those of all fields below: they are judged after the documents are gone.
_FIELDS = (
    "extensions", "gatewayClassName", "listeners", "parent", "parentRef", "parentRefs", "processors", "targetRefs",
)  # fmt: skip
#: The locations of matches that have regular expressions are kept, too.
(_MATCHES,) = _patterns("spec.rules[].matches[]")
#: Where rules of routes refer to backends, or have filters, which may.
_RULES = _patterns("spec.rules[].backendRefs[] spec.rules[].filters[]")
#: Where a Backend refers to others (of type Failover), and to certificates.
_OF_BACKEND = _patterns("spec.destination.failover.endpoints[].backendRef") + tuple(
    pattern
    for holder in ("spec", "spec.destination", "spec.destination.fqdn", "spec.destination.ports[]")
    for field in ("caBundleRef", "crlRefs", "clientCertificateRef")
    for pattern in _patterns(f"{holder}.tls.{field} {holder}.tls.{field}[]")
)
#: Where an EgressPolicy says from what clients are known.
_IDENTITY = _patterns(
    "spec.identity.token.issuers[].jwksRef spec.identity.token.issuers[].caCertificateRefs"
    " spec.identity.basic.secretRef spec.identity.apiKeys.secretRefs spec.identity.gateways.keyRefs"
    " spec.identity.certificate.caCertificateRefs"
    " spec.identity.certificate.crlRefs spec.identity.certificate.trustDomains"
)
#: What the status of a FilterType speaks of. Of a schema, whose size is a client's, only where it begins.
_OF_FILTER_TYPE = _patterns(
    "spec.type spec.phases spec.configSchema spec.python spec.python.path spec.python.settings"
    " spec.processor spec.processor.backendRefs[] spec.processor.settings"
)


def field_locations(document: Document) -> dict[str, Spot]:
    """The line and column of each of these fields, and of its key, by the field's path."""
    value = document.value
    spec = value.get("spec")
    whole: list[FieldPath] = [("spec", name) for name in _FIELDS if isinstance(spec, dict) and name in spec]
    whole += [path for path, match in _found(value, _MATCHES) if _has_expression(match)]
    alone = [path for pattern in _RULES for path, _ in _found(value, pattern)]
    if _found(value, ("spec", "destination")):
        alone += [path for pattern in _OF_BACKEND for path, _ in _found(value, pattern)]
    if _found(value, ("spec", "identity")):
        alone += [path for pattern in _IDENTITY for path, _ in _found(value, pattern)]
    if value.get("kind") == "FilterType":
        alone += [path for pattern in _OF_FILTER_TYPE for path, _ in _found(value, pattern)]
    locations: dict[str, Spot] = {
        path_text(path): (*location, *of_key)
        for field in whole
        for path, location, of_key in document.located_fields(field)
    }
    for path in alone:
        location = document.location_of(path)
        locations[path_text(path)] = (*location, *location)
    return locations


def _found(value: Any, pattern: Sequence[str | None]) -> list[tuple[FieldPath, Any]]:
    found: list[tuple[FieldPath, Any]] = [((), value)]
    for step in pattern:
        if step is None:
            found = [((*path, i), item) for path, at in found if isinstance(at, list) for i, item in enumerate(at)]
        else:
            found = [((*path, step), at[step]) for path, at in found if isinstance(at, dict) and step in at]
    return found


def _has_expression(match: Any) -> bool:
    if isinstance(match, dict):
        return match.get("type") == "RegularExpression" or any(map(_has_expression, match.values()))
    return isinstance(match, list) and any(map(_has_expression, match))
