"""What beginners write, and the sentence that they get, with the line of their own code."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from egressproxy.filters import block_watch
from egressproxy.filters.testing import FilterBuildError, FilterHarness, FilterResult, exchange

HEAD = "import asyncio, json, sys, time\nfrom pydantic import BaseModel\nfrom egressproxy.filters import *\n"
HEADERS = "class F(Filter):\n    def request_headers(self, x):\n        "
BODY = "class F(Filter):\n    def request_body(self, x, data, last):\n        "
SIGNATURE = "class F(Filter):\n    "


def made(folder: Path, code: str, phase: str = "", **more: Any) -> FilterHarness:
    (folder / "f.py").write_text(HEAD + code)
    phase = phase or ("request-body" if "request_body" in code else "request-headers")
    return FilterHarness(
        {"path": "f.py", "config": more.pop("config", {})}, phase=phase, folder=folder, name="mine", **more
    )


def run(folder: Path, code: str, **more: Any) -> FilterResult:
    x = exchange("POST", "http://a.example/hunter2", {"X-Key": "hunter2"})
    return made(folder, code, **more).run(x, request_body=[b"hunter2", b"more"])


RUNNING = {
    "none": (BODY + "data.upper()", "request_body of mine returned None: return the bytes that go on", 5),
    "text": (BODY + "return data.decode()", "returned a str: return the bytes that go on, such as text.encode()", 5),
    "dict": (BODY + "return {}", "returned a dict: return the bytes that go on, such as json.dumps(…).encode()", 5),
    "a-refusal": (HEADERS + "return Rejected('no')", "returned a Rejected: write `raise Rejected(…)`", 5),
    "a-response-raised": (HEADERS + "raise LocalResponse(403)", "write `raise Rejected(…)`, or `return LocalRespon", 6),
    "true": (HEADERS + "return True", "returned a bool: return nothing to let the exchange go on, or a LocalRespon", 5),
    "a-coroutine": (
        "class F(Filter):\n    async def a(self, data): return data\n"
        "    async def request_body(self, x, data, last): return self.a(data)",
        "returned a coroutine: write `return await …`", 6,
    ),
    "no-await": (
        "class F(Filter):\n    async def a(self): return x\n"
        "    async def request_headers(self, x):\n        self.a().status",
        "asks a coroutine for `status`: write `await` before the call that made it", 7,
    ),
    "text-for-a-field": (HEADERS + "x.request.fields.set('x-a', 'b')", "gave a field text (str): names and values", 6),
    "text-for-a-name": (HEADERS + "x.request.fields.get('x-a')", 'write bytes, such as b"x-team", or text.encode()', 6),
    "a-subscript": (HEADERS + "x.request.fields[b'x-a']", 'write fields.get(b"x-team")', 6),
    "headers": (HEADERS + "x.headers", "asks an Exchange for `headers`, which it does not have: write x.request.fi", 6),
    "a-typing-error": (HEADERS + "x.identty", "did you mean identity?", 6),
    "no-response-yet": (HEADERS + "x.response", "there is none before backend_response", 6),
    "none-asked": (HEADERS + "x.request.fields.get(b'x-b').decode()", "asks None for `decode`: fields.get(…) is No", 6),
    "no-such-name": (HEADERS + "return Respond(200)", "uses the name `Respond`, which is not defined", 6),
    "fields-as-a-dict": (HEADERS + "return LocalResponse(200, {b'aaaa': b''})", "made a LocalResponse of wrong", 6),
    "fields-of-text": (HEADERS + "return LocalResponse(200, (('a', 'b'),))", "write LocalResponse(403, (", 5),
    "a-body-of-text": (HEADERS + "return LocalResponse(403, (), 'no')", "returned a LocalResponse of wrong types", 5),
    "a-refusal-with-text": (HEADERS + "raise Rejected('no', status='403')", "raised Rejected with a status that is", 6),
    "too-many-arguments": (HEADERS + "raise Rejected(403, 'no')", "takes 2 positional arguments but 3 were given", 6),
    "a-mode-of-text": (
        BODY + "return data\n    def body_mode_for(self, x, phase): return 'buffer'",
        "body_mode_for of mine returned a str: return BodyMode.STREAM, BodyMode.BUFFER or None", 7,
    ),
    "a-piece-of-json": (BODY + "return json.dumps(json.loads(data)).encode()", "with body_mode = BodyMode.BUFFER i", 6),
    "bytes-and-text": (BODY + "return data + 'x'", "failed (TypeError: can't concat str to bytes): bodies and fiel", 6),
    "text-for-a-path": (  # as the compiled build raises it where a filter sets `x.request.path`
        HEADERS + "raise TypeError('bytes object expected; got str')",
        "failed (TypeError: bytes object expected; got str): bodies and fields are bytes", 6,
    ),
    "a-timeout": (
        "class F(Filter):\n    async def request_headers(self, x): await asyncio.sleep(9)",
        "took longer than the `timeout` of its extension", 5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNNING)
def test_a_failure_is_a_sentence_with_the_line_of_the_author(name: str, tmp_path: Path):
    code, sentence, line = RUNNING[name]
    result = run(tmp_path, code, **({"timeout_s": 0.01} if name == "a-timeout" else {}))
    assert result.error is not None
    assert sentence in result.error.detail
    assert result.error.detail.endswith(f"(f.py:{line})")
    assert sentence.removeprefix("request_body of mine ") in result.failures[0]
    assert "hunter2" not in result.error.detail + result.failures[0] + result.error.message


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        (HEADERS + "raise TypeError(x.path.decode())", "filter mine: TypeError at f.py:6"),
        (HEADERS + "getattr(x, x.path.decode()[1:])", "filter mine: AttributeError at f.py:6"),
        (HEADERS + "setattr(x, x.path.decode()[1:], 1)", "filter mine: AttributeError at f.py:6"),
        (HEADERS + "{}[x.path]", "filter mine: KeyError at f.py:6"),
        (HEADERS + "dict(**{x.path.decode(): 1}, a=int(x.path))", "filter mine: ValueError at f.py:6"),
        (HEADERS + "(lambda: 0)(**{x.path.decode(): 1})", "filter mine: TypeError at f.py:6"),
    ],
    ids=["raised", "got", "set", "key", "value", "argument"],
)
def test_text_that_may_be_of_a_request_is_shown_to_the_author_alone(code: str, detail: str, tmp_path: Path):
    result = run(tmp_path, code)
    assert result.error is not None
    assert result.error.detail == detail
    (traceback,) = result.tracebacks
    assert "hunter2" in traceback
    assert 'f.py", line 6, in request_headers' in traceback
    assert "hunter2" not in repr(result)
    with pytest.raises(AssertionError, match="hunter2"):
        _ = result.response


LOADING = {
    "two-arguments": (SIGNATURE + "def request_body(self, x, data): ...", ":5: `request_body` is called with (x, data"),
    "no-self": (SIGNATURE + "def request_headers(x): ...", ":5: `request_headers` is called with (x): write def reque"),
    "no-context": (HEADERS + "...\n    def __init__(self): ...", ":7: `__init__` of F failed (TypeError: F.__init"),
    "a-yield": (BODY + "yield data", ":5: `request_body` has a `yield`: return the bytes that go on"),
    "complete": (HEADERS + "...\n    async def complete(self, x): ...", ":7: `complete` is `async def`, and is called"),
    "a-mode": (BODY + "return data\n    body_mode = 'BUFFER'", ":7: body_mode is a str: write BodyMode.STREAM"),
    "no-base": ("class F:\n    def request_headers(self, x): ...", ":4: class F is no filter: write `class F(Filter):"),
    "a-near-name": (SIGNATURE + "def request_header(self, x): ...", ":5: class F is placed in phase request-headers b"),
    "a-phase": (SIGNATURE + "runs_in = Phase.CONNECT\n    def request_headers(self, x): ...", ":5: runs_in of class F"),
    "no-pydantic": ("class Config: ...\n" + HEADERS + "...", ":4: `Config` is not a pydantic model: write `class Conf"),
    "a-setting": (
        "class Config(BaseModel):\n    n: int = 1\n    teams: str = ''\n"
        + HEADERS
        + "...\n    def __init__(self, context): context.config.team",
        ":10: `__init__` of F asks a Config for `team`, which it does not have: did you mean teams?",
    ),
    "the-config": (
        HEADERS + "...\n    def __init__(self, context): context.confg",
        ":7: `__init__` of F asks a FilterContext for `confg`, which it does not have: did you mean config?",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOADING)
def test_what_cannot_be_called_is_refused_with_its_line(name: str, tmp_path: Path):
    code, sentence = LOADING[name]
    with pytest.raises(FilterBuildError) as caught:
        made(tmp_path, code, config={"n": 1} if name == "no-pydantic" else {})
    assert f"f.py{sentence}" in str(caught.value)


def test_an_object_that_is_no_config_may_have_a_name_of_one(tmp_path: Path):
    result = run(tmp_path, "class W: model_fields = 3\n" + HEADERS + "W().nme")
    assert result.error is not None
    assert result.error.detail.endswith("asks a W for `nme`, which it does not have (f.py:7)")


def test_the_text_of_an_error_in_init_is_in_the_log_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with pytest.raises(FilterBuildError) as caught:  # its text is in Events and status, too
        made(tmp_path, HEADERS + "...\n    def __init__(self, context): raise ValueError('hunter2')")
    assert str(caught.value).endswith("f.py:7: ValueError while F was built")
    assert "ValueError: hunter2" in caplog.text


WRAPPED = """
def wrapped(f):
    def call(*a, **k): return f(*a, **k)
    return call
class F(Filter):
    @wrapped
    def request_headers(self, x): ...
"""


@pytest.mark.parametrize(
    "code",
    [
        WRAPPED,
        "class F(Filter):\n    @staticmethod\n    def request_headers(x): ...",
        "class F(Filter):\n    @classmethod\n    def request_headers(cls, x): ...",
        "class F(Filter):\n    def request_headers(self, x, more=None): ...",
        "class Call:\n    def __call__(self, x): ...\nclass F(Filter):\n    request_headers = Call()",
        "class Base(Filter):\n    def request_headers(self, x): ...\nclass F(Base): ...\nfilter_class = F",
    ],
    ids=["wrapped", "static", "of-the-class", "more", "an-object", "inherited"],
)
def test_a_method_may_be_anything_that_can_be_called(code: str, tmp_path: Path):
    assert run(tmp_path, code).error is None


def test_text_for_the_path_fails_as_it_would_fail_in_the_gateway(tmp_path: Path):
    result = run(tmp_path, HEADERS + "x.request.path = '/a'")
    assert result.error is not None
    # The compiled build refuses it in the author's line.
    assert "mine" in result.error.detail
    assert "write bytes" in result.error.detail


def test_a_failure_in_complete_is_told_and_the_exchange_goes_on(tmp_path: Path):
    result = run(tmp_path, HEADERS + "...\n    def complete(self, x): x.headers")
    assert result.error is None
    assert "complete of mine asks an Exchange for `headers`" in result.failures[0]
    assert "AttributeError" in result.tracebacks[0]


def test_print_is_a_line_of_the_log_with_the_name_of_the_filter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    run(tmp_path, HEADERS + "print('a', 1, sep='-', end='!\\nb\\n'); print(); print('c', file=sys.stderr)")
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told == ["filter mine: a-1!", "filter mine: b", "filter mine: "]
    assert capsys.readouterr() == ("", "c\n")


@pytest.mark.parametrize(
    "code",
    [
        HEADERS + "time.sleep(0.03)",
        "class F(Filter):\n    async def request_headers(self, x):\n"
        "        await asyncio.sleep(0)\n        time.sleep(0.03)",
    ],
    ids=["plain", "step"],
)
def test_a_filter_that_blocks_is_named(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(block_watch, "BLOCKED_S", 0.02)
    harness = made(tmp_path, code, timeout_s=0.01)
    result = harness.run(exchange("GET", "http://a.example/"))
    assert ["FilterBlocks: filter mine: `request_headers` (f.py:" in each for each in result.events] == [True]
    assert harness._metrics.read()["egress_filter_blocked"].values == {("mine", "Gateway test/gateway"): 1}


def test_a_filter_that_waits_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(block_watch, "BLOCKED_S", 0.02)
    harness = made(tmp_path, "class F(Filter):\n    async def request_headers(self, x): await asyncio.sleep(0.03)")
    assert harness.run(exchange("GET", "http://a.example/")).events == ()
