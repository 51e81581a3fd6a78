"""Which of the translated APIs a path is of, where each is served, and which header fields are of one only. Sources:
the OpenAPI descriptions of OpenAI and Anthropic, as their SDKs carry them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from egressproxy.ai.apis.apis import Api, operation_of, usual_spelling

#: Where each API that is translated is served, unless a configuration says otherwise.
DEFAULT_PATHS: Final[Mapping[Api, bytes]] = {
    Api.OPENAI_CHAT: b"/v1/chat/completions",
    Api.OPENAI_RESPONSES: b"/v1/responses",
    Api.ANTHROPIC: b"/v1/messages",
}

#: Fields that a request to each API needs beside those of a JSON body. The version of Anthropic's API is the one that
#: knows `temperature` and `top_p`: 2026-10-21 refuses them.
REQUIRED_FIELDS: Final[Mapping[Api, tuple[tuple[bytes, bytes], ...]]] = {
    Api.OPENAI_CHAT: (),
    Api.OPENAI_RESPONSES: (),
    Api.ANTHROPIC: ((b"anthropic-version", b"2023-06-01"),),
}

_COUNT_TOKENS: Final = b"/v1/messages/count_tokens"

#: Fields of requests and answers that mean something to one provider: credentials, accounts, versions, limits, ids.
_OF_ONE_API = re.compile(
    rb"(?:authorization|api-key|x-api-key|x-goog-api-key|idempotency-key|request-id|x-request-id|x-client-request-id|cf-ray"
    rb"|(?:anthropic|openai|x-openai|x-anthropic|x-stainless|x-ratelimit|x-codex)-.*)\Z",
    re.IGNORECASE,
)
_OF_THE_BODY = re.compile(
    rb"(?:content-(?:length|encoding|type|digest|md5|language|range)|transfer-encoding|accept-encoding|accept-ranges|digest|etag"
    rb"|repr-digest|last-modified|expect|trailer)\Z",
    re.IGNORECASE,
)


def api_of(path: bytes) -> Api | None:
    """The translated API that a POST to this path speaks; None: none of them, or the path names the model."""
    found = operation_of(path)
    return found.api if found is not None and found.api in DEFAULT_PATHS and not found.model else None


def counts_tokens(path: bytes) -> bool:
    """Whether a POST to this path asks how many tokens a request to Anthropic's messages would have."""
    return usual_spelling(path.partition(b"?")[0]).lower().endswith(_COUNT_TOKENS)


def belongs_to_one_api(name: bytes) -> bool:
    """Whether this field must not cross to a client or provider of another API, as credentials must not."""
    return _OF_ONE_API.match(name) is not None


def describes_the_body(name: bytes) -> bool:
    """Whether this field speaks of a body that translation replaces: length, coding, type, digests, validators."""
    return _OF_THE_BODY.match(name) is not None
