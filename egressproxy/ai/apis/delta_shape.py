"""DeltaShape: an event of a stream that differs from an earlier one, which was read as JSON, in its piece of text
alone: told by the bytes around that.
"""

from __future__ import annotations

import re
from typing import Final

from egressproxy.ai.apis.request import estimated_tokens
from egressproxy.ai.apis.stream_events import StreamEvent, read_event
from egressproxy.ai.apis.usage import usage_of
from egressproxy.model.strict_json import Unreadable, loads

#: Members of OpenAI's events that differ and say nothing. In JSON no string has these bytes: its quotes are escaped.
_PADDING: Final = re.compile(rb', ?"(?:obfuscation": ?"[A-Za-z0-9]*+"|sequence_number": ?(?:0|[1-9][0-9]*+))')
#: What stands in a string as it is meant.
_PLAIN: Final = re.compile(rb'[^"\\\x00-\x1f]*+')
#: A text to look for the place with.
_MARK: Final = "mark of an event's text"


class DeltaShape:
    """The bytes around the text, without padding, of an event with one piece of one text, no end and no usage."""

    __slots__ = ("_after", "_around", "_before", "_is_padded")

    def __init__(self, before: bytes, after: bytes, *, is_padded: bool) -> None:
        self._before = before
        self._after = after
        self._around = len(before) + len(after)
        self._is_padded = is_padded

    @classmethod
    def of(cls, payload: bytes, event: StreamEvent) -> DeltaShape | None:
        """The shape of an event that was read from these bytes; None for one that is not so plain."""
        if (
            len(event.deltas) != 1
            or event.wholes
            or event.ends
            or b"\\" in payload
            or usage_of(event.value) is not None
        ):
            return None
        delta = event.deltas[0]
        bare = _PADDING.sub(b"", payload)
        literal = f'"{delta.text}"'.encode("utf-8", "surrogatepass")
        if bare.count(literal) != 1:
            return None
        before, _, after = bare.partition(literal)
        made = cls(before + b'"', b'"' + after, is_padded=len(bare) < len(payload))
        try:  # whether the text is what stands there
            marked = read_event(loads(made._before + _MARK.encode() + made._after))
        except Unreadable:
            return None
        same = [delta._replace(text=_MARK)] == marked.deltas and not marked.wholes and not marked.ends
        return made if same else None

    def tokens_of(self, payload: bytes) -> int:
        """About how many tokens the text of this event has (`estimated_tokens`); -1 if it has another shape."""
        if self._is_padded:
            payload = _PADDING.sub(b"", payload)
        size = len(payload) - self._around
        if size < 0 or not payload.startswith(self._before) or not payload.endswith(self._after):
            return -1
        begin = len(self._before)
        text = payload[begin : begin + size]
        if _PLAIN.fullmatch(text) is None:
            return -1
        if text.isascii():
            return (size + 3) // 4
        try:
            return estimated_tokens(text.decode())
        except UnicodeDecodeError:
            return -1
