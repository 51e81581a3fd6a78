from __future__ import annotations

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.shared import (
    add_usage,
    answer_view,
    operation,
    request_view,
    usage_told,
)
from egressproxy.ai.apis.usage import TokenUsage
from egressproxy.filters.testing import exchange

BODY = b'{"model":"a","messages":[{"role":"user","content":"hi"}]}'


def test_a_body_is_parsed_once_for_all_filters_of_an_exchange():
    x = exchange("POST", "http://a.example/v1/chat/completions")
    first = request_view(x, BODY)
    assert request_view(x, BODY) is first
    first.set_model("b")
    changed = first.body()
    assert request_view(x, changed) is first
    assert request_view(x, changed).model == "b"


def test_changes_that_nobody_has_taken_are_not_seen_by_the_next_filter():
    x = exchange("POST", "http://a.example/v1/chat/completions")
    request_view(x, BODY).set_model("b")
    assert request_view(x, BODY).model == "a"


def test_another_body_has_another_view():
    x = exchange("POST", "http://a.example/v1/chat/completions")
    first = request_view(x, BODY)
    assert request_view(x, bytes(bytearray(BODY))) is not first
    assert answer_view(x, BODY) is not first


def test_the_operation_is_that_of_the_path_as_the_first_filter_saw_it():
    x = exchange("POST", "http://a.example/v1/messages")
    found = operation(x)
    assert found is not None
    assert found.api is Api.ANTHROPIC
    x.request.path = b"/v1/chat/completions"
    assert operation(x) is found


def test_a_request_of_another_method_asks_nothing_of_a_provider():
    assert operation(exchange("GET", "http://a.example/v1/messages")) is None


def test_what_events_tell_of_usage_is_kept_together():
    x = exchange("GET", "http://a.example/")
    assert usage_told(x) is None
    add_usage(x, TokenUsage(input_tokens=10, output_tokens=1))
    add_usage(x, None)
    add_usage(x, TokenUsage(output_tokens=7))
    assert usage_told(x) == TokenUsage(10, 7)


def test_a_method_in_small_letters_asks_for_the_same():
    """Some servers read `post` as POST: no limit on tokens may miss it."""
    found = operation(exchange("post", "http://a.example/v1/chat/completions"))
    assert found is not None
    assert found.api is Api.OPENAI_CHAT
