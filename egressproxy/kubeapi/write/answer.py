"""Writes, evaluated on all objects: the configuration with the accepted writes, and their files.

Each write has its own result. They are compiled together; on an error, the write whose file is at fault is refused, and
the rest is evaluated again. If no write is at fault, the first is compiled alone and the others wait.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from egressproxy.config.compile.interface import Compiled
from egressproxy.config.compile.status.status_warnings import warnings_of
from egressproxy.config.reading.load import ResourceSet, load
from egressproxy.config.reading.problems import ConfigError, Severity
from egressproxy.kubeapi.write.apply import MAX_WARNINGS, AppliedWrite, changed
from egressproxy.kubeapi.write.refusals import refusal_of, unreadable
from egressproxy.kubeapi.write.staging import file_of, stage
from egressproxy.kubeapi.write.write import Outcomes, Result, Verb, Write, WriteRefused, Written, read_writes
from egressproxy.net.listening import why_unusable
from egressproxy.net.tls_contexts.system_roots import mark
from egressproxy.processes.loader.answer import handed_over, previous_of
from egressproxy.processes.loader.compilation import Machine, compiled
from egressproxy.processes.pickling import dumps

#: Seconds after which unstarted writes wait for the next batch: `processes.loader.request.LIMIT_S` is the total limit.
BUDGET_S: Final = 10.0


def answer(request: bytes) -> bytes:
    """Evaluate a request of `write_writes`; returns bytes for `read_outcomes`."""
    asked, writes = read_writes(request)
    state = asked.state
    assert state is not None
    previous = previous_of(asked.memory)
    try:
        resources = load(asked.paths, state)
    except ConfigError as error:
        return dumps(Outcomes([unreadable(error.problems)] * len(writes), None))
    machine = Machine(why_unusable, mark(), experimental=asked.experimental)
    batch = _Batch(resources, asked.bind, machine, previous, state, writes)
    made = batch.worked_out()
    loaded = None if made is None else handed_over(*made, previous, asked.bind, machine)
    return dumps(Outcomes(batch.results, loaded))


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch of writes. `results` are complete after `worked_out`."""

    resources: ResourceSet
    bind: tuple[str, ...]
    machine: Machine
    previous: Compiled | None
    state: Path
    writes: Sequence[Write]
    #: The time (`time.monotonic`) after which unstarted writes wait.
    until: float = field(default_factory=lambda: time.monotonic() + BUDGET_S)
    #: Whether changes are compiled one by one, since the faulty one is unknown.
    is_one_by_one: bool = False
    #: The final results by the number of the write.
    settled: dict[int, Written | WriteRefused] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)

    def worked_out(self) -> tuple[ResourceSet, Compiled] | None:
        """The configuration with all accepted writes, or None without changes."""
        while changes := self._changes():
            resources = list(changes.values())[-1].resources
            made = self._compiled(resources, changes)
            if made is not None and self._stage(changes):
                for number, change in changes.items():
                    self.results[number] = _written(with_warnings(change, made), str(change.file))
                return resources, made
        return None

    def _changes(self) -> dict[int, AppliedWrite]:
        """The changes of the writes, each on top of the earlier ones; fills `results` as if all were accepted."""
        self.results = []
        changes: dict[int, AppliedWrite] = {}
        for number, write in enumerate(self.writes):
            is_over = (self.is_one_by_one and changes) or (any(self.results) and time.monotonic() > self.until)
            if number in self.settled:
                self.results.append(self.settled[number])
            elif is_over:
                self.results.append(None)
            else:
                self.results.append(self._changed(number, write, changes))
        return changes

    def _changed(self, number: int, write: Write, changes: dict[int, AppliedWrite]) -> Result:
        """Evaluate one write, and add its change to `changes`."""
        files = {each.file for each in changes.values()}
        if write.name and file_of(self.state, *write.key) in files:
            return None  # depends on an unfinished earlier write
        current = list(changes.values())[-1].resources if changes else self.resources
        waiting = sum(each.is_new for each in changes.values()), sum(each.size for each in changes.values())
        try:
            change = changed(current, write, self.state, waiting)
            if change.file in files:
                return None
            if change.is_same:
                return _written(change, "")
            if change.write.is_dry_run:  # on the configuration in service, without pending writes
                self.settled[number] = settled = self._tried(write)
                return settled
        except WriteRefused as refused:
            return refused
        except Exception as error:
            self.settled[number] = defect = _defect(error)
            return defect
        changes[number] = change
        return _written(change, str(change.file))

    def _tried(self, write: Write) -> Written | WriteRefused:
        """The result of one write. Raises WriteRefused, and errors of many types."""
        change = changed(self.resources, write, self.state)
        try:
            made = compiled(change.resources, self.bind, self.previous, self.machine)
        except ConfigError as error:
            return refusal_of(error, change.write, change.file)
        return _written(with_warnings(change, made), "")

    def _compiled(self, resources: ResourceSet, changes: dict[int, AppliedWrite]) -> Compiled | None:
        """The compiled configuration, or None after an error: the next attempt has fewer writes."""
        try:
            return compiled(resources, self.bind, self.previous, self.machine)
        except ConfigError as error:
            blamed = _blamed(error, changes)
            if blamed is None:
                self.is_one_by_one = True
            else:
                change = changes[blamed]
                own = ConfigError(each for each in error.problems if each.file in ("", str(change.file)))
                self.settled[blamed] = refusal_of(own if len(changes) > 1 else error, change.write, change.file)
        except Exception as error:
            if len(changes) > 1:
                self.is_one_by_one = True
            else:
                self.settled[next(iter(changes))] = _defect(error)
        return None

    def _stage(self, changes: dict[int, AppliedWrite]) -> bool:
        for number, change in changes.items():
            if change.write.verb is Verb.DELETE:
                continue
            try:
                stage(change.file, change.text)
            except OSError as error:
                message = f"{change.file} cannot be written: {error.strerror}"
                self.settled[number] = WriteRefused(500, "InternalError", message)
                return False
        return True


def _blamed(error: ConfigError, changes: dict[int, AppliedWrite]) -> int | None:
    """The last write whose file has a problem; None if unknown."""
    if len(changes) == 1:
        return next(iter(changes))
    files = {problem.file for problem in error.problems}
    return next((number for number in reversed(changes) if str(changes[number].file) in files), None)


def _defect(error: Exception) -> WriteRefused:
    """The refusal for a bug, with its location alone, since the error's text may contain a Secret's value."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    print(f"internal error: {type(error).__name__} at {frame.filename}:{frame.lineno}", file=sys.stderr)
    message = f"the write cannot be worked out ({type(error).__name__}); the gateway's log says where"
    return WriteRefused(500, "InternalError", message)


def _written(change: AppliedWrite, file: str) -> Written:
    shown = change.resource.to_manifest()  # without a Secret's values
    uid = str(shown["metadata"].get("uid", ""))
    return Written(change.resource.name, uid, json.dumps(shown).encode(), change.is_new, file, change.warnings)


#: The most characters of one warning, which is a response field.
MAX_TEXT: Final = 1000


def with_warnings(change: AppliedWrite, compiled: Compiled) -> AppliedWrite:
    """The change with a warning for each problem of its object in this configuration, except notes."""
    if not change.text:
        return change  # the object is deleted
    warnings = []
    for problem in warnings_of(change.resource, compiled):
        if problem.severity is not Severity.NOTE:
            path = f"{problem.field_path}: " if problem.field_path else ""
            warnings.append(f"{path}{problem.sentence}"[:MAX_TEXT])
    return change._replace(warnings=(*change.warnings, *dict.fromkeys(warnings))[:MAX_WARNINGS])
