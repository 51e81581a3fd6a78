"""Whether a destination may be reached, and the reading of its name."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.micro.stage import Stage
from egressproxy.ir.policy import DestinationRule, DestinationsIR
from egressproxy.model.authority import Authority, parse_authority
from egressproxy.routing.destinations import DestinationPolicy

GROUP = "policy"


def stages() -> Iterator[Stage]:
    for count in (10, 10_000):
        rules = tuple(DestinationRule((f"h{n}.example.com",), (443,), policy="a/b") for n in range(count))
        wild = tuple(DestinationRule((f"*.h{n}.example.com",), (443,), policy="a/b") for n in range(count))
        middle = Authority(f"h{count // 2}.example.com", 443)
        below = Authority(f"api.h{count // 2}.example.com", 443)
        yield allowed(f"allowed, {count:,} names", rules, middle)
        yield allowed(f"allowed, {count:,} wildcards", wild, below)
        yield denied(f"not allowed, {count:,} names", rules, Authority("other.example.net", 443))
    number = iter(range(10**12))
    yield Stage(GROUP, "reading of an authority seen before", lambda: parse_authority(b"api.example.com:443"))
    yield Stage(
        GROUP,
        "reading of an authority not seen before",
        lambda: parse_authority(b"h%d.example.com:443" % next(number)),
        lambda: b"h%d.example.com:443" % next(number),
    )


def allowed(name: str, rules: tuple[DestinationRule, ...], authority: Authority) -> Stage:
    policy = DestinationPolicy(DestinationsIR((rules,)))
    assert policy.decide(authority) is None
    return Stage(GROUP, name, lambda: policy.decide(authority))


def denied(name: str, rules: tuple[DestinationRule, ...], authority: Authority) -> Stage:
    """With the error that says so."""
    policy = DestinationPolicy(DestinationsIR((rules,)))
    assert policy.decide(authority) is not None
    return Stage(GROUP, name, lambda: policy.decide(authority))
