from __future__ import annotations

import pytest

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.errors import error_object
from egressproxy.ai.translation.apis import DEFAULT_PATHS
from egressproxy.ai.translation.errors import Untranslatable, error_in
from egressproxy.model.strict_json import dumps
from tests.ai.translation.examples import ANTHROPIC, CHAT, RESPONSES


@pytest.mark.parametrize(
    ("status", "openai", "anthropic"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "authentication_error", "authentication_error"),
        (403, "permission_error", "permission_error"),
        (404, "invalid_request_error", "not_found_error"),
        (413, "invalid_request_error", "request_too_large"),
        (429, "rate_limit_error", "rate_limit_error"),
        (500, "server_error", "api_error"),
        (504, "server_error", "timeout_error"),
        (529, "server_error", "overloaded_error"),
    ],
)
def test_an_error_has_the_shape_and_the_word_of_its_api(status: int, openai: str, anthropic: str):
    for api in (CHAT, RESPONSES):
        assert error_object(api, status, "so", "tools[0].type") == {
            "error": {"message": "so", "type": openai, "param": "tools[0].type", "code": None}
        }
    assert error_object(ANTHROPIC, status, "so") == {
        "type": "error",
        "error": {"type": anthropic, "message": "so"},
    }


@pytest.mark.parametrize("api", DEFAULT_PATHS)
def test_an_error_is_read_as_it_is_written(api: Api):
    assert error_in(dumps(error_object(api, 400, "so", code="c"))) == ("so", None if api is ANTHROPIC else "c")


def test_what_cannot_be_translated_says_the_field_and_why():
    assert str(Untranslatable("tools[0].type", "is missing")) == "tools[0].type: is missing"
    assert str(Untranslatable("", "the body is no JSON")) == "the body is no JSON"
