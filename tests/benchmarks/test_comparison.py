import random

import pytest

from benchmarks.comparison import compare
from benchmarks.generators import LoadError
from benchmarks.workloads.base import Round, Workload
from tests.benchmarks.kit import row


class Proxy:
    def __init__(self, name, *figures, unable=None):
        self.name = name
        self.figures = list(figures)
        self.unable = unable or {}
        self.caveats = {}


class Work(Workload):
    name = "T"
    title = "a test"
    figure = "units"

    def __init__(self, broken=""):
        self.broken = broken
        self.order = []
        self.is_closed = False

    def check(self, proxy, world):
        if proxy.name == self.broken:
            raise LoadError("it does not answer")

    def warm_up(self, proxy, world, seconds):
        pass

    def measure(self, proxy, world, seconds):
        self.order.append(proxy.name)
        figure = proxy.figures.pop(0)
        if figure is None:
            raise LoadError("not comparable: 3 errors among 9 units")
        return Round(figure)

    def close(self):
        self.is_closed = True


def run(work, *proxies, rounds=2):
    told = []
    rows = compare(
        work, proxies, None, rounds=rounds, seconds=1.0, chance=random.Random(1),
        tell=lambda text, share: told.append(share),
    )  # fmt: skip
    assert told == sorted(told)
    assert all(0 <= share <= 1 for share in told)
    assert work.is_closed
    return {each.proxy: each for each in rows}


def test_each_round_goes_through_every_proxy():
    work = Work()
    rows = run(work, Proxy("a", 1.0, 3.0, 2.0), Proxy("b", 4.0, 4.0, 4.0), rounds=3)
    assert rows["a"].figure == 2.0
    assert rows["b"].figures == [4.0, 4.0, 4.0]
    assert [sorted(work.order[at : at + 2]) for at in (0, 2, 4)] == [["a", "b"]] * 3


def test_a_proxy_with_an_error_has_no_figure_and_the_others_go_on():
    rows = run(Work(), Proxy("a", 1.0, None), Proxy("b", 4.0, 4.0))
    assert not rows["a"].rounds
    assert rows["a"].missing == "not comparable: 3 errors among 9 units"
    assert len(rows["b"].rounds) == 2


def test_a_proxy_that_does_not_do_the_work_is_not_measured():
    work = Work(broken="b")
    rows = run(work, Proxy("a", 1.0, 1.0), Proxy("b"), Proxy("c", unable={"T": "it cannot"}))
    assert rows["b"].missing == "it does not answer"
    assert rows["c"].missing == "it cannot"
    assert set(work.order) == {"a"}


def test_a_workload_that_fails_as_such_has_no_figures_at_all():
    class Failing(Work):
        def before_round(self, world, seconds):
            raise LoadError("the origin is too slow")

    assert run(Failing(), Proxy("a", 1.0))["a"].missing == "the origin is too slow"


def test_a_ratio_is_taken_round_by_round():
    ratio = row("W1", "egressproxy", 10.0, 40.0, 30.0).as_ratio_to(row("W1", "envoy", 20.0, 40.0, 40.0))
    assert (ratio.least, ratio.median, ratio.greatest) == (0.5, 0.75, 1.0)


def test_rows_that_do_not_match_are_not_compared():
    with pytest.raises(ValueError, match="longer"):
        row("W1", "egressproxy", 10.0).as_ratio_to(row("W1", "envoy", 20.0, 40.0))
