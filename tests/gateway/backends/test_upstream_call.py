"""The one policy of what an upstream call repeats by itself. That callers follow it, their own tests show."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.upstream_call import MAX_ATTEMPTS, Repeat, may_repeat
from egressproxy.model.exchange import Exchange
from tests.support.builds import of_sources

#: They stand for an exchange with what is read of it.
pytestmark = of_sources

STALE = RetrySafety.IF_REUSED
UNSENT = RetrySafety.SAFE


def repeats(
    repeat: int, retry: RetrySafety, *, method: bytes = b"GET", body: int = 0, attempts: int = 1,
    was_reused: bool = True, endpoints: int = 2,
) -> bool:  # fmt: skip
    x = cast(Any, SimpleNamespace(attempts=attempts, request=SimpleNamespace(method=method, body=body)))
    cluster = SimpleNamespace(endpoints=range(endpoints))
    error = UpstreamFault(Reason.UPSTREAM_CLOSED, "gone", retry=retry)
    return may_repeat(cast(Exchange, x), cast(Cluster, cluster), error, repeat, was_reused=was_reused)


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"])
def test_an_idempotent_request_replaces_a_stale_connection(method: bytes):
    assert repeats(Repeat.IF_STALE, STALE, method=method)


@pytest.mark.parametrize("method", [b"POST", b"PATCH", b"LOCK", b"get"])
def test_no_other_method_goes_again(method: bytes):
    assert not repeats(Repeat.IF_STALE, STALE, method=method)


@pytest.mark.parametrize("body", [1, -1])
def test_a_request_with_a_body_does_not_go_again(body: int):
    assert not repeats(Repeat.IF_STALE, STALE, method=b"PUT", body=body)


@pytest.mark.parametrize("repeat", [Repeat.NEVER, Repeat.IF_STALE, Repeat.ALWAYS])
def test_a_fresh_connection_that_died_is_not_replaced(repeat: int):
    assert not repeats(repeat, STALE, was_reused=False)


@pytest.mark.parametrize("repeat", [Repeat.NEVER, Repeat.IF_STALE, Repeat.ALWAYS])
@pytest.mark.parametrize("retry", [RetrySafety.NEVER, RetrySafety.IF_IDEMPOTENT])
def test_what_a_backend_may_have_seen_does_not_go_again(repeat: int, retry: RetrySafety):
    assert not repeats(repeat, retry)


@pytest.mark.parametrize("repeat", [Repeat.NEVER, Repeat.IF_STALE, Repeat.ALWAYS])
def test_the_number_of_attempts_is_bounded(repeat: int):
    assert not repeats(repeat, STALE, attempts=MAX_ATTEMPTS)
    assert not repeats(repeat, UNSENT, attempts=MAX_ATTEMPTS)


def test_a_caller_that_counts_every_attempt_has_none_repeated():
    assert not repeats(Repeat.NEVER, STALE)
    assert not repeats(Repeat.NEVER, UNSENT)


def test_a_question_goes_again_whatever_its_method_and_to_another_endpoint():
    assert repeats(Repeat.ALWAYS, STALE, method=b"POST", body=3)
    assert repeats(Repeat.ALWAYS, UNSENT, method=b"POST", body=3)
    assert not repeats(Repeat.ALWAYS, UNSENT, endpoints=1)
    assert not repeats(Repeat.IF_STALE, UNSENT)
