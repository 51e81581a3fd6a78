"""CompiledConfig: the result of a load: the packed spec, the objects for the admin API, and facts for the next load.

All parts stay packed until they are needed: ten thousand objects take some hundred kilobytes. Only the spec and the
memory hold secrets.
"""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, NamedTuple

from egressproxy.config.builtin import open_proxy, open_proxy_warning
from egressproxy.config.otlp_environment import otlp_settings
from egressproxy.config.reading.problems import ConfigError, Problem, Severity
from egressproxy.ir.gateway import ConfigIR
from egressproxy.model.certificate import CertificateUse, Validity
from egressproxy.model.encoding import line
from egressproxy.model.published_object import Key, PublishedObject
from egressproxy.processes.packing import pack
from egressproxy.processes.pickling import Unpickler, classes, dumps, loads

#: The most objects in one packed piece.
OBJECTS = 256


class ListenerAddress(NamedTuple):
    """An address (IP literal) and port to bind, and one listener there: its protocol and `gateway/listener`."""

    address: str
    port: int
    protocol: str
    listener: str


class Trial(NamedTuple):
    """Policies on trial ("namespace/name") in place of one in force; `mark` changes with them. `spec` is the packed
    configuration with them, compressed, or empty where that cannot be compiled: `why` then.
    """

    policies: tuple[str, ...]
    replaced: str
    quiet_s: float
    mark: str
    spec: bytes
    why: str = ""

    def __repr__(self) -> str:  # the spec has secrets
        return f"Trial({', '.join(self.policies)} in place of {self.replaced})"


@dataclass(frozen=True, slots=True)
class CompiledConfig:
    """A compiled configuration, for processes that neither read nor compile.

    `spec` is for `processes.packing`, `shown` for `shown` below, `memory` for the next load, and `declared`, the JSON
    of FilterTypes' types, for the catalogue. `findings` are the messages of `check`, and `validities` those of all
    certificates. `broken` are objects ("Kind namespace/name") with a sentence on a newly broken reference. `wanted` are
    the keys of lookups of kinds that are read by reference (`ResourceSet.wanted`). `filter_places` are the beginnings
    of messages about declared filters, with `file:line:column`. `trials` are of policies on trial.
    """

    spec: bytes = field(default=b"", repr=False)
    places: tuple[ListenerAddress, ...] = ()
    objects: int = 0
    shown: bytes = field(default=b"", repr=False)
    findings: tuple[Problem, ...] = ()
    memory: bytes = field(default=b"", repr=False)
    broken: tuple[tuple[str, str], ...] = ()
    validities: tuple[Validity, ...] = ()
    declared: bytes = b"{}"
    wanted: frozenset[Key] = frozenset()
    filter_places: tuple[tuple[str, str], ...] = ()
    trials: tuple[Trial, ...] = field(default=(), repr=False)

    def with_places(self, message: str) -> str:
        """The message of a refused configuration; a line about a filter begins with file and line of its manifest."""
        lines = []
        for each in message.split("\n"):
            place = next((place for named, place in self.filter_places if each.startswith(named)), "")
            lines.append(f"{place}: {each}" if place else each)
        return "\n".join(lines)


#: All classes in a `CompiledConfig`.
LOADED: Final = (CertificateUse, ListenerAddress, CompiledConfig, Problem, Severity, Trial, Validity)


def builtin(port: int) -> CompiledConfig:
    """The default gateway without a configuration, on this port."""
    warning = Problem("", 0, 0, "", "", open_proxy_warning(port), "", Severity.WARNING, "OpenProxy")
    config = open_proxy(port)
    found = otlp_settings(os.environ)
    listeners = tuple(replace(each, tracing=found.traces) for each in config.listeners)
    config = replace(config, listeners=listeners, collectors=found.collectors)
    return CompiledConfig(pack(config), places(config), findings=(warning,))


def places(config: ConfigIR) -> tuple[ListenerAddress, ...]:
    """The addresses of all listeners of this configuration."""
    return tuple(
        ListenerAddress(address, listener.port, listener.protocol.value, f"{listener.gateway}/{listener.name}")
        for listener in config.listeners
        for address in listener.addresses
    )


def pack_shown(
    objects: Iterable[tuple[Key, dict[str, Any], int, Mapping[str, Any] | None, str]],
) -> bytes:
    """Objects as (key, manifest, generation, status, time of the file "" for none)."""
    return pack_published(
        PublishedObject(*key, line(manifest), generation, None if status is None else line(status), created)
        for key, manifest, generation, status, created in objects
    )


def pack_published(objects: Iterable[PublishedObject]) -> bytes:
    """The objects for `shown`."""
    entries = (
        ((each.group, each.kind, each.namespace, each.name), each.manifest, each.generation, each.status, each.created)
        for each in objects
    )
    packed = io.BytesIO()
    # Without a time: the same objects are the same bytes.
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as file:
        while piece := list(islice(entries, OBJECTS)):
            file.write(dumps(piece))
    return packed.getvalue()


def shown(packed: bytes) -> Iterator[PublishedObject]:
    """The objects, decoded as they are taken, to save memory. Raises zlib.error or EOFError if it is not whole."""
    file = gzip.GzipFile(fileobj=io.BytesIO(packed))
    while file.peek(1):
        for (group, kind, namespace, name), manifest, generation, status, created in Unpickler(file).load():
            yield PublishedObject(group, kind, namespace, name, manifest, generation, status, created)


def write_answer(outcome: CompiledConfig | ConfigError) -> bytes:
    """The loader's answer, for `read_answer`."""
    return dumps(outcome.problems if isinstance(outcome, ConfigError) else outcome)


def read_answer(data: bytes) -> CompiledConfig:
    """The result of `write_answer`. Raises ConfigError for a refusal, ValueError for invalid or incomplete bytes."""
    match read_values(data, LOADED):
        case CompiledConfig() as loaded:
            return loaded
        case (Problem(), *_) as problems:
            raise ConfigError(problems)
    raise ValueError("no answer of a process that loads")


def read_values(data: bytes, known: Iterable[type]) -> Any:
    """The values given to `dumps`, of built-in types and these classes; None for invalid or incomplete bytes."""
    try:
        return loads(data, classes(known), "part of an answer")
    except Exception:  # pickle raises nearly everything
        return None
