"""What is done with the bodies of AI calls: reading them, quotas of tokens, redaction, whole and in events of a stream.

The request and the answer are those of the workload L.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from benchmarks.micro.filters import chain, exchange
from benchmarks.micro.stage import Stage
from benchmarks.world import COMPLETION, QUESTION
from egressproxy.ai.apis.answer import AiAnswer
from egressproxy.ai.apis.request import AiRequest
from egressproxy.filters.chain import Chain, finish, run
from egressproxy.model.exchange import EMPTY_STATE, Exchange

GROUP = "ai"
HEAD: Final = b"\r\nHost: a.test\r\nContent-Type: application/json"
STREAM_HEAD: Final = b"\r\nContent-Type: text/event-stream"
REQUEST: Final = QUESTION.encode()
ANSWER: Final = COMPLETION.encode()
EVENT: Final = (
    b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":" some more words of an answer"}}]}\n\n'
)
ENTITIES: Final = [{"name": name} for name in ("EMAIL", "PHONE", "CARD", "IBAN")]
DENY: Final = [{"name": "A", "pattern": r"project\s+falcon"}, {"name": "B", "pattern": "(?:not|never) for export"}]
#: Events of one stream in one call: how it begins and ends does not count for much.
SHARE: Final = 50


def stages() -> Iterator[Stage]:
    yield Stage(GROUP, "reading a request of 1 KiB", lambda: AiRequest.read(REQUEST))
    yield Stage(GROUP, "reading an answer of 0.7 KiB", lambda: AiAnswer.read(ANSWER))
    tokens = [{"type": "Tokens", "limit": 10**12, "unit": "Minute"}]
    yield whole("QoSController: tokens, request and answer", "QoSController", limits=tokens)
    yield whole("PIIDetector: a request with two finds", "PIIDetector", entities=ENTITIES)
    yield whole("PIIDetector: request and answer", "PIIDetector", entities=ENTITIES, applyTo="Both")
    yield whole("PromptGuard: a request, two expressions and the phrases", "PromptGuard", deny=DENY)
    yield whole(
        "ModelPolicy: a request", "ModelPolicy", allow=["bench"], aliases=[{"name": "fast", "model": "gpt-5-mini"}]
    )
    yield whole("TokenMeter: request and answer", "TokenMeter", prices=[{"models": ["*"], "input": 1, "output": 2}])
    yield whole("ResponsePolicy: an answer, two expressions", "ResponsePolicy", deny=DENY)
    yield whole("ToolPolicy: request and answer", "ToolPolicy", tools={"deny": [{"names": ["shell*"]}]})
    yield whole("AccessPolicy: a request, the second of two rules", "AccessPolicy", rules=[
        {"name": "a", "hosts": ["b.test"]}, {"name": "b", "methods": ["POST"]},
    ])  # fmt: skip
    yield whole("Cache: a request that is not known, and its answer", "Cache", shareAnonymous=True)
    yield events("TokenMeter: an event", "TokenMeter")
    yield events("ResponsePolicy: an event, two expressions", "ResponsePolicy", deny=DENY)
    yield events("PIIDetector: an event without a find", "PIIDetector", entities=ENTITIES, applyTo="Both")


def whole(name: str, kind: str, **config: Any) -> Stage:
    """One exchange through one filter: both heads, both bodies, each of them whole."""
    made = chain(kind, "request-headers", "", config)
    x = exchange()

    def once() -> None:
        begin(made, x)
        if made.request_body is not None:
            body = made.request_body.begin(x)
            if body is not None:
                body.feed(x, REQUEST, True)
        answer(made, x, HEAD)
        if made.response_body is not None:
            body = made.response_body.begin(x)
            if body is not None:
                body.feed(x, ANSWER, True)
        finish(made.complete, x)

    return Stage(GROUP, name, once)


def events(name: str, kind: str, **config: Any) -> Stage:
    """One event of a stream through one filter."""
    made = chain(kind, "request-headers", "", config)
    x = exchange()

    def once() -> None:
        begin(made, x)
        answer(made, x, STREAM_HEAD)
        assert made.response_body is not None
        body = made.response_body.begin(x)
        assert body is not None
        for _ in range(SHARE):
            body.feed(x, EVENT, False)
        body.feed(x, b"data: [DONE]\n\n", True)
        finish(made.complete, x)

    return Stage(GROUP, name, once, share=SHARE)


def begin(made: Chain, x: Exchange) -> None:
    x.state = EMPTY_STATE
    x.method = x.request.method = b"POST"
    x.request.path = b"/v1/chat/completions"
    x.request.fields.block = HEAD
    x.request.body = len(REQUEST)
    if made.request_headers is not None:
        run(made.request_headers, x)


def answer(made: Chain, x: Exchange, head: bytes) -> None:
    x.response.fields.block = head
    x.response.body = len(ANSWER)
    if made.response_headers is not None:
        run(made.response_headers, x)
