import pytest

from egressproxy.model.work import at_once
from egressproxy.routing.hosts import HostEntry, HostMap


def built(*entries):
    return at_once(HostMap.building(entries))


TABLE = built(
    HostEntry(("a.example.com",), "exact"),
    HostEntry(("*.example.com",), "wide"),
    HostEntry(("*.b.example.com",), "narrow"),
    HostEntry((), "any"),
)


@pytest.mark.parametrize(
    ("host", "payload"),
    [
        ("a.example.com", "exact"),
        ("z.example.com", "wide"),
        ("x.a.example.com", "wide"),
        ("x.b.example.com", "narrow"),
        ("x.y.b.example.com", "narrow"),
        ("b.example.com", "wide"),
        ("example.com", "any"),
        ("notexample.com", "any"),
        ("10.0.0.1", "any"),
        ("::1", "any"),
        ("", "any"),
    ],
)
def test_the_most_specific_hostname_wins(host, payload):
    assert TABLE.match(host) == payload


def test_a_wildcard_does_not_match_its_own_suffix():
    table = built(HostEntry(("*.example.com",), 1))
    assert table.match("example.com") is None
    assert table.match(".example.com") == 1  # no such host passes the authority's grammar
    assert table.match("badexample.com") is None


def test_of_equal_hostnames_the_oldest_wins_and_then_the_first_by_name():
    def entry(payload, created, name):
        return HostEntry(("a.test",), payload, created, name)

    assert built(entry("b", "2026-01-02", "n/a"), entry("a", "2026-01-01", "n/b")).match("a.test") == "a"
    assert built(entry("b", "~", "n/b"), entry("a", "~", "n/a")).match("a.test") == "a"
    assert built(entry("b", "~", "n/a"), entry("a", "2026-01-01", "n/b")).match("a.test") == "a"


def test_an_empty_table_matches_nothing():
    assert built().match("a.test") is None


def test_a_table_is_built_an_entry_at_a_time():
    assert len(list(HostMap.building(HostEntry((f"h{n}.test",), n) for n in range(20)))) >= 20
