import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.errors import BadRequest, Reason
from egressproxy.ir.route import HttpRouteIR, HttpRuleIR, MatchIR, MatchType, PathMatchType, ValueMatch
from egressproxy.model.fields import Fields
from egressproxy.model.work import at_once
from egressproxy.routing.precedence import criterion
from egressproxy.routing.table import HttpTable, RouteError
from tests.support.properties import examples

EXACT, PREFIX, REGEX = PathMatchType.EXACT, PathMatchType.PREFIX, PathMatchType.REGEX


def route(name, *matches, hosts=("a.test",), created="~"):
    """A route with one rule per match."""
    return HttpRouteIR(name, tuple(hosts), tuple(HttpRuleIR(matches=(m,)) for m in matches), created)


def table(*routes):
    """Payloads are "name" for a single rule and "name#index" otherwise."""
    return at_once(
        HttpTable.building(
            [(r, [r.name if len(r.rules) == 1 else f"{r.name}#{i}" for i in range(len(r.rules))]) for r in routes]
        )
    )


def ask(made, path, host="a.test", method=b"GET", fields=()):
    found = made.match(host, method, path, Fields.of(fields))
    return found and found[0]


def prefix(path, **more):
    return MatchIR(path, PREFIX, **more)


def test_a_prefix_matches_by_path_elements():
    made = table(route("r", prefix("/foo")))
    for path in (b"/foo", b"/foo/", b"/foo/bar", b"/foo//bar", b"/foo?x=1", b"/foo/?x"):
        assert ask(made, path) == "r", path
    for path in (b"/foobar", b"/", b"/fo", b"/Foo", b"//foo", b"/foo%2fbar", b"*"):
        assert ask(made, path) is None, path


def test_the_matched_prefix_is_given_back_as_written():
    made = table(route("r", prefix("/foo/"), prefix("/"), MatchIR("/exact", EXACT)))
    assert made.match("a.test", b"GET", b"/foo/bar", Fields()) == ("r#0", b"/foo/")
    assert made.match("a.test", b"GET", b"/other", Fields()) == ("r#1", b"/")
    assert made.match("a.test", b"GET", b"/exact", Fields()) == ("r#2", b"")


def test_an_exact_path_matches_nothing_but_itself():
    made = table(route("r", MatchIR("/abc", EXACT)))
    assert ask(made, b"/abc") == ask(made, b"/abc?q=1") == "r"
    for path in (b"/abc/", b"/Abc", b"/abcd", b"/ab"):
        assert ask(made, path) is None


def test_more_of_a_grpc_service_comes_before_more_of_its_method():
    made = table(
        route("any", prefix("/", method="POST", headers=(ValueMatch("x-a", "1"),))),
        route("method", prefix("/LongMethod", method="POST", any_service=True)),
        route("service", prefix("/a", method="POST")),
        route("both", MatchIR("/a/LongMethod", EXACT, "POST")),
    )  # fmt: skip
    one = ((b"x-a", b"1"),)

    def asked(path, fields=one, method=b"POST"):
        return ask(made, path, method=method, fields=fields)

    assert [asked(path) for path in (b"/a/LongMethod", b"/a/Other", b"/b/LongMethod", b"/b/Other")] == [
        "both", "service", "method", "any",
    ]  # fmt: skip
    assert asked(b"/b/LongMethod", method=b"GET") is None
    for path in (b"/LongMethod", b"/b/c/LongMethod", b"//LongMethod", b"/b/LongMethod/"):
        assert asked(path, fields=()) is None
    found = list(made.matches("a.test", b"POST", b"/a/LongMethod", Fields.of(one)))
    assert [match.payload for match in found] == ["both", "service", "method", "any"]
    assert [criterion(first, second) for first, second in pairwise(found)] == [
        "an exact path comes before a path prefix",
        "a path prefix comes before a gRPC method",
        "a gRPC method comes before every path",
    ]


def test_exact_beats_expression_beats_the_longest_prefix():
    made = table(
        route("any", prefix("/")), route("short", prefix("/a")), route("long", prefix("/a/b")),
        route("regex", MatchIR("/a/b/[0-9]+", REGEX)), route("exact", MatchIR("/a/b/1", EXACT)),
    )  # fmt: skip
    asked = [ask(made, path) for path in (b"/a/b/1", b"/a/b/2", b"/a/b/x", b"/a/x", b"/x")]
    assert asked == ["exact", "regex", "long", "short", "any"]


def test_then_a_method_then_more_headers_then_more_query_parameters():
    one, two = ValueMatch("one", "1"), ValueMatch("two", "2")
    made = table(
        route("plain", prefix("/")), route("method", prefix("/", method="GET")),
        route("header", prefix("/", headers=(one,))), route("headers", prefix("/", headers=(one, two))),
        route("query", prefix("/", query=(one,))),
    )  # fmt: skip
    both = [(b"One", b"1"), (b"two", b"2")]
    assert ask(made, b"/?one=1", fields=both) == "method"
    assert ask(made, b"/?one=1", method=b"PUT", fields=both) == "headers"
    assert ask(made, b"/?one=1", method=b"PUT", fields=both[:1]) == "header"
    assert ask(made, b"/?one=1", method=b"PUT") == "query"
    assert ask(made, b"/?one=2", method=b"PUT") == "plain"


def test_ties_go_to_the_oldest_then_by_name_then_by_the_order_in_the_route():
    assert ask(table(route("n/b", prefix("/")), route("n/c", prefix("/"), created="2026-01-01")), b"/") == "n/c"
    assert ask(table(route("n/b", prefix("/")), route("n/a", prefix("/"))), b"/") == "n/a"
    assert ask(table(route("n/a", prefix("/x"), prefix("/x"))), b"/x") == "n/a#0"


def test_a_preflight_request_goes_to_the_rule_of_the_method_that_it_asks_for():
    made = table(
        route("get", prefix("/a", method="GET"), prefix("/a", method="GET", is_preflight=True)),
        route("any", prefix("/")),
        route("put", prefix("/a", method="PUT"), prefix("/a", method="PUT", is_preflight=True)),
    )  # fmt: skip
    asking = [(b"origin", b"https://b.test"), (b"Access-Control-Request-Method", b"PUT")]
    assert ask(made, b"/a", method=b"OPTIONS", fields=asking) == "put#1"
    assert ask(made, b"/a", method=b"OPTIONS") == "any"
    assert ask(made, b"/a", method=b"OPTIONS", fields=asking[1:]) == "any"  # no page of another origin has asked
    assert ask(made, b"/a", method=b"GET", fields=asking) == "get#0"
    assert ask(made, b"/b", method=b"OPTIONS", fields=asking) == "any"


def test_what_is_written_beats_what_is_derived_for_preflight_requests():
    derived = route("derived", prefix("/a", method="PUT", is_preflight=True), created="2020-01-01T00:00:00Z")
    asking = [(b"origin", b"https://b.test"), (b"access-control-request-method", b"PUT")]
    made = table(derived, route("written", prefix("/a", method="OPTIONS")))
    assert ask(made, b"/a", method=b"OPTIONS", fields=asking) == "written"
    made = table(derived, route("plain", prefix("/a")))
    assert ask(made, b"/a", method=b"OPTIONS", fields=asking) == "derived"


def test_a_more_specific_hostname_beats_every_path():
    made = table(
        route("any", MatchIR("/x", EXACT), hosts=()),
        route("wild", MatchIR("/x", EXACT), hosts=("*.test",)),
        route("exact", prefix("/"), hosts=("a.test",)),
    )
    assert ask(made, b"/x") == "exact"
    assert ask(made, b"/x", host="b.test") == "wild"
    assert ask(made, b"/x", host="b.example") == "any"


def test_where_no_rule_of_the_most_specific_hostname_matches_the_next_one_is_tried():
    made = table(
        route("any", prefix("/"), hosts=()),
        route("wild", prefix("/w"), hosts=("*.test",)),
        route("exact", prefix("/e")),
    )
    assert [ask(made, path) for path in (b"/e", b"/w", b"/z")] == ["exact", "wild", "any"]


def test_no_route_at_all_is_none():
    assert ask(table(), b"/") is None
    assert ask(table(route("r", prefix("/"))), b"/", host="b.test") is None


@pytest.mark.parametrize(
    "path",
    [
        b"/a/../secret", b"/a/..", b"/a/.", b"/a/./x", b"/a/%2e%2e/x", b"/a/%2E./x", b"/a/.%2e", b"/a/%2e?x", b"/../a",
        b"/a/..%2fsecret", b"/a/..%2Fsecret", b"/a/..\\secret", b"/a/x%2f..%2fsecret", b"/a/..;/secret", b"/a/..%3b/x",
        b"/a/%252e%252e/x", b"/a/..%5csecret", b"/x\\..\\a",
    ],
)  # fmt: skip
def test_dot_segments_are_refused_where_rules_are_bound_to_paths(path):
    bound = table(route("r", prefix("/a"), prefix("/")))
    with pytest.raises(BadRequest) as caught:
        ask(bound, path)
    assert caught.value.reason is Reason.BAD_TARGET
    assert not caught.value.close
    free = table(route("r", prefix("/")))
    assert ask(free, path) == "r"


@pytest.mark.parametrize(
    "path",
    [
        b"/a/.well-known/x",
        b"/a/...",
        b"/a/x..",
        b"/a/..x/y",
        b"/a/v1.0",
        b"/a?p=/../",
        b"/a/%2ehidden",
        b"/a/x%2fy",
        b"/a/%20",
    ],
)
def test_dots_that_are_no_segment_of_their_own_pass(path):
    assert ask(table(route("r", prefix("/a"))), path) == "r"


def test_a_host_without_path_rules_passes_dot_segments_though_others_have_some():
    made = table(route("bound", prefix("/a"), hosts=()), route("free", prefix("/")))
    assert ask(made, b"/x/../y") == "free"


def test_an_encoded_letter_does_not_evade_a_rule():
    made = table(route("r", prefix("/admin"), MatchIR("/x%2Dy", EXACT), prefix("/")))
    assert ask(made, b"/%61dmin/x") == "r#0"
    assert ask(made, b"/x-y") == ask(made, b"/x%2dy") == "r#1"
    assert ask(made, b"/%2Fadmin") == "r#2"


def test_header_lines_are_matched_joined_and_names_ignore_case():
    made = table(route("r", prefix("/", headers=(ValueMatch("x-a", "1,2"),))))
    assert ask(made, b"/", fields=[(b"X-A", b"1"), (b"x-b", b"9"), (b"x-a", b"2")]) == "r"
    assert ask(made, b"/", fields=[(b"X-A", b"1")]) is None
    assert ask(made, b"/") is None


def test_a_header_expression_has_to_match_the_whole_value():
    made = table(route("r", prefix("/", headers=(ValueMatch("x-a", "v[0-9]+", MatchType.REGEX),))))
    assert ask(made, b"/", fields=[(b"x-a", b"v12")]) == "r"
    assert ask(made, b"/", fields=[(b"x-a", b"v12-evil")]) is None


def test_the_first_query_parameter_counts_and_is_decoded():
    made = table(route("r", prefix("/", query=(ValueMatch("q", "a b&c"),))))
    assert ask(made, b"/?q=a+b%26c&q=x") == ask(made, b"/?%71=a%20b%26c") == "r"
    for path in (b"/?q=x&q=a+b%26c", b"/?Q=a+b%26c", b"/?q", b"/", b"/?q=a;q=a+b%26c"):
        assert ask(made, path) is None, path


def test_a_query_expression_has_to_match_the_whole_value():
    made = table(route("r", prefix("/", query=(ValueMatch("q", "[a-z]+", MatchType.REGEX),))))
    assert ask(made, b"/?q=abc") == "r"
    assert ask(made, b"/?q=abc1") is None


def test_a_value_too_long_for_an_expression_is_refused_rather_than_passed_to_another_rule():
    made = table(route("r", MatchIR("/[a-z]*", REGEX), prefix("/")))
    with pytest.raises(BadRequest) as caught:
        ask(made, b"/" + b"a" * 3000)
    assert (caught.value.status, caught.value.reason) == (414, Reason.TARGET_TOO_LONG)
    made = table(route("r", prefix("/", headers=(ValueMatch("x", "a*", MatchType.REGEX),))))
    with pytest.raises(BadRequest) as caught:
        ask(made, b"/", fields=[(b"x", b"a" * 3000)])
    assert (caught.value.status, caught.value.reason) == (431, Reason.HEAD_TOO_LARGE)


def test_a_rule_of_several_hostnames_has_its_rank_under_each():
    older = route("n/b", prefix("/"), hosts=("*.test",))
    several = route("n/c", MatchIR("/", EXACT), prefix("/"), hosts=("a.test", "*.test"))
    for routes in ((older, several), (several, older)):
        assert ask(table(*routes), b"/a", host="b.a.test") == "n/b"


def test_a_refused_expression_names_route_and_rule():
    with pytest.raises(RouteError, match=r"HTTPRoute n/r, rule 1: .*has no backreferences"):
        table(route("n/r", prefix("/"), MatchIR(r"(a)\1", REGEX)))


def test_a_path_of_many_slashes_is_answered_at_once():
    made = table(route("r", prefix("/a/b"), prefix("/")))
    started = time.process_time()
    assert ask(made, b"/" * 60000) == "r#1"
    assert time.process_time() - started < 1, "the square of the length would take minutes"


# -- against a second implementation that sorts and tries every match -------------------------------------------------

ELEMENTS = st.sampled_from(["a", "b", "ab", "c"])
PATHS = st.lists(ELEMENTS, max_size=3).map(lambda parts: "/" + "/".join(parts))
VALUES = st.lists(st.builds(ValueMatch, st.sampled_from(["h", "k"]), st.sampled_from(["1", "2"])), max_size=2,
                  unique_by=lambda v: v.name).map(tuple)  # fmt: skip
MATCHES = st.builds(
    MatchIR,
    path=PATHS | PATHS.map(lambda p: p.rstrip("/") + "/"),
    path_type=st.sampled_from([EXACT, PREFIX]),
    method=st.sampled_from(["", "", "GET", "PUT"]),
    headers=VALUES,
    query=VALUES,
)
RULES = st.builds(HttpRuleIR, matches=st.lists(MATCHES, min_size=1, max_size=2).map(tuple))
HOSTS = st.sampled_from(["a.test", "b.a.test", "*.test", "*.a.test", "c.example"])
ROUTES = st.lists(
    st.builds(
        HttpRouteIR,
        name=st.sampled_from(["n/a", "n/b", "n/c"]),
        hostnames=st.lists(HOSTS, max_size=2, unique=True).map(tuple),
        rules=st.lists(RULES, min_size=1, max_size=3).map(tuple),
        created=st.sampled_from(["2026-01-01", "2026-01-02", "~"]),
    ),
    max_size=5,
    unique_by=lambda r: r.name,
)  # fmt: skip
REQUESTS = st.tuples(
    st.sampled_from(["a.test", "b.a.test", "x.test", "c.example", "d.example"]),
    st.sampled_from([b"GET", b"PUT", b"POST"]),
    PATHS | PATHS.map(lambda p: p + "/"),
    st.dictionaries(st.sampled_from(["h", "k"]), st.sampled_from(["1", "2"])),
    st.dictionaries(st.sampled_from(["h", "k"]), st.sampled_from(["1", "2"])),
)


def naive(routes, host, method, path, headers, query):
    """Every match of every route, ranked by the rules of the specification, one after the other."""
    elements = path.split("/")[1:]
    best = None
    for spec in routes:
        for pattern in spec.hostnames or ("*",):
            if pattern == "*":
                host_rank = (0, 0)
            elif pattern.startswith("*."):
                if not host.endswith(pattern[1:]):
                    continue
                host_rank = (0, len(pattern))
            elif pattern == host:
                host_rank = (1, len(pattern))
            else:
                continue
            for index, rule in enumerate(spec.rules):
                for match in rule.matches:
                    if match.path_type is EXACT:
                        if match.path != path:
                            continue
                    else:
                        wanted = [e for e in match.path.split("/") if e]
                        if elements[: len(wanted)] != wanted:
                            continue
                    if match.method and match.method.encode() != method:
                        continue
                    if any(headers.get(h.name) != h.value for h in match.headers):
                        continue
                    if any(query.get(q.name) != q.value for q in match.query):
                        continue
                    rank = (
                        [-n for n in host_rank], match.path_type is PREFIX,
                        -len(match.path.rstrip("/")) if match.path_type is PREFIX else 0,
                        not match.method, -len(match.headers), -len(match.query), spec.created, spec.name, index,
                    )  # fmt: skip
                    if best is None or rank < best[0]:
                        best = (rank, (spec.name, index))
    return best and best[1]


@settings(max_examples=examples(400), deadline=None)
@given(ROUTES, st.lists(REQUESTS, min_size=1, max_size=5))
def test_the_table_agrees_with_the_precedence_rules_tried_one_by_one(routes, requests):
    made = at_once(HttpTable.building([(r, [(r.name, i) for i in range(len(r.rules))]) for r in routes]))
    for host, method, path, headers, query in requests:
        target = path.encode() + (b"?" + "&".join(f"{k}={v}" for k, v in query.items()).encode() if query else b"")
        found = made.match(host, method, target, Fields.of((k.encode(), v.encode()) for k, v in headers.items()))
        assert (found and found[0]) == naive(routes, host, method, path, headers, query)


def test_a_table_is_built_a_route_at_a_time():
    routes = [route(f"r{n}", prefix("/"), hosts=(f"h{n}.test",)) for n in range(20)]
    assert len(list(HttpTable.building([(r, [r.name]) for r in routes]))) >= 20


def test_matches_with_expressions_are_compiled_one_at_a_time():
    pattern = ValueMatch("x", "[a-z]{9}", MatchType.REGEX)
    for match in (prefix("/", headers=(pattern,)), prefix("/", query=(pattern,)), MatchIR("/[a-z]{9}", REGEX)):
        spec = HttpRouteIR("r", ("a.test",), (HttpRuleIR(matches=(match,) * 20),))
        assert len(list(HttpTable.building([(spec, ["r"])]))) >= 20


def test_the_rule_of_every_request_for_a_host_is_known():
    assert table(route("r", prefix("/"))).sole("a.test") == "r"
    assert table(route("r", prefix("/"), hosts=("*.test",))).sole("a.test") == "r"
    assert table(route("r", prefix("/"), hosts=())).sole("a.test") == "r"
    assert table(route("r", prefix("/"))).sole("b.test") is None
    assert table(route("r", prefix("/v1"))).sole("a.test") is None
    assert table(route("r", prefix("/", method="GET"))).sole("a.test") is None
    assert table(route("r", prefix("/"), prefix("/v1"))).sole("a.test") is None
    own, common = route("own", prefix("/v1")), route("common", prefix("/"), hosts=("*.test",))
    assert table(own, common).sole("a.test") is None, "some go by the one, others by the other"
    assert table(own, common).sole("b.test") == "common"


def test_a_host_of_many_routes_is_built_in_many_turns():
    rules = (HttpRuleIR(matches=(MatchIR(),)),)
    routes = [(HttpRouteIR(f"n/r{number}", ("a.test",), rules), [number]) for number in range(2000)]
    assert len(list(HttpTable.building(routes))) >= 2010
    table = at_once(HttpTable.building(routes))
    assert len(list(table.replacing("HTTPRoute", {"n/r1"}, []))) >= 10
