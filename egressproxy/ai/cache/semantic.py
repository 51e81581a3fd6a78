"""MeaningIndex: questions of like meaning, by the vectors that an embedding backend makes of them.

A question is the last text of the user; all else of a request (the model, the texts before it, every parameter, the
client) has to be equal. Source of the call: OpenAI, POST /v1/embeddings.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from operator import mul
from typing import Annotated, Any, TypeAlias

from egressproxy.ai.apis.apis import Operation
from egressproxy.ai.apis.message import JsonMessage
from egressproxy.ai.apis.request import AiRequest
from egressproxy.ai.apis.texts import TextKind, TextRole
from egressproxy.filters.calls import CallFailed, FilterCall
from egressproxy.filters.settings import CalledBackendRef, FilterConfig, Within
from egressproxy.model.exchange import Exchange
from egressproxy.model.strict_json import Unreadable, dumps

#: Numbers of a vector. Longer than those of any model today.
MAX_DIMENSIONS = 8192
#: Characters of a question: models take some thousand tokens.
MAX_QUESTION = 32_768

Vector: TypeAlias = "array[float]"


@dataclass(frozen=True, slots=True)
class SemanticConfig(FilterConfig):
    """Where vectors come from, and how alike two questions have to be."""

    backend_ref: CalledBackendRef
    """The embedding backend."""
    model: Annotated[str, Within(min_length=1, max_length=256)]
    """The model that it is asked for."""
    path: Annotated[str, Within(pattern=r"^/[!-~]*$", max_length=1024)] = "/v1/embeddings"
    """Where it is asked, with a POST."""
    threshold: Annotated[float, Within(ge=0.5, le=1.0)] = 0.95
    """The least cosine of two questions with one answer. 1 is equality."""
    max_candidates: Annotated[int, Within(ge=1, le=500)] = 50
    """Questions that one is compared with: the latest of the same client with all else equal."""
    timeout_seconds: Annotated[float, Within(gt=0, le=60)] = 2.0
    """How long the backend may take. Without a vector the request goes on as one that is not known."""


class Embedder:
    """Asks the embedding backend."""

    __slots__ = ("_call", "_config")

    def __init__(self, config: SemanticConfig, calls: Mapping[str, FilterCall]) -> None:
        self._config = config
        self._call = calls.get(config.backend_ref.label)  # None while a configuration is only checked

    async def vector(self, text: str, exchange: Exchange) -> Vector | None:
        """The vector of a text, of length 1; None where none is to be had."""
        if self._call is None or not 0 < len(text) <= MAX_QUESTION:
            return None
        config = self._config
        body = dumps({"model": config.model, "input": text})
        fields = ((b"content-type", b"application/json"),)
        try:
            path = config.path.encode()
            answer = await self._call.request(b"POST", path, fields, body, timeout_s=config.timeout_seconds, x=exchange)
            return _vector(JsonMessage.parse(answer.body)) if answer.status == 200 else None
        except (CallFailed, Unreadable):
            return None


class MeaningIndex:
    """The keys of answers, by what all else of their requests is. Which of them are still kept, the store knows."""

    __slots__ = ("_groups", "_max_candidates", "_max_groups")

    def __init__(self, max_candidates: int, max_groups: int) -> None:
        self._max_candidates = max_candidates
        self._max_groups = max_groups
        self._groups: OrderedDict[bytes, deque[tuple[Vector, bytes]]] = OrderedDict()

    def add(self, group: bytes, vector: Vector, key: bytes) -> None:
        """Remember the key of an answer, by the vector of its question."""
        found = self._groups.setdefault(group, deque(maxlen=self._max_candidates))
        found.append((vector, key))
        self._groups.move_to_end(group)
        if len(self._groups) > self._max_groups:
            self._groups.popitem(last=False)

    def nearest(self, group: bytes, vector: Vector, threshold: float) -> list[bytes]:
        """The keys of answers to questions that are this much alike, the nearest first."""
        found = []
        for other, key in self._groups.get(group, ()):
            if len(other) == len(vector):
                alike = sum(map(mul, other, vector))
                if alike >= threshold:
                    found.append((alike, key))
        return [key for _, key in sorted(found, reverse=True)]


def question_of(body: bytes, operation: Operation | None) -> tuple[str, Any] | None:
    """The last text of the user in this request, and the request without it; None where there is none."""
    request = AiRequest.read(body, operation)
    texts = [part for part in request.texts() if part.role is TextRole.USER and part.kind is TextKind.TEXT]
    if not texts or texts[-1].is_signed:
        return None
    question = texts[-1].text
    request.replace_text(texts[-1].found, "")
    return question, request.value


def _vector(value: Any) -> Vector | None:
    """The vector that an answer holds, of length 1; None where it holds none."""
    try:
        made = array("f", value["data"][0]["embedding"])
    except (TypeError, LookupError, OverflowError):
        return None
    length = sqrt(sum(map(mul, made, made))) if len(made) <= MAX_DIMENSIONS else 0.0
    if not length or not isfinite(length):
        return None
    return array("f", (each / length for each in made))
