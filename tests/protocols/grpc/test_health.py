"""The messages of grpc.health.v1, against those that protobuf's own code makes."""

from __future__ import annotations

import pytest

from egressproxy.envoy.protobuf import message_types
from egressproxy.protocols.grpc.health import check_message, is_serving

TYPES = message_types("grpc.health.v1", {"Request": "service=1", "Response": "status=1:uint64"})


@pytest.mark.parametrize("service", ["", "a", "pkg.Echo", "x" * 127])
def test_the_request_is_what_protobuf_reads(service: str):
    assert TYPES["Request"].FromString(check_message(service)).service == service


@pytest.mark.parametrize(("status", "expected"), [(0, False), (1, True), (2, False), (3, False), (257, False)])
def test_serving_alone_is_well(status: int, expected: bool):
    assert is_serving(TYPES["Response"](status=status).SerializeToString()) is expected


def test_a_name_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="127 bytes"):
        check_message("x" * 128)
