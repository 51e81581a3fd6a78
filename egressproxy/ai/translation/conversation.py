"""The neutral form: a conversation, its answer, and the events of a stream. `repr` shows no text of client or model.
`where` is a value's path in the client's JSON, by which a writer that cannot say it refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeAlias

from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.ai.translation.tuning import Losses


class Role(Enum):
    """Who speaks. What a tool has answered is a turn of the user that holds a `ToolResult`."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Text:
    """Something said."""

    text: str = field(repr=False)
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class RefusalText:
    """What the model said when it declined to answer."""

    text: str = field(repr=False)
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Image:
    """An image, at a URL or as base64 data of a media type. `detail`: low, high or original; None leaves it open."""

    url: str = field(default="", repr=False)
    media_type: str = ""
    data: str = field(default="", repr=False)
    detail: str | None = None
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model's call of a tool; the arguments are the text of a JSON object, or those of a custom tool plain text."""

    id: str
    name: str
    arguments: str = field(repr=False)
    where: str = field(default="", compare=False)
    namespace: str = ""
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool has answered to the call with this id."""

    call_id: str
    parts: tuple[Text | Image, ...]
    is_error: bool = False
    where: str = field(default="", compare=False)


ContentPart: TypeAlias = Text | RefusalText | Image | ToolCall | ToolResult


@dataclass(frozen=True, slots=True)
class Turn:
    """One message."""

    role: Role
    parts: tuple[ContentPart, ...]
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema; None is a function without any."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    is_strict: bool | None = None
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ToolForm:
    """What a tool is to a client of OpenAI, where elsewhere a plain function stands for it."""

    name: str
    namespace: str = ""
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`auto`, `none`, `required`, or `named` with the name of a tool. `allowed`: of these only; empty: of all."""

    mode: str
    name: str = ""
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The answer is JSON: of this schema, or any where the schema is None."""

    schema: Mapping[str, Any] | None = None
    name: str | None = None
    description: str | None = None
    is_strict: bool | None = None


class Effort(Enum):
    """How much the model thinks. NONE turns thinking off."""

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"
    MAX = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A request. None and empty mean that the client has said nothing, and that the provider's default holds."""

    model: str
    turns: tuple[Turn, ...]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = field(default=(), repr=False)
    tools: tuple[Tool, ...] = field(default=(), repr=False)
    tool_choice: ToolChoice | None = None
    #: Whether the model may call several tools at once; None is the default of every API, which is yes.
    has_parallel_calls: bool | None = None
    effort: Effort | None = None
    verbosity: str | None = None
    output_format: OutputFormat | None = field(default=None, repr=False)
    #: Whether the answer goes on where the last turn, the assistant's, ends (Anthropic's prefill).
    is_prefilled: bool = False
    is_stream: bool = False
    #: Whether the client wants the usage at the end of a stream.
    wants_usage: bool = True
    #: Who the end user is, to the client.
    user: str | None = field(default=None, repr=False)
    safety_identifier: str | None = field(default=None, repr=False)
    metadata: Mapping[str, str] | None = field(default=None, repr=False)
    #: `default` is the standard price and capacity; other words are OpenAI's.
    service_tier: str | None = None
    prompt_cache_key: str | None = field(default=None, repr=False)
    #: By the name of a function: the client's tool that it stands for.
    forms: Mapping[str, ToolForm] = field(default_factory=dict, compare=False, repr=False)
    #: What the client calls the fields above, where that is another word.
    names: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    #: What may be left out, and what was.
    losses: Losses = field(default_factory=Losses.none, compare=False, repr=False)

    def name_of(self, attribute: str) -> str:
        """The path of this attribute in the client's JSON."""
        return self.names.get(attribute, attribute)

    def drop_or_refuse(self, attribute: str, why: str) -> None:
        """Leaves this attribute out if it only tunes, and may be left out. Raises Untranslatable else."""
        if not self.losses.drop(self.name_of(attribute)):
            raise Untranslatable(self.name_of(attribute), why)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens. `input` counts all of the prompt, whether read from a cache, written to it or neither."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_written: int = 0
    reasoning: int = 0


class Stop(Enum):
    """Why the model stopped."""

    END = auto()
    STOP_SEQUENCE = auto()
    LENGTH = auto()
    TOOL_CALLS = auto()
    FILTERED = auto()  # by a filter of the provider, or since the model declined


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A whole answer. `created` is in seconds since 1970, where the provider tells it."""

    id: str
    model: str
    created: int | None
    parts: tuple[Text | RefusalText | ToolCall, ...]
    stop: Stop
    stop_sequence: str | None
    usage: Usage


class PartKind(Enum):
    """What a part of an answer holds."""

    TEXT = auto()
    REFUSAL = auto()
    TOOL_CALL = auto()
    CUSTOM_CALL = auto()  # for clients of OpenAI alone: its text is the input, and comes at once


@dataclass(frozen=True, slots=True)
class Started:
    """The answer has begun."""

    id: str
    model: str
    created: int | None
    usage: Usage


@dataclass(frozen=True, slots=True)
class PartStarted:
    """A part begins; the one before it has ended. Id and name are those of a tool call."""

    kind: PartKind
    id: str = ""
    name: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """More of the part: text, or JSON of a tool call's arguments."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PartEnded:
    """Nothing more comes of the part."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Nothing yet, but the provider is there."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete."""

    stop: Stop
    stop_sequence: str | None
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer ends here and is not complete. `status` is what the error would have been as an answer of its own."""

    status: int
    message: str


StreamEvent: TypeAlias = Started | PartStarted | Delta | PartEnded | KeepAlive | Finished | Failed
