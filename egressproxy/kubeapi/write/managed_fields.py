"""Ownership of fields, and server-side apply.

A field is the path to it; a list with keys has a step for each item, every other list is one field. Kept in
metadata.managedFields as Kubernetes does. Hand-made: the only implementation
(sigs.k8s.io/structured-merge-diff) is in Go. Source: Kubernetes, "Server-Side Apply"; FieldsV1.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

from egressproxy.kubeapi.write.bodies import MAX_ITEMS
from egressproxy.kubeapi.write.patches import Shape, item_key
from egressproxy.kubeapi.write.write import WriteRefused

#: `f:name` for a field, `k:{"name":"x"}` for an item of a list with keys; an item itself ends with `.`.
Path = tuple[str, ...]

#: The most causes in one response.
MAX_CAUSES = 100
#: Fields without owners: the identity of an object, and the server's metadata.
_NOT_OWNED = frozenset({
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink",
})  # fmt: skip


def apply(
    current: Mapping[str, Any] | None, applied: Mapping[str, Any], manager: str, is_forced: bool, shape: Shape, now: str
) -> dict[str, Any]:
    """The object after a server-side apply. Raises WriteRefused(409) with the fields that others own."""
    base = dict(current) if current is not None else {}
    owned = _owners(base)
    mine = (manager, "Apply")
    given = _fields(applied, shape)
    conflicts: dict[Path, list[str]] = {}
    for owner, paths in owned.items():
        if owner == mine:
            continue
        for path in paths & given:
            if path[-1] != "." and _value(base, path) != _value(applied, path):
                conflicts.setdefault(path, []).append(owner[0])
    if conflicts and not is_forced:
        raise _conflict(conflicts)
    before = owned.get(mine, frozenset())
    owned = {owner: paths if owner == mine else paths - conflicts.keys() for owner, paths in owned.items()}
    others = frozenset().union(*(paths for owner, paths in owned.items() if owner != mine))
    made = _merged(base, applied, shape, ())
    above = _above(given | others)
    for path in sorted(before - given - others, key=lambda path: (path[-1] != ".", -len(path))):  # whole items first
        if (path[:-1] if path[-1] == "." else path) not in above and not _is_key(path):
            _remove(made, path)
    owned[mine] = given
    return _with_owners(made, base, owned, mine, now)


def updated(
    current: Mapping[str, Any] | None, made: Mapping[str, Any], manager: str, shape: Shape, now: str
) -> dict[str, Any]:
    """The object after any other write: what it changed belongs to its manager."""
    base = current or {}
    given = (made.get("metadata") or {}).get("managedFields")
    if given is not None and given != (base.get("metadata") or {}).get("managedFields") and current is not None:
        owned = _owners(made)  # a client that rewrites the list itself
    else:
        owned = _owners(base)
    here, there = _fields(made, shape), _fields(base, shape)
    changed = {path for path in here if path not in there or _value(made, path) != _value(base, path)}
    owned = {owner: (paths & here) - changed for owner, paths in owned.items()}
    mine = (manager, "Update")
    owned[mine] = owned.get(mine, frozenset()) | changed
    return _with_owners(made, base, owned, mine, now)


def _conflict(conflicts: Mapping[Path, list[str]]) -> WriteRefused:
    causes = [
        ("FieldManagerConflict", f'conflict with "{owner}"', _shown(path))
        for path, owners in sorted(conflicts.items())
        for owner in owners
    ]
    shown = causes[:MAX_CAUSES]
    fields = ", ".join(f"{field} ({message})" for _, message, field in shown)
    plural, more = "s" if len(causes) > 1 else "", ", …" if len(causes) > len(shown) else ""
    return WriteRefused(409, "Conflict", f"Apply failed with {len(causes)} conflict{plural}: {fields}{more}", shown)


def _shown(path: Path) -> str:
    """.spec.listeners[name="http"].port"""
    text = ""
    for step in path:
        if step.startswith("k:"):
            keys = json.loads(step[2:])
            text += "[" + ",".join(f"{name}={json.dumps(value)}" for name, value in keys.items()) + "]"
        elif step != ".":
            text += f".{step[2:]}"
    return text


# --- fields of an object ---------------------------------------------------------------------------------------------


def _fields(manifest: Mapping[str, Any], shape: Shape) -> frozenset[Path]:
    found: set[Path] = set()
    for name, value in manifest.items():
        if name in ("apiVersion", "kind", "status"):
            continue
        if name == "metadata":
            value = {key: each for key, each in (value or {}).items() if key not in _NOT_OWNED}
            if not value:
                continue
        _collect(value, (f"f:{name}",), (name,), shape, found)
    return frozenset(found)


def _collect(value: Any, path: Path, names: tuple[str, ...], shape: Shape, found: set[Path]) -> None:
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            _collect(each, (*path, f"f:{name}"), (*names, name), shape, found)
    elif isinstance(value, list) and (keys := shape.get(names)) and _all_keyed(value, keys):
        if len(value) > MAX_ITEMS:
            raise WriteRefused(422, "Invalid", f"{'.'.join(names)} has more than {MAX_ITEMS} items")
        for each in value:
            step = _step(each, keys)
            found.add((*path, step, "."))
            for name, inner in each.items():
                _collect(inner, (*path, step, f"f:{name}"), (*names, name), shape, found)
    else:
        found.add(path)


def _all_keyed(items: Iterable[Any], keys: tuple[str, ...]) -> bool:
    """Whether all items have keys. Published forms of a Backend omit keys; such a list is one value."""
    return all(item_key(each, keys) is not None for each in items)


def _step(item: Any, keys: tuple[str, ...]) -> str:
    return "k:" + json.dumps(dict(zip(keys, item_key(item, keys) or (), strict=True)), separators=(",", ":"))


def _value(manifest: Any, path: Path) -> Any:
    value = manifest
    for step in path:
        if step == ".":
            return value
        if step.startswith("f:"):
            value = value.get(step[2:]) if isinstance(value, Mapping) else None
        else:
            value = _item(value, step)
    return value


def _item(items: Any, step: str) -> Any:
    keys = json.loads(step[2:])
    values = tuple(keys.values())
    every = items if isinstance(items, list) else ()
    return next((each for each in every if item_key(each, tuple(keys)) == values), None)


def _remove(manifest: dict[str, Any], path: Path) -> None:
    """Remove a path, and parents that become empty."""
    *above, last = path[:-1] if path[-1] == "." else path
    holder = _value(manifest, tuple(above))
    if last.startswith("f:") and isinstance(holder, dict):
        holder.pop(last[2:], None)
    elif last.startswith("k:") and isinstance(holder, list) and (item := _item(holder, last)) is not None:
        holder.remove(item)
    if above and not holder and holder is not None:
        _remove(manifest, tuple(above))


def _is_key(path: Path) -> bool:
    """Whether the path is a key of a list item."""
    return len(path) > 1 and path[-2].startswith("k:") and path[-1][2:] in json.loads(path[-2][2:])


def _above(paths: Iterable[Path]) -> frozenset[Path]:
    """These paths with all their parents, which must not be removed."""
    return frozenset(path[:end] for path in paths for end in range(1, len(path) + 1))


def _merged(base: Any, applied: Any, shape: Shape, names: tuple[str, ...]) -> Any:
    if isinstance(applied, Mapping) and (applied or isinstance(base, Mapping)):
        made = copy.deepcopy(dict(base)) if isinstance(base, Mapping) else {}
        for name, value in applied.items():
            made[name] = _merged(made.get(name), value, shape, (*names, name))
        return made
    keys = shape.get(names)
    if isinstance(applied, list) and isinstance(base, list) and keys and _all_keyed((*base, *applied), keys):
        rest = list(base)
        for each in applied:
            key = item_key(each, keys)
            at = next((index for index, item in enumerate(rest) if item_key(item, keys) == key), None)
            if at is None:
                rest.append(copy.deepcopy(each))
            else:
                rest[at] = _merged(rest[at], each, shape, names)
        return rest
    return copy.deepcopy(applied)


# --- metadata.managedFields ------------------------------------------------------------------------------------------

#: (manager, operation).
Owner = tuple[str, str]


def _owners(manifest: Mapping[str, Any]) -> dict[Owner, frozenset[Path]]:
    owned: dict[Owner, frozenset[Path]] = {}
    for entry in (manifest.get("metadata") or {}).get("managedFields") or ():
        if isinstance(entry, Mapping) and isinstance(entry.get("fieldsV1"), Mapping):
            owner = (str(entry.get("manager", "")), str(entry.get("operation", "")))
            owned[owner] = owned.get(owner, frozenset()) | frozenset(_read(entry["fieldsV1"], ()))
    return owned


def _read(fields: Mapping[str, Any], path: Path) -> Iterable[Path]:
    for step, inner in fields.items():
        if step.startswith(("v:", "i:")):  # of a list without keys, which is one field here
            yield path
        elif step == "." or not inner:
            yield (*path, step)
        else:
            yield from _read(inner, (*path, step))


def _with_owners(
    made: Mapping[str, Any], base: Mapping[str, Any], owned: Mapping[Owner, frozenset[Path]], writer: Owner, now: str
) -> dict[str, Any]:
    """`made` with these owners; one whose fields are those of `base` keeps its time."""
    before = _owners(base)
    metadata = {name: value for name, value in (made.get("metadata") or {}).items() if name != "managedFields"}
    api_version = str(made.get("apiVersion", ""))
    known = {
        (entry.get("manager"), entry.get("operation")): entry
        for entry in (base.get("metadata") or {}).get("managedFields") or ()
        if isinstance(entry, Mapping)
    }
    entries = []
    for owner, paths in owned.items():
        old = known.get(owner, {})
        if paths:
            entries.append({
                "manager": owner[0],
                "operation": owner[1],
                "apiVersion": api_version if owner == writer else old.get("apiVersion", api_version),
                "time": old.get("time", now) if before.get(owner) == paths else now,
                "fieldsType": "FieldsV1",
                "fieldsV1": _written(paths),
            })  # fmt: skip
    if entries:
        metadata["managedFields"] = entries
    return {**made, "metadata": metadata}


def _written(paths: Iterable[Path]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in sorted(paths):
        at = tree
        for step in path:
            at = at.setdefault(step, {})
    return tree
