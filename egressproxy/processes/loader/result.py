"""What a loading gives: the packed spec, what the admin API shows, and what the next loading has to know of this one.

All of it is octets until somebody asks: ten thousand objects are kept in some hundred kilobytes. Nothing but the spec
holds secrets.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from egressproxy.config.builtin import BUILTIN, BUILTIN_WARNING
from egressproxy.config.reading.problems import ConfigError, Problem, Severity
from egressproxy.ir.gateway import ConfigIR
from egressproxy.ir.packing import pack
from egressproxy.model.certificate import CertificateUse, Validity
from egressproxy.model.pickling import Unpickler, dumps, loads

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = [
    "ListenerAddress",
    "Loaded",
    "Shown",
    "builtin",
    "flat",
    "loaded_of",
    "pack_plain",
    "pack_shown",
    "places",
    "read_answer",
    "read_plain",
    "shown",
    "write_answer",
]

#: Objects in one piece.
OBJECTS = 256
#: Octets that are decompressed at once.
CHUNK = 64 * 1024


class ListenerAddress(NamedTuple):
    """An address (IP literal) and port to bind, and one listener there: its protocol and `gateway/listener`."""

    address: str
    port: int
    protocol: str
    listener: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration that was read and compiled, for processes that did neither.

    `spec` is for `ir.packing`, `shown` for `shown` below, `memory` for the next loading. `findings` are what `check`
    would say.
    `validities` are those of all certificates.
    `broken` are objects (group, kind, namespace, name) with a sentence on a reference that resolved before.
    """

    spec: bytes = field(default=b"", repr=False)
    places: tuple[ListenerAddress, ...] = ()
    objects: int = 0
    shown: bytes = field(default=b"", repr=False)
    findings: tuple[Problem, ...] = ()
    memory: bytes = field(default=b"", repr=False)
    broken: tuple[tuple[tuple[str, str, str, str], str], ...] = ()
    validities: tuple[Validity, ...] = ()


def builtin() -> Loaded:
    """What is served where there is no configuration."""
    told = Problem("", 0, 0, "", "", BUILTIN_WARNING, "", Severity.WARNING, "OpenProxy")
    return Loaded(pack(BUILTIN), places(BUILTIN), findings=(told,))


def places(config: ConfigIR) -> tuple[ListenerAddress, ...]:
    return tuple(
        ListenerAddress(address, listener.port, listener.protocol.value, f"{listener.gateway}/{listener.name}")
        for listener in config.listeners
        for address in listener.addresses
    )


@dataclass(frozen=True, slots=True)
class Shown:
    """One object as the admin API shows it (`kubeapi.state.PublishedObject`): its JSON and what that does not say."""

    group: str
    kind: str
    namespace: str
    name: str
    manifest: bytes
    generation: int
    status: bytes | None
    created: str = ""


def pack_shown(
    objects: Iterable[tuple[tuple[str, str, str, str], dict[str, Any], int, Mapping[str, Any] | None, str]],
) -> bytes:
    """Objects as (key, manifest, generation, status, time of the file "" for none)."""
    entries = (
        (key, _json(manifest), generation, None if status is None else _json(status), created)
        for key, manifest, generation, status, created in objects
    )
    packer = zlib.compressobj(1)
    packed = []
    while piece := list(islice(entries, OBJECTS)):
        packed.append(packer.compress(dumps(piece)))
    return b"".join((*packed, packer.flush()))


def shown(packed: bytes) -> Iterator[Shown]:
    """The objects; decompressed and decoded as they are taken, so that many readers take little memory."""
    if not packed:
        return
    file = io.BufferedReader(_Inflated(packed), CHUNK)
    while file.peek(1):
        for (group, kind, namespace, name), manifest, generation, status, created in Unpickler(file).load():
            yield Shown(group, kind, namespace, name, manifest, generation, status, created)


def pack_plain(value: object) -> bytes:
    """Tuples, dicts, text, numbers and octets, compressed."""
    return zlib.compress(dumps(value), 1)


def read_plain(packed: bytes) -> Any:
    return loads(zlib.decompress(packed))


def write_answer(outcome: Loaded | ConfigError) -> bytes:
    """What the process that loads says in the end."""
    if isinstance(outcome, ConfigError):
        return dumps(("refused", [_fields(problem) for problem in outcome.problems]))
    return dumps(("loaded", flat(outcome)))


def read_answer(data: bytes) -> Loaded:
    """Raises ConfigError where the configuration is refused, ValueError if this is no (whole) answer."""
    try:
        outcome, value = loads(data)
        if outcome == "loaded":
            return loaded_of(value)
        problems = [_problem(each) for each in value]
    except Exception:  # pickle raises nearly everything
        raise ValueError("no answer of a process that loads") from None
    raise ConfigError(problems)


def flat(loaded: Loaded) -> tuple[Any, ...]:
    """As plain values."""
    where = [tuple(place) for place in loaded.places]
    valid = [(each.use.value, *each[1:]) for each in loaded.validities]
    findings = [_fields(each) for each in loaded.findings]
    return (loaded.spec, where, loaded.objects, loaded.shown, findings, loaded.memory, loaded.broken, valid)


def loaded_of(values: Sequence[Any]) -> Loaded:
    """What `flat` made."""
    spec, where, objects, shown, findings, memory, broken, valid = values
    return Loaded(
        spec,
        tuple(ListenerAddress(*place) for place in where),
        objects,
        shown,
        tuple(_problem(each) for each in findings),
        memory,
        broken,
        tuple(Validity(CertificateUse(use), *each) for use, *each in valid),
    )


class _Inflated(io.RawIOBase):
    """What was compressed, as a file. Raises zlib.error where it is not whole."""

    def __init__(self, packed: bytes) -> None:
        self._inflate = zlib.decompressobj()
        self._packed = packed
        self._at = 0
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = b""
        while not data and not self._inflate.eof:
            if not self._rest and self._at < len(self._packed):
                self._rest = self._packed[self._at : self._at + CHUNK]
                self._at += CHUNK
            elif not self._rest:
                raise zlib.error("it ends too early")
            data = self._inflate.decompress(self._rest, len(view))
            self._rest = self._inflate.unconsumed_tail
        view[: len(data)] = data
        return len(data)


def _fields(problem: Problem) -> Sequence[str | int]:
    return (
        problem.file, problem.line, problem.column, problem.object, problem.field_path, problem.message, problem.remedy,
        problem.severity.value, problem.code,
    )  # fmt: skip


def _problem(values: Sequence[Any]) -> Problem:
    file, line, column, name, field_path, message, remedy, severity, code = values
    return Problem(file, line, column, name, field_path, message, remedy, Severity(severity), code)


def _json(value: object) -> bytes:
    # A value that JSON does not know is never shown: it might be one that must not be.
    return json.dumps(value, default=lambda _value: "redacted").encode()
