"""Which rule comes second, and by which criterion the first one won."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.ir.route import HttpRouteIR, HttpRuleIR, MatchIR, PathMatchType, ValueMatch
from egressproxy.model.fields import Fields
from egressproxy.model.work import at_once
from egressproxy.routing.precedence import criterion
from egressproxy.routing.table import HttpTable
from tests.support.properties import examples

EXACT, PREFIX, REGEX = PathMatchType.EXACT, PathMatchType.PREFIX, PathMatchType.REGEX
ONE, TWO = ValueMatch("one", "1"), ValueMatch("two", "2")


def route(name, *matches, hosts=("a.test",), created="~"):
    rules = tuple(HttpRuleIR(matches=(match,), index=index) for index, match in enumerate(matches))
    return HttpRouteIR(name, tuple(hosts), rules, created)


def table(*routes):
    return at_once(
        HttpTable.building([(each, [(each.name, index) for index in range(len(each.rules))]) for each in routes])
    )


def first_two(made, path=b"/a/b?one=1&two=2", method=b"GET"):
    fields = Fields.of([(b"one", b"1"), (b"two", b"2")])
    return list(islice(made.matches("a.test", method, path, fields), 2))


@pytest.mark.parametrize(
    ("winner", "other", "why"),
    [
        (
            route("n/w", MatchIR()), route("n/o", MatchIR("/a/b", EXACT), hosts=("*.test",)),
            "hostname a.test is more specific than *.test",
        ),
        (
            route("n/w", MatchIR(), hosts=("*.test",)), route("n/o", MatchIR("/a/b", EXACT), hosts=()),
            "hostname *.test is more specific than every host",
        ),
        (
            route("n/w", MatchIR("/a/b", EXACT)), route("n/o", MatchIR("/a/.*", REGEX)),
            "an exact path comes before a regular expression",
        ),
        (
            route("n/w", MatchIR("/a/b")), route("n/o", MatchIR("/a", method="GET")),
            "its path is longer (4 bytes, not 2)",
        ),
        (
            route("n/w", MatchIR("/a", method="GET")), route("n/o", MatchIR("/a", headers=(ONE,))),
            "it names the method",
        ),
        (
            route("n/w", MatchIR(headers=(ONE, TWO))), route("n/o", MatchIR(headers=(ONE,), query=(ONE,))),
            "it matches more headers (2, not 1)",
        ),
        (
            route("n/w", MatchIR(query=(ONE, TWO))), route("n/o", MatchIR(query=(ONE,)), created="2020"),
            "it matches more query parameters (2, not 1)",
        ),
        (
            route("n/w", MatchIR(), created="2020-01-01T00:00:00Z"), route("n/a", MatchIR()),
            "its route is older (2020-01-01T00:00:00Z; the other: no creationTimestamp)",
        ),
        (
            route("n/a", MatchIR()), route("n/b", MatchIR()),
            "its route comes first by name (n/a before n/b)",
        ),
    ],
)  # fmt: skip
def test_the_criterion_by_which_a_rule_wins(winner, other, why):
    for made in (table(winner, other), table(other, winner)):
        first, second = first_two(made)
        assert (first.origin.route, second.origin.route) == (winner.name, other.name)
        assert criterion(first, second) == why


def test_rules_of_one_route_win_by_their_place():
    first, second = first_two(table(route("n/r", MatchIR("/a"), MatchIR("/a"))))
    assert (first.origin.rule, second.origin.rule) == (0, 1)
    assert criterion(first, second) == "its rule stands first in the route"


def test_other_matches_of_the_winning_rule_are_no_runner_up():
    both = HttpRouteIR("n/r", ("a.test",), (HttpRuleIR(matches=(MatchIR("/a/b"), MatchIR("/a"))),))
    made = table(both, route("n/o", MatchIR()))
    assert [each.origin.route for each in first_two(made)] == ["n/r", "n/o"]


def test_a_match_says_what_it_matches_and_where():
    (found,) = first_two(table(route("n/r", MatchIR("/a", method="GET", headers=(ONE,), query=(TWO,)))))
    assert (found.origin.kind, found.origin.rule, found.hostname) == ("HTTPRoute", 0, "a.test")
    assert found.text == "GET PathPrefix /a header one=1 query two=2"


def test_a_table_tells_whether_headers_or_queries_decide():
    made = table(route("n/r", MatchIR(headers=(ONE,))), route("n/o", MatchIR(), hosts=("b.test",)))
    assert made.depends_on_fields("a.test")
    assert not made.depends_on_fields("b.test")


_PATHS = st.sampled_from(["/", "/a", "/a/b", "/a/b/c"])
_MATCHES = st.builds(
    MatchIR, _PATHS, st.sampled_from([EXACT, PREFIX]), st.sampled_from(["", "GET", "PUT"]),
    st.sampled_from([(), (ONE,), (ONE, TWO)]), st.sampled_from([(), (TWO,)]),
)  # fmt: skip
_ROUTES = st.lists(
    st.tuples(st.lists(_MATCHES, min_size=1, max_size=3), st.sampled_from([("a.test",), ("*.test",), ()])), max_size=5
)


@given(_ROUTES, _PATHS, st.sampled_from([b"GET", b"PUT"]))
@settings(max_examples=examples(60), deadline=None)
def test_the_first_match_is_the_one_that_serves_and_each_further_one_ranks_behind(written, path, method):
    made = table(*(route(f"n/{number}", *rules, hosts=hosts) for number, (rules, hosts) in enumerate(written)))
    fields = Fields.of([(b"one", b"1")])
    served = made.match("a.test", method, path.encode(), fields)
    every = list(made.matches("a.test", method, path.encode(), fields))
    assert (every[0].payload if every else None) == (served and served[0])
    assert len({each.payload for each in every}) == len(every)
    for before, after in pairwise(every):
        assert before.hostname != after.hostname or before.rank <= after.rank
