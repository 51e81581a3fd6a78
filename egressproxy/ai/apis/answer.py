"""AiAnswer: a whole answer of an AI provider, whichever API it is of, and how it is changed."""

from __future__ import annotations

from typing import Any

from egressproxy.ai.apis.message import JsonMessage, in_object
from egressproxy.ai.apis.splice import Path
from egressproxy.ai.apis.texts import Found
from egressproxy.ai.apis.usage import TokenUsage, usage_of
from egressproxy.model.strict_json import Unreadable

#: Members that repeat a text in pieces: where the text is replaced, they would still tell the old one.
_PIECES = ("logprobs", "logprobsResult", "top_logprobs")
#: Members inside of which names are those of tools: what is called `logprobs` there is text.
_OWN_NAMES = ("arguments", "args", "input", "response", "json", "structuredContent")


class AiAnswer(JsonMessage):
    """A view of the body of one answer."""

    __slots__ = ()

    @classmethod
    def read(cls, body: bytes) -> AiAnswer:
        """A view of this body. Raises Unreadable for what is no JSON with one meaning, object or array."""
        return cls.of(body, cls.parse(body))

    @classmethod
    def of(cls, body: bytes, value: Any) -> AiAnswer:
        """A view of this body, which says this value. Raises Unreadable as `read`."""
        if type(value) is not dict and type(value) is not list:
            raise Unreadable("it is not an object of JSON")
        return cls(body, value)

    @property
    def model(self) -> str:
        """The model that has answered; "" where the answer does not say."""
        return model_of(self.value)

    @property
    def usage(self) -> TokenUsage | None:
        """The tokens that it took; None where the answer does not say."""
        return usage_of(self.value)

    def replace_text(self, found: Found, text: str) -> None:
        """Replace a text. Log probabilities of its tokens, which would tell it, are taken out."""
        super().replace_text(found, text)
        holder, path = self.value, ()
        paths: list[Path] = []
        for step in found.path:
            if step in _OWN_NAMES:
                break
            if type(holder) is dict:
                paths += [(*path, name) for name in _PIECES if holder.get(name)]
            holder, path = holder[step], (*path, step)  # type: ignore[assignment]
        for piece_path in paths:
            self.put(piece_path, [] if type(self.at(piece_path)) is list else None)


def model_of(value: Any) -> str:
    """The model that an answer, or an event of a stream, names; "" where it names none."""
    if type(value) is not dict:
        return ""
    for holder in (value, value.get("response"), value.get("message")):
        for name in ("model", "modelVersion"):
            found = in_object(holder, name)
            if type(found) is str and found:
                return found
    return ""
