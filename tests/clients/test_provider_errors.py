"""The SDKs of OpenAI, Anthropic, Google and Amazon: each raises its own exception for a denial, with our message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from aiohttp import web

from tests.ai.apis.streams import GEMINI_EVENTS, STREAMS
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.origins.server import OriginServer
from tests.support.pki import Pki
from tests.support.process import GatewayProcess

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")
genai = pytest.importorskip("google.genai")
boto3 = pytest.importorskip("boto3")
botocore_exceptions = pytest.importorskip("botocore.exceptions")
botocore_config = pytest.importorskip("botocore.config")
genai_errors = pytest.importorskip("google.genai.errors")

MODEL = "m"
FILTER = '''
from egressproxy.filters import Filter, Reason, Rejected

class Refuses(Filter):
    """Refuses what the model's name says: m-403 with 403; m-stream behind the first words."""

    def request_headers(self, x):
        for status in (400, 403, 429):
            if b"/%d/" % status in x.request.path:
                raise Rejected("the gateway says no", remedy="ask another", status=status, retry_after_s=status == 429)

    def response_body(self, x, data, last):
        if b"there" in data:
            raise Rejected("the answer is not for you")
        return data
'''


async def answer(request: web.Request) -> web.StreamResponse:
    """A stream in the form of the path, in two pieces."""
    path = request.path
    kind, stream = "text/event-stream", STREAMS["OpenAIChat"]
    if path.endswith("/v1/messages"):
        stream = STREAMS["AnthropicMessages"]
    elif path.endswith("/responses"):
        stream = STREAMS["OpenAIResponses"]
    elif "Content" in path:
        stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in GEMINI_EVENTS)
    elif path.endswith("converse-stream"):
        kind, stream = "application/vnd.amazon.eventstream", STREAMS["Bedrock Converse"]
    response = web.StreamResponse(headers={"Content-Type": kind})
    await response.prepare(request)
    at = stream.index(b"there")
    at = stream.rindex(b"\n\n", 0, at) + 2 if kind == "text/event-stream" else stream.rindex(b":event-type", 0, at) - 13
    await response.write(stream[:at])
    await response.write(stream[at:])
    await response.write_eof()
    return response


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("errors")
    with ExitStack() as stack:
        routes = [web.post("/{path:.*}", answer)]
        origin = stack.enter_context(OriginServer([routes], Pki().server_context("127.0.0.1")))
        port = free_port()
        config = {"type": f"{m.OURS}/Python:v1", "config": {"path": "refuses.py"}}
        extensions = [
            {"name": "head", "phase": "request-headers", **config},
            {"name": "body", "phase": "response-body", **config},
        ]
        objects = [
            m.gateway(m.http_listener(port)),
            m.policy(cidrs=["127.0.0.0/8"], extensions=extensions),
            m.ip_backend("a", origin.plain_port, origin.address),
            m.http_route("route", m.prefix_rule("/", "a")),
        ]
        process = GatewayProcess(folder, objects)
        (process.config / "refuses.py").write_text(FILTER)
        stack.enter_context(process)
        yield f"http://127.0.0.1:{port}"


def chat(url: str, *, stream: bool) -> None:
    sdk = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    answer = sdk.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=stream)
    for _ in answer:
        pass


def responses(url: str, *, stream: bool) -> None:
    sdk = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    for _ in sdk.responses.create(model=MODEL, input="hi", stream=stream):
        pass


def messages(url: str, *, stream: bool) -> None:
    sdk = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    for _ in sdk.messages.create(**asked, stream=stream):
        pass


def gemini(url: str, *, stream: bool) -> None:
    options = genai.types.HttpOptions(base_url=url, retry_options=genai.types.HttpRetryOptions(attempts=1))
    sdk = genai.Client(api_key="k", http_options=options)
    if not stream:
        sdk.models.generate_content(model=MODEL, contents="hi")
        return
    for _ in sdk.models.generate_content_stream(model=MODEL, contents="hi"):
        pass


def converse(url: str, *, stream: bool) -> None:
    config = botocore_config.Config(retries={"total_max_attempts": 1})
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    sdk = boto3.client("bedrock-runtime", region_name="eu-central-1", endpoint_url=url, config=config, **keys)
    asked = {"modelId": MODEL, "messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    if not stream:
        sdk.converse(**asked)
        return
    for _ in sdk.converse_stream(**asked)["stream"]:
        pass


CALLS: dict[str, Callable[..., None]] = {
    "chat": chat, "responses": responses, "messages": messages, "gemini": gemini, "converse": converse,
}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "status", "expected"),
    [
        ("chat", 400, openai.BadRequestError),
        ("chat", 403, openai.PermissionDeniedError),
        ("responses", 429, openai.RateLimitError),
        ("messages", 400, anthropic.BadRequestError),
        ("messages", 403, anthropic.PermissionDeniedError),
        ("messages", 429, anthropic.RateLimitError),
        ("gemini", 403, genai_errors.ClientError),
        ("gemini", 429, genai_errors.ClientError),
        ("converse", 400, botocore_exceptions.ClientError),
        ("converse", 403, botocore_exceptions.ClientError),
        ("converse", 429, botocore_exceptions.ClientError),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_denial_is_the_exception_of_the_sdk(
    url: str, call: str, status: int, expected: type[Exception], stream: bool
):
    with pytest.raises(expected, match="the gateway says no") as raised:
        CALLS[call](f"{url}/{status}", stream=stream)
    error: Any = raised.value
    if call == "chat":
        assert error.code == "filter_rejected"
        assert error.body["message"] == "the gateway says no (ask another)"
    elif call == "gemini":
        assert (error.code, error.status) == (status, {403: "PERMISSION_DENIED", 429: "RESOURCE_EXHAUSTED"}[status])
        assert error.message == "the gateway says no (ask another)"
    elif call == "converse":
        names = {400: "ValidationException", 403: "AccessDeniedException", 429: "ThrottlingException"}
        assert type(error).__name__ == names[status]
        assert error.response["Error"] == {"Code": names[status], "Message": "the gateway says no (ask another)"}
    if status == 429 and call in ("responses", "messages"):
        assert error.response.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("chat", openai.APIError),
        ("responses", openai.APIError),
        ("messages", anthropic.APIStatusError),
        ("gemini", genai_errors.APIError),
        ("converse", botocore_exceptions.EventStreamError),
    ],
)
def test_a_denial_inside_of_a_stream_is_the_exception_of_the_sdk(url: str, call: str, expected: type[Exception]):
    with pytest.raises(expected, match="the answer is not for you"):
        CALLS[call](url, stream=True)
