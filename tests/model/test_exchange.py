"""Exchange: what filters may keep in it."""

import ast
from ipaddress import ip_address
from pathlib import Path

import pytest

import egressproxy
from egressproxy.errors import Reason
from egressproxy.filters.base import Filter, Phase
from egressproxy.filters.testing import exchange, response
from egressproxy.model.circular_note import CircularNote
from egressproxy.model.exchange import (
    MAX_NOTE_BYTES,
    MAX_NOTES,
    BackendOrigin,
    Exchange,
    FilterNote,
    NotesFull,
    StateSlot,
)
from egressproxy.model.local_response import LocalResponse
from tests.gateway.kit import forward
from tests.support.conversation import conversation, scripted_filter


def test_an_exchange_holds_a_number_of_notes():
    x = exchange("GET", "http://a.example/")
    for number in range(MAX_NOTES):
        x.note(f"note {number}", number)
    x.note("note 0", "another value")
    with pytest.raises(NotesFull, match="128 notes"):
        x.note("one more", 1)
    assert x.notes is not None
    assert (x.notes["note 0"], "one more" in x.notes) == ("another value", False)


def test_what_the_gateway_keeps_is_no_note():
    x, slot = exchange("GET", "http://a.example/"), StateSlot[int]("one")
    for number in range(MAX_NOTES):
        x.keep(StateSlot(f"slot {number}"), number)
    x.keep(slot, 1)
    assert (x.notes, x.state.get(slot)) == (None, 1)
    FilterNote[int]("of the gateway").set(x, 2)
    assert x.notes == {"of the gateway": 2}


def test_a_slot_is_known_by_itself_and_not_by_its_name():
    x, one, other = exchange("GET", "http://a.example/"), StateSlot[int]("one"), StateSlot[int]("one")
    x.keep(one, 1)
    assert (x.state.get(one), x.state.get(other), x.take(other)) == (1, None, None)
    assert (x.take(one), x.take(one), x.state.get(one)) == (1, None, None)


def test_nobody_writes_to_the_state_that_all_exchanges_begin_with():
    x, slot = exchange("GET", "http://a.example/"), StateSlot[int]("one")
    with pytest.raises(TypeError):
        x.state[slot] = 1
    x.keep(slot, 1)
    assert slot not in exchange("GET", "http://a.example/").state


def test_an_attempt_keeps_for_itself_and_the_exchange_takes_over_what_the_last_one_has_kept():
    x, one, other = exchange("GET", "http://a.example/"), StateSlot[int]("one"), StateSlot[int]("other")
    x.keep(one, 1)
    x.note("mine", "before")
    own = x.copy()
    assert own.state is x.state
    own.fork_state()
    own.keep(one, 2)
    own.note("mine", "behind")
    x.keep(other, 3)
    assert (x.state.get(one), x.notes, own.state.get(other)) == (1, {"mine": "before"}, None)
    x.adopt_state(own)
    assert (x.state.get(one), x.state.get(other), x.notes) == (2, 3, {"mine": "behind"})
    assert (len(own.state), own.notes) == (0, None)


class Circle(CircularNote):
    released = 0

    def release(self):
        self.released += 1


def test_an_exchange_that_is_over_lets_go_of_all_but_what_another_one_has():
    x, both, mine = exchange("GET", "http://a.example/"), StateSlot[Circle]("both"), StateSlot[Circle]("mine")
    x.keep(both, shared := Circle())
    own = x.copy()
    own.fork_state()
    own.keep(mine, lost := Circle())
    own.note("mine", own)
    own.forget_state(x.state)
    assert (shared.released, lost.released, len(own.state), own.notes) == (0, 1, 0, None)
    x.forget_state()
    assert (shared.released, len(x.state)) == (1, 0)


@pytest.mark.parametrize("kind", [bytes, bytearray, lambda size: "x" * size])
def test_a_note_that_is_bytes_or_text_has_a_bound(kind):
    x = exchange("GET", "http://a.example/")
    x.note("short", kind(MAX_NOTE_BYTES))
    with pytest.raises(NotesFull, match="'long' is longer than 65536"):
        x.note("long", kind(MAX_NOTE_BYTES + 1))


class Hoards(Filter):
    runs_in = frozenset((Phase.REQUEST_HEADERS,))

    def request_headers(self, x):
        for number in range(1000):
            x.note(f"note {number}", number)


def test_a_filter_that_keeps_more_has_failed_and_the_gateway_has_not():
    talk = conversation(forward(extensions=[scripted_filter("hoards")]), filters={"hoards": Hoards()})
    talk.client >> b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 502 .*?filter_failed")
    talk.close()
    talk = conversation(forward(extensions=[scripted_filter("hoards", failOpen=True)]), filters={"hoards": Hoards()})
    talk.client >> b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.dialled("a.example", 80).take(rb"GET / .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 204 No\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 204 ")
    assert talk.until(lambda: bool(talk.records))
    assert talk.records[-1]["reason"] == "-"
    talk.close()


def test_the_fields_of_a_response_may_be_any_pairs():
    assert LocalResponse(200, [[b"a", b"b"]]).fields == ((b"a", b"b"),)  # type: ignore[arg-type, list-item]


def fields() -> list[str]:
    """The names of all fields of an Exchange, by its source: a compiled class does not tell them."""
    module = ast.parse((Path(egressproxy.__file__).parent / "model" / "exchange.py").read_text(encoding="utf-8"))
    kind = next(each for each in module.body if isinstance(each, ast.ClassDef) and each.name == "Exchange")
    slots = next(
        each for each in kind.body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__slots__"
    )
    return list(ast.literal_eval(slots.value))


def test_a_copy_has_every_field_of_an_exchange():
    x = exchange(
        "POST", "https://a.example/path", identity="agents/robot", backend="agents/openai", client="10.0.0.9:5"
    )
    x.response = response(201)
    values = {
        "addresses": (ip_address("192.0.2.1"),), "attempt_span_id": b"1", "attempts": 2, "backend_is_secure": True,
        "backend_origin": BackendOrigin("a.example", 443, True), "bytes_in": 3, "bytes_out": 4, "denied": True,
        "detail": "detail", "first_byte_at": 5.0, "grpc_status": 6, "is_tunnel": True,
        "max_body_bytes": 7, "path_prefix": b"/p", "reason": Reason.INTERNAL, "route": "agents/r",
        "rule": "rule", "series": object(), "started_wall": 8.0, "state": {StateSlot("a"): 1}, "status": 201,
        "trace": object(), "upstream": "192.0.2.1:443", "upstream_host": b"a.example", "would_deny": [Reason.NO_ROUTE],
    }  # fmt: skip
    for name, value in values.items():
        setattr(x, name, value)
    empty = Exchange("", "", "", 0.0)
    same = [name for name in fields() if hasattr(empty, name) and getattr(x, name) == getattr(empty, name)]
    assert same == [], "give these another value in this test"
    made = x.copy()
    assert not hasattr(made, "ended_at"), "only accounting sets it, when nobody copies any more"
    copied = set(fields()) - {"ended_at"}
    assert {name: getattr(made, name) for name in copied} == {name: getattr(x, name) for name in copied}


def test_heads_that_are_not_there_are_neither_copied_nor_taken_over():
    x, other = Exchange("", "", "", 0.0), Exchange("", "", "", 0.0)
    made = x.copy()
    assert (made.has_request, made.has_response) == (False, False)
    assert x.says_close
    with pytest.raises(AttributeError, match="response"):
        _ = x.response
    other.response = response(200)
    x.take_response(other)
    assert x.response is other.response
    x.take_response(made)
    assert not x.has_response
