"""Warnings of a write: the object is taken, and not served as it is written."""

from __future__ import annotations

from typing import Final

from egressproxy.config.compile.interface import Compiled
from egressproxy.config.compile.status.status_warnings import warnings_of
from egressproxy.config.reading.problems import Severity
from egressproxy.kubeapi.write.apply import MAX_WARNINGS, AppliedWrite

#: Characters of one warning: it is a field of the answer's head.
MAX_TEXT: Final = 1000


def with_warnings(change: AppliedWrite, compiled: Compiled) -> AppliedWrite:
    """The change with a warning for each problem that its object has in this configuration; notes are none."""
    if not change.text:
        return change  # the object is deleted
    told = []
    for problem in warnings_of(change.resource, compiled):
        if problem.severity is not Severity.NOTE:
            place = f"{problem.field_path}: " if problem.field_path else ""
            told.append(f"{place}{problem.sentence}"[:MAX_TEXT])
    return change._replace(warnings=(*change.warnings, *dict.fromkeys(told))[:MAX_WARNINGS])
