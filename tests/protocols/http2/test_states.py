"""What h2 keeps of a connection, in less memory."""

from __future__ import annotations

import pytest
from h2.settings import SettingCodes, Settings
from h2.stream import StreamClosedBy

from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.states import MAX_CLOSED, ClosedStreams, CompactSettings, ConnectionStates
from tests.support.http2_client import raw_frame


def test_settings_are_proposed_and_acknowledged_as_those_of_h2():
    first = {SettingCodes.MAX_CONCURRENT_STREAMS: 7}
    ours, theirs = (
        CompactSettings(client=False, initial_values=dict(first)),
        Settings(client=False, initial_values=first),
    )
    for settings in (ours, theirs):
        settings[SettingCodes.INITIAL_WINDOW_SIZE] = 1
        settings[SettingCodes.INITIAL_WINDOW_SIZE] = 2
        settings[SettingCodes.MAX_HEADER_LIST_SIZE] = 3
    for _ in range(3):
        assert dict(ours._settings) == {key: list(values) for key, values in theirs._settings.items()}
        said = [(change.setting, change.original_value, change.new_value) for change in ours.acknowledge().values()]
        assert said == [(c.setting, c.original_value, c.new_value) for c in theirs.acknowledge().values()]
    assert ours.initial_window_size == 2
    assert ours.max_header_list_size == 3


def test_settings_that_nobody_knows_are_not_kept():
    """A peer may name 65,536 of them."""
    server = ConnectionStates(client_side=False, limits=HeadLimits(), extended_connect=False)
    server.initiate_connection()
    server.receive_data(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + raw_frame(4))
    for page in range(24):
        unknown = range(page * 2700 + 9, min(page * 2700 + 2709, 65536))
        server.receive_data(raw_frame(4, b"".join(code.to_bytes(2, "big") + b"\0\0\0\1" for code in unknown)))
    server.receive_data(raw_frame(4, b"\0\4\0\0\0\5" + b"\0\5\0\0\x50\0"))
    assert len(server.remote_settings) <= len(SettingCodes)
    assert server.remote_settings.initial_window_size == 5
    assert server.max_outbound_frame_size == 0x5000


def test_the_ends_of_the_last_streams_are_remembered():
    closed = ClosedStreams()
    ends = [None, *StreamClosedBy]
    for number in range(1, 2 * MAX_CLOSED + 11):
        closed[number] = ends[number % 5]
        assert number in closed
        assert closed[number] is ends[number % 5]
        assert len(closed) <= MAX_CLOSED
    assert closed[2 * MAX_CLOSED + 10 - MAX_CLOSED + 1] is ends[(MAX_CLOSED + 11) % 5]
    assert MAX_CLOSED + 10 not in closed
    with pytest.raises(KeyError):
        closed[MAX_CLOSED + 10]
