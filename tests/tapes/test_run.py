"""A run with tapes: what its filter records and plays, by the gateway's own code and without sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import egressproxy.tapes as tapes
from egressproxy.cli.main import main
from egressproxy.config.reading.load import load
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.errors import Reason
from egressproxy.filters import FilterContext
from egressproxy.filters.testing import FilterHarness, FilterResult, exchange, response
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.tapes import Report, Run, TapeError
from egressproxy.tapes.filter import MAX_REQUEST, TapeConfig, TapeFilter, _Taken, _Tapes, response_of
from egressproxy.tapes.player import TICKET, Player
from egressproxy.tapes.tape import Interaction, read_folder, write, written
from tests.support import manifests as m

URL = "https://api.example.com/v1/x"
JSON = {"Content-Type": "application/json"}
KEY = "sk-proj-Zq8Lw3Nn5Rt7Vx9Bd1Fh2Jk4Mp6Qs8Tu"


def played(run: Run, *exchanges: Callable[[FilterHarness], FilterResult]) -> tuple[list[FilterResult], Report]:
    """What the filter of a run makes of these exchanges, one after the other."""
    folder = run.write(["agents/egress"])
    settings = run.extension
    harness = FilterHarness(settings["config"], phase=settings["phase"], folder=str(folder))
    results = [each(harness) for each in exchanges]
    harness.close()
    return results, run.finish()


def post(question: str, answer: bytes = b"", key: str = KEY, **fields: str) -> Callable[[FilterHarness], FilterResult]:
    body = json.dumps({"q": question}).encode()
    headers = {**JSON, "Authorization": f"Bearer {key}", **fields}
    head = response(200, {**JSON, **({"Content-Encoding": "gzip"} if answer[:2] == b"\x1f\x8b" else {})})
    return lambda harness: harness.run(
        exchange("POST", URL, headers), request_body=body, response=head, response_body=answer
    )


def get(url: str = URL, method: str = "GET", **headers: str) -> Callable[[FilterHarness], FilterResult]:
    return lambda harness: harness.run(exchange(method, url, headers), response=response(200), response_body=b"page")


def test_what_was_recorded_is_played_without_a_backend(tmp_path: Path):
    answer = gzip.compress(b'{"n": 1, "key": "%s"}' % KEY.encode())
    (taken, _), told = played(tapes.record(tmp_path), post("a", answer), get())
    assert taken.response_body == answer  # nothing changes on its way
    assert told.lines() == [f"2 exchanges recorded in {tmp_path}/api.example.com.yaml"]
    assert KEY not in (tmp_path / "api.example.com.yaml").read_text("utf-8")

    run = tapes.replay(tmp_path, strict=True)
    (plain, coded, page), told = played(run, post("a", key="other"), post("a", **{"Accept-Encoding": "gzip"}), get())
    assert plain.local_response is not None
    assert json.loads(plain.local_response.body) == {"n": 1, "key": "[API_KEY]"}
    assert coded.error is not None  # played once already
    assert page.local_response is not None
    assert page.local_response.body == b"page"
    assert (told.played, len(told.missing), told.unplayed, told.is_complete) == (2, 1, [], False)


def test_an_answer_has_the_coding_of_its_recording_where_the_client_takes_it(tmp_path: Path):
    played(tapes.record(tmp_path), post("a", gzip.compress(b'{"n": 1}')))
    (coded,), _ = played(tapes.replay(tmp_path), post("a", **{"Accept-Encoding": "br;q=1.0, gzip"}))
    assert coded.local_response is not None
    assert (b"content-encoding", b"gzip") in coded.local_response.fields
    assert json.loads(gzip.decompress(coded.local_response.body)) == {"n": 1}


def test_a_strict_run_refuses_what_is_not_on_tape(tmp_path: Path):
    played(tapes.record(tmp_path), post("a", b"{}"), get())
    run = tapes.replay(tmp_path, strict=True)
    socket = exchange("GET", URL)
    socket.request.upgrade = b"websocket"
    (miss, upgrade, tunnel), told = played(
        run,
        post("b"),
        lambda harness: harness.run(socket),
        lambda harness: harness.run(exchange("CONNECT", "db.example.com:5432")),
    )
    assert miss.error is not None
    assert miss.error.message.startswith('not in the tapes: body $.q is "b", the tape has "a" (nearest: POST ')
    assert upgrade.error is not None
    assert upgrade.error.message == f"websocket of {URL} is not on tape: tapes have HTTP alone"
    assert tunnel.error is not None
    assert "a tunnel to db.example.com:5432 is not on tape" in tunnel.error.message
    assert all(each.error.is_listed_elsewhere for each in (miss, upgrade, tunnel) if each.error)
    assert (told.played, len(told.missing), len(told.unplayed), told.is_complete) == (0, 3, 2, False)


def test_what_is_missing_is_added_where_the_replay_records(tmp_path: Path):
    played(tapes.record(tmp_path), post("a", b'{"n": 1}'))
    run = tapes.replay(tmp_path, record_to=tmp_path)
    _, told = played(run, post("a"), post("b", b'{"n": 2}'))
    assert (told.played, told.recorded, told.is_complete) == (1, 1, True)
    assert [json.loads(each.body) for each in read_folder(tmp_path)] == [{"n": 1}, {"n": 2}]


def test_a_credential_is_masked_in_exchanges_from_before_its_use(tmp_path: Path):
    token = "opaque4711token0815"
    early = exchange("GET", "https://api.example.com/ticket")
    _, told = played(
        tapes.record(tmp_path),
        lambda harness: harness.run(early, response=response(200), response_body=b"your ticket: %b" % token.encode()),
        post("a", b"{}", key=token),
    )
    assert told.recorded == 2
    (tape,) = tmp_path.iterdir()
    assert token not in tape.read_text("utf-8")
    assert [each.method for each in read_folder(tmp_path)] == ["GET", "POST"]


def test_a_credential_is_masked_in_the_report(tmp_path: Path):
    token = "opaque4711token0815"
    socket = exchange("GET", f"https://api.example.com/{token}")
    socket.request.upgrade = b"websocket"
    _, told = played(tapes.record(tmp_path), post("a", b"{}", key=token), lambda harness: harness.run(socket))
    assert told.unrecorded == ["websocket of https://api.example.com/[SECRET]: tapes have HTTP alone"]


def test_a_recording_replaces_the_tape_of_its_host_alone(tmp_path: Path):
    played(tapes.record(tmp_path), get("https://a.example/"), get("https://b.example/1"))
    played(tapes.record(tmp_path), get("https://b.example/2"))
    assert [each.uri for each in read_folder(tmp_path)] == ["https://a.example/", "https://b.example/2"]


def test_a_run_that_nobody_has_used_has_played_nothing(tmp_path: Path):
    played(tapes.record(tmp_path), get())
    assert "no exchange went through the gateway" in tapes.record(tmp_path).finish().lines()[0]
    told = tapes.replay(tmp_path, strict=True).finish()
    assert told.unplayed == [f"GET {URL} ({tmp_path}/api.example.com.yaml, interaction 1)"]
    assert not told.is_complete


def test_a_run_without_tapes_is_told(tmp_path: Path):
    with pytest.raises(TapeError, match="record one with --record"):
        tapes.replay(tmp_path, strict=True)
    with pytest.raises(TapeError, match="there is no such folder"):
        tapes.replay(tmp_path / "none")


def test_the_manifests_are_a_configuration(tmp_path: Path):
    run = tapes.record(tmp_path)
    folder = run.write(["a/one", "a/two", "b/three"])
    policies = load([folder]).of(EgressPolicy)
    assert [[each.name for each in policy.spec.target_refs] for policy in policies] == [["one", "two"], ["three"]]
    assert folder.parent.stat().st_mode & 0o077 == 0
    run.finish()
    assert not folder.exists()


def test_a_name_server_is_refused_in_a_strict_run(tmp_path: Path):
    config, folder = tmp_path / "gateway.yaml", tmp_path / "tapes"
    played(tapes.record(folder), get())
    listener = {"name": "names", "port": 5353, "protocol": "egressproxy.io/dns"}
    config.write_text(yaml.safe_dump(m.gateway(listener)), "utf-8")
    words = ["run", "--config", str(config), "--replay", str(folder), "--strict", "--", "true"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2, result.output
    assert "--strict resolves no names: leave out listener names of" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--record", "t"], "--record is for a command"),
        (["--strict", "--", "true"], "--strict is for --replay"),
        (["--tape", "x", "--", "true"], "--tape is for --record and --replay"),
        (["--replay", ".", "--record", "t", "--strict", "--", "true"], "--strict records nothing"),
        (["--record", "t", "--workers", "2", "--", "true"], "leave out --workers"),
        (["--record", "t", "--tape", "../x", "--", "true"], "is no name of a folder"),
        (["--replay", ".", "--rhythm", "--", "true"], "add --strict"),
        (["--replay", ".", "--ignore-body", "user", "--", "true"], "is no JSON path"),
    ],
    ids=["command", "strict", "tape", "both", "workers", "name", "rhythm", "path"],
)
def test_options_that_do_not_fit_are_refused(options: list[str], told: str, tmp_path: Path):
    (tmp_path / "a.yaml").write_text("version: 1\ninteractions: []\n", "utf-8")
    words = [str(tmp_path) if each == "." else each for each in options]
    result = CliRunner().invoke(main, ["run", *words])
    assert result.exit_code == 2, result.output
    assert told in result.output


def test_what_cannot_be_masked_or_played_is_not_recorded(tmp_path: Path):
    broken = gzip.compress(b'{"password": "hunter2x"}')[:-9]
    odd = lambda harness: harness.run(exchange("GET", URL), response=response(799), response_body=b"x")  # noqa: E731
    _, told = played(tapes.record(tmp_path), post("a", broken), odd, get())
    assert told.recorded == 1
    assert told.unrecorded == [
        f"POST {URL}: a body has a coding that cannot be undone, so that it cannot be masked",
        f"GET {URL}: its status is 799",
    ]
    assert [each.status for each in read_folder(tmp_path)] == [200]


def test_the_length_that_a_head_request_asks_for_is_played(tmp_path: Path):
    def head(size: int) -> Callable[[FilterHarness], FilterResult]:
        said = response()
        said.fields.add(b"content-length", b"%d" % size)
        return lambda harness: harness.run(exchange("HEAD", f"{URL}/{size}"), response=said)

    _, told = played(tapes.record(tmp_path), head(70_000), head(2**40), get())
    assert told.unrecorded == [
        f"HEAD {URL}/{2**40}: its Content-Length is 1099511627776, and a replay can say 1073741824 at most"
    ]
    assert "content-length: ['70000']" in (tmp_path / "api.example.com.yaml").read_text("utf-8")
    broken = response()
    broken.fields.add(b"content-length", b"s3cr3t")  # as an extension of another vendor might
    _, told = played(tapes.record(tmp_path / "x"), lambda harness: harness.run(exchange("HEAD", URL), response=broken))
    assert told.unrecorded == [f"HEAD {URL}: ValueError"]  # what others raise may repeat what they read
    (answer, _), _ = played(tapes.replay(tmp_path, strict=True), head(70_000), get())
    assert answer.local_response is not None
    assert len(answer.local_response.body) == 70_000  # which the gateway says, and does not send


@pytest.mark.parametrize(
    ("media", "recorded", "told"),
    [
        ("application/grpc", 0, "gRPC tells the outcome in trailers, which tapes do not have"),
        ("text/plain", 1, "the trailers of its answer"),
    ],
    ids=["grpc", "other"],
)
def test_trailers_pass_and_are_told(media: str, recorded: int, told: str, tmp_path: Path):
    def call(harness: FilterHarness) -> FilterResult:
        trailers = {"grpc-status": "0", "x-sum": "9"}
        said = response(200, {"Content-Type": media})
        asked = exchange("POST", URL)
        return harness.run(
            asked, request_body=b"a", request_trailers={"x-sum": "1"}, response=said, response_body=b"b",
            response_trailers=trailers,
        )  # fmt: skip

    (result,), report = played(tapes.record(tmp_path), call)
    assert [result.request_trailers.get(b"x-sum"), result.response_trailers.get(b"x-sum")] == [b"1", b"9"]
    assert (report.recorded, report.unrecorded) == (recorded, [f"POST {URL}: {told}"])


def filter_of(run: Run) -> TapeFilter:
    return TapeFilter(FilterContext(TapeConfig(**run.extension["config"]["config"]), {}, "tape", "", ""))


def test_a_request_that_was_answered_before_its_end_is_not_recorded(tmp_path: Path):
    run = tapes.record(tmp_path)
    tape = filter_of(run)
    asked = exchange("POST", URL)
    asked.request.body, asked.response = 9, response(413)

    asyncio.run(tape.request_headers(asked))
    asyncio.run(tape.request_body(asked, b"half", last=False))
    tape.response_headers(asked)
    tape.complete(asked)
    tape.close()
    assert run.finish().lines() == [f"not on tape: POST {URL}: it was answered before its body had come"]


def test_an_answer_that_the_client_leaves_before_its_body_is_not_recorded_as_an_empty_one(tmp_path: Path):
    run = tapes.record(tmp_path)
    tape, asked = filter_of(run), exchange("GET", URL)
    asked.response, asked.reason = response(), Reason.CLIENT_GONE
    asked.response.body = -1
    asyncio.run(tape.request_headers(asked))
    tape.response_headers(asked)
    tape.complete(asked)
    tape.close()
    assert run.finish().lines() == [f"not on tape: GET {URL}: its answer broke off (client_gone)"]


async def test_an_open_stream_answers_the_first_of_two_that_ask_at_once(tmp_path: Path):
    media = [("content-type", "text/event-stream")]
    stream = Interaction("GET", URL, [], b"", 200, "OK", media, b"data: 1\n\n", events=(0.0,), is_open=True)
    write(tmp_path / "a.yaml", [written(stream)])
    tape = filter_of(tapes.replay(tmp_path))
    first, second = (asyncio.create_task(tape.request_headers(exchange("GET", URL))) for _ in range(2))
    await asyncio.sleep(0)
    tape._tapes.reader.submit(int).result()  # both are found before either goes on
    answer = await asyncio.wait_for(first, 5)
    assert answer is not None
    second.cancel()
    tape.close()


@pytest.mark.parametrize(("reason", "is_missing"), [(Reason.CLIENT_GONE, False), (Reason.BODY_TOO_LARGE, True)])
def test_a_client_that_leaves_with_half_a_request_misses_nothing(reason: Reason, is_missing: bool, tmp_path: Path):
    played(tapes.record(tmp_path), get())
    run = tapes.replay(tmp_path, strict=True)
    tape = filter_of(run)
    asked = exchange("POST", URL)
    asked.request.body, asked.reason = 9, reason
    asyncio.run(tape.request_headers(asked))
    tape.complete(asked)
    tape.close()
    assert bool(run.finish().missing) == is_missing


def test_a_tape_has_the_order_in_which_requests_came(tmp_path: Path):
    config = TapeConfig(record_to=str(tmp_path), report=str(tmp_path / "report"))
    written = _Tapes(config)
    for began, answer in ((3.0, b"third"), (1.0, b"first"), (2.0, b"second")):  # as they end
        fields = Fields()
        taken = _Taken(URL, fields, datetime.now(UTC), began, is_recorded=True, is_asked=True)
        taken.response_fields, taken.status, taken.response = fields, 200, [(0.0, answer)]
        written.take("GET", taken)
    written.close()
    assert [each.body for each in read_folder(tmp_path)] == [b"first", b"second", b"third"]


def test_a_request_that_is_refused_before_its_body_came_is_missing_in_a_strict_run(tmp_path: Path):
    played(tapes.record(tmp_path), get())
    too_long = b"x" * (MAX_REQUEST + 1)
    run = tapes.replay(tmp_path, strict=True)
    _, told = played(run, get(), lambda harness: harness.run(exchange("POST", URL), request_body=too_long))
    assert told.missing == [f"POST {URL}: it was refused before it was looked for"]


def test_one_run_at_a_time_records_into_a_folder(tmp_path: Path):
    first = tapes.record(tmp_path)
    with pytest.raises(TapeError, match="another run records there now"):
        tapes.replay(tmp_path, record_to=tmp_path)
    first.finish()
    tapes.record(tmp_path).finish()


def test_the_tapes_of_other_hosts_are_written_where_one_cannot_be(tmp_path: Path):
    (tmp_path / "a.example.yaml").mkdir()
    _, told = played(tapes.record(tmp_path), get("https://a.example/"), get("https://b.example/"))
    assert told.unrecorded == [f"{tmp_path}/a.example.yaml: Is a directory"]
    assert not told.is_complete
    assert [each.uri for each in read_folder(tmp_path)] == ["https://b.example/"]


def test_a_run_whose_gateway_was_killed_is_not_complete(tmp_path: Path):
    run = tapes.record(tmp_path)
    settings = run.extension
    FilterHarness(settings["config"], phase=settings["phase"], folder=str(run.write(["agents/egress"])))
    told = run.finish()
    assert told.lines() == ["not on tape: the gateway was killed"]
    assert not told.is_complete


def test_an_answer_to_head_says_the_coding_that_one_to_get_has():
    told = Interaction("HEAD", URL, [], b"", 200, "OK", [("content-length", "70")], b"", coding="gzip")
    coded = response_of(told, Fields.of([(b"accept-encoding", b"br, gzip")]))
    assert (len(coded.body), (b"content-encoding", b"gzip") in coded.fields) == (70, True)
    assert not any(name == b"content-encoding" for name, _ in response_of(told, Fields()).fields)


async def test_a_stream_is_played_in_its_rhythm_at_a_port_that_the_run_keeps(tmp_path: Path):
    await asyncio.to_thread(played, tapes.record(tmp_path), get())
    run = tapes.replay(tmp_path, strict=True, rhythm=True)
    port = run.extension["config"]["config"]["player_port"]
    player = Player(port)
    head = LocalResponse(200, ((b"content-type", b"text/event-stream"),))
    ticket = await player.ticket(head, [(0.0, b"data: a\n\n"), (0.2, b"data: b\n\n")])
    began = asyncio.get_running_loop().time()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\n%b: %b\r\n\r\n" % (TICKET, ticket))
    await reader.readuntil(b"data: a\n\n")
    assert await reader.read() == b"\r\n9\r\ndata: b\n\n\r\n0\r\n\r\n"
    assert asyncio.get_running_loop().time() - began > 0.19
    writer.close()
    player.close()
    run.finish()
    with socket.create_server(("127.0.0.1", port)):
        pass
