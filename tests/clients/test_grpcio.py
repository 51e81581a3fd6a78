"""grpcio on both sides of listeners of plain HTTP/2 and of TLS: gRPC's interoperability scenarios, and more."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.grpc_service import ECHO, ECHO_BIN, FLAKY, SERVICE, GrpcWorld
from tests.clients.world import Require
from tests.support import manifests as m
from tests.support.waiting import WAIT_S, wait_until

LARGE_IN, LARGE_OUT = 271_828, 314_159
SIZES = [31415, 9, 2653, 58979]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[GrpcWorld]]:
    worlds: list[GrpcWorld] = []
    yield worlds
    for world in worlds:
        world.close()


@pytest.fixture
def grpc_world(made: list[GrpcWorld], require: Require, tmp_path_factory: pytest.TempPathFactory) -> GrpcWorld:
    require("python:grpc")
    if not made:
        made.append(GrpcWorld(tmp_path_factory.mktemp("grpc")))
    return made[0]


class Calls:
    """The methods of the service, on one channel."""

    def __init__(self, world: GrpcWorld, way: str) -> None:
        self.world = world
        self.codes = world.grpc.StatusCode
        self.channel = world.channel(way)
        self.unary = self.channel.unary_unary(f"/{SERVICE}/Unary")
        self.input = self.channel.stream_unary(f"/{SERVICE}/Input")
        self.output = self.channel.unary_stream(f"/{SERVICE}/Output")
        self.duplex = self.channel.stream_stream(f"/{SERVICE}/Duplex")
        self.status = self.channel.unary_unary(f"/{SERVICE}/Status")
        self.wait = self.channel.unary_stream(f"/{SERVICE}/Wait")

    def error(self, call: Callable[[], object]) -> Any:
        """The error that a call ends with."""
        with pytest.raises(self.world.grpc.RpcError) as caught:
            call()
        return caught.value

    def record(self, mark: int) -> dict[str, Any]:
        """What was logged behind this mark."""
        gateway = self.world.gateway
        wait_until(lambda: len(gateway.records) > mark)
        return gateway.records[mark]


@pytest.fixture(params=["plain", "tls"])
def calls(grpc_world: GrpcWorld, request: pytest.FixtureRequest) -> Calls:
    return Calls(grpc_world, request.param)


# --- interoperability ------------------------------------------------------------------------------------------------
def test_empty_unary(calls: Calls):
    assert calls.unary(b"", timeout=WAIT_S) == b""


def test_large_unary(calls: Calls):
    message = bytes(range(256)) * (LARGE_IN // 256)
    assert calls.unary(message, timeout=WAIT_S) == message


def test_very_large_unary(calls: Calls):
    message = bytes(range(256)) * 50_000  # more than all windows together
    assert calls.unary(message, timeout=WAIT_S) == message


def test_client_streaming(calls: Calls):
    assert calls.input(iter([bytes(size) for size in SIZES]), timeout=WAIT_S) == b"%d" % sum(SIZES)


def test_server_streaming(calls: Calls):
    asked = " ".join(map(str, SIZES)).encode()
    assert [len(each) for each in calls.output(asked, timeout=WAIT_S)] == SIZES


def test_ping_pong(calls: Calls):
    """Each message is answered before the next one is said: nothing is held back."""
    answered = threading.Semaphore(1)

    def messages() -> Iterator[bytes]:
        for size in SIZES:
            assert answered.acquire(timeout=WAIT_S)
            yield bytes(size)

    found = []
    for answer in calls.duplex(messages(), timeout=WAIT_S):
        found.append(len(answer))
        answered.release()
    assert found == SIZES


def test_empty_stream(calls: Calls):
    assert list(calls.duplex(iter([]), timeout=WAIT_S)) == []


def test_timeout_on_sleeping_server(calls: Calls):
    error = calls.error(lambda: list(calls.wait(b"", timeout=0.3)))
    assert error.code() is calls.codes.DEADLINE_EXCEEDED
    assert calls.world.service.wait_for_end() == "gave up"


def test_cancel_after_begin(calls: Calls):
    call = calls.input.future(iter(threading.Event().wait, True))
    call.cancel()
    assert call.cancelled()


def test_cancel_after_first_response(calls: Calls):
    call = calls.wait(b"first", timeout=WAIT_S)
    assert next(call) == b"first"
    call.cancel()
    assert calls.error(lambda: next(call)).code() is calls.codes.CANCELLED
    assert calls.world.service.wait_for_end() == "gave up"


def test_custom_metadata(calls: Calls):
    value, binary = "test_initial_metadata_value", b"\xab\xab\xab\x00\xff"
    answer, call = calls.unary.with_call(b"x", timeout=WAIT_S, metadata=((ECHO, value), (ECHO_BIN, binary)))
    assert answer == b"x"
    assert dict(call.initial_metadata())[ECHO] == value
    assert dict(call.trailing_metadata())[ECHO_BIN] == binary


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("UNKNOWN", "test status message"),
        ("DATA_LOSS", "\t\ntest with whitespace\r\nand Unicode BMP \u263a and non-BMP 😈"),
    ],
)
def test_status_code_and_message(calls: Calls, code: str, text: str):
    error = calls.error(lambda: calls.status(f"{code} {text}".encode(), timeout=WAIT_S))
    assert (error.code().name, error.details()) == (code, text)


def test_unimplemented_method(calls: Calls):
    error = calls.error(lambda: calls.channel.unary_unary(f"/{SERVICE}/None")(b"", timeout=WAIT_S))
    assert error.code() is calls.codes.UNIMPLEMENTED
    assert error.details() == "Method not found!"


def test_unimplemented_service(calls: Calls):
    error = calls.error(lambda: calls.channel.unary_unary("/test.None/None")(b"", timeout=WAIT_S))
    assert error.code() is calls.codes.UNIMPLEMENTED
    assert error.details().startswith("no_route: ")


# --- ours ------------------------------------------------------------------------------------------------------------
def test_many_calls_at_a_time(calls: Calls):
    messages = [b"%d" % number * 1000 for number in range(300)]
    running = [calls.unary.future(message, timeout=WAIT_S) for message in messages]
    assert [call.result() for call in running] == messages


def test_the_server_is_told_what_is_left_of_the_time(calls: Calls):
    calls.world.service.left.clear()
    calls.unary(b"", timeout=50)
    (left,) = calls.world.service.left
    assert 40 < left < 51  # grpcio rounds what it is told


def test_the_log_and_the_metrics_have_the_status(calls: Calls):
    before = calls.world.gateway.metric("egress_grpc_calls_total", grpc_status="ABORTED")
    mark = calls.world.gateway.mark()
    calls.error(lambda: calls.status(b"ABORTED no", timeout=WAIT_S))
    record = calls.record(mark)
    assert (record["status"], record["reason"], record["grpc_status"]) == (200, "-", "ABORTED")
    assert calls.world.gateway.metric("egress_grpc_calls_total", grpc_status="ABORTED") == before + 1


def test_a_backend_that_is_down_is_unavailable(calls: Calls):
    error = calls.error(lambda: calls.channel.unary_unary("/test.Down/Any")(b"", timeout=WAIT_S))
    assert error.code() is calls.codes.UNAVAILABLE
    assert error.details() == "upstream_refused: the upstream refused the connection"
    assert dict(error.trailing_metadata())["x-egress-request-id"]


def test_clients_and_servers_that_ping_every_second_keep_quiet_calls(grpc_world: GrpcWorld):
    """Nobody is told ENHANCE_YOUR_CALM (too_many_pings), and the call is there when it has something to say."""
    with grpc_world.eager_channel() as channel:
        said: queue.Queue[bytes | None] = queue.Queue()
        call = channel.stream_stream(f"/{SERVICE}/Duplex")(iter(said.get, None), timeout=WAIT_S)
        said.put(b"before")
        assert next(call) == b"before"
        assert not call.done()
        time.sleep(3.5)  # three pings, each way; grpcio tells nobody of them
        said.put(b"after")
        assert next(call) == b"after"
        said.put(None)
        assert list(call) == []
    assert grpc_world.gateway.metric("egress_http2_connections_broken_total") == 0


def test_a_message_that_is_too_long_for_its_client_ends_the_call_on_both_sides(grpc_world: GrpcWorld):
    with grpc_world.eager_channel(("grpc.max_receive_message_length", 1000)) as channel:
        mark = grpc_world.gateway.mark()
        calls = Calls(grpc_world, "plain")
        output = channel.unary_stream(f"/{SERVICE}/Output")
        error = calls.error(lambda: list(output(b"10 1001 10 50000000", timeout=WAIT_S)))
        assert error.code() is calls.codes.RESOURCE_EXHAUSTED
        assert calls.record(mark)["reason"] == "client_gone"
        assert len(next(output(b"1000", timeout=WAIT_S))) == 1000  # the connection serves on


def test_a_server_that_goes_away_amid_calls_is_unavailable_and_comes_back(require: Require, tmp_path: Path):
    require("python:grpc")
    world = GrpcWorld(tmp_path)
    try:
        calls = Calls(world, "plain")
        call = calls.wait(b"first", timeout=WAIT_S)
        assert next(call) == b"first"
        world.server.stop(0).wait(WAIT_S)  # cancels what runs
        error = calls.error(lambda: next(call))
        assert error.code() in (calls.codes.UNAVAILABLE, calls.codes.CANCELLED)
        assert calls.error(lambda: calls.unary(b"x", timeout=WAIT_S)).code() is calls.codes.UNAVAILABLE
        world.serve_again()
        assert calls.unary(b"x", timeout=WAIT_S) == b"x"
    finally:
        world.close()


def test_a_server_that_gives_up(calls: Calls):
    call = calls.channel.unary_stream(f"/{SERVICE}/GiveUp")(b"first", timeout=WAIT_S)
    assert next(call) == b"first"
    assert calls.error(lambda: next(call)).code() is calls.codes.CANCELLED


def test_a_stream_survives_a_reload(calls: Calls):
    gateway = calls.world.gateway
    said: queue.Queue[bytes | None] = queue.Queue()
    call = calls.duplex(iter(said.get, None), timeout=WAIT_S)
    said.put(b"before")
    assert next(call) == b"before"
    generation = gateway.metric("egress_config_generation")
    gateway.replace([*calls.world.objects, m.backend("another", "another.example", 80)])
    gateway.wait_for_metric("egress_config_generation", generation + 1)
    said.put(b"after")
    assert next(call) == b"after"
    said.put(None)
    assert list(call) == []
    gateway.replace(calls.world.objects)
    gateway.wait_for_metric("egress_config_generation", generation + 2)


def test_a_limit_is_told_as_a_status(grpc_world: GrpcWorld):
    calls = Calls(grpc_world, "plain")
    method = calls.channel.unary_unary("/test.Limited/Any")
    assert calls.error(lambda: method(b"", timeout=WAIT_S)).code() is calls.codes.UNIMPLEMENTED  # the server's word
    error = calls.error(lambda: method(b"", timeout=WAIT_S))
    assert error.code() is calls.codes.RESOURCE_EXHAUSTED
    assert error.details().startswith("request_rate: ")


def test_calls_in_a_tunnel_of_the_forward_proxy(grpc_world: GrpcWorld):
    calls = Calls(grpc_world, "tunnel")
    mark = grpc_world.gateway.mark()
    assert calls.unary(b"hi", timeout=WAIT_S) == b"hi"
    assert list(calls.duplex(iter([b"1", b"2"]), timeout=WAIT_S)) == [b"1", b"2"]
    calls.channel.close()
    record = calls.record(mark)
    assert (record["kind"], record["method"], record["status"]) == ("tunnel", "CONNECT", 200)


def test_a_drain_lets_calls_end(require: Require, tmp_path: Path):
    require("python:grpc")
    world = GrpcWorld(tmp_path)
    try:
        calls = Calls(world, "plain")
        said: queue.Queue[bytes | None] = queue.Queue()
        call = calls.duplex(iter(said.get, None), timeout=WAIT_S)
        said.put(b"before")
        assert next(call) == b"before"
        statuses: list[int] = []
        stopping = threading.Thread(target=lambda: statuses.append(world.gateway.stop()))
        stopping.start()
        world.gateway.wait_for_diagnostics("draining")
        said.put(b"after")
        assert next(call) == b"after"
        said.put(None)
        assert list(call) == []
        stopping.join(WAIT_S)
        assert statuses == [0]
        assert world.gateway.records[-1]["grpc_status"] == "OK"
    finally:
        world.close()


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
def test_a_call_that_the_server_has_no_time_for_is_made_again(calls: Calls, code: str):
    flaky = calls.channel.unary_unary(f"/{FLAKY}/Unary")
    mark = len(calls.world.gateway.records)
    assert flaky(code.encode(), timeout=WAIT_S) == code.encode()
    assert calls.record(mark)["attempts"] == 2


def test_a_server_that_wants_no_retry_or_whose_status_is_another_has_its_answer_passed_on(calls: Calls):
    flaky = calls.channel.unary_unary(f"/{FLAKY}/Unary")
    for message, code in ((b"UNAVAILABLE -1", "UNAVAILABLE"), (b"ABORTED", "ABORTED")):
        error = calls.error(lambda message=message: flaky(message, timeout=WAIT_S))  # type: ignore[misc]
        assert (error.code(), error.details()) == (getattr(calls.codes, code), "not now")
        flaky(message, timeout=WAIT_S)  # every second call succeeds
