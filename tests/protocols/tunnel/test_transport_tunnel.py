"""Tunnels under any cutting of bytes and any order of ends: everything that was sent before an end arrives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import binary, lists, one_of, sampled_from, tuples

from tests.gateway.kit import ESTABLISHED, connect, forward
from tests.support.conversation import conversation
from tests.support.properties import examples

SIDES = sampled_from(["client", "origin"])
EVENT: Any = one_of(
    tuples(SIDES, binary(min_size=1, max_size=200)),
    tuples(SIDES, sampled_from(["ends", "stalls", "reads_on"])),
)


@pytest.mark.timeout(120)
@settings(max_examples=examples(80), deadline=None)
@given(binary(max_size=50), lists(EVENT, max_size=12))
def test_every_octet_before_an_end_is_delivered_in_order(early: bytes, events: list[tuple[str, Any]]):
    early = early.lstrip(bytes((*range(0x14, 0x19), *range(0x80, 0x100))))  # no hello: that is the guard's own test
    talk = conversation(forward())
    talk.client >> connect("a.example:22") + early
    talk.dialled("a.example", 22)
    talk.client << ESTABLISHED
    sides = {"client": talk.client, "origin": talk.origin}
    sent = {"client": early, "origin": b""}
    if not early:
        talk.client >> b"."
        sent["client"] = b"."
    for side, event in events:
        peer = sides[side]
        if isinstance(event, bytes):
            if not peer.sent_eof:
                peer >> event
                sent[side] += event
        elif event == "ends":
            if not peer.sent_eof:
                peer.ends()
        else:
            getattr(peer, event)()
    for peer in sides.values():
        peer.reads_on()
    for peer in sides.values():
        if not peer.sent_eof:
            peer.ends()
    talk.settle()
    assert talk.origin.got == sent["client"]
    assert talk.client.got == sent["origin"]
    assert talk.client.is_gone
    assert talk.origin.is_gone
    record = talk.record()
    assert record["bytes_in"] == len(connect("a.example:22")) + len(sent["client"])
    assert record["bytes_out"] == len(ESTABLISHED) + len(sent["origin"])
    talk.close()
