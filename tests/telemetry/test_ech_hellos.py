"""ClientHellos with ECH, counted by names that clients choose."""

from __future__ import annotations

from egressproxy.telemetry.ech_hellos import MAX_NAMES, EchHellos
from egressproxy.telemetry.label_sets import OVERFLOW


def test_names_are_counted_up_to_a_bound():
    hellos = EchHellos()
    for number in range(MAX_NAMES + 20):
        hellos.count("agents/gw", "forward", f"{number}.example")
    hellos.count("agents/gw", "forward", "0.example")
    hellos.count("agents/gw", "other", "0.example")
    assert len(hellos.counted) == MAX_NAMES + 2
    assert hellos.counted["agents/gw", "forward", "0.example"] == 2
    assert hellos.counted["agents/gw", "forward", OVERFLOW] == 20
