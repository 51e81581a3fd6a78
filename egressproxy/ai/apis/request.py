"""AiRequest: a request to an AI provider, read and changed in the form of any API."""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, Final

from egressproxy.ai.apis.apis import Api, Operation
from egressproxy.ai.apis.images import ImagePart, find_images
from egressproxy.ai.apis.member_names import AI_REQUEST
from egressproxy.ai.apis.message import READ_AT_ONCE, JsonMessage, in_object
from egressproxy.ai.apis.offered_tools import OfferedTool, offered_tools
from egressproxy.ai.apis.splice import Path
from egressproxy.ai.apis.texts import found_texts
from egressproxy.model.strict_json import OtherSpelling, Unreadable, dumps, loads_strictly
from egressproxy.model.work import Work, at_once

#: Members of a request whose string is a text as it stands.
_INSTRUCTIONS: Final = frozenset(("system", "instructions", "prompt"))
#: Of a conversation in plain text: what is looked at by itself, types of what is no text, and members of messages.
_COUNTED: Final = frozenset(("model", "messages"))
_NUMBERS: Final = frozenset((int, float, bool, type(None)))
_ROLE: Final = itemgetter("role")
_CONTENT: Final = itemgetter("content")
#: What `map` calls without a step of ours for each text: a quarter below 0, rounded down.
_MINUS_A_QUARTER: Final = (-4).__rfloordiv__


class _Places:
    """Where a value may stand in a request: paths, and by the name with which they begin what follows it."""

    __slots__ = ("inner", "paths")

    def __init__(self, *paths: tuple[str, ...]) -> None:
        self.paths = paths
        self.inner = {path[0]: [each[1:] for each in paths if each[0] == path[0]] for path in paths}


#: The members with the output limit.
_LIMITS: Final = _Places(
    ("max_completion_tokens",),
    ("max_tokens",),
    ("max_output_tokens",),
    ("generationConfig", "maxOutputTokens"),
    ("generationConfig", "max_output_tokens"),
    ("generation_config", "max_output_tokens"),
    ("generation_config", "maxOutputTokens"),
    ("inferenceConfig", "maxTokens"),
    ("inferenceConfig", "max_new_tokens"),
    ("max_gen_len",),
    ("max_tokens_to_sample",),
    ("textGenerationConfig", "maxTokenCount"),
)
_TEMPERATURES: Final = _Places(
    ("temperature",),
    ("generationConfig", "temperature"),
    ("generation_config", "temperature"),
    ("inferenceConfig", "temperature"),
    ("textGenerationConfig", "temperature"),
)
#: The members with the number of completions.
_CHOICES: Final = _Places(
    ("n",),
    ("best_of",),
    ("generationConfig", "candidateCount"),
    ("generationConfig", "candidate_count"),
    ("generation_config", "candidateCount"),
    ("generation_config", "candidate_count"),
)
_PLAIN_LIMITS: Final = frozenset(path[0] for path in _LIMITS.paths if len(path) == 1)
_PLAIN_CHOICES: Final = frozenset(path[0] for path in _CHOICES.paths if len(path) == 1)
#: The members with fallback models.
_OTHER_MODELS: Final = ("models", "fallbacks")
#: Strings that lenient readers accept as false.
_FALSE: Final = frozenset(("false", "f", "no", "n", "off", "0"))
#: A number above any server's limit of tokens or completions.
_UNBOUNDED: Final = 2**40
#: Arrays that are looked at in one go, since no request has many elements in them; and the most elements of each.
_LISTED: Final = ("tools", "functions", "models", "fallbacks", "mcp_servers")
MAX_LISTED: Final = 4000
#: Where an API has them, for requests that have none.
_LIMIT_OF: Final[dict[Api, Path]] = {
    Api.OPENAI_CHAT: ("max_completion_tokens",),
    Api.OPENAI_RESPONSES: ("max_output_tokens",),
    Api.GEMINI: ("generationConfig", "maxOutputTokens"),
    Api.BEDROCK_CONVERSE: ("inferenceConfig", "maxTokens"),
}
_TEMPERATURE_OF: Final[dict[Api, Path]] = {
    Api.GEMINI: ("generationConfig", "temperature"),
    Api.BEDROCK_CONVERSE: ("inferenceConfig", "temperature"),
}
#: Tokens of an image: providers take from 85 to some 1600, by its size in pixels, which is not looked at.
_IMAGE_TOKENS: Final = 1000
#: Tokens of a message beside its text.
_MESSAGE_TOKENS: Final = 4


def estimated_tokens(text: str) -> int:
    """About how many tokens a text has: a quarter of its ASCII characters, and a third of the bytes of all others.

    Beside the o200k vocabulary (gpt-tokenizer 4) that is 21 percent too many for English prose, 3 too few to 4 too many
    for technical text and code, 16 too many for JSON with blanks and 20 too few without; 18 to 23 too many for Chinese
    and Japanese, 43 for German, 62 for Arabic, 133 for Russian (29 in cl100k), 223 for Hindi. Strings without meaning
    have more tokens than it says: numbers 45 percent, hexadecimal 55, base64 63. It is no tokenizer's number.
    """
    if text.isascii():
        return (len(text) + 3) // 4
    ascii_ = len(text.encode("ascii", "ignore"))
    return (ascii_ + 3) // 4 + (len(text.encode("utf-8", "surrogatepass")) - ascii_ + 2) // 3


class AiRequest(JsonMessage):
    """A view of the body of one request. `operation` is that of its path; None if unknown."""

    __slots__ = ("operation",)

    def __init__(self, source: bytes, value: dict[str, Any], operation: Operation | None) -> None:
        self.source = source  # set here, without JsonMessage's __init__: faster
        self.value = value
        self.operation = operation
        self._changed = {}
        self._inner = {}

    @classmethod
    def read(cls, body: bytes, operation: Operation | None = None) -> AiRequest:
        """A view of this body. Raises Unreadable for a value that is no object, or ambiguous: a duplicate name, or
        (OtherSpelling) a name in another case, which some servers accept.
        """
        return cls.of(body, loads_strictly(body) if len(body) <= READ_AT_ONCE else cls.parse(body), operation)

    @classmethod
    def of(cls, body: bytes, value: Any, operation: Operation | None = None) -> AiRequest:
        """A view of this body with its parsed value. Raises Unreadable as `read`."""
        if type(value) is not dict:
            raise Unreadable("it is not an object of JSON")
        for key in _LISTED:
            listed = value.get(key)
            if type(listed) is list and len(listed) > MAX_LISTED:
                raise Unreadable(f"it has more than {MAX_LISTED} elements in `{key}`")
        fault = AI_REQUEST.fault(value)
        if fault:
            raise OtherSpelling(fault)
        return cls(body, value, operation)

    @property
    def api(self) -> Api | None:
        """The API by the path, else by the form of the body."""
        if self.operation is not None:
            return self.operation.api
        value = self.value
        if "contents" in value:
            return Api.GEMINI
        if "messages" in value:
            return Api.ANTHROPIC if "max_tokens" in value and "system" in value else Api.OPENAI_CHAT
        return Api.OPENAI_RESPONSES if "input" in value else Api.OPENAI_COMPLETIONS if "prompt" in value else None

    # --- what is asked for -----------------------------------------------------------------------------------------
    @property
    def model(self) -> str:
        """The model; "" where neither path nor body names one. The path counts first: such APIs read no other."""
        asked, said = self.operation, self.value.get("model")
        if asked is not None and not asked.model and asked.api is not Api.GEMINI and type(said) is str and said:
            return said  # nearly all requests
        return next(iter(self.models), "")

    @property
    def models(self) -> tuple[str, ...]:
        """All model names: in the path, in the body, and fallbacks (`models` of OpenRouter, `fallbacks` of LiteLLM),
        since servers differ. Without Gemini's `models/`.
        """
        in_path = self.operation.model if self.operation is not None else ""
        names: list[Any] = [in_path, self.value.get("model")]
        for key in _OTHER_MODELS:
            others = self.value.get(key)
            if others is not None:
                names += map(_name_of_model, others if type(others) is list else (others,))
        is_gemini = self.api is Api.GEMINI
        said = (name.removeprefix("models/") if is_gemini else name for name in names if type(name) is str and name)
        return tuple(dict.fromkeys(said))

    @property
    def has_model_in_path(self) -> bool:
        """Whether the path names the model, so that `Operation.with_model` changes it."""
        return self.operation is not None and bool(self.operation.model)

    def set_model(self, model: str) -> None:
        """Name another model in the body, unless only the path names one. The path: see `shared.ask_for_model`."""
        if not self.has_model_in_path or "model" in self.value:
            self.put(("model",), model)
        for key in _OTHER_MODELS:
            if key in self.value:
                self.put((key,), [model])

    @property
    def is_stream(self) -> bool:
        """Whether the request asks for a stream."""
        if self.operation is not None and self.operation.is_stream is not None:
            return self.operation.is_stream
        said = self.value.get("stream")
        return bool(said) and not (type(said) is str and said.lower() in _FALSE)

    @property
    def max_output_tokens(self) -> int | None:
        """The largest output limit in tokens; None without one. A value that is no integer counts as unbounded, since
        some servers accept `"9000"`.
        """
        said = self._said(_LIMITS)
        return max(map(_whole, said)) if said else None

    def set_max_output_tokens(self, limit: int) -> None:
        """Set every output limit in the request, or else the limit of this API."""
        self._set(_LIMITS, limit, _LIMIT_OF.get(self.api or Api.OPENAI_CHAT, ("max_tokens",)))

    @property
    def temperature(self) -> float | None:
        """The largest temperature, or None. A value that is no number counts as infinite."""
        found = self._said(_TEMPERATURES)
        return max((value if _is_number(value) else math.inf for value in found), default=None)

    def set_temperature(self, temperature: float) -> None:
        """Set every temperature in the request, or else the temperature of this API."""
        self._set(_TEMPERATURES, temperature, _TEMPERATURE_OF.get(self.api or Api.OPENAI_CHAT, ("temperature",)))

    @property
    def choices(self) -> int:
        """The number of requested completions; each takes tokens."""
        said = self._said(_CHOICES)
        return max(1, *map(_whole, said)) if said else 1

    def _said(self, places: _Places) -> list[Any]:
        """The values at these places, in any order."""
        value, said = self.value, []
        for root in places.inner.keys() & value.keys():
            for names in places.inner[root]:
                found = in_object(value[root], *names)
                if found is not None:
                    said.append(found)
        return said

    def _set(self, places: _Places, value: float, otherwise: Path) -> None:
        written = [path for path in places.paths if in_object(self.value, *path) is not None]
        for path in written or (otherwise,):
            self.put(path, value)

    # --- tools and images ------------------------------------------------------------------------------------------
    @property
    def tools(self) -> list[OfferedTool]:
        """The tools that the model may call."""
        return offered_tools(self.value)

    def withhold_tools(self, tools: Iterable[OfferedTool]) -> None:
        """Remove these tools from the request, under all of their names."""
        gone = {tool.path for tool in tools}
        members = {path for path in gone if type(path[-1]) is str}
        for root in {path[:-1] for path in members}:  # tools of Gemini that are members of one object
            if not root:
                continue
            kept = {key: each for key, each in self.at(root).items() if (*root, key) not in members}
            self.put(root, kept if kept or root[-1] != "tools" else [])
            if not kept and type(root[-1]) is int:
                gone.add(root)
        for path in members:
            if len(path) == 1:
                self.put(path, [])  # one alone
        levels: dict[int, dict[Path, set[str | int]]] = {}  # by their length: arrays, and what of each goes
        for path in gone - members:
            levels.setdefault(len(path), {}).setdefault(path[:-1], set()).add(path[-1])
        while levels:
            length = max(levels)  # what is inside first
            for root, indices in levels.pop(length).items():
                left = [each for index, each in enumerate(self.at(root)) if index not in indices]
                if not left and root[-1] == "tools" and len(root) > 1 and type(root[-2]) is int:
                    outer = levels.setdefault(length - 2, {})  # a namespace or an item of nothing
                    outer.setdefault(root[:-2], set()).add(root[-2])
                else:
                    self.put(root, left)

    @property
    def images(self) -> list[ImagePart]:
        """The images of the request, in any place."""
        found: list[ImagePart] = []
        source = self.source
        # What holds an image is called that, or inlineData; an escape may hide it.
        if self.is_changed or b"image" in source or b"nline" in source or b"\\u" in source:
            find_images(self.value, found)
        return found

    # --- tokens ----------------------------------------------------------------------------------------------------
    def estimated_input_tokens(self) -> Work[int]:
        """The estimated tokens of texts, tools, messages and images, as cooperative work. See `estimated_tokens` for
        the error.
        """
        plain = plain_chat(self.value)
        if plain is not None:
            return plain[0]
        total = 0
        for found in found_texts(self.value):
            total += estimated_tokens(found.text)
            yield
        for key in ("messages", "input", "contents"):
            messages = self.value.get(key)
            if type(messages) is list:
                total += _MESSAGE_TOKENS * len(messages)
        may_have_images = b"mage" in self.source or b"\\u" in self.source
        return total + _IMAGE_TOKENS * len(self.images) if may_have_images else total

    def asked_tokens(self) -> tuple[int, int | None, int]:
        """`estimated_input_tokens`, `max_output_tokens` and `choices`."""
        return plain_chat(self.value) or at_once(self.asking_tokens())

    def asking_tokens(self) -> Work[tuple[int, int | None, int]]:
        """`asked_tokens` in turns."""
        plain = plain_chat(self.value)
        return plain or ((yield from self.estimated_input_tokens()), self.max_output_tokens, self.choices)

    @property
    def tells_usage(self) -> bool:
        """Whether the response will have its usage: all do, except streams of chat or completions by default."""
        if not self.is_stream or self.api not in (Api.OPENAI_CHAT, Api.OPENAI_COMPLETIONS):
            return True
        return in_object(self.value, "stream_options", "include_usage") is True

    def ask_for_usage(self) -> bool:
        """Request the usage of the stream. Returns whether the client did not, so that it must be hidden."""
        if not self.value.get("stream") or self.tells_usage:  # where the path says it, an answer tells its usage
            return False
        if type(self.value.get("stream_options")) is dict:
            self.put(("stream_options", "include_usage"), True)
        else:
            self.put(("stream_options",), {"include_usage": True})
        return True


def plain_chat(value: dict[str, Any]) -> tuple[int, int | None, int] | None:
    """`asked_tokens` of a conversation in plain text, as nearly all are: messages of a role and a text, beside numbers
    and instructions. None for any other request. The estimate is what the walk over all texts adds up to.
    """
    messages = value.get("messages")
    if type(messages) is not list or not messages or type(value.get("model")) is not str:
        return None
    most: int | None = None
    total, choices = _MESSAGE_TOKENS * len(messages), 1
    for key in value.keys() - _COUNTED:
        each = value[key]
        kind = type(each)
        if kind in _NUMBERS:
            if key in _PLAIN_LIMITS and each is not None:
                whole = each if kind is int else _whole(each)
                if most is None or whole > most:
                    most = whole
            elif key in _PLAIN_CHOICES and each is not None:
                choices = max(choices, _whole(each))
        elif kind is str and key in _INSTRUCTIONS:
            total += estimated_tokens(each)
        else:
            return None
    try:
        texts = [*map(_CONTENT, messages)]
        is_ascii = "".join([*texts, *map(_ROLE, messages)]).isascii()
    except (LookupError, TypeError):  # of a message without one of both, or with what is no string
        return None
    if max(map(len, messages)) > 2:  # beside both of these
        return None
    if is_ascii:
        total -= sum(map(_MINUS_A_QUARTER, map(len, texts)))  # adds (length + 3) // 4 of each
    else:
        total += sum(map(estimated_tokens, texts))
    return total, most, choices


def _is_number(value: object) -> bool:
    return type(value) is int or type(value) is float


def _whole(value: object) -> int:
    """The integer; unbounded for another value."""
    if type(value) is int:
        return value
    return int(value) if type(value) is float and value.is_integer() else _UNBOUNDED


def _name_of_model(said: Any) -> str:
    if type(said) is dict and type(said.get("model")) is str:
        said = said["model"]
    return said if type(said) is str else dumps(said).decode()
