"""Judgement: which observations a policy should allow, and why the others are left out. Pure.

The rules look at one client's own use of a name, and at what other clients do. They have thresholds (`Thresholds`), and
no list of good or bad names.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from statistics import median_low
from typing import Final, NamedTuple

from egressproxy.operators.learning.names import Lookalikes, domain_of
from egressproxy.operators.learning.observations import NOT_LISTED, ClientKey, Observations, Record, address_class

#: A name in use for this long, at this many times, is in steady use: it does not end with the burst that began it.
STEADY_S: Final = 3600.0
STEADY_TIMES: Final = 10
#: A name that is used so many times as often as the usual one of a burst is not of it.
FAR_MORE: Final = 2
#: Of uploads in all, and of those with large answers.
MUCH_MORE: Final = 10
#: A name may imitate a domain that is used this many times as often.
RARER: Final = 10
#: A rare name is learnt where so many other accounts of the namespace use it.
COLLEAGUES: Final = 2
_METADATA: Final = frozenset({"metadata", "instance-data"})
_MINE: Final = ("private", "unique-local", "carrier-grade NAT")


class Left(str, Enum):
    """Why an observation is left out, as the policy says it."""

    CANARY = "a canary key was sent there"
    ADDRESS = "an address in place of a name, or a name that leads to an address of a closed class"
    DENIED = "refused anyway"
    UNREACHED = "never answered"
    ROUTED = "served by a route, which permits it"
    PORT = "an unusual port (--port learns it)"
    BURST = "many new names in a short time, which did not come back"
    TRIED = "new among many names that do not exist"
    DATA = "a long or random name, which may carry data"
    LOOKALIKE = "looks like another domain"
    UPLOAD = "an unusual upload to a host of nobody else"
    RARE = "seen too rarely (--at-least)"
    UNNAMED = "of a client that no policy can name (--by identity)"


class Thresholds(NamedTuple):
    """`at_least` times (different minutes). `burst` new names within `burst_s` seconds. `upload` bytes at once; ten
    times as much in all. `ports` are usual ones.
    """

    at_least: int = 3
    burst: int = 10
    burst_s: float = 600.0
    upload: int = 1 << 20
    ports: frozenset[int] = frozenset({80, 443})
    allows_private: bool = False
    allows_routed: bool = False


class LeftOut(NamedTuple):
    """A record that is left out; `detail` says what exactly."""

    record: Record
    why: Left
    detail: str = ""


class Judgement(NamedTuple):
    """What a policy allows, and what it leaves out, each in the order of the records."""

    learnt: list[Record]
    left_out: list[LeftOut]


def judge(seen: Observations, limits: Thresholds) -> Judgement:
    """Divide the records. Each rule looks at those that the rules before it have left, and may compare with all."""
    records = rest = seen.records()
    left: dict[int, LeftOut] = {}
    for rule in _RULES:
        for found in rule(rest, records, limits):
            left.setdefault(id(found.record), found)
        rest = [each for each in rest if id(each) not in left]
    return Judgement(rest, [left[id(each)] for each in records if id(each) in left])


def _at_sight(rest: Sequence[Record], every: Sequence[Record], limits: Thresholds) -> Iterator[LeftOut]:
    """What is left out by what the record says alone; for a canary all names of the domain."""
    canaries = {(each.client, domain_of(each.host)): each.canary for each in every if each.canary}
    for record in rest:
        canary = canaries.get((record.client, domain_of(record.host)))
        address = _closed_address(record, limits)
        if canary:
            yield LeftOut(record, Left.CANARY, f"canary {canary}")
        elif address:
            yield LeftOut(record, Left.ADDRESS, address)
        elif not record.reached:
            unlisted = ": to learn it, let it pass in mode Report" if record.denied_for in NOT_LISTED else ""
            yield LeftOut(record, Left.DENIED if record.denied else Left.UNREACHED, record.denied_for + unlisted)
        elif record.routed == record.count and not limits.allows_routed:
            yield LeftOut(record, Left.ROUTED)
        elif record.port not in limits.ports:
            yield LeftOut(record, Left.PORT, f"port {record.port}")


def _closed_address(record: Record, limits: Thresholds) -> str:
    """Which class of address the name is, or leads to; "" for one that may be learnt."""
    host = record.host
    if literal := address_class(host):
        return literal
    if host.partition(".")[0] in _METADATA and (host.endswith(".internal") or "." not in host):
        return "a name of cloud metadata"
    if host == "localhost" or host.endswith(".localhost"):
        return "loopback"
    if closed := sorted(record.addresses - {"public"} - ({*_MINE} if limits.allows_private else set())):
        remedy = " (--private learns it)" if closed[0] in _MINE else ": allow it by an entry of your own"
        return f"leads to an address of class {closed[0]}{remedy}"
    return ""


def _bursts(rest: Sequence[Record], every: Sequence[Record], limits: Thresholds) -> Iterator[LeftOut]:
    """Names that began in a burst of domains of one client, or of names below one domain, and ended with it, while the
    client, or the input, went on for longer. A name that another client has used for longer is not new.
    """
    until = {client: last for client, (_, last) in _spans(every).items()}
    end = max(until.values(), default=0.0)
    lasted = {(each.host, each.port) for each in every if each.last - each.first > limits.burst_s}
    of_client: dict[ClientKey, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    of_domain: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in rest:
        domain = domain_of(record.host)
        if (record.host, record.port) in lasted:
            continue
        if until[record.client] - record.last > limits.burst_s:
            of_client[record.client][domain].append(record)
        if end - record.last > limits.burst_s:
            of_domain[record.client.gateway, domain].append(record)
    for client, domains in of_client.items():
        for first, size in _crowded([min(found, key=_first) for found in domains.values()], limits):
            for record in domains[domain_of(first.host)]:
                yield LeftOut(record, Left.BURST, f"{size} new domains of {client}")
    for (_, domain), found in of_domain.items():
        for record, size in _crowded(found, limits):
            yield LeftOut(record, Left.BURST, f"{size} new names below {domain}")


def _crowded(records: Sequence[Record], limits: Thresholds) -> Iterator[tuple[Record, int]]:
    """Those in any window of `burst_s` that has `burst` or more new names, and how many the window has."""
    ordered = sorted(records, key=_first)
    firsts = [each.first for each in ordered]
    done = next_median = 0
    most = 0
    for start, first in enumerate(firsts):
        stop = bisect_right(firsts, first + limits.burst_s)
        if stop - start >= limits.burst:
            if start >= next_median:  # twice for each window's length: there may be as many windows as names
                most = FAR_MORE * median_low(each.times for each in ordered[start:stop]) + 1
                next_median = (start + stop) // 2
            yield from ((each, stop - start) for each in ordered[max(start, done) : stop] if each.times <= most)
            done = stop


def _first(record: Record) -> tuple[float, str, int]:
    return record.first, record.host, record.port


def _found_by_trying(rest: Sequence[Record], every: Sequence[Record], limits: Thresholds) -> Iterator[LeftOut]:
    """Names that a client began to use while it tried many like them that never answered, as generated names are. Not
    a habit, or one that another client uses, too.
    """
    tried: dict[object, list[float]] = defaultdict(list)
    for record in every:
        if not record.reached and not record.denied:
            tried[record.client, *_look(record)].append(record.first)
    for firsts in tried.values():
        firsts.sort()
    users, habits = _users(every, limits), _habits(rest)
    for record in rest:
        firsts = tried.get((record.client, *_look(record)), [])
        around = bisect_right(firsts, record.first + limits.burst_s / 2)
        around -= bisect_left(firsts, record.first - limits.burst_s / 2)
        if around >= limits.burst and users[record.host, record.port] < 2 and id(record) not in habits:
            yield LeftOut(record, Left.TRIED, f"{around} names of {record.client} never answered then")


def _look(record: Record) -> tuple[int, str]:
    """The number of labels, and the last one."""
    return record.host.count("."), record.host.rpartition(".")[2]


def _users(every: Sequence[Record], limits: Thresholds) -> Counter[tuple[str, int]]:
    """How many clients use a destination: one request of an accomplice does not count."""
    return Counter((each.host, each.port) for each in every if each.reached and each.times >= limits.at_least)


def _habits(rest: Sequence[Record]) -> set[int]:
    """The ids of records in use many times, for at least half of the time of their client."""
    half = {client: (last - first) / 2 for client, (first, last) in _spans(rest).items()}
    often = (each for each in rest if each.times >= STEADY_TIMES)
    return {id(each) for each in often if each.last - each.first >= half[each.client]}


def _spans(records: Sequence[Record]) -> dict[ClientKey, tuple[float, float]]:
    """When each client was first and last seen."""
    found: dict[ClientKey, tuple[float, float]] = {}
    for each in records:
        first, last = found.get(each.client, (each.first, each.last))
        found[each.client] = min(first, each.first), max(last, each.last)
    return found


def _data(rest: Sequence[Record], _every: Sequence[Record], limits: Thresholds) -> Iterator[LeftOut]:
    """Names that may carry data, unless they are few and in steady use."""
    below = Counter((each.client, domain_of(each.host)) for each in rest if each.is_data)
    for record in rest:
        is_steady = record.times >= STEADY_TIMES and record.last - record.first >= STEADY_S
        if record.is_data and not (is_steady and below[record.client, domain_of(record.host)] < limits.burst):
            yield LeftOut(record, Left.DATA)


def _uploads(rest: Sequence[Record], every: Sequence[Record], limits: Thresholds) -> Iterator[LeftOut]:
    """Large uploads, no habit, to a host that no other client uses for less."""
    users = _users([each for each in every if not _is_large_upload(each, limits)], limits)
    habits = _habits(rest)
    for record in rest:
        if _is_large_upload(record, limits) and id(record) not in habits and not users[record.host, record.port]:
            detail = f"{record.sent} bytes sent, at most {record.sent_at_once} at once"
            yield LeftOut(record, Left.UPLOAD, detail)


def _is_large_upload(record: Record, limits: Thresholds) -> bool:
    """Answers that are larger than the requests excuse ten times as much: a server can send what it likes."""
    least = limits.upload * (1 if record.sent > record.received else MUCH_MORE)
    return record.sent_at_once >= least or record.sent >= MUCH_MORE * least


def _lookalikes(rest: Sequence[Record], _every: Sequence[Record], limits: Thresholds) -> Iterator[LeftOut]:
    """Names that could be taken for a domain that is used far more often, and by at least as many clients."""
    counts: Counter[str] = Counter()
    clients: dict[str, set[ClientKey]] = defaultdict(set)
    for record in rest:
        counts[domain_of(record.host)] += record.count
        clients[domain_of(record.host)].add(record.client)
    known = Lookalikes(domain_of(each.host) for each in rest if each.times >= limits.at_least)
    likes = {host: known.of(host) for host in {each.host for each in rest}}
    for record in rest:
        count, users = counts[domain_of(record.host)], len(clients[domain_of(record.host)])
        usual = (each for each in likes[record.host] if count * RARER <= counts[each] and users <= len(clients[each]))
        if other := next(usual, ""):
            yield LeftOut(record, Left.LOOKALIKE, f"like {other}")


def _rare(rest: Sequence[Record], _every: Sequence[Record], limits: Thresholds) -> Iterator[LeftOut]:
    """What was seen too rarely, unless accounts of the same namespace use it."""
    habits = Counter(_habit(each) for each in rest if each.times >= limits.at_least and each.client.is_account)
    for record in rest:
        if record.times < limits.at_least and habits[_habit(record)] < COLLEAGUES:
            yield LeftOut(record, Left.RARE)


def _habit(record: Record) -> tuple[str, str, str, int]:
    """What accounts of one namespace have in common."""
    return record.client.gateway, record.client.namespace, record.host, record.port


_RULES: Final[tuple[Callable[[Sequence[Record], Sequence[Record], Thresholds], Iterator[LeftOut]], ...]] = (
    _at_sight, _bursts, _found_by_trying, _data, _uploads, _lookalikes, _rare,
)  # fmt: skip
