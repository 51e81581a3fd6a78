"""Judgement: which observations a policy should allow, and why the others are left out. Pure.

The rules look at one client's own use of a name, and at what other clients do. They have thresholds (`Thresholds`), and
no list of good or bad names.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from math import inf
from statistics import median_low
from typing import Final

from egressproxy.operators.learning.names import HOSTNAME, Lookalikes, domain_of
from egressproxy.operators.learning.observations import NOT_LISTED, ClientKey, Observations, Record, address_class

#: A name in use for this long, at this many times, is in steady use: it does not end with the burst that began it.
STEADY_S: Final = 3600.0
STEADY_TIMES: Final = 10
#: A name that is used so many times as often as the usual one of a burst is not of it.
FAR_MORE: Final = 2
#: A name is like generated ones where this share of them has as many labels and the same ending.
LEAST_ALIKE: Final = 0.02
#: Names that a name is compared with: enough to tell, and bounded.
MAX_COMPARED: Final = 500
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
    MALFORMED = "not a hostname"
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


@dataclass(frozen=True, slots=True)
class Thresholds:
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


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A record that is left out; `detail` says what exactly."""

    record: Record
    why: Left
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a policy allows, and what it leaves out, each in the order of the records."""

    learnt: list[Record]
    left_out: list[LeftOut]


def judge(seen: Observations, limits: Thresholds) -> Judgement:
    """Divide the records."""
    records = seen.records()
    users = Counter((each.host, each.port) for each in records)
    left: dict[int, LeftOut] = {}

    def leave(record: Record, why: Left, detail: str = "") -> None:
        left.setdefault(id(record), LeftOut(record, why, detail))

    for record in records:
        found = _at_sight(record, limits)
        if found is not None:
            leave(record, *found)
    open_ones = [each for each in records if id(each) not in left]
    for record, detail in _bursts(open_ones, seen, limits):
        leave(record, Left.BURST, detail)
    for record, detail in _found_by_trying(open_ones, records, limits):
        leave(record, Left.TRIED, detail)
    random_ones = Counter((each.client, domain_of(each.host)) for each in open_ones if each.is_data)
    for record in open_ones:
        if record.is_data and not (
            _is_steady(record) and random_ones[record.client, domain_of(record.host)] < limits.burst
        ):
            leave(record, Left.DATA)
    spans = _spans(each for each in open_ones if id(each) not in left)
    for record in open_ones:
        if users[record.host, record.port] == 1 and _is_unusual_upload(record, spans.get(record.client, 0.0), limits):
            leave(record, Left.UPLOAD, f"{record.sent} bytes sent, at most {record.sent_at_once} at once")
    open_ones = [each for each in open_ones if id(each) not in left]
    frequent = {id(each) for each in open_ones if each.times >= limits.at_least}
    for record, detail in _lookalikes(open_ones, frequent):
        leave(record, Left.LOOKALIKE, detail)
        frequent.discard(id(record))
    colleagues = Counter(_habit(each) for each in open_ones if id(each) in frequent and each.client.is_account)
    for record in open_ones:
        if id(record) not in frequent and colleagues[_habit(record)] < COLLEAGUES:
            leave(record, Left.RARE)
    return Judgement(
        [each for each in records if id(each) not in left], [left[id(each)] for each in records if id(each) in left]
    )


def _at_sight(record: Record, limits: Thresholds) -> tuple[Left, str] | None:
    """Why a record is left out by what it says alone; None if not."""
    if record.canary:
        return Left.CANARY, f"canary {record.canary}"
    literal = address_class(record.host)
    if literal == "malformed":
        return Left.MALFORMED, ""
    if literal:
        return Left.ADDRESS, literal
    if record.host.partition(".")[0] in _METADATA and (record.host.endswith(".internal") or "." not in record.host):
        return Left.ADDRESS, "a name of cloud metadata"
    if record.host == "localhost" or record.host.endswith(".localhost"):
        return Left.ADDRESS, "loopback"
    if record.address not in ("", "public") and not (limits.allows_private and record.address in _MINE):
        remedy = " (--private learns it)" if record.address in _MINE else ": allow it by an entry of your own"
        return Left.ADDRESS, f"leads to an address of class {record.address}{remedy}"
    if not HOSTNAME.fullmatch(record.host):
        return Left.MALFORMED, ""
    if not record.reached:
        unlisted = ": to learn it, let it pass in mode Report" if record.denied_for in NOT_LISTED else ""
        return (Left.DENIED, record.denied_for + unlisted) if record.denied else (Left.UNREACHED, "")
    if record.routed == record.count and not limits.allows_routed:
        return Left.ROUTED, ""
    return (Left.PORT, f"port {record.port}") if record.port not in limits.ports else None


def _is_steady(record: Record) -> bool:
    return record.times >= STEADY_TIMES and record.last - record.first >= STEADY_S


def _bursts(records: Iterable[Record], seen: Observations, limits: Thresholds) -> Iterator[tuple[Record, str]]:
    """Names that began in a burst of domains of one client, or of names below one domain, and ended with it, while the
    client, or the input, went on for longer. A name that another client has used for longer is not new.
    """
    lasted: set[tuple[str, int]] = set()
    until: dict[ClientKey, float] = defaultdict(float)
    for record in seen.records():
        until[record.client] = max(until[record.client], record.last)
        if record.last - record.first > limits.burst_s:
            lasted.add((record.host, record.port))
    of_client: dict[ClientKey, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    of_domain = defaultdict(list)
    for record in records:
        if (record.host, record.port) not in lasted:
            domain = domain_of(record.host)
            if until[record.client] - record.last > limits.burst_s:
                of_client[record.client][domain].append(record)
            if seen.last - record.last > limits.burst_s:
                of_domain[record.client.gateway, domain].append(record)
    for client, domains in sorted(of_client.items()):
        firsts = [min(found, key=lambda each: (each.first, each.host, each.port)) for found in domains.values()]
        for first, size in _crowded(firsts, limits):
            for record in domains[domain_of(first.host)]:
                yield record, f"{size} new domains of {client}"
    for (_, domain), found in sorted(of_domain.items()):
        for record, size in _crowded(found, limits):
            yield record, f"{size} new names below {domain}"


def _crowded(records: list[Record], limits: Thresholds) -> Iterator[tuple[Record, int]]:
    """Those in any window of `burst_s` that has `burst` or more new names, and how many the window has."""
    ordered = sorted(records, key=lambda each: (each.first, each.host, each.port))
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


def _found_by_trying(
    records: Iterable[Record], every: Iterable[Record], limits: Thresholds
) -> Iterator[tuple[Record, str]]:
    """Names that a client began to use while it tried many others that never answered, as generated names are. Not one
    that another client uses, too, or that has another number of labels, or another ending.
    """
    tried, users = defaultdict(list), Counter[tuple[str, int]]()
    for record in every:
        users[record.host, record.port] += 1
        if not record.reached and not record.denied:
            tried[record.client].append(record)
    crowds = {
        client: sorted((each.first, *_look(each)) for each, _ in _crowded(found, limits))
        for client, found in tried.items()
    }
    for record in records:
        crowd = crowds.get(record.client)
        if not crowd or users[record.host, record.port] > 1:
            continue
        start = bisect_left(crowd, (record.first - limits.burst_s / 2,))
        around = crowd[start : bisect_right(crowd, (record.first + limits.burst_s / 2, inf))][:MAX_COMPARED]
        alike = [each for each in around if each[1:] == _look(record)]
        if len(around) >= limits.burst and len(alike) >= len(around) * LEAST_ALIKE:
            yield record, f"{len(around)} names of {record.client} never answered then"


def _look(record: Record) -> tuple[int, str]:
    """The number of labels, and the last one."""
    return record.host.count("."), record.host.rpartition(".")[2]


def _spans(records: Iterable[Record]) -> dict[ClientKey, float]:
    """For how long each client has sent requests, in seconds."""
    found: dict[ClientKey, tuple[float, float]] = defaultdict(lambda: (inf, -inf))
    for each in records:
        first, last = found[each.client]
        found[each.client] = min(first, each.first), max(last, each.last)
    return {client: last - first for client, (first, last) in found.items()}


def _is_unusual_upload(record: Record, span_s: float, limits: Thresholds) -> bool:
    """An upload is a habit if the host is in use many times, for at least half of the time `span_s` of its client."""
    if record.sent <= record.received:
        return False
    if record.sent_at_once < limits.upload and record.sent < 10 * limits.upload:
        return False
    return record.times < STEADY_TIMES or record.last - record.first < span_s / 2


def _lookalikes(records: list[Record], frequent: set[int]) -> Iterator[tuple[Record, str]]:
    """Names that could be taken for a domain that is used far more often, and by at least as many clients."""
    counts: Counter[str] = Counter()
    clients: dict[str, set[ClientKey]] = defaultdict(set)
    for record in records:
        domain = domain_of(record.host)
        counts[domain] += record.count
        clients[domain].add(record.client)
    known = Lookalikes({domain_of(each.host) for each in records if id(each) in frequent})
    ordered = sorted(records, key=lambda each: each.host)
    for host, found in groupby(ordered, key=lambda each: each.host):
        domain = domain_of(host)
        for other in known.of(host):
            is_rarer = counts[domain] * RARER <= counts[other] and len(clients[domain]) <= len(clients[other])
            if is_rarer:
                yield from ((each, f"like {other}") for each in found)
                break


def _habit(record: Record) -> tuple[str, str, str, int]:
    """What accounts of one namespace have in common."""
    return record.client.gateway, record.client.namespace, record.host, record.port
