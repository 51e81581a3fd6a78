from __future__ import annotations

import json

import pytest

from egressproxy.ai.cache.cache import CACHE, CacheConfig
from egressproxy.errors import Reason
from egressproxy.filters import CallAnswer, CallFailed, Fields
from egressproxy.filters.base import FilterContext, Phase
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain
from egressproxy.filters.configured_filter import ConfiguredFilter
from egressproxy.filters.instances import FilterInstances
from egressproxy.filters.validation import validated
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics
from tests.ai.cache.test_cache import BODY, REDACT, post, redact, serve, spec

SEMANTIC = {"backendRef": {"name": "embed", "port": 80}, "model": "e", "threshold": 0.9}
LIKE = {"hi": [1, 0], "hello": [3, 1], "bye": [0, 5], "<NAME>": [1, 0]}


class Embeddings:
    """A FilterCall that knows the vectors of some texts."""

    backend = "agents/embed"
    is_verified = True

    def __init__(self, said=None):
        self.asked = []
        self.said = said

    async def request(self, method, path, fields=(), body=b"", *, timeout_s, x=None):
        asked = json.loads(body)
        self.asked.append((path, asked["model"], asked["input"]))
        if isinstance(self.said, Exception):
            raise self.said
        said = self.said or {"data": [{"embedding": LIKE[asked["input"]]}]}
        return CallAnswer(200, Fields(), json.dumps(said).encode())


def chain_with(tmp_path, embeddings, *others):
    config = validated(CacheConfig, json.dumps({"semantic": SEMANTIC}))
    calls = {config.semantic.backend_ref.label: embeddings}
    meter = FilterMeter(FilterMetrics(), "cache", CACHE.name)
    made = CACHE.build(FilterContext(config, {}, "cache", "-", "-", calls=calls, meter=meter))
    instances = FilterInstances(Catalog())
    placed = ConfiguredFilter(spec(tmp_path), made, CACHE.also)
    return compile_chain(
        [spec(tmp_path), *others], lambda each: placed if each.name == "cache" else instances.place(each)
    )


def asking(text, **more):
    return json.dumps({**json.loads(BODY), "messages": [{"role": "user", "content": text}], **more}).encode()


def answer(number):
    return lambda _: b'{"choices": [%d]}' % number


async def test_a_question_of_like_meaning_gets_the_answer_that_is_known(tmp_path):
    embeddings = Embeddings()
    chain = chain_with(tmp_path, embeddings)
    assert await serve(chain, asking("hi"), answer(1)) == b'{"choices": [1]}'
    assert await serve(chain, asking("hello"), answer(2)) == b'{"choices": [1]}'
    assert await serve(chain, asking("bye"), answer(3)) == b'{"choices": [3]}'
    assert embeddings.asked == [(b"/v1/embeddings", "e", text) for text in ("hi", "hello", "bye")]
    # An equal one needs no vector.
    assert await serve(chain, asking("bye"), answer(4)) == b'{"choices": [3]}'
    assert len(embeddings.asked) == 3


@pytest.mark.parametrize("other", [{"model": "n"}, {"temperature": 1}, {"stream": True}])
async def test_all_else_has_to_be_equal(tmp_path, other):
    chain = chain_with(tmp_path, Embeddings())
    await serve(chain, asking("hi"), answer(1))
    assert await serve(chain, asking("hello", **other), answer(2)) == b'{"choices": [2]}'


async def test_texts_before_the_question_have_to_be_equal(tmp_path):
    chain = chain_with(tmp_path, Embeddings())
    turns = [[{"role": "system", "content": who}, {"role": "user", "content": "hi"}] for who in ("a", "b")]
    await serve(chain, asking("", messages=turns[0]), answer(1))
    assert await serve(chain, asking("", messages=turns[1]), answer(2)) == b'{"choices": [2]}'


async def test_another_client_gets_nothing_of_like_meaning(tmp_path, monkeypatch):
    chain = chain_with(tmp_path, Embeddings())
    await serve(chain, asking("hi"), answer(1))
    monkeypatch.setattr("tests.ai.cache.test_cache.post", lambda body: post(body, identity="lab/other"))
    assert await serve(chain, asking("hello"), answer(2)) == b'{"choices": [2]}'


async def test_a_question_that_another_filter_has_redacted_is_compared_with_none(tmp_path):
    embeddings = Embeddings()
    (tmp_path / "redact.py").write_text(REDACT)
    chain = chain_with(tmp_path, embeddings, redact(tmp_path))
    assert await serve(chain, asking("name:alice"), lambda _: b'{"choices": ["<NAME>"]}') == b'{"choices": ["alice"]}'
    assert await serve(chain, asking("name:bob"), lambda _: b'{"choices": ["<NAME>"]}') == b'{"choices": ["bob"]}'
    assert embeddings.asked == []


@pytest.mark.parametrize(
    "said",
    [
        CallFailed(Reason.CONNECT_REFUSED, "it is away"),
        {"error": "overloaded"},
        {"data": [{"embedding": []}]},
        {"data": [{"embedding": ["a"]}]},
        {"data": [{"embedding": [0, 0]}]},
    ],
)
async def test_without_a_vector_the_request_goes_on_as_one_that_is_not_known(tmp_path, said):
    chain = chain_with(tmp_path, Embeddings(said))
    assert await serve(chain, asking("hi"), answer(1)) == b'{"choices": [1]}'
    assert await serve(chain, asking("hello"), answer(2)) == b'{"choices": [2]}'
    assert await serve(chain, asking("hi"), answer(3)) == b'{"choices": [1]}'


def test_the_embedding_backend_is_a_reference_of_the_config():
    config = validated(CacheConfig, json.dumps({"semantic": SEMANTIC}))
    ((field, ref),) = CACHE.backend_refs(config)
    assert (field, ref.name) == ("semantic.backendRef", "embed")
    assert CACHE.phases == {Phase.REQUEST_HEADERS}
