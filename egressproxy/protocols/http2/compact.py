"""What h2 keeps of each connection, in less memory: settings, and how the last streams were closed."""

from __future__ import annotations

from array import array

from h2.settings import SettingCodes, Settings
from h2.stream import StreamClosedBy

#: Whatever else a peer sets means nothing to us (RFC 9113 section 6.5.2), and h2 would keep all 65,536 of them.
KNOWN_SETTINGS = frozenset(int(code) for code in SettingCodes)

#: Streams whose end is remembered: what comes late is for one of the last few.
MAX_CLOSED = 256
_ENDS: tuple[StreamClosedBy | None, ...] = (None, *StreamClosedBy)
_NUMBERS = {end: number for number, end in enumerate(_ENDS)}


class _Values(list[int]):
    """A setting's value, and those that are not acknowledged: a deque for each would take 600 bytes more."""

    __slots__ = ()

    def popleft(self) -> int:
        return self.pop(0)


class CompactSettings(Settings):
    """h2's, with lists in the place of its deques."""

    def __init__(self, *, client: bool, initial_values: dict[int, int] | None = None) -> None:
        super().__init__(client=client, initial_values=initial_values)  # type: ignore[arg-type]
        for key, values in self._settings.items():
            self._settings[key] = _Values(values)  # type: ignore[assignment]

    def __setitem__(self, key: SettingCodes | int, value: int) -> None:
        if key not in self._settings:
            self._settings[key] = _Values([None])  # type: ignore[list-item, assignment]  # as h2 has it
        super().__setitem__(key, value)


class ClosedStreams:
    """How the last streams were closed, by number: in the place of h2's dictionary."""

    __slots__ = ("_at", "_ring")

    def __init__(self) -> None:
        self._ring = array("Q")  # numbers, and ends in the lowest three bits
        self._at = 0  # the oldest, when there are MAX_CLOSED

    def __setitem__(self, number: int, end: StreamClosedBy | None) -> None:
        entry = number << 3 | _NUMBERS[end]
        if len(self._ring) < MAX_CLOSED:
            self._ring.append(entry)
        else:
            self._ring[self._at] = entry
            self._at = (self._at + 1) % MAX_CLOSED

    def __contains__(self, number: int) -> bool:
        return any(entry >> 3 == number for entry in self._ring)

    def __getitem__(self, number: int) -> StreamClosedBy | None:
        """Raises KeyError for one that is not remembered."""
        for entry in self._ring:
            if entry >> 3 == number:
                return _ENDS[entry & 7]
        raise KeyError(number)

    def __len__(self) -> int:
        return len(self._ring)
