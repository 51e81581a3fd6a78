"""The work of the loader process: one request in, one answer out."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator

from egressproxy.config.compile.interface import CATALOG, Compiled, scope_of
from egressproxy.config.compile.status.conditions import broken_references
from egressproxy.config.compile.status.published_status import published_status
from egressproxy.config.compile.status.status_warnings import all_warnings
from egressproxy.config.reading.load import ResourceSet, read_all
from egressproxy.config.reading.problems import ConfigError
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.ir.gateway import ConfigIR
from egressproxy.net.listening import why_unusable
from egressproxy.net.tls_contexts.system_roots import mark
from egressproxy.processes.loader.compilation import ELSEWHERE, Machine, compiled
from egressproxy.processes.loader.request import LoadRequest, read_request
from egressproxy.processes.loader.result import CompiledConfig, Trial, pack_shown, places, write_answer
from egressproxy.processes.packing import pack
from egressproxy.processes.pickling import dumps, loads


def answer(request: bytes) -> bytes:
    """Load and compile the sources of a `LoadRequest`: a `CompiledConfig`, or a ConfigError with every problem."""
    asked = read_request(request)
    previous = previous_of(asked.memory)
    machine = machine_of(asked)
    try:
        resources = read_all(asked.paths, asked.state, asked.cluster)
        made = compiled(resources, asked.bind, previous, machine)
    except ConfigError as error:
        return write_answer(error)
    return write_answer(handed_over(resources, made, previous, asked.bind, machine))


def machine_of(asked: LoadRequest) -> Machine:
    """The machine that this request describes."""
    unbound = {(address, port): why for address, port, why in asked.unbound}
    return Machine(why_unusable, mark(), unbound, asked.gateway_namespaces, asked.experimental, asked.has_service)


def handed_over(
    resources: ResourceSet,
    made: Compiled,
    previous: Compiled | None,
    bind: tuple[str, ...] = ("127.0.0.1",),
    machine: Machine = ELSEWHERE,
) -> CompiledConfig:
    """A compiled configuration for the serving processes, which neither read nor compile. `bind` and `machine` are
    those of the compilation.
    """
    statuses, generations = made.statuses, made.generations
    spec, written, created, materials = made.spec, made.written, made.created, made.materials
    objects = (
        (
            key,
            each.to_manifest(),
            generations.get(key, 1),
            published_status(each, statuses.get(key), made.users.get(key, ())),
            created.get(key, ""),
        )
        for key, each in resources.by_key.items()
        if key
        != ("", "ConfigMap", *CATALOG)  # as the gateway has written it into the cluster: it is shown as it is now
    )
    return CompiledConfig(
        spec=pack(spec),
        places=places(spec),
        objects=len(resources.objects),
        shown=pack_shown(objects),
        declared=json.dumps(made.filter_types).encode(),
        findings=tuple(all_warnings(resources, made)),
        memory=zlib.compress(dumps((spec.generation, statuses, generations, written, created, materials)), 1),
        broken=tuple((scope_of(key), why) for key, why in broken_references(made, previous)) if previous else (),
        validities=made.validities,
        wanted=frozenset(resources.wanted),
        filter_places=tuple(_filter_places(resources)),
        trials=_trials(resources, bind, machine),
    )


def _filter_places(resources: ResourceSet) -> Iterator[tuple[str, str]]:
    """How a message about a declared filter begins (`filters.instances`), and where its entry is."""
    for resource in resources.objects:
        for field in ("extensions", "processors"):
            for index, extension in enumerate(getattr(getattr(resource, "spec", None), field, ())):
                line, column = resource.origin.location_of(f"spec.{field}[{index}]")
                if line:
                    named = f"{resource}: filter {getattr(extension, 'label', extension.name)} ("
                    yield named, f"{resource.origin.file}:{line}:{column}"


def _trials(resources: ResourceSet, bind: tuple[str, ...], machine: Machine) -> tuple[Trial, ...]:
    if all(each.spec.replaces is None for each in resources.of(EgressPolicy)):
        return ()
    from egressproxy.processes.loader.trials import trials

    return tuple(trials(resources, bind, machine))


def previous_of(memory: bytes) -> Compiled | None:
    """The facts about the configuration in service for a compilation; None at the first start. Raises errors of many
    types for invalid bytes.
    """
    if not memory:
        return None
    generation, statuses, generations, written, created, materials = loads(zlib.decompress(memory))
    return Compiled(
        ConfigIR((), generation), statuses, generations, written=written, created=created, materials=materials
    )
