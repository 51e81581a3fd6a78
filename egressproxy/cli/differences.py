"""Differences between the outlines of two configurations, as values and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

from egressproxy.cli.styled_lines import print_lines
from egressproxy.ir.outline import Outline

_STYLES: Final = {"+": "green", "-": "red", "~": "yellow", "!": "bold red", " ": ""}


def compare(old: Outline, new: Outline) -> dict[str, Any]:
    """Returns `added` and `removed` objects with their fields, and `changed` by object and field, with `old` and `new`
    (None: the field is not there).
    """
    changed = {}
    for name in old:
        if name in new and old[name] != new[name]:
            before, after = old[name], new[name]
            changed[name] = {
                path: {"old": before.get(path), "new": after.get(path)}
                for path in dict.fromkeys((*before, *after))
                if before.get(path) != after.get(path)
            }
    return {
        "added": {name: values for name, values in new.items() if name not in old},
        "removed": {name: values for name, values in old.items() if name not in new},
        "changed": changed,
    }


def show(found: Mapping[str, Any], file: IO[str]) -> None:
    """Print the lines; `found` is what `compare` returns, with `flips` and `replayed` if decisions were made again."""
    print_lines(([(line, _STYLES.get(line.lstrip()[:1], ""))] for line in lines(found)), file)


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """One line for each difference: `+` new, `-` gone, `~` changed, `!` a decision that flips."""
    for sign, kind in (("-", "removed"), ("+", "added")):
        for name, values in found[kind].items():
            yield f"{sign} {name}"
            for path, value in values.items():
                yield f"  {sign} {path}: {_said(value)}"
    for name, values in found["changed"].items():
        yield f"~ {name}"
        for path, value in values.items():
            yield from _field(path, value["old"], value["new"])
    for each in found.get("flips", ()):
        yield _flip(each)
    if "replayed" in found:
        count = len(found["flips"])
        yield f"{found['replayed']} recent decisions were made again; {count or 'none'} of them would change"


def _field(path: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, list) and isinstance(new, list) and sorted(old) != sorted(new):
        yield from (f"  - {path}: {value}" for value in old if value not in new)
        yield from (f"  + {path}: {value}" for value in new if value not in old)
    elif old is None:
        yield f"  + {path}: {_said(new)}"
    elif new is None:
        yield f"  - {path}: {_said(old)}"
    else:
        yield f"  ~ {path}: {_said(old)} -> {_said(new)}"


def _flip(each: Mapping[str, Any]) -> str:
    path = "" if each["method"] in ("-", "CONNECT") else each["path"]
    identity = "" if each["namespace"] == "-" else f" as {each['namespace']}/{each['serviceAccount']}"
    before, after = (
        each[when] if each[f"{when}Reason"] == "-" else f"{each[when]} ({each[f'{when}Reason']})"
        for when in ("before", "after")
    )
    sure = "" if each["isSure"] else " (not certain: it depends on headers or addresses)"
    where = f"{each['gateway']}/{each['listener']}"
    return f"! {each['method']} {each['authority']}{path}{identity} on {where}: {before} -> {after}{sure}"


def _said(value: Any) -> str:
    said = "; ".join(value) if isinstance(value, list) else str(value)
    return said or "none"
