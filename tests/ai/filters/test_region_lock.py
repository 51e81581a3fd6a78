from __future__ import annotations

import pytest

from egressproxy.filters.testing import FilterBuildError, FilterHarness, exchange

NAME = "egressproxy.io/RegionLock:v1"


def test_it_runs_in_no_phase():
    made = FilterHarness({"allowed": ["eu"]}, type=NAME, phase="request-headers", source="EgressPolicy agents/p")
    assert made.run(exchange("GET", "http://a.example/")).error is None


def test_it_is_refused_where_the_compiler_does_not_look_for_it():
    with pytest.raises(FilterBuildError, match="of an EgressPolicy or a Backend, not of a PayloadProcessingPipeline"):
        FilterHarness(
            {"allowed": ["eu"]}, type=NAME, phase="request-headers", source="PayloadProcessingPipeline agents/p"
        )


@pytest.mark.parametrize("config", [{}, {"allowed": [""]}, {"allowed": ["eu"], "other": 1}])
def test_a_config_without_regions_is_refused(config: dict[str, object]):
    with pytest.raises(FilterBuildError):
        FilterHarness(config, type=NAME, phase="request-headers", source="EgressPolicy agents/p")
