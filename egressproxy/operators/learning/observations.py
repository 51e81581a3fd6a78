"""Observations: what was seen of each client, kept in bounded memory however long a log is. Pure.

A line of the access log or a recent decision goes in (`add_log`, `add_decision`). What is kept is one small record for
each client, host and port. Requests within one minute count as one time, since clients retry.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

from egressproxy.errors import Reason
from egressproxy.operators.learning.names import HOSTNAME, carries_data, domain_of, is_random
from egressproxy.upstream.address_policy import classify

#: Records in memory, some 600 bytes each, and as much again while they are judged.
MAX_RECORDS: Final = 40_000
#: Names of one client below one domain. More than that is no list that a person reads.
MAX_NAMES: Final = 1_000
MAX_CLIENTS: Final = 10_000
#: Characters of what names a client; longer ones are cut.
MAX_KEY: Final = 1024
#: Seconds since 1970 of the year 2200: times of a log lie before.
MAX_TIME: Final = 7_258_118_400
#: Path prefixes of a record, and their segments. With more, they get shorter.
MAX_PREFIXES: Final = 8
MAX_SEGMENTS: Final = 3

#: Of a request that a limit has refused the destination may be ordinary: it counts neither for nor against it.
_LIMITS: Final = frozenset(
    each.value
    for each in (
        Reason.REQUEST_RATE, Reason.TOKEN_RATE, Reason.BYTE_RATE, Reason.COST_LIMIT, Reason.NEW_NAMES,
        Reason.CONCURRENCY, Reason.APPROVAL_LIMIT, Reason.TUNNEL_LIMIT, Reason.CONNECTION_LIMIT, Reason.QUEUE_FULL,
        Reason.QUEUE_TIMEOUT, Reason.CIRCUIT_OPEN, Reason.OVERLOADED,
    )
)  # fmt: skip
#: Nothing has answered: a name that does not exist, a port that nobody serves.
_UNREACHED: Final = frozenset(
    each.value
    for each in (
        Reason.DNS_NXDOMAIN, Reason.DNS_NO_ADDRESS, Reason.DNS_SERVFAIL, Reason.DNS_TIMEOUT, Reason.DNS_NOT_AUTHENTIC,
        Reason.DNS_ERROR, Reason.NO_ENDPOINT, Reason.NO_HEALTHY_ENDPOINT, Reason.CONNECT_REFUSED,
        Reason.CONNECT_TIMEOUT, Reason.CONNECT_FAILED, Reason.PARENT_REFUSED, Reason.PARENT_AUTH,
        Reason.TLS_CERTIFICATE, Reason.TLS_PROTOCOL, Reason.TLS_TIMEOUT,
    )
)  # fmt: skip
#: The request has reached something, however it ended.
_REACHED: Final = frozenset(
    each.value
    for each in (
        Reason.OK, Reason.CLIENT_GONE, Reason.DRAINED, Reason.UPSTREAM_RESET, Reason.UPSTREAM_CLOSED,
        Reason.UPSTREAM_INCOMPLETE, Reason.BAD_RESPONSE, Reason.RESPONSE_TIMEOUT, Reason.REQUEST_TIMEOUT,
        Reason.BODY_TOO_LARGE,
    )
)  # fmt: skip
#: The client's message was wrong, or the gateway failed: it says nothing about the destination.
_SILENT: Final = frozenset(
    each.value
    for each in (
        Reason.BAD_REQUEST_LINE, Reason.NOT_SOCKS, Reason.NOT_REDIRECTED, Reason.BAD_VERSION, Reason.BAD_HOST,
        Reason.BAD_TARGET, Reason.BAD_FIELD, Reason.BAD_FRAMING, Reason.HEAD_TOO_LARGE, Reason.TARGET_TOO_LONG,
        Reason.CONTENT_CODING, Reason.UNKNOWN_CODING, Reason.CLIENT_TIMEOUT, Reason.INTERNAL, Reason.FILTER_FAILED,
        Reason.MCP_VERSION, Reason.MCP_SESSION, Reason.UNTRANSLATABLE,
    )
)  # fmt: skip
#: What Enforce would refuse because no entry of `allow` names it: this is learnt.
NOT_LISTED: Final = frozenset({Reason.DESTINATION_NOT_ALLOWED.value, Reason.NO_POLICY.value})
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
        "address", "canary", "client", "count", "denied", "denied_for", "first", "host", "is_data", "last", "methods",
        "newest", "oldest", "paths", "port", "reached", "received", "routed", "segments", "sent", "sent_at_once",
        "times",
    )  # fmt: skip

    def __init__(self, client: ClientKey, host: str, port: int) -> None:
        self.client = client
        self.host = host
        self.port = port
        self.count = self.times = self.reached = self.denied = self.routed = 0
        self.sent = self.received = self.sent_at_once = 0
        self.first, self.last = float("inf"), float("-inf")
        self.oldest, self.newest = 1 << 60, -1 << 60
        self.canary = self.denied_for = self.address = ""
        self.is_data = carries_data(host)
        self.methods: tuple[str, ...] = ()
        self.paths: frozenset[tuple[str, ...]] = frozenset()
        self.segments = MAX_SEGMENTS

    def see(self, at: float) -> None:
        """Count a request that began then (seconds since 1970)."""
        self.count += 1
        if at < self.first:
            self.first = at
        if at > self.last:
            self.last = at
        minute = int(at // 60)
        if minute > self.newest:
            self.newest = minute
            self.times += 1
        elif minute < self.oldest:
            self.times += 1
        if minute < self.oldest:
            self.oldest = minute

    def see_path(self, method: str, path: str) -> None:
        """Note a method, and as much of the path as is words."""
        if method not in self.methods and len(self.methods) < 16 and _METHOD.fullmatch(method):
            self.methods = (*self.methods, method)
        found = []
        for segment in path.split("/", self.segments + 1)[1 : self.segments + 1]:
            if not _SEGMENT.fullmatch(segment) or is_random(segment.lower()):
                break
            found.append(segment)
        prefix = tuple(found)
        if prefix in self.paths:
            return
        self.paths |= {prefix}
        while len(self.paths) > MAX_PREFIXES:
            self.segments -= 1
            self.paths = frozenset(each[: self.segments] for each in self.paths)

    @property
    def prefixes(self) -> list[str]:
        """The path prefixes, without those below another one."""
        kept = (each for each in self.paths if not any(each[:size] in self.paths for size in range(len(each))))
        return sorted("/" + "/".join(each) for each in kept)


@dataclass(frozen=True, slots=True)
class Overflow:
    """Names that were not kept: below one domain a client has named too many."""

    client: ClientKey
    domain: str
    requests: int


class Observations:
    """All records. `forgotten`: how many were dropped to stay within memory, those that were seen least first."""

    def __init__(self, max_records: int = MAX_RECORDS, max_names: int = MAX_NAMES) -> None:
        self._max_records = max_records
        self._max_names = max_names
        self._records: dict[tuple[ClientKey, str, int], Record] = {}
        self._names: Counter[tuple[ClientKey, str]] = Counter()
        self._beyond: Counter[tuple[ClientKey, str]] = Counter()
        self._places: dict[tuple[str, ...], ClientKey] = {}
        self._private: dict[str, str] = {}
        self.requests: Counter[ClientKey] = Counter()
        self.count = self.forgotten = self.unread = self.crowded = 0
        self.first, self.last = float("inf"), float("-inf")

    def add_log(self, line: Mapping[str, Any]) -> None:
        """Take a line of the access log. Anything else counts as `unread`."""
        try:
            reason, authority, method = line["reason"], line["authority"], line["method"]
            if "dns_code" in line or reason in _SILENT or authority == "-":
                return
            key = line["gateway"], line["namespace"], line["service_account"], line.get("identity", "-")
            at = datetime.fromisoformat(line["time"])
            began = at.timestamp() if at.tzinfo is not None else at.replace(tzinfo=UTC).timestamp()
            record = self._record(key, authority, began)
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
            self.unread += 1
            return
        if record is None:
            return
        others = line.get("would_deny")
        if isinstance(others, list) and (apart := [each for each in others if each not in NOT_LISTED | _LIMITS]):
            reason = str(apart[0])
        elif not others and line.get("route", "-") != "-":
            record.routed += 1
        self._judge(record, str(reason))
        canary = line.get("canary")
        if canary is not None and not record.canary:
            record.canary = str(canary)[:64] or "yes"
        sent, received = line.get("bytes_in"), line.get("bytes_out")
        if isinstance(sent, int) and isinstance(received, int):
            record.sent += sent
            record.received += received
            if sent > record.sent_at_once:
                record.sent_at_once = sent
        upstream = line.get("upstream", "-")
        if upstream != "-" and isinstance(upstream, str):
            found = self._class_of(upstream)
            if found != "public" or not record.address:
                record.address = found
        if method != "CONNECT" and isinstance(method, str) and isinstance(path := line.get("path"), str):
            record.see_path(method, path)

    def add_decision(self, decision: Mapping[str, Any], is_routed: bool = False) -> None:
        """Take a decision as /decisions tells it: it has no bytes and no address. `is_routed`: a route serves it."""
        try:
            authority, reason, method = decision["authority"], decision["reason"], decision["method"]
            if reason in _SILENT or authority == "-":
                return
            name = str(decision.get("name", "-"))
            key = decision["gateway"], decision["namespace"], decision["service_account"], name
            record = self._record(key, authority, float(decision["time"]))
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
            self.unread += 1
            return
        if record is None:
            return
        record.routed += is_routed
        self._judge(record, str(reason))
        if method not in ("CONNECT", "-"):
            record.see_path(str(method), str(decision.get("path", "-")))

    def records(self) -> list[Record]:
        """All records, in a stable order."""
        return sorted(self._records.values(), key=lambda each: (each.client, each.host, each.port))

    def overflows(self) -> Iterator[Overflow]:
        """What went beyond the bound of names below one domain."""
        for (client, domain), requests in sorted(self._beyond.items()):
            yield Overflow(client, domain, requests)

    def _record(self, key: tuple[str, str, str, str], authority: str, at: float) -> Record | None:
        host, colon, port_text = authority.rpartition(":")
        if not colon or not port_text.isdigit() or not port_text.isascii():
            raise ValueError("no authority")
        port = int(port_text)
        if not 0 <= at < MAX_TIME:
            raise ValueError("no time")
        host = host[:254].lower().removesuffix(".")
        if host == _OURS or not 0 < port < 65_536:
            return None
        client = self._places.get(key) or self._client(key)
        if client is None:
            return None
        self.count += 1
        self.first, self.last = min(self.first, at), max(self.last, at)
        self.requests[client] += 1
        record = self._records.get((client, host, port))
        if record is None:
            record = self._new_record(client, host, port)
            if record is None:
                return None
        record.see(at)
        return record

    def _client(self, key: tuple[str, str, str, str]) -> ClientKey | None:
        gateway, namespace, account, name = (str(each)[:512] for each in key)
        client = ClientKey(gateway, namespace, account)
        if not client.is_account:
            client = ClientKey(gateway, "-", "-", name)
        if len(self.requests) >= MAX_CLIENTS and client not in self.requests:
            self.crowded += 1
            return None
        if len(self._places) < 2 * MAX_CLIENTS and sum(map(len, key)) < MAX_KEY:
            self._places[key] = client
        return client

    def _new_record(self, client: ClientKey, host: str, port: int) -> Record | None:
        domain = domain_of(host)[:253]
        if self._names[client, domain] >= self._max_names:
            if len(self._beyond) < self._max_records or (client, domain) in self._beyond:
                self._beyond[client, domain] += 1
            return None
        if len(self._records) >= self._max_records:
            self._forget()
        self._names[client, domain] += 1
        made = self._records[client, host, port] = Record(client, host, port)
        return made

    def _forget(self) -> None:
        """Drop half of the records: those that were seen least, and of these the oldest."""
        ranked = sorted(
            self._records.items(), key=lambda each: (bool(each[1].canary), each[1].times, each[1].last, each[0])
        )
        for key, record in ranked[: max(len(ranked) // 2, 1)]:
            del self._records[key]
            below = record.client, domain_of(record.host)[:253]
            self._names[below] -= 1
            if not self._names[below]:
                del self._names[below]
            self.forgotten += 1

    def _judge(self, record: Record, reason: str) -> None:
        if reason in _REACHED:
            record.reached += 1
        elif reason not in _UNREACHED and reason not in _LIMITS:
            record.denied += 1
            record.denied_for = record.denied_for or reason[:64]
            if reason == Reason.CANARY_KEY.value:
                record.canary = record.canary or "yes"

    def _class_of(self, upstream: str) -> str:
        """The class of the address that was dialled; "public" for all others."""
        host = upstream[:64].rpartition(":")[0].strip("[]")
        found = self._private.get(host)
        if found is None:
            if len(self._private) > MAX_CLIENTS:
                self._private.clear()
            found = address_class(host)
            self._private[host] = found = "public" if found == "malformed" else found
        return found


def address_class(host: str) -> str:
    """The class of a literal address ("private", "cloud metadata", …), "public", or "" if it is no address."""
    try:
        return classify(ip_address(host.strip("[]"))) or "public"
    except ValueError:
        return "" if HOSTNAME.fullmatch(host) else "malformed"
