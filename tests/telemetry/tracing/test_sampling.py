"""Sampling, beside the samplers of OpenTelemetry's SDK."""

import os

import pytest

from egressproxy.telemetry.tracing.sampling import Ratio

EDGES = [b"1" * 16 + b"0" * 16, b"1" * 16 + b"f" * 16, b"0" * 15 + b"18" + b"0" * 15]
IDS = [*(os.urandom(16).hex().encode() for _ in range(200)), *EDGES]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 1 / 3, 0.5, 0.999, 1.0])
def test_a_ratio_takes_the_traces_that_the_sdk_takes(share):
    sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")
    theirs = sampling.TraceIdRatioBased(share)
    for trace_id in IDS:
        is_taken = theirs.should_sample(None, int(trace_id, 16), "").decision.is_sampled()
        assert (trace_id[16:] < Ratio(share).bound) == is_taken, (share, trace_id)


def test_a_ratio_takes_its_share():
    taken = sum(os.urandom(8).hex().encode() < Ratio(0.25).bound for _ in range(20_000))
    assert 4_600 < taken < 5_400
    assert Ratio(0.0).bound <= b"0" * 16 < b"f" * 16 < Ratio(1.0).bound
