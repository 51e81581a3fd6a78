from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.ai.apis import framing
from egressproxy.ai.apis.apis import Api
from egressproxy.filters.base import Phase
from egressproxy.filters.chain import finish
from egressproxy.filters.testing import FilterBuildError, FilterHarness, FilterResult, exchange, response
from egressproxy.model.exchange import LOGGED
from tests.ai.apis.bodies import PATHS, REQUESTS
from tests.ai.apis.streams import STREAMS
from tests.ai.apis.test_answer import ANSWERS

NAME = "egressproxy.io/TokenMeter:v1"
PRICES = [{"models": ["served", "m"], "input": 2, "output": 10, "cachedInput": 1}]


def harness(**config: Any) -> FilterHarness:
    return FilterHarness(config, type=NAME, phase="request-headers")


def ask(
    meter: FilterHarness,
    answer: bytes,
    *,
    path: bytes = b"/v1/chat/completions",
    request: dict[str, Any] | None = None,
    kind: str = "application/json",
    status: int = 200,
    identity: str = "team/agent",
    **fields: str,
) -> FilterResult:
    x = exchange(
        "POST",
        "http://a.example" + path.decode(),
        {"content-type": "application/json", **fields},
        identity=identity,
        backend="agents/a",
    )
    body = json.dumps(request or {"model": "m", "messages": [], "stream": kind != "application/json"}).encode()
    head = response(status, {"content-type": kind})
    return meter.run(x, request_body=body, response=head, response_body=answer)


def tokens(meter: FilterHarness, kind: str) -> float:
    return sum(value for labels, value in meter.metrics().get("egress_ai_tokens", {}).items() if labels[-1] == kind)


@pytest.mark.parametrize("api", list(ANSWERS))
def test_a_whole_answer_is_counted_by_the_names_of_opentelemetry(api: Api):
    meter = harness(prices=PRICES)
    answer = json.dumps(ANSWERS[api]).encode()
    result = ask(meter, answer, path=PATHS[api], request=REQUESTS[api])
    assert result.response_body == answer
    metrics = meter.metrics()
    model = {Api.GEMINI: "gemini-x", Api.BEDROCK_CONVERSE: "anthropic.claude-x:0"}.get(api, "m")
    served = "served" if api is not Api.BEDROCK_CONVERSE else model
    labels = ("-", "agents/a", "team", api.operation_name, api.provider, model, served)
    assert metrics["gen_ai_client_token_usage"] == {(*labels, "input"): 30, (*labels, "output"): 7}
    assert metrics["egress_ai_tokens"][(*labels, "cached")] == 20
    assert "gen_ai_server_time_to_first_token_seconds" not in metrics
    if api is not Api.BEDROCK_CONVERSE:
        assert metrics["egress_ai_cost"] == {(*labels, "USD"): pytest.approx((10 * 2 + 20 * 1 + 7 * 10) / 1e6)}
    logged = result.exchange.state.get(LOGGED)
    assert logged is not None
    assert (logged["gen_ai.usage.input_tokens"], logged["gen_ai.usage.output_tokens"]) == (30, 7)
    assert logged["gen_ai.request.model"] == model


def test_a_stream_is_counted_and_timed():
    meter = harness()
    result = ask(meter, STREAMS["AnthropicMessages"], path=b"/v1/messages", kind="text/event-stream")
    assert result.response_body == STREAMS["AnthropicMessages"]
    assert (tokens(meter, "input"), tokens(meter, "output"), tokens(meter, "reasoning")) == (30, 7, 2)
    metrics = meter.metrics()
    assert len(metrics["gen_ai_server_time_to_first_token_seconds"]) == 1
    assert len(metrics["gen_ai_server_time_per_output_token_seconds"]) == 1


def test_a_stream_is_asked_for_its_usage_and_the_client_does_not_see_it():
    meter = harness()
    result = ask(meter, STREAMS["OpenAIChat"], kind="text/event-stream")
    assert json.loads(result.request_body)["stream_options"] == {"include_usage": True}
    assert b'"usage"' not in result.response_body
    assert result.response_body.endswith(b"data: [DONE]\n\n")
    assert tokens(meter, "input") == 30


def test_usage_that_the_client_asks_for_stays():
    meter = harness()
    asked = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}}
    result = ask(meter, STREAMS["OpenAIChat"], kind="text/event-stream", request=asked)
    assert result.response_body == STREAMS["OpenAIChat"]
    assert json.loads(result.request_body) == asked


def test_an_answer_that_tells_nothing_is_counted_as_one():
    meter = harness()
    ask(meter, b'{"choices":[]}')
    assert meter.metrics() == {"egress_ai_untold": {("-", "agents/a", "team"): 1}}


def test_a_realtime_session_that_nobody_reads_is_counted_as_one():
    meter = harness()
    for path in ("/v1/realtime?model=m", "/v1/other"):
        x = exchange("GET", f"http://a.example{path}", identity="team/agent", backend="agents/a")
        x.request.upgrade = b"websocket"
        meter.run(x, response=response(101))
    assert meter.metrics() == {"egress_ai_untold": {("-", "agents/a", "team"): 1}}


def test_an_event_that_is_answered_with_nothing_is_not_counted_as_one():
    meter = harness()
    x = exchange("POST", "http://a.example/v1/responses", {"content-type": "application/json"}, backend="agents/a")
    meter.run(x, request_body=b'{"model":"m","input":"hi"}', phases=(Phase.REQUEST_HEADERS, Phase.REQUEST_BODY))
    x.status = 200
    del x.response
    finish(meter._chain.complete, x)
    assert meter.metrics() == {}


def test_failures_and_requests_of_other_kinds_count_nothing():
    meter = harness()
    ask(meter, json.dumps(ANSWERS[Api.OPENAI_CHAT]).encode(), status=500)
    ask(meter, json.dumps(ANSWERS[Api.OPENAI_CHAT]).encode(), path=b"/other")
    assert meter.metrics() == {}


def test_names_of_models_and_tenants_are_bounded():
    meter = harness(maxModels=2, tenant="Header", tenantHeader="X-Tenant", maxTenants=1)
    for number in range(5):
        answer = json.dumps({**ANSWERS[Api.OPENAI_CHAT], "model": "m"}).encode()
        ask(meter, answer, request={"model": f"m{number}", "messages": []}, **{"X-Tenant": f"t{number}"})
    labels = list(meter.metrics()["gen_ai_client_token_usage"])
    assert {each[5] for each in labels} == {"m0", "_other"} or {each[5] for each in labels} == {"m0", "m", "_other"}
    assert {each[2] for each in labels} == {"t0", "_other"}


def test_amazon_tells_usage_in_the_head():
    meter = harness()
    x = exchange("POST", "http://a.example/model/amazon.titan/invoke", {"content-type": "application/json"})
    fields = {
        "content-type": "application/json",
        "x-amzn-bedrock-input-token-count": "3",
        "x-amzn-bedrock-output-token-count": "4",
    }
    meter.run(x, request_body=b'{"inputText":"hi"}', response=response(200, fields), response_body=b'{"results":[]}')
    assert (tokens(meter, "input"), tokens(meter, "output")) == (3, 4)


def test_a_header_for_the_tenant_is_named():
    with pytest.raises(FilterBuildError, match="tenantHeader"):
        harness(tenant="Header")


def test_what_is_no_json_goes_on():
    meter = harness()
    x = exchange("POST", "http://a.example/v1/chat/completions", {"content-type": "application/json"})
    result = meter.run(x, request_body=b"no json", response=response(200), response_body=b"x")
    assert (result.request_body, result.response_body) == (b"no json", b"x")


def test_no_byte_is_lost_of_a_stream_with_an_event_that_is_too_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(framing, "MAX_EVENT_BYTES", 3000)
    meter = harness()
    before, _, usage = STREAMS["OpenAIChat"].partition(b"data: [DONE]\n\n")[0].rpartition(b"data: ")
    long = b"data: " + b"x" * 4000
    sent = [
        before,
        b"data: " + usage + long[:1000],
        *(long[at : at + 900] for at in range(1000, 4006, 900)),
        b"\n\nend",
    ]
    x = exchange("POST", "http://a.example/v1/chat/completions", {"content-type": "application/json"})
    asked = json.dumps({"model": "m", "messages": [], "stream": True}).encode()
    head = response(200, {"content-type": "text/event-stream"})
    result = meter.run(x, request_body=asked, response=head, response_body=sent)
    assert result.response_body == before + long + b"\n\nend"
    assert tokens(meter, "input") == 30
