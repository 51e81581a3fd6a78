"""Exchange: what filters may keep in it."""

import pytest

from egressproxy.filters.base import Filter, Phase
from egressproxy.filters.testing import exchange
from egressproxy.model.exchange import MAX_NOTE_BYTES, MAX_NOTES, LocalResponse, NotesFull
from tests.gateway.kit import forward
from tests.support.conversation import conversation, scripted_filter


def test_an_exchange_holds_a_number_of_notes():
    x = exchange("GET", "http://a.example/")
    for number in range(MAX_NOTES):
        x.note(f"note {number}", number)
    x.note("note 0", "another value")
    with pytest.raises(NotesFull, match="128 notes"):
        x.note("one more", 1)
    x.keep("of the gateway", 1)
    assert x.notes is not None
    assert (x.notes["note 0"], "one more" in x.notes) == ("another value", False)


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
