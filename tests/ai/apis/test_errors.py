from __future__ import annotations

import json

import pytest

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.aws_event_stream import AwsFraming
from egressproxy.ai.apis.errors import error_fields, error_in_stream, error_object
from egressproxy.ai.apis.framing import SseFraming


@pytest.mark.parametrize(
    ("status", "openai", "anthropic", "google", "amazon"),
    [
        (400, "invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT", "ValidationException"),
        (403, "permission_error", "permission_error", "PERMISSION_DENIED", "AccessDeniedException"),
        (429, "rate_limit_error", "rate_limit_error", "RESOURCE_EXHAUSTED", "ThrottlingException"),
        (503, "server_error", "api_error", "UNAVAILABLE", "ServiceUnavailableException"),
        (502, "server_error", "api_error", "INTERNAL", "InternalServerException"),
    ],
)
def test_an_error_has_the_word_of_its_api_for_a_status(
    status: int, openai: str, anthropic: str, google: str, amazon: str
):
    about = {"reason": "quota", "request_id": "r"}

    def said(api: Api) -> dict[str, object]:
        body: dict[str, object] = error_object(api, status, "so", code="quota", about=about)
        return body

    assert said(Api.OPENAI_CHAT) == {
        "error": {"message": "so", "type": openai, "param": None, "code": "quota", **about}
    }
    assert said(Api.ANTHROPIC) == {"type": "error", "error": {"type": anthropic, "message": "so", **about}}
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "quota", "domain": "egressproxy.io"}
    assert said(Api.GEMINI) == {
        "error": {"code": status, "message": "so", "status": google, "details": [{**info, "metadata": about}]}
    }
    assert said(Api.BEDROCK_CONVERSE) == {"message": "so", **about}
    assert error_fields(Api.BEDROCK_INVOKE, status) == ((b"x-amzn-errortype", amazon.encode()),)
    assert error_fields(Api.ANTHROPIC, status) == ()


@pytest.mark.parametrize("api", list(Api))
def test_an_error_ends_a_stream_in_an_event(api: Api):
    event = error_in_stream(api, b"text/event-stream", 403, "so", "quota")
    (frame,) = SseFraming().feed(event)
    value = json.loads(frame.payload)
    assert (value.get("error") or value)["message"] == "so"
    (message,) = AwsFraming().feed(error_in_stream(api, b"application/vnd.amazon.eventstream", 429, "so", "quota"))
    assert (message.name, json.loads(message.payload)) == ("throttlingException", {"message": "so"})
    assert error_in_stream(api, b"application/json", 403, "so", "quota") == b""
