"""Messages of protocol buffers by tables, against a reading and writing by hand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from egressproxy.envoy.protobuf import WireError, message_types, parsed
from tests.support.protobuf_wire import field, number
from tests.support.waiting import WAIT_S

TYPES = message_types("test", {"Outer": "text=1 inner=2*:Inner", "Inner": "count=1:uint64 raw=3:bytes"})
WHOLE = field(1, b"a") + field(2, number(1, 7) + field(3, b"\xff")) + field(2, b"")


def test_a_message_is_read_and_written_by_the_numbers_of_its_table():
    message = parsed(TYPES["Outer"], WHOLE)
    assert (message.text, [(each.count, each.raw) for each in message.inner]) == ("a", [(7, b"\xff"), (0, b"")])
    made = TYPES["Outer"](text="a", inner=[{"count": 7, "raw": b"\xff"}, {}])
    assert made.SerializeToString() == WHOLE


def test_a_field_that_is_not_known_is_passed_over():
    assert parsed(TYPES["Outer"], WHOLE + field(9, b"new")).text == "a"


@pytest.mark.parametrize(
    "data",
    [number(1, 1), number(2, 1), field(2, field(1, b"x")), field(2, number(3, 1)), b"\x0a\x05a", b"\x00", b"\xff" * 11,
     b"\x13" * 200],
)  # fmt: skip
def test_what_is_no_such_message_is_refused(data: bytes):
    with pytest.raises(WireError):
        parsed(TYPES["Outer"], data)


def test_a_data_plane_without_grpc_does_not_load_it():
    program = (
        "import sys, egressproxy.processes.workers.process, egressproxy.gateway.builders.snapshot_builder\n"
        "print([name for name in sys.modules if name.startswith('google')])\n"
        "import egressproxy.envoy.ext_authz.grpc_client\n"
        "print('google.protobuf.message' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout.split("\n") == ["[]", "True", ""], done.stderr
