"""Addresses of Unix sockets as Gateways write them."""

from __future__ import annotations

import pytest

from egressproxy.model.unix_socket import UnixSocket, parse_unix_socket


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("unix:///run/a.sock", UnixSocket("/run/a.sock")),
        ("unix:///run/a.sock?mode=0660", UnixSocket("/run/a.sock", 0o660)),
        ("unix:///run/a.sock?mode=666&group=agents&owner=1000", UnixSocket("/run/a.sock", 0o666, "1000", "agents")),
    ],
)
def test_what_is_written(text: str, found: UnixSocket):
    assert parse_unix_socket(text) == found
    assert parse_unix_socket(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "", "/run/a.sock", "unix:a.sock", "unix://a.sock", "unix:///", "unix:///run/", "unix:///run//a", "unix:///run/../a",
        "unix:///./a", "unix:///run/a b", "unix:///run/%2e", "unix:///run/a\0", "unix:///" + "a" * 107,
        "unix:///a?mode=0999", "unix:///a?mode=4755", "unix:///a?mode=", "unix:///a?mode=0600&mode=0666",
        "unix:///a?owner=Root", "unix:///a?colour=red", "unix:///a?&", "unix:///a#b",
    ],
)  # fmt: skip
def test_what_is_refused(text: str):
    with pytest.raises(ValueError, match=r"write|path|byte"):
        parse_unix_socket(text)
