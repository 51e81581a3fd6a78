"""HttpTable: which rule of which HTTPRoute serves a request.

Precedence, continuing on ties (Gateway API, HTTPRouteSpec.hostnames, HTTPRouteRule.matches and GRPCRouteRule.matches):
exact hostname, wildcard by longest suffix, any host; then exact path, regular expression (implementation-specific: here
between the two), longest prefix (a gRPC method of any service comes behind all of them but `/`); a method; more header
matches; more query matches; what was written before what was derived (a CORS preflight request for a method that a rule
matches); the oldest route; namespace/name; the order in the route. Hostnames give *precedence*, not isolation: where no
rule of the most specific hostname matches, the rules of the next one are tried.

What is matched:

* The path as it was received, without query. Only percent-encoded unreserved characters are decoded
  (`/%61` is `/a`, RFC 3986 section 6.2.2.2); `%2F` is not a slash, empty elements count, and the
  forwarded path stays as it is (RFC 9110 section 7.7).
* Where rules are bound to paths, a path with dot segments (`.` or `..`, plain, encoded once or more often, beside an
  encoded slash, a backslash or a `;`) is refused: the origin might resolve it to a place outside of the prefix that it
  matched. Where every rule takes every path, it passes.
* A header that occurs on several lines is matched as its values joined by "," (RFC 9110 section 5.3). Another spelling
  of its name (`X_Tenant` for `X-Tenant`) is another field: it satisfies no match.
* Query names and values are matched decoded (percent-encoding, "+" as space); the first occurrence counts.

The cost does not depend on the number of hosts, routes or paths: dicts are looked up by host, by path, and by each
leading part of the path. It grows with the number of rules that differ only in method, headers or query. The cost that
grows with the length of a request is bounded (`routing/conditions`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, Generic, TypeVar

from egressproxy.errors import BadRequest, Reason
from egressproxy.ir.route import HttpRouteIR, MatchIR, PathMatchType, ValueMatch
from egressproxy.model.fields import Fields
from egressproxy.model.message import has_dot_segment
from egressproxy.model.work import Work, at_once
from egressproxy.routing.conditions import MatchInput, Presence, ValueTest
from egressproxy.routing.hosts import HostMap
from egressproxy.routing.patterns import PatternError, compile_pattern
from egressproxy.routing.precedence import Match, Rank, RuleOrigin

T = TypeVar("T")

#: RFC 3986 section 2.3: ALPHA, DIGIT, "-", ".", "_", "~" in percent-encoding.
_ENCODED_UNRESERVED: Final = re.compile(rb"%(2[dDeE]|3[0-9]|4[1-9a-fA-F]|5[0-9aAfF]|6[1-9a-fA-F]|7[0-9aAeE])")

#: A preflight request has it (Fetch, CORS-preflight request); other OPTIONS requests go to the backend.
_FROM_A_PAGE: Final = Presence("origin")

#: For hosts whose matches need nothing but path and method.
_UNASKED: Final = MatchInput(b"", Fields())

_PATH_RANK: Final = {PathMatchType.EXACT: 0, PathMatchType.REGEX: 1, PathMatchType.PREFIX: 2}
#: The ranks of a gRPC method of any service, and of the prefix "/".
_ANY_SERVICE: Final = 3
_EVERY_PATH: Final = 4


class RouteError(ValueError):
    """A route cannot be compiled; the message names the route, the rule and the reason."""


class HttpTable(Generic[T]):
    """Immutable. `T` is the payload of a rule, opaque here: the live route object of the gateway."""

    __slots__ = ("_hosts", "_reserved")

    def __init__(self, hosts: HostMap[_Bucket[T]], reserved: frozenset[str] = frozenset()) -> None:
        self._hosts = hosts
        self._reserved = reserved

    @classmethod
    def building(
        cls, routes: Iterable[tuple[HttpRouteIR, Sequence[T]]], reserved: Mapping[str, T] | None = None
    ) -> Work[HttpTable[T]]:
        """Compile routes, each with one payload per rule; a route at a time, or a match where it has expressions.

        `reserved`: what serves every request for these hostnames (no wildcards), whatever the routes say.
        Raises RouteError for an expression that is refused.
        """
        hosts: HostMap[_Bucket[T]] = HostMap()
        reserved = reserved or {}
        for hostname, own in reserved.items():
            bucket = hosts.setdefault(hostname, _Bucket(hostname))
            bucket.candidates.append(_candidate(RuleOrigin("", "-", "~", 0, 0, ""), MatchIR(), own))
        for route, payloads in routes:
            candidates = yield from _candidates(route, payloads)
            for hostname in route.hostnames or ("",):
                if hostname in reserved:
                    continue
                hosts.setdefault(hostname, _Bucket(hostname)).candidates += candidates
            yield None
        for bucket in hosts.values():
            yield from bucket.seal()
        return cls(hosts, frozenset(reserved))

    def replacing(
        self, kind: str, names: Collection[str], routes: Iterable[tuple[HttpRouteIR, Sequence[T]]]
    ) -> Work[tuple[HttpTable[T], set[str]]]:
        """Another table, with these routes in place of all of this kind and these names (namespace/name); and the
        hostnames ("" for every host) whose matches may be others. Raises as `building`.
        """
        left: dict[str, list[_Candidate[T]]] = {}
        for bucket in self._hosts.values():
            if any(each.origin.kind == kind and each.origin.route in names for each in bucket.sealed()):
                left[bucket.hostname] = [
                    each for each in bucket.sealed() if each.origin.kind != kind or each.origin.route not in names
                ]
            yield None
        for route, payloads in routes:
            candidates = yield from _candidates(route, payloads)
            for hostname in route.hostnames or ("",):
                if hostname in self._reserved:
                    continue
                if hostname not in left:
                    held = self._hosts.get(hostname)
                    left[hostname] = list(held.sealed()) if held is not None else []
                left[hostname] += candidates
        made: dict[str, _Bucket[T] | None] = {}
        for hostname, candidates in left.items():
            made[hostname] = None
            if candidates:
                fresh = made[hostname] = _Bucket(hostname)
                fresh.candidates = candidates
                yield from fresh.seal()
        return HttpTable(self._hosts.replaced(made), self._reserved), set(left)

    def at(self, hostname: str) -> Iterator[T]:
        """The payload of every match of exactly this hostname or wildcard ("": of those for every host)."""
        bucket = self._hosts.get(hostname)
        return (each.result[0] for each in bucket.sealed()) if bucket is not None else iter(())

    def match(self, host: str, method: bytes, path: bytes, fields: Fields) -> tuple[T, bytes] | None:
        """The payload of the rule that serves the request, and the PathPrefix value that matched (b"" for other paths).

        `host` is in lower case without port; `path` is the origin-form target with its query. None if no rule matches
        (404). Raises BadRequest, where rules of this host depend on it: BAD_TARGET for dot segments, TARGET_TOO_LONG or
        HEAD_TOO_LARGE for values that are too long for expressions, TARGET_TOO_LONG for too many query parameters; the
        connection need not be closed.
        """
        exact = self._hosts.exact
        bucket = exact(host)
        if bucket is None:
            asked = _UNASKED
        else:
            found = bucket.always
            if found is not None:
                return found.result
            asked = MatchInput(path, fields) if bucket.asks else _UNASKED
            found = bucket.match(method, path, asked)
            if found is not None:
                return found.result
        for bucket in self._hosts.after_exact(host):
            found = bucket.always
            if found is None:
                if bucket.asks and asked is _UNASKED:
                    asked = MatchInput(path, fields)
                found = bucket.match(method, path, asked)
            if found is not None:
                return found.result
        return None

    def sole(self, host: str) -> T | None:
        """The payload that serves every request for this host; None where that depends on the request."""
        first = next(self._buckets(host), None)
        always = first.always if first is not None else None
        return always.result[0] if always is not None else None

    def matches(self, host: str, method: bytes, path: bytes, fields: Fields) -> Iterator[Match[T]]:
        """Every rule that would serve the request, in the order of precedence, each with the first of its matches that
        holds: what `match` finds, then what it would find without that rule, and so on. For explanations: each costs a
        copy of the host's rules. Raises as `match` does.
        """
        for bucket in self._buckets(host):
            left = bucket
            while (found := left.always or left.match(method, path, MatchInput(path, fields))) is not None:
                yield found.described(bucket.hostname)
                left = left.without(found.result[0])

    def every(self) -> Iterator[tuple[str, T]]:
        """The hostname ("" for every host) and payload of every match."""
        for bucket in self._hosts.values():
            for candidate in bucket.sealed():
                yield bucket.hostname, candidate.result[0]

    def rules_of(self, host: str) -> Iterator[Match[T]]:
        """Every match of this host, for any path: suggestions for the author of a request."""
        for bucket in self._buckets(host):
            for candidate in bucket.sealed():
                yield candidate.described(bucket.hostname)

    def depends_on_fields(self, host: str) -> bool:
        """Whether the choice of a rule for this host may depend on headers or query parameters."""
        every = (candidate for bucket in self._buckets(host) for candidate in bucket.sealed())
        return any(candidate.headers or candidate.query for candidate in every)

    def _buckets(self, host: str) -> Iterator[_Bucket[T]]:
        exact = self._hosts.exact(host)
        if exact is not None:
            yield exact
        yield from self._hosts.after_exact(host)


class _Candidate(Generic[T]):
    """One match of one rule. `result` is what `HttpTable.match` returns for it."""

    __slots__ = (
        "any_service", "headers", "is_preflight", "method", "origin", "path", "path_type", "pattern", "plain", "query",
        "result",
    )  # fmt: skip

    def __init__(self, origin: RuleOrigin, match: MatchIR, payload: T, path: bytes, prefix: bytes) -> None:
        self.path_type = match.path_type
        self.path = path
        self.pattern = compile_pattern(match.path) if match.path_type is PathMatchType.REGEX else None
        self.method = match.method.encode()
        self.headers = tuple(ValueTest(header) for header in match.headers)
        if match.is_preflight:
            asked_for = ValueTest(ValueMatch("access-control-request-method", match.method))
            self.headers += (asked_for, _FROM_A_PAGE)
            self.method = b"OPTIONS"
        self.query = tuple(ValueTest(parameter) for parameter in match.query)
        self.plain = not (self.method or self.headers or self.query)
        self.result: tuple[T, bytes] = (payload, prefix)
        self.is_preflight = match.is_preflight
        self.any_service = match.any_service
        self.origin = origin

    @property
    def rank(self) -> Rank:
        """Its precedence under one hostname. Not kept: it is only needed to seal a bucket and to explain."""
        origin = self.origin
        kind = _PATH_RANK[self.path_type]
        if self.any_service:
            kind = _ANY_SERVICE
        elif self.path_type is PathMatchType.PREFIX and not self.path:
            kind = _EVERY_PATH
        return (
            kind,
            0 if self.path_type is PathMatchType.EXACT else -len(self.path),
            0 if self.method else 1,
            2 * self.is_preflight - len(self.headers),  # the fields of a preflight request are not in the manifest
            -len(self.query),
            self.is_preflight,
            origin.created,
            origin.route,
            origin.position,
        )

    @property
    def has_expressions(self) -> bool:
        if self.pattern is not None:
            return True
        return any(test.expression is not None for test in (*self.headers, *self.query))

    def described(self, hostname: str) -> Match[T]:
        return Match(self.result[0], self.origin, hostname, self._text(), self.rank)

    def _text(self) -> str:
        pattern = self.pattern.text.encode() if self.pattern is not None else self.path or b"/"
        parts = [self.method, self.path_type.value.encode(), pattern]
        if self.any_service:
            parts = [self.method, b"any service", pattern]
        parts += [b"header " + test.text() for test in self.headers]
        parts += [b"query " + test.text() for test in self.query]
        return b" ".join(filter(None, parts)).decode(errors="replace")

    def holds(self, method: bytes, asked: MatchInput) -> bool:
        """Whether method, headers and query match."""
        if self.method and self.method != method:
            return False
        for test in self.headers:
            value = asked.header(test.name)
            if value is None or not test.holds(value, asked, Reason.HEAD_TOO_LARGE):
                return False
        for test in self.query:
            value = asked.parameter(test.name)
            if value is None or not test.holds(value, asked, Reason.TARGET_TOO_LONG):
                return False
        return True


class _Bucket(Generic[T]):
    """The matches of one hostname pattern ("" for every host). Filled with `candidates`, then sealed, then only read.

    `always` is the first match by precedence where that takes every request. `asks`: matches ask for more than
    paths and methods. Prefixes are kept without a slash at their end, so that "/" is b"".
    """

    __slots__ = (
        "_exact", "_is_bound", "_longest", "_methods", "_patterns", "_prefixes", "always", "asks", "candidates",
        "hostname",
    )  # fmt: skip

    def __init__(self, hostname: str) -> None:
        self.hostname = hostname
        self.candidates: list[_Candidate[T]] = []
        self.always: _Candidate[T] | None = None
        self.asks = False
        self._exact: dict[bytes, list[_Candidate[T]]] = {}
        self._patterns: list[_Candidate[T]] = []
        self._methods: dict[bytes, list[_Candidate[T]]] = {}  # of any gRPC service
        self._prefixes: dict[bytes, list[_Candidate[T]]] = {}
        self._longest = 0
        self._is_bound = False

    def seal(self) -> Work[None]:
        ranked = sorted(self.candidates, key=attrgetter("rank"))
        self.candidates = []
        if not ranked:
            return
        first = ranked[0]
        if first.plain and first.path_type is PathMatchType.PREFIX and not first.path:
            self.always = first
        for number, candidate in enumerate(ranked):
            if not number % 128:
                yield None
            if candidate.pattern is not None or candidate.headers or candidate.query:
                self.asks = True
            if candidate.any_service:
                self._methods.setdefault(candidate.path, []).append(candidate)
            elif candidate.path_type is PathMatchType.EXACT:
                self._exact.setdefault(candidate.path, []).append(candidate)
            elif candidate.path_type is PathMatchType.REGEX:
                self._patterns.append(candidate)
            else:
                self._prefixes.setdefault(candidate.path, []).append(candidate)
        self._longest = max(map(len, self._prefixes), default=0)
        self._is_bound = bool(self._exact or self._patterns or self._methods or self._longest)

    def match(self, method: bytes, target: bytes, asked: MatchInput) -> _Candidate[T] | None:
        if self._is_bound:
            path = target.partition(b"?")[0]
            if has_dot_segment(path):
                raise BadRequest(
                    Reason.BAD_TARGET,
                    "the path holds dot segments, and rules of this host are bound to paths",
                    close=False,
                )
            if path.find(b"%") >= 0:
                path = unreserved(path)
            if self._exact:
                for candidate in self._exact.get(path, ()):
                    if candidate.plain or candidate.holds(method, asked):
                        return candidate
            if self._patterns:
                for candidate in self._patterns:
                    assert candidate.pattern is not None
                    if asked.fits(candidate.pattern, path, Reason.TARGET_TOO_LONG) and (
                        candidate.plain or candidate.holds(method, asked)
                    ):
                        return candidate
            prefixes = self._prefixes
            # No prefix is longer than `_longest`: a path of many slashes costs no more than the longest prefix has.
            cut = len(path) if len(path) <= self._longest else path.rfind(b"/", 0, self._longest + 1)
            while cut > 0:
                for candidate in prefixes.get(path[:cut], ()):
                    if candidate.plain or candidate.holds(method, asked):
                        return candidate
                cut = path.rfind(b"/", 0, cut)
            if self._methods:
                cut = path.find(b"/", 1)
                for candidate in self._methods.get(path[cut:], ()) if cut > 1 else ():
                    if candidate.plain or candidate.holds(method, asked):
                        return candidate
        for candidate in self._prefixes.get(b"", ()):
            if candidate.plain or candidate.holds(method, asked):
                return candidate
        return None

    def sealed(self) -> Iterator[_Candidate[T]]:
        """Every candidate, those of one path in their order."""
        for candidates in (*self._exact.values(), self._patterns, *self._methods.values(), *self._prefixes.values()):
            yield from candidates

    def without(self, payload: T) -> _Bucket[T]:
        """The same without the rule of this payload."""
        made: _Bucket[T] = _Bucket(self.hostname)
        made.candidates = [candidate for candidate in self.sealed() if candidate.result[0] is not payload]
        at_once(made.seal())
        return made


def _candidates(route: HttpRouteIR, payloads: Sequence[T]) -> Work[list[_Candidate[T]]]:
    """Every match of a route. Raises RouteError."""
    made: list[_Candidate[T]] = []
    for position, (rule, payload) in enumerate(zip(route.rules, payloads, strict=True)):
        origin = RuleOrigin(route.kind, route.name, route.created, position, rule.index, rule.name)
        for match in rule.matches:
            made.append(_candidate(origin, match, payload))
            if made[-1].has_expressions:
                yield None  # it may have taken a millisecond or two to compile
    yield None
    return made


def _candidate(origin: RuleOrigin, match: MatchIR, payload: T) -> _Candidate[T]:
    path = match.path.encode()
    prefix = b""
    if match.path_type is not PathMatchType.REGEX:
        path = unreserved(path)
    if match.path_type is PathMatchType.PREFIX:
        prefix = match.path.encode()
        path = path.rstrip(b"/")
    try:
        return _Candidate(origin, match, payload, path, prefix)
    except PatternError as error:
        raise RouteError(f"{origin.kind} {origin.route}, rule {origin.position}: {error}") from None


def unreserved(path: bytes) -> bytes:
    """The path with plain letters, digits, `-`, `.`, `_` and `~` for encoded ones (RFC 3986 section 6.2.2.2)."""
    return _ENCODED_UNRESERVED.sub(lambda found: bytes((int(found.group(1), 16),)), path)
