"""The tables of fields in the documentation, as the models and config/schema have them.

`python -m tests.config.field_tables` writes them anew: the tables of docs/gateway-api.md, and docs/fields.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from egressproxy.config.resources.backend import Backend
from egressproxy.config.resources.extension import FilterTypeDefinition, PayloadProcessingPipeline
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.schema import gateway_api_fields, json_schema

_DOCS: Final = Path(__file__).parents[2] / "docs"
GATEWAY_API_PAGE: Final = _DOCS / "gateway-api.md"
FIELDS_PAGE: Final = _DOCS / "fields.md"
OURS: Final[tuple[type[Resource], ...]] = (Backend, EgressPolicy, PayloadProcessingPipeline, FilterTypeDefinition)
_HEAD: Final = """# Every field of our kinds

Made from the models; `kubectl explain` says the same. All of it is implementation-specific, and served since
0.1.0 unless it says otherwise. A reference has one line for all of its fields. The Backends of other groups
have `destination`, `tls` and `extensions` of ours. How the fields work together:
[configuration](configuration.md), [policies](policies.md), [filters](filters.md). Those of Gateway API:
[Gateway API](gateway-api.md).
"""


def gateway_api_page(page: str) -> str:
    """The page with its tables written anew."""
    for section, rows in gateway_api_fields().items():
        table = ["| field | level | served | since | |", "|---|---|---|---|---|"]
        table += [
            f"| `{path}` | {row.level} | {row.served} | {row.since} | {row.note} |".replace("|  |", "| |")
            for path, row in rows.items()
        ]
        there = re.compile(rf"(## {re.escape(section)}\n\n)\| field .*?\n(?=\n|\Z)", re.DOTALL)
        assert there.search(page), f"no table below ## {section}"
        page = there.sub(lambda found, table=table: found[1] + "\n".join(table) + "\n", page, count=1)  # type: ignore[misc]
    return page


def fields_page() -> str:
    """The page of our kinds."""
    parts = json_schema()["$defs"]
    made = [_HEAD]
    for kind in OURS:
        root = next(part for part in parts.values() if _is(part, kind))
        made.append(f"\n## {kind.KIND}\n\n| field | |\n|---|---|\n")
        made += [f"| `{path}` | {words} |\n" for path, words in _rows(parts, root["properties"]["spec"], "spec")]
    return "".join(made)


def _is(part: dict[str, Any], kind: type[Resource]) -> bool:
    properties = part.get("properties", {})
    versions = properties.get("apiVersion", {}).get("enum", [])
    return properties.get("kind", {}).get("const") == kind.KIND and versions == [
        f"{kind.GROUP}/{version}" for version in kind.VERSIONS
    ]


def _rows(parts: dict[str, Any], field: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """A field and those below it, with its words, else those of its type."""
    name, is_list = _below(field)
    part = parts.get(name, {})
    path += "[]" if is_list else ""
    said = (each.get("description") for each in (field, part, *field.get("anyOf", ())))
    words = next(filter(None, said), "") or _possible(field, part)
    yield path, " ".join(words.split()).replace("|", "\\|")
    for below, each in part.get("properties", {}).items() if not name.endswith("ObjectReference") else ():
        yield from _rows(parts, each, f"{path}.{below}")


def _possible(field: dict[str, Any], part: dict[str, Any]) -> str:
    values = part.get("enum") or field.get("enum") or ()
    return f"One of {', '.join(map(str, values))}." if values else ""


def _below(field: dict[str, Any]) -> tuple[str, bool]:
    """The part that a field holds, and whether it is a list."""
    for each in (field, *field.get("anyOf", ())):
        place = each.get("items", each)
        if isinstance(place, dict) and "$ref" in place:
            return str(place["$ref"]).rpartition("/")[2], "items" in each
        if isinstance(place, dict) and "items" in each:
            return "", True
    return "", False


if __name__ == "__main__":
    GATEWAY_API_PAGE.write_text(gateway_api_page(GATEWAY_API_PAGE.read_text("utf-8")), "utf-8")
    FIELDS_PAGE.write_text(fields_page(), "utf-8")
