"""PIIDetector with an analyzer: what is asked, what is done with the answer, and what happens without one."""

import json

import pytest

from egressproxy.ai.content.pii_config import PIIDetectorConfig
from egressproxy.ai.content.pii_detector import PII_DETECTOR
from egressproxy.ai.content.presidio import PresidioFailed
from egressproxy.errors import Reason
from egressproxy.filters import FilterContext
from egressproxy.filters.calls import CallAnswer, CallFailed
from egressproxy.filters.testing import exchange
from egressproxy.filters.validation import validated
from egressproxy.model.fields import Fields
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics

METER = FilterMeter(FilterMetrics(), "pii", "egressproxy.io/PIIDetector:v1")

CONFIG = {
    "entities": [{"name": "EMAIL", "action": "Placeholder"}],
    "presidio": {
        "backendRef": {"name": "analyzer", "port": 3000},
        "entities": [{"name": "PERSON", "action": "Placeholder"}],
        "scoreThreshold": 0.4,
    },
}


class Analyzer:
    """Speaks the REST API of Presidio's analyzer: it knows one name."""

    backend = "agents/analyzer"

    def __init__(self, answer=None):
        self.asked = []
        self._answer = answer

    async def request(self, method, path, fields=(), body=b"", *, timeout_s, x=None):
        asked = json.loads(body)
        self.asked.append((method, path, asked, timeout_s))
        if isinstance(self._answer, Exception):
            raise self._answer
        if self._answer is not None:
            return self._answer
        at = asked["text"].find("Zoë")
        found = [] if at < 0 else [{"entity_type": "PERSON", "start": at, "end": at + 3, "score": 0.85}]
        found += [{"entity_type": "DATE_TIME", "start": 0, "end": 1, "score": 0.9}]
        return CallAnswer(200, Fields(), json.dumps(found).encode())


def detector(analyzer):
    config = validated(PIIDetectorConfig, json.dumps(CONFIG))
    calls = {ref.label: analyzer for _, ref in PII_DETECTOR.backend_refs(config)}
    return PII_DETECTOR.build(
        FilterContext(config, {}, "pii", "gateway a/gw", "EgressPolicy a/p", calls=calls, meter=METER)
    )


async def sent(analyzer, text):
    x = exchange("POST", "https://api.example.com/v1/messages", {"content-type": "application/json"})
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    return json.loads(await detector(analyzer).request_body(x, body, True))["messages"][0]["content"]


async def test_what_the_analyzer_finds_is_replaced_with_what_is_found_here():
    analyzer = Analyzer()
    assert await sent(analyzer, "Zoë, not 日本, is zoe@example.com") == "<PERSON_1>, not 日本, is <EMAIL_1>"
    method, path, asked, timeout_s = analyzer.asked[0]
    assert (method, path, timeout_s) == (b"POST", b"/analyze", 2.0)
    assert asked == {
        "text": "Zoë, not 日本, is zoe@example.com", "language": "en", "entities": ["PERSON"], "score_threshold": 0.4,
    }  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        CallAnswer(500, Fields(), b"[]"), CallAnswer(200, Fields(), b"no JSON"), CallAnswer(200, Fields(), b'{"a": 1}'),
        CallAnswer(200, Fields(), b'[{"entity_type": "PERSON", "start": 0, "end": 99, "score": 1}]'),
        CallAnswer(200, Fields(), b'[{"entity_type": "PERSON", "start": "0", "end": 1, "score": 1}]'),
    ],
)  # fmt: skip
async def test_an_answer_that_is_no_result_is_a_failure(answer):
    with pytest.raises(PresidioFailed):
        await sent(Analyzer(answer), "Zoë")


async def test_an_analyzer_that_is_away_is_a_failure():
    with pytest.raises(CallFailed):
        await sent(Analyzer(CallFailed(Reason.CONNECT_REFUSED, "agents/analyzer")), "Zoë")


async def test_without_an_analyzer_nothing_passes():
    config = validated(PIIDetectorConfig, json.dumps(CONFIG))
    built = PII_DETECTOR.build(FilterContext(config, {}, "pii", "gateway a/gw", "EgressPolicy a/p", meter=METER))
    x = exchange("POST", "https://api.example.com/v1/messages", {"content-type": "application/json"})
    with pytest.raises(PresidioFailed):
        await built.request_body(x, b'{"a": "Zoe"}', True)
