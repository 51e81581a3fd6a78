"""Sampling, beside the samplers of OpenTelemetry's SDK."""

import pytest

from egressproxy.telemetry.tracing.context import RandomIds, TraceContext
from egressproxy.telemetry.tracing.sampling import Ratio, Sampler

IDS = [RandomIds().trace_id() for _ in range(200)] + [
    "1" * 16 + "0" * 16,
    "1" * 16 + "f" * 16,
    "0" * 15 + "1" + "8" + "0" * 15,
]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 1 / 3, 0.5, 0.999, 1.0])
def test_a_ratio_takes_the_traces_that_the_sdk_takes(share):
    sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")
    theirs = sampling.TraceIdRatioBased(share)
    for trace_id in IDS:
        is_taken = theirs.should_sample(None, int(trace_id, 16), "").decision.is_sampled()
        assert Ratio(share).takes(trace_id) == is_taken, (share, trace_id)


def test_a_ratio_takes_its_share():
    ids = RandomIds()
    taken = sum(Ratio(0.25).takes(ids.trace_id()) for _ in range(20_000))
    assert 4_600 < taken < 5_400


def test_without_a_parent_the_ratio_decides():
    low, high = "1" * 16 + "0" * 16, "1" * 16 + "f" * 16
    sampler = Sampler(Ratio(0.5), Ratio(1.0))
    assert sampler.decide(low, None)
    assert not sampler.decide(high, None)


def test_a_parent_decides_only_where_it_counts():
    low, high = "1" * 16 + "0" * 16, "1" * 16 + "f" * 16
    taken, left = TraceContext(high, "2" * 16, True), TraceContext(low, "2" * 16, False)
    assert Sampler(Ratio(0.0), Ratio(1.0)).decide(high, taken)
    assert not Sampler(Ratio(1.0), Ratio(1.0)).decide(low, left)
    assert not Sampler(Ratio(1.0), Ratio(0.5)).decide(high, taken)  # no more than this share of them
    assert Sampler(Ratio(1.0)).decide(low, left)
    assert not Sampler(Ratio(0.0)).decide(high, taken)
