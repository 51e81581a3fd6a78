"""Metrics of DNS servers."""

from __future__ import annotations

from egressproxy.telemetry import dns_queries
from egressproxy.telemetry.counts import FilterMetric
from egressproxy.telemetry.dns_queries import MAX_SERVERS, OVERFLOW, DnsQueries


def values(queries: DnsQueries, name: str) -> FilterMetric:
    return queries.read()[name]


def test_nothing_is_shown_of_which_nothing_was_counted():
    assert DnsQueries().read() == {}


def test_queries_are_counted_by_server_and_result_with_their_durations():
    queries = DnsQueries()
    queries.count("udp://10.0.0.53:53", "noerror", 0.0015)
    queries.count("udp://10.0.0.53:53", "noerror", 0.3)
    queries.count("tls://1.1.1.1:853", "unanswered", 9.0)
    assert values(queries, "egress_dns_queries").values == {
        ("udp://10.0.0.53:53", "noerror"): 2, ("tls://1.1.1.1:853", "unanswered"): 1,
    }  # fmt: skip
    durations = values(queries, "egress_dns_query_duration_seconds")
    bounds = dns_queries.QUERY_BUCKETS_S
    counted = durations.buckets["udp://10.0.0.53:53",]
    assert [bound for bound, count in zip(bounds, counted, strict=False) if count] == [0.002, 0.5]
    assert durations.buckets["tls://1.1.1.1:853",][-1] == 1
    assert durations.values["udp://10.0.0.53:53",] == 0.3015
    queries.count_reverse("differs")
    assert values(queries, "egress_dns_reverse_checks").values == {("differs",): 1}


def test_servers_beyond_a_bound_share_one_label():
    queries = DnsQueries()
    for number in range(MAX_SERVERS + 5):
        queries.count(f"udp://10.0.0.{number}:53", "noerror", 0.1)
    assert values(queries, "egress_dns_queries").values[OVERFLOW, "noerror"] == 5
