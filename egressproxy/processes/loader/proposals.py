"""Proposals: the smallest change of a policy that would allow what it denied, compiled and tried by the loader.

A proposal adds one host and port to `destinations.allow` of the policy that denied. It never opens an address that is
not public, touches a `deny` entry, or has a wildcard; and it is made only where the changed configuration would allow
the request.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, Final

import yaml

from egressproxy.config.reading.load import ResourceSet, load_text, read_all
from egressproxy.config.reading.problems import ConfigError
from egressproxy.config.resources.meta import Resource
from egressproxy.doors.catalog import Catalog
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.builders.snapshot_builder import SnapshotBuilder
from egressproxy.gateway.exchange.recent_decisions import RecentDecision
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.ir.gateway import ConfigIR
from egressproxy.model.authority import AuthorityError, parse_authority
from egressproxy.model.work import at_once
from egressproxy.net.timers import TimerWheel
from egressproxy.operators.explain.decision_diff import outcome
from egressproxy.processes.loader.answer import machine_of, previous_of
from egressproxy.processes.loader.compilation import compiled
from egressproxy.processes.loader.request import LoadRequest, read_request
from egressproxy.processes.pickling import loads
from egressproxy.telemetry.metrics import Metrics
from egressproxy.upstream.address_policy import classify

#: The most policies that are compiled with changes, and the time for all, in seconds: reloads wait meanwhile.
MAX_POLICIES: Final = 8
MAX_S: Final = 3.0
#: A larger object is shown by its diff alone, and so are all where they are larger together; in characters of JSON.
MAX_MANIFEST: Final = 16 * 1024
MAX_MANIFESTS: Final = 1024 * 1024
MAX_DIFF: Final = 8 * 1024
#: What an API server writes into `metadata`, and nobody edits.
_OF_SERVERS: Final = ("managedFields", "uid", "resourceVersion", "generation", "creationTimestamp", "selfLink")


def answer(request: bytes) -> bytes:
    """JSON: for each asked policy and decision a change, or null. The request is that of a load, and JSON of pairs of a
    policy ("namespace/name") and the fields of a RecentDecision.
    """
    packed, asked = loads(request)
    pairs = [(policy, RecentDecision.of_admin(fields)) for policy, fields in json.loads(asked)]
    return json.dumps(asyncio.run(_proposals(read_request(packed), pairs))).encode()


async def _proposals(request: LoadRequest, asked: Sequence[tuple[str, RecentDecision]]) -> list[dict[str, Any] | None]:
    found: list[dict[str, Any] | None] = [None] * len(asked)
    resources = read_all(request.paths, request.state, request.cluster)
    until, room = monotonic() + MAX_S, MAX_MANIFESTS
    for policy in list(dict.fromkeys(policy for policy, _ in asked))[:MAX_POLICIES]:
        old = resources.get("egressproxy.io", "EgressPolicy", *policy.split("/")) if policy.count("/") == 1 else None
        if old is None or monotonic() > until:
            continue
        entries = {n: entry for n, (by, each) in enumerate(asked) if by == policy and (entry := _entry(each))}
        try:
            snapshot = _with_entries(request, resources, old, entries, asked)
        except (ConfigError, ValueError, OSError):  # it is not to be had so
            continue
        before = old.to_manifest()
        before["metadata"] = {name: value for name, value in before["metadata"].items() if name not in _OF_SERVERS}
        lines, end = _lines(before), max(until, monotonic() + 1.0)  # what took long to compile is not in vain
        for number, entry in entries.items():
            then = outcome(snapshot, asked[number][1])
            if then.is_allowed and then.is_sure and monotonic() <= end:
                after = _allowing(before, [entry])
                size = len(json.dumps(after))
                is_shown = size <= min(MAX_MANIFEST, room)
                room -= size if is_shown else 0
                found[number] = _described(old, entry, lines, after, is_shown=is_shown)
    return found


def _entry(decision: RecentDecision) -> dict[str, Any] | None:
    """The entry that would allow this destination; None for one that no entry should open."""
    try:
        authority = parse_authority(decision.authority.encode("latin-1", "replace"))
    except AuthorityError:
        return None
    if authority.address is None:
        return {"hostnames": [authority.host], "ports": [authority.port]}
    if classify(authority.address) is not None:
        return None
    return {"cidrs": [f"{authority.address}/{authority.address.max_prefixlen}"], "ports": [authority.port]}


def _allowing(manifest: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The manifest with these entries: as further ports of an entry that names just this host, or as new ones. Raises
    ValueError if it allows nothing yet: a list would then deny all else.
    """
    spec = manifest.get("spec") or {}
    destinations = spec.get("destinations") or {}
    if not isinstance(destinations.get("allow"), list):
        raise ValueError("the policy has no list of what is allowed")
    allowed = list(destinations["allow"])
    for entry in entries:
        for number, known in enumerate(allowed):
            if known.get("ports") and {**known, "ports": entry["ports"]} == entry:
                allowed[number] = {**known, "ports": list(dict.fromkeys((*known["ports"], *entry["ports"])))}
                break
        else:
            allowed.append(entry)
    return {**manifest, "spec": {**spec, "destinations": {**destinations, "allow": allowed}}}


def _with_entries(
    request: LoadRequest, resources: ResourceSet, old: Resource, entries: Mapping[int, Mapping[str, Any]],
    asked: Sequence[tuple[str, RecentDecision]],
) -> Snapshot:  # fmt: skip
    """What would serve the asked requests with their entries. Raises ConfigError, ValueError or OSError."""
    text = "".join(_lines(_allowing(old.to_manifest(), list(entries.values()))))
    (changed,) = load_text(text, old.origin.file or "<change>", is_from_api=old.origin.is_from_api).objects
    together = ResourceSet(
        [changed if each is old else each for each in resources.objects], resources.warnings, resources.problems,
        resources.broken, resources.read, resources.left_out,
    )  # fmt: skip
    places = {(asked[number][1].gateway, asked[number][1].listener) for number in entries}
    made = compiled(together, request.bind, previous_of(request.memory), machine_of(request))
    return _snapshot(made.spec, places)


def _snapshot(spec: ConfigIR, places: set[tuple[str, str]]) -> Snapshot:
    """A snapshot with these listeners, which runs no operator's code."""
    import egressproxy.doors.products  # noqa: F401 (makes the products known)

    listeners = tuple(each for each in spec.listeners if (each.gateway, each.name) in places)
    network = Network(asyncio.get_running_loop(), TimerWheel(), b"")
    builder = SnapshotBuilder(Catalog(), network, Metrics(""), None)
    builder.filters.hold_code()
    return at_once(builder.whole(replace(spec, listeners=listeners, collectors=())))


def _described(
    old: Resource, entry: Mapping[str, Any], before: list[str], after: dict[str, Any], *, is_shown: bool
) -> dict[str, Any]:
    origin, name = old.origin, f"EgressPolicy {old.full_name}"
    is_file = not origin.is_from_api and origin.file and Path(origin.file).is_file()
    diff = _diff_of_file(Path(origin.file), origin.line - 1, entry) if is_file else ""
    diff = diff or "".join(difflib.unified_diff(before, _lines(after), name, f"{name} (changed)"))
    return {
        "object": name, "file": f"{origin.file}:{origin.line}" if is_file else None, "diff": diff[:MAX_DIFF],
        "manifest": after if is_shown else None,
    }  # fmt: skip


def _diff_of_file(file: Path, first: int, entry: Mapping[str, Any]) -> str:
    """The entry as one line of the file's own text, for `git apply` and `patch -p1`; "" where that does not say it.

    `first`: the document's line, from 0. Only its lines are read, and comments at their margin are not shown: there may
    be secrets in other documents, also in those that are commented out.
    """
    path = str(file).lstrip("/")
    if file.is_symlink() or ".." in file.parts or path.split() != [path] or file.suffix == ".json":
        return ""  # neither program follows such a name; the entry is no JSON
    try:
        text = file.read_bytes().decode()
        lines = text.splitlines(keepends=True)
        end = next((n for n in range(first + 1, len(lines)) if lines[n].startswith(("---", "..."))), len(lines))
        document = "".join(lines[first:end])
        node: Any = yaml.compose(document, yaml.CSafeLoader)
        raw = yaml.load(document, yaml.CSafeLoader)
        after = _allowing(raw, [entry])
        known, allowed = (each["spec"]["destinations"]["allow"] for each in (raw, after))
        for name in ("spec", "destinations", "allow"):
            node = next(value for key, value in node.value if key.value == name)
        new = "{" + ", ".join(f"{name}: {json.dumps(value)}" for name, value in entry.items()) + "}"
        if len(known) == len(allowed):  # a further port
            number = next(number for number, each in enumerate(known) if each != allowed[number])
            node = next(value for key, value in node.value[number].value if key.value == "ports")
            new = str(entry["ports"][0])
        last = node
        while isinstance(last, yaml.CollectionNode) and not last.flow_style:
            last = last.value[-1][1] if isinstance(last, yaml.MappingNode) else last.value[-1]
        row, column = first + last.end_mark.line, last.end_mark.column - 1
        if node.flow_style:
            made = [f"{lines[row][:column]}{', ' if node.value else ''}{new}{lines[row][column:]}"]
        else:
            made = [lines[row], f"{' ' * node.start_mark.column}- {new}\n"]
        changed = [*lines[first:row], *made, *lines[row + 1 : end]]
        is_bare = first > 0 and row < first + 3  # too few lines of context
        shown = end + (lines[end : end + 1] in (["---\n"], ["...\n"]))  # `git apply` wants a line behind the change
        is_bare |= shown == row + 1 < len(lines)
        is_plain = len(lines) == text.count("\n") and "\r" not in text  # no other ends of lines, and no end without
        if yaml.load("".join(changed), yaml.CSafeLoader) != after or is_bare or not is_plain:
            return ""
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration, yaml.YAMLError):
        return ""
    blank = [""] * first  # keeps the numbers of lines
    diff = "".join(
        difflib.unified_diff(blank + lines[first:shown], blank + changed + lines[end:shown], f"a/{path}", f"b/{path}")
    )
    return "" if "\n #" in diff or len(diff) > MAX_DIFF else diff


def _lines(manifest: Mapping[str, Any]) -> list[str]:
    return yaml.dump(manifest, Dumper=yaml.CSafeDumper, sort_keys=False).splitlines(keepends=True)
