"""What the process that loads does: one request in, one answer out."""

from __future__ import annotations

from pathlib import Path

from egressproxy.config.compile import Compiled
from egressproxy.config.compile.status.broken_references import broken_references
from egressproxy.config.compile.status.status_warnings import all_warnings
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.reading.problems import ConfigError
from egressproxy.ir.gateway import ConfigIR
from egressproxy.ir.packing import pack
from egressproxy.model.api_write import Write
from egressproxy.model.secret_source import ConfigSource
from egressproxy.net.listening import why_unusable
from egressproxy.processes.loader.compilation import loaded
from egressproxy.processes.loader.result import Loaded, pack_plain, pack_shown, places, read_plain, write_answer

__all__ = ["answer"]


def answer(
    paths: tuple[ConfigSource, ...],
    bind: tuple[str, ...],
    memory: bytes,
    state: Path | None = None,
    writes: tuple[Write, ...] = (),
) -> bytes:
    """Load and compile. `memory` is that of the configuration in service, empty at the first start.

    `state` is the folder of what was written through the API; `writes` are more of these, whose answer are Outcomes.
    """
    previous = _previous(memory)
    if writes:
        from egressproxy.kubeapi.write.answer import written  # what a mere loading does not need

        assert state is not None
        return written(paths, bind, previous, state, writes, _handed_over)
    try:
        resources, compiled = loaded(paths, bind, previous, why_unusable, state)
    except ConfigError as error:
        return write_answer(error)
    return write_answer(_handed_over(resources, compiled, previous))


def _handed_over(resources: ResourceSet, compiled: Compiled, previous: Compiled | None) -> Loaded:
    statuses, generations = compiled.statuses, compiled.generations
    return Loaded(
        spec=pack(compiled.spec),
        places=places(compiled.spec),
        objects=len(resources.objects),
        shown=pack_shown(
            (
                each.key,
                each.to_manifest(),
                generations.get(each.key, 1),
                statuses.get(each.key),
                compiled.created.get(each.key, ""),
            )
            for each in resources.objects
        ),
        findings=tuple(all_warnings(resources, compiled)),
        memory=pack_plain((compiled.spec.generation, statuses, generations, compiled.written, compiled.created)),
        broken=tuple(broken_references(compiled, previous)) if previous is not None else (),
        validities=compiled.validities,
    )


def _previous(memory: bytes) -> Compiled | None:
    """As much of the configuration in service as the next one wants to know."""
    if not memory:
        return None
    generation, statuses, generations, written, created = read_plain(memory)
    return Compiled(ConfigIR((), generation), statuses, generations, written=written, created=created)
