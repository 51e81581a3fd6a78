"""Which of the translated APIs a path is of, where each is served, and which header fields are of one only. Sources:
the OpenAPI descriptions of OpenAI and Anthropic, as their SDKs carry them; the reference of the Gemini API;
the service model of Amazon Bedrock's runtime.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from egressproxy.ai.apis.apis import Api, operation_of
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.model.fields import EVENT_STREAM

AWS_EVENT_STREAM: Final = b"application/vnd.amazon.eventstream"
#: Where each API that is translated for its clients is served, unless a configuration says otherwise. Behind the prefix
#: of `DEFAULT_PREFIXES`.
DEFAULT_PATHS: Final[Mapping[Api, bytes]] = {
    Api.OPENAI_CHAT: b"/v1/chat/completions",
    Api.OPENAI_RESPONSES: b"/v1/responses",
    Api.ANTHROPIC: b"/v1/messages",
}

#: What stands before the paths of an API.
DEFAULT_PREFIXES: Final[Mapping[Api, bytes]] = {
    Api.OPENAI_CHAT: b"/v1",
    Api.OPENAI_RESPONSES: b"/v1",
    Api.ANTHROPIC: b"/v1",
    Api.GEMINI: b"/v1beta",
    Api.BEDROCK_CONVERSE: b"",
}
#: Source: the reference of Azure OpenAI (inference, 2024-10-21).
_AZURE: Final = b"/openai"
_AT_AZURE: Final = (Api.OPENAI_CHAT, Api.OPENAI_RESPONSES)
#: A model's name in a path: none that a server could read as another path.
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,255}", re.ASCII)
#: Names of Bedrock have colons, and their ARNs slashes, which are escaped in a path.
_BEDROCK_MODEL = re.compile(
    r"(?!.*(?:\.\.|//))(?:arn:[A-Za-z0-9._:/-]{1,2044}|[A-Za-z0-9][A-Za-z0-9._:-]{0,255})", re.ASCII
)

#: Fields that a request to each API needs beside those of a JSON body. The version of Anthropic's API is the one that
#: knows `temperature` and `top_p`: 2026-10-21 refuses them.
REQUIRED_FIELDS: Final[Mapping[Api, tuple[tuple[bytes, bytes], ...]]] = {
    Api.OPENAI_CHAT: (),
    Api.OPENAI_RESPONSES: (),
    Api.ANTHROPIC: ((b"anthropic-version", b"2023-06-01"),),
    Api.GEMINI: (),
    Api.BEDROCK_CONVERSE: (),
}

#: APIs of providers that count the tokens of a request to be translated.
COUNTING: Final = frozenset((Api.GEMINI, Api.BEDROCK_CONVERSE))
#: In the prefix of Vertex AI, whose requests for counts have another form than those of the Gemini API.
VERTEX: Final = b"/publishers/"

#: Fields of requests and answers that mean something to one provider: credentials, accounts, versions, limits, ids.
_OF_ONE_API = re.compile(
    rb"(?:authorization|api-key|x-api-key|idempotency-key|request-id|x-request-id|x-client-request-id|cf-ray"
    rb"|(?:anthropic|openai|azureml|apim|ocp-apim|x-amz|x-amzn|x-ms|x-goog|x-gemini|x-openai|x-anthropic|x-stainless|x-ratelimit|x-codex)-.*)\Z",
    re.IGNORECASE,
)
_OF_THE_BODY = re.compile(
    rb"(?:content-(?:length|encoding|type|digest|md5|language|range)|transfer-encoding|accept-encoding|accept-ranges|digest|etag"
    rb"|repr-digest|last-modified|expect|trailer)\Z",
    re.IGNORECASE,
)


def api_of(path: bytes) -> Api | None:
    """The translated API that a POST to this path speaks; None: none of them, or the path names the model in another
    way than Azure's paths do.
    """
    found = operation_of(path)
    if found is None or found.api not in DEFAULT_PATHS or (found.model and found.api is Api.ANTHROPIC):
        return None
    return found.api


def deployment_of(path: bytes) -> str:
    """The model that a path of Azure's names; "" for other paths."""
    found = operation_of(path)
    return found.model if found is not None and found.api in DEFAULT_PATHS else ""


def model_in_path(api: Api, model: str, field: str = "model") -> str:
    """This model as it stands in the path of an API. `models/` before it is left out. Raises Untranslatable for what
    would be more than a name there; `field` is where the client has named it.
    """
    name = model.removeprefix("models/")
    if (_BEDROCK_MODEL if api is Api.BEDROCK_CONVERSE else _MODEL).fullmatch(name) is None:
        raise Untranslatable(
            field, "cannot be translated: the model is a part of the backend's path, and this is no name"
        )
    return quote(name, safe="" if api is Api.BEDROCK_CONVERSE else "@")


def count_path_at(api: Api, prefix: bytes, model: str) -> bytes:
    """The path of a translated count of tokens. Raises Untranslatable as `model_in_path`."""
    begin = prefix or DEFAULT_PREFIXES[api]
    form = b"%b/model/%b/count-tokens" if api is Api.BEDROCK_CONVERSE else b"%b/models/%b:countTokens"
    return form % (begin, model_in_path(api, model).encode())


def path_at(api: Api, prefix: bytes, azure_version: str, model: str, *, is_stream: bool) -> bytes:
    """The path of a translated request. `prefix` is that of a configuration; empty: that of the API. `azure_version`:
    the `api-version` of Azure's paths of deployments; empty: other paths. Raises Untranslatable as `model_in_path`.
    """
    if azure_version and api in _AT_AZURE:
        deployment = b"/deployments/" + model_in_path(api, model).encode() if api is Api.OPENAI_CHAT else b""
        operation = DEFAULT_PATHS[api].removeprefix(DEFAULT_PREFIXES[api])
        return b"%b%b%b?api-version=%b" % (prefix or _AZURE, deployment, operation, azure_version.encode())
    begin = prefix or DEFAULT_PREFIXES[api]
    if api is Api.GEMINI:
        verb = b"streamGenerateContent?alt=sse" if is_stream else b"generateContent"
        return b"%b/models/%b:%b" % (begin, model_in_path(api, model).encode(), verb)
    if api is Api.BEDROCK_CONVERSE:
        verb = b"converse-stream" if is_stream else b"converse"
        return b"%b/model/%b/%b" % (begin, model_in_path(api, model).encode(), verb)
    return begin + DEFAULT_PATHS[api].removeprefix(DEFAULT_PREFIXES[api])


def count_answer(api: Api, tokens: int) -> bytes:
    """The answer to a request of this API for a count of tokens."""
    kind = b'"object":"response.input_tokens",' if api is Api.OPENAI_RESPONSES else b""
    return b'{%b"input_tokens":%d}' % (kind, tokens)


def stream_type(api: Api) -> bytes:
    """The media type of a stream of this API."""
    return AWS_EVENT_STREAM if api is Api.BEDROCK_CONVERSE else EVENT_STREAM


def belongs_to_one_api(name: bytes) -> bool:
    """Whether this field must not cross to a client or provider of another API, as credentials must not."""
    return _OF_ONE_API.match(name) is not None


def describes_the_body(name: bytes) -> bool:
    """Whether this field speaks of a body that translation replaces: length, coding, type, digests, validators."""
    return _OF_THE_BODY.match(name) is not None
