"""Which fields are served: of Gateway API's kinds with their level in the API, and of ours.

Those of Gateway API stand in `gateway_api_fields.md`, whose tables docs/gateway-api.md repeats; what is not served of
ours stands in `config.compile.status.supported_features`. `config.schema` publishes both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from egressproxy.config.compile.status.supported_features import UNSERVED

#: Shapes that several kinds share have a section of their own: the section, and the models that it is about.
SHARED: Final[Mapping[str, tuple[str, ...]]] = {
    "Listeners": ("Listener",),
    "parentRefs": ("ParentReference",),
    "backendRefs": ("BackendRef", "HttpBackendRef", "GrpcBackendRef"),
    "Filters": ("HttpFilter", "GrpcFilter"),
    "sessionPersistence": ("SessionPersistence",),
}
#: From what everybody has to have to what everybody does in a way of their own.
_LEVELS: Final = ("core", "extended", "implementation-specific")
_KEY: Final = "x-egressproxy-support"
_ROW: Final = re.compile(r"\| `([^`]+)` \| ([a-z-]+) \| (yes|partly|no) \| (\S+) \|\s?(.*)\|")
#: Where a reader of the page goes on, who is not here.
_SEE: Final = re.compile(r"(?:^|(?<=\. ))See \[[^]]*\]\([^)]*\)[.;] ?")
_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")


class FieldSupport(NamedTuple):
    """One row: the level in the API, `yes`, `partly` or `no`, since which version (– for none), and a note."""

    level: str
    served: str
    since: str
    note: str


@cache
def gateway_api_fields() -> Mapping[str, Mapping[str, FieldSupport]]:
    """Section (a kind, or one of SHARED) -> path as in `spec.rules[].name` -> what becomes of the field."""
    sections: dict[str, dict[str, FieldSupport]] = {}
    rows: dict[str, FieldSupport] = {}
    for line in files("egressproxy.config").joinpath("gateway_api_fields.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            rows = sections.setdefault(line.removeprefix("## "), {})
        elif found := _ROW.fullmatch(line):
            rows[found[1]] = FieldSupport(found[2], found[3], found[4], found[5].strip())
    return sections


def publish_support(parts: Mapping[str, dict[str, Any]], roots: Mapping[str, str]) -> None:
    """Write into the parts of a JSON Schema what is served. `roots`: the part of each kind of Gateway API.

    A field gets `x-egressproxy-support`, and words at the end of its description, since that is what `kubectl explain`
    shows. Of a field with fields of its own the level is the first of theirs.
    """
    said: dict[int, tuple[dict[str, Any], list[FieldSupport]]] = {}
    leaves: set[int] = set()
    for section, rows in gateway_api_fields().items():
        for start in SHARED.get(section, (roots.get(section, ""),)):
            for path, support in rows.items():
                steps = _along(parts, start, path)
                for field in steps[path.startswith("spec.") :]:  # of the whole there is no level
                    said.setdefault(id(field), (field, []))[1].append(support)
                leaves.update(map(id, steps[-1:]))
    for key, (field, supports) in said.items():
        _say(field, supports, key in leaves)
    for place, instead in UNSERVED.items():
        model, _, name = place.partition(".")
        field = parts.get(model, {}).get("properties", {}).get(name)
        if field is not None:
            field[_KEY] = {"level": _LEVELS[2], "served": "no"}
            field["description"] = f"{field.get('description', '')} Not supported yet: {instead}.".strip()


def _along(parts: Mapping[str, dict[str, Any]], start: str, path: str) -> list[dict[str, Any]]:
    """The properties that a path leads through; none where the part is not there, or does not have it."""
    found: list[dict[str, Any]] = []
    part = parts.get(start, {})
    for name in path.replace("[]", "").split("."):
        field = part.get("properties", {}).get(name)
        if field is None:
            return []
        found.append(field)
        part = parts.get(_referred(field), {})
    return found


def _referred(field: Mapping[str, Any]) -> str:
    """The part that a field holds, or each of its items; "" for none."""
    place = field.get("items", field)
    for each in (place, *place.get("anyOf", ())):
        each = each.get("items", each)
        if "$ref" in each:
            return str(each["$ref"]).rpartition("/")[2]
    return ""


def _say(field: dict[str, Any], supports: list[FieldSupport], is_leaf: bool) -> None:
    level = min((support.level for support in supports), key=_LEVELS.index)
    served = {support.served for support in supports}
    how = served.pop() if len(served) == 1 else "partly"
    field[_KEY] = {"level": level, "served": how, **({"since": supports[0].since} if how != "no" else {})}
    note = next((support.note for support in supports if support.note), "") if is_leaf else ""
    words = {"yes": "", "partly": ", served in part", "no": ", not served"}[how]
    before = " ".join(filter(None, (field.get("description", ""), _LINK.sub(r"\1", _SEE.sub("", note)).strip())))
    field["description"] = f"{before} Support: {level}{words}.".strip()
