"""The audit data of a body as it flows: bytes, SHA-256, content without secrets; models, tools, tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from egressproxy.ai.apis.answer import model_of
from egressproxy.ai.apis.message import READ_AT_ONCE, JsonMessage
from egressproxy.ai.apis.shared import add_usage, answer_view, operation, request_view, view_ahead
from egressproxy.ai.apis.streams import SLICE, StreamReader, framing_of, sliced
from egressproxy.ai.apis.usage import usage_of
from egressproxy.ai.content.entities import Redactor
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import media_type
from egressproxy.model.strict_json import Unreadable
from egressproxy.model.work import Work

#: The longest body in bytes from which models and tools are read.
MAX_JSON: Final = 4 * 1024 * 1024
#: The most names of each kind in a record.
MAX_NAMES: Final = 64
MAX_NAME: Final = 256


@dataclass(slots=True, eq=False, repr=False)
class LateText:
    """The redacted text of a body, computed in the writer's thread instead of on the event loop."""

    _redactor: Redactor
    _content: bytes

    def __str__(self) -> str:
        return self._redactor(self._content.decode("utf-8", "replace"))


class SeenBody:
    """One body of an exchange. `keeps` bytes of the content are kept for a Redactor; 0: none."""

    __slots__ = (
        "_digest", "_framing", "_is_request", "_json", "_keeps", "_kept", "called", "models", "offered", "size",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, *, is_request: bool, hashes: bool, keeps: int) -> None:
        self._digest = hashlib.sha256() if hashes else None
        self._is_request = is_request
        self._kept = bytearray()
        self._keeps = keeps
        self.size = 0
        self.models: list[str] = []
        self.offered: list[str] = []
        self.called: list[str] = []
        fields = (exchange.request if is_request else exchange.response).fields
        kind = media_type(fields)
        framing = None if is_request else framing_of(kind, operation(exchange))
        self._framing = StreamReader(framing) if framing is not None else None
        is_json = self._framing is None and (kind.endswith((b"/json", b"+json")))
        self._json: bytearray | None = bytearray() if is_json else None

    @property
    def held(self) -> int:
        """The number of buffered bytes."""
        return len(self._kept) + (len(self._json) if self._json is not None else 0)

    def takes_long(self, data: bytes, *, is_last: bool) -> bool:
        """Whether this piece is too long to process without a pause."""
        size = len(data) + len(self._json) if self._json is not None and is_last else 0
        return size > READ_AT_ONCE or (self._framing is not None and len(data) > SLICE)

    def feeding(self, exchange: Exchange, data: bytes, *, is_last: bool) -> Work[bytes]:
        """Process a piece of the content as cooperative work; returns the piece."""
        self.size += len(data)
        if self._digest is not None:
            self._digest.update(data)
        if len(self._kept) < self._keeps:
            self._kept += data[: self._keeps - len(self._kept)]
        if self._json is not None:
            self._json += data
            if len(self._json) > MAX_JSON:
                self._json = None
            elif is_last:
                body, self._json = bytes(self._json), None
                yield from self._look_at_json(exchange, body)
        elif self._framing is not None:
            try:
                for piece in sliced(data):
                    for event in self._framing.feed(piece):
                        add_usage(exchange, usage_of(event.value))
                        self._add(self.models, (model_of(event.value),))
                        yield from self._look_at_calls(JsonMessage(b"", event.value))
                    yield
            except Unreadable:
                self._framing = None
        return data

    def _look_at_json(self, exchange: Exchange, body: bytes) -> Work[None]:
        try:
            yield from view_ahead(exchange, body, is_request=self._is_request)
            if self._is_request:
                request = request_view(exchange, body)
                self._add(self.models, request.models)
                self._add(self.offered, (tool.name for tool in request.tools))
                yield from self._look_at_calls(request)
            else:
                answer = answer_view(exchange, body)
                add_usage(exchange, answer.usage)
                self._add(self.models, (answer.model,))
                yield from self._look_at_calls(answer)
        except Unreadable:
            pass  # not a provider's message: the hash identifies the body

    def _look_at_calls(self, message: JsonMessage) -> Work[None]:
        self._add(self.called, (call.name for call in (yield from message.finding_calls())))

    @staticmethod
    def _add(names: list[str], more: Iterable[str]) -> None:
        for name in more:
            if name and len(names) < MAX_NAMES and (cut := name[:MAX_NAME]) not in names:
                names.append(cut)

    def to_dict(self, redactor: Redactor | None) -> dict[str, Any]:
        """The entry of this body in the record."""
        made: dict[str, Any] = {"bytes": self.size}
        if self._digest is not None:
            made["sha256"] = self._digest.hexdigest()
        if self._keeps and redactor is not None:
            made["content"] = LateText(redactor, bytes(self._kept))
            if self.size > len(self._kept):
                made["is_cut"] = True
        return made
