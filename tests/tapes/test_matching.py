"""Which recording answers a request, and what is told where none does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.tapes.masking import Masker
from egressproxy.tapes.matching import Asked, Library, Rules, steady
from egressproxy.tapes.tape import Headers, Interaction, TapeError

JSON = [("content-type", "application/json")]
URL = "https://api.example.com/v1/x"


def recorded(answer: str = "a", uri: str = URL, method: str = "POST", headers: Headers = JSON, **body: Any):
    return Interaction(method, uri, headers, json.dumps(body).encode() if body else b"", 200, "OK", [], answer.encode())


def library(*found: Interaction, is_strict: bool = True, **ignored: tuple[str, ...]) -> Library:
    return Library(found, Rules.of(**ignored), is_strict=is_strict)


def asked(of: Library, uri: str = URL, method: str = "POST", headers: Headers = JSON, **body: Any) -> Asked:
    return Asked.of(of.rules, method, uri, headers, json.dumps(body).encode() if body else b"")


def answer(of: Library, request: Asked) -> str | None:
    found = of.find(request)
    return None if found is None else found.interaction.body.decode()


def test_method_url_and_body_have_to_be_equal():
    tapes = library(recorded(q="x"))
    for other in (asked(tapes, q="y"), asked(tapes, URL + "/z", q="x"), asked(tapes, method="PUT", q="x")):
        assert answer(tapes, other) is None
    assert answer(tapes, asked(tapes, URL.replace("example.com", "example.com:443"), q="x")) == "a"


def test_the_order_of_members_parameters_and_fields_of_forms_does_not_matter():
    tapes = library(recorded(uri=URL + "?a=1&b=2", x=1, y=[1, 2]))
    assert answer(tapes, asked(tapes, URL + "?b=2&a=1", y=[1, 2], x=1)) == "a"
    assert answer(tapes, asked(tapes, URL + "?b=2&a=1", y=[2, 1], x=1)) is None


def test_the_same_request_gets_one_recording_after_the_other():
    tapes = library(recorded("first", q=1), recorded("other", q=2), recorded("second", q=1))
    assert [answer(tapes, asked(tapes, q=1)) for _ in range(3)] == ["first", "second", None]
    assert [each.interaction.body for each in tapes.unplayed()] == [b"other"]
    lenient = library(recorded("first", q=1), recorded("second", q=1), is_strict=False)
    assert [answer(lenient, asked(lenient, q=1)) for _ in range(4)] == ["first", "second", "second", "second"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"id": "0b0a7c1e-6a0c-4b6e-9d0e-2f9c0f4b7d11"}, {"id": "3f2504e0-4f89-41d3-9a0c-0305e82c3301"}),
        ({"text": "Today is 2026-11-30."}, {"text": "Today is 2027-01-02."}),
        ({"at": "2026-11-30T10:00:00.123Z"}, {"at": "2027-01-02T03:04:05+01:00"}),
        ({"cwd": "/tmp/pytest-of-root/pytest-12/test_a0"}, {"cwd": "/tmp/pytest-of-ci/pytest-3/test_a0"}),
        ({"file": "/tmp/tmpab12cd34/x"}, {"file": "/tmp/tmpzz98yy76/x"}),
        ({"metadata": {"user_id": "u1"}}, {"metadata": {"user_id": "u2"}}),
        ({"data": [{"trace_id": "a", "n": 1}]}, {"data": [{"trace_id": "b", "n": 1}]}),
    ],
    ids=["uuid", "date", "time", "tmp_path", "tempfile", "user", "trace"],
)
def test_what_differs_in_each_run_is_not_compared(before: dict[str, Any], after: dict[str, Any]):
    tapes = library(recorded(**before))
    assert answer(tapes, asked(tapes, **after)) == "a"


def test_versions_and_numbers_are_compared():
    for text in ("gpt-4o-2024-08-06", "1.2.3", "2026"):
        assert steady(text) == text


def test_paths_and_parameters_of_ones_own_are_not_compared():
    ignored = {"ignore_body": ("$.user", "$.messages[*].id", "$..seed", "$.list[0]"), "ignore_query": ("Page",)}
    body = {"user": 1, "messages": [{"id": 1, "c": "x"}], "deep": {"seed": 1}, "list": [1, 2]}
    other = {"user": 2, "messages": [{"id": 3, "c": "x"}], "deep": {"seed": 4}, "list": [9, 2]}
    tapes = library(recorded(uri=URL + "?page=1", **body), **ignored)
    assert answer(tapes, asked(tapes, URL + "?page=2", **other)) == "a"
    assert answer(tapes, asked(tapes, URL, **{**other, "list": [9, 3]})) is None


@pytest.mark.parametrize("path", ["user", "$", "$.", "$.a[", "$.a b"])
def test_a_wrong_path_is_refused(path: str):
    with pytest.raises(TapeError, match="is no JSON path"):
        Rules.of((path,))


def test_forms_and_multipart_are_compared_by_their_fields():
    form = [("content-type", "application/x-www-form-urlencoded")]
    found = Interaction("POST", URL, form, b"a=1&b=2", 200, "OK", [], b"form")
    first = [("content-type", "multipart/form-data; boundary=one")]
    parts = Interaction("POST", URL, first, b"--one\r\n\r\nx\r\n--one--", 200, "OK", [], b"parts")
    tapes = library(found, parts)
    assert answer(tapes, Asked.of(tapes.rules, "POST", URL, form, b"b=2&a=1")) == "form"
    other = [("content-type", "multipart/form-data; boundary=two")]
    assert answer(tapes, Asked.of(tapes.rules, "POST", URL, other, b"--two\r\n\r\nx\r\n--two--")) == "parts"


@pytest.mark.parametrize(
    ("request_of", "told"),
    [
        ({"q": {"a": [1, 3]}}, "body $.q.a[1] is 3, the tape has 2"),
        ({"q": {"a": [1, 2], "b": None}}, "body $.q.b is null, the tape has nothing"),
        ({"q": {"a": [1]}}, "body $.q.a[1] is nothing, the tape has 2"),
        ({"uri": URL + "?z=1", "q": {"a": [1, 2]}}, 'parameter z is "1", the tape has nothing'),
        ({"uri": URL + "yz", "q": {"a": [1, 2]}}, "path is /v1/xyz, the tape has /v1/x"),
        ({"method": "PUT", "q": {"a": [1, 2]}}, "method is PUT, the tape has POST"),
        ({"uri": "https://api.other.com/v1/x"}, "host is api.other.com, the tape has api.example.com"),
    ],
    ids=["value", "more", "less", "parameter", "path", "method", "host"],
)
def test_a_miss_names_the_nearest_recording_and_the_first_difference(request_of: dict[str, Any], told: str):
    tapes = library(recorded(uri="https://z.example/"), recorded(q={"a": [1, 2]}), recorded(q={"other": "thing"}))
    why = tapes.why_missing(asked(tapes, **request_of))
    assert why == f"{told} (nearest: POST {URL})"


def test_a_miss_in_a_long_text_shows_where_it_begins():
    text = "The same words. " * 20
    tapes = library(recorded(q=text + "old end"))
    assert "new end" in tapes.why_missing(asked(tapes, q=text + "new end"))


def test_a_recording_that_was_played_is_told():
    tapes = library(recorded(q=1))
    request = asked(tapes, q=1)
    assert tapes.find(request) is not None
    assert tapes.why_missing(request).startswith("it was recorded 1 time and has been played as often")


def test_json_that_is_too_deep_is_compared_as_text():
    deep = b"[" * 600 + b"]" * 600
    found = Interaction("POST", URL, JSON, deep, 200, "OK", [], b"deep")
    tapes = library(found)
    assert answer(tapes, Asked.of(tapes.rules, "POST", URL, JSON, deep)) == "deep"
    assert Masker().interaction(found) == found


def test_a_stream_that_the_client_ended_may_be_asked_for_again():
    found = Interaction("GET", URL, [], b"", 200, "OK", [("content-type", "text/event-stream")], b"", is_open=True)
    tapes = library(found)
    request = Asked.of(tapes.rules, "GET", URL, [], b"")
    assert tapes.find(request) is tapes.find(request) is not None
