import pytest
from click.testing import CliRunner

from benchmarks.__main__ import choose, main
from benchmarks.proxies import DEFAULT_PEERS, PEERS
from benchmarks.workloads import WORKLOADS

EVERYTHING = tuple(WORKLOADS)


def test_help_tells_of_every_workload_and_peer():
    said = CliRunner().invoke(main, ["--help"]).output
    assert all(f"\n    {name} " in said or f"\n  {name} " in said for name in WORKLOADS), said
    assert all(name in said for name in PEERS)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--only", "W0"], "'W0' is not known"),
        (["--peers", "apache"], "'apache' is not known"),
        (["--only", ""], "names no workload"),
        (["--rounds", "0"], "0 is not in the range"),
        (["--seconds", "60"], "60 is not in the range"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(arguments, problem):
    ran = CliRunner().invoke(main, arguments)
    assert ran.exit_code == 2
    assert problem in ran.output


def test_a_run_of_everything_leaves_the_slow_peers_and_their_workloads_out():
    workloads, peers = choose(EVERYTHING, DEFAULT_PEERS, False)
    assert workloads == tuple(name for name in EVERYTHING if name not in ("L", "Lp", "W9"))
    assert peers == DEFAULT_PEERS


def test_w9_brings_mitmproxy_where_it_is_named():
    assert choose(("W9",), ("envoy",), False) == (("W9",), ("envoy", "mitmproxy"))
    assert "W9" in choose(EVERYTHING, ("mitmproxy",), False)[0]
    assert "W9" not in choose(EVERYTHING, DEFAULT_PEERS, False)[0]


def test_l_brings_litellm_where_it_is_named():
    assert choose(("L",), ("envoy",), False) == (("L",), ("envoy", "litellm"))
    assert "L" in choose(EVERYTHING, ("litellm",), False)[0]


def test_slow_adds_every_peer_that_has_something_to_do():
    assert choose(EVERYTHING, DEFAULT_PEERS, True)[1] == tuple(PEERS)
    assert "litellm" not in choose(("W1",), DEFAULT_PEERS, True)[1]
    assert "mitmproxy" in choose(("W1",), DEFAULT_PEERS, True)[1]
