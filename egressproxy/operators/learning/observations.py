"""Observations: what was seen of each client, kept in bounded memory however long a log is. Pure.

A line of the access log or a recent decision goes in (`add_log`, `add_decision`). What is kept is one small record for
each client, host and port. Requests within one minute count as one time, since clients retry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address
from itertools import takewhile
from typing import Any, Final, NamedTuple

from egressproxy.errors import UNREACHED, Reason
from egressproxy.model.authority import parse_authority
from egressproxy.model.encoding import rfc3339
from egressproxy.operators.learning.names import carries_data, is_random
from egressproxy.upstream.address_policy import classify

#: Records in memory, some 600 bytes each, and as much again while they are judged.
MAX_RECORDS: Final = 40_000
#: Clients, and addresses, that are remembered for speed.
MAX_CACHED: Final = 10_000
#: Characters of what names a client; longer ones are cut.
MAX_KEY: Final = 512
#: Seconds since 1970 of the year 2200: times of a log lie before.
MAX_TIME: Final = 7_258_118_400
#: Of a record: methods, path prefixes, and their segments. With more prefixes they get shorter.
MAX_METHODS: Final = 16
MAX_PREFIXES: Final = 8
MAX_SEGMENTS: Final = 3

#: Nothing has answered: a name that does not exist, a port that nobody serves.
_UNREACHED: Final = frozenset({*UNREACHED, Reason.NO_ENDPOINT, Reason.NO_HEALTHY_ENDPOINT})
#: The request has reached something, however it ended.
_REACHED: Final = frozenset((
    Reason.OK, Reason.CLIENT_GONE, Reason.DRAINED, Reason.UPSTREAM_RESET, Reason.UPSTREAM_CLOSED,
    Reason.UPSTREAM_INCOMPLETE, Reason.BAD_RESPONSE, Reason.RESPONSE_TIMEOUT, Reason.REQUEST_TIMEOUT,
    Reason.BODY_TOO_LARGE,
))  # fmt: skip
#: A limit refused it, the client's message was wrong, or the gateway failed: it says nothing about the destination
#: but what was sent there until then.
_SILENT: Final = frozenset((
    Reason.REQUEST_RATE, Reason.TOKEN_RATE, Reason.BYTE_RATE, Reason.COST_LIMIT, Reason.NEW_NAMES, Reason.CONCURRENCY,
    Reason.APPROVAL_LIMIT, Reason.TUNNEL_LIMIT, Reason.CONNECTION_LIMIT, Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT,
    Reason.CIRCUIT_OPEN, Reason.OVERLOADED, Reason.BAD_REQUEST_LINE, Reason.NOT_SOCKS, Reason.NOT_REDIRECTED,
    Reason.BAD_VERSION, Reason.BAD_HOST, Reason.BAD_TARGET, Reason.BAD_FIELD, Reason.BAD_FRAMING,
    Reason.HEAD_TOO_LARGE, Reason.TARGET_TOO_LONG, Reason.CONTENT_CODING, Reason.UNKNOWN_CODING,
    Reason.CLIENT_TIMEOUT, Reason.INTERNAL, Reason.FILTER_FAILED, Reason.MCP_VERSION, Reason.MCP_SESSION,
    Reason.UNTRANSLATABLE,
))  # fmt: skip
#: What Enforce would refuse because no entry of `allow` names it: this is learnt.
NOT_LISTED: Final = frozenset({Reason.DESTINATION_NOT_ALLOWED, Reason.NO_POLICY})
_METHOD: Final = re.compile(r"[A-Z]{1,16}", re.ASCII)
#: Segments of paths that are written down: words. Others may be ids, or secrets (webhooks, bots).
_SEGMENT: Final = re.compile(r"[A-Za-z][A-Za-z._-]{0,23}[0-9]{0,2}", re.ASCII)
_OURS: Final = "egress.internal"


class ClientKey(NamedTuple):
    """Who asks whom: Gateway (namespace/name), namespace ("NAMESPACE@DOMAIN" of another cluster) and service account,
    each "-" if unknown, and the unique name, if only that is known.
    """

    gateway: str
    namespace: str
    service_account: str
    name: str = "-"

    @property
    def is_account(self) -> bool:
        """Whether a policy can name the client: by its namespace and service account."""
        return self.namespace != "-" and self.service_account != "-"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.service_account}" if self.is_account else self.name


class Record:
    """One client, host and port. `times` are different minutes; `sent` and `received` bytes of the client. `routed`
    requests were served by a route, `denied` ones refused for other reasons than the list.
    """

    __slots__ = (
        "addresses", "canary", "client", "count", "denied", "denied_for", "first", "host", "is_data", "last", "methods",
        "newest", "oldest", "paths", "port", "reached", "received", "routed", "segments", "sent",
        "sent_at_once", "times",
    )  # fmt: skip

    def __init__(self, client: ClientKey, host: str, port: int) -> None:
        self.client = client
        self.host = host
        self.port = port
        self.count = self.times = self.reached = self.denied = self.routed = 0
        self.sent = self.received = self.sent_at_once = 0
        self.first, self.last = float("inf"), float("-inf")
        self.oldest, self.newest = 1 << 60, -1 << 60
        self.canary = self.denied_for = ""
        self.addresses: frozenset[str] = frozenset()
        self.is_data = carries_data(host)
        self.methods: tuple[str, ...] = ()
        self.paths: frozenset[tuple[str, ...]] = frozenset()
        self.segments = MAX_SEGMENTS

    def see(self, at: float) -> None:
        """Count a request that began then (seconds since 1970)."""
        self.count += 1
        self.first, self.last = min(self.first, at), max(self.last, at)
        minute = int(at // 60)
        self.times += minute > self.newest or minute < self.oldest
        self.oldest, self.newest = min(self.oldest, minute), max(self.newest, minute)

    def see_path(self, method: str, path: str) -> None:
        """Note a method, and as much of the path as is words."""
        if method not in self.methods and len(self.methods) < MAX_METHODS and _METHOD.fullmatch(method):
            self.methods = (*self.methods, method)
        found = path.split("/", self.segments + 1)[1 : self.segments + 1]
        words = takewhile(lambda each: _SEGMENT.fullmatch(each) and not is_random(each.lower()), found)
        self.paths |= {tuple(words)}
        while len(self.paths) > MAX_PREFIXES:
            self.segments -= 1
            self.paths = frozenset(each[: self.segments] for each in self.paths)

    def judge(self, reason: str) -> None:
        """Count how a request ended. What is no known end counts as refused."""
        if reason in _REACHED:
            self.reached += 1
        elif reason not in _UNREACHED and reason not in _SILENT:
            self.denied += 1
            self.denied_for = self.denied_for or reason[:64]
            if reason == Reason.CANARY_KEY:
                self.canary = self.canary or "yes"

    @property
    def prefixes(self) -> list[str]:
        """The path prefixes, without those below another one."""
        kept = (each for each in self.paths if not any(each[:size] in self.paths for size in range(len(each))))
        return sorted("/" + "/".join(each) for each in kept)


class Observations:
    """All records. `forgotten`: how many were dropped to stay within memory, those that were seen least first."""

    def __init__(self, max_records: int = MAX_RECORDS) -> None:
        self._max_records = max_records
        self._records: dict[tuple[ClientKey, str, int], Record] = {}
        self.count = self.forgotten = self.unread = 0
        self.first, self.last = float("inf"), float("-inf")

    def add_log(self, line: Mapping[str, Any]) -> None:
        """Take a line of the access log. Anything else counts as `unread`."""
        try:
            at = datetime.fromisoformat(line["time"])
            key = line["gateway"], line["namespace"], line["service_account"], line.get("identity", "-")
            others = [each for each in line.get("would_deny") or () if each not in NOT_LISTED | _SILENT]
            if "dns_code" in line or line["authority"] == "-":
                return
            record = self._record(key, line["authority"], (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
            method, upstream = line["method"], line.get("upstream", "-")
            sent, received = int(line.get("bytes_in", 0)), int(line.get("bytes_out", 0))
            reason, canary, path = line["reason"], line.get("canary"), line.get("path")
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
            self.unread += 1
            return
        if record is None:
            return
        record.routed += not line.get("would_deny") and line.get("route", "-") != "-"
        record.judge(str(others[0] if others else reason))
        if canary is not None and not record.canary:
            record.canary = str(canary)[:64] or "yes"
        record.sent += sent
        record.received += received
        record.sent_at_once = max(record.sent_at_once, sent)
        if upstream != "-":
            record.addresses |= _classes_of(str(upstream)[:64])
        if method != "CONNECT":
            record.see_path(str(method), str(path))

    def add_decision(self, decision: Mapping[str, Any], is_routed: bool = False) -> None:
        """Take a decision as /decisions tells it: it has no bytes and no address. `is_routed`: a route serves it."""
        if decision["authority"] == "-":
            return
        key = decision["gateway"], decision["namespace"], decision["service_account"], decision.get("name", "-")
        if (record := self._record(key, decision["authority"], decision["time"])) is not None:
            record.routed += is_routed
            record.judge(decision["reason"])
            if decision["method"] not in ("CONNECT", "-"):
                record.see_path(decision["method"], decision["path"])

    def records(self) -> list[Record]:
        """All records, in a stable order."""
        return sorted(self._records.values(), key=lambda each: (each.client, each.host, each.port))

    def _record(self, key: tuple[str, str, str, str], text: str, at: float) -> Record | None:
        authority = parse_authority(text.encode("ascii"))
        if not 0 <= at < MAX_TIME:
            raise ValueError("no time")
        client, host, port = _client_of(*key), authority.host, authority.port
        if host == _OURS:
            return None
        self.count += 1
        self.first, self.last = min(self.first, at), max(self.last, at)
        record = self._records.get((client, host, port))
        if record is None:
            if len(self._records) >= self._max_records:
                self._forget()
            record = self._records[client, host, port] = Record(client, host, port)
        record.see(at)
        return record

    def _forget(self) -> None:
        """Drop half of the records: those that were seen least, and of these the oldest."""
        ranked = sorted(
            self._records.items(), key=lambda each: (bool(each[1].canary), each[1].times, each[1].last, each[0])
        )
        half = max(len(ranked) // 2, 1)
        self.forgotten += half
        self._records = dict(ranked[half:])


@lru_cache(maxsize=MAX_CACHED)
def _client_of(gateway: str, namespace: str, account: str, name: str) -> ClientKey:
    gateway, namespace, account, name = (str(each)[:MAX_KEY] for each in (gateway, namespace, account, name))
    client = ClientKey(gateway, namespace, account)
    return client if client.is_account else ClientKey(gateway, "-", "-", name)


@lru_cache(maxsize=MAX_CACHED)
def _classes_of(upstream: str) -> frozenset[str]:
    """The class of the address that was dialled; "public" for all others."""
    return frozenset({address_class(upstream.rpartition(":")[0]) or "public"})


def moment(seconds: float) -> str:
    """RFC 3339, to the minute."""
    return rfc3339(seconds)[:16] + "Z"


def address_class(host: str) -> str:
    """The class of a literal address ("private", "cloud metadata", …), "public", or "" if it is no address."""
    try:
        return classify(ip_address(host.strip("[]"))) or "public"
    except ValueError:
        return ""
