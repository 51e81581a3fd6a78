"""Where those fields of an object stand in its file that are checked after reading: line and column, for messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from egressproxy.config.explanations import path_text
from egressproxy.config.reading.yaml import Document
from egressproxy.config.resources.meta import Spot

Path = tuple[str | int, ...]

#: Fields whose places are kept, with those of all fields below: what they say is judged after the documents are gone.
#: So are those of matches with regular expressions. `None` stands for each item of a list.
_FIELDS = (
    "extensions", "gatewayClassName", "listeners", "parent", "parentRef", "parentRefs", "processors", "targetRefs",
)  # fmt: skip
_MATCHES = ("spec", "rules", None, "matches", None)
#: Where rules of routes refer to backends, or have filters, which may.
_RULES = (("spec", "rules", None, "backendRefs", None), ("spec", "rules", None, "filters", None))
#: Where a Backend of type Failover refers to others.
_ENDPOINTS = ("spec", "destination", "failover", "endpoints", None, "backendRef")
#: Where Backends refer to certificates.
_CERTIFICATES = tuple(
    (*place, "tls", field, *item)
    for place in (
        ("spec",),
        ("spec", "destination"),
        ("spec", "destination", "fqdn"),
        ("spec", "destination", "ports", None),
    )
    for field in ("caBundleRef", "crlRefs", "clientCertificateRef")
    for item in ((), (None,))
)

#: Where an EgressPolicy says from what clients are known.
_IDENTITY: tuple[tuple[str | None, ...], ...] = tuple(
    ("spec", "identity", *place)
    for place in (
        ("token", "issuers", None, "jwksRef"),
        ("token", "issuers", None, "caCertificateRefs"),
        ("basic", "secretRef"),
        ("gateways", "keyRefs"),
        ("certificate", "caCertificateRefs"),
        ("certificate", "crlRefs"),
        ("certificate", "trustDomains"),
    )
)

#: What the status of a FilterType speaks of. Of a schema, whose size is a client's, only where it begins.
_OF_FILTER_TYPE: tuple[tuple[str | None, ...], ...] = (
    ("spec", "type"),
    ("spec", "phases"),
    ("spec", "configSchema"),
    ("spec", "python"),
    ("spec", "python", "path"),
    ("spec", "python", "settings"),
    ("spec", "processor"),
    ("spec", "processor", "backendRefs", None),
    ("spec", "processor", "settings"),
)


def field_locations(document: Document) -> dict[str, Spot]:
    """The line and column of each of these fields, and of its key, by the field's path."""
    value = document.value
    spec = value.get("spec")
    whole: list[Path] = [("spec", name) for name in _FIELDS if isinstance(spec, dict) and name in spec]
    whole += [path for path, match in _found(value, _MATCHES) if _has_expression(match)]
    alone = [path for pattern in _RULES for path, _ in _found(value, pattern)]
    if _found(value, ("spec", "destination")):
        alone += [path for pattern in (_ENDPOINTS, *_CERTIFICATES) for path, _ in _found(value, pattern)]
    if _found(value, ("spec", "identity")):
        alone += [path for pattern in _IDENTITY for path, _ in _found(value, pattern)]
    if value.get("kind") == "FilterType":
        alone += [path for pattern in _OF_FILTER_TYPE for path, _ in _found(value, pattern)]
    places: dict[str, Spot] = {
        path_text(path): (*place, *of_key) for field in whole for path, place, of_key in document.places(field)
    }
    for path in alone:
        place = document.place_of(path)
        places[path_text(path)] = (*place, *place)
    return places


def _found(value: Any, pattern: Sequence[str | None]) -> list[tuple[Path, Any]]:
    """Path and value of each field of this pattern."""
    found: list[tuple[Path, Any]] = [((), value)]
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
