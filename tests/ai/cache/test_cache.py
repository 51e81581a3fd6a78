from __future__ import annotations

import gzip
import json

import pytest

from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain, finish, run_to_end
from egressproxy.filters.filter_step import FilterAnswered
from egressproxy.filters.instances import FilterInstances
from egressproxy.filters.testing import FilterHarness, exchange, response
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import CALLERS_OWN, LOGGED
from egressproxy.model.key_grant import KeyGrant

CHAT = "https://api.example.com/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
ANSWER = b'{"id": "1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}'
JSON = {"Content-Type": "application/json"}
SSE = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
STREAM = [b'data: {"choices": [{"delta": {"content": "h', b'i"}}]}\n\ndata: [DONE]\n\n']


def cache(**config) -> FilterHarness:
    return FilterHarness(config, type="egressproxy.io/Cache:v1", phase="request-headers")


def post(body=BODY, headers=(), identity="agents/worker", url=CHAT):
    made = exchange("POST", url, {**JSON, **dict(headers)}, identity=identity)
    made.request.body = len(body)
    return made


def ask(harness, x=None, body=BODY, answer=ANSWER, head=None, pieces=None):
    return harness.run(
        x or post(body),
        request_body=body,
        response=head or response(200, JSON),
        response_body=pieces or answer,
    )


def is_hit(result) -> bool:
    told = result.response.fields.get(b"cache-status") or b""
    assert told.startswith((b"egressproxy; hit", b"egressproxy; fwd=")), told
    return told.startswith(b"egressproxy; hit")


def test_the_same_request_is_answered_with_the_same_answer():
    harness = cache()
    assert not is_hit(ask(harness))
    result = ask(harness, answer=b'{"choices": ["another"]}')
    assert is_hit(result)
    assert result.response_body == ANSWER
    assert result.response.fields.get(b"content-type") == b"application/json"
    assert result.response.fields.get(b"age") == b"0"


@pytest.mark.parametrize("config", [{}, {"shareTenants": True}])
def test_api_keys_for_other_models_share_no_answer(config):
    """The ModelPolicy that compares them may be one of the route, behind the Cache of a Gateway."""
    harness = cache(**config)

    def of_key(*models):
        made = post()
        grant = KeyGrant("agents/keys#ci", b"d", models=models or None)
        made.identity = CallerIdentity(name="agents/keys#ci", source="key", grant=grant)
        return made

    assert [is_hit(ask(harness, of_key(*each))) for each in ((), (), ("m",), ("m",), ("o9",))] == [
        False, True, False, True, False,
    ]  # fmt: skip


def test_a_client_whose_groups_have_changed_does_not_get_what_they_have_opened():
    """The backend's credential may be that of a group (`callers` of CredentialInjector)."""
    harness = cache()

    def of_group(*groups):
        made = post()
        made.identity = CallerIdentity(name="egress/users#ann", source="token", groups=groups)
        return made

    assert [is_hit(ask(harness, of_group(*each))) for each in (("staff",), ("staff",), ())] == [False, True, False]


def test_an_answer_to_a_credential_of_the_caller_passes_to_no_other_tenant():
    harness = cache(shareTenants=True)

    def own(identity):
        made = post(identity=identity)
        made.keep(CALLERS_OWN, True)
        return made

    assert [is_hit(ask(harness, own(each))) for each in ("agents/worker", "agents/worker", "agents/other")] == [
        False
    ] * 3
    assert not is_hit(ask(harness, post(identity="agents/other")))


def test_members_in_another_order_and_blanks_are_the_same_request():
    harness = cache()
    ask(harness)
    other = b'{ "messages": [{"content":"hi","role":"user"}], "model":"m" }'
    assert is_hit(ask(harness, post(other), other))
    third = BODY.replace(b"hi", b"ho")
    assert not is_hit(ask(harness, post(third), third))


@pytest.mark.parametrize(
    "other",
    [
        {"identity": "agents/other"},
        {"identity": "lab/worker"},
        {"headers": {"Authorization": "Bearer b"}},
        {"headers": {"X-Api-Key": "b"}},
        {"headers": {"X_Api_Key": "b"}},
        {"headers": {"xi-api-key": "b"}},
        {"headers": {"Ocp-Apim-Subscription-Key": "b"}},
        {"headers": {"Private-Token": "b"}},
        {"headers": {"Cookie": "a=b"}},
        {"url": CHAT.replace("example", "other")},
        {"url": CHAT + "?a=b"},
        {"url": CHAT.replace("https", "http")},
        {"headers": {"Anthropic-Version": "1"}},
        {"headers": {"X-Mine": "1"}},
    ],
)
def test_what_another_client_or_another_request_has_got_is_not_given(other):
    harness = cache(keyHeaders=["X-Mine"])
    ask(harness)
    assert not is_hit(ask(harness, post(**other)))
    assert is_hit(ask(harness))


def test_clients_that_nothing_tells_apart_share_only_where_the_config_says_so():
    harness = cache()
    for _ in range(2):
        assert not is_hit(ask(harness, post(identity="-/-")))
    harness = cache(shareAnonymous=True)
    ask(harness, post(identity="-/-"))
    assert is_hit(ask(harness, post(identity="-/-")))
    # With a credential it is not anonymous.
    assert not is_hit(ask(harness, post(identity="-/-", headers={"Authorization": "Bearer a"})))


def test_answers_pass_from_one_tenant_to_another_only_where_the_config_says_so():
    harness = cache()
    ask(harness, post())
    assert not is_hit(ask(harness, post(identity="lab/worker")))
    harness = cache(shareTenants=True)
    ask(harness, post())
    assert is_hit(ask(harness, post(identity="lab/other")))
    # What a backend tells apart is not the same, and nobody knows who is nobody.
    assert not is_hit(ask(harness, post(identity="lab/other", headers={"Authorization": "Bearer a"})))
    for _ in range(2):
        assert not is_hit(ask(harness, post(identity="-/-")))


def test_clients_without_identity_that_hold_the_same_credential_share_nothing():
    def anonymous(client):
        fields = {**JSON, "authorization": "Bearer placeholder-of-everybody"}
        return exchange("POST", CHAT, fields, client=client)

    harness = cache()
    ask(harness, anonymous("192.0.2.1:40000"))
    assert is_hit(ask(harness, anonymous("192.0.2.1:50000")))
    assert not is_hit(ask(harness, anonymous("192.0.2.2:40000")))
    shared = cache(shareAnonymous=True)
    ask(shared, anonymous("192.0.2.1:40000"))
    assert is_hit(ask(shared, anonymous("192.0.2.2:40000")))


def test_the_name_of_a_credential_is_the_same_in_any_case():
    harness = cache()
    ask(harness, post(headers=(("Authorization", "Bearer a"),)))
    assert is_hit(ask(harness, post(headers=(("authorization", "Bearer a"),))))
    assert not is_hit(ask(harness, post(headers=(("authorization", "bearer a"),))))


def test_a_stream_is_recorded_and_given_as_it_was():
    harness = cache()
    result = ask(harness, head=response(200, SSE), pieces=STREAM)
    assert list(result.response_pieces)[:2] == STREAM
    result = ask(harness, head=response(200, SSE), pieces=[b"x"])
    assert is_hit(result)
    assert result.response_body == b"".join(STREAM)
    assert result.response.fields.get(b"content-type") == b"text/event-stream"


def test_an_answer_with_a_status_of_another_kind_is_kept():
    harness = cache()
    ask(harness, head=response(200, JSON), pieces=[ANSWER[:-1] + b', "status": {}}'])
    assert is_hit(ask(harness))


@pytest.mark.parametrize(
    ("head", "pieces"),
    [
        (response(500, JSON), [ANSWER]),
        (response(429, JSON), [ANSWER]),
        (response(200, {**JSON, "Cache-Control": "no-store"}), [ANSWER]),
        (response(200, {**JSON, "Cache-Control": "private, max-age=60"}), [ANSWER]),
        (response(200, {**JSON, "Set-Cookie": "a=b"}), [ANSWER]),
        (response(200, {**JSON, "Vary": "*"}), [ANSWER]),
        (response(200, JSON), [b'{"error": {"message": "overloaded"}}']),
        (response(200, JSON), [b"no json"]),
        (response(200, JSON), [b'{"object": "response", "status": "in_progress"}']),
        (response(200, SSE), STREAM[:1]),
        (response(200, SSE), [b'data: {"choices": []}\n\n']),
        (response(200, SSE), [b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error"}}\n\n']),
        (response(200, SSE), [b'data: {"type": "response.failed"}\n\ndata: [DONE]\n\n']),
    ],
)
def test_errors_and_what_must_not_be_kept_are_not_kept(head, pieces):
    harness = cache()
    ask(harness, head=head, pieces=pieces)
    assert not is_hit(ask(harness))


def test_an_answer_is_given_until_its_time_is_over():
    harness = cache(ttlSeconds=60)
    now = [1000.0]
    at(harness, now)
    ask(harness)
    now[0] += 59
    result = ask(harness)
    assert is_hit(result)
    assert result.response.fields.get(b"age") == b"59"
    assert result.response.fields.get(b"cache-status") == b"egressproxy; hit; ttl=1"
    now[0] += 1
    assert not is_hit(ask(harness))


def at(harness, now):
    """Have the filter take the time from here."""
    _, step = harness._chain.request_headers
    step.filter.now = lambda: now[0]


@pytest.mark.parametrize(
    "headers",
    [
        {"Cache-Control": "no-store"},
        {"If-None-Match": '"a"'},
        {"Range": "bytes=0-1"},
        {"Content-Encoding": "identity"},
    ],
)
def test_a_request_that_asks_for_something_else_is_neither_looked_for_nor_kept(headers):
    harness = cache()
    result = ask(harness, post(headers=headers))
    assert result.response.fields.get(b"cache-status") == b"egressproxy; fwd=bypass"
    assert not is_hit(ask(harness))


def test_no_cache_brings_a_new_answer_which_is_kept():
    harness = cache()
    ask(harness)
    assert not is_hit(ask(harness, post(headers={"Cache-Control": "no-cache"}), answer=b'{"id": "2"}'))
    assert ask(harness).response_body == b'{"id": "2"}'


def test_only_if_cached_is_refused_where_nothing_is_known():
    assert ask(cache(), post(headers={"Cache-Control": "only-if-cached"})).status == 504


@pytest.mark.parametrize("member", ["previous_response_id", "conversation", "background"])
def test_an_answer_that_depends_on_what_the_provider_remembers_is_not_kept(member):
    harness = cache()
    body = json.dumps({"model": "m", "input": "hi", member: "x"}).encode()
    for _ in range(2):
        x = post(body, url="https://api.example.com/v1/responses")
        assert not is_hit(ask(harness, x, body))


def test_a_post_that_is_for_no_ai_provider_is_never_answered_from_here():
    harness = cache()
    for _ in range(2):
        assert not is_hit(ask(harness, post(url="https://api.example.com/orders")))


def get(headers=(), url="https://api.example.com/v1/models"):
    return exchange("GET", url, dict(headers), identity="agents/worker")


def fetch(harness, headers=(), **answer):
    head = response(200, {"Content-Type": "text/plain", **answer})
    return harness.run(get(headers), response=head, response_body=b"models")


def test_a_get_is_kept_as_long_as_it_says():
    harness = cache()
    now = [0.0]
    at(harness, now)
    fetch(harness, **{"Cache-Control": "max-age=10"})
    now[0] = 9
    assert is_hit(fetch(harness))
    now[0] = 10
    assert not is_hit(fetch(harness, **{"Cache-Control": "no-cache"}))
    assert not is_hit(fetch(harness))


def test_the_answer_to_a_get_with_authorization_is_kept_where_it_says_that_it_may_be():
    harness, key = cache(), {"Authorization": "Bearer a"}
    fetch(harness, key)
    assert not is_hit(fetch(harness, key, **{"Cache-Control": "public"}))
    assert is_hit(fetch(harness, key))


@pytest.mark.parametrize(("coding", "keeps"), [({}, True), ({"Content-Encoding": "gzip"}, False)])
def test_an_answer_that_must_not_be_transformed_is_not_kept_without_its_coding(coding, keeps):
    said = {"Cache-Control": "max-age=10, No-Transform", **coding}
    harness, body = cache(), gzip.compress(b"models", mtime=0) if coding else b"models"
    for _ in range(2):
        result = harness.run(get(), response=response(200, said), response_body=body)
        assert result.error is None
    assert is_hit(result) is keeps
    assert result.response_body == body


def test_variants_are_told_apart_by_what_vary_names():
    harness = cache()
    fetch(harness, {"X-Lang": "de"}, Vary="X-Lang, Accept-Encoding")
    assert is_hit(fetch(harness, {"X-Lang": "de", "Accept-Encoding": "gzip"}))
    assert not is_hit(fetch(harness, {"X-Lang": "en"}, Vary="X-Lang"))
    assert is_hit(fetch(harness, {"X-Lang": "de"}))
    assert is_hit(fetch(harness, {"X-Lang": "en"}))


def test_it_is_bounded_in_entries_and_bytes_and_the_longest_unused_goes_first():
    harness = cache(maxEntries=2)
    bodies = [BODY.replace(b"hi", b"h%d" % n) for n in range(3)]
    for body in bodies:
        ask(harness, post(body), body)
    assert [is_hit(ask(harness, post(body), body)) for body in (bodies[2], bodies[1], bodies[0])] == [True, True, False]
    metrics = harness.metrics()
    assert sum(metrics["egress_cache_evictions_total"].values()) == 2
    assert metrics["egress_cache_requests_total"] == {("miss",): 4, ("hit",): 2}


def test_an_answer_that_is_too_long_passes_and_is_not_kept():
    harness = cache(maxEntryBytes=1024)
    long = b'{"a": "' + b"x" * 2000 + b'"}'
    assert ask(harness, answer=long).response_body == long
    assert not is_hit(ask(harness))


def test_a_request_that_is_too_long_passes_and_is_not_looked_for():
    harness = cache(maxEntryBytes=1024)
    long = b'{"model": "' + b"x" * 2000 + b'"}'
    result = ask(harness, post(long), long)
    assert result.response.fields.get(b"cache-status") == b"egressproxy; fwd=bypass"
    assert result.request_body == long


def test_what_it_did_is_told_to_the_log():
    harness = cache()
    first, second = post(), post()
    ask(harness, first)
    ask(harness, second)
    assert [x.state.get(LOGGED)["cache"] for x in (first, second)] == ["miss", "hit"]


@pytest.mark.parametrize(("counts", "tokens"), [(False, 0), (True, 7)])
def test_tokens_of_what_it_gives_count_as_the_config_says(counts, tokens):
    from egressproxy.ai.apis.shared import usage_told

    harness = cache(countsTokens=counts)
    ask(harness)
    x = post()
    assert is_hit(ask(harness, x))
    assert usage_told(x).total_tokens == tokens


REDACT = (
    "import re\nfrom egressproxy.filters import BodyMode, Filter, Phase\n"
    "class Redact(Filter):\n"
    "    runs_in = frozenset((Phase.REQUEST_BODY, Phase.RESPONSE_BODY))\n"
    "    body_mode = BodyMode.BUFFER\n"
    "    def request_body(self, x, data, last):\n"
    "        x.note('name', re.search(rb'name:(\\w+)', data)[1])\n"
    "        return re.sub(rb'name:\\w+', b'<NAME>', data)\n"
    "    def response_body(self, x, data, last): return data.replace(b'<NAME>', x.notes['name'])\n"
)


def chain_of(tmp_path, *specs):
    (tmp_path / "redact.py").write_text(REDACT)
    instances = FilterInstances(Catalog())
    return compile_chain(specs, instances.place)


def spec(tmp_path, priority=1000, **config):
    return ExtensionIR(
        "cache",
        "egressproxy.io/Cache:v1",
        "request-headers",
        priority,
        config=json.dumps(config),
        source="EgressPolicy a/b",
    )


def redact(tmp_path, priority=10):
    return ExtensionIR(
        "redact", "egressproxy.io/Python:v1", "request-body", priority, config='{"path": "redact.py"}',
        folder=str(tmp_path),
    )  # fmt: skip


async def serve(chain, body, answer, said=(), headers=()):
    """What a client gets; `answer` makes the backend's answer out of what comes to it, and its head has `said`."""
    x = post(body, headers) if headers else post(body)
    assert await run_to_end(chain.request_headers, x) is None
    try:
        sent = await chain.request_body.begin(x).feed_to_end(x, body, True)
    except FilterAnswered as answered:
        finish(chain.complete, x)
        return answered.answer.body
    x.response = response(200, {**JSON, **dict(said)})
    x.response.body = 1  # there is one
    x.attempts, x.status = 1, 200
    for steps in chain.response_phases:
        await run_to_end(steps, x)
    looking = chain.response_body.begin(x)
    got = answer(sent) if looking is None else await looking.feed_to_end(x, answer(sent), True)
    finish(chain.complete, x)
    return got


async def test_two_texts_that_are_redacted_to_one_are_two_requests(tmp_path):
    chain = chain_of(tmp_path, spec(tmp_path), redact(tmp_path))
    asked = []

    def answer(sent):
        asked.append(sent)
        return b'{"choices": ["hello <NAME>"]}'

    alice, bob = (BODY.replace(b"hi", b"name:" + name) for name in (b"alice", b"bob"))
    assert await serve(chain, alice, answer) == b'{"choices": ["hello alice"]}'
    assert await serve(chain, bob, answer) == b'{"choices": ["hello bob"]}'
    assert await serve(chain, alice, answer) == b'{"choices": ["hello alice"]}'
    assert asked == [BODY.replace(b"hi", b"<NAME>")] * 2


def test_it_has_to_be_the_last_filter_of_bodies(tmp_path):
    with pytest.raises(ValueError, match=r"EgressPolicy a/b: filter cache .*filter redact runs behind the cache"):
        chain_of(tmp_path, spec(tmp_path, 10), redact(tmp_path, 1000))


async def test_what_is_kept_for_one_rule_is_not_found_by_another_with_the_same_filters(tmp_path):
    instances = FilterInstances(Catalog())
    first, second = (compile_chain([spec(tmp_path)], instances.place) for _ in range(2))
    assert first.is_of_one_place
    assert await serve(first, BODY, lambda _: b'{"choices": [1]}') == b'{"choices": [1]}'
    assert await serve(second, BODY, lambda _: b'{"choices": [2]}') == b'{"choices": [2]}'
    assert await serve(first, BODY, lambda _: b'{"choices": [3]}') == b'{"choices": [1]}'


async def test_the_head_of_another_attempt_is_not_kept_with_this_body(tmp_path):
    chain = compile_chain([spec(tmp_path)], FilterInstances(Catalog()).place)
    x = post()
    assert await run_to_end(chain.request_headers, x) is None
    await chain.request_body.begin(x).feed_to_end(x, BODY, True)
    mine = x.response = response(200, JSON)
    mine.body = 1
    await run_to_end(chain.backend_response, x)
    x.response = response(200, {"Content-Type": "text/plain"})
    await run_to_end(chain.backend_response, x)  # a hedged attempt, which loses
    x.response = mine
    assert chain.response_body.begin(x) is None


PII = ExtensionIR(
    "pii", "egressproxy.io/PIIDetector:v1", "request-headers",
    config=json.dumps({"entities": [{"name": "EMAIL", "action": "Placeholder"}]}),
)  # fmt: skip


async def test_personal_data_that_was_put_back_is_given_to_whom_it_was_written_by(tmp_path):
    chain = compile_chain([spec(tmp_path), PII], FilterInstances(Catalog()).place)
    asked = []

    def answer(sent):
        asked.append(sent)
        return b'{"choices": [{"message": {"content": "to <EMAIL_1>"}}]}'

    got = [
        await serve(chain, BODY.replace(b"hi", b"write to " + name + b"@acme.example"), answer)
        for name in (b"alice", b"bob", b"alice")
    ]
    assert [name for each in got for name in (b"alice", b"bob") if name + b"@acme" in each] == [
        b"alice",
        b"bob",
        b"alice",
    ]
    assert len(asked) == 2
    assert asked[0] == asked[1]
    assert b"<EMAIL_1>" in asked[0]


async def test_two_queries_that_are_redacted_to_one_are_two_requests(tmp_path):
    chain = compile_chain([spec(tmp_path), PII], FilterInstances(Catalog()).place)
    for name in ("alice", "bob"):
        x = get(url=f"https://api.example.com/find?q={name}@acme.example")
        assert await run_to_end(chain.request_headers, x) is None
        assert name.encode() not in x.request.path
        x.response = response(200, {"Content-Type": "text/plain"})
        x.response.body = 1
        for steps in chain.response_phases:
            await run_to_end(steps, x)
        assert await chain.response_body.begin(x).feed_to_end(x, name.encode(), True) == name.encode()
        finish(chain.complete, x)


async def test_a_credential_that_another_filter_has_removed_still_tells_clients_apart(tmp_path):
    remove = ExtensionIR(
        "remove",
        "egressproxy.io/HeaderPolicy:v1",
        "request-headers",
        config='{"request": {"remove": ["Authorization"]}}',
    )
    chain = compile_chain([spec(tmp_path), remove], FilterInstances(Catalog()).place)
    for key in ("a", "b"):
        x = post(identity="-/-", headers={"Authorization": f"Bearer {key}"})
        assert await run_to_end(chain.request_headers, x) is None
        assert b"authorization" not in x.request.fields
        assert await chain.request_body.begin(x).feed_to_end(x, BODY, True) == BODY
        x.response = response(200, JSON)
        x.response.body = 1
        for steps in chain.response_phases:
            await run_to_end(steps, x)
        await chain.response_body.begin(x).feed_to_end(x, ANSWER, True)
        finish(chain.complete, x)


def behind_a_gateway(client):
    """Of a client that another gateway of ours serves: it has signed where that is, and knows no more."""
    x = exchange("POST", CHAT, {**JSON, "authorization": "Bearer placeholder-of-everybody"})
    x.identity = CallerIdentity(origin_client=client, origin_gateway="lab/egress")
    x.request.body = len(BODY)
    return x


def test_clients_behind_another_gateway_that_hold_the_same_credential_share_nothing():
    harness = cache()
    ask(harness, behind_a_gateway("10.0.0.1"))
    assert is_hit(ask(harness, behind_a_gateway("10.0.0.1")))
    assert not is_hit(ask(harness, behind_a_gateway("10.0.0.2")))


def named(name):
    """Known by a token of no service account."""
    x = exchange("POST", CHAT, {**JSON, "authorization": "Bearer placeholder-of-everybody"})
    x.identity = CallerIdentity(name=name, source="token")
    x.request.body = len(BODY)
    return x


def test_clients_of_different_names_share_nothing():
    harness = cache()
    ask(harness, named("https://login.test#one"))
    assert is_hit(ask(harness, named("https://login.test#one")))
    assert not is_hit(ask(harness, named("https://login.test#two")))


FORGET = (
    "from egressproxy.filters import Filter, Phase\n"
    "class Forget(Filter):\n"
    "    runs_in = frozenset((Phase.RESPONSE_HEADERS,))\n"
    "    def response_headers(self, x):\n"
    "        for name in (b'cache-control', b'set-cookie', b'vary'):\n"
    "            x.response.fields.remove(name)\n"
)


@pytest.mark.parametrize(
    "said", [{}, {"Cache-Control": "no-store"}, {"Cache-Control": "private"}, {"Set-Cookie": "a=b"}, {"Vary": "*"}]
)
async def test_what_a_filter_takes_out_of_the_head_of_an_answer_holds_for_it_all_the_same(tmp_path, said):
    (tmp_path / "forget.py").write_text(FORGET)
    forget = ExtensionIR(
        "forget", "egressproxy.io/Python:v1", "response-headers", 10, config='{"path": "forget.py"}',
        folder=str(tmp_path),
    )  # fmt: skip
    chain = chain_of(tmp_path, spec(tmp_path), forget)
    asked = []

    def answer(sent):
        asked.append(sent)
        return ANSWER

    for _ in range(2):
        assert await serve(chain, BODY, answer, said) == ANSWER
    assert len(asked) == (2 if said else 1)


async def test_what_the_head_said_to_the_gateway_tells_for_whom_the_answer_is(tmp_path):
    """Vary, which a filter takes out on the way to clients."""
    (tmp_path / "forget.py").write_text(FORGET)
    forget = ExtensionIR(
        "forget", "egressproxy.io/Python:v1", "response-headers", 10, config='{"path": "forget.py"}',
        folder=str(tmp_path),
    )  # fmt: skip
    chain = chain_of(tmp_path, spec(tmp_path), forget)
    vary = {"Vary": "X-Team"}
    for team in (b"red", b"blue"):
        answer = b'{"choices": ["%b"]}' % team
        said = await serve(chain, BODY, lambda _, answer=answer: answer, vary, {"X-Team": team.decode()})
        assert said == answer


QUOTA = ExtensionIR(
    "quota", "egressproxy.io/QoSController:v1", "request-headers",
    config=json.dumps({"limits": [{"type": "Tokens", "limit": 10_000, "unit": "Day", "name": "t"}]}),
)  # fmt: skip


@pytest.mark.parametrize(("counts", "left"), [(False, 9993), (True, 9979)])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_limits_on_tokens_count_what_it_gives_as_the_config_says(tmp_path, counts, left, is_stream):
    chain = compile_chain([spec(tmp_path, countsTokens=counts), QUOTA], FilterInstances(Catalog()).place)
    asked, answer, head = BODY, ANSWER, {}
    if is_stream:
        asked = BODY.replace(b'"m",', b'"m", "stream": true,')
        usage = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}\n\n'
        answer, head = b'data: {"choices": []}\n\n' + usage + b"data: [DONE]\n\n", SSE
    for _ in range(3):
        await serve(chain, asked, lambda _: answer, head)
    rule = next(step.filter.rules[0] for step in chain.request_body.steps if hasattr(step.filter, "rules"))
    table = rule.table
    assert 10_000 - table.peek(table.key(b"\0" + rule.window.period(1e9)), 0.0)[1] == left
