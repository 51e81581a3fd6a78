"""TapeFilter: records what clients ask and get, and answers from tapes. A Python filter of manifests that `tapes.Run`
makes; no other gateway imports it.

It stands behind the other filters of the route: a tape has what clients are sent. Bodies pass unchanged. Masking and
files are the work of one thread, which ends with the filter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Final

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from egressproxy.filters import BodyMode, Exchange, Filter, FilterContext, LocalResponse, Phase, Rejected
from egressproxy.filters.base import OfMessages
from egressproxy.filters.content_coding import CODINGS, ContentDecoder, Undecodable, coding_of, is_readable, new_encoder
from egressproxy.model.exchange import StateSlot
from egressproxy.model.fields import Fields
from egressproxy.tapes import Report, write_report
from egressproxy.tapes.masking import Masker
from egressproxy.tapes.matching import Asked, Library, Recording, Rules
from egressproxy.tapes.player import TICKET, Player
from egressproxy.tapes.tape import (
    Headers,
    Interaction,
    TapeError,
    file_name,
    media_type,
    parsed_entries,
    read,
    read_folder,
    write,
    written,
)  # fmt: skip

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


class TapeConfig(BaseModel):
    """As `Run.extension` writes it: folders, "" for none, and the file of the report."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)

    record_to: str = ""
    replay_from: str = ""
    strict: bool = False
    player_port: int = 0
    ignore_body: list[str] = []
    ignore_query: list[str] = []
    report: str


@dataclass(slots=True, eq=False)
class _Taken:
    """What has been seen of one exchange. `size`: bytes of both bodies."""

    uri: str
    request_fields: Fields
    began: datetime
    started_at: float
    is_recorded: bool
    request: list[bytes] = field(default_factory=list)
    response: list[bytes] = field(default_factory=list)
    response_fields: Fields | None = None
    status: int = 0
    phrase: str = ""
    head_at: float = 0.0
    pieces: list[tuple[float, int]] = field(default_factory=list)  # seconds behind the head, bytes until then
    size: int = 0
    has_body: bool = False
    has_ended: bool = False


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
        self._written: dict[str, list[str]] = {}
        self._unwritten: set[str] = set()
        self._next_at = 0.0
        self._lock = Lock()
        self._recorded_by = Masker()  # of the thread
        self._thread: ThreadPoolExecutor | None = None

    @property
    def is_recording(self) -> bool:
        return bool(self.config.record_to)

    def tell(self, entries: list[str], entry: str) -> None:
        """Add a line to the report."""
        if entry not in entries and len(entries) < _MAX_TOLD:
            entries.append(entry)

    # --- recording ---------------------------------------------------------------------------------------------------
    def take(self, method: str, taken: _Taken) -> None:
        """Write this exchange onto its tape, in the thread."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "tapes")
        took = monotonic() - taken.started_at
        self._thread.submit(self._record, method, taken, took)

    def _record(self, method: str, taken: _Taken, took: float) -> None:
        try:
            found = self._recorded_by.interaction(interaction_of(method, taken, took))
            name = file_name(found.uri)
            with self._lock:
                self._entries_of(name).append(written(found.readable()))
                self._unwritten.add(name)
                self.report.recorded += 1
                if monotonic() >= self._next_at:
                    self._write()
        except Exception as error:  # the exchange itself went well
            self.tell(self.report.unrecorded, f"{method} {file_name(taken.uri)}: {type(error).__name__}")
            log.warning("an exchange with %s is not on tape: %s", file_name(taken.uri), type(error).__name__)

    def _entries_of(self, name: str) -> list[str]:
        """Those of this file. A replay adds to what is there; a recording replaces it."""
        found = self._written.get(name)
        if found is None:
            path = Path(self.config.record_to) / name
            is_kept = self.config.replay_from and path.exists()
            found = self._written[name] = [written(each) for each in read(path)] if is_kept else []
        return found

    def _write(self) -> None:
        began = monotonic()
        folder = Path(self.config.record_to)
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(self._unwritten):
            write(folder / name, self._written[name])
            self.report.files.append(str(folder / name))
        self.report.files = sorted(set(self.report.files))
        self._unwritten.clear()
        now = monotonic()
        self._next_at = now + max(_WRITTEN_S, _PART * (now - began))

    def _mask_again(self) -> None:
        """Mask credentials in exchanges from before their first use as such."""
        for name, entries in self._written.items():
            if self._recorded_by.has_known("".join(entries)):
                found = parsed_entries(entries, Path(name))
                self._written[name] = [written(self._recorded_by.interaction(each).readable()) for each in found]
                self._unwritten.add(name)

    # --- the end -----------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """The last filter has ended: write what is not on disk."""
        if self.player is not None:
            self.player.close()
        if self._thread is not None:
            self._thread.shutdown()
        try:
            self._mask_again()
            if self._unwritten:
                self._write()
        except OSError as error:
            log.error("tapes cannot be written: %s: %s", error.filename, error.strerror)
            self.tell(self.report.unrecorded, f"{error.filename}: {error.strerror}")
            self.report.has_failed = True
        if self.library is not None:
            self.report.unplayed = [each.interaction.title for each in self.library.unplayed()]
        try:
            write_report(Path(self.config.report), self.report)
        except OSError as error:
            log.error("the report on tapes cannot be written: %s: %s", error.filename, error.strerror)


#: By the file of the report: several Gateways share the tapes of their run.
_RUNS: Final[dict[str, _Tapes]] = {}


class TapeFilter(Filter):
    only_reads = True
    ignores_trailers = True
    waits_for_people = True  # a stream that the client ends has no time limit
    of_messages = OfMessages.HEAD
    max_buffer_bytes = MAX_REQUEST
    runs_in = frozenset((Phase.REQUEST_HEADERS, Phase.REQUEST_BODY, Phase.RESPONSE_HEADERS, Phase.RESPONSE_BODY))

    def __init__(self, context: FilterContext) -> None:
        config: TapeConfig = context.config
        tapes = _RUNS.get(config.report)
        if tapes is None:
            try:
                tapes = _RUNS[config.report] = _Tapes(config)
            except TapeError as error:
                raise Rejected(str(error)) from None
        self._tapes = tapes
        tapes.opened += 1

    def close(self) -> None:
        self._tapes.opened -= 1
        if not self._tapes.opened:
            del _RUNS[self._tapes.config.report]
            self._tapes.close()

    # --- requests ----------------------------------------------------------------------------------------------------
    def request_headers(self, exchange: Exchange) -> LocalResponse | Awaitable[LocalResponse | None] | None:
        """Answers a request without a body from the tapes. Raises Rejected for other requests of a strict run."""
        if exchange.is_tunnel:
            self._pass_unseen(f"a tunnel to {exchange.authority}", "its TLS is not opened")
            return None
        taken = _taken(exchange, is_recorded=self._tapes.is_recording)
        if exchange.request.upgrade:
            uri = self._tapes.masker.uri(taken.uri)
            self._pass_unseen(f"{exchange.request.upgrade.decode('latin-1')} of {uri}", "tapes have HTTP alone")
            return None
        exchange.keep(_TAKEN, taken)
        return self._answer(exchange, taken, b"") if exchange.request.body == 0 else None

    def _pass_unseen(self, what: str, why: str) -> None:
        if self._tapes.config.strict:
            self._tapes.tell(self._tapes.report.missing, f"{what}: {why}")
            raise Rejected(f"{what} is not on tape: {why}", remedy="replay without --strict to let it pass")
        self._tapes.tell(self._tapes.report.unrecorded, f"{what}: {why}")

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        """Whole, if it is compared with tapes; in pieces, if it is recorded."""
        taken = _of(exchange)
        if taken is None:
            return None
        if phase is Phase.REQUEST_BODY and self._tapes.library is not None:
            return BodyMode.BUFFER
        return BodyMode.STREAM if taken.is_recorded else None

    def held_bytes(self, exchange: Exchange, phase: Phase) -> int:
        return 0  # a recording must not make clients wait

    def request_body(
        self, exchange: Exchange, data: bytes, last: bool
    ) -> bytes | LocalResponse | Awaitable[bytes | LocalResponse]:
        """As `request_headers`, for a request with a body."""
        taken = _of(exchange)
        if taken is None:
            return data
        self._keep(taken, taken.request, data)
        if self._tapes.library is None:
            return data
        body = _decoded(data, taken.request_fields)
        answer = self._answer(exchange, taken, data if body is None else body)
        if answer is None or isinstance(answer, LocalResponse):
            return data if answer is None else answer
        return _or_data(answer, data)

    def _answer(
        self, exchange: Exchange, taken: _Taken, body: bytes
    ) -> LocalResponse | Awaitable[LocalResponse | None] | None:
        tapes = self._tapes
        if tapes.library is None:
            return None
        method = exchange.method.decode("latin-1")
        uri, headers, body = tapes.masker.request(taken.uri, _headers(taken.request_fields), body)
        asked = Asked.of(tapes.library.rules, method, uri, headers, body)
        found = tapes.library.find(asked)
        if found is None:
            why = tapes.library.why_missing(asked)
            tapes.tell(tapes.report.missing, f"{method} {uri}: {why}")
            if tapes.config.strict:
                raise Rejected(
                    f"not in the tapes: {why}",
                    remedy="record it (--record), or let requests differ there (--ignore-body, --ignore-query)",
                )
            return None
        taken.is_recorded = False
        tapes.report.played += 1
        if tapes.player is not None and found.interaction.is_stream and found.interaction.body:
            return self._sent_on(exchange, found, tapes.player)
        is_over = found.played > 1 or not found.interaction.body
        return _never() if found.interaction.is_open and is_over else response_of(found, taken.request_fields)

    async def _sent_on(self, exchange: Exchange, found: Recording, player: Player) -> None:
        """Have the player send this stream."""
        body, times = found.interaction.body, found.interaction.events
        ends = ends_of_events(body)
        pieces = [
            (times[at] if at < len(times) else times[-1] if times else 0.0, body[begin:end])
            for at, (begin, end) in enumerate(zip((0, *ends), ends, strict=False))
        ]
        answer = replace(response_of(found, Fields()), body=b"")
        exchange.request.fields.set(TICKET, await player.ticket(answer, pieces))

    # --- responses ---------------------------------------------------------------------------------------------------
    def response_headers(self, exchange: Exchange) -> None:
        taken = _of(exchange)
        if taken is not None and taken.is_recorded:
            head = exchange.response
            taken.status, taken.phrase = head.status, head.phrase.decode("latin-1")
            taken.response_fields = Fields(head.fields.block)
            taken.head_at = monotonic()

    def response_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes:
        taken = _of(exchange)
        if taken is not None and taken.is_recorded:
            self._keep(taken, taken.response, data)
            taken.has_body, taken.has_ended = True, last
            if data:
                before = taken.pieces[-1][1] if taken.pieces else 0
                taken.pieces.append((monotonic() - taken.head_at, before + len(data)))
        return data

    def _keep(self, taken: _Taken, pieces: list[bytes], data: bytes) -> None:
        taken.size += len(data)
        if taken.size <= MAX_BODY:
            pieces.append(data)

    def complete(self, exchange: Exchange) -> None:
        taken = _of(exchange)
        if taken is None or not taken.is_recorded:
            return
        method = exchange.method.decode("latin-1")
        what = f"{method} {self._tapes.masker.uri(taken.uri)}"
        is_events = taken.response_fields is not None and _is_events(taken.response_fields)
        if taken.response_fields is None:
            self._tapes.tell(self._tapes.report.unrecorded, f"{what}: it has no answer ({exchange.reason.value})")
        elif taken.size > MAX_BODY:
            self._tapes.tell(self._tapes.report.unrecorded, f"{what}: its bodies have more than {MAX_BODY >> 20} MiB")
        elif taken.has_body and not taken.has_ended and not is_events:
            self._tapes.tell(self._tapes.report.unrecorded, f"{what}: its answer broke off")
        else:
            self._tapes.take(method, taken)


# --- values ----------------------------------------------------------------------------------------------------------
def _taken(exchange: Exchange, *, is_recorded: bool) -> _Taken:
    authority, scheme = exchange.authority, exchange.scheme
    assert authority is not None
    host = f"[{authority.host}]" if ":" in authority.host else authority.host
    port = "" if authority.port == _PORTS.get(scheme) else f":{authority.port}"
    uri = f"{scheme.decode()}://{host}{port}{exchange.request.path.decode('latin-1')}"
    return _Taken(uri, Fields(exchange.request.fields.block), datetime.now(UTC), monotonic(), is_recorded)


def _of(exchange: Exchange) -> _Taken | None:
    return exchange.state.get(_TAKEN)


def _is_events(fields: Fields) -> bool:
    return media_type(_headers(fields)) == "text/event-stream"


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
    if not coding:
        return body
    if not is_readable(coding):
        return None
    try:
        return ContentDecoder(coding).decode(body, last=True)
    except Undecodable:
        return None


def interaction_of(method: str, taken: _Taken, took: float) -> Interaction:
    """The exchange as a tape has it, not yet masked."""
    fields = taken.response_fields
    assert fields is not None
    asked, answered = b"".join(taken.request), b"".join(taken.response)
    request, response = _decoded(asked, taken.request_fields), _decoded(answered, fields)
    coding = coding_of(fields) if response is not None else b""
    events: tuple[float, ...] = ()
    if _is_events(fields) and response is not None:
        events = event_times(response, taken.pieces if not coding else [(took, len(response))])
    is_open = taken.has_body and not taken.has_ended and method == "GET"
    return Interaction(
        method,
        taken.uri,
        _kept(taken.request_fields, keeps_coding=request is None),
        asked if request is None else request,
        taken.status,
        taken.phrase,
        _kept(fields, keeps_coding=response is None),
        answered if response is None else response,
        f"{taken.began:%Y-%m-%dT%H:%M:%SZ}",
        took,
        coding.decode(),
        events,
        is_open,
    )


def _kept(fields: Fields, *, keeps_coding: bool) -> Headers:
    dropped = (_DROPPED | _DIGESTS) - ({"content-encoding"} if keeps_coding else set())
    return [each for each in _headers(fields) if each[0] not in dropped]


def event_times(body: bytes, pieces: list[tuple[float, int]]) -> tuple[float, ...]:
    """When each event of a stream was complete: the time of the piece with its end."""
    times, at = list[float](), 0
    for end in ends_of_events(body):
        while at < len(pieces) - 1 and pieces[at][1] < end:
            at += 1
        times.append(pieces[at][0] if pieces else 0.0)
    return tuple(times)


def ends_of_events(body: bytes) -> list[int]:
    """Behind the blank line of each event, and at the end."""
    ends, at = list[int](), 0
    plain = body.replace(b"\r\n", b"\0\n")  # of the same length
    while (found := min((i for i in (plain.find(b"\n\n", at), plain.find(b"\n\0\n", at)) if i >= 0), default=-1)) >= 0:
        at = found + (2 if plain[found + 1 : found + 2] == b"\n" else 3)
        ends.append(at)
    if at < len(body):
        ends.append(len(body))
    return ends


def response_of(found: Recording, request: Fields) -> LocalResponse:
    """The recorded response, in its coding if this client takes that."""
    recorded = found.interaction
    fields = [
        (name.encode("latin-1"), value.encode())
        for name, value in recorded.headers
        if name.lower() not in _OURS - ({"content-encoding"} if not recorded.coding else set())
    ]
    body, coding = recorded.body, recorded.coding.encode()
    accepted = b",".join(request.get_all(b"accept-encoding")).lower()
    if body and coding in CODINGS and coding in [each.partition(b";")[0].strip() for each in accepted.split(b",")]:
        body = new_encoder(coding).encode(body, last=True)
        fields.append((b"content-encoding", coding))
    return LocalResponse(recorded.status, tuple(fields), body, recorded.phrase.encode("latin-1", "replace"))


async def _or_data(answer: Awaitable[LocalResponse | None], data: bytes) -> bytes | LocalResponse:
    return await answer or data


async def _never() -> None:
    """Wait for the client to leave: nothing more came on this stream."""
    await asyncio.get_running_loop().create_future()
