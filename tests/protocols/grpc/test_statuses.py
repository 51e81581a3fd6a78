from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.errors import Reason
from egressproxy.model.fields import VALUE
from egressproxy.model.grpc_status import GrpcStatus
from egressproxy.protocols.grpc.statuses import (
    MAX_MESSAGE,
    MalformedTimeout,
    encoded_message,
    grpc_trailers,
    is_grpc,
    parsed_status,
    parsed_timeout,
    status_of,
    status_of_reset,
    timeout_value,
)
from tests.support.properties import examples


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"Application/GRPC; charset=utf-8", True),
        (b"application/grpc-web", False),
        (b"application/grpc-web+proto", False),
        (b"application/json", False),
        (b"", False),
        (None, False),
    ],
)
def test_which_content_is_grpc(content_type: bytes | None, expected: bool):
    assert is_grpc(content_type) is expected


@pytest.mark.parametrize(
    ("reason", "http_status", "expected"),
    [
        (Reason.BAD_FIELD, 400, "INTERNAL"),
        (Reason.EXT_AUTH_DENIED, 401, "UNAUTHENTICATED"),
        (Reason.DESTINATION_DENIED, 403, "PERMISSION_DENIED"),
        (Reason.NO_ROUTE, 404, "UNIMPLEMENTED"),
        (Reason.OK, 429, "UNAVAILABLE"),
        (Reason.UPSTREAM_RESET, 502, "UNAVAILABLE"),
        (Reason.CONNECT_REFUSED, 503, "UNAVAILABLE"),
        (Reason.DNS_TIMEOUT, 504, "UNAVAILABLE"),
        (Reason.MISDIRECTED, 421, "UNKNOWN"),
        (Reason.OK, 200, "UNKNOWN"),
        (Reason.REQUEST_TIMEOUT, 504, "DEADLINE_EXCEEDED"),
        (Reason.RESPONSE_TIMEOUT, 504, "DEADLINE_EXCEEDED"),
        (Reason.REQUEST_RATE, 429, "RESOURCE_EXHAUSTED"),
        (Reason.BODY_TOO_LARGE, 413, "RESOURCE_EXHAUSTED"),
        (Reason.BACKEND_INVALID, 500, "UNAVAILABLE"),
        (Reason.INTERNAL, 500, "INTERNAL"),
    ],
)
def test_the_status_of_a_failure(reason: Reason, http_status: int, expected: str):
    assert status_of(reason, http_status).name == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, "INTERNAL"), (1, "INTERNAL"), (2, "INTERNAL"), (3, "INTERNAL"), (7, "UNAVAILABLE"), (8, "CANCELLED"),
        (9, "INTERNAL"), (10, "INTERNAL"), (11, "RESOURCE_EXHAUSTED"), (12, "PERMISSION_DENIED"), (77, "INTERNAL"),
    ],
)  # fmt: skip
def test_the_status_of_a_stream_that_was_reset(code: int, expected: str):
    assert status_of_reset(code).name == expected
    assert status_of(Reason.UPSTREAM_RESET, 502, code).name == expected


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"", -1),
        (b"\r\ngrpc-status: 0", 0),
        (b"\r\nx: 1\r\nGrpc-Status: 16\r\ngrpc-message: x", 16),
        (b"\r\ngrpc-status: 17", GrpcStatus.UNKNOWN),
        (b"\r\ngrpc-status: 007", GrpcStatus.UNKNOWN),
        (b"\r\ngrpc-status: ", GrpcStatus.UNKNOWN),
        (b"\r\nx-grpc-status: 5", -1),
    ],
)
def test_the_status_among_fields(block: bytes, expected: int):
    assert parsed_status(block) == expected


def test_of_trailers_those_of_grpc_alone():
    block = b"\r\nx-a: 1\r\ngrpc-status: 0\r\nGrpc-Message: a b\r\ngrpc-statuses: 1\r\ngrpc-status-details-bin: AA"
    assert grpc_trailers(block, with_text=False) == b"\r\ngrpc-status: 0"
    assert grpc_trailers(b"\r\ngrpc-status: 17\r\ngrpc-status: x", with_text=False) == b""
    assert (
        grpc_trailers(block, with_text=True)
        == b"\r\ngrpc-status: 0\r\nGrpc-Message: a b\r\ngrpc-status-details-bin: AA"
    )


def test_a_message_is_percent_encoded():
    assert encoded_message("50 % of é\r\n~") == b"50 %25 of %C3%A9%0D%0A~"
    assert encoded_message("é" * MAX_MESSAGE) == b"%C3%A9" * (MAX_MESSAGE // 2)


@given(st.text())
@settings(max_examples=examples(500), deadline=None)
def test_every_message_is_a_value_that_says_it(text: str):
    made = encoded_message(text)
    assert VALUE.fullmatch(made)
    read = unquote(made.decode())
    assert text.encode("utf-8", "replace").decode().strip(" ").startswith(read)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"40m", 0.04), (b"5u", 5e-6), (b"6n", 6e-9), (b"0n", 0),
        (b"99999999H", 359999996400),
    ],
)  # fmt: skip
def test_a_timeout(value: bytes, seconds: float):
    assert parsed_timeout(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    [b"", b"1", b"S", b"123456789S", b"-1S", b"+1S", b"1s", b"1 S", b" 1S", b"1S ", b"1.5S", b"1S,1S", b"\xb2S"],
)
def test_what_is_no_timeout(value: bytes):
    with pytest.raises(MalformedTimeout):
        parsed_timeout(value)


@given(st.floats(min_value=1e-9, max_value=9e7))
@settings(max_examples=examples(500), deadline=None)
def test_a_timeout_that_is_passed_on_is_never_longer(seconds: float):
    written = parsed_timeout(timeout_value(seconds))
    assert seconds * 0.98 - 1e-9 <= written <= seconds * 1.0000001


def test_a_timeout_that_is_over_is_written_as_the_shortest():
    assert timeout_value(-1.0) == timeout_value(0.0) == b"1n"
