"""Every line is one JSON object with the promised keys, and no reader of the log can stop the loop."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.errors import Reason
from egressproxy.model.authority import parse_authority
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.telemetry.access_log import FLAGS, AccessLog
from tests.support.waiting import WAIT_S, wait_until

KEYS = [
    "time",
    "kind",
    "gateway",
    "listener",
    "route",
    "backend",
    "namespace",
    "service_account",
    "client",
    "method",
    "authority",
    "path",
    "status",
    "reason",
    "flags",
    "upstream",
    "bytes_in",
    "bytes_out",
    "duration_ms",
    "request_id",
]


def exchange(**fields: Any) -> Exchange:
    x = Exchange("192.0.2.1:5000", "default/gw", "forward", 100.0)
    x.started_wall = 1_700_000_000.25
    x.ended_at = 100.125
    x.status = 200
    x.method = b"GET"
    x.path = b"/v1/models"
    x.authority = parse_authority(b"api.example.com:443")
    x.route, x.backend, x.upstream, x.request_id = "default/r", "default/b", "203.0.113.7:443", "abc-1"
    x.bytes_in, x.bytes_out = 120, 3000
    for name, value in fields.items():
        setattr(x, name, value)
    return x


def logged(path: Path, *exchanges: Exchange) -> list[dict[str, Any]]:
    log = AccessLog(str(path))
    for x in exchanges:
        log.record(x)
    log.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("more", [{}, {"detail": "x"}])
def test_the_status_of_a_call(tmp_path: Path, more: dict[str, str]):
    called, other = logged(tmp_path / "log", exchange(grpc_status=14, **more), exchange(**more))
    assert called.pop("grpc_status") == "UNAVAILABLE"
    assert called == other


@pytest.mark.parametrize("more", [{}, {"detail": "x"}])
def test_who_a_known_client_is(tmp_path: Path, more: dict[str, str]):
    who = CallerIdentity(
        name="https://login.test#one", source="token", groups=("staff",), claims=(("mail", "a@b.test"),)
    )
    (line,) = logged(tmp_path / "log", exchange(identity=who, **more))
    assert (line["identity"], line["identity_source"]) == ("https://login.test#one", "token")
    assert "staff" not in str(line)
    assert "a@b.test" not in str(line)


def test_a_line_has_the_promised_keys_and_values(tmp_path: Path):
    (line,) = logged(tmp_path / "log", exchange(identity=CallerIdentity("team", "builder")))
    assert list(line) == KEYS
    assert line == {
        "time": "2023-11-14T22:13:20.250Z",
        "kind": "request",
        "gateway": "default/gw",
        "listener": "forward",
        "route": "default/r",
        "backend": "default/b",
        "namespace": "team",
        "service_account": "builder",
        "client": "192.0.2.1:5000",
        "method": "GET",
        "authority": "api.example.com:443",
        "path": "/v1/models",
        "status": 200,
        "reason": "-",
        "flags": "-",
        "upstream": "203.0.113.7:443",
        "bytes_in": 120,
        "bytes_out": 3000,
        "duration_ms": 125.0,
        "request_id": "abc-1",
    }


def test_a_clean_line_takes_the_quick_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(AccessLog, "_values", lambda _log, _x: pytest.fail("the slow way"))
    clean = [exchange(), exchange(authority=parse_authority(b"[2001:db8::1]:443"), method=b"PATCH")]
    lines = logged(tmp_path / "log", *clean)
    assert [line["authority"] for line in lines] == ["api.example.com:443", "[2001:db8::1]:443"]


def test_both_ways_make_the_same_line(tmp_path: Path):
    log = AccessLog("off")
    for x in (exchange(), exchange(authority=None, upstream="", request_id="")):
        assert json.loads(log._plain(x)) == log._values(x)
        assert list(json.loads(log._plain(x))) == list(log._values(x)) == KEYS


def test_a_denial_says_why_and_by_whom(tmp_path: Path):
    x = exchange(
        status=403, reason=Reason.DESTINATION_DENIED, denied=True, rule="EgressPolicy default/p", detail='deny[0] "x"\n'
    )
    (line,) = logged(tmp_path / "log", x)
    assert list(line) == [*KEYS, "rule", "detail"]
    assert (line["reason"], line["rule"], line["detail"]) == (
        "destination_denied",
        "EgressPolicy default/p",
        'deny[0] "x"\n',
    )


def test_report_mode_says_what_would_have_been_denied(tmp_path: Path):
    (line,) = logged(tmp_path / "log", exchange(would_deny=[Reason.DESTINATION_NOT_ALLOWED]))
    assert line["would_deny"] == ["destination_not_allowed"]
    assert line["status"] == 200


def test_a_failure_carries_envoys_flag_and_a_lost_client_is_499(tmp_path: Path):
    lines = logged(
        tmp_path / "log",
        exchange(status=503, reason=Reason.CONNECT_REFUSED),
        exchange(status=0, reason=Reason.CLIENT_GONE),
    )
    assert [(line["status"], line["flags"]) for line in lines] == [(503, "UF"), (499, "DC")]


def test_a_query_is_never_logged_even_if_it_is_handed_over(tmp_path: Path):
    lines = logged(
        tmp_path / "log",
        exchange(path=b"/a?api_key=QSECRET"),
        exchange(path=b"/a?api_key=QSECRET", status=502, reason=Reason.UPSTREAM_RESET),
    )
    assert [line["path"] for line in lines] == ["/a", "/a"]
    assert "QSECRET" not in (tmp_path / "log").read_text()


@given(
    path=st.binary(max_size=40),
    method=st.binary(max_size=10),
    request_id=st.text(max_size=20),
    namespace=st.text(max_size=20),
    detail=st.text(max_size=20),
    route=st.text(max_size=10),
)
def test_no_value_can_break_a_line(
    path: bytes,
    method: bytes,
    request_id: str,
    namespace: str,
    detail: str,
    route: str,
):
    log = AccessLog("off")
    x = exchange(path=path, method=method, request_id=request_id, identity=CallerIdentity(namespace, "sa"), route="r")
    for line in (log._plain(x), log._explained(exchange(detail=detail, route=route, path=path))):
        assert line.endswith("\n")
        assert len(line.splitlines()) == 1
        assert json.loads(line.encode("utf-8", "backslashreplace"))
    made = json.loads(log._plain(x))
    assert made["path"] == path.partition(b"?")[0].decode("latin-1")
    assert made["namespace"] == namespace


def test_a_quotation_mark_cannot_forge_a_field(tmp_path: Path):
    (line,) = logged(tmp_path / "log", exchange(path=b'/","status":200,"x":"'))
    assert line["path"] == '/","status":200,"x":"'
    assert line["status"] == 200
    assert "x" not in line


def test_long_texts_are_cut(tmp_path: Path):
    (line,) = logged(tmp_path / "log", exchange(path=b"/" + b"a" * 100_000))
    assert len(line["path"]) == 8192


async def test_lines_are_written_without_being_asked():
    reading, writing = os.pipe()
    log = AccessLog(writing)
    log.record(exchange())
    log.record(exchange())
    data = await asyncio.wait_for(asyncio.to_thread(os.read, reading, 65536), WAIT_S)
    assert data.count(b"\n") == 2
    log.close()
    assert log.written == 2
    os.close(reading)
    os.close(writing)


def test_a_reader_that_stops_reading_stops_nothing_and_what_is_lost_is_counted():
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    log = AccessLog(writing, max_waiting_bytes=64 * 1024)
    started = time.monotonic()
    for number in range(3000):
        log.record(exchange(request_id=str(number)))
        if number % 20 == 0:
            log.flush()
    log.flush()
    assert time.monotonic() - started < WAIT_S, "it waited for the reader"
    assert log.dropped > 1000
    log.close(timeout_s=0.05)
    os.close(reading)
    log._writer._thread.join(WAIT_S)  # the reader is gone for good: the rest cannot be written
    assert log.written + log.dropped == 3000
    os.close(writing)


def test_what_waits_is_written_when_the_reader_comes_back():
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)  # a parent that shares the pipe may have done so
    log = AccessLog(writing)
    for number in range(100):
        log.record(exchange(request_id=str(number)))
    log.flush()
    data = b""
    while data.count(b"\n") < 100:
        data += os.read(reading, 4096)
    log.close()
    assert [json.loads(line)["request_id"] for line in data.splitlines()] == [str(number) for number in range(100)]
    assert log.dropped == 0
    os.close(reading)
    os.close(writing)


def test_a_full_disk_costs_lines_and_nothing_else(caplog: pytest.LogCaptureFixture):
    log = AccessLog("/dev/full")
    for _ in range(3):
        log.record(exchange())
        log.flush()
    log.close()
    assert log.dropped == 3
    assert errno.errorcode[errno.ENOSPC] in caplog.text
    assert caplog.text.count("cannot be written") == 1


def test_reopen_follows_a_rotated_file(tmp_path: Path):
    path = tmp_path / "log"
    log = AccessLog(str(path))
    log.record(exchange(request_id="before"))
    path.rename(tmp_path / "log.1")
    log.reopen()
    log.flush()
    wait_until(path.exists)
    log.record(exchange(request_id="after"))
    log.close()
    assert "before" in (tmp_path / "log.1").read_text()
    assert [json.loads(line)["request_id"] for line in path.read_text().splitlines()] == ["after"]


def test_reopen_keeps_the_old_file_where_a_new_one_is_not_possible(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = tmp_path / "logs"
    folder.mkdir()
    log = AccessLog(str(folder / "log"))
    moved = tmp_path / "moved"
    folder.rename(moved)
    log.reopen()
    log.record(exchange())
    log.close()
    assert len((moved / "log").read_text().splitlines()) == 1
    assert log.dropped == 0
    assert f"{folder / 'log'} cannot be opened again: No such file or directory; the old file goes on" in caplog.text
    assert "dropped" not in caplog.text


def test_a_path_that_cannot_be_opened_fails_at_once(tmp_path: Path):
    with pytest.raises(OSError, match="missing"):
        AccessLog(str(tmp_path / "missing" / "log"))


def test_off_writes_nothing():
    log = AccessLog("off")
    log.record(exchange())
    log.reopen()
    log.close()
    assert (log.written, log.dropped) == (0, 0)


def test_a_flood_of_denials_is_cut_off_for_the_rest_of_its_second(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    denied = {"status": 403, "reason": Reason.DESTINATION_DENIED, "denied": True}
    log = AccessLog(str(tmp_path / "log"), max_denials_per_s=10)
    for number in range(25):
        log.record(exchange(ended_at=100.5, client=f"10.0.0.{number}:1", **denied))
    log.record(exchange(ended_at=100.6))
    assert log.suppressed == 15
    log.record(exchange(ended_at=101.0, **denied))
    log.close()
    assert len((tmp_path / "log").read_text().splitlines()) == 12
    assert "25 denials in one second, 15 of them not logged" in caplog.text


def test_a_flood_of_denials_of_one_client_hides_none_of_others(tmp_path):
    denied = {"denied": True, "reason": Reason.DESTINATION_DENIED, "status": 403}
    log = AccessLog(str(tmp_path / "log"), max_denials_per_s=8)
    for port in range(50):
        log.record(exchange(ended_at=100.5, client=f"10.0.0.66:{port}", **denied))
    for _ in range(2):
        log.record(exchange(ended_at=100.6, client="10.0.0.7:1", **denied))
    log.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert sum("10.0.0.66" in line for line in lines) == 6
    assert sum("10.0.0.7:" in line for line in lines) == 2
    assert log.suppressed == 44


@pytest.mark.parametrize(
    ("reason", "flag"),
    [
        (Reason.OK, ""),
        (Reason.DESTINATION_NOT_ALLOWED, ""),
        (Reason.NO_ROUTE, "NR"),
        (Reason.CONNECT_REFUSED, "UF"),
        (Reason.RESPONSE_TIMEOUT, "UT"),
        (Reason.CLIENT_GONE, "DC"),
        (Reason.DNS_NXDOMAIN, "DF"),
        (Reason.REQUEST_RATE, "RL"),
        (Reason.BAD_FRAMING, "DPE"),
        (Reason.BAD_RESPONSE, "UPE"),
        (Reason.NO_ENDPOINT, "UH"),
        (Reason.CONCURRENCY, "UO"),
    ],
)
def test_a_reason_has_the_flag_that_envoy_would_log(reason: Reason, flag: str):
    assert FLAGS.get(reason, "") == flag


def test_every_fault_of_an_upstream_has_a_flag():
    members = list(Reason)
    upstream = members[members.index(Reason.DNS_NXDOMAIN) :]
    assert [reason for reason in upstream if reason not in FLAGS] == []
