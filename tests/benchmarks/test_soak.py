"""The soak's own judgement, and every scenario of it a few times: each ends as it has to, and nothing is left of it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.soak.clients import MIXTURE, Load
from benchmarks.soak.origins import NameServer, Origins
from benchmarks.soak.subject import Delays, Sample, Subject
from benchmarks.soak.verdict import growth, judge

FLAT = Sample(0.0, 80_000, 100, 50, 10, 30, 5, 0, 2.0, 5.0)
TIMES = 3  # each scenario


# --- the verdict ---------------------------------------------------------------------------------------------------
def test_growth_is_the_span_of_a_line():
    assert growth(range(100), [5 + 2 * at for at in range(100)]) == pytest.approx(198)


def test_growth_does_not_see_peaks_that_go_away():
    assert growth(range(100), [1000 if at % 7 == 0 else 10 for at in range(100)]) == 0


def test_growth_of_one_sample_is_none():
    assert growth([1.0], [7.0]) == 0.0


def run(*, kib_a_second: float = 0.0, descriptors_a_second: float = 0.0) -> list[Sample]:
    return [
        replace(
            FLAT,
            at_s=float(at),
            resident_kib=FLAT.resident_kib + int(kib_a_second * at),
            descriptors=FLAT.descriptors + int(descriptors_a_second * at),
        )
        for at in range(300)
    ]


def bad(samples: list[Sample], *, after: Sample = FLAT, lag: float = 2.0, unexpected: int = 0) -> list[str]:
    findings = judge(samples, FLAT, after, lag_p99_ms=lag, garbage=0.0, unexpected=unexpected, complaints=0)
    return [finding.name for finding in findings if not finding.is_good]


def test_a_flat_run_is_flat():
    assert bad(run()) == []


def test_memory_that_grows_by_30_octets_a_request_is_not_flat():
    assert bad(run(kib_a_second=2500 * 30 / 1024)) == ["memory"]


def test_descriptors_that_grow_are_not_flat():
    assert bad(run(descriptors_a_second=0.5)) == ["descriptors"]


def test_what_is_left_without_clients_is_not_flat():
    assert bad(run(), after=replace(FLAT, upstream=31, tasks=6)) == ["upstream left", "tasks left"]


def test_lag_and_anything_unexpected_are_not_good():
    assert bad(run(), lag=21.0, unexpected=1) == ["lag p99", "unexpected"]


def test_a_percentile_of_delays_is_that_of_the_time():
    delays = Delays()
    delays.read({"by_ms": {"0": 98, "40": 1, "80": 1}, "worst_ms": 80.4})
    assert (delays.percentile(0.5), delays.percentile(0.99), delays.percentile(1.0)) == (1.0, 41.0, 80.4)


# --- the load ------------------------------------------------------------------------------------------------------
async def test_every_scenario_ends_as_it_has_to_and_leaves_nothing(tmp_path: Path):
    subject = Subject(tmp_path, None, patience_s=2)
    names, origins = NameServer(), Origins(subject.server_context())
    await names.start()
    await origins.start()
    try:
        await subject.start(plain=origins.plain, tls=origins.tls, dns=names.port)
        before = await subject.sample()
        load = Load(subject, origins, 100_000, 1, random.Random(1))
        found = await asyncio.gather(
            *(scenario(load) for scenario, _ in MIXTURE for _ in range(TIMES)), return_exceptions=True
        )
        assert [each for each in found if isinstance(each, BaseException)] == []

        deadline = asyncio.get_running_loop().time() + 20
        while True:
            after = await subject.sample()
            left = (after.downstream, after.tunnels, after.upstream)
            if (left == (0, 0, 0) and after.tasks <= before.tasks) or asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.1)
        assert left == (0, 0, 0)
        assert after.tasks == before.tasks
        assert after.descriptors <= before.descriptors + 2  # the one pipe of long transfers stays
        assert subject.complaints() == []
        _, failures = await subject.metrics()
        assert "internal" not in failures
    finally:
        await asyncio.to_thread(subject.close)
        origins.close()
        names.close()
