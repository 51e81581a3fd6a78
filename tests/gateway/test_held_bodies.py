"""Bodies that are held, in a process that has no memory left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from egressproxy.gateway.backends.replayable_body import REPLAY_LIMIT
from egressproxy.gateway.overload.memory_pressure import OverloadState
from tests.ai.backends import test_aliases, test_translation
from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.gateway.server.test_overload_manager import Pressed
from tests.support.conversation import Conversation

PIECE = b"x" * 8192
MANY = 8_000_000


def is_refused(talk: Conversation) -> None:
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"]) == (503, "overloaded")
    assert fields["Retry-After"] in ("1", "2", "3")
    talk.client.is_closed()


@pytest.mark.parametrize(
    "config",
    [
        lambda: test_aliases.config({"modelAlias": "our-gpt"}),
        lambda: test_aliases.config({"modelAlias": "our-gpt"}, {}),
    ],
    ids=["one", "failover"],
)
@pytest.mark.parametrize("is_short", [True, False])
def test_a_request_that_is_held_does_not_grow_while_there_is_no_memory(
    converse: Start, config: Callable[[], Any], is_short: bool
):
    pressed = Pressed(converse(config()))
    talk = pressed.talk
    talk.client >> test_aliases.post().partition(b"Content-Length")[0] + b"Content-Length: %d\r\n\r\n" % MANY
    assert pressed.uses(96 if is_short else 60) is (OverloadState.REFUSING if is_short else OverloadState.NORMAL)
    for _ in range(REPLAY_LIMIT // len(PIECE)):
        talk.client >> PIECE
        talk.client.is_open()
    talk.client >> PIECE
    if is_short:
        is_refused(talk)
    else:
        talk.client.is_open()
    talk.no_dial()


@pytest.mark.parametrize("is_short", [True, False])
def test_a_body_that_flows_is_not_kept_for_another_endpoint_while_there_is_no_memory(converse: Start, is_short: bool):
    pressed = Pressed(converse(test_aliases.config({})))
    talk = pressed.talk
    talk.client >> test_aliases.post().partition(b"Content-Length")[0] + b"Content-Length: %d\r\n\r\n" % (200_000)
    test_aliases.asked(talk, "a", b"POST")
    pressed.uses(96 if is_short else 60)
    for _ in range(REPLAY_LIMIT // len(PIECE) + 1):
        talk.client >> PIECE
    test_aliases.answer(talk, 529)
    if is_short:
        talk.client.take(rb"HTTP/1.1 529 ")
    else:
        talk.dialled("b.example", 80)


def test_nor_does_one_of_http2(converse: Start):
    pressed = Pressed(converse(test_aliases.config({"modelAlias": "our-gpt"})))
    client = speak_http2(pressed.talk)
    fields = (b"content-type", b"application/json"), (b"content-length", b"%d" % MANY)
    stream = client.ask(b"POST", b"/v1/chat/completions", b"x", *fields, ends=False)
    pressed.uses(96)
    for _ in range(REPLAY_LIMIT // len(PIECE)):
        client.says(stream, PIECE)
        assert not client.answer(stream).fields
    client.says(stream, PIECE)
    assert client.answer(stream).status == 503


def test_an_answer_that_is_held_does_not_grow_while_there_is_no_memory(converse: Start):
    pressed = Pressed(converse(test_translation.config()))
    talk = pressed.talk
    talk.client >> test_aliases.post(b'{"model":"m","messages":[{"role":"user","content":"x"}]}')
    test_aliases.body_of(talk, "a")
    pressed.uses(96)
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % MANY
    for _ in range(REPLAY_LIMIT // len(PIECE)):
        talk.origin >> PIECE
        talk.client.is_open()
    talk.origin >> PIECE
    is_refused(talk)
    talk.origin.is_closed()
