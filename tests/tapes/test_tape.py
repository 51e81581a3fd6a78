"""Tapes as files: what people and vcrpy read, and what comes back."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.cli.main import main
from egressproxy.tapes.checks import answer_changes, drift, header_of, is_to
from egressproxy.tapes.filter import ends_of_events, event_times
from egressproxy.tapes.masking import Masker
from egressproxy.tapes.tape import Interaction, TapeError, file_name, read, write, written

if TYPE_CHECKING:
    from aiohttp import ClientSession

JSON = [("content-type", "application/json")]
EVENTS = [("content-type", "text/event-stream")]
ANSWER = b'{"id": "a", "choices": [{"n": 1.50, "text": "gr\xc3\xbc\xc3\x9fe"}]}'
FOUND = Interaction(
    "POST", "https://api.example.com/v1/x?a=1", [*JSON, ("accept", "*/*")], b'{"q": "x"}', 200, "OK",
    [*JSON, ("set-cookie", "a=1"), ("set-cookie", "b=2")], ANSWER, "2026-11-30T10:00:00Z", 0.25, "gzip",
)  # fmt: skip


#: Of a stranger: URI, phrase, fields.
ONE = """a: &a x
version: 1
interactions:
- request: {method: GET, uri: '%s'}
  response: {status: {code: 200, message: "%s"}, headers: %s}
"""


def tape(folder: Path, *found: Interaction, name: str = "api.example.com.yaml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / name, [written(each.readable()) for each in found])
    return folder / name


def tapes(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["tapes", *map(str, arguments)])


def test_a_tape_is_readable_and_for_its_owner_alone(tmp_path: Path):
    path = tape(tmp_path, FOUND)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    text = path.read_text("utf-8")
    assert text.startswith("version: 1\ninteractions:\n- request:\n    method: POST\n")
    assert '"n": 1.5,\n' in text
    assert '"text": "grüße"\n' in text
    assert "      set-cookie: [a=1, b=2]\n" in text


def test_a_tape_has_the_form_of_vcrpy(tmp_path: Path):
    """As `vcr.serialize.deserialize` takes it apart: version 1, and no other keys where those are arguments."""
    data = yaml.safe_load(tape(tmp_path, FOUND).read_text("utf-8"))
    assert data["version"] == 1
    (entry,) = data["interactions"]
    assert set(entry["request"]) == {"method", "uri", "body", "headers"}
    assert set(entry["response"]) == {"status", "headers", "body"}
    assert entry["response"]["status"] == {"code": 200, "message": "OK"}
    assert json.loads(entry["response"]["body"]["string"]) == json.loads(ANSWER)


def test_what_is_written_is_read_again(tmp_path: Path):
    stream = Interaction(
        "GET", "https://api.example.com/s", [], b"", 200, "OK", EVENTS, b"data: 1\n\ndata: 2\n\n", "x", 1.0, "",
        (0.1, 0.9), is_open=True,
    )  # fmt: skip
    binary = Interaction("GET", "https://api.example.com/b", [], b"", 206, "", [], b"\xff\x00\x01")
    before = [FOUND.readable(), stream, binary]
    again = read(tape(tmp_path, *before))
    assert [again[0], again[1]] == before[:2]
    assert again[2].body == binary.body


def test_a_manifest_with_a_digest_keeps_its_bytes():
    media = "application/vnd.oci.image.manifest.v1+json"
    headers = [("content-type", media), ("docker-content-digest", "sha256:0")]
    body = b'{"a":1, "mail":"jane.roe@corp-mail.com"}'
    found = Interaction("GET", "https://r.example/v2/x/manifests/1", [], b"", 200, "OK", headers, body)
    assert Masker().interaction(found).readable().body == body


@settings(max_examples=12)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
def test_every_body_comes_back_as_it_was(body: bytes):
    entry = written(Interaction("POST", "https://a.example/", [], body, 200, "OK", [], body))
    (found,) = yaml.safe_load(entry)
    for back in (found["request"]["body"], found["response"]["body"]["string"]):
        assert (back.encode() if isinstance(back, str) else back or b"") == body


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", ":2: this is not YAML"),
        ("a: 1", "no list `interactions`"),
        ("interactions: []\nversion: 2", "version is 2"),
        ("version: 1\ninteractions: [{request: {method: GET}}]", "interaction 1: 'response' is missing"),
        (
            "version: 1\ninteractions: [{request: {method: GET, uri: ftp://x}, response: {status: {code: 200}}}]",
            "interaction 1: request.uri is 'ftp://x'",
        ),
        (
            "version: 1\ninteractions: [{request: {method: GET, uri: 'http://x'}, response: {status: {code: 99}}}]",
            "write a number from 200 to 599",
        ),
        ("version: 1\nx: !!python/object/apply:os.abort []", ":2: this is not YAML"),
        ("version: 1\nx: !!bool x", "this is not YAML"),
        ("version: 1\nx: 2026-13-45", "this is not YAML"),
        (f"version: 1\nx: {'9' * 5000}", "this is not YAML"),
        ("a: &a {x: 1}\nb: {<<: [*a, *a]}", "this is not YAML"),
        (ONE % ("http://x", "OK\\r\\nset-cookie: a=1", "{}"), "'OK\\r\\nset-cookie: a=1' is no text of one line"),
        (ONE % ("http://x", "OK", "{x: [[*a, *a]]}"), "list is no text of one line"),
        (ONE % ("http://x", "OK", "{x: ['a', \"b\\nc: d\"]}"), "'b\\nc: d' is no text of one line"),
        (ONE % ("http://x", "OK", "{'x y': z}"), "'x y' has a name that HTTP does not allow"),
        (ONE % ("http://x:99999", "OK", "{}"), "Port out of range"),
    ],
    ids=[
        "yaml", "list", "version", "response", "uri", "status", "tag", "value", "date", "number", "merge", "phrase",
        "nested", "lines", "name", "port",
    ],
)  # fmt: skip
def test_a_wrong_tape_is_told_with_its_place(tmp_path: Path, text: str, told: str):
    path = tmp_path / "a.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(TapeError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)
    assert tapes("check", tmp_path).exit_code == 1


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("https://API.Example.com/x", "api.example.com.yaml"),
        ("https://api.example.com:443/", "api.example.com.yaml"),
        ("http://api.example.com:8443/", "api.example.com_8443.yaml"),
        ("http://[::1]:80/", "__1.yaml"),
        ("http://..hidden/", "hidden.yaml"),
        ("http://.../", "unknown.yaml"),
        (f"http://{'a' * 250}:8080/", f"{'a' * 200}-8067db82_8080.yaml"),
    ],
    ids=["host", "usual-port", "port", "address", "hidden", "dots", "long"],
)
def test_a_host_has_a_file(uri: str, name: str):
    assert file_name(uri) == name


def test_events_have_the_time_of_the_piece_that_ends_them():
    body = b"data: 1\n\ndata: 2\r\n\r\n: x\n\nrest"
    assert [body[:end][-4:] for end in ends_of_events(body)] == [b" 1\n\n", b"\r\n\r\n", b" x\n\n", b"rest"]
    pieces = [(0.1, body[:4]), (0.2, body[4:11]), (0.3, body[11:])]
    assert event_times(body, pieces) == (0.2, 0.3, 0.3, 0.3)


def test_a_check_finds_what_somebody_has_written_by_hand(tmp_path: Path):
    tape(tmp_path, FOUND)
    fine = tapes("check", tmp_path)
    assert (fine.exit_code, fine.output) == (1, fine.output)  # its cookies
    assert "response.headers (set-cookie) has what a recording masks" in fine.output
    clean = tmp_path / "clean"
    tape(clean, Interaction("GET", "https://api.example.com/", [], b"", 200, "OK", JSON, ANSWER))
    assert tapes("check", clean).output == "1 exchange in 1 tape, 0 findings.\n"


def test_har_there_and_back(tmp_path: Path):
    binary = Interaction("GET", "https://files.example.com/b?x=%20", [], b"", 200, "OK", [], b"\xff\x00")
    tape(tmp_path / "a", FOUND)
    tape(tmp_path / "a", binary, name="files.example.com.yaml")
    made = tapes("har", tmp_path / "a")
    assert made.exit_code == 0
    (tmp_path / "a.har").write_text(made.output, "utf-8")
    assert json.loads(made.output)["log"]["version"] == "1.2"
    assert "b=2" not in made.output
    told = tapes("import", tmp_path / "a.har", "--to", tmp_path / "b")
    assert told.exit_code == 0, told.output
    (back,) = read(tmp_path / "b" / "api.example.com.yaml")
    assert (back.method, back.uri, back.status) == (FOUND.method, FOUND.uri, FOUND.status)
    assert json.loads(back.body) == json.loads(ANSWER)
    assert ("set-cookie", "a=[SECRET]") in back.headers
    assert read(tmp_path / "b" / "files.example.com.yaml")[0].body == binary.body
    again = tapes("import", tmp_path / "a.har", "--to", tmp_path / "b")
    assert again.exit_code == 1
    assert "--force" in again.output


@pytest.mark.parametrize(
    ("uri", "host", "is_its"),
    [
        ("https://api.example.com/x", "api.example.com", True),
        ("https://api.example.com:8443/x", "API.example.com:8443", True),
        ("https://api.example.com:8443/x", "api.example.com:443", False),
        ("https://api.example.com:443@evil.example/x", "api.example.com", False),
        ("https://api.example.com:x@evil.example/x", "api.example.com", False),
    ],
    ids=["host", "port", "other-port", "user", "password"],
)
def test_a_credential_goes_to_its_host_alone(uri: str, host: str, is_its: bool):
    assert is_to(Interaction("GET", uri, [], b"", 200, "OK", [], b""), host) is is_its


async def test_a_credential_is_not_sent_in_plain_http():
    sent = []

    class Session:
        def request(self, *_: str, headers: list[tuple[str, str]], **__: object) -> None:
            sent.append(headers)
            raise OSError

    for uri in ("http://api.example.com/", "https://api.example.com/"):
        found = Interaction("GET", uri, [("authorization", "Bearer [SECRET]")], b"", 200, "OK", [], b"")
        await drift(cast("ClientSession", Session()), found, [("authorization", "Bearer key")])
    assert sent == [[], [("authorization", "Bearer key")]]


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({"name": "set-cookie", "value": "a=1\nb=2"}, ""),
        ({"name": "x", "value": "a\rb: c"}, "is no text of one line"),
        ({"name": "x y", "value": "a"}, "a name that HTTP does not allow"),
    ],
    ids=["joined", "lines", "name"],
)
def test_an_archive_becomes_a_tape_that_can_be_read(tmp_path: Path, header: dict[str, str], told: str):
    entry = {
        "request": {"method": "GET", "url": "https://a.example/"},
        "response": {"status": 200, "headers": [header]},
    }
    (tmp_path / "a.har").write_text(json.dumps({"log": {"entries": [entry]}}), "utf-8")
    made = tapes("import", tmp_path / "a.har", "--to", tmp_path / "b")
    assert (told in made.output, made.exit_code) == (True, int(bool(told)))
    if not told:
        (found,) = read(tmp_path / "b" / "a.example.yaml")
        assert found.headers == [("set-cookie", "a=[SECRET]"), ("set-cookie", "b=[SECRET]")]


def test_a_credential_is_masked_in_earlier_entries_of_an_archive(tmp_path: Path):
    token = "opaque4711token0815"
    early = {"request": {"method": "GET", "url": "https://a.example/"}}
    early["response"] = {"status": 200, "content": {"text": f"your ticket: {token}", "mimeType": "text/plain"}}
    fields = [{"name": "Authorization", "value": f"Bearer {token}"}]
    late = {"request": {"method": "GET", "url": "https://b.example/", "headers": fields}, "response": {"status": 200}}
    (tmp_path / "a.har").write_text(json.dumps({"log": {"entries": [early, late]}}), "utf-8")
    made = tapes("import", tmp_path / "a.har", "--to", tmp_path / "b")
    assert made.exit_code == 0, made.output
    assert not any(token in each.read_text("utf-8") for each in (tmp_path / "b").iterdir())


def test_drift_is_told_by_field():
    now = b'{"id": 7, "choices": [{"n": 2, "text": "other", "extra": null}], "new": true}'
    assert list(answer_changes(FOUND, 429, JSON, now)) == [
        "status is 429, the tape has 200",
        "$.id is number, the tape has text",
        "$.choices[*].extra is new: null",
        "$.new is new: boolean",
    ]
    assert list(answer_changes(FOUND, 200, [("content-type", "text/html")], b"")) == [
        "content-type is text/html, the tape has application/json"
    ]
    assert list(answer_changes(FOUND, 200, JSON, ANSWER.replace(b"grA", b"x"))) == []


def test_drift_of_events_is_told_by_their_type():
    before = b'event: start\ndata: {"type": "start", "n": 1}\n\nevent: stop\ndata: {"type": "stop"}\n\n'
    found = Interaction("GET", "https://a.example/", [], b"", 200, "OK", EVENTS, before)
    now = b'event: start\ndata: {"type": "start"}\n\nevent: ping\ndata: {"type": "ping"}\n\n'
    assert list(answer_changes(found, 200, EVENTS, now)) == [
        "event start $.n is gone: the tape has number",
        "event stop $ is gone: the tape has object",
        "event stop $.type is gone: the tape has text",
        "event ping $ is new: object",
        "event ping $.type is new: text",
    ]


def test_a_field_for_a_live_check_comes_from_the_environment():
    assert header_of("Authorization: Bearer $KEY", {"KEY": "abc"}) == ("authorization", "Bearer abc")
    with pytest.raises(TapeError, match="no variable KEY"):
        header_of("Authorization: Bearer $KEY", {})
    refused = tapes("check", ".", "--live", "--header", "Authorization: x")
    assert refused.exit_code == 2
    assert "--host" in refused.output
