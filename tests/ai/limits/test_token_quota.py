"""The filter as the data plane runs it, with requests and answers in the form of each provider."""

import json

import pytest

from egressproxy.ai.apis.shared import usage_told
from egressproxy.ai.limits.qos_controller import quota
from egressproxy.errors import Reason
from egressproxy.filters import FilterContext, Phase
from egressproxy.filters.limits.qos_config import LimitEntry, QoSControllerConfig
from egressproxy.filters.testing import FilterHarness, exchange, response
from egressproxy.net.keyed_counters import OwnCounters
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics
from tests.ai.apis.streams import STREAMS as BEDROCK_STREAMS
from tests.ai.apis.streams import aws

METER = FilterMeter(FilterMetrics(), "qos", "egressproxy.io/QoSController:v1")

QOS = "egressproxy.io/QoSController:v1"
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}
CHAT = "https://api.example/v1/chat/completions"
ASKED = {"model": "gpt-4o", "max_tokens": 100, "messages": [{"role": "user", "content": "x" * 400}]}


def harness(**config):
    return FilterHarness(config, phase="request-headers", type=QOS)


def tokens(limit, **more):
    return harness(limits=[{"type": "Tokens", "limit": limit, "unit": "Day", "name": "t", **more}])


def sse(*events, name=False):
    said = [(f"event: {each['type']}\n" if name else "") + f"data: {json.dumps(each)}\n\n" for each in events]
    return "".join(said).encode()


def ask(made, url=CHAT, asked=ASKED, answer=b"", fields=JSON, status=200, **about):
    x = exchange("POST", url, JSON, **about)
    body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    return made.run(x, request_body=body, response=response(status, fields), response_body=answer)


def left(made, limit=None):
    """What is left, as the next answer says."""
    rule = made._chain.request_headers[0].filter.rules[0]
    table = rule.table
    return rule.window.limit - table.peek(table.key(b"" + b"\0" + rule.window.period(1e9)), 0.0)[1]


ANSWERS = [
    (CHAT, {"usage": {"prompt_tokens": 70, "completion_tokens": 30, "total_tokens": 100}, "choices": []}),
    ("https://api.example/v1/responses", {"output": [], "usage": {"input_tokens": 70, "output_tokens": 30}}),
    (
        "https://api.example/v1/messages",
        {"content": [], "usage": {"input_tokens": 20, "cache_read_input_tokens": 50, "output_tokens": 30}},
    ),
    (
        "https://api.example/v1beta/models/gemini-pro:generateContent",
        {"candidates": [], "usageMetadata": {"promptTokenCount": 70, "candidatesTokenCount": 30}},
    ),
    ("https://api.example/model/nova/converse", {"output": {}, "usage": {"inputTokens": 70, "outputTokens": 30}}),
]


@pytest.mark.parametrize(("url", "answer"), ANSWERS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_each_provider_tells_is_settled(url, answer):
    made = tokens(1000)
    assert ask(made, url, answer=json.dumps(answer).encode()).error is None
    assert left(made) == 900


STREAMS = [
    (
        CHAT,
        sse(
            {"choices": [{"index": 0, "delta": {"content": "Hi"}}]},
            {"choices": [], "usage": {"prompt_tokens": 70, "completion_tokens": 30}},
        )
        + b"data: [DONE]\n\n",
    ),
    (
        "https://api.example/v1/responses",
        sse(
            {"type": "response.output_text.delta", "delta": "Hi", "output_index": 0},
            {"type": "response.completed", "response": {"usage": {"input_tokens": 70, "output_tokens": 30}}},
            name=True,
        ),
    ),
    (
        "https://api.example/v1/messages",
        sse(
            {"type": "message_start", "message": {"usage": {"input_tokens": 70, "output_tokens": 1}}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 30}},
            name=True,
        ),
    ),
    (
        "https://api.example/v1beta/models/gemini-pro:streamGenerateContent?alt=sse",
        sse({"candidates": [], "usageMetadata": {"promptTokenCount": 70, "candidatesTokenCount": 30}}),
    ),
]


AMAZON = [
    (
        "https://api.example/model/nova/converse-stream",
        aws("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Hi"}})
        + aws("metadata", {"usage": {"inputTokens": 70, "outputTokens": 30, "totalTokens": 100}}),
    ),
    ("https://api.example/model/claude/invoke-with-response-stream", BEDROCK_STREAMS["Bedrock InvokeModel"]),
]


@pytest.mark.parametrize(("url", "answer"), AMAZON, ids=["converse", "invoke"])
@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_what_the_binary_events_of_amazon_tell_is_settled(url, answer, size):
    made = tokens(1000)
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    result = ask(made, url, ASKED, pieces, {"content-type": "application/vnd.amazon.eventstream"})
    assert result.response_body == answer
    usage = usage_told(result.exchange)
    assert usage.total_tokens > 0
    assert left(made) == 1000 - usage.total_tokens


def test_what_amazon_tells_in_the_head_is_settled():
    made = tokens(1000)
    fields = {**JSON, "x-amzn-bedrock-input-token-count": "70", "x-amzn-bedrock-output-token-count": "30"}
    ask(made, "https://api.example/model/titan/invoke", answer=b'{"results": []}', fields=fields)
    assert left(made) == 900


@pytest.mark.parametrize(("url", "answer"), STREAMS, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_what_a_stream_tells_is_settled_however_it_is_cut(url, answer, size):
    made = tokens(1000)
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    result = ask(made, url, {**ASKED, "stream": True, "stream_options": {"include_usage": True}}, pieces, EVENTS)
    assert result.response_body == answer
    assert left(made) == 900


def test_a_chat_stream_is_asked_for_its_usage_and_the_client_does_not_see_it():
    made = tokens(1000)
    url, answer = STREAMS[0]
    result = ask(made, url, {**ASKED, "stream": True}, [answer[:30], answer[30:]], EVENTS)
    assert json.loads(result.request_body)["stream_options"] == {"include_usage": True}
    assert result.response_body == sse({"choices": [{"index": 0, "delta": {"content": "Hi"}}]}) + b"data: [DONE]\n\n"
    assert left(made) == 900


def test_a_request_is_refused_if_what_it_may_take_does_not_fit():
    made = tokens(350)
    assert ask(made, answer=b"{}").error is None  # about 104 + 100, kept: nothing tells what it took
    assert left(made) == 350 - 204
    error = ask(made).error
    assert (error.status, error.reason, error.message) == (429, Reason.TOKEN_RATE, "more than 350 tokens in a day")
    assert error.retry_after_s > 0
    assert error.remedy == (
        "this request reserves 204 tokens, 100 for its response; 146 are left: lower max_tokens, or come again"
        f" in {error.retry_after_s:,} s"
    )
    assert error.has_own_remedy
    fields = dict(error.fields)
    assert fields[b"RateLimit"].startswith(b'"t";r=146;t=')
    assert fields[b"x-ratelimit-remaining-tokens"] == b"146"
    assert left(made) == 350 - 204


def test_an_answer_may_be_shorter_than_it_is_allowed_to_be_but_a_question_is_as_long_as_it_is():
    made = tokens(150)
    assert ask(made, answer=json.dumps(ANSWERS[0][1]).encode()).error is None
    assert left(made) == 50
    error = ask(tokens(90)).error
    assert (error.reason, error.retry_after_s) == (Reason.TOKEN_RATE, 0)
    assert "this request alone" in error.remedy


def test_what_fails_takes_nothing():
    made = tokens(1000)
    ask(made, status=500, answer=b'{"error": {}}')
    assert left(made) == 1000


def test_what_another_filter_answers_takes_nothing():
    entry = LimitEntry("Tokens", 1000.0, "Day", name="t")
    made = quota(FilterContext(QoSControllerConfig(limits=(entry,)), {}, "q", "s", "s", meter=METER))
    x = exchange("POST", CHAT, JSON)
    x.request.body = 10
    made.request_headers(x)
    made.request_body(x, json.dumps(ASKED).encode(), True)
    x.status = 200  # of a cache, or of whoever else responds in the provider's place
    made.complete(x)
    assert (made.rules[0].count_reserved.count, made.rules[0].count_settled.count) == (204, 0)


def test_a_stream_that_breaks_off_takes_its_question_and_what_was_seen():
    entry = LimitEntry("Tokens", 1000.0, "Day", name="t")
    made = quota(
        FilterContext(QoSControllerConfig(limits=(entry,)), {}, "q", "s", "s", keyed=OwnCounters().keyed, meter=METER)
    )
    x = exchange("POST", CHAT, JSON)
    x.request.body = 10
    made.request_headers(x)
    made.request_body(x, json.dumps({**ASKED, "stream": True}).encode(), True)
    x.response, x.status, x.attempts = response(200, EVENTS), 200, 1
    made.body_mode_for(x, Phase.RESPONSE_BODY)
    made.response_body(x, sse({"choices": [{"index": 0, "delta": {"content": "y" * 80}}]}), False)
    made.complete(x)
    assert made.rules[0].count_settled.count == 104 + 20


def reserving(asked):
    """A quota of 100,000 tokens, and an exchange whose request has reserved its own."""
    entry = LimitEntry("Tokens", 100_000.0, "Day", name="t")
    made = quota(
        FilterContext(QoSControllerConfig(limits=(entry,)), {}, "q", "s", "s", keyed=OwnCounters().keyed, meter=METER)
    )
    x = exchange("POST", CHAT, JSON)
    x.request.body = 10
    made.request_headers(x)
    made.request_body(x, json.dumps(asked).encode(), True)
    return made, x


def test_a_client_that_leaves_before_the_answer_gets_no_tokens_back():
    made, x = reserving(ASKED)
    x.attempts, x.reason = 1, Reason.CLIENT_GONE
    table = made.rules[0].table
    key = table.key(b"" + b"\0" + made.rules[0].window.period(1e9))
    before = table.peek(key, 0.0)
    made.complete(x)
    assert made.rules[0].count_reserved.count == 204
    assert table.peek(key, 0.0) == before


@pytest.mark.parametrize(
    "more",
    [{"n": "3"}, {"n": 3.0}, {"best_of": 3}, {"max_tokens": "9000"}, {"max_tokens": 9000.0}, {"max_tokens": True}],
)
def test_numbers_in_another_form_reserve_no_less(more):
    made, _ = reserving({**ASKED, **more})
    assert made.rules[0].count_reserved.count >= 404


@pytest.mark.parametrize("said", [1, "true", "on"])
def test_a_stream_is_one_however_that_is_said(said):
    sent = json.loads(ask(tokens(1000), asked={**ASKED, "stream": said}).request_body)
    assert sent["stream_options"] == {"include_usage": True}


def test_tokens_of_the_answer_alone_may_be_limited():
    made = tokens(1000, count="Output")
    ask(made, answer=json.dumps(ANSWERS[0][1]).encode())
    assert left(made) == 970


def test_a_whole_answer_keeps_its_length_and_is_not_changed():
    made = tokens(1000)
    said = json.dumps(ANSWERS[0][1]).encode()
    result = ask(made, answer=[said[:9], said[9:]])
    assert result.response_pieces[-1] == said
    assert result.response.body == len(said)


def test_each_model_has_a_count_of_its_own():
    made = harness(limits=[{"type": "Requests", "limit": 1, "unit": "Day", "per": ["Model"]}])
    for model in ("a", "b"):
        assert ask(made, asked={**ASKED, "model": model}).error is None
        assert ask(made, asked={**ASKED, "model": model}).error.reason is Reason.REQUEST_RATE


def test_what_is_not_asked_of_a_model_needs_no_tokens():
    made = tokens(1000)
    ask(made, answer=json.dumps({"usage": {"prompt_tokens": 2000, "completion_tokens": 0}}).encode())
    assert left(made) < 0
    assert made.run(exchange("GET", "https://api.example/v1/models")).error is None
    assert made.run(exchange("CONNECT", "api.example:443")).error is None
    assert ask(made).error.reason is Reason.TOKEN_RATE


def test_another_spelling_of_a_path_is_no_way_around():
    made = tokens(1000)
    for url in (CHAT.replace("/v1/", "/v1//"), CHAT.replace("chat", "c%68at"), CHAT + "/"):
        before = left(made)
        ask(made, url, answer=json.dumps(ANSWERS[0][1]).encode())
        assert left(made) == before - 100
    ask(made, "https://api.example/internal/complete", answer=json.dumps(ANSWERS[0][1]).encode())
    assert left(made) == 600, "what an answer tells counts, whatever was asked"


def test_what_is_too_long_to_be_read_is_estimated_by_its_length():
    """Embeddings of tokens: what an answer to those has taken, it tells."""
    made = tokens(1_000_000)
    body = b'{"model": "e", "input": [' + b"1," * 250_000 + b"1]}"
    assert ask(made, "https://api.example/v1/embeddings", body, b"?").error is None
    assert left(made) == 1_000_000 - len(body) // 3 - 1024
    per_model = tokens(1_000_000, per=["Model"])
    assert ask(per_model, "https://api.example/v1/embeddings", body, b"?").error.status == 400


PRICES = [
    {"models": ["gpt-4o-mini*"], "input": 1, "output": 2},
    {"models": ["gpt-4o*"], "input": 10, "cachedInput": 1, "output": 20},
]


def test_money_is_counted_by_the_prices():
    made = harness(prices=PRICES, limits=[{"type": "Cost", "limit": 1.0, "unit": "Month", "name": "c"}])
    usage = {"prompt_tokens": 20_000, "completion_tokens": 10_000, "prompt_tokens_details": {"cached_tokens": 10_000}}
    ask(made, answer=json.dumps({"usage": usage}).encode())
    assert left(made) == pytest.approx(1.0 - 0.10 - 0.01 - 0.20)
    ask(made, asked={**ASKED, "model": "gpt-4o-mini-2024"}, answer=json.dumps({"usage": usage}).encode())
    assert left(made) == pytest.approx(0.69 - 0.02 - 0.02)
    usage["completion_tokens"] = 100_000
    ask(made, answer=json.dumps({"usage": usage}).encode())
    assert ask(made).error.reason is Reason.COST_LIMIT


def test_a_model_without_a_price_is_refused_where_money_is_limited():
    made = harness(prices=PRICES, limits=[{"type": "Cost", "limit": 1.0, "unit": "Month"}])
    error = ask(made, asked={**ASKED, "model": "o9"}).error
    assert (error.status, error.reason) == (403, Reason.COST_LIMIT)
    assert "o9" not in error.message


def test_limits_of_one_filter_hold_together():
    made = harness(tokensPerDay=250, requestsPerDay=50)
    ask(made, answer=b"{}")
    assert ask(made).error.reason is Reason.TOKEN_RATE
    rules = made._chain.request_headers[0].filter.rules
    assert [(rule.name, rule.count_allowed.count, rule.denied) for rule in rules] == [
        ("requests-day", 1, 0),
        ("tokens-day", 1, 1),
    ]


def test_tokens_of_one_backend_are_estimated_by_the_length():
    entry = LimitEntry("Tokens", 1000.0, "Day", name="t", per=("Backend",))
    config = QoSControllerConfig(limits=(entry,))
    keyed = OwnCounters().keyed
    made = quota(FilterContext(config, {}, "q", "s", "s", phase=Phase.BACKEND_REQUEST, keyed=keyed, meter=METER))
    x = exchange("POST", CHAT, JSON, backend="a/b")
    x.request.body = 300
    made.backend_request(x)
    assert made.rules[0].count_reserved.count == 1000, "never more than the limit, but for what is asked"
    made.backend_request(x)  # another attempt
    x.response, x.status, x.attempts = response(200, JSON), 200, 2
    made.body_mode_for(x, Phase.RESPONSE_BODY)
    made.response_body(x, json.dumps(ANSWERS[0][1]).encode(), True)
    made.complete(x)
    assert made.rules[0].count_settled.count == 100
    made.backend_request(exchange("POST", CHAT, JSON, backend="a/b"))


@pytest.mark.parametrize(
    "limit",
    [
        {"type": "Tokens", "limit": 1000, "unit": "Day"},
        {"type": "Cost", "limit": 10, "unit": "Day"},
        {"type": "Requests", "limit": 10, "unit": "Day", "per": ["Model"]},
    ],
)
def test_what_is_said_in_an_upgraded_connection_cannot_be_counted(limit):
    """A realtime API, or one of responses over WebSocket."""
    more = {"prices": [{"models": ["*"], "input": 1, "output": 1}]} if limit["type"] == "Cost" else {}
    for mode in ("Enforce", "Report"):
        x = exchange("GET", "https://api.example/v1/realtime?model=gpt-realtime")
        x.request.upgrade = b"websocket"
        result = harness(limits=[limit], mode=mode, **more).run(x, response=response(101))
        if mode == "Report":
            assert result.error is None
            assert x.would_deny == [Reason.FILTER_REJECTED]
        else:
            assert (result.error.status, result.error.reason) == (403, Reason.FILTER_REJECTED)
    x = exchange("GET", "https://api.example/v1/realtime")
    x.request.upgrade = b"websocket"
    other = {"type": "Requests", "limit": 10, "unit": "Day"}
    assert harness(limits=[other]).run(x, response=response(101)).error is None


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"total_tokens": 50}, 50),  # Voyage AI
        ({"completion_tokens": 20, "total_tokens": 50}, 50),
        ({"output_tokens": 20}, 20),
        ({}, 204),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, 204),
        ({"prompt_tokens": "70", "completion_tokens": None}, 204),
        ({"prompt_tokens": -70}, 204),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_usage_that_tells_nothing_gives_nothing_back(usage, counted, is_stream):
    """No answer has taken nothing: some servers tell zeros, or names that nobody knows."""
    made = tokens(1000)
    if not is_stream:
        ask(made, answer=json.dumps({"choices": [], "usage": usage}).encode())
        assert left(made) == 1000 - counted
        return
    ask(made, asked={**ASKED, "stream": True}, answer=sse({"choices": [], "usage": usage}), fields=EVENTS)
    assert left(made) == 1000 - (counted if counted < 204 else 104)


TWICE = b'{"model": "gpt-4o", "model": "gpt-4o", "stream": true, "messages": []}'


@pytest.mark.parametrize(
    "body",
    [
        TWICE,
        b'{"model": "gpt-4o", "messages": [], "Max_Completion_Tokens": 9000}',
        b'{"contents": [], "generationConfig": {"maxOutputTokens": 5, "MaxOutputTokens": 9000}}',
        b'{"model": "gpt-4o", "messages": [], "stream": true, "stream_options": {"Include_Usage": false}}',
        b"no json",
        b'{"model": "gpt-4o", "messages": [NaN]}',
        '{"model": "ä"}'.encode("utf-16"),
    ],
)
def test_a_request_that_may_be_read_in_two_ways_is_refused(body):
    """No stream of it is asked for its usage, and its model is not known."""
    made = tokens(1000)
    error = ask(made, asked=body).error
    assert (error.status, error.reason) == (400, Reason.FILTER_REJECTED)
    assert "cannot be counted" in error.message
    assert left(made) == 1000
    x = exchange("POST", CHAT, JSON)
    reported = harness(limits=[{"type": "Tokens", "limit": 1000, "unit": "Day"}], mode="Report")
    result = reported.run(x, request_body=body, response=response(200, JSON), response_body=b"{}")
    assert (result.error, result.request_body, x.would_deny) == (None, body, [Reason.FILTER_REJECTED])


def test_a_model_is_one_in_any_case():
    made = tokens(500, per=["Model"])
    for number, model in enumerate(("gpt-4o", "GPT-4o", "gpt-4O ")):
        error = ask(made, asked={**ASKED, "model": model}, answer=b"{}").error
        assert (error is None) is (number < 2)


@pytest.mark.parametrize("outer", ["generationConfig", "generation_config"])
@pytest.mark.parametrize("inner", ["candidateCount", "candidate_count"])
def test_each_answer_that_is_asked_for_is_reserved(outer, inner):
    made = tokens(1000)
    asked = {"contents": [{"parts": [{"text": "x" * 40}]}], outer: {inner: 8, "maxOutputTokens": 100}}
    assert ask(made, "https://api.example/v1beta/models/g:generateContent", asked, b"{}").error is None
    assert left(made) < 200


def test_no_request_reserves_for_more_answers_than_any_api_gives():
    """It would keep all others out, as long as it takes its provider to refuse it."""
    made = tokens(100_000)
    assert ask(made, asked={**ASKED, "n": 10**9}, answer=b"{}").error is None
    assert 100_000 - left(made) == 104 + 128 * 100


@pytest.mark.parametrize(("asked", "output"), [({}, 32_768), ({"max_output_tokens": 500}, 500)])
@pytest.mark.parametrize("is_plain", [True, False])
def test_an_answer_in_the_background_keeps_the_most_that_it_may_take(asked, output, is_plain):
    """What it has taken is told to whom asks for it later, again and again."""
    made = tokens(100_000)
    said = {"input": "x" * 400} if is_plain else {"input": [{"role": "user", "content": "x" * 400}]}
    queued = json.dumps({"status": "queued", "output": [], "usage": None}).encode()
    url = "https://api.example/v1/responses"
    assert ask(made, url, {"model": "o", "background": True, **said, **asked}, queued).error is None
    taken = 100_000 - left(made)
    assert 100 + output <= taken <= 110 + output
