from __future__ import annotations

import pytest

from egressproxy.config.compile.routes.served_routes import HostnameClaims


@pytest.mark.parametrize(
    ("taken", "asked", "meets"),
    [
        (["a.example"], ["a.example"], True),
        (["a.example"], ["b.example"], False),
        (["a.example"], ["*.example"], True),
        (["*.example"], ["a.b.example"], True),
        (["*.example"], ["example"], False),
        (["*.b.example"], ["*.example"], True),
        (["*.example"], ["*.b.example"], True),
        (["*.a.example"], ["*.b.example"], False),
        ([], ["a.example"], True),
        (["a.example"], [], True),
    ],
)
def test_patterns_with_hosts_in_common_meet(taken: list[str], asked: list[str], meets: bool):
    hosts = HostnameClaims()
    hosts.claim(taken, "default/older")
    assert hosts.conflicting_owner(asked) == ("default/older" if meets else "")


def test_nobody_is_met_where_nobody_is():
    assert HostnameClaims().conflicting_owner([]) == ""


def test_a_pattern_belongs_to_who_took_it_first():
    hosts = HostnameClaims()
    hosts.claim(["a.example"], "default/older")
    hosts.claim(["a.example", "b.example"], "default/younger")
    assert [hosts.owner(name) for name in ("a.example", "b.example", "c.example")] == [
        "default/older", "default/younger", "",
    ]  # fmt: skip
