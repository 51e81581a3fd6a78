"""What choosing a route costs, with 10 and with 10,000 routes: python benchmarks/micro/routing.py

Prints nanoseconds a look-up (the best of seven runs). The goal of every line is a figure that does not grow.
"""

from __future__ import annotations

import timeit

from egressproxy.model.fields import Fields
from egressproxy.routing.table import HttpTable
from egressproxy.spec.route import HttpRouteSpec, HttpRuleSpec, MatchSpec, PathMatchType, ValueMatch

FIELDS = Fields(b"\r\nHost: a.test" + b"".join(b"\r\nX-Field-%d: value" % n for n in range(11)))


def route(name: str, host: str, *matches: MatchSpec) -> HttpRouteSpec:
    return HttpRouteSpec(name, (host,) if host else (), (HttpRuleSpec(matches=matches or (MatchSpec(),)),))


def table(*routes: HttpRouteSpec) -> HttpTable[str]:
    return HttpTable.build((r, [r.name]) for r in routes)


def measure(label: str, made: HttpTable[str], host: str, path: bytes) -> None:
    assert made.match(host, b"GET", path, FIELDS) is not None
    runs = timeit.repeat(lambda: made.match(host, b"GET", path, FIELDS), number=50_000, repeat=7)
    empty = timeit.repeat(lambda: None, number=50_000, repeat=7)
    print(f"{label:<58} {(min(runs) - min(empty)) / 50_000 * 1e9:7.0f} ns")


def main() -> None:
    measure("one catch-all rule", table(route("r", "")), "a.test", b"/v1/chat/completions")
    for count in (10, 10_000):
        hosts = table(*(route(f"r{n}", f"h{n}.example.com") for n in range(count)))
        measure(f"{count} hosts, exact", hosts, f"h{count // 2}.example.com", b"/v1/chat/completions")
        wild = table(*(route(f"r{n}", f"*.h{n}.example.com") for n in range(count)))
        measure(f"{count} hosts, wildcard", wild, f"api.h{count // 2}.example.com", b"/v1/chat/completions")
        prefixes = table(*(route(f"r{n}", "a.test", MatchSpec(f"/team{n}/v1")) for n in range(count)))
        measure(f"{count} prefixes of one host", prefixes, "a.test", b"/team%d/v1/chat/completions?x=1" % (count // 2))
        exact = (MatchSpec(f"/team{n}/v1", PathMatchType.EXACT) for n in range(count))
        paths = table(*(route(f"r{n}", "a.test", match) for n, match in enumerate(exact)))
        measure(f"{count} exact paths of one host", paths, "a.test", b"/team%d/v1" % (count // 2))
    headers = MatchSpec("/", headers=(ValueMatch("x-field-9", "value"),))
    measure("one header match", table(route("r", "", headers)), "a.test", b"/")
    dotted = table(route("r", "a.test", MatchSpec("/v1.0")))
    measure("a prefix, and a path with dots and escapes", dotted, "a.test", b"/v1.0/a.b/%20c.d")


if __name__ == "__main__":
    main()
