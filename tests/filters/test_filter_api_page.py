"""The examples of docs/filter-api.md do what the page says of them."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from egressproxy.filters.testing import FilterHarness, exchange, response

PAGE = (Path(__file__).parents[2] / "docs" / "filter-api.md").read_text(encoding="utf-8")
TUTORIAL = (Path(__file__).parents[2] / "docs" / "filters" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
IMPORTS = BLOCKS[0]
URL = "http://api.example.com/v1"


@pytest.fixture
def example(tmp_path: Path) -> Any:
    def made(name: str, phase: str, **config: Any) -> FilterHarness:
        (block,) = (block for block in BLOCKS if f"class {name}(Filter)" in block)
        (tmp_path / "example.py").write_text(block if "import" in block else IMPORTS + "\n\n" + block)
        secrets = config.pop("secrets", {})
        listed = [{"name": label.partition("/")[0], "key": label.partition("/")[2]} for label in secrets]
        return FilterHarness(
            {"path": "example.py", **({"secrets": listed} if listed else {}), **config},
            phase=phase, folder=tmp_path, secrets=secrets,
        )  # fmt: skip

    return made


def test_not_empty_asks_for_the_next_attempt(example: Any):
    harness = example("NotEmpty", "backend-response")
    assert harness.run(exchange("GET", URL)).error is None
    head = response()
    head.fields.add(b"content-length", b"0")
    result = harness.run(exchange("GET", URL), response=head)
    assert (result.status, "it is empty" in result.error.message) == (502, True)


def test_own_region_excludes_a_backend(example: Any):
    harness = example("OwnRegion", "request-headers")
    assert harness.run(exchange("GET", URL, {"X-Region": "eu"})).excluded_backends == {"agents/us-model"}
    assert not harness.run(exchange("GET", URL)).excluded_backends


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "text/event-stream", "image/png"])
def test_redact_gets_each_body_as_it_chooses(example: Any, kind: str):
    harness = example("Redact", "response-body")
    result = harness.run(
        exchange("GET", URL), response=response(200, {"Content-Type": kind}), response_body=[b"47", b"11"]
    )
    expected = {"application/json; charset=utf-8": (b"", b"****"), "image/png": (b"47", b"11")}
    assert result.response_pieces == expected.get(kind, (b"47", b"11"))


def test_redact_answers_while_the_head_has_not_gone(example: Any):
    harness = example("Redact", "response-body")
    head = response(200, {"Content-Type": "application/json"})
    result = harness.run(exchange("GET", URL), response=head, response_body=b'{"secret": 1}')
    assert (result.status, result.response_body) == (403, b"there is a secret in it\n")
    assert result.local_response is not None


def test_meter_sees_the_content_of_a_coded_body_and_leaves_it_as_it_is(example: Any):
    harness = example("Meter", "response-body")
    body = gzip.compress(b"a" * 1000)
    head = response(200, {"Content-Encoding": "gzip"})
    x = exchange("GET", URL)
    result = harness.run(x, response=head, response_body=[body[:10], body[10:]])
    assert (result.response_body, x.notes["meter"]) == (body, 1000)


def test_sign_has_its_secret(example: Any):
    harness = example("Sign", "backend-request", secrets={"signing-key/token": b"test key"})
    assert harness.run(exchange("GET", URL)).request.fields.get(b"x-signature") == b"test key"


def test_guard_counts_and_tells(example: Any):
    harness = example("Guard", "request-headers")
    result = harness.run(exchange("GET", URL, {"X-Card": "4111"}))
    assert harness.metrics() == {"acme_pii_found": {("card",): 1}}
    assert result.events == ("CardInHeader: filter test: a client sends a card number as a field",)
    harness.close()


def bounded(harness: FilterHarness, piece: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """What a provider gets of a request for 9000 tokens, and a client of these pieces of an answer."""
    result = harness.run(
        exchange("POST", URL, {"Content-Type": "application/json"}),
        request_body=[b'{"max_tokens": 9000, "messages": [{"role": "user", ', b'"content": "4711"}]}'],
        response=response(200, {"Content-Type": "text/event-stream"}),
        response_body=[piece, b"\n\ndata: b", b"\n\n"],
    )
    return result.request_body, result.response_pieces


def test_bounded_reads_json_texts_and_events(example: Any):
    asked, answered = bounded(example("Bounded", "request-body"), b"event: debug\ndata: a")
    assert asked == b'{"max_tokens": 4096, "messages": [{"role": "user", "content": "****"}]}'
    assert answered == (b"", b"", b"data: b\n\n")


def test_the_first_filter_of_the_tutorial_buffers_requests_and_streams_answers(tmp_path: Path):
    (tmp_path / "bounded.py").write_text(re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)[0])
    asked, answered = bounded(
        FilterHarness({"path": "bounded.py"}, phase="request-body", folder=tmp_path), b"data: 4711"
    )
    assert asked == b'{"max_tokens": 4096, "messages": [{"role": "user", "content": "4711"}]}'
    assert answered == (b"", b"data: ****\n\n", b"data: b\n\n")
