"""Rows and results for tests of what a comparison makes of its figures."""

from benchmarks.comparison import Row
from benchmarks.generators import Outcome
from benchmarks.workloads.base import Round

OUTCOME = Outcome(units=3000, seconds=2.0, errors=0, p50_us=400, p99_us=900)


def row(workload, proxy, *figures, missing="", caveat="", **extra):
    rounds = [Round(figure, OUTCOME, 64.0, dict(extra)) for figure in figures]
    return Row(workload, proxy, rounds, missing=missing, caveat=caveat)


def results():
    """What a run of two workloads could have found."""
    return {
        "W1": [
            row("W1", "egressproxy", 20.0, 24.0),
            row("W1", "envoy", 40.0, 40.0),
            row("W1", "mitmproxy", 900.0, 800.0, caveat="no limits"),
            row("W1", "squid", missing="no answer | at\nall"),
        ],
        "W5": [row("W5", "egressproxy", 10.0, 12.0, added_p50_us=50.0), row("W5", "envoy", 20.0, 16.0)],
    }
