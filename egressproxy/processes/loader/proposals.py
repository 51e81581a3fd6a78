"""Proposals: the smallest change of a policy that would allow what it denied, compiled and tried by the loader.

A proposal adds one host and port to `destinations.allow` of the policy that denied. It never opens an address that is
not public, touches a `deny` entry, or has a wildcard; and it is made only where the changed configuration would allow
the request.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
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
from egressproxy.net.listening import why_unusable
from egressproxy.net.timers import TimerWheel
from egressproxy.net.tls_contexts.system_roots import mark
from egressproxy.operators.explain.decision_diff import outcome
from egressproxy.processes.loader.answer import previous_of
from egressproxy.processes.loader.compilation import Machine, compiled
from egressproxy.processes.loader.request import LoadRequest, read_request
from egressproxy.processes.pickling import loads
from egressproxy.telemetry.metrics import Metrics

#: The most policies that are compiled with changes, and the time for them, in seconds.
MAX_POLICIES: Final = 8
MAX_S: Final = 10.0
#: A larger object is shown by its diff alone, and so are all where they are larger together; in characters of JSON.
MAX_MANIFEST: Final = 16 * 1024
MAX_MANIFESTS: Final = 1024 * 1024
MAX_DIFF: Final = 8 * 1024
_KEY: Final = ("egressproxy.io", "EgressPolicy")
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
    by_policy: dict[str, list[int]] = {}
    for number, (policy, _) in enumerate(asked):
        by_policy.setdefault(policy, []).append(number)
    for policy in list(by_policy)[:MAX_POLICIES]:
        old = resources.get(*_KEY, *policy.split("/", 1)) if policy.count("/") == 1 else None
        if old is None or monotonic() > until:
            continue
        changes = {number: each for number in by_policy[policy] if (each := _entry(asked[number][1])) is not None}
        wanted = [asked[number][1] for number in changes]
        try:
            snapshot = _with_entries(request, resources, old, list(changes.values()), wanted)
        except (ConfigError, ValueError, OSError):  # it is not to be had so
            continue
        for number, entry in changes.items():
            then = outcome(snapshot, asked[number][1])
            if then.is_allowed and then.is_sure:
                made = found[number] = _described(old, entry, room)
                room -= len(json.dumps(made["manifest"]))
    return found


def _entry(decision: RecentDecision) -> dict[str, Any] | None:
    """The entry that would allow this destination; None for one that no entry should open."""
    try:
        authority = parse_authority(decision.authority.encode("latin-1", "replace"))
    except AuthorityError:
        return None
    if authority.address is None:
        return {"hostnames": [authority.host], "ports": [authority.port]}
    address = ip_address(authority.address)
    if not address.is_global or address.is_multicast:
        return None
    return {"cidrs": [f"{address}/{address.max_prefixlen}"], "ports": [authority.port]}


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
        ports = entry["ports"]
        for number, known in enumerate(allowed):
            if known.get("ports") and {**known, "ports": ports} == entry:
                allowed[number] = {
                    **known,
                    "ports": [*known["ports"], *(each for each in ports if each not in known["ports"])],
                }
                break
        else:
            allowed.append(entry)
    return {**manifest, "spec": {**spec, "destinations": {**destinations, "allow": allowed}}}


def _with_entries(
    request: LoadRequest, resources: ResourceSet, old: Resource, entries: Sequence[Mapping[str, Any]],
    asked: Sequence[RecentDecision],
) -> Snapshot:  # fmt: skip
    """What would serve the asked requests with these entries. Raises ConfigError, ValueError or OSError."""
    text = yaml.safe_dump(_allowing(old.to_manifest(), entries))
    (made,) = load_text(text, old.origin.file or "<change>", is_from_api=old.origin.is_from_api).objects
    together = ResourceSet(
        [made if each is old else each for each in resources.objects], resources.warnings, resources.problems,
        resources.broken, resources.read, resources.left_out,
    )  # fmt: skip
    unbound = {(address, port): why for address, port, why in request.unbound}
    machine = Machine(
        why_unusable, mark(), unbound, request.gateway_namespaces, request.experimental, request.has_service
    )
    return _snapshot(compiled(together, request.bind, previous_of(request.memory), machine).spec, asked)


def _snapshot(spec: ConfigIR, asked: Sequence[RecentDecision]) -> Snapshot:
    """A snapshot with the listeners of these requests, which runs no operator's code."""
    import egressproxy.doors.products  # noqa: F401 (makes the products known)

    named = {(each.gateway, each.listener) for each in asked}
    listeners = tuple(each for each in spec.listeners if (each.gateway, each.name) in named)
    network = Network(asyncio.get_running_loop(), TimerWheel(), b"")
    builder = SnapshotBuilder(Catalog(), network, Metrics(""), None)
    builder.filters.hold_code()
    return at_once(builder.whole(replace(spec, listeners=listeners, collectors=())))


def _described(old: Resource, entry: Mapping[str, Any], room: int) -> dict[str, Any]:
    before = old.to_manifest()
    before["metadata"] = {name: value for name, value in before["metadata"].items() if name not in _OF_SERVERS}
    after = _allowing(before, [entry])
    origin, name = old.origin, f"EgressPolicy {old.full_name}"
    is_file = not origin.is_from_api and origin.file and Path(origin.file).is_file()
    size = len(json.dumps(after))
    manifest = after if size <= min(MAX_MANIFEST, room) else None
    return {
        "object": name, "file": f"{origin.file}:{origin.line}" if is_file else None,
        "diff": "".join(_diff(before, after, name))[:MAX_DIFF], "manifest": manifest,
    }  # fmt: skip


def _diff(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> Iterator[str]:
    old, new = (yaml.safe_dump(each, sort_keys=False).splitlines(keepends=True) for each in (before, after))
    return difflib.unified_diff(old, new, name, f"{name} (changed)")
