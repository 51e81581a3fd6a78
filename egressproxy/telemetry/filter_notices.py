"""FilterNotices: what a filter tells an operator, as Events at the object that declares it."""

from __future__ import annotations

import re
from typing import Final

from egressproxy.telemetry.notices import EventType, Notices

#: The most reasons of one filter: each is a label in metrics.
MAX_REASONS: Final = 20
_REASON: Final = re.compile(r"[A-Z][A-Za-z0-9]{1,63}")


class FilterNotices:
    """The Events of one filter. Repeated ones are counted together."""

    __slots__ = ("_name", "_notices", "_reasons", "_source")

    def __init__(self, notices: Notices, name: str, source: str) -> None:
        self._notices = notices
        self._name = name
        self._source = source
        self._reasons: set[str] = set()

    def warning(self, reason: str, message: str) -> None:
        """Something that an operator should look at. `reason` is one UpperCamelCase word of a few of this filter's;
        `message` names objects and numbers, never a secret nor what a request or response has said. Raises ValueError
        for a reason that is no such word, or the filter's twenty-first.
        """
        self._tell(reason, message, EventType.WARNING)

    def normal(self, reason: str, message: str) -> None:
        """Something that is as it should be, again. As `warning`."""
        self._tell(reason, message, EventType.NORMAL)

    def _tell(self, reason: str, message: str, severity: str) -> None:
        if reason not in self._reasons:
            if not _REASON.fullmatch(reason):
                raise ValueError(f"{reason!r} is no reason of an Event: one UpperCamelCase word is")
            if len(self._reasons) >= MAX_REASONS:
                raise ValueError(f"reason {reason}: a filter has {MAX_REASONS} reasons at most")
            self._reasons.add(reason)
        self._notices.filter_told(self._source, self._name, reason, message, severity)

    def __repr__(self) -> str:
        return f"FilterNotices({self._name})"
