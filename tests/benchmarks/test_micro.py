import json

import pytest
from click.testing import CliRunner

from benchmarks.micro.__main__ import change, collect, main
from benchmarks.micro.stage import Price, Stage, measure
from egressproxy.filters.catalog import Catalog


@pytest.fixture(scope="module")
def stages():
    found, broken = collect()
    assert not broken
    return found


def test_every_stage_can_be_called_and_has_a_name_of_its_own(stages):
    assert len({stage.key for stage in stages}) == len(stages)
    for stage in stages:
        stage.call()
        if stage.idle is not None:
            stage.idle()


#: Filters that ask a backend or a person, or write a file: their pages say what they cost, which is not theirs alone.
ELSEWHERE = {"ApprovalHold", "Audit", "ExternalProcessor", "RegionLock", "Webhook"}


def test_every_built_in_filter_has_a_price(stages):
    names = [stage.name for stage in stages if stage.group in ("filters", "ai")]
    kinds = {type_name.partition("/")[2].partition(":")[0] for type_name in Catalog().names()}
    assert {kind for kind in kinds if not any(name.startswith(kind) for name in names)} <= ELSEWHERE


def test_a_price_is_that_of_one_call_less_what_the_measurement_costs():
    many = Stage("g", "many", lambda: sum(range(2000)))
    (price,) = measure([many], 3)
    assert price.key == "g: many"
    assert 0 < price.least <= price.median <= price.greatest


def test_a_change_is_named_only_beyond_the_spread():
    before = Price("k", 100.0, 90.0, 110.0)
    assert change(Price("k", 103.0, 95.0, 110.0), before) == ["100", "~"]
    assert change(Price("k", 150.0, 149.0, 151.0), before) == ["100", "[red]+50%[/]"]
    assert change(Price("k", 50.0, 49.0, 51.0), before) == ["100", "[green]-50%[/]"]
    assert change(Price("k", 50.0, 49.0, 51.0), None) == ["new", ""]


@pytest.fixture
def collected(stages, monkeypatch):
    """What a run would collect is there already."""
    monkeypatch.setattr("benchmarks.micro.__main__.collect", lambda: (stages, []))


@pytest.mark.usefixtures("collected")
def test_two_runs_can_be_compared(tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    arguments = ["--only", "deadline", "--samples", "1"]
    ran = CliRunner().invoke(main, [*arguments, "--out", str(first)])
    assert ran.exit_code == 0, ran.output
    ran = CliRunner().invoke(main, [*arguments, "--out", str(second), "--against", str(first)])
    assert ran.exit_code == 0, ran.output
    assert "change" in ran.output
    prices = json.loads(second.read_text())["prices"]
    assert [price["key"] for price in prices] == ["transport: Deadline: moved", "transport: Deadline: cleared"]


@pytest.mark.usefixtures("collected")
def test_a_file_that_is_no_result_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("[]")
    ran = CliRunner().invoke(main, ["--only", "deadline", "--samples", "1", "--against", str(tmp_path / "a.json")])
    assert ran.exit_code == 2
    assert "is not a result of" in ran.output
