"""Trailers past filters: who sees them, and what is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from egressproxy.errors import GatewayError, GatewayFault, Reason
from egressproxy.filters.base import Filter, Phase, Rejected
from egressproxy.filters.chain import Chain, compile_chain
from egressproxy.filters.configured_filter import ConfiguredFilter
from egressproxy.filters.filter_step import run_trailers
from egressproxy.ir.policy import BACKEND_LEVEL, ExtensionIR
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields

BLOCK = b"\r\nx-sum: 1"


class Sees(Filter):
    """Adds its name to the trailers of both directions."""

    def __init__(self, name: str = "s") -> None:
        self.name = name.encode()

    def request_headers(self, x: Exchange) -> None:
        pass

    backend_request = backend_response = response_headers = request_headers

    def request_trailers(self, x: Exchange, fields: Fields) -> None:
        fields.add(b"x-by", self.name)

    response_trailers = request_trailers


class SeesLater(Sees):
    async def request_trailers(self, x: Exchange, fields: Fields) -> None:
        await asyncio.sleep(0)
        fields.add(b"x-by", self.name)

    response_trailers = request_trailers


class Blind(Filter):
    def request_headers(self, x: Exchange) -> None:
        pass

    backend_request = backend_response = response_headers = request_headers


class SeesBodies(Sees):
    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        return data

    response_body = request_body


class Fails(Sees):
    def __init__(self, what: Any) -> None:
        self.what = what

    def request_trailers(self, x: Exchange, fields: Fields) -> Any:
        fields.add(b"x-half", b"1")
        if isinstance(self.what, BaseException):
            raise self.what
        return self.what

    response_trailers = request_trailers


def chain(*filters: tuple[Filter, str], level: int = 0, fail_open: bool = False) -> Chain:
    specs, made = [], {}
    for number, (each, phase) in enumerate(filters):
        spec = ExtensionIR(
            f"f{number}", "test/T:v1", phase, fail_open=fail_open, timeout_s=1.0, level=level,
            scope="Gateway test/g", source="EgressPolicy test/p",
        )  # fmt: skip
        made[spec.name] = ConfiguredFilter(spec, each)
        specs.append(spec)
    return compile_chain(specs, lambda spec: made[spec.name])


def exchange() -> Exchange:
    from egressproxy.filters import testing

    x = testing.exchange("POST", "http://a.example/")
    x.response = testing.response()
    return x


def left(made: Chain, x: Exchange | None = None) -> bytes:
    assert made.response_body is not None
    x = x or exchange()
    body = made.response_body.begin(x)
    assert body is not None

    async def run() -> bytes:
        outcome = body.run_trailers(x, BLOCK)
        return outcome if isinstance(outcome, bytes) else await outcome

    return asyncio.run(run())


def test_filters_of_heads_see_trailers_in_their_order():
    made = chain((Sees("a"), "response-headers"), (SeesLater("b"), "response-headers"), (Sees("c"), "response-headers"))
    assert left(made) == BLOCK + b"\r\nx-by: a\r\nx-by: b\r\nx-by: c"
    assert made.lets_response_trailers


def test_one_that_does_not_see_them_stops_them():
    made = chain((Sees("a"), "response-headers"), (Blind(), "response-headers"))
    assert not made.lets_response_trailers
    assert not chain((Blind(), "response-headers")).lets_response_trailers
    assert chain((Blind(), "response-headers")).response_body is None


def test_a_filter_that_says_it_sees_none_has_no_method():
    blind = Sees()
    blind.sees_trailers = False
    made = chain((blind, "response-headers"))
    assert (made.lets_response_trailers, made.response_body) == (False, None)


@pytest.mark.parametrize(("phase", "level", "place"), [
    ("request-headers", 0, "request_body"), ("backend-request", 0, "backend_request_body"),
    ("backend-request", BACKEND_LEVEL, "backend_request_body"), ("request-body", 0, "request_body"),
    ("request-body", BACKEND_LEVEL, "backend_request_body"),
])  # fmt: skip
def test_each_sees_those_of_a_request_where_it_looks_at_it(phase: str, level: int, place: str):
    made = chain((SeesBodies(), phase), level=level)
    plans = {name: getattr(made, name) for name in ("request_body", "backend_request_body")}
    assert [name for name, plan in plans.items() if plan is not None and plan.trailers] == [place]


def test_a_filter_of_two_phases_sees_them_once():
    both = ConfiguredFilter(
        ExtensionIR("f", "test/T:v1", "backend-request", timeout_s=1.0, scope="s", source="s"), SeesBodies(),
        also=frozenset((Phase.REQUEST_BODY, Phase.RESPONSE_BODY, Phase.BACKEND_RESPONSE)),
    )  # fmt: skip
    made = compile_chain([both.spec], lambda _spec: both)
    assert made.request_body is not None
    assert made.backend_request_body is not None
    assert made.response_body is not None
    counts = [len(plan.trailers) for plan in (made.request_body, made.backend_request_body, made.response_body)]
    assert counts == [0, 1, 1]


@pytest.mark.parametrize("what", [RuntimeError("a secret"), SystemExit(), b"bytes"])
def test_a_filter_that_fails_ends_the_exchange_or_leaves_the_trailers_as_they_were(what: Any):
    with pytest.raises(GatewayFault) as caught:
        left(chain((Fails(what), "response-headers")))
    assert (caught.value.reason, caught.value.status) == (Reason.FILTER_FAILED, 502)
    assert "secret" not in str(caught.value) + caught.value.detail
    assert left(chain((Fails(what), "response-headers"), fail_open=True)) == BLOCK


def test_a_refusal_never_fails_open():
    with pytest.raises(GatewayError) as caught:
        left(chain((Fails(Rejected("no")), "response-headers"), fail_open=True))
    assert caught.value.reason is Reason.FILTER_REJECTED


def test_one_that_waits_has_a_deadline():
    class Hangs(Sees):
        async def response_trailers(self, x: Exchange, fields: Fields) -> None:
            await asyncio.Event().wait()

    hangs = ConfiguredFilter(
        ExtensionIR("f", "test/T:v1", "response-headers", timeout_s=0.01, scope="s", source="s"), Hangs()
    )
    with pytest.raises(GatewayFault, match="did not answer in time"):
        left(compile_chain([hangs.spec], lambda _spec: hangs))


def test_without_a_filter_they_stay():
    assert run_trailers((), exchange(), BLOCK) == BLOCK
