"""Presidio: an analyzer service (Microsoft Presidio), asked over HTTP for what a text says of people.

Source: the OpenAPI description of Presidio's analyzer, POST /analyze.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from egressproxy.ai.content.pii_config import PresidioEngine
from egressproxy.ai.content.spans import Span
from egressproxy.filters.calls import FilterCall
from egressproxy.model.exchange import Exchange
from egressproxy.model.strict_json import dumps, loads

_FIELDS = ((b"content-type", b"application/json"), (b"accept", b"application/json"))


class PresidioFailed(Exception):
    """The analyzer has answered with something that is no result. The filter has failed, and `failOpen` decides."""


class Presidio:
    """Asks one analyzer. It sees each text of a request as the client wrote it."""

    __slots__ = ("_call", "_entities", "_path", "_settings", "_timeout_s")

    def __init__(self, config: PresidioEngine, call: FilterCall | None) -> None:
        self._call = call
        self._path = config.path.encode()
        self._timeout_s = config.timeout
        self._entities = frozenset(entity.name for entity in config.entities)
        self._settings: Mapping[str, Any] = {
            "language": config.language,
            "entities": sorted(self._entities),
            "score_threshold": config.score_threshold,
        }

    async def spans(self, text: str, exchange: Exchange) -> list[Span]:
        """What the analyzer finds in a text. Raises CallFailed, and PresidioFailed for an answer that is no result."""
        if self._call is None:
            raise PresidioFailed("the analyzer's backend is not there")
        body = dumps({"text": text, **self._settings})
        answer = await self._call.request(b"POST", self._path, _FIELDS, body, timeout_s=self._timeout_s, x=exchange)
        if answer.status != 200:
            raise PresidioFailed(f"the analyzer {self._call.backend} has answered with status {answer.status}")
        try:
            return [self._span(each, len(text)) for each in loads(answer.body) if each["entity_type"] in self._entities]
        except (ValueError, TypeError, KeyError):
            raise PresidioFailed(f"the answer of the analyzer {self._call.backend} is no result of /analyze") from None

    def _span(self, found: Mapping[str, Any], length: int) -> Span:
        start, end = found["start"], found["end"]
        if not (type(start) is int and type(end) is int and 0 <= start < end <= length):
            raise ValueError
        return Span(start, end, found["entity_type"], start)
