"""Where those fields of an object stand in its file that are checked after reading: line and column, for messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from egressproxy.config.explanations import path_text
from egressproxy.config.reading.yaml import Document
from egressproxy.config.resources.meta import Spot

__all__ = ["field_locations"]

#: Fields of `spec` whose places are kept: what they say is judged after the documents are gone. So are those of matches
#: with regular expressions.
_FIELDS = ("extensions", "gatewayClassName", "listeners", "parent", "parentRef", "parentRefs", "targetRefs")


def field_locations(document: Document) -> dict[str, Spot]:
    """The line and column of each of these fields, and of its key, by the field's path."""
    return {
        path_text(path): (place.line, place.column, of_key.line, of_key.column)
        for field in (*((name,) for name in _FIELDS), *_expression_paths(document.value))
        for path, place, of_key in document.places(("spec", *field))
    } | {path_text(path): _spot(document, path) for path in _reference_paths(document.value)}


def _spot(document: Document, path: tuple[str | int, ...]) -> Spot:
    place = document.place_of(path)
    return place.line, place.column, place.line, place.column


def _reference_paths(value: Any) -> Iterator[tuple[str | int, ...]]:
    """Where routes and Backends refer to others."""
    yield from _rule_reference_paths(value)
    spec = value.get("spec") if isinstance(value, dict) else None
    destination = spec.get("destination") if isinstance(spec, dict) else None
    if isinstance(spec, dict) and isinstance(destination, dict):
        yield from _tls_reference_paths(spec, ("spec",))
        yield from _tls_reference_paths(destination, ("spec", "destination"))
        yield from _tls_reference_paths(destination.get("fqdn"), ("spec", "destination", "fqdn"))
        ports = destination.get("ports")
        for number, port in enumerate(ports if isinstance(ports, list) else ()):
            yield from _tls_reference_paths(port, ("spec", "destination", "ports", number))


def _tls_reference_paths(holder: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Where `tls` of a Backend, at this path, refers to certificates."""
    tls = holder.get("tls") if isinstance(holder, dict) else None
    if not isinstance(tls, dict):
        return
    for field in ("caBundleRef", "crlRefs", "clientCertificateRef"):
        if field in tls:
            yield *path, "tls", field
            for number in range(len(tls[field]) if isinstance(tls[field], list) else 0):
                yield *path, "tls", field, number


def _rule_reference_paths(value: Any) -> Iterator[tuple[str | int, ...]]:
    """Where in a route rules refer to backends, or have filters, which may."""
    for index, rule in enumerate(_rules(value)):
        if isinstance(rule, dict):
            for field in ("backendRefs", "filters"):
                entries = rule.get(field)
                for number in range(len(entries) if isinstance(entries, list) else 0):
                    yield "spec", "rules", index, field, number


def _rules(value: Any) -> list[Any]:
    spec = value.get("spec") if isinstance(value, dict) else None
    rules = spec.get("rules") if isinstance(spec, dict) else None
    return rules if isinstance(rules, list) else []


def _expression_paths(value: Any) -> Iterator[tuple[str | int, ...]]:
    """Where in `spec` of a route matches stand that have a regular expression."""
    for index, rule in enumerate(_rules(value)):
        matches = rule.get("matches") if isinstance(rule, dict) else None
        for number, match in enumerate(matches if isinstance(matches, list) else ()):
            if _has_expression(match):
                yield "rules", index, "matches", number


def _has_expression(match: Any) -> bool:
    if isinstance(match, dict):
        return match.get("type") == "RegularExpression" or any(map(_has_expression, match.values()))
    return isinstance(match, list) and any(map(_has_expression, match))
