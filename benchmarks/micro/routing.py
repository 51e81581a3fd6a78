"""The choice of a route, among 10, 1,000 and 10,000: the price is not to grow."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.micro.stage import Stage
from egressproxy.ir.route import HttpRouteIR, HttpRuleIR, MatchIR, PathMatchType, ValueMatch
from egressproxy.model.fields import Fields
from egressproxy.model.work import at_once
from egressproxy.routing.table import HttpTable

COUNTS = (10, 1000, 10_000)
FIELDS = Fields(b"\r\nHost: a.test" + b"".join(b"\r\nX-Field-%d: value" % n for n in range(11)))


def stages() -> Iterator[Stage]:
    yield match("one catch-all rule", table(route("r", "")), "a.test", b"/v1/chat/completions")
    for count in COUNTS:
        hosts = table(*(route(f"r{n}", f"h{n}.example.com") for n in range(count)))
        yield match(f"{count:,} hosts, exact", hosts, f"h{count // 2}.example.com", b"/v1/chat/completions")
    for count in COUNTS:
        wild = table(*(route(f"r{n}", f"*.h{n}.example.com") for n in range(count)))
        yield match(f"{count:,} hosts, wildcard", wild, f"api.h{count // 2}.example.com", b"/v1/chat/completions")
    for count in COUNTS:
        prefixes = table(*(route(f"r{n}", "a.test", MatchIR(f"/team{n}/v1")) for n in range(count)))
        path = b"/team%d/v1/chat/completions?x=1" % (count // 2)
        yield match(f"{count:,} prefixes of one host", prefixes, "a.test", path)
    for count in COUNTS:
        exact = (MatchIR(f"/team{n}/v1", PathMatchType.EXACT) for n in range(count))
        paths = table(*(route(f"r{n}", "a.test", each) for n, each in enumerate(exact)))
        yield match(f"{count:,} exact paths of one host", paths, "a.test", b"/team%d/v1" % (count // 2))
    fields = MatchIR("/", headers=(ValueMatch("x-field-9", "value"),))
    yield match("one header match", table(route("r", "", fields)), "a.test", b"/")
    dotted = table(route("r", "a.test", MatchIR("/v1.0")))
    yield match("a prefix, and a path with dots and escapes", dotted, "a.test", b"/v1.0/a.b/%20c.d")


def match(name: str, made: HttpTable[str], host: str, path: bytes) -> Stage:
    """Raises AssertionError unless a route is found."""
    assert made.match(host, b"GET", path, FIELDS) is not None
    return Stage("routing", name, lambda: made.match(host, b"GET", path, FIELDS), lambda: None)


def route(name: str, host: str, *matches: MatchIR) -> HttpRouteIR:
    return HttpRouteIR(name, (host,) if host else (), (HttpRuleIR(matches=matches or (MatchIR(),)),))


def table(*routes: HttpRouteIR) -> HttpTable[str]:
    return at_once(HttpTable.building((r, [r.name]) for r in routes))
