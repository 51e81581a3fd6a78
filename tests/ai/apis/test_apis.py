from __future__ import annotations

import pytest

from egressproxy.ai.apis.apis import Api, Operation, operation_of
from tests.ai.apis.bodies import PATHS


@pytest.mark.parametrize("api", list(Api))
def test_a_path_tells_the_api(api: Api):
    found = operation_of(PATHS[api])
    assert found is not None
    assert found.api is api
    behind_a_prefix = operation_of(b"/team" + PATHS[api] + b"?beta=true")
    assert behind_a_prefix is not None
    assert behind_a_prefix.api is api


@pytest.mark.parametrize(
    ("path", "model", "is_stream"),
    [
        (b"/v1beta/models/gemini-x:generateContent", "gemini-x", False),
        (b"/v1beta/models/gemini-x:streamGenerateContent?alt=sse", "gemini-x", True),
        (b"/v1/projects/p/locations/l/publishers/google/models/g:streamGenerateContent", "g", True),
        (b"/model/anthropic.claude-x%3A0/converse", "anthropic.claude-x:0", False),
        (b"/model/arn%3Aaws%3Abedrock%2Fp/converse-stream", "arn:aws:bedrock/p", True),
        (b"/model/m/invoke", "m", False),
        (b"/model/m/invoke-with-response-stream", "m", True),
        (b"/openai/deployments/mine/chat/completions?api-version=1", "mine", None),
        (b"/v1/projects/p/locations/l/publishers/anthropic/models/c@1:streamRawPredict", "c@1", True),
        (b"/v1/chat/completions", "", None),
    ],
)  # fmt: skip
def test_a_path_tells_the_model_and_whether_the_answer_is_a_stream(path: bytes, model: str, is_stream: bool | None):
    found = operation_of(path)
    assert found is not None
    assert (found.model, found.is_stream) == (model, is_stream)


@pytest.mark.parametrize(
    "path",
    [
        b"/v1//chat/completions", b"/v1/chat/completions/", b"/v1/chat%2Fcompletions", b"/v1/%63hat/completions",
        b"/v1/Chat/Completions", b"/V1/CHAT/%43ompletions/", b"/v1/chat;a=b/completions;c", b"/v1/chat/completions%3Ba",
    ],
)  # fmt: skip
def test_other_spellings_of_a_path_are_the_same_path(path: bytes):
    assert operation_of(path) == Operation(Api.OPENAI_CHAT)


@pytest.mark.parametrize(
    "path",
    [
        b"/OpenAI/Deployments/mine/Chat/completions", b"/openai//deployments/mine/chat/completions",
        b"/openai/%64eployments/mine/chat/completions", b"/openai%2Fdeployments%2Fmine/chat/completions",
        b"/openai/deployments/mine;a/chat/completions", b"/openai;a/deployments/mine/chat/completions",
        b"/openai/deployments;a/%6Dine/chat/completions/", b"/openai/deployments/mine/extensions/chat/completions",
    ],
)  # fmt: skip
def test_no_spelling_of_a_path_hides_the_model_that_it_names(path: bytes):
    """Which counts, on a server of Azure, and not the one in the body."""
    found = operation_of(path + b"?api-version=1")
    assert found is not None
    assert (found.api, found.model) == (Api.OPENAI_CHAT, "mine")


def test_a_model_may_have_slashes_in_it():
    """LiteLLM's paths, which are those of Azure."""
    found = operation_of(b"/openai/deployments/maker/mine/chat/completions")
    assert found is not None
    assert (found.api, found.model) == (Api.OPENAI_CHAT, "maker/mine")
    assert operation_of(b"/openai/deployments/chat/completions") == Operation(Api.OPENAI_CHAT)


def test_a_path_is_decoded_once():
    found = operation_of(b"/openai/%64eployments/%256Dine/chat/completions")
    assert found is not None
    assert found.model == "%6Dine"


@pytest.mark.parametrize(
    "path",
    [
        b"/", b"/v1/models", b"/v1/messages/count_tokens", b"/v1/responses/resp_1", b"/v1beta/models/g:countTokens",
        b"/v1/projects/p/publishers/meta/models/l:rawPredict", b"/messages", b"/model/m/other",
    ],
)  # fmt: skip
def test_other_paths_tell_nothing(path: bytes):
    assert operation_of(path) is None


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        (b"/v1beta/models/a:generateContent?alt=sse", b"/v1beta/models/b%3Ac%2Fd:generateContent?alt=sse"),
        (b"/model/a%3A0/converse", b"/model/b%3Ac%2Fd/converse"),
        (b"/v1/chat/completions", b"/v1/chat/completions"),
    ],
)
def test_the_model_of_a_path_is_replaced(path: bytes, changed: bytes):
    found = operation_of(path)
    assert found is not None
    assert found.with_model(path, "b:c/d") == changed
    again = operation_of(changed)
    assert again is not None
    assert again.model in ("b:c/d", "")


@pytest.mark.parametrize("api", list(Api))
def test_each_api_has_its_names_of_opentelemetry(api: Api):
    assert api.provider in ("openai", "anthropic", "gcp.gemini", "aws.bedrock")
    assert api.operation_name in ("chat", "text_completion", "embeddings", "generate_content")
