from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.ai.apis.apis import Api
from egressproxy.errors import Reason
from egressproxy.filters.testing import FilterBuildError, FilterHarness, FilterResult, exchange
from tests.ai.apis.bodies import PATHS, REQUESTS

NAME = "egressproxy.io/ModelPolicy:v1"
EACH = pytest.mark.parametrize("api", list(REQUESTS))
IN_PATH = {
    Api.GEMINI: "gemini-x",
    Api.BEDROCK_CONVERSE: "anthropic.claude-x:0",
    Api.BEDROCK_INVOKE: "anthropic.claude-x:0",
}


def policy(**config: Any) -> FilterHarness:
    return FilterHarness(config, type=NAME, phase="request-headers", source="EgressPolicy agents/policy")


def ask(
    made: FilterHarness,
    body: dict[str, Any] | bytes,
    path: bytes = b"/v1/chat/completions",
    method: str = "POST",
    **fields: str,
) -> FilterResult:
    x = exchange(method, "http://a.example" + path.decode(), {"content-type": "application/json", **fields})
    return made.run(x, request_body=body if isinstance(body, bytes) else json.dumps(body).encode())


def chat(model: str | None = "m", **more: Any) -> dict[str, Any]:
    said = {} if model is None else {"model": model}
    return {**said, "messages": [{"role": "user", "content": "How warm is it?"}], **more}


def refused(result: FilterResult, status: int = 403) -> str:
    assert result.error is not None
    assert (result.error.status, result.error.reason) == (status, Reason.MODEL_DENIED)
    assert result.request_pieces == ()
    return result.error.message


@EACH
def test_a_model_is_judged_wherever_the_api_names_it(api: Api):
    model = IN_PATH.get(api, "m")
    body = json.dumps(REQUESTS[api], indent=1).encode()
    passed = ask(policy(allow=[model]), body, PATHS[api])
    assert passed.error is None
    assert passed.request_body == body
    assert f"{model!r} is not allowed" in refused(ask(policy(allow=["other"]), body, PATHS[api]))
    assert refused(ask(policy(deny=[f"{model[:-1].upper()}*"]), body, PATHS[api]))


def test_a_request_whose_tokens_are_counted_is_judged_too():
    """Claude Code asks so. It has no bounds: its API takes no limit there."""
    path, made = b"/v1/messages/count_tokens?beta=true", policy(
        allow=["good"], aliases=[{"name": "mine", "model": "good"}], maxOutputTokens=5)  # fmt: skip
    assert json.loads(ask(made, chat("mine"), path).request_body) == chat("good")
    assert "'bad' is not allowed" in refused(ask(made, chat("bad"), path))
    assert refused(ask(made, chat("good"), b"/v1beta/models/good:countTokens"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/openai/deployments/good/chat/completions", chat("bad")),
        (b"/openai/deployments/bad/chat/completions", chat("good")),
        (b"/v1/chat/completions", chat("good", models=["good", "bad"])),
        (b"/v1beta/models/good:generateContent", {"model": "models/bad", "contents": []}),
    ],
)
def test_every_model_that_a_request_names_is_judged(path: bytes, body: dict[str, Any]):
    assert "'bad' is not allowed" in refused(ask(policy(allow=["good"]), body, path))


@pytest.mark.parametrize(
    "body",
    [b"no json", b'{"model":"good","model":"bad"}', b'{"model":"good","Model":"bad"}', b"[]", b'{"a":"\\ud800"}'],
)
def test_what_cannot_be_read_in_one_way_is_refused(body: bytes):
    assert refused(ask(policy(allow=["good"]), body))
    assert ask(policy(allow=["good"], unreadable="Allow"), body).request_body == body


@pytest.mark.parametrize(
    ("method", "path", "body", "passes"),
    [
        ("GET", b"/v1/models", b"", True),
        ("POST", b"/v1/audio/speech", b"{}", False),
        ("POST", b"/v1/chat/completions", b"", False),
        ("PUT", b"/v1/chat/completions", b"{}", False),
        ("GET", b"/v1/chat/completions", b"{}", False),
        ("POST", b"/v1//chat%2Fcompletions", b'{"model":"bad"}', False),
    ],
)
def test_what_is_no_request_to_a_model_is_refused_unless_it_only_reads(
    method: str, path: bytes, body: bytes, passes: bool
):
    result = ask(policy(allow=["good"]), body, path, method)
    assert (result.error is None) is passes
    if not passes:
        refused(result)


def test_tunnels_and_upgrades_are_refused():
    made = policy(allow=["good"])
    assert "a tunnel" in refused(made.run(exchange("CONNECT", "a.example:443")))
    x = exchange("GET", "http://a.example/v1/realtime?model=bad")
    x.request.upgrade = b"websocket"
    assert "an upgrade" in refused(made.run(x))


@EACH
def test_an_alias_asks_for_another_model(api: Api):
    model = IN_PATH.get(api, "m")
    made = policy(
        aliases=[{"name": f"{model[:2]}*", "model": "real/1:x"}, {"name": "*", "model": "never"}], allow=["real*"]
    )
    result = ask(made, REQUESTS[api], PATHS[api])
    assert result.error is None
    if api in IN_PATH:
        assert result.request.path == PATHS[api].replace(
            PATHS[api].split(b"/")[-2 if api is not Api.GEMINI else -1].split(b":g")[0], b"real%2F1%3Ax"
        )
    else:
        assert json.loads(result.request_body) == {**REQUESTS[api], "model": "real/1:x"}


def test_an_alias_replaces_every_name():
    made = policy(aliases=[{"name": "*", "model": "good"}], allow=["good"])
    result = ask(made, chat("a", models=["a", "bad"]), b"/openai/deployments/x/chat/completions")
    assert result.request.path == b"/openai/deployments/good/chat/completions"
    said = json.loads(result.request_body)
    assert (said["model"], said["models"]) == ("good", ["good"])


def test_a_model_in_a_path_of_unusual_spelling_is_not_replaced():
    made = policy(aliases=[{"name": "*", "model": "good"}])
    assert "spelling" in refused(ask(made, {"contents": []}, b"/v1beta//models/x%3AgenerateContent"), 400)


def test_a_request_without_a_model_gets_the_default_or_is_refused():
    assert json.loads(ask(policy(defaultModel="good"), chat(None)).request_body)["model"] == "good"
    assert json.loads(ask(policy(defaultModel="good"), {**chat(), "model": 7}).request_body)["model"] == "good"
    assert "names no model" in refused(ask(policy(), chat(None)), 400)
    assert refused(ask(policy(defaultModel="bad", deny=["bad"]), chat(None)))


@pytest.mark.parametrize(
    ("match", "more"),
    [
        ({"models": ["m*"]}, {}),
        ({"field": "metadata.team", "values": ["re*"]}, {"metadata": {"team": "research"}}),
        ({"field": "stream", "values": ["true"]}, {"stream": True}),
        ({"textContains": ["WARM"]}, {}),
        ({"minTokens": 200}, {"messages": [{"role": "user", "content": "word " * 200}]}),
        ({"hasTools": True}, {"tools": [{"type": "function", "function": {"name": "t"}}]}),
        (
            {"hasImages": True},
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/"}}]}]},
        ),
    ],
)
def test_a_request_is_routed_by_what_it_says(match: dict[str, Any], more: dict[str, Any]):
    made = policy(routes=[{**match, "backend": "big", "exclude": ["other/small"]}])
    result = ask(made, chat(**more))
    assert (result.preferred_backend, result.excluded_backends) == ("agents/big", {"other/small"})
    plain = ask(made, {"model": "x", "messages": [{"role": "user", "content": "hi"}]})
    assert (plain.preferred_backend, plain.excluded_backends) == ("", frozenset())


def test_a_route_may_name_a_model_which_is_judged():
    routes = [{"hasImages": False, "model": "small"}]
    assert json.loads(ask(policy(routes=routes), chat("big")).request_body)["model"] == "small"
    assert refused(ask(policy(routes=routes, allow=["big"]), chat("big")))


@EACH
def test_limits_are_bounded_in_every_api(api: Api):
    made = policy(maxOutputTokens=10, maxTemperature=0.1)
    result = ask(made, REQUESTS[api], PATHS[api])
    text = result.request_body.decode()
    assert "100" not in text
    assert "0.5" not in text
    strict = policy(maxOutputTokens=10, outOfBounds="Deny")
    assert "more than 10 output tokens" in refused(ask(strict, REQUESTS[api], PATHS[api]), 400)
    strict = policy(maxTemperature=0.1, outOfBounds="Deny")
    assert "temperature" in refused(ask(strict, REQUESTS[api], PATHS[api]), 400)


def test_a_request_without_a_limit_gets_the_bound():
    made = policy(maxOutputTokens=10)
    assert json.loads(ask(made, chat()).request_body)["max_completion_tokens"] == 10
    assert ask(made, {"model": "m", "input": "x"}, b"/v1/embeddings").request_body == b'{"model": "m", "input": "x"}'
    assert "no limit" in refused(ask(made, {"inputText": "x"}, b"/model/amazon.titan/invoke"), 400)


def test_results_are_counted():
    made = policy(allow=["m"], aliases=[{"name": "a", "model": "m"}])
    ask(made, chat())
    ask(made, chat("a"))
    ask(made, chat("x"))
    ask(made, b"x")
    assert made.metrics()["egress_model_policy"] == {
        ("-", "allowed"): 1, ("-", "changed"): 1, ("-", "denied"): 1, ("-", "unreadable"): 1
    }  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        {"routes": [{"models": ["a"]}]},
        {"routes": [{"field": "a", "backend": "b"}]},
        {"unknown": 1},
        {"maxTemperature": 3},
    ],
)
def test_a_config_that_says_nothing_is_refused(config: dict[str, Any]):
    with pytest.raises(FilterBuildError):
        policy(**config)


@pytest.mark.parametrize("key", ["modelſ", "Models", "FALLBACKS", "meſſages", "toolſ"])
def test_a_name_that_some_servers_fold_to_a_known_one_is_refused(key: str):
    assert "some servers take for" in refused(ask(policy(allow=["m"]), chat("m", **{key: ["other"]})))


@pytest.mark.parametrize(
    "more",
    [{"fallbacks": ["other"]}, {"fallbacks": [{"model": "other"}]}, {"models": "other"}, {"models": [["other"]]}],
)
def test_every_model_that_may_be_asked_instead_is_judged(more: dict[str, Any]):
    refused(ask(policy(allow=["m"]), chat("m", **more)))


@pytest.mark.parametrize(
    "more",
    [
        {"max_tokens": 10, "max_completion_tokens": "9000"},
        {"max_tokens": 10, "max_completion_tokens": 9000.0},
        {"temperature": "1.9"},
    ],
)
def test_a_bound_holds_for_numbers_in_another_form(more: dict[str, Any]):
    bounds = {"max_output_tokens": 100, "max_temperature": 1.0}
    refused(ask(policy(**bounds, out_of_bounds="Deny"), chat(**{"max_tokens": 10, **more})), 400)
    sent = json.loads(ask(policy(**bounds), chat(**more)).request_body)
    assert all(sent[name] in (100, 1.0) for name in more)


@pytest.mark.parametrize(
    "path",
    [
        b"/openai/deployments/big/chat/completions", b"/openai/%64eployments/big/chat/completions",
        b"/openai//deployments/big/chat/completions", b"/OPENAI/Deployments/big/chat/completions",
        b"/openai/deployments/big;a/chat/completions", b"/openai/deployments/big/extensions/chat/completions",
    ],
)  # fmt: skip
def test_the_model_in_a_path_is_judged_in_every_spelling_of_the_path(path: bytes):
    assert "'big' is not allowed" in refused(ask(policy(allow=["small"]), chat("small"), path))
