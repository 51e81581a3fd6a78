"""TapeFilter: records what clients ask and get, and answers from tapes. A Python filter of manifests that `tapes.Run`
makes; no other gateway imports it.

It stands behind the other filters of the route: a tape has what clients are sent. Bodies pass unchanged. Masking and
files are the work of one thread, which ends with the filter.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from bisect import bisect_left, insort
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate, chain, pairwise, repeat
from operator import itemgetter
from pathlib import Path
from time import monotonic
from typing import Final

from pydantic import BaseModel, ConfigDict

from egressproxy.errors import Reason
from egressproxy.filters import BodyMode, Exchange, Filter, FilterContext, LocalResponse, Phase, Rejected
from egressproxy.filters.base import OfMessages
from egressproxy.filters.content_coding import CODINGS, ContentDecoder, Undecodable, coding_of, is_readable, new_encoder
from egressproxy.model.exchange import StateSlot
from egressproxy.model.fields import Fields
from egressproxy.tapes import Report
from egressproxy.tapes.masking import Masker
from egressproxy.tapes.matching import Asked, Library, Rules
from egressproxy.tapes.player import TICKET, Player
from egressproxy.tapes.tape import (
    EVENTS,
    Headers,
    Interaction,
    TapeError,
    file_name,
    media_type,
    read,
    read_folder,
    value_of,
    write,
    written,
)

log = logging.getLogger("egressproxy.tapes")

#: Of one body; a longer one is not recorded.
MAX_BODY: Final = 64 * 1024 * 1024
#: A longest request that is compared with tapes: what the gateway buffers of one.
MAX_REQUEST: Final = 32 * 1024 * 1024
#: In seconds: a tape is written so often while exchanges come.
_WRITTEN_S: Final = 0.5
#: Of long tapes so seldom that writing takes a tenth of the time.
_PART: Final = 10
#: Lines of each kind that a report keeps.
_MAX_TOLD: Final = 1000
#: Of the connection and of the coding, which the gateway writes anew.
_DROPPED: Final = frozenset(
    ("content-length", "content-encoding", "transfer-encoding", "connection", "keep-alive", "trailer", "proxy-status")
)
#: Of those that are played; the gateway tells the time itself.
_OURS: Final = _DROPPED | {"date"}
_DIGESTS: Final = frozenset(("digest", "content-digest", "repr-digest", "content-md5"))
_PORTS: Final = {b"http": 80, b"https": 443}
#: Of a response to HEAD, in bytes: so long a Content-Length can be played.
_MAX_LENGTH: Final = 1 << 30


class TapeConfig(BaseModel):
    """As `Run.extension` writes it: folders, "" for none, and the file of the report."""

    model_config = ConfigDict(extra="forbid")

    record_to: str = ""
    replay_from: str = ""
    strict: bool = False
    player_port: int = 0
    ignore_body: list[str] = []
    ignore_query: list[str] = []
    report: str


@dataclass(slots=True, eq=False)
class _Taken:
    """What has been seen of one exchange. `size`: bytes of both bodies. `response`: pieces, each with the seconds
    behind the head. `is_asked`: the request has come as a whole. `is_looked_up`: the library was asked for it.
    """

    uri: str
    request_fields: Fields
    began: datetime
    started_at: float
    is_recorded: bool
    is_asked: bool = False
    is_looked_up: bool = False
    request: list[bytes] = field(default_factory=list)
    response: list[tuple[float, bytes]] = field(default_factory=list)
    response_fields: Fields | None = None
    status: int = 0
    phrase: str = ""
    head_at: float = 0.0
    size: int = 0
    has_body: bool = False
    has_ended: bool = False
    has_trailers: bool = False


class _Unrecordable(Exception):
    """An exchange that a tape cannot have; the message is no part of it."""


_TAKEN: Final[StateSlot[_Taken]] = StateSlot("tape")


class _Tapes:
    """The tapes of one run, which all filters of the run share. `opened`: their number."""

    def __init__(self, config: TapeConfig) -> None:
        """Raises TapeError."""
        self.config = config
        self.report = Report(is_strict=config.strict)
        self.opened = 0
        self.masker = Masker()
        self.library: Library | None = None
        rules = Rules.of(config.ignore_body, config.ignore_query)
        if config.replay_from:
            self.library = Library(read_folder(Path(config.replay_from)), rules, is_strict=config.strict)
        self.player = Player(config.player_port) if config.player_port else None
        self._asked_by = Masker()  # of `reader`
        self.reader = ThreadPoolExecutor(1, "tapes-read")  # one at a time: equal requests keep their order
        self._written: dict[str, list[tuple[float, Interaction, str]]] = {}  # by the names of files, in order of begin
        self._unwritten: set[str] = set()
        self._next_at = 0.0
        self._recorded_by = Masker()  # of the thread
        self._thread = ThreadPoolExecutor(1, "tapes")
        self._report_on(replace(self.report, has_failed=True, unrecorded=["the gateway was killed"]))

    # --- recording ---------------------------------------------------------------------------------------------------
    def take(self, method: str, taken: _Taken) -> None:
        """Write this exchange onto its tape, in the thread."""
        self._thread.submit(self._record, method, taken, monotonic() - taken.started_at)

    def _record(self, method: str, taken: _Taken, took: float) -> None:
        where = name = file_name(taken.uri)
        try:
            where = self._recorded_by.uri(taken.uri)
            found = self._recorded_by.interaction(interaction_of(method, taken, took)).readable()
            name = file_name(found.uri)
            insort(self._entries_of(name), (taken.started_at, found, written(found)), key=itemgetter(0))
        except Exception as error:  # the exchange itself went well
            why = str(error) if isinstance(error, _Unrecordable) else type(error).__name__
            tell(self.report.unrecorded, f"{method} {where}: {why}")
            log.warning("an exchange with %s is not on tape: %s", name, why)
            return
        self._unwritten.add(name)
        self.report.recorded += 1
        if monotonic() >= self._next_at:
            self._write()

    def _entries_of(self, name: str) -> list[tuple[float, Interaction, str]]:
        """Those of this file. A replay adds to what is there; a recording replaces it."""
        if name not in self._written:
            path = Path(self.config.record_to) / name
            kept = read(path) if self.config.replay_from and path.exists() else []
            self._written[name] = [(0.0, each, written(each)) for each in kept]
        return self._written[name]

    def _write(self) -> None:
        began = monotonic()
        for name in sorted(self._unwritten):
            path = Path(self.config.record_to) / name
            try:
                write(path, (text for _, _, text in self._written[name]))
            except OSError as error:
                log.error("a tape cannot be written: %s: %s", path, error.strerror)
                tell(self.report.unrecorded, f"{path}: {error.strerror}")
                continue
            self._unwritten.discard(name)
            tell(self.report.files, str(path))
        now = monotonic()
        self._next_at = now + max(_WRITTEN_S, _PART * (now - began))

    def _mask_again(self) -> None:
        """Mask credentials in exchanges from before their first use as such."""
        for name, entries in self._written.items():
            for at, (began, found, text) in enumerate(entries):
                if self._recorded_by.known(data := text.encode()) != data:
                    again = self._recorded_by.interaction(found).readable()
                    entries[at] = began, again, written(again)
                    self._unwritten.add(name)

    # --- playing -----------------------------------------------------------------------------------------------------
    def find(self, method: str, taken: _Taken, body: bytes) -> tuple[Interaction | None, bool, str]:
        """What answers, or None, whether it has answered before, and why there is none. For `reader`: a long body takes
        time.
        """
        assert self.library is not None
        decoded = _decoded(body, taken.request_fields)
        body = body if decoded is None else decoded
        uri, headers, body = self._asked_by.request(taken.uri, _headers(taken.request_fields), body)
        asked = Asked.of(self.library.rules, method, uri, headers, body)
        if (found := self.library.find(asked)) is not None:
            return found.interaction, found.played > 1, ""
        why = self.library.why_missing(asked)
        tell(self.report.missing, f"{method} {uri}: {why}")
        return None, False, why

    # --- the end -----------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """The last filter has ended: write what is not on disk."""
        if self.player is not None:
            self.player.close()
        self.reader.shutdown()
        self._thread.shutdown()
        self._mask_again()
        self._write()
        self.report.has_failed = bool(self._unwritten)
        if self.library is not None:
            self.report.unplayed = [each.interaction.title for each in self.library.all if not each.played]
        self._report_on(self.report)

    def _report_on(self, report: Report) -> None:
        try:
            Path(self.config.report).write_bytes(self._recorded_by.known(json.dumps(asdict(report)).encode()))
        except OSError as error:
            log.error("the report on tapes cannot be written: %s: %s", error.filename, error.strerror)


def tell(entries: list[str], entry: str) -> None:
    """Add a line to the report."""
    if entry not in entries and len(entries) < _MAX_TOLD:
        entries.append(entry)


#: By the file of the report: several Gateways share the tapes of their run.
_RUNS: Final[dict[str, _Tapes]] = {}


class NotOnTape(Rejected):
    """A strict replay has no answer to a request."""

    is_listed_elsewhere = True  # in the report at the end


class TapeFilter(Filter):
    only_reads = True
    ignores_trailers = True
    waits_for_people = True  # a stream that the client ends has no time limit
    of_messages = OfMessages.HEAD
    max_buffer_bytes = MAX_REQUEST
    runs_in = frozenset((Phase.REQUEST_HEADERS, Phase.REQUEST_BODY, Phase.RESPONSE_HEADERS, Phase.RESPONSE_BODY))

    def __init__(self, context: FilterContext) -> None:
        config: TapeConfig = context.config
        try:
            self._tapes = _RUNS.get(config.report) or _RUNS.setdefault(config.report, _Tapes(config))
        except TapeError as error:
            raise Rejected(str(error)) from None
        self._tapes.opened += 1

    def close(self) -> None:
        self._tapes.opened -= 1
        if not self._tapes.opened:
            del _RUNS[self._tapes.config.report]
            self._tapes.close()

    # --- requests ----------------------------------------------------------------------------------------------------
    async def request_headers(self, exchange: Exchange) -> LocalResponse | None:
        """Answers a request without a body from the tapes. Raises Rejected for other requests of a strict run."""
        if exchange.is_tunnel:
            self._pass_unseen(f"a tunnel to {exchange.authority or exchange.listener}", "its TLS is not opened")
            return None
        taken = _taken(exchange, is_recorded=bool(self._tapes.config.record_to))
        if exchange.request.upgrade:
            what = f"{exchange.request.upgrade.decode('latin-1')} of {self._tapes.masker.uri(taken.uri)}"
            self._pass_unseen(what, "tapes have HTTP alone")
            return None
        exchange.keep(_TAKEN, taken)
        return await self._answer(exchange, taken, b"") if exchange.request.body == 0 else None

    def _pass_unseen(self, what: str, why: str) -> None:
        if self._tapes.config.strict:
            tell(self._tapes.report.missing, f"{what}: {why}")
            raise NotOnTape(f"{what} is not on tape: {why}", remedy="replay without --strict to let it pass")
        tell(self._tapes.report.unrecorded, f"{what}: {why}")

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        """Whole, if it is compared with tapes; in pieces, if it is recorded."""
        taken = exchange.state.get(_TAKEN)
        if taken is None:
            return None
        if phase is Phase.REQUEST_BODY and self._tapes.library is not None:
            return BodyMode.BUFFER
        return BodyMode.STREAM if taken.is_recorded else None

    def held_bytes(self, exchange: Exchange, phase: Phase) -> int:
        return 0  # a recording must not make clients wait

    async def request_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes | LocalResponse:
        """As `request_headers`, for a request with a body."""
        taken = exchange.state.get(_TAKEN)
        if taken is None:
            return data
        taken.is_asked = last
        if _has_room(taken, data):
            taken.request.append(data)
        return await self._answer(exchange, taken, data) or data

    async def _answer(self, exchange: Exchange, taken: _Taken, body: bytes) -> LocalResponse | None:
        tapes = self._tapes
        if tapes.library is None:
            return None
        method, loop = exchange.method.decode("latin-1"), asyncio.get_running_loop()
        played, is_again, why = await loop.run_in_executor(tapes.reader, tapes.find, method, taken, body)
        taken.is_looked_up = True  # nothing has failed
        if played is None:
            if tapes.config.strict:
                raise NotOnTape(
                    f"not in the tapes: {why}",
                    remedy="record it (--record), or let requests differ there (--ignore-body, --ignore-query)",
                )
            return None
        taken.is_recorded = False
        tapes.report.played += 1
        if tapes.player is not None and played.body and media_type(played.headers) == EVENTS:
            exchange.request.fields.set(TICKET, await _ticket(played, tapes.player))
            return None
        if played.is_open and (is_again or not played.body):
            await loop.create_future()  # nothing more came until the client left
        return await loop.run_in_executor(tapes.reader, response_of, played, taken.request_fields)

    # --- responses ---------------------------------------------------------------------------------------------------
    def response_headers(self, exchange: Exchange) -> None:
        taken = exchange.state.get(_TAKEN)
        if taken is not None and taken.is_recorded:
            head = exchange.response
            taken.status, taken.phrase = head.status, head.phrase.decode("latin-1")
            taken.response_fields, taken.has_body = Fields(head.fields.block), head.body != 0
            taken.head_at = monotonic()

    def response_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes:
        taken = exchange.state.get(_TAKEN)
        if taken is not None and taken.is_recorded:
            taken.has_ended = last
            if _has_room(taken, data):
                taken.response.append((monotonic() - taken.head_at, data))
        return data

    def request_trailers(self, exchange: Exchange, fields: Fields) -> None:
        """They pass."""

    def response_trailers(self, exchange: Exchange, fields: Fields) -> None:
        if (taken := exchange.state.get(_TAKEN)) is not None:
            taken.has_trailers = True

    def complete(self, exchange: Exchange) -> None:
        taken = exchange.state.get(_TAKEN)
        if taken is None:
            return
        report, method = self._tapes.report, exchange.method.decode("latin-1")
        what = f"{method} {self._tapes.masker.uri(taken.uri)}"
        if self._tapes.config.strict and not taken.is_looked_up and exchange.reason is not Reason.CLIENT_GONE:
            tell(report.missing, f"{what}: it was refused before it was looked for")
        if not taken.is_recorded:
            return
        fields = taken.response_fields
        if fields is None:
            tell(report.unrecorded, f"{what}: it has no answer ({exchange.reason.value})")
        elif not taken.is_asked:
            tell(report.unrecorded, f"{what}: it was answered before its body had come")
        elif taken.size > MAX_BODY:
            tell(report.unrecorded, f"{what}: its bodies have more than {MAX_BODY >> 20} MiB")
        elif taken.has_body and not taken.has_ended and media_type(_headers(fields)) != EVENTS:
            tell(report.unrecorded, f"{what}: its answer broke off ({exchange.reason.value})")
        elif taken.has_trailers and media_type(_headers(fields)).startswith("application/grpc"):
            tell(report.unrecorded, f"{what}: gRPC tells the outcome in trailers, which tapes do not have")
        else:
            if taken.has_trailers:
                tell(report.unrecorded, f"{what}: the trailers of its answer")
            self._tapes.take(method, taken)


# --- values ----------------------------------------------------------------------------------------------------------
def _taken(exchange: Exchange, *, is_recorded: bool) -> _Taken:
    authority, scheme = exchange.authority, exchange.scheme
    assert authority is not None
    uri = (
        f"{scheme.decode()}://{authority.host_field(_PORTS[scheme]).decode()}{exchange.request.path.decode('latin-1')}"
    )
    return _Taken(
        uri, Fields(exchange.request.fields.block), datetime.now(UTC), monotonic(), is_recorded,
        is_asked=exchange.request.body == 0,
    )  # fmt: skip


def _has_room(taken: _Taken, data: bytes) -> bool:
    taken.size += len(data)
    return taken.size <= MAX_BODY


def _headers(fields: Fields) -> Headers:
    return [(name.decode("latin-1").lower(), _text(value)) for name, value in fields]


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _decoded(body: bytes, fields: Fields) -> bytes | None:
    """The body without its content coding; None where it has one that cannot be undone."""
    coding = coding_of(fields)
    if not coding or not body:
        return body
    try:
        return ContentDecoder(coding).decode(body, last=True) if is_readable(coding) else None
    except Undecodable:
        return None


def interaction_of(method: str, taken: _Taken, took: float) -> Interaction:
    """The exchange as a tape has it, not yet masked. Raises _Unrecordable."""
    fields = taken.response_fields
    assert fields is not None
    request = _decoded(b"".join(taken.request), taken.request_fields)
    response = _decoded(b"".join(data for _, data in taken.response), fields)
    if request is None or response is None:
        raise _Unrecordable("a body has a coding that cannot be undone, so that it cannot be masked")
    if taken.status > 599:
        raise _Unrecordable(f"its status is {taken.status}")
    coding, headers = coding_of(fields).decode(), _kept(fields)
    if method == "HEAD" and (length := fields.get(b"content-length")):
        if int(length) > _MAX_LENGTH:
            raise _Unrecordable(f"its Content-Length is {length.decode()}, and a replay can say {_MAX_LENGTH} at most")
        headers.append(("content-length", length.decode()))
    events: tuple[float, ...] = ()
    if response and media_type(headers) == EVENTS:
        events = event_times(response, [(took, response)] if coding else taken.response)
    return Interaction(
        method, taken.uri, _kept(taken.request_fields), request, taken.status, taken.phrase, headers, response,
        f"{taken.began:%Y-%m-%dT%H:%M:%SZ}", took, coding, events,
        is_open=taken.has_body and not taken.has_ended and method == "GET",
    )  # fmt: skip


def _kept(fields: Fields) -> Headers:
    return [each for each in _headers(fields) if each[0] not in _DROPPED | _DIGESTS]


def event_times(body: bytes, pieces: Sequence[tuple[float, bytes]]) -> tuple[float, ...]:
    """When each event of a stream was complete: the time of the piece with its end."""
    came = list(accumulate(len(data) for _, data in pieces))
    return tuple(pieces[bisect_left(came, end)][0] for end in ends_of_events(body))


def ends_of_events(body: bytes) -> list[int]:
    """Behind the blank line of each event, and at the end."""
    return sorted({*(found.end() for found in re.finditer(rb"\r?\n\r?\n", body)), len(body)} - {0})


def response_of(recorded: Interaction, request: Fields) -> LocalResponse:
    """The recorded response, in its coding if this client takes that."""
    dropped = _OURS - (set() if recorded.coding else {"content-encoding"})
    fields = [(name.encode(), value.encode()) for name, value in recorded.headers if name.lower() not in dropped]
    body, coding, is_head = recorded.body, recorded.coding.encode(), recorded.method == "HEAD"
    if is_head:  # its body is not sent: the gateway says the length
        length = value_of(recorded.headers, "content-length")
        body = bytes(min(int(length), _MAX_LENGTH) if length.isdecimal() and len(length) < 20 else 0)
    accepted = b",".join(request.get_all(b"accept-encoding")).lower().split(b",")
    if (body or is_head) and coding in CODINGS and coding in [each.partition(b";")[0].strip() for each in accepted]:
        body = body if is_head else new_encoder(coding).encode(body, last=True)
        fields.append((b"content-encoding", coding))
    return LocalResponse(recorded.status, tuple(fields), body, recorded.phrase.encode("latin-1", "replace"))


async def _ticket(played: Interaction, player: Player) -> bytes:
    """For a stream that the player sends."""
    parts = (played.body[begin:end] for begin, end in pairwise((0, *ends_of_events(played.body))))
    times = chain(played.events, repeat(played.events[-1] if played.events else 0.0))
    return await player.ticket(replace(response_of(played, Fields()), body=b""), [*zip(times, parts, strict=False)])
