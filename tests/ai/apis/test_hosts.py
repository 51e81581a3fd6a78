from __future__ import annotations

import pytest

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.hosts import api_of_host, provider_of_host


@pytest.mark.parametrize(
    ("host", "api", "provider"),
    [
        ("api.openai.com", Api.OPENAI_CHAT, "openai"),
        ("mine.openai.azure.com", Api.OPENAI_CHAT, "azure.ai.openai"),
        ("api.anthropic.com", Api.ANTHROPIC, "anthropic"),
        ("generativelanguage.googleapis.com", Api.GEMINI, "gcp.gemini"),
        ("europe-west1-aiplatform.googleapis.com", Api.GEMINI, "gcp.vertex_ai"),
        ("bedrock-runtime.eu-central-1.amazonaws.com", Api.BEDROCK_CONVERSE, "aws.bedrock"),
        ("bedrock-runtime.amazonaws.com.evil.example", None, None),
        ("api.openai.com.evil.example", None, None),
        ("", None, None),
    ],
)
def test_hosts_of_providers_are_known(host: str, api: Api | None, provider: str | None):
    assert (api_of_host(host), provider_of_host(host)) == (api, provider)
