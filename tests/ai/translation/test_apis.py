from __future__ import annotations

import pytest

from egressproxy.ai.apis.apis import Api, counted_api
from egressproxy.ai.translation.apis import (
    DEFAULT_PATHS,
    api_of,
    belongs_to_one_api,
    describes_the_body,
)


@pytest.mark.parametrize(
    ("path", "api"),
    [
        (b"/v1/chat/completions", Api.OPENAI_CHAT),
        (b"/openai/v1/responses", Api.OPENAI_RESPONSES),
        (b"/anything/before/v1/messages?beta=true", Api.ANTHROPIC),
        (b"/v1/messages/count_tokens", None),
        (b"/v1/messages/batches", None),
        (b"/v1/responses/resp_1", None),
        (b"/v1/responses/resp_1/cancel", None),
        (b"/v1/messages/", Api.ANTHROPIC),
        (b"/v1//chat/completions", Api.OPENAI_CHAT),
        (b"/v1/chat%2Fcompletions", Api.OPENAI_CHAT),
        (b"/v1/%63hat/completions?x", Api.OPENAI_CHAT),
        (b"/V1/Chat/Completions", Api.OPENAI_CHAT),
        (b"/v1/responses;a=b", Api.OPENAI_RESPONSES),
        (b"/v1/%2572esponses", None),
        (b"/chat/completions", Api.OPENAI_CHAT),
        (b"/responses", Api.OPENAI_RESPONSES),
        (b"/messages", None),
        (b"/xv1/messages", None),
        (b"/openai/deployments/mine/chat/completions?api-version=2024-10-21", Api.OPENAI_CHAT),
        (b"/v1/projects/p/publishers/anthropic/models/c:rawPredict", None),
        (b"/v1beta/models/gemini-x:generateContent", None),
        (b"/v1/completions", None),
        (b"/v1/embeddings?next=/v1/messages", None),
        (b"*", None),
    ],
)
def test_the_last_segments_of_a_path_name_the_api(path: bytes, api: Api | None):
    assert api_of(path) is api


@pytest.mark.parametrize(
    ("path", "api"),
    [
        (b"/v1/messages/count_tokens", Api.ANTHROPIC), (b"/team/v1/messages/count_tokens?beta=true", Api.ANTHROPIC),
        (b"/v1/messages/count_tokens/", Api.ANTHROPIC), (b"/v1//messages/Count_Tokens", Api.ANTHROPIC),
        (b"/v1/messages%2fcount_tokens", Api.ANTHROPIC), (b"/v1/messages", None),
        (b"/v1/messages/count_tokens/x", None), (b"/openai/v1/responses/input_tokens", Api.OPENAI_RESPONSES),
        (b"/v1/responses", None), (b"/v1/messages%3F/v1/messages/count_tokens", None),
    ],
)  # fmt: skip
def test_counts_of_tokens_have_a_path_of_their_own(path: bytes, api: Api | None):
    assert counted_api(path) is api


@pytest.mark.parametrize("api", DEFAULT_PATHS)
def test_the_default_path_of_an_api_is_one_of_its_own(api: Api):
    assert api_of(DEFAULT_PATHS[api]) is api


@pytest.mark.parametrize(
    "name", [b"Authorization", b"x-api-key", b"anthropic-beta", b"OpenAI-Organization", b"x-stainless-retry-count"]
)
def test_what_one_provider_knows_does_not_cross(name: bytes):
    assert belongs_to_one_api(name)


@pytest.mark.parametrize("name", [b"traceparent", b"user-agent", b"retry-after", b"x-authorization-note", b"accept"])
def test_other_fields_cross(name: bytes):
    assert not belongs_to_one_api(name)
    assert not describes_the_body(name)


def test_a_key_of_azures_api_management_crosses_to_no_other_provider():
    assert belongs_to_one_api(b"Ocp-Apim-Subscription-Key")
