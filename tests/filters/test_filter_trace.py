"""How long filters take, and what each did, for those who look."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from egressproxy.filters import filter_trace
from egressproxy.filters.base import Filter, Phase, Rejected
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.telemetry.log_rate import LINES, LogRate
from tests.filters.test_error_budget import BODIES, Failing, Place

NAME = "egress_filter_duration_seconds"


async def test_what_waits_is_measured_always_and_the_rest_behind_a_scrape():
    made = Failing(is_async=True)
    made.is_broken = False
    place = Place(made, Phase.REQUEST_HEADERS)
    for _ in range(5):
        await place.ask()
    place.metrics.filter_sources.append(place.instances.stats)
    assert sum(place.metrics.gather().families[NAME].buckets["f", "test/Any:v1", "request-headers", "-"]) == 5


@pytest.mark.parametrize("phase", [Phase.REQUEST_HEADERS, Phase.RESPONSE_BODY])
async def test_of_what_does_not_wait_a_few_runs_are_measured_behind_a_scrape(phase: Phase):
    made = Failing()
    made.is_broken = False
    place = Place(made, phase)
    place.metrics.filter_sources.append(place.instances.stats)
    key = ("f", "test/Any:v1", phase.value, "-")
    for _ in range(3):
        for _ in range(20):
            await place.ask()
        found = place.metrics.gather().families[NAME]
    assert sum(found.buckets[key]) == 16  # eight behind each of two scrapes
    assert found.values[key] > 0
    for _ in range(3):
        place.metrics.gather()
    step = place.chain.request_headers[0] if phase not in BODIES else place.chain.response_body.steps[0]
    for _ in range(10):
        await place.ask()
    assert step.call == step.own


class Acting(Filter):
    def __init__(self, act: Any, is_async: bool) -> None:
        self.act = act
        self.is_async = is_async

    def request_headers(self, x: Exchange) -> Any:
        return self._later(x) if self.is_async else self.act(x)

    async def _later(self, x: Exchange) -> Any:
        await asyncio.sleep(0)
        return self.act(x)

    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        return data + b"hunter2"


def change(x: Exchange) -> None:
    x.request.fields.set(b"x-key", b"hunter2")
    x.request.path = b"/hunter2"
    x.response.status = 203


def refuse(x: Exchange) -> None:
    raise Rejected("hunter2")


def fail(x: Exchange) -> None:
    raise RuntimeError("hunter2")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("act", "said"),
    [
        (change, "; changed request x-key, path, status"), (lambda _x: None, "passed in "), (refuse, "rejected in "),
        (lambda _x: LocalResponse(418, (), b"hunter2"), "answered (418) in "), (fail, "failed (RuntimeError) in "),
    ],
)  # fmt: skip
async def test_each_run_is_a_line_at_debug_without_a_value(
    caplog: pytest.LogCaptureFixture, act: Any, said: str, is_async: bool
):
    caplog.set_level(logging.DEBUG, "egressproxy.filters")
    place = Place(Acting(act, is_async), Phase.REQUEST_HEADERS, fail_open=True)
    try:
        await place.ask()
    except Rejected:
        assert act is refuse
    (line,) = caplog.messages
    assert "filter f, request-headers: " in line
    assert said in line
    assert "hunter2" not in caplog.text


async def test_the_line_of_a_body_has_its_sizes(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "egressproxy.filters")
    await Place(Acting(None, False), Phase.RESPONSE_BODY).ask()
    assert "response-body: passed (2 to 9 bytes) in " in caplog.messages[0]


async def test_nothing_is_logged_nor_wrapped_otherwise(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "egressproxy.filters")
    made = Acting(change, False)
    place = Place(made, Phase.REQUEST_HEADERS)
    await place.ask()
    assert not caplog.messages
    assert place.chain.request_headers is not None
    assert place.chain.request_headers[0].call == made.request_headers


def test_failures_that_are_shown_have_a_bound_and_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    now = 1000.0
    monkeypatch.setattr(filter_trace, "monotonic", lambda: now)
    monkeypatch.setattr(filter_trace, "_log_rate", LogRate())
    for _ in range(LINES + 5):
        filter_trace.show_failure("filter a: KeyError", KeyError("text"))
    now += 1.0
    filter_trace.show_failure("filter a: KeyError", None)
    assert len(caplog.records) == LINES + 2
    assert caplog.messages[-2].startswith("5 earlier failures of filters were not logged")
    with filter_trace.failures_shown() as shown:  # a test sees all
        filter_trace.show_failure("filter a: KeyError", None)
    assert (len(shown), len(caplog.records)) == (1, LINES + 3)
