"""A filter that fails too often goes out of service for a while."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from egressproxy.errors import GatewayFault
from egressproxy.filters import error_budget
from egressproxy.filters.base import BodyMode, Filter, FilterType, Phase, Rejected
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import Chain, compile_chain, finish, run_to_end
from egressproxy.filters.instances import FilterInstances
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.operators.explain.render import filter_values
from egressproxy.telemetry.metrics import Metrics
from tests.filters.test_instances import NoConfig
from tests.gateway.kit import forward
from tests.support.conversation import compiled_spec

PHASES = [phase for phase in Phase if not phase.value.endswith("body")]
BODIES = [Phase.REQUEST_BODY, Phase.RESPONSE_BODY]


class Failing(Filter):
    """Fails while it `is_broken`, at once or when it has waited."""

    def __init__(self, is_async: bool = False, mode: BodyMode = BodyMode.STREAM) -> None:
        self.is_async = is_async
        self.is_broken = True
        self.body_mode = mode  # type: ignore[misc]
        self.runs = self.completed = 0

    def request_headers(self, x: Exchange) -> Any:
        return self._later() if self.is_async else self._now()

    connect = backend_request = backend_response = response_headers = request_headers

    def request_body(self, x: Exchange, data: bytes, last: bool) -> Any:
        return self._later(data.upper()) if self.is_async else self._now(data.upper())

    response_body = request_body

    def _now(self, result: Any = None) -> Any:
        self.runs += 1
        if self.is_broken:
            raise RuntimeError
        return result

    async def _later(self, result: Any = None) -> Any:
        await asyncio.sleep(0)
        return self._now(result)

    def complete(self, x: Exchange) -> None:
        self.completed += 1


class Place:
    """One filter in one phase, with a budget of three failures in ten seconds."""

    def __init__(self, made: Filter, phase: Phase, **more: Any) -> None:
        kind = FilterType("test/Any:v1", frozenset(Phase), NoConfig, lambda _context: made)
        self.metrics = Metrics("1")
        self.instances = FilterInstances(Catalog([kind]), None, self.metrics.notices, None, self.metrics.filter_metrics)
        self.spec = ExtensionIR(
            "f", kind.name, phase.value, source="EgressPolicy a/p", budget_failures=3, budget_window_s=10.0, **more
        )
        self.phase = phase
        self.chain = self.compiled()

    def compiled(self) -> Chain:
        return compile_chain([self.spec], self.instances.place)

    async def ask(self) -> bytes | None:
        x = Exchange("127.0.0.1:1", "ns/gw", "proxy", 0.0)
        x.request, x.response = RequestHead(b"POST", b"/", Fields()), ResponseHead(200, b"OK", Fields())
        try:
            found = getattr(self.chain, self.phase.method)
            if self.phase not in BODIES:
                await run_to_end(found, x)
                return None
            body = found.begin(x)
            return b"ab" if body is None else await body.feed_to_end(x, b"ab", True)
        finally:
            finish(self.chain.complete, x)

    async def fails(self, times: int) -> list[str]:
        said = []
        for _ in range(times):
            with pytest.raises(GatewayFault) as caught:
                await self.ask()
            said.append(caught.value.message)
        return said

    def out(self) -> float:
        return self.metrics.gather().families["egress_filter_out_of_service"].values["f", "-"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(error_budget, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("phase", list(Phase))
async def test_a_closed_place_refuses_at_once_and_runs_it_again_on_trial(
    clock: list[float], phase: Phase, is_async: bool
):
    made = Failing(is_async)
    place = Place(made, phase)
    assert await place.fails(3) == ["filter f failed"] * 3
    assert place.out() == 1
    assert await place.fails(5) == ["filter f is out of service"] * 5
    assert (made.runs, made.completed) == (3, 3)
    clock[0] += 10.5
    assert await place.fails(1) == ["filter f failed"]  # on trial
    assert await place.fails(1) == ["filter f is out of service"]
    clock[0] += 10.5
    made.is_broken = False
    for _ in range(4):
        await place.ask()
    assert (made.runs, made.completed) == (8, 8)
    assert place.out() == 0
    stats = place.instances.stats()[0]
    assert (stats.failed, stats.out_of_service) == (4, 6)
    reasons = [notice.reason for notice in place.metrics.notices.take()]
    assert sorted(set(reasons)) == ["FilterBackInService", "FilterFailed", "FilterOutOfService"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("phase", list(Phase))
async def test_an_open_place_goes_on_without_it(clock: list[float], phase: Phase, is_async: bool):
    made = Failing(is_async)
    place = Place(made, phase, fail_open=True)
    expected = b"ab" if phase in BODIES else None
    for _ in range(8):
        assert await place.ask() == expected
    assert made.runs == 3
    clock[0] += 11
    made.is_broken = False
    assert await place.ask() == (b"AB" if phase in BODIES else None)


async def test_failures_that_are_further_apart_take_nothing_out(clock: list[float]):
    made = Failing()
    place = Place(made, Phase.REQUEST_HEADERS)
    for _ in range(6):
        await place.fails(1)
        clock[0] += 6
    assert (made.runs, place.out()) == (6, 0)


async def test_a_refusal_is_no_failure(clock: list[float]):
    class Refusing(Filter):
        def request_headers(self, x: Exchange) -> None:
            raise Rejected("no")

    place = Place(Refusing(), Phase.REQUEST_HEADERS)
    for _ in range(6):
        with pytest.raises(Rejected):
            await place.ask()


async def test_a_filter_that_is_out_stays_out_over_a_reload(clock: list[float]):
    made = Failing()
    place = Place(made, Phase.REQUEST_HEADERS)
    await place.fails(3)
    place.chain = place.compiled()
    assert await place.fails(1) == ["filter f is out of service"]
    clock[0] += 11
    made.is_broken = False
    await place.ask()


@pytest.mark.parametrize("mode", list(BodyMode))
async def test_a_body_that_has_begun_ends_as_it_has_begun(clock: list[float], mode: BodyMode):
    """What has replaced the beginning of a body must not let its end pass."""
    made = Failing(mode=mode)
    made.is_broken = False
    place = Place(made, Phase.RESPONSE_BODY, fail_open=True)
    x = Exchange("127.0.0.1:1", "ns/gw", "proxy", 0.0)
    x.request, x.response = RequestHead(b"GET", b"/", Fields()), ResponseHead(200, b"OK", Fields())
    assert place.chain.response_body is not None
    begun = place.chain.response_body.begin(x)
    assert begun is not None
    first = await begun.feed_to_end(x, b"a", False)
    made.is_broken = True
    for _ in range(4):
        await place.ask()
    assert place.out() == 1
    made.is_broken = False
    assert first + await begun.feed_to_end(x, b"b", True) == b"AB"


async def test_explain_shows_what_is_out_of_service(clock: list[float]):
    made = Failing()
    place, x = Place(made, Phase.REQUEST_HEADERS), Exchange("127.0.0.1:1", "ns/gw", "proxy", 0.0)
    assert "outOfService" not in filter_values(place.chain, ("request_headers",), x)[0]
    await place.fails(3)
    clock[0] += 4
    assert filter_values(place.chain, ("request_headers",), x)[0]["outOfService"] == {"forSeconds": 6.0}


def test_the_budget_is_written_in_an_extension():
    extension = {
        "name": "f", "type": "egressproxy.io/HeaderPolicy:v1", "phase": "request-headers",
        "config": {"request": {"remove": ["x"]}}, "errorBudget": {"failures": 3, "window": "1m"},
    }  # fmt: skip
    (listener,) = compiled_spec(forward(extensions=[extension])).listeners
    assert [(each.budget_failures, each.budget_window_s) for each in listener.extensions] == [(3, 60.0)]
