"""JSON, texts and events as filters of users read and change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from egressproxy.ai.apis.framing import MAX_EVENT_BYTES
from egressproxy.filters import Exchange, Filter, Rejected, SseEvent, json, sse
from egressproxy.filters.testing import FilterHarness, exchange, response

ASKED = b'{ "model": "m",  "max_tokens": 9000, "messages":[{"role":"user","content":"call 4711"}]}'


@pytest.fixture
def x() -> Exchange:
    return exchange("POST", "http://a.example/")


def test_what_is_not_changed_goes_on_byte_for_byte(x: Exchange):
    body = json(x, ASKED)
    assert body["messages", 0, "content"] == "call 4711"
    assert (body.get("none"), body.get("messages", 7, default=1), "model" in body) == (None, 1, True)
    assert bytes(body) is ASKED
    body["max_tokens"] = 4096
    assert bytes(body) == ASKED.replace(b"9000", b"4096")
    body["user"] = "me"
    assert bytes(body) == ASKED.replace(b"9000", b"4096")[:-1] + b',"user":"me"}'


def test_all_of_it_may_be_replaced(x: Exchange):
    body = json(x, ASKED)
    body.value = {"a": [1]}
    body["a", 0] = 2
    assert bytes(body) == b'{"a":[2]}'


@pytest.mark.parametrize("path", [("a", "b"), ("messages", 9), 0], ids=["name", "index", "root"])
def test_a_path_that_leads_nowhere_is_an_error(x: Exchange, path: object):
    body = json(x, b'{"a": 1, "messages": []}')
    with pytest.raises(KeyError):
        _ = body[path]  # type: ignore[index]
    with pytest.raises((ValueError, LookupError)):
        body[path] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        body["a"] = object()


@pytest.mark.parametrize(("data", "path", "holder"), [(b"[1]", "user", "object"), (b'{"a": 1}', 0, "array")])
def test_a_write_into_another_type_says_which_one_it_needs(x: Exchange, data: bytes, path: str | int, holder: str):
    with pytest.raises(ValueError, match=f"leads nowhere: what should hold it is no {holder}"):
        json(x, data)[path] = 1


def test_texts_of_messages_are_read_and_replaced(x: Exchange):
    body = json(x, ASKED)
    (part,) = body.texts()
    assert (part.role.value, part.text, part.where) == ("user", "call 4711", "messages[0].content")
    part.replace("call ****")
    assert bytes(body) == ASKED.replace(b"4711", b"****")


@pytest.mark.parametrize("data", [b"", b"{", b'{"a":1,"a":2}', b"\xff", b"NaN"])
def test_what_cannot_be_read_is_refused_with_the_status_of_its_direction(x: Exchange, data: bytes):
    with pytest.raises(Rejected, match="the body cannot be read") as caught:
        json(x, data)
    assert caught.value.status == 400
    assert "BodyMode.BUFFER" in caught.value.detail
    x.response = response()
    with pytest.raises(Rejected) as caught:
        json(x, data)
    assert caught.value.status == 502


STREAM = b': hi\n\nevent: a\r\ndata: {"choices":[{"delta":{"content":"4711"}}]}\r\n\r\ndata: [DONE]\n\nid: 1\ndata: end'


@pytest.mark.parametrize("size", [1, 7, len(STREAM)])
def test_events_come_whole_however_the_pieces_are_cut(x: Exchange, size: int):
    filter_ = Filter()
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    events = [event for at, piece in enumerate(pieces, 1) for event in sse(filter_, x, piece, at == len(pieces))]
    assert [(each.name, each.data) for each in events if each.data] == [
        ("a", '{"choices":[{"delta":{"content":"4711"}}]}'), ("", "[DONE]"), ("", "end"),
    ]  # fmt: skip
    assert b"".join(map(bytes, events)) == STREAM + b"\n\n"


def test_events_are_changed_and_added(x: Exchange):
    events = sse(Filter(), x, STREAM[: STREAM.index(b"data: [")], False)
    body = events[-1].json()
    assert body is not None
    for part in body.texts():
        part.replace("****")
    assert events[-1].data == '{"choices":[{"delta":{"content":"****"}}]}'
    events.append(SseEvent("a\nb", "note"))
    assert b"".join(map(bytes, events)).endswith(
        b'event: a\r\ndata: {"choices":[{"delta":{"content":"****"}}]}\r\n\r\nevent: note\ndata: a\ndata: b\n\n'
    )
    events[-1].data = "c"
    assert bytes(events[-1]) == b"event: note\ndata: c\n\n"
    assert SseEvent("[DONE]").json() is None
    with pytest.raises(ValueError, match="one line"):
        SseEvent("", "a\nb")


def test_each_filter_has_its_own_rest_and_an_endless_event_is_refused(x: Exchange):
    one, other = Filter(), Filter()
    assert sse(one, x, b"data: a", False) == sse(other, x, b"data: b", False) == []
    assert [each.data for each in sse(other, x, b"\n\n", False)] == ["b"]
    x.response = response()
    with pytest.raises(Rejected, match="more than") as caught:
        sse(one, x, bytes(MAX_EVENT_BYTES), False)
    assert caught.value.status == 502


def test_an_unfinished_event_counts_as_held_for_the_client(x: Exchange, tmp_path: Path):
    code = "from egressproxy.filters import Filter, sse\n\n\nclass F(Filter):\n"
    code += "    def response_body(self, x, data, last): return b''.join(map(bytes, sse(self, x, data, last)))\n"
    (tmp_path / "f.py").write_text(code)
    plan = FilterHarness({"path": "f.py"}, phase="response-body", folder=tmp_path)._chain.response_body
    assert plan is not None
    x.response = response()
    talk = plan.begin(x)
    assert talk.feed(x, b"data: a\n\ndata: unfinished", False) == b"data: a\n\n"
    assert (talk.keeps, talk.held(x)) == (True, 16)
    assert talk.feed(x, b"\n\n", True) == b"data: unfinished\n\n"
    assert talk.held(x) == 0
