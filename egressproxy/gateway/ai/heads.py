"""The heads of translated messages: what of them crosses from one API to the other, and what is set anew."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from egressproxy.ai_apis.apis import Api
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.translation.apis import REQUIRED_FIELDS, belongs_to_one_api, describes_the_body

if TYPE_CHECKING:
    from egressproxy.translation.translator import TranslatedRequest

EVENT_STREAM: Final = b"text/event-stream"
JSON: Final = b"application/json"
#: Fields that are meant for one place, or may hold what only that may know: whatever a client sends under such a name.
_SECRET = re.compile(
    rb"auth|assertion|bearer|cookie|credential|dpop|jwt|key|passphrase|passw|secret|session|signature|token",
    re.IGNORECASE,
)
#: In which field an API tells the number of a request.
_REQUEST_ID: Final = {
    Api.OPENAI_CHAT: b"x-request-id",
    Api.OPENAI_RESPONSES: b"x-request-id",
    Api.ANTHROPIC: b"request-id",
}


def set_request_head(head: RequestHead, request: TranslatedRequest, path: bytes) -> None:
    """Make the head of the client's request that of the translated one. No credential of the client stays."""
    head.path = path
    head.te_trailers = False
    block = _crossing(head.fields.block)
    accepted = EVENT_STREAM if request.is_stream else JSON
    block += b"\r\ncontent-type: %s\r\naccept: %s\r\naccept-encoding: identity" % (JSON, accepted)
    for name, value in REQUIRED_FIELDS[request.target]:
        block += b"\r\n%s: %s" % (name, value)
    head.fields.block = block


def set_response_head(head: ResponseHead, request: TranslatedRequest, kind: bytes) -> None:
    """Make the head of the backend's answer that of the translated one, whose body is of this media type."""
    number = head.fields.get(_REQUEST_ID[request.target])
    head.fields.block = _crossing(head.fields.block) + b"\r\ncontent-type: " + kind
    if number:
        head.fields.add(_REQUEST_ID[request.source], number)


def _crossing(block: bytes) -> bytes:
    """The fields that mean the same in every API, and are no secret. Other spellings of a name count as the name."""
    kept = []
    for line in block.split(b"\r\n")[1:]:
        name = line.partition(b":")[0].strip(b"-_").replace(b"_", b"-").lower()
        if name != b"accept" and not (belongs_to_one_api(name) or describes_the_body(name) or _SECRET.search(name)):
            kept.append(b"\r\n" + line)
    return b"".join(kept)
