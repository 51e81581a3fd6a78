"""/live: who gets which lines, and what is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from egressproxy.admin import live
from egressproxy.admin.live import MAX_READERS, LiveFilter, LiveReader, sift
from egressproxy.admin.server import AdminServer
from egressproxy.admin.write_access import WriteAccess
from tests.admin.kit import State as PlainState
from tests.admin.kit import admin_server, ask

LINE = {"namespace": "a", "service_account": "w", "authority": "API.example:443", "status": 403, "route": "-",
        "backend": "-", "reason": "destination_not_allowed"}  # fmt: skip


def line(**values: Any) -> bytes:
    return json.dumps({**LINE, **values}, separators=(",", ":")).encode()


def answer(*lines: bytes, lost: int = 0) -> bytes:
    return b"".join(each + b"\n" for each in (b"%d" % lost, *lines))


def seen(query: str, *lines: bytes, room: int = 9, lost: int = 0) -> tuple[int, int]:
    """How many of these lines a reader gets, and how many it loses."""
    wanted = LiveFilter.of(tuple(each.split("=")) for each in query.split("&") if each)  # type: ignore[misc]
    ((found, lost),) = sift([answer(*lines, lost=lost)], [(wanted, room)])
    return len(found), lost


@pytest.mark.parametrize(
    ("query", "matches"),
    [
        ("", 1), ("denied=1", 1), ("denied=0", 1), ("namespace=a", 1), ("namespace=b", 0), ("service_account=w", 1),
        ("host=api.EX", 1), ("host=other", 0), ("reason=destination_not_allowed", 1), ("reason=-", 0),
        ("status=403", 1), ("status=4xx", 1), ("status=404", 0), ("status=2xx", 0), ("route=-&backend=-", 1),
        ("route=-&backend=x", 0), ("namespace=a&status=5xx", 0),
    ],
)  # fmt: skip
def test_a_reader_gets_the_lines_that_all_its_filters_let_through(query: str, matches: int):
    assert seen(query, line()) == (matches, 0)


def test_what_ended_well_is_no_denial_nor_is_a_failure():
    assert seen("denied=1", line(reason="-"), line(reason="upstream_timeout"), line(reason="request_rate")) == (1, 0)


@pytest.mark.parametrize(
    "query",
    [
        "status=4",
        "status=999",
        "status=x04",
        "limit=0",
        "limit=1001",
        "limit=x",
        "limit=0000001009999",
        "denied=yes",
        "a=b",
        "host=a&host=b",
    ],
)
def test_a_question_that_is_none_is_refused(query: str):
    with pytest.raises(ValueError, match=r"\bis\b|has to be"):
        seen(query)


def test_more_than_there_is_room_for_is_lost_and_what_is_filtered_out_is_not():
    assert seen("", line(), line(), line(), room=2) == (2, 1)
    assert seen("namespace=b", line(), line(), line(namespace="b"), room=1) == (1, 0)
    assert seen("host=x", line(), room=0) == (0, 1)  # nobody has looked whether it would match
    assert seen("", line(), lost=4) == (1, 4)


def test_only_so_many_lines_are_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "MAX_READ", 2)
    assert seen("", line(), line(), line()) == (2, 1)


def test_a_line_that_is_no_json_is_not_shown():
    forged = b'{"path":"\r","a":1}\rdata: {"x":1}\r\r'
    assert seen("", forged, b"event: x", line()) == (1, 0)


def test_a_slow_reader_is_told_what_it_lost(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "MAX_WAITING", 10)
    reader = LiveReader(LiveFilter())
    reader.put([b"12345678", b"12345678", b"12345678"], 2)
    assert reader.take() == b'1234567812345678event: lost\ndata: {"lost": 3}\n\n'
    assert reader.take() == b""


def test_room_comes_back_with_time_up_to_a_second_of_it():
    reader = LiveReader(LiveFilter(limit=4))
    now = live.monotonic()
    reader.put([b"x"] * 4, 0)
    assert [reader.room(now + s) for s in (0.0, 0.5, 0.75, 60.0)] == [0, 2, 3, 4]


class State(PlainState):
    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.next: list[bytes] = []

    async def ask_some(self, name: str, *_: object) -> Sequence[bytes]:
        assert name == "live_lines"
        self.asked += 1
        lines, self.next = self.next, []
        return [answer(*lines)]


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setattr(live, "ASK_S", 0.01)
    return State()


async def begin(
    admin: AdminServer, query: str = "", extra: str = ""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(admin.host, admin.port)
    writer.write(f"GET /live{query} HTTP/1.1\r\nHost: localhost\r\n{extra}\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    assert b"text/event-stream" in head
    assert b"Cross-Origin-Resource-Policy: same-origin" in head
    await asyncio.wait_for(reader.readuntil(b": live\n\n"), 5)
    return reader, writer


async def test_a_reader_sees_what_ends_and_workers_are_asked_while_there_is_one(admin: AdminServer, state: State):
    state.next = [line(namespace="before")]
    reader, writer = await begin(admin, "?namespace=a")
    state.next = [line(), line(namespace="b"), line(status=200)]
    event = await asyncio.wait_for(reader.readuntil(b"200"), 5)
    assert [each.partition(b"\n")[0] for each in event.split(b"id: ")[1:]] == [b"1", b"2"]
    assert b"before" not in event
    writer.close()
    asked = -1
    while asked != state.asked:  # until nobody asks
        asked = state.asked
        await asyncio.sleep(0.05)
    reader, writer = await begin(admin)
    assert state.asked > asked
    writer.close()


async def test_there_are_eight_readers_and_one_that_leaves_makes_room(admin: AdminServer):
    writers = [(await begin(admin))[1] for _ in range(MAX_READERS)]
    refused = await ask(admin, "/live")
    assert (refused.status, refused.fields["retry-after"]) == (503, "5")
    writers.pop().close()
    while True:
        await asyncio.sleep(0.01)
        probe = await ask(admin, "/live", "HEAD")
        if probe.status == 200:
            break
    admin.end_watches()
    assert (await ask(admin, "/live")).status == 503
    for each in writers:
        each.close()


async def test_a_stream_ends_with_the_token_of_its_reader(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(live, "CHECK_S", 0.0)
    file = tmp_path / "token"
    file.write_text("0123456789abcdef")
    admin = admin_server(state, "0.0.0.0", access=WriteAccess(file))
    await admin.start()
    admin.host = "127.0.0.1"
    reader, writer = await begin(admin, extra="Authorization: Bearer 0123456789abcdef\r\n")
    file.write_text("fedcba9876543210")
    state.next = [line()]
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 5)).count(b"event: exchange") <= 1
    writer.close()
    await admin.stop()


async def test_a_question_that_is_none_is_a_400(admin: AdminServer):
    refused = await ask(admin, "/live?status=teapot")
    assert (refused.status, refused.json()["message"]) == (
        400, "status 'teapot' is neither a status such as 403 nor a class such as 4xx",
    )  # fmt: skip


@pytest.mark.parametrize("odd", [line(status=""), b'{"a":' + b"[" * 100_000], ids=["empty", "deep"])
def test_an_odd_field_of_a_filter_stops_no_reader(odd: bytes):
    assert seen("status=403", odd, line()) == (1, 0)
