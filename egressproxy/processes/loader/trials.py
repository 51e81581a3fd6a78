"""Trials in the process that loads: configurations with policies on trial in force, and decisions made again there."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.reading.problems import ConfigError
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.gateway.exchange.recent_decisions import RecentDecision
from egressproxy.ir.policy import Mode
from egressproxy.model.work import at_once
from egressproxy.processes.loader.compilation import Machine, compiled
from egressproxy.processes.loader.result import Trial
from egressproxy.processes.packing import pack, unpacking
from egressproxy.processes.pickling import dumps, loads

#: Each is a whole configuration that is compiled and kept.
MAX_TRIALS: Final = 4


def trials(resources: ResourceSet, bind: tuple[str, ...], machine: Machine) -> Iterator[Trial]:
    """One for each policy in force that others would replace: policies that name the same one are tried together."""
    groups: dict[str, list[EgressPolicy]] = defaultdict(list)
    for policy in sorted(resources.of(EgressPolicy), key=lambda policy: policy.key):
        if policy.spec.replaces is not None:
            groups[f"{policy.namespace}/{policy.spec.replaces.name}"].append(policy)
    number = 0
    for name, policies in sorted(groups.items()):
        replaced = resources.find(EgressPolicy, *name.split("/"))
        if replaced is None or replaced.spec.replaces is not None:
            continue  # status says so
        spec, why = b"", f"more than {MAX_TRIALS} trials: only the first ones are made"
        number += 1
        if number <= MAX_TRIALS:
            tried = {each.key: _in_force(each) for each in policies}
            objects = [tried.get(each.key, each) for each in resources.objects if each.key != replaced.key]
            together = ResourceSet(objects, broken=resources.broken, read=resources.read, left_out=resources.left_out)
            try:
                spec, why = zlib.compress(pack(compiled(together, bind, machine=machine).spec), 1), ""
            except ConfigError as error:
                why = f"with the policy in force the configuration is invalid: {error.problems[0].sentence}"
        specs = [each.to_manifest()["spec"] for each in (replaced, *policies)]
        mark = blake2b(json.dumps(specs, sort_keys=True, default=str).encode(), digest_size=8)
        quiet_s = max(each.spec.replaces.quiet_for.seconds for each in policies if each.spec.replaces is not None)
        yield Trial(tuple(each.full_name for each in policies), name, quiet_s, mark.hexdigest(), spec, why)


def _in_force(policy: EgressPolicy) -> EgressPolicy:
    mode = None if policy.spec.mode is Mode.REPORT else policy.spec.mode
    return policy.model_copy(update={"spec": policy.spec.model_copy(update={"replaces": None, "mode": mode})})


def judged(request: bytes) -> bytes:
    """Make decisions again. The request has compressed specs and recent decisions; the answer has for each spec and
    decision its new end: "" the same, "deny" or "allow".
    """
    specs, decisions = loads(request)
    recent = [RecentDecision(*each) for each in decisions]
    return dumps([asyncio.run(_judged(spec, recent)) for spec in specs])


async def _judged(spec: bytes, recent: list[RecentDecision]) -> list[str]:
    from egressproxy.doors.products import offline
    from egressproxy.operators.explain.decision_diff import flips

    snapshot = offline(at_once(unpacking(zlib.decompress(spec))))
    changes = [at_once(flips(None, snapshot, (each,))) for each in recent]
    return [("allow" if each[0].after.is_allowed else "deny") if each else "" for each in changes]
