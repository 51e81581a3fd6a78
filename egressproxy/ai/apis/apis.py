"""Api: the AI provider's API of a request, by its path, and the model in some paths. Sources: the
OpenAPI descriptions in the SDKs of OpenAI and Anthropic; the discovery document of Gemini (v1beta) and Vertex AI (v1);
the service model of Amazon Bedrock's runtime (2023-09-30).
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes


class Api(Enum):
    """The form of a request, its answer and its stream. The values of the first three are those of configurations."""

    OPENAI_CHAT = "OpenAIChat"
    OPENAI_RESPONSES = "OpenAIResponses"
    ANTHROPIC = "AnthropicMessages"
    OPENAI_COMPLETIONS = "OpenAICompletions"
    OPENAI_EMBEDDINGS = "OpenAIEmbeddings"
    GEMINI = "Gemini"
    BEDROCK_CONVERSE = "BedrockConverse"
    BEDROCK_INVOKE = "BedrockInvokeModel"

    @property
    def provider(self) -> str:
        """`gen_ai.provider.name` of OpenTelemetry's semantic conventions."""
        return _PROVIDERS[self]

    @property
    def operation_name(self) -> str:
        """`gen_ai.operation.name` of OpenTelemetry's semantic conventions."""
        return _OPERATION_NAMES.get(self, "chat")


_PROVIDERS: Final = {
    Api.OPENAI_CHAT: "openai",
    Api.OPENAI_RESPONSES: "openai",
    Api.OPENAI_COMPLETIONS: "openai",
    Api.OPENAI_EMBEDDINGS: "openai",
    Api.ANTHROPIC: "anthropic",
    Api.GEMINI: "gcp.gemini",
    Api.BEDROCK_CONVERSE: "aws.bedrock",
    Api.BEDROCK_INVOKE: "aws.bedrock",
}
_OPERATION_NAMES: Final = {
    Api.OPENAI_COMPLETIONS: "text_completion",
    Api.OPENAI_EMBEDDINGS: "embeddings",
    Api.GEMINI: "generate_content",
}

#: The end of a path behind any prefix. Azure's has the model in it, and its servers look at no case. Vertex AI serves
#: Anthropic's under its own path.
_OPENAI = re.compile(rb"/(?:chat/completions|completions|embeddings|responses)\Z", re.IGNORECASE)
_DEPLOYMENTS: Final = b"/openai/deployments/"
_EXTENSIONS: Final = b"/extensions"
_GOOGLE = re.compile(
    rb"(?P<publisher>/publishers/[^/]+)?/(?:models|tunedModels|endpoints)/(?P<model>[^/]+)"
    rb":(?P<verb>generateContent|streamGenerateContent|rawPredict|streamRawPredict)\Z"
)
_BEDROCK = re.compile(
    rb"/model/(?P<model>[^/]+)/(?P<verb>converse|converse-stream|invoke|invoke-with-response-stream)\Z"
)
_OPENAI_KINDS: Final = {
    b"chat/completions": Api.OPENAI_CHAT,
    b"completions": Api.OPENAI_COMPLETIONS,
    b"embeddings": Api.OPENAI_EMBEDDINGS,
    b"responses": Api.OPENAI_RESPONSES,
}
#: Ends of paths at which tokens are counted, of requests in these APIs.
_COUNTS: Final = {b"/v1/messages/count_tokens": Api.ANTHROPIC, b"/responses/input_tokens": Api.OPENAI_RESPONSES}
_SLASHES = re.compile(rb"//+")
_PARAMETERS = re.compile(rb";[^/]*")
#: Bytes that stay as they are where a model is written into a path (RFC 3986 section 3.3). A colon does not: in
#: Gemini's paths it ends the model.
_SAFE: Final = "-._~@"


class Operation(NamedTuple):
    """The operation in a path: `model` ("": in the body), `is_stream` (None: in the body), and the position of the
    model in the path, as (begin, end); (0, 0): none.
    """

    api: Api
    model: str = ""
    is_stream: bool | None = None
    path_model: tuple[int, int] = (0, 0)

    def with_model(self, path: bytes, model: str) -> bytes:
        """The path of this operation with another model; unchanged if it has none."""
        begin, end = self.path_model
        if not end:
            return path
        return path[:begin] + quote_from_bytes(model.encode(), safe=_SAFE).encode() + path[end:]


def operation_of(path: bytes) -> Operation | None:
    """The operation of a POST to this path; None if unknown.

    Any prefix may stand before, and a query behind. Other spellings of a path are the same path: those of
    `usual_spelling`, and another case. `/v1/messages/count_tokens` and `/v1/responses/ID` are others.
    """
    return _operation_at(path.partition(b"?")[0])  # without the query, in which Gemini's clients send keys


def counted_api(path: bytes) -> Api | None:
    """The API if a POST to this path asks how many tokens a request to it would have."""
    plain = usual_spelling(path.partition(b"?")[0]).lower()
    if b"?" in plain:  # some servers may take what is behind it for the query
        return None
    return next((api for end, api in _COUNTS.items() if plain.endswith(end)), None)


def usual_spelling(path: bytes) -> bytes:
    """The path as some servers read its other spellings: without escapes, double slashes, a slash at the end, and
    parameters behind ";" (RFC 3986 section 3.3). The path has no query.
    """
    if b"%" in path or b"//" in path or b";" in path or path.endswith(b"/"):
        return _PARAMETERS.sub(b"", _SLASHES.sub(b"/", unquote_to_bytes(path))).rstrip(b"/")
    return path


def is_responses_websocket(path: bytes, upgrade: bytes) -> bool:
    """Whether an upgrade at this path opens a WebSocket of OpenAI's responses. Codex tries one first; after a 426 it
    sends plain requests at once, and after any other status it retries for seconds.
    """
    if upgrade.lower() != b"websocket":
        return False
    found = operation_of(path)
    return found is not None and found.api is Api.OPENAI_RESPONSES


@lru_cache(maxsize=256)
def _operation_at(plain: bytes) -> Operation | None:
    found = _operation(plain)
    usual = usual_spelling(plain)
    if usual is not plain:
        other = _operation(usual, is_decoded=True)
        if other is not None and (found is None or other.api is not found.api or other.model != found.model):
            # The model's position is unknown here: a path in another spelling keeps its model.
            return other._replace(path_model=(0, 0))
    return found


def _operation(path: bytes, *, is_decoded: bool = False) -> Operation | None:
    if path[-12:].lower() == b"/v1/messages":
        return Operation(Api.ANTHROPIC)
    match = _OPENAI.search(path)
    if match is not None:
        end = match.start()
        return Operation(_OPENAI_KINDS[match[0][1:].lower()], *_deployment(path, end, is_decoded=is_decoded))
    match = _GOOGLE.search(path)
    if match is not None:
        verb = match["verb"]
        is_stream = verb.startswith(b"stream")
        if not verb.endswith(b"awPredict"):
            return Operation(Api.GEMINI, *_model_of(match, is_stream, is_decoded))
        if match["publisher"] == b"/publishers/anthropic":
            return Operation(Api.ANTHROPIC, *_model_of(match, is_stream, is_decoded))
        return None
    match = _BEDROCK.search(path)
    if match is not None:
        api = Api.BEDROCK_CONVERSE if match["verb"].startswith(b"converse") else Api.BEDROCK_INVOKE
        return Operation(api, *_model_of(match, match["verb"].endswith(b"stream"), is_decoded))
    return None


def _deployment(path: bytes, end: int, *, is_decoded: bool) -> tuple[str, bool | None, tuple[int, int]]:
    """The deployment in a path of Azure's API before `end`, and of LiteLLM, whose models may contain slashes."""
    before = path[:end].lower()
    begin = before.rfind(_DEPLOYMENTS)
    if begin < 0:
        return "", None, (0, 0)
    begin += len(_DEPLOYMENTS)
    if before.endswith(_EXTENSIONS):
        end -= len(_EXTENSIONS)
    if begin >= end:
        return "", None, (0, 0)
    model = path[begin:end]
    plain = model if is_decoded else unquote_to_bytes(model)
    return plain.decode("utf-8", "replace"), None, (begin, end)


def _model_of(
    match: re.Match[bytes], is_stream: bool | None, is_decoded: bool
) -> tuple[str, bool | None, tuple[int, int]]:
    model = match["model"]
    if model is None:
        return "", is_stream, (0, 0)
    plain = model if is_decoded else unquote_to_bytes(model)
    return plain.decode("utf-8", "replace"), is_stream, match.span("model")
