"""Translator of one exchange: the request, then its answer or stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from egressproxy.translation.apis import Api

__all__ = ["DEFAULT_MAX_TOKENS", "ResponseTranslator", "TranslatedRequest", "translate_request"]

#: What Anthropic's `max_tokens` becomes when an OpenAI request has no limit: every current model allows it.
DEFAULT_MAX_TOKENS: Final = 8192


@dataclass(frozen=True, slots=True)
class TranslatedRequest:
    """A request in the form of `target`, and what the translator of its answer has to know of the client's."""

    source: Api
    target: Api
    body: bytes = field(repr=False)
    is_stream: bool
    client_model: str
    include_usage: bool
    #: Fields of the client's request that a Response object of OpenAI repeats.
    repeated: dict[str, Any] = field(repr=False)


def translate_request(
    body: bytes, source: Api, target: Api, model: str | None = None, default_max_tokens: int = DEFAULT_MAX_TOKENS
) -> TranslatedRequest:
    """The same request in another API, for `model` if that is given and else for the model that the client named.

    Raises Untranslatable: the body is no JSON, or has a field that one of the two APIs does not know.
    """
    raise NotImplementedError


class ResponseTranslator:
    """The answer to a translated request, whole or streamed, in the form of the client's API. One for each answer."""

    __slots__ = ("request",)

    def __init__(self, request: TranslatedRequest) -> None:
        self.request = request

    def whole(self, status: int, body: bytes) -> tuple[int, bytes]:
        """Status and body for the client. An error keeps its status; a success that cannot be read becomes a 502."""
        raise NotImplementedError

    def feed(self, data: bytes) -> bytes:
        """What the client gets for these bytes of a stream (`text/event-stream`), cut anywhere; often nothing."""
        raise NotImplementedError

    def end(self) -> bytes:
        """What the client gets when the backend's stream is over, or has broken: an error, if it was not complete."""
        raise NotImplementedError

    @property
    def has_failed(self) -> bool:
        """Whether the stream has ended in an error event: nothing more is read, and the backend may be let go."""
        raise NotImplementedError
