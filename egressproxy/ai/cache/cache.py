"""Cache: answers are kept, and given again to whom they were given, for the same request.

Where it is kept, and why that is safe: the cache is the last filter of requests and of responses. A request that is
answered from it has passed every filter of requests, limits and authorization included, and what is kept has passed
every filter of responses (what the head's filters do is done anew). An answer is found by requests of one rule, in one
snapshot of the configuration: each reload begins with nothing. The key holds the client, its credential, and the body
as the client has sent it, not as other filters have made it: two texts that are redacted to one are two requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Annotated, Any, Final, Literal

from egressproxy.ai.apis.apis import Operation
from egressproxy.ai.apis.message import READ_AT_ONCE
from egressproxy.ai.apis.shared import add_usage, operation, usage_told
from egressproxy.ai.apis.streams import SLICE
from egressproxy.ai.apis.usage import TokenUsage
from egressproxy.ai.cache.freshness import cache_control, lifetime_s, may_store, whole_answer
from egressproxy.ai.cache.keys import canonical, credentials_of, digest, in_order, is_known, is_named, telling, told_by
from egressproxy.ai.cache.semantic import Embedder, MeaningIndex, SemanticConfig, Vector, question_of
from egressproxy.ai.cache.store import AnswerStore, StoredAnswer
from egressproxy.errors import Reason
from egressproxy.filters.base import (
    ORIGINAL_BODY,
    ORIGINAL_HEAD,
    BodyMode,
    BodyResult,
    Filter,
    FilterContext,
    FilterType,
    Phase,
    Rejected,
)
from egressproxy.filters.settings import FieldName, FilterConfig, Within
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.admin_requests import CachePurge
from egressproxy.model.exchange import CALLERS_OWN, Exchange, StateSlot
from egressproxy.model.fields import Fields, every_spelling, media_type
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import ResponseHead
from egressproxy.model.per_client_quota import client_of
from egressproxy.model.work import Work, at_once
from egressproxy.net.cooperative import in_turns, run

#: Fields of requests that change answers of the APIs that are known, whether Vary says so or not.
_TELLING: Final = (
    b"accept", b"accept-language", b"content-type", b"anthropic-version", b"anthropic-beta", b"openai-beta",
    b"openai-organization", b"openai-project", b"x-goog-user-project",
)  # fmt: skip
#: Requests with these ask for something else than the answer (RFC 9110 sections 13.1 and 14.2).
_CONDITIONS: Final = every_spelling(("if-none-match", "if-modified-since", "if-match", "if-unmodified-since", "range"))
#: Not kept: the transport's, Date (the gateway writes it), and what says of a coding, since bodies are kept without.
_DROPPED: Final = frozenset((
    b"age", b"cache-status", b"connection", b"content-digest", b"content-encoding", b"content-length", b"content-md5",
    b"date", b"digest", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"repr-digest", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
))  # fmt: skip
_NO_USAGE: Final = TokenUsage()
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class CacheConfig(FilterConfig):
    """Cache."""

    ttl_seconds: Annotated[int, Within(ge=1, le=31_536_000)] = 300
    """How long an answer is given again. What Cache-Control and Expires say of answers to GET may shorten it."""
    methods: Annotated[tuple[Literal["GET", "POST"], ...], Within(min_length=1)] = ("GET", "POST")
    """Of which requests. POST: to the APIs of AI providers alone."""
    max_entries: Annotated[int, Within(ge=1, le=1_000_000)] = 1000
    """Answers that are kept, in each worker."""
    max_bytes: Annotated[int, Within(ge=65536)] = 64 * 1024 * 1024
    """The most bytes of stored responses, in each worker."""
    max_entry_bytes: Annotated[int, Within(ge=1024)] = 1024 * 1024
    """The longest body that is kept, and the longest body of a request that is looked for."""
    share_anonymous: bool = False
    """Clients without identity and credential share their answers. By default nothing of theirs is kept."""
    share_tenants: bool = False
    """Clients that are known share their answers: all without a credential, and all with the same one. By default each
    gets its own alone.
    """
    key_headers: tuple[FieldName, ...] = ()
    """Further fields of requests on which answers depend."""
    counts_tokens: bool = False
    """An answer out of the cache counts for limits on tokens with the usage that it tells. By default with none."""
    semantic: SemanticConfig | None = None
    """Answers to questions of like meaning are given, too. By default none."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A request that may be answered out of the cache, and its answer while it comes."""

    target: bytes  # and fields: as the client has sent them. Others may have redacted them since, and an attempt's
    fields: Fields  # hold the gateway's credential.
    base: bytes = b""  # the key without the fields that Vary names; b"" as long as the body is not known
    parts: list[bytes] | None = field(default_factory=list)
    size: int = 0
    head: tuple[int, bytes, tuple[tuple[bytes, bytes], ...]] | None = None
    response: ResponseHead | None = None  # whose head that is: of several attempts at once another one may win
    told: Fields | None = None  # the fields of that, before any filter of the head has changed them
    is_hit: bool = False
    group: bytes = b""  # the key without the question, where like questions are looked for
    vector: Vector | None = None
    purges: int = 0  # of the store, when the request came


class Cache(Filter):
    runs_in = frozenset((
        Phase.REQUEST_HEADERS, Phase.REQUEST_BODY, Phase.BACKEND_RESPONSE, Phase.RESPONSE_HEADERS, Phase.RESPONSE_BODY,
    ))  # fmt: skip
    only_reads = True
    decodes = True
    needs_original = True

    def __init__(self, context: FilterContext) -> None:
        config: CacheConfig = context.config
        self._config = config
        self._store = AnswerStore(config.max_entries, config.max_bytes)
        self._pending: StateSlot[_Pending | None] = StateSlot("cache")
        self._telling = telling((*_TELLING, *(name.encode() for name in config.key_headers)))
        self._methods = frozenset(method.encode() for method in config.methods)
        self._place = 0
        semantic = config.semantic
        self._embedder = Embedder(semantic, context.calls) if semantic is not None else None
        self._meanings = MeaningIndex(semantic.max_candidates if semantic is not None else 0, config.max_entries)
        self.max_buffer_bytes = config.max_entry_bytes
        meter = context.meter
        self._requests = meter.counter(
            "egress_cache_requests_total", "Requests by what the cache did: hit, like, miss or bypass.", ("outcome",)
        )
        self._evicted = meter.counter("egress_cache_evictions_total", "Answers that had to make room for others.")
        self._entries = meter.gauge("egress_cache_entries", "Answers that are kept.")
        self._bytes = meter.gauge("egress_cache_bytes", "Bytes that they take.")
        self._purged = meter.counter("egress_cache_purged_total", "Answers that were taken out by a purge.")
        #: The places of a configuration that is being built.
        self._coming: list[int] = []
        self.now: Callable[[], float] = monotonic

    def at_place(self, behind: Sequence[tuple[str, frozenset[Phase]]]) -> Cache:
        """One for each place: what is kept for one is not found by another. Raises ValueError where it is not last."""
        for name, phases in behind:
            if phases & {Phase.REQUEST_HEADERS, Phase.REQUEST_BODY, Phase.RESPONSE_BODY}:
                raise ValueError(f"filter {name} runs behind the cache, which has to be last: raise its priority")
        made = copy(self)
        made._place = next(_numbers)
        self._coming.append(made._place)
        return made

    def in_service(self) -> None:
        """Forget what was kept for places of an earlier configuration: nobody finds it."""
        places = frozenset(self._coming)
        self._coming.clear()
        self._store.remove_where(lambda answer: answer.place not in places)
        self._tell_size()

    def state(self, purge: CachePurge | None = None) -> dict[str, int]:
        """What is kept: `entries`, `bytes`, `hits` since the filter was built, and `purged`, how many `purge` took
        out. An answer that is on its way when a purge comes is not kept.
        """
        now = self.now()
        self._store.remove_where(lambda answer: answer.expires_at <= now)
        purged = 0
        if purge is not None:
            self._store.purges += 1
            purged = self._store.remove_where(lambda each: purge.holds(each.route, each.target, each.identity))
            self._purged.add(purged)
        self._tell_size()
        return {"entries": len(self._store), "bytes": self._store.size, "hits": self._store.hits, "purged": purged}

    def _tell_size(self) -> None:
        self._entries.set(len(self._store))
        self._bytes.set(self._store.size)

    # --- requests ----------------------------------------------------------------------------------------------------
    def request_headers(self, exchange: Exchange) -> LocalResponse | None:
        """Answer a GET that is known; decide whether the body of a POST is looked at."""
        if exchange.is_tunnel:
            return None
        target, block = ORIGINAL_HEAD.get(exchange) or (b"", b"")
        fields = Fields(block)
        if not self._may_look(exchange, fields):
            self._count(exchange, "bypass")
            return None
        pending = _Pending(target, fields, purges=self._store.purges)
        exchange.keep(self._pending, pending)
        if exchange.method != b"GET":
            return None
        answer = self._answer(exchange, pending, b"")
        if answer is None:
            self._count(exchange, "miss")
        return answer

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        """Requests whole, answers as they come; None for what is not looked at, or not kept."""
        pending = exchange.state.get(self._pending)
        if pending is None:
            return None
        if phase is Phase.REQUEST_BODY:
            return BodyMode.BUFFER if exchange.method == b"POST" else None
        if not pending.base or pending.response is not exchange.response or not self._may_keep(exchange, pending):
            pending.parts = None
        return None if pending.parts is None else BodyMode.STREAM

    def request_body(self, exchange: Exchange, data: bytes, last: bool) -> BodyResult:
        pending = exchange.state.get(self._pending)
        assert pending is not None  # what has no entry has no body mode
        original = ORIGINAL_BODY.pop(exchange)
        if original is None:
            original = data
        work = canonical(original)
        if len(original) > READ_AT_ONCE:
            return self._found_in_turns(exchange, pending, data, original, work)
        return self._found(exchange, pending, data, original, at_once(work))

    async def _found_in_turns(
        self, exchange: Exchange, pending: _Pending, data: bytes, original: bytes, work: Work[bytes | None]
    ) -> bytes | LocalResponse:
        found = self._found(exchange, pending, data, original, await in_turns(work))
        return await found if isinstance(found, Awaitable) else found

    def _found(
        self, exchange: Exchange, pending: _Pending, data: bytes, original: bytes, body: bytes | None
    ) -> BodyResult:
        if body is None:
            exchange.keep(self._pending, None)
            self._count(exchange, "bypass")
            return data
        answer = self._answer(exchange, pending, body)
        if answer is not None:
            return answer
        # What another filter has taken out of a question (a name) may be what two questions differ in.
        if self._embedder is not None and (original is data or original == data):
            return self._like(exchange, pending, data, self._embedder)
        self._count(exchange, "miss")
        return data

    async def _like(
        self, exchange: Exchange, pending: _Pending, data: bytes, embedder: Embedder
    ) -> bytes | LocalResponse:
        """The answer to a question of like meaning, or the body."""
        semantic, asked = self._config.semantic, question_of(data, operation(exchange))
        if semantic is not None and asked is not None and "no-cache" not in cache_control(pending.fields):
            question, rest = asked
            pending.vector = vector = await embedder.vector(question, exchange)
            if vector is not None:
                pending.group = self._key(exchange, in_order(rest))
                now = self.now()
                for key in self._meanings.nearest(pending.group, vector, semantic.threshold):
                    found = self._store.get(key, now)
                    if found is not None:
                        self._count(exchange, "like")
                        return self._given(exchange, pending, found, now, b"; detail=like")
        self._count(exchange, "miss")
        return data

    # --- answers -----------------------------------------------------------------------------------------------------
    def backend_response(self, exchange: Exchange) -> None:
        """Remember the head before the filters of heads, which see what comes out of the cache, too."""
        pending = exchange.state.get(self._pending)
        if pending is not None:
            fields = tuple((name, value) for name, value in exchange.response.fields if name not in _DROPPED)
            if b"content-encoding" in exchange.response.fields:
                fields = tuple(each for each in fields if each[0] != b"etag")  # it names the coded form
            pending.head, pending.response = (
                (exchange.response.status, exchange.response.phrase, fields),
                exchange.response,
            )
            pending.told = Fields(exchange.response.fields.block)

    def response_headers(self, exchange: Exchange) -> None:
        """Say that the answer is not out of the cache. Source: RFC 9211 section 2."""
        pending = exchange.state.get(self._pending)
        if pending is None or not pending.is_hit:
            known = pending is not None and pending.base
            exchange.response.fields.add(
                b"cache-status", b"egressproxy; fwd=miss" if known else b"egressproxy; fwd=bypass"
            )

    def held_bytes(self, exchange: Exchange, phase: Phase) -> int:
        pending = exchange.state.get(self._pending)
        return pending.size if pending is not None and pending.parts is not None else 0

    def response_body(self, exchange: Exchange, data: bytes, last: bool) -> BodyResult:
        pending = exchange.state.get(self._pending)
        if pending is None or pending.parts is None:
            return data
        pending.size += len(data)
        if pending.size > self._config.max_entry_bytes:
            pending.parts = None
            return data
        pending.parts.append(data)
        if not last:
            return data
        return run(self._keeping(exchange, pending, b"".join(pending.parts), data), is_long=pending.size > SLICE)

    def complete(self, exchange: Exchange) -> None:
        exchange.take(self._pending)

    # --- what is kept, and what is found -----------------------------------------------------------------------------
    def _count(self, exchange: Exchange, outcome: str) -> None:
        """For the metric and the access log."""
        self._requests.add(1, outcome)
        exchange.add_log_fields({"cache": outcome})

    def _may_look(self, exchange: Exchange, fields: Fields) -> bool:
        request = exchange.request
        if exchange.method not in self._methods or request.upgrade or _CONDITIONS.search(fields.block) is not None:
            return False
        if "no-store" in cache_control(fields):
            return False
        if exchange.method == b"GET":
            if request.body:
                return False
        elif (
            operation(exchange) is None
            or not 0 < request.body <= self._config.max_entry_bytes
            or b"content-encoding" in fields  # what it holds may be longer than this bound
        ):
            return False
        return self._config.share_anonymous or is_known(exchange, fields)

    def _answer(self, exchange: Exchange, pending: _Pending, body: bytes) -> LocalResponse | None:
        """The answer that is known to this request."""
        pending.base = base = self._key(exchange, body)
        told = cache_control(pending.fields)
        key = _variant(pending, self._store.vary(base))
        now = self.now()
        found = self._store.get(key, now) if "no-cache" not in told else None
        if found is not None and "max-age" in told and found.age(now) > _seconds(told["max-age"]):
            found = None
        if found is None:
            if "only-if-cached" in told:
                message = "the answer is not in the cache, and nothing else was asked for (only-if-cached)"
                raise Rejected(message, status=504, reason=Reason.FILTER_REJECTED)
            return None
        self._count(exchange, "hit")
        return self._given(exchange, pending, found, now)

    def _given(
        self, exchange: Exchange, pending: _Pending, found: StoredAnswer, now: float, detail: bytes = b""
    ) -> LocalResponse:
        pending.is_hit = True
        self._store.hits += 1
        add_usage(exchange, found.usage if self._config.counts_tokens else _NO_USAGE)
        age, left = found.age(now), int(found.expires_at - now)
        fields = (
            *found.fields,
            (b"age", b"%d" % age),
            (b"cache-status", b"egressproxy; hit; ttl=%d%b" % (left, detail)),
        )
        return LocalResponse(found.status, fields, found.body, found.phrase)

    def _key(self, exchange: Exchange, body: bytes) -> bytes:
        """The key of a request, whatever Vary says."""
        pending = exchange.state.get(self._pending)
        assert pending is not None  # without one there is no lookup
        fields = pending.fields
        parts: list[bytes] = [
            b"%d" % self._place, exchange.gateway.encode(), exchange.listener.encode(), exchange.route.encode(),
            *self._client(exchange), credentials_of(fields),
            exchange.scheme, str(exchange.authority).encode(), exchange.method, pending.target, exchange.request.path,
            exchange.upstream_host,
            told_by(self._telling, fields), body,
        ]  # fmt: skip
        return digest(parts)

    def _client(self, exchange: Exchange) -> tuple[bytes, ...]:
        """Whose answers these are; without an identity also the address: several may hold one credential. An API key
        for some models shares with keys for the same ones: the filter that compares them may run behind this one.
        What a backend is sent for a client may depend on its groups, and on the token that is exchanged.
        """
        identity, address = exchange.identity, ""
        is_client_named = is_named(identity)
        grant = identity.grant
        models = tuple(each.encode() for each in grant.models or ()) if grant is not None else ()
        if self._config.share_tenants and is_client_named:
            return b"known", b"", *models
        if not (self._config.share_anonymous or is_client_named):
            # Behind another gateway of ours all clients come from the address of that.
            address = client_of(exchange) if identity.origin_client == "-" else identity.origin_client
        names = identity.namespace, identity.service_account, identity.origin_gateway, identity.name, address
        token = digest((identity.token.value.reveal(),)) if identity.token is not None else b""
        return *(name.encode() for name in names), repr(identity.groups).encode(), token, *models

    def _may_keep(self, exchange: Exchange, pending: _Pending) -> bool:
        """Whether the response may be kept: by its own head, as filters have left that."""
        if self._config.share_tenants and CALLERS_OWN in exchange.state:
            return False
        is_get = exchange.method == b"GET"
        is_authorized = b"authorization" in pending.fields
        head = exchange.response
        if head.status != 200 or head.body == 0:
            return False
        for said in _heads(pending, exchange):
            if not may_store(said, is_authorized=is_authorized, is_get=is_get):
                return False
            if lifetime_s(said, self._config.ttl_seconds, is_get=is_get) <= 0:
                return False
        return True

    def _keeping(self, exchange: Exchange, pending: _Pending, body: bytes, last_piece: bytes) -> Work[bytes]:
        """Keep this answer, if it may be; returns its last piece."""
        asked = operation(exchange)
        is_whole, usage = True, None
        if asked is not None:
            is_whole, usage = yield from whole_answer(body, media_type(exchange.response.fields), asked)
        if is_whole:
            self._keep(exchange, pending, body, asked, usage)
        return last_piece

    def _keep(
        self, exchange: Exchange, pending: _Pending, body: bytes, asked: Operation | None, usage: TokenUsage | None
    ) -> None:
        if asked is not None:
            usage = usage or usage_told(exchange)  # a stream may not tell its client what only a limit has asked for
        assert pending.head is not None
        if pending.purges != self._store.purges:
            return  # it may be as old as what was purged
        now = self.now()
        heads = _heads(pending, exchange)
        age_s = max(_seconds((said.get(b"age") or b"").decode("latin-1")) for said in heads)
        ttl = self._config.ttl_seconds
        lifetime = min(lifetime_s(said, ttl, is_get=asked is None) for said in heads) - age_s
        if lifetime <= 0:
            return
        names = b",".join(line for said in heads for line in said.get_all(b"vary")).lower().split(b",")
        vary = tuple(sorted({name.strip() for name in names} - {b"", b"accept-encoding"}))  # kept without coding
        identity = f"{exchange.identity.namespace}/{exchange.identity.service_account}"
        age = now, now + lifetime, age_s
        answer = StoredAnswer(*pending.head, body, *age, usage, self._place, exchange.route, pending.target, identity)
        key = _variant(pending, vary)
        evicted = self._store.put(pending.base, vary, key, answer)
        if pending.vector is not None and not vary:
            self._meanings.add(pending.group, pending.vector, key)
        if evicted:
            self._evicted.add(evicted)
        self._tell_size()


def states(filters: Iterable[tuple[ExtensionIR, Filter]], purge: CachePurge | None) -> list[dict[str, Any]]:
    """The `state` of each cache among these, with its name (`filter`) and the object that declares it (`from`)."""
    return [
        {"filter": spec.name, "from": spec.source, **each.state(purge)}
        for spec, each in filters
        if isinstance(each, Cache)
    ]


def _heads(pending: _Pending, exchange: Exchange) -> tuple[Fields, ...]:
    """What is said of the answer: by its backend, and to the client."""
    return (exchange.response.fields,) if pending.told is None else (pending.told, exchange.response.fields)


def _variant(pending: _Pending, vary: tuple[bytes, ...]) -> bytes:
    """The key with the values of the fields that Vary names."""
    return digest((pending.base, *(name + b":" + b"\n".join(pending.fields.get_all(name)) for name in vary)))


def _seconds(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


CACHE = FilterType(
    name="egressproxy.io/Cache:v1",
    phases=frozenset((Phase.REQUEST_HEADERS,)),
    config_model=CacheConfig,
    build=Cache,
    also=frozenset((Phase.REQUEST_BODY, Phase.BACKEND_RESPONSE, Phase.RESPONSE_HEADERS, Phase.RESPONSE_BODY)),
    summary="Gives the same client the same answer again, streams included.",
)
