import asyncio
import math

import pytest

from egressproxy.filters.credentials import refresher as module
from egressproxy.filters.credentials.refresher import Fetched, FetchError, Refresher
from tests.support.waiting import until


class Source:
    """What a Refresher fetches from: answers in turn, each when `open` is set."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = 0
        self.kept = []
        self.told = []
        self.open = asyncio.Event()
        self.open.set()
        self.refresher = Refresher(self.fetch, self.keep, lambda *told: self.told.append(told))

    async def fetch(self):
        self.asked += 1
        await self.open.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def keep(self, value):
        if value == b"bad":
            raise ValueError("it cannot be sent")
        self.kept.append(value)

    async def until(self, is_so):
        await until(lambda: is_so(self))


@pytest.fixture
async def source():
    made = []

    def make(*answers):
        made.append(Source(*answers))
        return made[-1]

    yield make
    for each in made:
        each.refresher.close()


async def test_all_that_wait_share_one_fetch(source):
    one = source(Fetched(b"v1"))
    one.open.clear()
    waiting = [asyncio.create_task(one.refresher.ready()) for _ in range(50)]
    await one.until(lambda s: s.asked)
    waiting[0].cancel()  # a client that leaves does not take the others' fetch with it
    one.open.set()
    await asyncio.gather(*waiting[1:])
    assert (one.asked, one.kept) == (1, [b"v1"])
    await one.refresher.ready()
    assert one.asked == 1


async def test_a_value_is_fetched_again_before_it_ends(source, monkeypatch):
    monkeypatch.setattr(module, "MARGIN_S", 0.0)
    monkeypatch.setattr(module, "SHORTEST_S", 0.0)
    one = source(Fetched(b"v1", life_s=0.3), Fetched(b"v2"))
    await one.refresher.ready()
    await one.until(lambda s: len(s.kept) > 1)
    assert one.kept == [b"v1", b"v2"]  # and never None between
    assert one.refresher.expires_at == math.inf


async def test_the_last_value_serves_until_it_expires_and_not_longer(source, monkeypatch):
    monkeypatch.setattr(module, "MARGIN_S", 0.0)
    monkeypatch.setattr(module, "FIRST_RETRY_S", 0.02)
    monkeypatch.setattr(module, "SHORTEST_S", 0.0)
    one = source(Fetched(b"v1", life_s=0.5, refresh_s=0.01), FetchError("the endpoint says 500"))
    await one.refresher.ready()
    await one.until(lambda s: len(s.told) > 1)
    assert one.kept == [b"v1"]
    assert one.told[1][0] == "the endpoint says 500"
    assert 0 < one.told[1][1] <= 0.5
    await one.until(lambda s: s.kept[-1] is None)
    assert one.refresher.has_value is False
    await one.until(lambda s: s.told[-1] == ("the endpoint says 500", 0))


async def test_a_final_failure_ends_the_value_at_once(source, monkeypatch):
    monkeypatch.setattr(module, "SHORTEST_S", 0.0)
    one = source(Fetched(b"v1", refresh_s=0.01), FetchError("the file is gone", is_final=True))
    await one.refresher.ready()
    await one.until(lambda s: len(s.kept) > 1)
    assert one.kept == [b"v1", None]


async def test_a_failure_is_not_repeated_by_each_request(source):
    one = source(FetchError("no"))
    for _ in range(20):
        await one.refresher.ready()
    assert one.asked == 1
    assert one.refresher.error == "no"
    assert one.refresher.retry_s == 1


async def test_other_errors_are_told_by_their_type_alone(source):
    one = source(RuntimeError("S3CR3T"))
    await one.refresher.ready()
    assert one.told == [("RuntimeError", 0)]
    assert "S3CR3T" not in repr(one.refresher)


async def test_a_value_that_cannot_be_used_is_a_failure(source):
    one = source(Fetched(b"bad"))
    await one.refresher.ready()
    assert one.told == [("it cannot be sent", 0)]


async def test_a_fetch_that_hangs_ends(source, monkeypatch):
    monkeypatch.setattr(module, "MAX_FETCH_S", 0.05)
    one = source(Fetched(b"v"))
    one.open.clear()
    await one.refresher.ready()
    assert one.refresher.error.startswith("no answer within")


async def test_after_close_nothing_more_is_fetched(source, monkeypatch):
    monkeypatch.setattr(module, "SHORTEST_S", 0.0)
    one = source(Fetched(b"v1", refresh_s=0.01))
    await one.refresher.ready()
    one.open.clear()
    await one.until(lambda s: s.asked > 1)
    one.refresher.close()
    one.open.set()
    await one.until(lambda s: s.refresher._task is None)
    assert one.kept == [b"v1"]  # which requests under way may still use
    assert "v1" not in repr(Fetched(b"v1"))


async def test_a_request_that_waits_while_a_reload_replaces_the_filter_gets_its_value(source):
    one = source(Fetched(b"v1", refresh_s=0.01))
    one.open.clear()
    waiting = asyncio.create_task(one.refresher.ready())
    await one.until(lambda s: s.asked)
    one.refresher.close()
    one.open.set()
    await waiting
    assert one.kept == [b"v1"]
    assert one.refresher._timer is None
    never = source(Fetched(b"v"))
    never.refresher.close()
    await never.refresher.ready()
    assert never.asked == 0


async def test_values_that_live_for_no_time_are_not_fetched_without_a_pause(source):
    loop = asyncio.get_running_loop()
    made = source(Fetched(b"v", life_s=0.000_001), Fetched(b"v", life_s=0.000_001))
    await made.refresher.ready()
    assert made.asked == 1
    assert made.refresher._timer.when() - loop.time() > module.SHORTEST_S / 2
