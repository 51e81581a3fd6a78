"""Names of models: what the provider of an endpoint is asked for, and that nothing else of the request changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.ai.backends.model_field import MAX_COMMAS_READ, MAX_READ, find_model, with_model
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.filters.base import BodyMode, Filter
from egressproxy.model.exchange import Exchange
from egressproxy.model.strict_json import MAX_STRINGS, has_too_many_parts
from egressproxy.model.work import at_once
from tests.gateway.backends.test_failover import answer, asked, refuse
from tests.gateway.conftest import Start
from tests.gateway.kit import OK, OK_PASSED
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter

CHAT = b'{ "messages": [{"role": "user", "content": "h\\u00e9llo  \xc3\xa9"}],\r\n\t"model" : "gpt-5" , "n":1.0e0 }'


def endpoint(name: str, priority: int, **more: Any) -> m.Manifest:
    return {"backendRef": {"group": m.OURS, "kind": "Backend", "name": name}, "priority": priority, **more}


def config(first: dict[str, Any], second: dict[str, Any] | None = None, **failover: Any) -> list[m.Manifest]:
    """A Failover of a.example and b.example, whose endpoints say this beside their priority."""
    return [
        m.gateway(m.http_listener(8080)),
        m.policy(),
        m.backend("a", "a.example", 80),
        m.backend("b", "b.example", 80),
        m.failover("any", endpoint("a", 0, **first), endpoint("b", 1, **(second or {})), **failover),
        m.http_route("route", m.prefix_rule("/", "any")),
    ]


def post(
    body: bytes = CHAT, path: bytes = b"/v1/chat/completions", *fields: bytes, kind: bytes = b"application/json"
) -> bytes:
    lines = [
        b"POST %b HTTP/1.1" % path,
        b"Host: x",
        b"Content-Type: " + kind,
        *fields,
        b"Content-Length: %d" % len(body),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def body_of(talk: Conversation, name: str, *, is_new: bool = True) -> bytes:
    """The body that this backend has got."""
    head = asked(talk, name, b"POST", is_new=is_new)
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return talk.origin.take(b"(?s).{%d}" % length)[0]


def test_the_model_alone_is_another_one(converse: Start):
    talk = converse(config({"modelAlias": "our-gpt"}))
    talk.client >> post()
    assert body_of(talk, "a") == CHAT.replace(b'"gpt-5"', b'"our-gpt"')
    talk.origin >> OK
    talk.client << OK_PASSED
    record = talk.record()
    assert (record["ai_model"], record["ai_backend_model"]) == ("gpt-5", "our-gpt")
    assert (record["ai_api"], record["ai_backend_api"]) == ("OpenAIChat", "OpenAIChat")


@pytest.mark.parametrize(("alias", "stays"), [("our-gpt", False), ("gpt-5", True)])
def test_digests_of_the_body_go_where_it_has_become_another(converse: Start, alias: str, stays: bool):
    talk = converse(config({"modelAlias": alias}))
    talk.client >> post(CHAT, b"/v1/chat/completions", b"Content-Digest: sha-256=:eA==:", b"Content-MD5: eA==")
    head = asked(talk, "a", b"POST").lower()
    assert (b"content-digest" in head, b"content-md5" in head) == (stays, stays)
    talk.origin.take(rb"(?s){.*}")
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ({"modelAliases": {"gpt-5": "big"}}, b"big"),
        ({"modelAliases": {"gpt-4": "small"}}, b"gpt-5"),
        ({"modelAliases": {"gpt-4": "small"}, "modelAlias": "any"}, b"any"),
        ({"modelAliases": {"gpt-5": "big"}, "modelAlias": "any"}, b"big"),
    ],
)
def test_aliases_by_model_go_before_the_one_for_all(converse: Start, said: dict[str, Any], sent: bytes):
    talk = converse(config(said))
    talk.client >> post()
    assert body_of(talk, "a") == CHAT.replace(b"gpt-5", sent)


def test_each_endpoint_has_its_own(converse: Start):
    talk = converse(config({"modelAlias": "at-a"}, {"modelAlias": "at-b"}))
    talk.client >> post()
    assert b'"at-a"' in body_of(talk, "a")
    answer(talk, 429)
    assert body_of(talk, "b") == CHAT.replace(b"gpt-5", b"at-b")
    talk.origin >> OK
    talk.client << OK_PASSED
    record = talk.record()
    assert (record["ai_model"], record["ai_backend_model"]) == ("gpt-5", "at-b")


def test_an_endpoint_without_alias_gets_what_the_client_has_sent(converse: Start):
    talk = converse(config({"modelAlias": "at-a"}))
    talk.client >> post()
    assert b'"at-a"' in body_of(talk, "a")
    answer(talk, 503)
    assert body_of(talk, "b") == CHAT


def test_a_request_that_one_endpoint_gets_as_it_is_waits_for_nothing(converse: Start):
    talk = converse(config({}, {"modelAlias": "at-b"}))
    request = post()
    talk.client >> request[:-10]
    asked(talk, "a", b"POST")  # while the body is under way
    talk.client >> request[-10:]
    talk.origin.take(b"(?s).{%d}" % len(CHAT))
    answer(talk, 529)
    assert body_of(talk, "b") == CHAT.replace(b"gpt-5", b"at-b")


def test_a_backend_that_refuses_while_the_body_is_under_way_leads_to_one_that_needs_all_of_it(converse: Start):
    talk = converse(config({}, {"modelAlias": "at-b"}))
    request = post()
    talk.client >> request[:-10]
    refuse(talk, "a")
    talk.client >> request[-10:]
    assert body_of(talk, "b") == CHAT.replace(b"gpt-5", b"at-b")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (b"/v1/embeddings", b"application/json; charset=utf-8"),
        (b"/v1/responses", b"text/plain"),
        (b"/v1//responses", b"text/plain"),
        (b"/v1/chat/completions/", b"text/plain"),
        (b"/v1/%63hat/completions", b"text/plain"),
    ],
)
def test_other_paths_have_models_too(converse: Start, path: bytes, kind: bytes):
    talk = converse(config({"modelAlias": "our-gpt"}))
    talk.client >> post(CHAT, path, kind=kind)
    assert b"our-gpt" in body_of(talk, "a")


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b'{"messages": []}', b"application/json"), (b"--x\r\nmodel", b"multipart/form-data; boundary=x")],
)
def test_what_names_no_model_passes(converse: Start, body: bytes, kind: bytes):
    talk = converse(config({"modelAlias": "our-gpt"}))
    talk.client >> post(body, b"/v1/audio/transcriptions", kind=kind)
    assert body_of(talk, "a") == body


def test_the_method_in_lower_case_is_the_same_request(converse: Start):
    """Some servers read it so."""
    talk = converse(config({"modelAlias": "our-gpt"}))
    talk.client >> post().replace(b"POST", b"post")
    talk.dialled("a.example", 80)
    talk.origin.take(b'(?s)^post /v1/chat.*"our-gpt"')


def test_a_get_passes(converse: Start):
    talk = converse(config({"modelAlias": "our-gpt"}))
    talk.client >> b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    asked(talk, "a")
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "a", "model": "b"}',
        b'{"model": "a", "MODEL": "b"}',
        b'{"mod\\u0065l": "a", "model": "b"}',
        b'{"Model": "a"}',
        b'{"model": ["a"]}',
        b'{"model": "a"} {"model": "b"}',
        b'{"model": "a", "x": NaN}',
        b'{"model": "a",}',
        b'["model"]',
        b"\xff",
        b"",
        b"[" * 100_000,
        b'{"model": "a", "x": [' + b"[]," * MAX_READ + b"1]}",
        b'{"model": "a", "x": [' + b'"",' * (MAX_STRINGS + 1) + b"1]}",
        b'{"model": "a", "x": [' + b"1," * MAX_COMMAS_READ + b"1, 1]}",
    ],
)
def test_two_meanings_and_none_are_refused(body: bytes):
    with pytest.raises(Untranslatable):
        at_once(find_model(body))


def test_names_are_written_as_json():
    named = at_once(find_model(b'{"model": "a", "messages": [{"model": "b"}]}'))
    assert named is not None
    assert at_once(with_model(named, 'say "x"\\')) == b'{"model": "say \\"x\\"\\\\", "messages": [{"model": "b"}]}'


def test_a_refusal_names_the_field_in_the_shape_of_the_api(converse: Start):
    talk = converse(config({"modelAlias": "our-gpt"}, {"modelAlias": "at-b"}))
    talk.client >> post(b'{"model": "a", "model": "b"}')
    said = talk.client.take(rb"HTTP/1.1 400 .*?\r\n\r\n({.*})")[1]
    assert b'"param":"model"' in said
    assert b'"code":"untranslatable"' in said
    record = talk.record()
    assert record["reason"] == "untranslatable"
    assert [each["outcome"] for each in record["attempts_detail"]] == ["untranslatable"] * 2


def test_an_endpoint_that_cannot_get_it_is_passed_over_without_blame(converse: Start):
    talk = converse(config({"modelAlias": "our-gpt"}, attemptsHeader=True))
    body = b'{"model": "a", "model": "b"}'
    talk.client >> post(body)
    assert body_of(talk, "b") == body
    talk.origin >> OK
    head = talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")[0]
    assert b'X-Egress-Attempts: "agents/a";outcome=untranslatable;ms=0, "agents/b";outcome=200' in head
    talk.client >> post()
    assert b"our-gpt" in body_of(talk, "a")  # it was not put aside


def test_the_failure_is_told_where_those_that_are_left_cannot_serve(converse: Start):
    talk = converse(config({}, {"modelAlias": "at-b"}))
    body = b'{"model": "a", "model": "b"}'
    talk.client >> post(body)
    assert body_of(talk, "a") == body
    answer(talk, 529)
    talk.client.take(rb"HTTP/1.1 529 .*?\r\n\r\nno")


def test_a_long_body_is_refused(converse: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("egressproxy.ai.backends.endpoint.MAX_BUFFERED_BYTES", 50)
    talk = converse(config({"modelAlias": "our-gpt"}))
    talk.client >> post()
    talk.client.take(rb"HTTP/1.1 413 .*?\r\n\r\n.*body_too_large")


def test_a_compressed_body_is_refused(converse: Start):
    talk = converse(config({"modelAlias": "our-gpt"}, {"modelAlias": "at-b"}))
    talk.client >> post(b"\x1f\x8b", b"/v1/messages", b"Content-Encoding: gzip")
    assert b"Content-Encoding" in talk.client.take(rb"HTTP/1.1 400 .*?\r\n\r\n({.*})")[1]


def test_a_client_that_waits_is_asked_for_the_body(converse: Start):
    talk = converse(config({"modelAlias": "our-gpt"}, {}))
    request = post(CHAT, b"/v1/chat/completions", b"Expect: 100-continue")
    talk.client >> request[: -len(CHAT)]
    talk.client << b"HTTP/1.1 100 Continue\r\n\r\n"
    talk.client >> CHAT
    assert b"our-gpt" in body_of(talk, "a")
    answer(talk, 500)
    talk.dialled("b.example", 80)
    assert b"Expect" not in talk.origin.take(rb"POST .*?\r\n\r\n")[0]


def test_names_of_any_kind_are_logged_and_told(converse: Start):
    talk = converse(config({"modelAliases": {"other": "x"}}))
    body = b'{"model": "\\ud800\\u0000\xe2\x80\xa8' + b"x" * 500 + b'"}'
    talk.client >> post(body)
    assert body_of(talk, "a") == body
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.record()["ai_model"] == "\ud800\0\u2028" + "x" * 125


class Whole(Filter):
    body_mode = BodyMode.BUFFER
    max_buffer_bytes = 1000

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        return data.replace(b"gpt-5", b"gpt-6")


@pytest.mark.parametrize("is_buffered", [False, True])
def test_filters_of_the_body_come_before(converse: Start, is_buffered: bool):
    objects = config({"modelAliases": {"gpt-6": "six"}}, {})
    objects[1] = m.policy(extensions=[scripted_filter("whole", "request-body")])
    Whole.body_mode = BodyMode.BUFFER if is_buffered else BodyMode.STREAM
    talk = converse(objects, filters={"whole": Whole()})
    talk.client >> post()
    assert body_of(talk, "a") == CHAT.replace(b"gpt-5", b"six")
    answer(talk, 500)
    assert b"gpt-6" in talk.dialled("b.example", 80).take(rb"(?s)POST .*}")[0]


def test_a_body_in_chunks(converse: Start):
    talk = converse(config({"modelAlias": "ours"}, {}))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    talk.client >> head + b"10\r\n" + CHAT[:16] + b"\r\n"
    talk.client >> b"%x\r\n%b\r\n0\r\n\r\n" % (len(CHAT) - 16, CHAT[16:])
    assert body_of(talk, "a") == CHAT.replace(b"gpt-5", b"ours")
    answer(talk, 500)
    sent = talk.dialled("b.example", 80).take(rb"(?s)POST .*\r\n0\r\n\r\n")[0]
    assert b"Transfer-Encoding: chunked" in sent
    assert b'"gpt-5"' in sent


def test_a_long_file_names_no_model_and_is_not_read(converse: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("egressproxy.ai.backends.endpoint.MAX_BUFFERED_BYTES", 5)
    talk = converse(config({"modelAlias": "ours"}))
    request = post(b"--x\r\nmodel and more", b"/v1/audio/transcriptions", kind=b"multipart/form-data; boundary=x")
    talk.client >> request[:-5]
    asked(talk, "a", b"POST")
    talk.client >> request[-5:]
    assert talk.origin.take(b"(?s)--x.*")[0] == b"--x\r\nmodel and more"


@pytest.mark.parametrize("alias", ["ours", "gpt-5"])
@pytest.mark.parametrize(("limit", "goes_on"), [(len(CHAT), True), (len(CHAT) - 1, False)])
def test_what_is_longer_than_is_kept_goes_to_one_endpoint_alone(converse: Start, alias: str, limit: int, goes_on: bool):
    talk = converse(config({"modelAlias": alias}, {}, maxReplayBytes=limit))
    talk.client >> post()
    assert body_of(talk, "a") == CHAT.replace(b"gpt-5", alias.encode())
    answer(talk, 503)
    if goes_on:
        assert body_of(talk, "b") == CHAT
    else:
        talk.client.take(rb"HTTP/1.1 503 .*?\r\n\r\nno")


@pytest.mark.parametrize(("alias", "model"), [({}, b"gpt-5"), ({"modelAlias": "ours"}, b"ours")])
def test_what_no_backend_has_seen_goes_on_however_long_it_is(converse: Start, alias: dict[str, Any], model: bytes):
    talk = converse(config({}, alias, maxReplayBytes=0))
    talk.client >> post()
    refuse(talk, "a")
    assert body_of(talk, "b") == CHAT.replace(b"gpt-5", model)
    answer(talk, 503)
    talk.client.take(rb"HTTP/1.1 503 .*?\r\n\r\nno")


def test_what_was_read_to_look_for_who_can_serve_it_goes_to_others_once(converse: Start):
    objects = config({}, {"modelAlias": "ours"}, maxReplayBytes=0)
    objects += [m.backend("c", "c.example", 80), m.backend("d", "d.example", 80)]
    objects[4]["spec"]["destination"]["failover"]["endpoints"] += [endpoint("c", 2), endpoint("d", 3)]
    talk = converse(objects)
    body = b'{"model": "a", "model": "b"}'  # b cannot get it
    talk.client >> post(body)
    refuse(talk, "a")
    assert body_of(talk, "c") == body
    answer(talk, 503)
    talk.client.take(rb"HTTP/1.1 503 .*?\r\n\r\nno")
    talk.no_dial()


def test_an_endpoint_is_passed_over_for_one_that_needs_the_body_too(converse: Start):
    objects = config({"modelAlias": "ours"}, maxReplayBytes=0)
    objects[3]["spec"]["destination"]["ports"][0]["protocolOptions"] = {"ai": {"apis": ["OpenAIResponses"]}}
    talk = converse(objects)
    talk.client >> post(b'{"model": "a", "model": "b"}')
    assert b'"param":"model"' in talk.client.take(rb"HTTP/1.1 400 .*?\r\n\r\n{.*}")[0]


@pytest.mark.parametrize("limit", [0, 1000])
def test_what_was_read_for_one_endpoint_is_sent_to_the_next_as_it_is(converse: Start, limit: int):
    talk = converse(config({"modelAlias": "ours"}, {}, maxReplayBytes=limit))
    body = b'{"model": "a", "model": "b"}'
    talk.client >> post(body)
    assert body_of(talk, "b") == body


def test_a_long_conversation_of_code_is_short_enough():
    code = json.dumps({"a": [{"b": "c, d"}] * 50})
    body = json.dumps({"model": "gpt-5", "messages": [{"role": "tool", "content": code * 10}] * 1000}).encode()
    assert len(body) > 8_000_000
    found = at_once(find_model(body))
    assert found is not None
    assert found.name == "gpt-5"
    assert not has_too_many_parts(body)
