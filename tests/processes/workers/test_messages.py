"""What goes through a channel comes back, and nothing else does."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from egressproxy.errors import NotAnswered
from egressproxy.gateway.identity.killed_identities import KillChange
from egressproxy.model.admin_requests import CachePurge, HoldDecision, HoldPage
from egressproxy.processes.workers import messages
from egressproxy.processes.workers.data_plane import ConfigRefused, Configuration, Guarded
from egressproxy.processes.workers.messages import (
    Begin,
    Build,
    Command,
    CountsReply,
    Drain,
    EventReport,
    Listen,
    NumberedRequest,
    Query,
    Reply,
    decode,
    encode,
)
from egressproxy.telemetry.counters import Durations
from egressproxy.telemetry.counts import Counts, MetricFamily, MetricKind
from egressproxy.telemetry.event_aggregator import InvolvedObject, Notice
from egressproxy.telemetry.metrics import Metrics


@pytest.mark.parametrize(
    "message",
    [
        NumberedRequest(1, Begin(1, 2, None, "info", b"name", b"key")),
        NumberedRequest(
            2, Build(Configuration(b"octets", {("127.0.0.1", 80): "a/b"}, 7, (("127.0.0.1", 15900),), True))
        ),
        NumberedRequest(3, Query("explain", ((("url", "http://a.example/"),),))),
        NumberedRequest(5, Query("caches", (CachePurge("agents/r", "/v1", "agents/me"),))),
        NumberedRequest(
            5, Query("holds", (HoldDecision("5e", approves=True, by="alice"), HoldPage(5, (7.25, "5e"), "me")))
        ),
        NumberedRequest(5, Query("kill", (KillChange("alice", kills=True, why="leaks keys"), 7))),
        NumberedRequest(6, Query("set_killed", (("alice", "bob"), 7))),
        NumberedRequest(4, Drain(0.5)),
        NumberedRequest(4, Drain(0.5, (("127.0.0.1", 80),), 1.0)),
        Command.END_CONNECTIONS,
        Listen("::1", 80),
        EventReport(
            (Notice("Warning", "NoPolicy", "Deny", InvolvedObject("Gateway", "a", "b"), None, "no", True, 2, 1.0, 2.0),)
        ),
        Command.HURRY,
        NumberedRequest(4, Command.COLLECT),
        Reply(1),
        Reply(2, b"{}"),
        Reply(2, (b"{}", b"{}")),
    ],
)
def test_a_message_comes_back(message: object):
    assert decode(encode(message)) == message  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [ConfigRefused("why"), Guarded("why\nand what"), NotAnswered("why")])
def test_a_refusal_comes_back_as_it_was_raised(error: ConfigRefused | NotAnswered):
    value = decode(encode(Reply(1, error))).value
    assert (type(value), str(value)) == (type(error), str(error))


def test_counts_come_back():
    metrics = Metrics("1")
    metrics.series("g", "r", "b").answered(0.1)
    metrics.count_dns("hit")
    metrics.add_peak("lag", "Lag.", lambda: 0.25)
    lags = Durations((0.1, 1.0))
    for seconds in (0.1, 0.1, 0.1, 0.5, 0.5, 2.0):
        lags.count(seconds)
    metrics.add_histogram("lags", "Lag.", lags)
    found = decode(encode(CountsReply(3, metrics.gather(), True)))
    assert isinstance(found.part, Counts)
    assert found.part.series["g", "r", "b", "-", "-", "-", "-"].attempts == {"ok": 1}
    assert found.part.families["egress_dns_lookups"].values == {("hit",): 1}
    assert found.part.families["lag"] == MetricFamily(MetricKind.PEAK, "Lag.", (), {(): 0.25})
    assert found.part.families["lags"].buckets == {(): (3, 2, 1)}


def test_enums_come_back_whatever_this_python_writes_of_one(monkeypatch: pytest.MonkeyPatch):
    """CPython 3.11.2 writes a call of `getattr`, which nobody may make here."""
    monkeypatch.setattr(MetricKind, "__reduce_ex__", lambda kind, _protocol: (getattr, (MetricKind, kind.name)))
    metrics = Metrics("1")
    metrics.add_peak("lag", "Lag.", lambda: 0.25)
    found = decode(encode(CountsReply(3, metrics.gather(), True)))
    assert found.part.families["lag"].kind is MetricKind.PEAK


@pytest.mark.parametrize("name", ["dataclass", "loads", "decode", "classes", "__builtins__"])
def test_what_the_module_of_messages_has_imported_is_not_called(name: str):
    module = messages.__name__
    octets = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(each)]) + each.encode() for each in (module, name)) + b"\x93."
    assert getattr(messages, name)
    with pytest.raises(pickle.UnpicklingError, match="no part of a message"):
        decode(octets)


@pytest.mark.parametrize("value", [Path("/"), print, getattr, subclass := type("Own", (), {})])
def test_what_is_no_message_is_not_made(value: object):
    octets = b"cos\nsystem\n(S'true'\ntR." if value is subclass else pickle.dumps(value)
    with pytest.raises(pickle.UnpicklingError, match="no part of a message"):
        decode(octets)


def test_the_headers_of_a_question_are_not_shown():
    assert "hush" not in repr(NumberedRequest(1, Query("explain", ((("header", "Authorization: hush"),),))))


def test_a_configuration_is_not_shown():
    assert "hush" not in repr(NumberedRequest(1, Build(Configuration(b"hush", {}, 1))))
